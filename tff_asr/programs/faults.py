"""Faults of a round: failed clients, divergence, and shortages.

A failed client (its data could not be read, or its work raised an error) is not
in the sum. An update that is not finite counts as zeros. In both cases
the sum is as if the client had sent zeros, and it is always divided by the
expected cohort size, so noise, sensitivity and accounting do not change. Where
clients draw the noise, a failed client's share of it is missing
(`privacy.distributed`).

A federated round has diverged if the norm of the aggregated update or of the
new weights is not finite. Under DP both norms are computed from the noised mean
after the round was charged, so the decision costs no privacy. Losses are not
used: under DP they are exact and private. An undone round stays charged; the
next one has a new noise key and, if cohorts are drawn at random, another cohort
(`training_loop`).
"""

from collections.abc import Iterator, Mapping
import contextlib
import dataclasses
import errno
import math
from typing import NamedTuple, Optional, SupportsFloat

from absl import logging
import tensorflow as tf

from tff_asr import checks
from tff_asr import rounding
from tff_asr.execution import client_round
from tff_asr.models import weights as weights_lib

ACTIONS = ('stop', 'roll_back')
# If this many in a row do not help, the state before them was already bad.
_MAX_ROLL_BACKS = 3
_NORMS = ('update_norm', 'weights_norm')
_SHORTAGES = {
    errno.ENOMEM: (
        'out of memory',
        'lower MAX_BATCH_SEC (seconds of audio a batch) or CLIENTS_PER_DEVICE, '
        'or take a smaller model (NUM_BLOCKS, DIM, MLP_DIM)',
    ),
    errno.ENOSPC: ('the disk is full', 'make room on it'),
    errno.EDQUOT: ('the disk quota is used up', 'make room'),
    errno.EMFILE: ('too many open files', 'raise the limit (`ulimit -n`)'),
    errno.ENFILE: ('too many open files on this machine', 'close some'),
}


class TooManyFailuresError(ValueError):
  """More of a round's clients failed than the settings allow."""


class DivergedError(ValueError):
  """The model diverged, and the run ends."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class FaultSettings:
  """What a federated run does about faults.

  Attributes:
    max_failed_share: Share of a round's clients that may fail or send an update
      that is not finite. None: the execution context alone limits failures, and
      updates that are not finite have no limit.
    on_divergence: 'stop' ends the run when a round diverges; 'roll_back' undoes
      the round, which stays charged.
  """

  max_failed_share: Optional[float] = None
  on_divergence: str = 'stop'

  def validate(self) -> None:
    """Raises ValueError that lists everything wrong with the settings."""
    # None sets no limit, as a share of 1 does.
    share = 1 if self.max_failed_share is None else self.max_failed_share
    checks.check_all(
        lambda: checks.in_range(0, 1, max_failed_share=share),
        lambda: checks.one_of(ACTIONS, on_divergence=self.on_divergence),
    )

  def count_failed(
      self,
      failures: Mapping[int, str],
      metrics: Mapping[str, SupportsFloat],
      *,
      cohort_size: int,
      round_num: int,
      shows_exact: bool,
  ) -> int:
    """Counts the clients that a round left out; logs them without names.

    Args:
      failures: Causes of clients' failures, by position in the cohort.
      metrics: Metrics of the client work.
      cohort_size: Number of clients in the cohort.
      round_num: The round, for messages.
      shows_exact: Whether to log failures; counts and causes are private.

    Returns:
      How many failed, not counting updates that were not finite.

    Raises:
      TooManyFailuresError: More failed than `max_failed_share`.
    """
    # The metric is a float32 tensor, exact for counts up to 2^24.
    non_finite = int(float(metrics['num_non_finite']))
    failed = len(failures) + non_finite
    if not failed:
      return 0
    share = self.max_failed_share
    is_too_many = (
        share is not None and failed > rounding.whole(share * cohort_size)
    )
    # Whether a limit was exceeded is told by the end of the run anyway.
    if not shows_exact:
      # Neither the count nor the causes may be logged.
      if is_too_many:
        raise too_many(round_num)
      return len(failures)
    reasons = []
    if failures:
      # The first in the cohort, so that messages do not depend on timing.
      reasons.append(f'the first of them: {failures[min(failures)]}')
    if non_finite:
      reasons.append(f'{non_finite} with an update that is not finite')
    text = (
        f'{failed} of {cohort_size} clients of round {round_num} failed '
        f'({"; ".join(reasons)})'
    )
    if is_too_many:
      raise TooManyFailuresError(
          f'{text}, more than MAX_FAILED_SHARE = {share:g} allows: mend the '
          'data or lower CLIENT_LEARNING_RATE, or raise it.'
      )
    logging.warning('%s and were left out.', text)
    return len(failures)

  def check_divergence(
      self,
      roll_backs: 'RollbackCounts',
      metrics: Mapping[str, SupportsFloat],
      *,
      round_num: int,
  ) -> tuple['RollbackCounts', bool]:
    """Decides whether a round is kept or undone.

    Args:
      roll_backs: Rounds undone before.
      metrics: The finalizer's metrics of this round.
      round_num: Its number, for messages.

    Returns:
      Rounds undone so far; and whether to keep this round.

    Raises:
      DivergedError: The run ends.
    """
    norms = {name: float(metrics[name]) for name in _NORMS}
    problems = [
        f'its {name} is {norm}'
        for name, norm in norms.items()
        if not math.isfinite(norm)
    ]
    if not problems:
      return roll_backs._replace(in_a_row=0), True
    in_a_row = roll_backs.in_a_row
    if self.on_divergence == 'roll_back' and in_a_row < _MAX_ROLL_BACKS:
      return RollbackCounts(in_a_row + 1, roll_backs.in_all + 1), False
    remedy = ", or set ON_DIVERGENCE = 'roll_back'."
    if in_a_row:
      remedy = f' ({in_a_row} roll-backs in a row did not help).'
    raise DivergedError(
        f'round {round_num} diverged: {problems[0]}. The state of the round '
        'before it is kept; lower SERVER_LEARNING_RATE or CLIENT_LEARNING_RATE '
        f'with another output_dir{remedy}'
    )


def too_many(round_num: int) -> TooManyFailuresError:
  """Returns the error that ends a run without private details."""
  return TooManyFailuresError(
      f'more clients of round {round_num} failed than MAX_FAILED_SHARE allows. '
      'How many and why is private: EXACT_METRICS = True shows it, and the '
      'privacy report will say so.'
  )


@contextlib.contextmanager
def without_details(round_num: int, *, shows_exact: bool) -> Iterator[None]:
  """Replaces clients' errors by ones without private details.

  Args:
    round_num: The round, for messages.
    shows_exact: Whether errors may show exact private numbers.
  """
  if shows_exact:
    yield
    return
  try:
    yield
  except client_round.ClientTimeoutError:
    # The message reveals the client's position in the cohort, and its size.
    raise client_round.ClientTimeoutError(
        f'A client of round {round_num} hangs, or CLIENT_TIMEOUT_SEC is too '
        'low.'
    ) from None
  except client_round.ClientError as error:
    # The caller explains shortages; see `explained_shortage`.
    if client_round.exhausted_resource(error.__cause__) is not None:
      raise
    # Without the cause, which describes the client's failure.
    raise too_many(round_num) from None


class RollbackCounts(NamedTuple):
  """Counts of the rounds that a run has undone.

  Attributes:
    in_a_row: Since the last good round.
    in_all: In the whole run.
  """

  in_a_row: int = 0
  in_all: int = 0


def check_step(
    weights: weights_lib.Weights, *, loss: Optional[float] = None, step_num: int
) -> None:
  """Checks that the model is finite after a step.

  Args:
    weights: Weights after the step.
    loss: Loss of the step's batch; None: it is private.
    step_num: Number of the step, for the message.

  Raises:
    DivergedError: A weight or the loss is not finite.
  """
  # Not finite if any weight is not.
  # One number to fetch from the device instead of one a tensor.
  norm = float(tf.linalg.global_norm(list(weights.values())))
  if not math.isfinite(norm):
    problem = f'the norm of the weights is {norm}'
  elif loss is not None and not math.isfinite(loss):
    problem = f'the training loss is {loss}'
  else:
    return
  raise DivergedError(
      f'{problem} at step {step_num}: training diverged. What was saved before '
      'is kept; lower the learning rate (or max_grad_norm, or the noise), with '
      'another output_dir.'
  )


@contextlib.contextmanager
def explained_shortage(*, shows_details: bool = True) -> Iterator[None]:
  """Says what to change if memory, disk or open files do not suffice.

  Args:
    shows_details: Whether the message may quote the cause, such as the shape of
      a private batch.

  Raises:
    OSError: TensorFlow or Python had too little of it, here or at a client.
  """
  try:
    yield
  except Exception as error:
    cause = error
    # The errors of clients are wrapped on their way to the program.
    while cause is not None and client_round.exhausted_resource(cause) is None:
      cause = cause.__cause__
    # An OSError itself says what to change.
    if cause is None or isinstance(error, OSError):
      raise
    # An errno, also for TensorFlow's RESOURCE_EXHAUSTED.
    number = client_round.exhausted_resource(cause)
    problem, advice = _SHORTAGES[number]
    details = ''
    if shows_details:
      # TensorFlow lists the allocator's state over many lines.
      details = ' '.join(str(cause).split('\n')[0].split())[:200]
    raise OSError(
        number, f'{problem} ({details or type(cause).__name__}): {advice}.'
    ) from error

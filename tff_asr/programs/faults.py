"""Faults of a round: clients that fail, and models that diverge.

A client that failed (its data could not be read, or its work raised) is not in
the sum. A client whose update is not finite counts as zeros. Both are as if the
client had sent zeros. The sum is always divided by the expected cohort, so
noise, sensitivity and accounting do not change. But where clients add the noise
a failed one's is missing (`privacy.distributed`).

A federated round has diverged if one of two norms from the server's step is
not finite: of the aggregated update or of the new weights. Under DP both come
from the noised mean, after the round was charged, so the decision costs no
privacy. Losses are not used, because clients' losses are exact and private. An
undone round stays charged. The next one has a new noise key and, if cohorts are
drawn at random, another cohort (`training_loop`).
"""

from collections.abc import Mapping
import dataclasses
import math
from typing import Any, NamedTuple, Optional

from absl import logging
import tensorflow as tf
import tensorflow_federated as tff

from tff_asr import checks
from tff_asr import rounding
from tff_asr.models import weights as weights_lib

ACTIONS = ('stop', 'roll_back')
# After so many in a row, the rounds before were probably no good either.
_MAX_ROLL_BACKS = 3
_NORMS = ('update_norm', 'weights_norm')


class TooManyFailuresError(ValueError):
  """More of a round's clients failed than the run may do without."""


class DivergedError(ValueError):
  """The model diverged, and the run ends."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class FaultSettings:
  """Answers of a federated run to faults.

  Attributes:
    max_failed_share: Share of a round's clients that may fail, including those
      whose update is not finite. None: the execution context alone limits
      failures, and updates that are not finite have no limit.
    on_divergence: 'stop' ends the run when a round diverges; 'roll_back' undoes
      the round, which stays charged.
  """

  max_failed_share: Optional[float] = None
  on_divergence: str = 'stop'

  def check(self) -> None:
    """Raises ValueError for all that is wrong with the settings."""
    share = self.max_failed_share
    with checks.collect_errors() as collect:
      with collect:
        if share is not None:
          checks.in_range(0, 1, max_failed_share=share)
      with collect:
        checks.one_of(ACTIONS, on_divergence=self.on_divergence)

  def count_failed(
      self,
      context: tff.framework.AsyncContext,
      metrics: Mapping[str, Any],
      *,
      cohort_size: int,
      round_num: int,
      shows_exact: bool,
  ) -> int:
    """Counts the clients that a round left out; logs them without names.

    Args:
      context: Ran the round.
      metrics: Metrics of the client work.
      cohort_size: Clients that came.
      round_num: The round, for messages.
      shows_exact: Whether failures are logged; counts and causes are private.

    Returns:
      How many failed, without those whose update was not finite.

    Raises:
      TooManyFailuresError: More failed than may.
    """
    # The native context lists no failures: a failed client ends its round.
    failures = getattr(context, 'last_failures', {})
    non_finite = int(metrics['num_non_finite'])
    failed = len(failures) + non_finite
    if not failed:
      return 0
    share = self.max_failed_share
    is_too_much = (
        share is not None and failed > rounding.whole(share * cohort_size)
    )
    if not shows_exact:
      if is_too_much:
        raise too_many(round_num)
      return len(failures)
    reasons = []
    if failures:
      reasons.append(f'the first of them: {failures[min(failures)]}')
    if non_finite:
      reasons.append(f'{non_finite} with an update that is not finite')
    text = (
        f'{failed} of {cohort_size} clients of round {round_num} failed '
        f'({"; ".join(reasons)})'
    )
    if is_too_much:
      raise TooManyFailuresError(
          f'{text}, more than MAX_FAILED_SHARE = {share:g} allows: mend the '
          'data or lower CLIENT_LEARNING_RATE, or raise it.'
      )
    logging.warning('%s and were left out.', text)
    return len(failures)

  def after_round(
      self, record: 'RollBacks', metrics: Mapping[str, Any], *, round_num: int
  ) -> tuple['RollBacks', bool]:
    """Decides about a round.

    Args:
      record: Record of the rounds before.
      metrics: The finalizer's, of this round.
      round_num: Its number, for messages.

    Returns:
      The record after the round; and whether the round is good. If not, it is
      to be undone.

    Raises:
      DivergedError: The run is to end.
    """
    norms = {name: float(metrics[name]) for name in _NORMS}
    problems = [
        f'its {name} is {norm}'
        for name, norm in norms.items()
        if not math.isfinite(norm)
    ]
    if not problems:
      return record._replace(in_a_row=0), True
    if self.on_divergence == 'roll_back' and record.in_a_row < _MAX_ROLL_BACKS:
      return RollBacks(record.in_a_row + 1, record.in_all + 1), False
    remedy = ", or set ON_DIVERGENCE = 'roll_back'."
    if record.in_a_row:
      remedy = f' ({record.in_a_row} roll-backs in a row did not help).'
    raise DivergedError(
        f'round {round_num} diverged: {problems[0]}. The state of the round '
        'before it is kept; lower SERVER_LEARNING_RATE or CLIENT_LEARNING_RATE '
        f'with another output_dir{remedy}'
    )


def too_many(round_num: int) -> TooManyFailuresError:
  """Returns the error that ends a run without telling what failed."""
  return TooManyFailuresError(
      f'more clients of round {round_num} failed than MAX_FAILED_SHARE allows. '
      'How many and why is private: EXACT_METRICS = True shows it, and the '
      'privacy statement will say so.'
  )


class RollBacks(NamedTuple):
  """Rounds that a run has undone.

  Attributes:
    in_a_row: Since the last good round.
    in_all: Number of them in the whole run.
  """

  in_a_row: int = 0
  in_all: int = 0


def check_step(
    weights: weights_lib.Weights, *, loss: Optional[float] = None, number: int
) -> None:
  """Checks that a step left a model that further steps can mend.

  Args:
    weights: After the step.
    loss: Loss of the step's batch; None: it is private.
    number: Number of the step, for the message.

  Raises:
    DivergedError: A weight or the loss is not finite.
  """
  norm = float(tf.linalg.global_norm(list(weights.values())))
  if not math.isfinite(norm):
    problem = f'the norm of the weights is {norm}'
  elif loss is not None and not math.isfinite(loss):
    problem = f'the training loss is {loss}'
  else:
    return
  raise DivergedError(
      f'{problem} at step {number}: training diverged. What was saved before '
      'is kept; lower the learning rate (or max_grad_norm, or the noise), with '
      'another output_dir.'
  )

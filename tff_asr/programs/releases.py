"""Releases of a finished run's people, charged to the ledger of the run.

    with reopen('runs/dp', kind='counts', client_data=people,
                sampling=sampling, epsilon=0.5) as release:
      query = build_query(noise_multiplier=release.noise_multiplier)
      run_round = release.begin(configuration='')
      result = await run_round(step, state, draw=draw, position=position)
      report = release.write_report()

Error rates of people (`private_evaluation`) and counts for a language model
(`count_release`) are such releases. Before anything is charged, `begin` says
what the release makes of the run's verdict, refuses what would end a guarantee,
and refuses people whom the run has taken as public. From then on the people are
protected: later runs count them as private data of this one. Each release draws
keys of its own from the operating system, and they are never saved: a release
that is killed stays charged, and the next one draws other noise.
"""

from collections.abc import Awaitable, Callable, Iterator
import contextlib
import dataclasses
import functools
from typing import Any, Optional

import dp_accounting
import numpy as np
import tensorflow_federated as tff

from tff_asr.privacy import accounting
from tff_asr.privacy import calibration
from tff_asr.privacy import keys
from tff_asr.privacy import ledger as ledger_lib
from tff_asr.privacy import privacy_report
from tff_asr.programs import private_rounds
from tff_asr.programs import public_data
from tff_asr.storage import run_dir

# The role (`public_data.ROLES`) of the people of each of `ledger.RELEASES`.
_ROLES = {'evaluation': 'evaluated', 'counts': 'counted'}

Runner = Callable[..., Awaitable[private_rounds.RoundResult]]


class Release:
  """A release that is planned, then begun; made by `reopen`.

  Attributes:
    noise_multiplier: The noise of each round, rounded up to float32, at which
      all rounds together cost at most the epsilon that was asked for.
    delta: Delta of that epsilon, and of the run's report.
    outlook: What the release makes of the run's verdict.
  """

  def __init__(
      self,
      run: str,
      ledger: ledger_lib.Ledger,
      *,
      kind: str,
      client_data: tff.simulation.datasets.ClientData,
      sampling: accounting.Sampling,
      epsilon: float,
      num_rounds: int = 1,
      delta: Optional[float] = None,
      allows_not_private: bool = False,
  ):
    """Plans a release.

    Args:
      run: Folder of a finished run.
      ledger: Its ledger.
      kind: What is released, one of `ledger.RELEASES`.
      client_data: The people.
      sampling: How those of a round are drawn; noise is independent.
      epsilon: Of all rounds of this release alone.
      num_rounds: Number of rounds.
      delta: In (0, 1). If None, the delta of the run's privacy report, if it is
        below 1 / population of everyone whom the ledger would then protect;
        otherwise a tenth of that.
      allows_not_private: Whether the release may end the run's guarantee.

    Raises:
      ValueError: The ledger says NOT PRIVATE, protects single recordings, or
        has another neighbouring relation; or delta is out of range.
    """
    self._run, self._ledger, self._kind = run, ledger, kind
    self._client_data, self._sampling = client_data, sampling
    self._allows_not_private = allows_not_private
    contents, before = ledger.contents, run_dir.read_delta(run)
    if contents.privacy_unit != 'speaker':
      raise ValueError(
          f'the ledger of {run} cannot be charged for {kind}: it protects '
          f'single units ({contents.privacy_unit}), and this needs one that '
          'protects speakers.'
      )
    if contents.invalidations:
      raise ValueError(
          f'the ledger of {run} says NOT PRIVATE '
          f'({"; ".join(contents.invalidations)}): {kind} under the same '
          'ledger would promise nothing either.'
      )
    group = accounting.RoundGroup(
        sampling=sampling, noise_multiplier=1.0, count=num_rounds
    )
    after = [*contents.rounds, group]
    if delta is None:
      default = privacy_report.delta_or_default(None, after)
      # At 1 / population, ten times the default, nothing is private.
      delta = default if before is None or before >= 10 * default else before
    accounting.check_delta(delta)
    # Raises if the run's rounds have another neighbouring relation.
    relation = accounting.neighboring_relation(after)
    noise_multiplier = calibration.noise_multiplier_for_epsilon(
        epsilon, sampling=sampling, rounds=num_rounds, delta=delta
    )
    # `full` is calibrated for adding or removing a person.
    if (
        relation is dp_accounting.NeighboringRelation.REPLACE_ONE
        and sampling.kind == 'full'
    ):
      noise_multiplier *= 2
    self.delta = delta
    # Up: a query has float32, which may be the value below.
    self.noise_multiplier = float(
        np.nextafter(np.float32(noise_multiplier), np.float32('inf'))
    )
    after[-1] = dataclasses.replace(
        group, noise_multiplier=self.noise_multiplier
    )
    self.outlook = privacy_report.outlook(
        contents.rounds, after, delta=delta, delta_before=before
    )

  def begin(self, *, configuration: str) -> Runner:
    """Prints what the release makes of the verdict, and lists its people.

    Args:
      configuration: Text that determines what is summed, besides the data.

    Returns:
      Runs and charges rounds; it takes the arguments of
      `private_rounds.PrivateRoundRunner.run` but for the last one.

    Raises:
      ValueError: The release would end the guarantee, or its people are public
        in the run. Nothing is charged.
    """
    print(f'privacy of {self._run}: {self.outlook.words}')
    self.outlook.check(allows_not_private=self._allows_not_private)
    # Before the first charge: from then on they are protected.
    public_data.add(self._run, self._client_data, role=_ROLES[self._kind])
    runner = private_rounds.PrivateRoundRunner(
        ledger=self._ledger,
        noise=private_rounds.NoiseState(
            keys.draw(), np.int64(self._ledger.file_identity)
        ),
        sampling=self._sampling,
        configuration=run_dir.config_digest(configuration),
        settings=private_rounds.PrivacySettings(delta=self.delta),
    )
    return functools.partial(runner.run, release=self._kind)

  @property
  def head(self) -> ledger_lib.Head:
    """The ledger's head after the rounds so far."""
    return self._ledger.head

  def write_report(self) -> privacy_report.PrivacyReport:
    """Writes the run's privacy report again, with all that is charged.

    Returns:
      The report. What it says of the training is that of the report before.
    """
    # The ledger has costs alone: clip, tokens and public inputs are here.
    before = run_dir.read_privacy_report(self._run)
    report = privacy_report.of_ledger(
        self._ledger.contents,
        delta=self.delta,
        details=before and privacy_report.TrainingDetails.of_fields(before),
    )
    run_dir.write_privacy_report(self._run, report)
    return report


@contextlib.contextmanager
def reopen(run: str, **terms: Any) -> Iterator[Release]:
  """Locks a finished run and opens its ledger, to charge another release.

  Args:
    run: The run's folder.
    **terms: See `Release`.

  Yields:
    The release, of which nothing is charged yet.

  Raises:
    ValueError: The run has not finished or has no ledger, or as `Release`.
    ledger.LedgerError: The ledger is missing or was changed.
  """
  # Two programs that charge one ledger would break its chain of digests.
  lock = run_dir.RunLock(run)
  try:
    path, head = run_dir.ledger_of_model(run) or (None, None)
    if head is None:
      raise ValueError(
          f'{run} is not the folder of a finished run on private data: its '
          'ledger is to be charged.'
      )
    with ledger_lib.resume(path, head=head) as ledger:
      yield Release(run, ledger, **terms)
  finally:
    lock.release()

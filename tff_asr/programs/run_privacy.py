"""What a run's folder says that its rounds cost in privacy."""

from collections.abc import Sequence
import dataclasses
import os
from typing import Any, Optional

import numpy as np

from tff_asr.privacy import epsilon_report
from tff_asr.privacy import ledger as ledger_lib
from tff_asr.privacy import parent_ledgers
from tff_asr.privacy import ledger_rounds
from tff_asr.privacy import statement
from tff_asr.storage import run_dir
from tff_asr.storage import state_file


def epsilon_of_run(
    run: str, *, delta: Optional[float] = None, accountant: str = 'rdp'
) -> epsilon_report.Result:
  """Returns the epsilon of all rounds that a run's ledger charges.

  The ledger is compared with the run's newest saved state and its model, so
  that lines missing at its end are noticed as long as one of them is there.
  Ledgers of other units are accounted apart.

  Args:
    run: The run's folder.
    delta: In (0, 1); None takes 1 / (10 population), of each ledger.
    accountant: 'rdp' or 'pld'.

  Raises:
    ledger.LedgerError: The ledger is missing or was changed.
    ValueError: It charges no rounds, or an argument is out of range.
  """
  path = os.path.join(run, run_dir.LEDGER)
  if not os.path.exists(path):
    raise ValueError(
        f'{run} has no privacy ledger ({run_dir.LEDGER}): is it the folder of '
        'a run on private data, or of one that started from its model?'
    )
  # Of a run that has ended they are equal, and the ledger is read once.
  heads = dict.fromkeys((saved_head(run), run_dir.ledger_of_model(run)[1]))
  for head in heads:
    contents = ledger_lib.read(path, head=head)
  if not contents.rounds:
    raise ValueError(f'the privacy ledger of {run} charges no rounds yet.')

  def account(contents: ledger_lib.Contents) -> epsilon_report.Result:
    return epsilon_report.of_rounds(
        contents.rounds,
        delta=_default_delta(contents) if delta is None else delta,
        accountant=accountant,
        fixed_seeds=contents.fixed_seeds,
        unit=contents.unit,
    )

  return dataclasses.replace(
      account(contents), apart=tuple(map(account, parent_ledgers.read(path)))
  )


def saved_head(run: str) -> Optional[ledger_lib.Head]:
  """The ledger's head in the newest state that a run saved, if there is one.

  States of central runs, whose ledger does not change, have none.
  """
  newest = run_dir.newest_state(run)
  if newest is None:
    return None
  names = [leaf.path for leaf in state_file.read_manifest(newest).leaves]
  if not any(name.startswith('ledger/') for name in names):
    return None
  leaves = state_file.read_leaves(newest, prefix='ledger')
  values = list(leaves.values())
  return ledger_lib.Head(int(values[0]), str(values[1]))


def fixed_seeds(
    *, noise_seed: Optional[int], sampler_seed: Optional[int]
) -> list[str]:
  """Names of the keys that a seed fixed."""
  seeds = (('NOISE_SEED', noise_seed), ('SAMPLER_SEED', sampler_seed))
  return [name for name, seed in seeds if seed is not None]


def write_statement(
    run: run_dir.RunDir,
    ledger: ledger_lib.Ledger,
    query_state: Any = None,
    *,
    delta: Optional[float] = None,
) -> statement.Statement:
  """States what a run's ledger charges, in privacy.txt and privacy.json.

  Guarantees of other units follow it, a statement each.

  Args:
    run: The run's folder.
    ledger: Its ledger.
    query_state: State of its query, `queries` or `adaptive_query`; None: it
      charges no round of its own.
    delta: Of the statement; None: the default one.
  """
  contents = ledger.contents
  apart = parent_ledgers.read(run.file(run_dir.LEDGER))
  clip = None if query_state is None else float(query_state.l2_norm_clip)
  stated = statement.build(
      contents.rounds,
      delta=_default_delta(contents) if delta is None else delta,
      l2_norm_clip=clip,
      unit=contents.unit,
      fixed_seeds=contents.fixed_seeds,
      inherited=contents.inherited,
      adaptive_layers=np.size(getattr(query_state, 'layer_clips', ())),
      apart=[other.unit for other in apart],
  )
  others = [
      statement.build(
          other.rounds,
          delta=_default_delta(other),
          l2_norm_clip=None,
          unit=other.unit,
          fixed_seeds=other.fixed_seeds,
          inherited=sum(group.count for group in other.rounds),
      )
      for other in apart
  ]
  if others:
    stated = dataclasses.replace(
        stated,
        lines=sum([('', *other.lines) for other in others], stated.lines),
        fields=stated.fields | {'apart': [other.fields for other in others]},
    )
  run.write_text('privacy.txt', f'{stated}\n')
  run.write_json('privacy.json', stated.fields)
  return stated


def inherited(
    parent: Optional[parent_ledgers.Place], *, unit: str = 'speaker'
) -> ledger_rounds.Charges:
  """What of its unit a run takes over from its seed run's ledger."""
  own = parent_ledgers.split(parent, unit=unit).own
  if own is None:
    return ledger_rounds.Charges()
  path, head = own
  return ledger_lib.read_charges(path, head=head)


def create_ledger(
    run: run_dir.RunDir,
    parent: Optional[parent_ledgers.Place],
    *,
    fixed_seeds: Sequence[str] = (),
    unit: Optional[str] = 'speaker',
) -> ledger_lib.Ledger:
  """The ledger of a new run; refused where one was taken away.

  Args:
    run: The run's folder.
    parent: The ledger of the model that it starts from, or None.
    fixed_seeds: Names of the keys that a seed fixed.
    unit: What is protected; None: as `take_over`.
  """
  before = run_dir.ledger_of_model(run.path)
  if before is not None and before[1] is not None:
    raise ledger_lib.LedgerError(
        f'{run.path} holds a trained model but no saved state: put its states '
        'back, or take another output_dir.'
    )
  return _create(run, parent, fixed_seeds=fixed_seeds, unit=unit)


def take_over(
    run: run_dir.RunDir, parent: parent_ledgers.Place
) -> ledger_lib.Ledger:
  """The ledger of a run that charges no rounds of its own; made at each start.

  Args:
    run: The run's folder.
    parent: The ledger of the model that it starts from.
  """
  return _create(run, parent, fixed_seeds=(), unit=None)


def _create(
    run: run_dir.RunDir,
    parent: Optional[parent_ledgers.Place],
    *,
    fixed_seeds: Sequence[str],
    unit: Optional[str],
) -> ledger_lib.Ledger:
  """A new ledger, with what it takes over and what stays apart."""
  parents = parent_ledgers.split(parent, unit=unit)
  path, head = parents.own or (None, None)
  return ledger_lib.create(
      run.file(run_dir.LEDGER),
      unit=unit,
      fixed_seeds=fixed_seeds,
      parent=path,
      parent_head=head,
      apart=parent_ledgers.carry(
          run.file(run_dir.LEDGER), parents.apart
      ),
  )


def _default_delta(contents: ledger_lib.Contents) -> float:
  """Delta where none is given, for the largest population."""
  return statement.default_delta(
      max(group.sampling.population for group in contents.rounds)
  )

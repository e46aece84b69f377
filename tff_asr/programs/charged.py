"""What a run's folder says that its rounds cost in privacy."""

import os
from typing import Any, Optional

import numpy as np

from tff_asr.privacy import epsilon_report
from tff_asr.privacy import ledger as ledger_lib
from tff_asr.privacy import ledger_rounds
from tff_asr.privacy import statement
from tff_asr.programs import outputs
from tff_asr.programs import state_file


def epsilon_of_run(
    run: str, *, delta: Optional[float] = None, accountant: str = 'rdp'
) -> epsilon_report.Result:
  """Returns the epsilon of all rounds that a run's ledger charges.

  The ledger is compared with the run's newest saved state and its model, so
  that lines missing at its end are noticed as long as one of them is there.

  Args:
    run: The run's folder.
    delta: In (0, 1); None takes 1 / (10 population).
    accountant: 'rdp' or 'pld'.

  Raises:
    ledger.LedgerError: The ledger is missing or was changed.
    ValueError: It charges no rounds, or an argument is out of range.
  """
  path = os.path.join(run, outputs.LEDGER)
  if not os.path.exists(path):
    raise ValueError(
        f'{run} has no privacy ledger ({outputs.LEDGER}): is it the folder of '
        'a federated run?'
    )
  for head in (saved_head(run), outputs.ledger_of_model(run)[1]):
    contents = ledger_lib.read(path, head=head)
  if not contents.rounds:
    raise ValueError(f'the privacy ledger of {run} charges no rounds yet.')
  if delta is None:
    delta = statement.default_delta(
        max(group.sampling.population for group in contents.rounds)
    )
  return epsilon_report.of_rounds(
      contents.rounds,
      delta=delta,
      accountant=accountant,
      fixed_seeds=contents.fixed_seeds,
  )


def saved_head(run: str) -> Optional[ledger_lib.Head]:
  """The ledger's head in the newest state that a run saved, if there is one."""
  newest = outputs.newest_state(run)
  if newest is None:
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
    run: outputs.RunFolder,
    ledger: ledger_lib.Ledger,
    query_state: Any,
    *,
    delta: float,
) -> statement.Statement:
  """States what a run's ledger charges, in privacy.txt and privacy.json.

  Args:
    run: The run's folder.
    ledger: Its ledger.
    query_state: State of its query, `queries` or `adaptive_query`.
    delta: Of the statement.
  """
  contents = ledger.contents
  stated = statement.build(
      contents.rounds,
      delta=delta,
      l2_norm_clip=float(query_state.l2_norm_clip),
      unit=contents.unit,
      fixed_seeds=contents.fixed_seeds,
      inherited=contents.inherited,
      adaptive_layers=np.size(getattr(query_state, 'layer_clips', ())),
  )
  run.write_text('privacy.txt', f'{stated}\n')
  run.write_json('privacy.json', stated.fields)
  return stated


def inherited(
    parent: Optional[tuple[str, Optional[ledger_lib.Head]]]
) -> ledger_rounds.Charges:
  """What a run takes over from its seed run's ledger."""
  if parent is None:
    return ledger_rounds.Charges()
  path, head = parent
  return ledger_lib.read_charges(path, head=head)


def create_ledger(
    run: outputs.RunFolder,
    parent: Optional[tuple[str, Optional[ledger_lib.Head]]],
    *,
    fixed_seeds: list[str],
    unit: str = 'speaker',
) -> ledger_lib.Ledger:
  """The ledger of a new run; refused where one was taken away."""
  before = outputs.ledger_of_model(run.path)
  if before is not None and before[1] is not None:
    raise ledger_lib.LedgerError(
        f'{run.path} holds a trained model but no saved state: put its states '
        'back, or take another output_dir.'
    )
  path, head = parent or (None, None)
  return ledger_lib.create(
      run.file(outputs.LEDGER),
      unit=unit,
      fixed_seeds=fixed_seeds,
      parent=path,
      parent_head=head,
  )

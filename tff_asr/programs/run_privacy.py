"""Privacy of a run, from its folder: epsilon, and the statement.

Both come from the run's ledger (`privacy.ledger`). Rounds of another unit, such
as the examples of pre-training, have an epsilon and a statement of their own.
"""

from collections.abc import Sequence
import dataclasses
import os
from typing import Any, Optional

import numpy as np

from tff_asr import files
from tff_asr.privacy import epsilon_report
from tff_asr.privacy import ledger as ledger_lib
from tff_asr.privacy import statement
from tff_asr.storage import run_dir
from tff_asr.storage import state_file


def saved_head(run: str) -> Optional[ledger_lib.Head]:
  """The ledger's head in the newest state that a run saved, if there is one.

  States of central runs, whose ledger does not change, have none.
  """
  newest = run_dir.newest_state(run)
  if newest is None:
    return None
  head = state_file.read_leaves(newest, prefix='ledger/')
  if not head:
    return None
  return ledger_lib.Head(head['ledger/count'], head['ledger/digest'])


def epsilon_of_run(
    run: str,
    *,
    delta: Optional[float] = None,
    accountant: str = 'rdp',
) -> epsilon_report.Result:
  """Returns the epsilon of all rounds that a run's ledger charges.

  The ledger is compared with the run's newest saved state and with its model.
  As long as one of them exists, lines missing at the ledger's end are noticed.
  Ledgers of other units have their own epsilons.

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
  # Once a run has ended the two heads are equal, and the ledger is read once.
  heads = dict.fromkeys((saved_head(run), run_dir.ledger_of_model(run)[1]))
  for head in heads:
    contents = ledger_lib.read(path, head=head)
  if not contents.rounds:
    raise ValueError(f'the privacy ledger of {run} charges no rounds yet.')

  how = dict(delta=delta, accountant=accountant)
  return dataclasses.replace(
      epsilon_report.of_ledger(contents, **how),
      apart=tuple(
          epsilon_report.of_ledger(other, **how)
          for other in contents.other_units
      ),
  )


def write_statement(
    run: run_dir.RunDir,
    ledger: ledger_lib.Ledger,
    query_state: Any = None,
    *,
    delta: Optional[float] = None,
    inputs: Sequence[str] = (),
    public: str = '',
    tokens: str = '',
) -> statement.Statement:
  """States what a run's ledger charges, in privacy.txt and privacy.json.

  A statement for each other unit follows it.

  Args:
    run: The run's folder.
    ledger: Its ledger.
    query_state: State of its query, of `queries` or `adaptive_query`; None: the
      run charges no rounds of its own.
    delta: As in `statement.build`.
    inputs: The same.
    public: The same.
    tokens: The same.
  """
  contents = ledger.contents
  clip = None if query_state is None else float(query_state.l2_norm_clip)
  stated = statement.build(
      contents.rounds,
      delta=delta,
      l2_norm_clip=clip,
      unit=contents.privacy_unit,
      invalidations=contents.invalidations,
      inherited=contents.inherited,
      adaptive_layers=0 if query_state is None else np.size(
          query_state.layer_clips
      ),
      apart=[other.privacy_unit for other in contents.other_units],
      notes=contents.notes,
      inputs=inputs,
      public=public,
      tokens=tokens,
  )
  others = [
      statement.build(
          other.rounds,
          delta=None,
          l2_norm_clip=None,
          unit=other.privacy_unit,
          invalidations=other.invalidations,
          inherited=sum(group.count for group in other.rounds),
          notes=other.notes,
      )
      for other in contents.other_units
  ]
  if others:
    stated = dataclasses.replace(
        stated,
        lines=sum([('', *other.lines) for other in others], stated.lines),
        fields=stated.fields | {'apart': [other.fields for other in others]},
    )
  files.write_text(run.file(run_dir.STATEMENT), f'{stated}\n')
  files.write_json(run.file(run_dir.PRIVACY), stated.fields)
  return stated

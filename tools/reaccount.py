"""Epsilon of a privacy ledger by any dp-accounting, without TensorFlow.

    python3 -m venv accounting && accounting/bin/pip install dp-accounting
    accounting/bin/python -m tools.reaccount runs/private/ledger.jsonl
    accounting/bin/python -m tools.reaccount LEDGER --delta=1e-6

It runs in the project's folder, on any Python that dp-accounting runs on, and
needs no other package. So a ledger outlives the versions that its run was
pinned to; a later accountant may give a smaller bound.

A ledger's cost is one line of JSON, epsilon by RDP, and by PLD where it can be
had. Each privacy unit has a separate line: costs of different units are never
added up. The run's saved state is not read: `tff-asr compute_epsilon --run`
notices lines that are missing at the ledger's end.
"""

from collections.abc import Iterator
from importlib import metadata
import json
import sys
from typing import Any

from absl import app
from absl import flags

from tff_asr.privacy import ledger
from tff_asr.privacy import privacy_report

_DELTA = flags.DEFINE_float('delta', None, 'By default 1 / (10 population).')


def accounts(
    path: str, *, delta: float | None = None
) -> Iterator[dict[str, Any]]:
  """Yields the charges of a ledger for each privacy unit, for JSON.

  Args:
    path: The ledger.
    delta: In (0, 1); None: 1 / (10 population), of each unit.

  Raises:
    ledger.LedgerError: The ledger is missing or was changed.
    ValueError: It charges no round, or delta is out of range.
  """
  contents = ledger.read(path)
  found = [contents, *contents.other_units]
  if not any(contents.rounds for contents in found):
    raise ValueError(f'{path} charges no rounds.')
  for contents in found:
    if contents.rounds:
      report = privacy_report.of_ledger(
          contents._replace(other_units=()), delta=delta
      )
      yield {
          'ledger': path,
          'dp_accounting': metadata.version('dp-accounting'),
          **report.fields,
      }


def main(argv: list[str]) -> None:
  try:
    if len(argv) < 2:
      raise ValueError('no LEDGER was given; see --help.')
    for path in argv[1:]:
      for account in accounts(path, delta=_DELTA.value):
        print(json.dumps(account))
  except (OSError, ValueError) as error:
    sys.exit(f'error: {error}')


if __name__ == '__main__':
  app.run(main)

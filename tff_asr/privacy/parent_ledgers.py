"""Ledgers of other units, beside the one that a run appends to.

A run that protects speakers may start from a model that was pre-trained under
a ledger of examples. The two guarantees hold each for its own data and are not
added up: a recording is not a speaker. So the other ledger is copied whole,

    ledger.jsonl           of the run's unit; its header has the others' heads
    ledger.example.jsonl   of examples, as it was with the model,

and a chain of runs ends with one whole ledger for each unit. Where a run has
the unit of a ledger that was apart, it goes on with that one.
"""

from collections.abc import Mapping
import os
import tempfile
from typing import NamedTuple, Optional

from tff_asr.privacy import hash_chain
from tff_asr.privacy import ledger

# A ledger's path, and the head kept with the model that it belongs to.
Place = tuple[str, Optional[ledger.Head]]


class Parents(NamedTuple):
  """The ledgers of the model that a run starts from.

  Attributes:
    own: Of the run's unit, or None.
    apart: Of other units, by unit.
  """

  own: Optional[Place]
  apart: dict[str, Place]


def split(parent: Optional[Place], *, unit: Optional[str]) -> Parents:
  """Tells the ledgers of a model that a run starts from apart by unit.

  Args:
    parent: The ledger beside the model; None: it cost nothing.
    unit: Of the run; None: it charges nothing, and takes the unit of `parent`.

  Raises:
    ledger.LedgerError: A ledger is missing or was changed.
  """
  if parent is None:
    return Parents(None, {})
  path, head = parent
  contents = ledger.read(path, head=head)
  apart = {
      other: (hash_chain.path_beside(path, other), other_head)
      for other, other_head in contents.apart.items()
  }
  for other_path, other_head in apart.values():
    ledger.read(other_path, head=other_head)
  if unit in (None, contents.unit):
    return Parents(parent, apart)
  own = apart.pop(unit, None)
  if contents.rounds:
    apart[contents.unit] = parent
  return Parents(own, apart)


def carry(path: str, apart: Mapping[str, Place]) -> dict[str, ledger.Head]:
  """Copies ledgers of other units to beside a run's own.

  Args:
    path: The run's own ledger, which need not exist yet.
    apart: As in `Parents`.

  Returns:
    Their heads by unit, for `ledger.create`.
  """
  heads = {}
  for unit, (source, head) in apart.items():
    with open(source, 'rb') as file:
      data = file.read()
    _write(hash_chain.path_beside(path, unit), data)
    # Without a head, that of all its lines.
    lines = hash_chain.read(source)
    heads[unit] = head or ledger.Head(len(lines) - 1, lines[-1]['hash'])
  return heads


def read(path: str) -> list[ledger.Contents]:
  """Reads the ledgers of other units beside a run's own.

  Args:
    path: The run's own ledger.

  Raises:
    ledger.LedgerError: One is missing or was changed.
  """
  return [
      ledger.read(hash_chain.path_beside(path, unit), head=head)
      for unit, head in ledger.read(path).apart.items()
  ]


def _write(path: str, data: bytes) -> None:
  """Writes a file whole or not at all, and waits for the disk."""
  descriptor, temporary = tempfile.mkstemp(dir=os.path.dirname(path))
  try:
    with os.fdopen(descriptor, 'wb') as file:
      file.write(data)
      os.fchmod(file.fileno(), 0o644)
      file.flush()
      os.fsync(file.fileno())
    os.replace(temporary, path)
  except BaseException:
    os.unlink(temporary)
    raise
  hash_chain.sync_folder(path)

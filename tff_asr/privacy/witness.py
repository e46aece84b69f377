"""Witness of privacy ledgers: a file elsewhere that knows how far each one was.

A ledger's chain shows what was changed in it. It does not show that lines are
missing at its end if the whole folder, with its states and its model, was put
back to an earlier time. A witness does, as long as it lies where whoever
changes the folder cannot. Any number of runs append to one file:

    {"count": 12, "digest": HASH, "hash": HASH, "run_id": "8f...",
     "time": "2026-11-22T23:00:00+00:00"}

Count and digest are the ledger's head; lines are written and hashed as those of
a ledger. A ledger must go on from every head that the file has of its run: so a
copy of a folder and its original cannot both go on beside one witness.

Nothing in the file is ever changed, so it may lie on a medium that only takes
more. A line that a crash cut short gets a mark from whoever appends next, and
does not count: nobody was told of it. Any other line that cannot be read may
hide a head, so the file is refused.
"""

import datetime
import fcntl
import json
import os
import re

from absl import logging

from tff_asr import files
from tff_asr.privacy import ledger as ledger_lib

_CUT = b' # cut short\n'


class WitnessError(ledger_lib.LedgerError):
  """The witness does not know a ledger, or cannot be read."""


def append(path: str, ledger: ledger_lib.Ledger) -> None:
  """Writes the end of an open ledger; when this returns, it is on disk.

  Writes nothing if the newest line of the run has the same head.

  Args:
    path: The witness; created if it is missing.
    ledger: The ledger.

  Raises:
    ledger.LedgerError: The ledger does not go on from a head that the witness
      has, or the witness cannot be read.
    OSError: It cannot be written.
  """
  _check_file(path)
  descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o644)
  try:
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    data = files.read(path)
    heads = _heads(data, path=path).get(ledger.contents.run_id, [])
    ledger.check_heads(reversed(heads), of=path)
    if heads and heads[-1] == ledger.end:
      return
    line = {
        **ledger.end._asdict(),
        'run_id': ledger.contents.run_id,
        'time': datetime.datetime.now(datetime.timezone.utc).isoformat(
            timespec='seconds'
        ),
    }
    text = ledger_lib.encode_line(line | {'hash': ledger_lib.hash_line(line)})
    if data and not data.endswith(b'\n'):
      text = _CUT + text
    while text:
      text = text[os.write(descriptor, text) :]
    os.fsync(descriptor)
    if not data:
      files.sync(os.path.dirname(os.path.abspath(path)))
  finally:
    os.close(descriptor)


def check(path: str, ledger: str, *, must_know: bool = True) -> None:
  """Checks that a ledger goes on from all that a witness has of its run.

  Args:
    path: The witness.
    ledger: The ledger's file.
    must_know: Whether the witness must have a head of the run.

  Raises:
    ledger.LedgerError: It does not, or one of the files is missing or damaged.
  """
  if not os.path.exists(path):
    if not must_know:
      return
    raise WitnessError(f'The witness {path} is missing.')
  _check_file(path)
  run_id = ledger_lib.read(ledger).run_id
  heads = _heads(files.read(path), path=path).get(run_id, [])
  if must_know and not heads:
    raise WitnessError(
        f'The witness {path} does not know the run {run_id} of {ledger}: this '
        'ledger is of another run than the one that was witnessed.'
    )
  ledger_lib.check_heads(ledger, reversed(heads), of=path)


def _check_file(path: str) -> None:
  """Raises WitnessError if the path is of a folder."""
  if os.path.isdir(path):
    raise WitnessError(
        f'The witness {path} is a folder: name a file, such as '
        f'{os.path.join(path, "witness.jsonl")}.'
    )


def _heads(data: bytes, *, path: str) -> dict[str, list[ledger_lib.Head]]:
  """The heads in a witness's file, by run, in order."""
  heads = {}
  *lines, torn = data.split(b'\n')
  if torn:
    logging.warning(
        '%s ends in a line that a crash cut short; it does not count.', path
    )
  for number, raw in enumerate(lines, start=1):
    if raw.endswith(_CUT.rstrip()):
      continue
    try:
      line = json.loads(raw)
      is_whole = (
          raw + b'\n' == ledger_lib.encode_line(line)
          and line['hash'] == ledger_lib.hash_line(line)
          and isinstance(line['run_id'], str)
          and isinstance(line['count'], int)
          and re.fullmatch('[0-9a-f]{64}', line['digest'])
      )
    except (ValueError, KeyError, TypeError, RecursionError):
      is_whole = False
    if not is_whole:
      raise WitnessError(
          f'Line {number} of the witness {path} is damaged and may hide how '
          'far a ledger was: put the file back as it was.'
      )
    heads.setdefault(line['run_id'], []).append(
        ledger_lib.Head(line['count'], line['digest'])
    )
  return heads

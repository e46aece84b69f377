"""Text files of corpora: lines, tables and JSON lines.

UTF-8 with or without a byte order mark, also compressed (.gz). A line has at
most a million characters and a file, unpacked, at most 4 GiB, so that a damaged
file cannot fill the memory.
"""

import collections
from collections.abc import Iterator, Sequence
import csv
import gzip
import io
import itertools
import os
from typing import Any
import zlib

from data_tools import utterances
from tff_asr import files

UNREADABLE = 'has a line that cannot be read'

_MAX_LINE = 10**6
_MAX_CHARACTERS = 2**32
_MAX_ROW_LINES = 1000
_DELIMITERS = {'.tsv': '\t', '.csv': ','}


def read_lines(path: str | os.PathLike[str]) -> Iterator[tuple[int, str]]:
  """Yields the numbers, from 1, and contents of a text file's lines.

  Raises:
    ValueError: If it is missing, no plain file, damaged, not UTF-8 or too
      large. It names the file.
  """
  path = os.fspath(path)
  left = _MAX_CHARACTERS
  try:
    with files.open_regular(path) as file:
      stream = gzip.GzipFile(fileobj=file) if path.endswith('.gz') else file
      # utf-8-sig drops the byte order mark that spreadsheets write.
      lines = io.TextIOWrapper(stream, encoding='utf-8-sig', newline='')
      number = 0
      # One more shows that a line is too long.
      while line := lines.readline(_MAX_LINE + 1):
        number += 1
        left -= len(line)
        if len(line) > _MAX_LINE or left < 0:
          raise ValueError(
              f'line {number} goes beyond {_MAX_LINE:,} characters, or the file'
              f' beyond {_MAX_CHARACTERS:,}; split it'
          )
        yield number, line.rstrip('\r\n')
  except FileNotFoundError as e:
    raise ValueError(f'{path} is missing; check where the corpus is.') from e
  except UnicodeDecodeError as e:
    raise ValueError(
        f'{path} is not UTF-8 ({e.reason}); convert it, or get the corpus '
        'again.'
    ) from e
  except (OSError, EOFError, zlib.error) as e:
    raise ValueError(f'{path} cannot be read ({e}).') from e
  except ValueError as e:
    raise ValueError(f'{path}: {str(e).removeprefix(path).strip()}.') from e


def read_table(
    path: str,
) -> tuple[
    Sequence[str], list[tuple[int, dict[str, str]]], list[utterances.Problem]
]:
  """Reads a table with a header: .csv by commas or semicolons, else by tabs.

  Releases of corpora differ in whether they quote: a field that begins with a
  quotation mark may be quoted, with delimiters, line breaks and doubled marks
  inside, or just begin so. Lines are one row if a quoted field goes over them
  and they are not all rows by themselves.

  Returns:
    The header, the first line's number and the fields by name of each row, and
    the lines that do not have as many fields.

  Raises:
    ValueError: As `read_lines`.
  """
  suffix = os.path.splitext(path.removesuffix('.gz'))[1].lower()
  delimiter = _DELIMITERS.get(suffix, '\t')
  header: list[str] = []
  rows, problems = [], []
  lines = collections.deque()
  rest = read_lines(path)
  while lines or (lines := collections.deque(itertools.islice(rest, 1))):
    number, line = lines.popleft()
    if not header:
      # As spreadsheets write it where a comma is the decimal mark.
      if delimiter == ',' and line.lower() == 'sep=;':
        continue
      if delimiter == ',' and line.count(';') > line.count(','):
        delimiter = ';'
      header = _split(line, delimiter) or ['']
      continue
    fields = None
    if line.count('"') % 2:
      # Up to the line that closes the quoted field.
      quotes = 1
      for index in range(_MAX_ROW_LINES):
        if index == len(lines):
          lines.extend(itertools.islice(rest, 1))
        if index == len(lines) or not quotes % 2:
          break
        quotes += lines[index][1].count('"')
      together = [line, *(text for _, text in itertools.islice(lines, index))]
      fields = _join(together, delimiter, count=len(header))
      for _ in range(len(together) - 1 if fields else 0):
        lines.popleft()
    fields = fields or _split(line, delimiter, count=len(header))
    if fields is not None:
      rows.append((number, dict(zip(header, fields))))
    elif line:
      detail = (
          f'{path}, line {number} has {line.count(delimiter) + 1} fields'
          f' instead of {len(header)}.'
      )
      problems.append(
          utterances.Problem('', f'line {number}', UNREADABLE, detail)
      )
  return header, rows, problems


def read_json_lines(
    path: str,
) -> Iterator[tuple[int, dict[str, Any] | None]]:
  """Yields line numbers and objects of a file with a JSON object a line.

  Yields None for a line that is not an object; skips empty lines.

  Raises:
    ValueError: As `read_lines`.
  """
  for number, line in read_lines(path):
    if not line.strip():
      continue
    try:
      value = files.parse_json(line)
    except ValueError:
      value = None
    yield number, value if isinstance(value, dict) else None


def _join(
    lines: Sequence[str], delimiter: str, *, count: int
) -> list[str] | None:
  """Splits several lines into `count` fields; None if they are not one row."""
  if len(lines) < 2 or all(
      _split(line, delimiter, count=count) for line in lines
  ):
    return None
  try:
    (fields,) = csv.reader(
        ['\n'.join(lines)], delimiter=delimiter, strict=True
    )
  except (csv.Error, ValueError):
    return None
  return fields if len(fields) == count else None


def _split(
    line: str, delimiter: str, *, count: int | None = None
) -> list[str] | None:
  """The fields of a line; None if they are not `count`, where that is known."""
  plain = [_unquote(field) for field in line.split(delimiter)]
  try:
    # Strict: raises where a quotation mark does not quote.
    (quoted,) = csv.reader([line], delimiter=delimiter, strict=True)
  except (csv.Error, ValueError):
    quoted = None
  # Tabs seldom stand in a field, marks of speech often; commas do.
  options = [plain, quoted] if delimiter == '\t' else [quoted, plain]
  fitting = (
      fields for fields in options if fields and count in (None, len(fields))
  )
  return next(fitting, None)


def _unquote(field: str) -> str:
  """A field without the marks that quote it, if it is quoted."""
  inside = field[1:-1]
  if len(field) >= 2 and field[0] == field[-1] == '"':
    if '"' not in inside.replace('""', ''):
      return inside.replace('""', '"')
  return field

"""Text files of corpora: lines, tables and JSON lines.

UTF-8 with or without a byte order mark, or UTF-16 with one, also compressed
(.gz). A line has at most a million characters and a file, unpacked, at most
4 GiB, so that a damaged file cannot fill the memory.
"""

import codecs
import collections
from collections.abc import Iterator, Sequence
import csv
import gzip
import io
import itertools
import os
from typing import Any, NamedTuple
import zlib

from data_tools import utterances
from tff_asr import files

UNREADABLE = 'has a line that cannot be read'

_MAX_LINE = 10**6
_MAX_JSON_LINE = 2**28
_MAX_CHARACTERS = 2**32
_MAX_ROW_LINES = 1000
_DELIMITERS = {'.tsv': '\t', '.csv': ','}


class Table(NamedTuple):
  """A table that was read.

  Attributes:
    header: The names of the columns.
    rows: The number of the first line of each row, and its fields by name.
    problems: The lines that do not have as many fields.
    delimiter: What divides the columns.
  """

  header: Sequence[str]
  rows: list[tuple[int, dict[str, str]]]
  problems: list[utterances.Problem]
  delimiter: str


def read_lines(
    path: str | os.PathLike[str], *, max_line: int = _MAX_LINE
) -> Iterator[tuple[int, str]]:
  """Yields the numbers, from 1, and contents of a text file's lines.

  Args:
    path: The file.
    max_line: Most characters of a line.

  Raises:
    ValueError: If it is missing, no plain file, damaged, in another encoding or
      too large. It names the file.
  """
  path = os.fspath(path)
  left, number = _MAX_CHARACTERS, 0
  try:
    with files.open_regular(path) as file:
      stream = gzip.GzipFile(fileobj=file) if path.endswith('.gz') else file
      start = stream.read(2)
      stream.seek(0)
      is_utf16 = start in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
      lines = io.TextIOWrapper(
          stream,
          # Both drop the byte order mark that spreadsheets write.
          encoding='utf-16' if is_utf16 else 'utf-8-sig',
          newline='',
      )
      # One more shows that a line is too long.
      while line := lines.readline(max_line + 1):
        number += 1
        left -= len(line)
        if len(line) > max_line or left < 0:
          raise ValueError(
              f'line {number} goes beyond {max_line:,} characters, or the file'
              f' beyond {_MAX_CHARACTERS:,}; split it'
          )
        yield number, line.rstrip('\r\n')
  except FileNotFoundError as e:
    raise ValueError(f'{path} is missing; check where the corpus is.') from e
  except UnicodeDecodeError as e:
    raise ValueError(
        f'{path} is not {e.encoding} after line {number}, where it has the byte'
        f' {e.object[e.start]:#x}; save it as UTF-8 (Excel: CSV UTF-8), or, if'
        ' it is of Windows: iconv -f CP1252 -t UTF-8 FILE > NEW.'
    ) from e
  except (OSError, EOFError, zlib.error) as e:
    raise ValueError(f'{path} cannot be read ({e}).') from e
  except ValueError as e:
    raise ValueError(f'{path}: {str(e).removeprefix(path).strip()}.') from e


def read_table(path: str) -> Table:
  """Reads a table with a header.

  Its columns are divided by tabs; in a .csv by what its header has most of:
  commas, semicolons or tabs.

  Releases of corpora differ in whether they quote: a field that begins with a
  quotation mark may be quoted, with delimiters, line breaks and doubled marks
  inside, or just begin so. Lines are one row if a quoted field goes over them
  and they are not all rows by themselves. Lines without any text are skipped.

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
      if delimiter == ',':
        delimiter = max(',;\t', key=line.count)
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
    # Spreadsheets end in lines such as ;;;;
    if not line.strip(f'{delimiter} "'):
      continue
    if fields is not None:
      rows.append((number, dict(zip(header, fields))))
    else:
      detail = (
          f'{path}, line {number} has {line.count(delimiter) + 1} fields'
          f' instead of {len(header)}.'
      )
      problems.append(
          utterances.Problem('', f'line {number}', UNREADABLE, detail)
      )
  return Table(header, rows, problems, delimiter)


def read_json_lines(
    path: str,
) -> Iterator[tuple[str, dict[str, Any] | None]]:
  """Yields 'line 3' and its object of a file with a JSON object a line.

  A file may also have a list of objects; its third is 'object 3'. Yields None
  for what is not an object; skips empty lines.

  Raises:
    ValueError: As `read_lines`, or a list is not valid JSON.
  """
  lines = (
      (number, line)
      # A list of objects may stand on one line.
      for number, line in read_lines(path, max_line=_MAX_JSON_LINE)
      if line.strip()
  )
  is_first = True
  for number, line in lines:
    if is_first and line.lstrip().startswith('['):
      text = '\n'.join([line, *(rest for _, rest in lines)])
      try:
        values = files.parse_json(text)
      except ValueError as e:
        raise ValueError(f'{path} is not valid JSON ({e}).') from e
      for i, value in enumerate(values, 1):
        yield f'object {i}', value if isinstance(value, dict) else None
      return
    is_first = False
    try:
      value = files.parse_json(line)
    except ValueError:
      value = None
    yield f'line {number}', value if isinstance(value, dict) else None


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

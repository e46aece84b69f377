"""Table of two sides' results: measures, distances, tolerances and reasons.

Each side writes arrays by name (.npz) and texts by name (.json). A row looks at
all names under a prefix, and measures how far ours are from theirs:

    relative   ||ours - theirs|| / ||theirs|| over all arrays together
    rms        root mean square of ours - theirs
    largest    largest |ours - theirs| over the largest |theirs|, of any array
    other      share of the list's entries that are others

A row with a choice differs on purpose; the choice says how.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

Results = Mapping[str, Any]


class Row(NamedTuple):
  """A line of the table.

  Attributes:
    prefix: Prefix of the names that it looks at.
    what: What is compared, in words.
    measure: A key of `MEASURES`.
    tolerance: What may be found.
    choice: Why it is another on purpose, and where the exact one is; found is
      then printed and not judged.
  """

  prefix: str
  what: str
  measure: str
  tolerance: float
  choice: str = ''


class Line(NamedTuple):
  """A row with what was found.

  Attributes:
    row: The row.
    found: What its measure gives.
    worst: Name of the array furthest off; '' of a row of one.
    values: Ours and theirs, of a row of one number.
  """

  row: Row
  found: float
  worst: str = ''
  values: tuple[float, ...] = ()

  @property
  def verdict(self) -> str:
    """'choice', 'within' or 'BEYOND'; NaN is beyond."""
    if self.row.choice:
      return 'choice'
    return 'within' if self.found <= self.row.tolerance else 'BEYOND'


def relative(ours: Sequence[np.ndarray], theirs: Sequence[np.ndarray]) -> float:
  """||ours - theirs|| / ||theirs|| over all; 0 if both are zeros."""
  difference = sum(np.sum(np.square(a - b)) for a, b in zip(ours, theirs))
  size = sum(np.sum(np.square(b)) for b in theirs)
  if not difference:
    return 0.0
  return float(np.sqrt(difference / size)) if size else float('inf')


def rms(ours: Sequence[np.ndarray], theirs: Sequence[np.ndarray]) -> float:
  """Root mean square of all differences."""
  difference = sum(np.sum(np.square(a - b)) for a, b in zip(ours, theirs))
  return float(np.sqrt(difference / sum(b.size for b in theirs)))


def largest(ours: Sequence[np.ndarray], theirs: Sequence[np.ndarray]) -> float:
  """Largest difference over the largest of theirs, of the worst array."""
  found = [0.0]
  for a, b in zip(ours, theirs):
    difference = float(np.max(np.abs(a - b), initial=0.0))
    size = float(np.max(np.abs(b), initial=0.0))
    found.append(difference and (difference / size if size else float('inf')))
  return max(found)


def other(ours: Sequence[Any], theirs: Sequence[Any]) -> float:
  """Share of the entries of lists that are not equal."""
  pairs = [
      pair for a, b in zip(ours, theirs) for pair in zip(a, b, strict=True)
  ]
  return sum(a != b for a, b in pairs) / len(pairs) if pairs else 0.0


MEASURES = {
    'relative': relative, 'rms': rms, 'largest': largest, 'other': other,
}


def compare(ours: Results, theirs: Results, rows: Iterable[Row]) -> list[Line]:
  """Measures each row.

  Args:
    ours: Arrays and lists by name.
    theirs: Likewise.
    rows: What to look at.

  Raises:
    ValueError: A row has no results, or a side has names or shapes that the
      other does not have.
  """
  lines = []
  for row in rows:
    names = sorted(
        name for name in ours.keys() | theirs.keys()
        if name == row.prefix or name.startswith(f'{row.prefix}/')
    )
    if not names:
      raise ValueError(f'no side has results of {row.prefix}.')
    for name in names:
      for side, results in (('ours', ours), ('theirs', theirs)):
        if name not in results:
          raise ValueError(f'{side} has no {name}.')
    pairs = {name: _pair(name, ours[name], theirs[name]) for name in names}
    measure = MEASURES[row.measure]
    each = {name: measure([a], [b]) for name, (a, b) in pairs.items()}
    found = measure(*map(list, zip(*pairs.values())))
    worst = max(each, key=each.get) if len(each) > 1 else ''
    only = pairs[names[0]]
    is_number = not worst and np.ndim(only[0]) == 0
    lines.append(Line(row, found, worst, only if is_number else ()))
  return lines


def _pair(name: str, ours: Any, theirs: Any) -> tuple[Any, Any]:
  """Both as float64 arrays of one shape, or as lists."""
  if isinstance(theirs, list):
    if len(ours) != len(theirs):
      raise ValueError(f'{name} has {len(ours)} entries, not {len(theirs)}.')
    return ours, theirs
  ours, theirs = (np.asarray(each, np.float64) for each in (ours, theirs))
  if ours.shape != theirs.shape:
    raise ValueError(f'{name} is {ours.shape}, theirs {theirs.shape}.')
  return ours, theirs


def markdown(lines: Iterable[Line]) -> str:
  """The table."""
  text = [
      '| what | measure | found | tolerance | |',
      '|---|---|---|---|---|',
  ]
  for line in lines:
    row = line.row
    tolerance = '' if row.choice else f'{row.tolerance:.1e}'
    remark = f'choice: {row.choice}' if row.choice else line.verdict
    if line.values:
      ours, theirs = line.values
      remark += f' ({ours:.4g}, theirs {theirs:.4g})'
    text.append(
        f'| {row.what} | {row.measure} | {line.found:.1e} | {tolerance} '
        f'| {remark} |'
    )
  return '\n'.join(text) + '\n'

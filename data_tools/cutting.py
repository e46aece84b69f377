"""Where to cut a long recording: at silences, into records of bounded length.

Stretches of voice that follow each other are joined, with the silence between
them, as long as the record stays within the bound; silence between records is
left away. A stretch longer than the bound is cut into equal parts.
"""

from collections.abc import Mapping, Sequence
import math
from typing import Any

from tff_asr.features import mel

SAMPLE_RATE_HZ = mel.SAMPLE_RATE_HZ

Interval = tuple[int, int]


def parse_activity(metadata: Mapping[str, Any]) -> list[Interval] | None:
  """Returns the stretches of voice of a recording, in samples.

  Args:
    metadata: A Libri-Light JSON file's content; `voice_activity` is a list of
      [start, end] in seconds.

  Returns:
    Intervals in order of time; None if there is no `voice_activity`.

  Raises:
    ValueError: If it is no object, or `voice_activity` is not a list of pairs
      of finite numbers in order.
  """
  if not isinstance(metadata, Mapping):
    raise ValueError(f'it must hold an object, found {type(metadata).__name__}')
  stretches = metadata.get('voice_activity')
  if stretches is None:
    return None
  try:
    intervals = [
        (round(start * SAMPLE_RATE_HZ), round(end * SAMPLE_RATE_HZ))
        for start, end in stretches
    ]
  except (TypeError, ValueError, OverflowError) as e:
    raise ValueError(f'voice_activity must list [start, end] ({e})') from e
  before = 0
  for start, end in intervals:
    if not before <= start <= end:
      raise ValueError(
          f'voice_activity must be in order of time, found {start} to {end}'
          f' samples after {before}'
      )
    before = end
  return intervals


def cut(
    num_samples: int,
    *,
    max_samples: int,
    activity: Sequence[Interval] | None,
) -> list[Interval]:
  """Returns the records of a recording as [start, end) in samples.

  Args:
    num_samples: Its length.
    max_samples: Of a record, at least 1.
    activity: Its stretches of voice, in order; None for one from end to end.
  """
  if activity is None:
    activity = [(0, num_samples)]
  records: list[Interval] = []
  current: Interval | None = None
  for start, end in activity:
    start, end = min(start, num_samples), min(end, num_samples)
    if end == start:
      continue
    if current is not None and end - current[0] <= max_samples:
      current = current[0], end
      continue
    if current is not None:
      records.extend(_split(*current, max_samples))
    current = start, end
  if current is not None:
    records.extend(_split(*current, max_samples))
  return records


def _split(start: int, end: int, max_samples: int) -> list[Interval]:
  """Equal parts of at most max_samples."""
  count = math.ceil((end - start) / max_samples)
  edges = [start + (end - start) * i // count for i in range(count + 1)]
  return list(zip(edges, edges[1:]))

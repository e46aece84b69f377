"""Speakers dealt into named parts that share none.

A specification is a list such as `public=24,private=rest,dev=4,test=10`:

- `N`: that many speakers,
- `N%`: that share of all speakers, rounded down,
- `rest`: all that no other part takes, for at most one part,
- `@FILE`: the speakers named in a file, one a line.

Speakers are put in the order of SHA-256(seed, speaker) and dealt to the parts
from left to right, so the outcome depends on the seed and the set of speakers,
not on the machine or the order they were found in. Without `rest`, speakers may
be left over and are in no part.
"""

from collections.abc import Iterable, Mapping
import hashlib
import re

from tff_asr import checks

_NAME = re.compile(r'[A-Za-z0-9_-]+')
_SIZE = re.compile(r'\d+|(100|\d?\d)%|@.+')


def partition(
    speakers: Iterable[str], *, spec: str, seed: int
) -> dict[str, list[str]]:
  """Deals speakers into parts.

  Args:
    speakers: Their ids, each once.
    spec: As in the module's docstring.
    seed: At least 0.

  Returns:
    Part names, in the order of `spec`, to sorted lists of speakers, disjoint
    and not empty.

  Raises:
    ValueError: If `spec` cannot be read, names a part twice, has `rest` twice,
      asks for more speakers than there are or for an unknown or taken one, or
      leaves a part empty.
  """
  checks.non_negative_int(seed=seed)
  speakers = sorted(speakers)
  if len(set(speakers)) != len(speakers):
    raise ValueError('speakers must hold each speaker once.')
  sizes = _parse(spec)
  parts: dict[str, list[str]] = {name: [] for name in sizes}
  free = dict.fromkeys(
      sorted(
          speakers,
          key=lambda s: (hashlib.sha256(f'{seed}:{s}'.encode()).digest(), s),
      )
  )
  for name, size in sizes.items():
    if size.startswith('@'):
      parts[name] = _take_listed(name, size[1:], speakers=speakers, free=free)
  counts = {
      name: len(speakers) * int(size[:-1]) // 100
      if size.endswith('%')
      else int(size)
      for name, size in sizes.items()
      if size != 'rest' and not size.startswith('@')
  }
  if sum(counts.values()) > len(free):
    wanted = ', '.join(f'{name}={count}' for name, count in counts.items())
    raise ValueError(
        f'partition {spec!r} asks for {sum(counts.values())} speakers'
        f' ({wanted}), but there are {len(free)}; ask for fewer.'
    )
  for name, count in counts.items():
    parts[name] = [speaker for speaker, _ in zip(list(free), range(count))]
    for speaker in parts[name]:
      del free[speaker]
  for name, size in sizes.items():
    if size == 'rest':
      parts[name] = list(free)
    if not parts[name]:
      raise ValueError(
          f'part {name!r} of partition {spec!r} is empty with'
          f' {len(speakers)} speakers; give it at least one.'
      )
  return {name: sorted(part) for name, part in parts.items()}


def _parse(spec: str) -> Mapping[str, str]:
  """Part names to sizes, each 'N', 'N%', 'rest' or '@FILE'."""
  sizes: dict[str, str] = {}
  for item in spec.split(','):
    name, equals, size = (text.strip() for text in item.partition('='))
    known = size == 'rest' or _SIZE.fullmatch(size)
    if not equals or not _NAME.fullmatch(name) or not known:
      raise ValueError(
          f'partition {spec!r}: cannot read {item!r}; write NAME=N, NAME=N%,'
          ' NAME=rest or NAME=@FILE, separated by commas.'
      )
    if name in sizes:
      raise ValueError(f'partition {spec!r} names the part {name!r} twice.')
    if size == 'rest' and 'rest' in sizes.values():
      raise ValueError(f"partition {spec!r} has 'rest' twice; use it once.")
    sizes[name] = size
  return sizes


def _take_listed(
    name: str, path: str, *, speakers: list[str], free: dict[str, None]
) -> list[str]:
  """Takes the speakers that a file lists out of `free`."""
  try:
    with open(path, encoding='utf-8') as f:
      listed = [line.strip() for line in f if line.strip()]
  except (OSError, UnicodeDecodeError) as e:
    reason = getattr(e, 'strerror', None) or 'not UTF-8'
    raise ValueError(
        f'part {name!r}: cannot read the list {path} ({reason}).'
    ) from e
  for speaker in listed:
    if speaker not in free:
      problem = 'is taken already' if speaker in speakers else 'is unknown'
      raise ValueError(f'part {name!r}: speaker {speaker} in {path} {problem}.')
    del free[speaker]
  return listed

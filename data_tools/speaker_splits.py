"""Speaker partition: named parts of a corpus that share no speaker.

A specification is a list such as `public=24,private=rest,dev=4,test=10`:

- `N`: that many speakers,
- `N%`: that share of all speakers, rounded down (5 % of 34,753 are 1,737),
- `rest`: all that no other part takes, for at most one part,
- `@FILE`: the speakers named in a file, one a line.

Parts by name go first. The other speakers are put in the order of
SHA-256(seed, speaker) and assigned from left to right, so the outcome depends
on the seed and the set of speakers, not on the machine or the order they were
found in. Without `rest`, speakers may be left over and are in no part.

`repartition` gives each utterance to a random speaker instead: the IID ablation
of the federated ASR paper (https://arxiv.org/abs/2310.00098).
"""

from collections.abc import Collection, Iterable, Mapping
import dataclasses
import fractions
import hashlib
import itertools
import re

from data_tools import utterances as utterances_lib

_NAME = re.compile(r'[A-Za-z0-9_-]+')
_SIZE = re.compile(r'\d+|(?:100|\d?\d(?:\.\d+)?)%|@.+|rest')


def partition(
    speakers: Iterable[str],
    *,
    spec: str,
    seed: int,
    others: Collection[str] = (),
) -> dict[str, list[str]]:
  """Divides speakers into parts.

  Args:
    speakers: Their ids.
    spec: Specification of the splits, as in the module's docstring.
    seed: Seed of the order in which speakers are assigned.
    others: Speakers who are in no part unless a file names them.

  Returns:
    Part names, in the order of `spec`, to sorted lists of speakers, disjoint
    and not empty.

  Raises:
    ValueError: If `spec` cannot be read, names a part twice, has `rest` twice,
      asks for more speakers than there are or for an unknown or taken one, or
      leaves a part empty.
  """
  speakers = sorted(set(speakers))
  sizes = _parse(spec)
  parts: dict[str, list[str]] = {name: [] for name in sizes}
  free = dict.fromkeys(
      sorted(
          speakers,
          # By hash: the order does not depend on the other speakers.
          key=lambda s: (hashlib.sha256(f'{seed}:{s}'.encode()).digest(), s),
      )
  )
  for name, size in sizes.items():
    if size.startswith('@'):
      parts[name] = _take_listed(
          name, size[1:], speakers=speakers, free=free, others=others
      )
  counts = {
      name: _count(size, len(speakers))
      for name, size in sizes.items()
      if size != 'rest' and not size.startswith('@')
  }
  if sum(counts.values()) > len(free):
    wanted = ', '.join(f'{name}={count}' for name, count in counts.items())
    raise ValueError(
        f'partition {spec!r} asks for {_speakers(sum(counts.values()))}'
        f' ({wanted}), but there are {len(free)}; ask for fewer.'
    )
  # One iterator for all parts, so that they share no speaker.
  order = iter(free)
  for name, count in counts.items():
    parts[name] = list(itertools.islice(order, count))
  for name, size in sizes.items():
    if size == 'rest':
      parts[name] = list(order)
    if not parts[name]:
      raise ValueError(
          f'part {name!r} of partition {spec!r} is empty with'
          f' {_speakers(len(speakers))}; give it at least one.'
      )
  return {name: sorted(part) for name, part in parts.items()}


def repartition(
    utterances: Iterable[utterances_lib.Utterance], *, seed: int
) -> list[utterances_lib.Utterance]:
  """Returns the utterances with other speakers.

  The outcome depends on the seed, the set of speakers and the utterance, not on
  the order or on other utterances.

  Args:
    utterances: Utterances of all speakers. Ids become SPEAKER/ID, by the
      speaker who spoke, so that they stay unique.
    seed: Seed of the speakers that are given.
  """
  utterances = list(utterances)
  speakers = sorted({u.client_id for u in utterances})
  assigned = []
  for utterance in utterances:
    name = f'{utterance.client_id}/{utterance.utterance_id}'
    digest = hashlib.sha256(f'{seed}:{name}'.encode()).digest()
    # 128 bits, so that the remainder is uniform.
    number = int.from_bytes(digest[:16], 'big') % len(speakers)
    assigned.append(
        dataclasses.replace(
            utterance, client_id=speakers[number], utterance_id=name
        )
    )
  return assigned


def _speakers(count: int) -> str:
  """'1 speaker', '2 speakers'."""
  return f'{count} speaker' if count == 1 else f'{count} speakers'


def _parse(spec: str) -> Mapping[str, str]:
  """Parses a specification into the written size of each part."""
  sizes: dict[str, str] = {}
  for item in spec.split(','):
    name, equals, size = (text.strip() for text in item.partition('='))
    if not (equals and _NAME.fullmatch(name) and _SIZE.fullmatch(size)):
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


def _count(size: str, num_speakers: int) -> int:
  """'24' or '2.5%' of a number of speakers, rounded down."""
  if size.endswith('%'):
    # Exact: in floating point 29 % of 100 are 28.99.
    return int(num_speakers * fractions.Fraction(size[:-1]) / 100)
  return int(size)


def _take_listed(
    name: str,
    path: str,
    *,
    speakers: list[str],
    free: dict[str, None],
    others: Collection[str],
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
    if speaker in others:
      continue
    if speaker not in free:
      problem = 'is taken already' if speaker in speakers else 'is unknown'
      raise ValueError(f'part {name!r}: speaker {speaker} in {path} {problem}.')
    del free[speaker]
  return listed

"""What a corpus' files say of its speakers, gathered and settled.

A corpus may say a thing of a speaker many times (Common Voice with every clip),
or not at all, or contradict itself: then the speaker is of no group that anyone
could name, and the attribute is left empty and counted.
"""

from collections.abc import Iterable, Mapping, Sequence
import types
from typing import NamedTuple

# Attributes, in the order of their columns, to clients to all that is said.
Attributes = Mapping[str, Mapping[str, frozenset[str]]]

NONE: Attributes = types.MappingProxyType({})


class Settled(NamedTuple):
  """What is known of each speaker.

  Attributes:
    values: Clients to their values by attribute; '' where it is not said or
      contradictory.
    counts: Attributes to the number of clients of whom they are `known` and of
      whom `contradictory`.
  """

  values: dict[str, dict[str, str]]
  counts: dict[str, dict[str, int]]


def gather(
    names: Sequence[str], rows: Iterable[tuple[str, Mapping[str, str]]]
) -> Attributes:
  """Gathers what rows say.

  Args:
    names: The attributes that the corpus has, also if no row says one.
    rows: Clients, and values by attribute; an empty one says nothing. Tabs,
      line ends and other control characters become spaces, runs of them one.
  """
  said: dict[str, dict[str, set[str]]] = {name: {} for name in names}
  for client_id, values in rows:
    for name in names:
      value = _clean(values.get(name, ''))
      if value:
        said[name].setdefault(client_id, set()).add(value)
  return _freeze(said)


def join(several: Iterable[Attributes]) -> Attributes:
  """All that several parts of a corpus say."""
  said: dict[str, dict[str, set[str]]] = {}
  for attributes in several:
    for name, by_client in attributes.items():
      joined = said.setdefault(name, {})
      for client_id, values in by_client.items():
        joined.setdefault(client_id, set()).update(values)
  return _freeze(said)


def keep(attributes: Attributes, *, names: Sequence[str] | None) -> Attributes:
  """Keeps some attributes, in the order of `names`; None keeps all.

  Raises:
    ValueError: If the corpus does not have one, or it is named twice.
  """
  if names is None:
    return attributes
  for number, name in enumerate(names):
    if name not in attributes:
      found = ', '.join(attributes) or 'nothing'
      raise ValueError(
          f'attributes names {name!r}, but the corpus says {found} of its'
          ' speakers; name those to keep, or leave it away for all.'
      )
    if name in names[:number]:
      raise ValueError(f'attributes names {name!r} twice.')
  return {name: attributes[name] for name in names}


def settle(attributes: Attributes, *, client_ids: Sequence[str]) -> Settled:
  """Decides what is known of each of the clients."""
  values = {client_id: {} for client_id in client_ids}
  counts = {}
  for name, by_client in attributes.items():
    counts[name] = {'known': 0, 'contradictory': 0}
    for client_id, settled in values.items():
      said = by_client.get(client_id, ())
      settled[name] = next(iter(said)) if len(said) == 1 else ''
      if said:
        kind = 'known' if len(said) == 1 else 'contradictory'
        counts[name][kind] += 1
  return Settled(values, counts)


def _clean(value: str) -> str:
  """A value on one line, without what would break a table."""
  printable = (c if c.isprintable() else ' ' for c in value)
  return ' '.join(''.join(printable).split())


def _freeze(said: Mapping[str, Mapping[str, set[str]]]) -> Attributes:
  """The same, not to be changed."""
  return {
      name: {client: frozenset(values) for client, values in clients.items()}
      for name, clients in said.items()
  }

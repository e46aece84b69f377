"""Speaker attributes of a corpus: gender, age, accent.

`speakers.tsv` has one line per client, in the order of clients.tsv, and one
column per attribute, empty where the attribute is unknown. corpus.json has the
file's checksum, and for how many speakers each attribute is known. The file is
personal information: training never opens it, evaluation reads the speakers
that it evaluates, and the corpus works without it.
"""

from collections.abc import Mapping, Sequence
import contextlib
import hashlib
import os

from tff_asr import files
from tff_asr.data import index

SPEAKERS_FILE = 'speakers.tsv'

_FIRST_COLUMN = 'client_id'

Attributes = Mapping[str, Mapping[str, frozenset[str]]]
"""{attribute: {client_id: every value that the corpus states}}; attributes are
in the order of their columns."""


def write_attributes(
    folder: str | os.PathLike[str], attributes: Attributes
) -> None:
  """Writes speakers.tsv of a corpus, or removes it.

  Shards and index files are not changed, so the corpus may be in use. Nothing
  is written if the file is up to date. A corpus may state an attribute several
  times for a speaker (Common Voice with every clip), or never. If the values
  differ, the attribute is left empty and counted as contradictory.

  Args:
    folder: A corpus folder.
    attributes: The values that the corpus states; may include speakers of other
      splits. If empty, the file is removed.

  Raises:
    ValueError: As `index.read`, or if a value contains a control character.
  """
  corpus, clients, _ = index.read(folder)
  path = os.path.join(corpus.path, SPEAKERS_FILE)
  content = _to_tsv(clients.client_ids, attributes) if attributes else None
  # Other entries of corpus.json stay as they are.
  named = {k: v for k, v in corpus.files.items() if k != SPEAKERS_FILE}
  origin = {k: v for k, v in corpus.origin.items() if k != 'attributes'}
  if content is not None:
    named[SPEAKERS_FILE] = hashlib.sha256(content).hexdigest()
    origin['attributes'] = {
        name: _count(stated, clients.client_ids)
        for name, stated in attributes.items()
    }
  is_there = content is None or os.path.exists(path)
  if is_there and (named, origin) == (corpus.files, corpus.origin):
    return  # It is up to date, and others may be reading it.
  # After a crash corpus.json may lack the new file's checksum:
  # `read_attributes` then ignores or reports the file. There is never a
  # checksum without a file.
  if content is not None:
    files.write(path, content)
  stored = files.read_json(
      os.path.join(corpus.path, index.CORPUS_FILE),
      remedy='write the corpus again',
  )
  index.write_corpus_file(
      corpus.path, stored | dict(files=named, origin=origin)
  )
  # Last: corpus.json no longer names the file.
  if content is None:
    with contextlib.suppress(FileNotFoundError):
      os.remove(path)


def read_attributes(corpus: index.Corpus) -> dict[str, dict[str, str]]:
  """Returns the known attributes of the speakers of a corpus.

  Returns:
    {client_id: {attribute: value}}, with known values only. Empty if the corpus
    has no speakers.tsv.

  Raises:
    ValueError: If the file is damaged or of another corpus.
  """
  path = os.path.join(corpus.path, SPEAKERS_FILE)
  if SPEAKERS_FILE not in corpus.files or not os.path.exists(path):
    return {}
  content = files.read(path)
  index.check_sha256(corpus, SPEAKERS_FILE, content)
  header, *lines = content.decode().rstrip('\n').split('\n')
  _, *names = header.split('\t')
  found = {}
  for line in lines:
    client_id, *values = line.split('\t')
    # Unknown attributes are left out, so that they form no group.
    known = {n: v for n, v in zip(names, values, strict=True) if v}
    if known:
      found[client_id] = known
  return found


def _count(
    stated: Mapping[str, frozenset[str]], client_ids: Sequence[str]
) -> dict[str, int]:
  """For how many clients an attribute is known or contradictory."""
  numbers = [len(stated.get(client_id, ())) for client_id in client_ids]
  return {
      # One value is known; several contradict each other.
      'known': numbers.count(1),
      'contradictory': sum(number > 1 for number in numbers),
  }


def _to_tsv(client_ids: Sequence[str], attributes: Attributes) -> bytes:
  """The file's content."""
  lines = ['\t'.join([_FIRST_COLUMN, *attributes])]
  for client_id in client_ids:
    values = []
    for name, by_client in attributes.items():
      stated = by_client.get(client_id, ())
      # Contradictory values name no group, so they are left empty.
      value = next(iter(stated)) if len(stated) == 1 else ''
      if not value.isprintable():
        raise ValueError(
            f'attributes: the {name} of client {client_id} must not contain'
            f' tabs, line ends or other control characters, found {value!r}.'
        )
      values.append(value)
    lines.append('\t'.join([client_id, *values]))
  return ('\n'.join(lines) + '\n').encode()

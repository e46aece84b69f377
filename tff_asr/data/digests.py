"""Digests of speakers and recordings, which tell data that have some in common.

A speaker's digest is that of an id in its namespace: the ids of LibriSpeech and
Libri-Light are both those of LibriVox, an AN4 speaker of the same id is another
person. A recording's digest is that of its 16-bit samples, so a copy under
another name has the same one. A copy that was encoded with loss, cut elsewhere
or changed in any sample has another and is not found.

A digest is HMAC-SHA-256, cut to 16 bytes, under a salt: 32 random bytes of this
user's, in the file that `$TFF_ASR_SALT` names or else in tff_asr/salt in
`$XDG_CONFIG_HOME` (by default `~/.config`). Without the salt, nobody can test
for a speaker. Digests under two salts cannot be compared, and `Part.salt_id`
shows that.

A file holds sets of digests by name: a line of JSON, and arrays in its order,
for each set and salt:

    {"format_version": 2, "sets": {"corpus": {"is_whole": true,
      "parts": [{"salt": "9f...", "speakers": 2, "recordings": 3}]}},
     "sha256": HASH}
    speakers      16 bytes each
    recordings    16 bytes each, sorted
    owners        uint32 each: row of the recording's speaker

The hash is SHA-256 over the line's JSON without itself, and the arrays: a set
that lost its name or its numbers would pass for one of nobody.

Loads no TensorFlow, so that processes that encode audio start fast.

  S: speakers. R: recordings.
"""

from collections.abc import Iterable, Mapping
import hashlib
import hmac
import json
import os
import secrets
from typing import Any, NamedTuple

import numpy as np

from tff_asr import files

FILE = 'speakers.digests'
CORPUS = 'corpus'
"""The file of a corpus, and the name of the one set in it."""

SALT_VARIABLE = 'TFF_ASR_SALT'

_FORMAT_VERSION = 2
_SALT_BYTES = 32
_BYTES = 16
_DTYPE = np.dtype(f'S{_BYTES}')
_OWNER = np.dtype('<u4')
_MAX_HEADER_BYTES = 2**16
# Recordings that are looked up at once; bounds the memory of a comparison.
_AT_ONCE = 2**16


class Part(NamedTuple):
  """Digests under one salt.

  Attributes:
    salt_id: Tells salts apart, hexadecimal.
    speakers: S16 [S].
    recordings: S16 [R], sorted. Recordings without a digest are not among them.
    owners: uint32 [R], row of the speaker of each recording.
  """

  salt_id: str
  speakers: np.ndarray
  recordings: np.ndarray
  owners: np.ndarray


class Digests(NamedTuple):
  """Digests of the speakers and recordings of some data.

  Attributes:
    parts: Digests by salt id; none for data of nobody.
    is_whole: False if there are data whose digests are not known.
  """

  parts: Mapping[str, Part]
  is_whole: bool = True


NONE = bytes(_BYTES)
"""In place of the digest of a recording that has none."""

NOBODY = Digests({})
UNKNOWN = Digests({}, is_whole=False)


class Shared(NamedTuple):
  """Speakers and recordings that private data share with other data.

  Attributes:
    speakers: Private speakers whom the other data have, too, by their id or by
      one of their recordings.
    recordings: Private recordings that the other data have, too.
    num_speakers: Private speakers in all.
    is_known: False if some data have no digests, or under another salt only:
      then the numbers are lower bounds.
  """

  speakers: int
  recordings: int
  num_speakers: int
  is_known: bool


def read_salt() -> bytes:
  """Returns this user's salt, and draws it when it is first asked for.

  Raises:
    ValueError: Others can read or write its file, or it is no salt.
  """
  path = os.environ.get(SALT_VARIABLE) or os.path.join(
      os.environ.get('XDG_CONFIG_HOME') or os.path.expanduser('~/.config'),
      'tff_asr',
      'salt',
  )
  if not os.path.exists(path):
    os.makedirs(os.path.dirname(os.path.abspath(path)), 0o700, exist_ok=True)
    drawn = f'{path}.{secrets.token_hex(8)}'
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
    with open(os.open(drawn, flags, 0o600), 'wb') as f:
      f.write(secrets.token_bytes(_SALT_BYTES))
      f.flush()
      os.fsync(f.fileno())
    try:
      # Unlike a rename, a link never replaces what another process drew.
      os.link(drawn, path)
    except FileExistsError:
      pass
    finally:
      os.remove(drawn)
  with open(path, 'rb') as f:
    mode = os.fstat(f.fileno()).st_mode
    salt = f.read(_SALT_BYTES + 1)
  if mode & 0o077:
    raise ValueError(
        f'{path} is secret, but others have access to it (mode'
        f' {mode & 0o777:o}): set it to 600.'
    )
  if len(salt) != _SALT_BYTES:
    raise ValueError(
        f'{path} must hold {_SALT_BYTES} bytes, the salt of digests, found'
        f' another number: put the file back, or name another by'
        f' {SALT_VARIABLE}.'
    )
  return salt


def salt_id(salt: bytes) -> str:
  """Returns what tells a salt from others, and does not give it away."""
  return _digest(salt, 'salt', b'').hex()


def of_speaker(salt: bytes, *, namespace: str, client_id: str) -> bytes:
  """Returns the digest of a speaker, 16 bytes.

  Args:
    salt: Salt that `read_salt` returned.
    namespace: Whose ids they are; no control characters.
    client_id: The speaker's id there.
  """
  return _digest(salt, 'speaker', f'{namespace}\0{client_id}'.encode())


def of_recording(salt: bytes, waveform: np.ndarray) -> bytes:
  """Returns the digest of a recording, 16 bytes; `NONE` for one of silence.

  Recordings of digital silence are equal without being copies.

  Args:
    salt: Salt that `read_salt` returned.
    waveform: int16 [N], N at least 1.
  """
  if np.all(waveform == waveform[0]):
    return NONE
  samples = waveform.astype('<i2', copy=False).tobytes()
  return _digest(salt, 'recording', samples)


def of_corpus(
    salt: bytes,
    *,
    namespace: str,
    client_ids: Iterable[str],
    num_records: np.ndarray,
    recordings: bytes,
) -> Digests:
  """Returns the digests of a corpus that is being written.

  Args:
    salt: Salt that `read_salt` returned.
    namespace: Namespace of the client ids.
    client_ids: The clients, sorted.
    num_records: int64 [S], records of each client.
    recordings: 16 bytes a record, client by client; `NONE` for one without a
      digest.
  """
  speakers = [
      of_speaker(salt, namespace=namespace, client_id=client_id)
      for client_id in client_ids
  ]
  owners = np.repeat(np.arange(len(speakers), dtype=_OWNER), num_records)
  found = np.frombuffer(recordings, _DTYPE)
  known = found != NONE
  part = _sorted(Part(
      salt_id(salt), np.array(speakers, _DTYPE), found[known], owners[known]
  ))
  return Digests({part.salt_id: part})


def select(digests: Digests, rows: np.ndarray) -> Digests:
  """Returns the digests of some speakers of a corpus.

  Args:
    digests: Digests of the corpus.
    rows: int64 [n], rows of the speakers in the corpus, in order.
  """
  parts = {}
  for name, part in digests.parts.items():
    place = np.full([len(part.speakers)], -1)
    place[rows] = np.arange(len(rows))
    owners = place[part.owners]
    parts[name] = Part(
        name,
        part.speakers[rows],
        part.recordings[owners >= 0],
        owners[owners >= 0].astype(_OWNER),
    )
  return digests._replace(parts=parts)


def union(*those: Digests) -> Digests:
  """Returns the digests of several data together, each once."""
  parts = {}
  for digests in those:
    for name, part in digests.parts.items():
      parts[name] = _joined(parts[name], part) if name in parts else part
  return Digests(parts, all(digests.is_whole for digests in those))


def num_twins(digests: Digests) -> int:
  """Returns how many speakers have a recording that another one has, too."""
  count = 0
  for part in digests.parts.values():
    is_twin = np.zeros(len(part.speakers), bool)
    before, after = part.owners[:-1], part.owners[1:]
    is_equal = part.recordings[:-1] == part.recordings[1:]
    for owners in (before, after):
      is_twin[owners[is_equal & (before != after)]] = True
    count += int(is_twin.sum())
  return count


def shared(private: Digests, other: Digests) -> Shared:
  """Compares private data with others, in memory that does not grow with them.

  Besides a flag for each private speaker, it holds 65,536 digests at once.
  """
  num_speakers = num_found = num_recordings = 0
  for name, part in private.parts.items():
    num_speakers += len(part.speakers)
    if name not in other.parts:
      continue
    against = other.parts[name]
    is_found = _among(part.speakers, np.sort(against.speakers))
    for start in range(0, len(part.recordings), _AT_ONCE):
      stop = start + _AT_ONCE
      found = _among(part.recordings[start:stop], against.recordings)
      is_found[part.owners[start:stop][found]] = True
      num_recordings += int(np.count_nonzero(found))
    num_found += int(np.count_nonzero(is_found))
  salts = private.parts.keys() | other.parts.keys()
  is_known = NOBODY in (private, other) or (
      private.is_whole and other.is_whole and len(salts) == 1
  )
  return Shared(num_found, num_recordings, num_speakers, is_known)


def write(path: str, sets: Mapping[str, Digests]) -> None:
  """Writes sets of digests by name, to a file that its owner alone can read."""
  arrays = [
      np.ascontiguousarray(array).tobytes()
      for digests in sets.values()
      for part in digests.parts.values()
      for array in part[1:]
  ]
  header = {
      'format_version': _FORMAT_VERSION,
      'sets': {
          name: {
              'is_whole': digests.is_whole,
              'parts': [
                  {
                      'salt': part.salt_id,
                      'speakers': len(part.speakers),
                      'recordings': len(part.recordings),
                  }
                  for part in digests.parts.values()
              ],
          }
          for name, digests in sets.items()
      },
  }
  sha256 = _hash(header)
  for array in arrays:
    sha256.update(array)
  header['sha256'] = sha256.hexdigest()
  with files.replacing(path, mode=0o600) as f:
    f.write(json.dumps(header).encode() + b'\n')
    f.writelines(arrays)


def read(path: str) -> dict[str, Digests]:
  """Opens a file's sets of digests, by name; their arrays stay on disk.

  Raises:
    ValueError: It is damaged, or another version of this package made it.
    FileNotFoundError: There is none.
  """
  sets = {}
  version = _FORMAT_VERSION
  try:
    with open(path, 'rb') as f:
      line = f.readline(_MAX_HEADER_BYTES)
      header = json.loads(line)
      version = header['format_version']
      sha256 = header.pop('sha256')
      found = hashlib.file_digest(f, lambda: _hash(header)).hexdigest()
      num_bytes = f.tell()
    offset = len(line)
    for name, stored in header['sets'].items():
      sets[name] = Digests({}, stored['is_whole'] is True)
      for fields in stored['parts']:
        arrays = []
        for dtype, count in (
            (_DTYPE, fields['speakers']),
            (_DTYPE, fields['recordings']),
            (_OWNER, fields['recordings']),
        ):
          size = count * dtype.itemsize
          if not 0 <= size <= num_bytes - offset:
            raise ValueError('it is cut short')
          arrays.append(_map(path, dtype, offset=offset, count=count))
          offset += size
        part = Part(str(fields['salt']), *arrays)
        if part.owners.size and part.owners.max() >= len(part.speakers):
          raise ValueError('a recording is of no speaker')
        sets[name].parts[part.salt_id] = part
    if found != sha256 or version != _FORMAT_VERSION:
      raise ValueError('its checksum or format differs')
  except (
      ValueError, KeyError, TypeError, AttributeError, RecursionError
  ) as e:
    if version in range(1, _FORMAT_VERSION):
      raise ValueError(
          f'{path} was made by an older version (format {version}): convert the'
          ' corpus again with --overwrite, or delete the file, and what it told'
          ' counts as not known.'
      ) from None
    raise ValueError(
        f'{path} is damaged ({e}): put it back, or delete it, and what it told'
        ' counts as not known.'
    ) from None
  return sets


def _hash(header: Mapping[str, Any]) -> Any:
  """SHA-256 of a header without its own hash, to go on over the arrays."""
  return hashlib.sha256(json.dumps(header).encode())


def _map(path: str, dtype: np.dtype, *, offset: int, count: int) -> np.ndarray:
  """An array of a file, which is read where it is looked at."""
  if not count:
    return np.zeros([0], dtype)  # Nothing cannot be mapped.
  return np.memmap(path, dtype, 'r', offset, (count,))


def _digest(salt: bytes, kind: str, content: bytes) -> bytes:
  """HMAC-SHA-256, cut; the kind keeps digests of one kind from another's."""
  message = kind.encode() + b'\0' + content
  return hmac.digest(salt, message, 'sha256')[:_BYTES]


def _sorted(part: Part) -> Part:
  """The part with its recordings in order."""
  order = np.argsort(part.recordings, kind='stable')
  return part._replace(
      recordings=part.recordings[order], owners=part.owners[order]
  )


def _joined(one: Part, other: Part) -> Part:
  """Two parts of one salt, each speaker and recording once."""
  speakers, rows = np.unique(
      np.concatenate([one.speakers, other.speakers]), return_inverse=True
  )
  recordings, first = np.unique(
      np.concatenate([one.recordings, other.recordings]), return_index=True
  )
  owners = np.concatenate([
      one.owners.astype(np.int64),
      other.owners.astype(np.int64) + len(one.speakers),
  ])
  return Part(
      one.salt_id, speakers, recordings, rows[owners[first]].astype(_OWNER)
  )


def _among(values: np.ndarray, others: np.ndarray) -> np.ndarray:
  """bool [n]: which values are among others that are sorted."""
  if not len(others):
    return np.zeros([len(values)], bool)
  places = np.searchsorted(others, values)
  places[places == len(others)] = 0
  return others[places] == values

"""Tests of tff_asr.data.digests."""

import hashlib
import hmac
import os
import pathlib
import tempfile
from unittest import mock

from absl.testing import parameterized
import numpy as np

from tests import cases
from tests import fakes
from tff_asr.data import client_data
from tff_asr.data import digests

_SALT = bytes(range(32))


def _waveform(number: int) -> np.ndarray:
  return np.random.default_rng(number).integers(-99, 99, 50).astype(np.int16)


def _corpus(
    clients: dict[str, list[int]], *, namespace='a', salt=_SALT
) -> digests.Digests:
  """Digests of clients with recordings of these numbers; 0 is silence."""
  silence = np.zeros([50], np.int16)
  return digests.of_corpus(
      salt,
      namespace=namespace,
      client_ids=list(clients),
      num_records=np.array(list(map(len, clients.values())), int),
      recordings=b''.join(
          digests.of_recording(salt, _waveform(number) if number else silence)
          for numbers in clients.values()
          for number in numbers
      ),
  )


class SaltTest(cases.TestCase):

  def setUp(self):
    super().setUp()
    self.environ = self.enterContext(mock.patch.dict(os.environ))
    del os.environ[digests.SALT_VARIABLE]
    os.environ['XDG_CONFIG_HOME'] = self.root
    self.path = os.path.join(self.root, 'tff_asr', 'salt')

  def test_it_is_drawn_once_and_its_owner_s_alone(self):
    before = os.umask(0)
    try:
      salt = digests.read_salt()
    finally:
      os.umask(before)
    self.assertLen(salt, 32)
    self.assertEqual(digests.read_salt(), salt)
    self.assertEqual(os.listdir(os.path.dirname(self.path)), ['salt'])
    self.assertEqual(os.stat(self.path).st_mode & 0o777, 0o600)
    self.assertEqual(os.stat(os.path.dirname(self.path)).st_mode & 0o777, 0o700)
    os.environ[digests.SALT_VARIABLE] = os.path.join(self.root, 'other')
    self.assertNotEqual(digests.read_salt(), salt)

  def test_one_that_another_process_drew_meanwhile_counts(self):
    link = os.link

    def link_late(source, path):
      with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600), 'wb') as f:
        f.write(_SALT)
      link(source, path)

    with mock.patch.object(os, 'link', link_late):
      self.assertEqual(digests.read_salt(), _SALT)
    self.assertEqual(os.listdir(os.path.dirname(self.path)), ['salt'])

  def test_one_that_others_can_read_or_of_another_size_is_refused(self):
    digests.read_salt()
    os.chmod(self.path, 0o640)
    with self.assertRaisesRegex(ValueError, r'\(mode 640\): set it to 600\.$'):
      digests.read_salt()
    os.chmod(self.path, 0o600)
    with open(self.path, 'ab') as f:
      f.write(b'x')
    with self.assertRaisesRegex(ValueError, 'must hold 32 bytes'):
      digests.read_salt()


class DigestsTest(parameterized.TestCase):

  def shared(self, private, other):
    """What `private` shares with `other`, and the same from files."""
    found = digests.shared(private, other)
    with tempfile.TemporaryDirectory() as root:
      path = os.path.join(root, 'both')
      digests.write(path, {'private': private, 'other': other})
      stored = digests.read(path)
    self.assertEqual(list(stored), ['private', 'other'])
    self.assertEqual(digests.shared(*stored.values()), found)
    return found

  def test_they_are_hmacs_of_ids_and_of_samples(self):
    def expected(message):
      return hmac.new(_SALT, message, hashlib.sha256).digest()[:16]

    self.assertEqual(
        digests.of_speaker(_SALT, namespace='LibriVox', client_id='é1'),
        expected(b'speaker\0LibriVox\0' + 'é1'.encode()),
    )
    self.assertEqual(
        digests.of_recording(_SALT, np.array([1, -2], np.int16)),
        expected(b'recording\0\x01\x00\xfe\xff'),
    )

  def test_other_salts_tell_nothing_and_that_is_said(self):
    private = _corpus({'ann': [1]})
    other = _corpus({'ann': [1]}, salt=_SALT[::-1])
    self.assertEqual(self.shared(private, other), (0, 0, 1, False))
    both = digests.union(other, private)
    self.assertEqual(self.shared(private, both), (1, 1, 1, False))
    # With nobody, everybody can be compared.
    self.assertTrue(self.shared(private, digests.NOBODY).is_known)
    self.assertFalse(self.shared(private, digests.UNKNOWN).is_known)
    self.assertFalse(
        self.shared(private, digests.union(private, digests.UNKNOWN)).is_known
    )

  def test_a_union_has_each_once_and_its_owner(self):
    one = _corpus({'ann': [1, 2], 'bob': [3]})
    other = _corpus({'ann': [1, 4], 'cai': [5]})
    both = digests.union(one, other, one)
    (part,) = both.parts.values()
    self.assertLen(part.speakers, 3)
    self.assertLen(part.recordings, 5)
    for clients, speakers in (
        ({'x': [1], 'y': [2], 'z': [4]}, 1),  # All are ann's.
        ({'x': [3], 'y': [5]}, 2),
        ({'ann': [1], 'bob': [3], 'cai': []}, 3),
    ):
      found = self.shared(both, _corpus(clients))
      self.assertEqual(found.speakers, speakers, clients)

  def test_a_selection_has_its_own_recordings_only(self):
    whole = _corpus({'ann': [1, 2], 'bob': [0, 3], 'cai': [4]})
    some = digests.select(whole, np.array([0, 2]))
    self.assertEqual(self.shared(whole, some), (2, 3, 3, True))
    self.assertEqual(self.shared(some, _corpus({'bob': [3]})).speakers, 0)
    self.assertEqual(self.shared(some, _corpus({'x': [4]})).speakers, 1)

  def test_what_is_shared_is_what_sets_share(self):
    rng = np.random.default_rng(3)

    def draw(least):
      """Some of twelve speakers with recordings; 0 is silence."""
      return {
          f's{i}': rng.integers(0, 40, rng.integers(0, 9)).tolist()
          for i in np.sort(rng.permutation(12)[: rng.integers(least, 9)])
      }

    with mock.patch.object(digests, '_AT_ONCE', 7):
      for _ in range(40):
        private, other = draw(1), draw(0)
        namespace = str(rng.choice(['a', 'b']))
        heard = {n for numbers in other.values() for n in numbers if n}
        speakers = [
            (namespace == 'a' and name in other) or bool(heard & set(numbers))
            for name, numbers in private.items()
        ]
        recordings = [n in heard for ns in private.values() for n in ns]
        self.assertEqual(
            self.shared(_corpus(private), _corpus(other, namespace=namespace)),
            (sum(speakers), sum(recordings), len(private), True),
        )

  def test_speakers_with_one_recording_under_two_ids_are_found(self):
    for speakers, expected in (
        ({}, 0),
        ({'ann': [1, 2], 'bob': [3]}, 0),
        ({'ann': [1, 1], 'bob': [3]}, 0),
        ({'ann': [1, 2], 'bob': [2], 'cai': [4]}, 2),
        ({'ann': [1, 1, 5], 'bob': [1], 'cai': [1], 'dee': [6], 'eve': [5]}, 4),
    ):
      self.assertEqual(digests.num_twins(_corpus(speakers)), expected)

  def test_a_damaged_file_is_refused_in_one_line(self):
    with tempfile.TemporaryDirectory() as root:
      path = os.path.join(root, 'x')
      (part,) = _corpus({'ann': [1, 2]}).parts.values()
      part.owners[1] = 1
      digests.write(path, {'a': digests.Digests({part.salt_id: part})})
      with self.assertRaisesRegex(ValueError, 'a recording is of no speaker'):
        digests.read(path)
      digests.write(path, {'a': _corpus({'ann': [1, 2]})})
      self.assertEqual(os.stat(path).st_mode & 0o777, 0o600)
      whole = pathlib.Path(path).read_bytes()
      header, end, arrays = whole.partition(b'\n')
      for content in (
          b'',
          whole[:-1],
          whole + b'x',
          whole[:-30] + bytes([whole[-30] ^ 1]) + whole[-29:],
          header.replace(b'"recordings": 2', b'"recordings": 9' * 2) + end,
          header.replace(b'"speakers": 1', b'"speakers": -1') + end + arrays,
          header.replace(b'"speakers": 1', b'"speakers": 1.0') + end + arrays,
          header.replace(b'"speakers": 1', b'"speakers": []') + end + arrays,
          # Each would tell of nobody.
          header.replace(b'"a"', b'"b"') + end + arrays,
          header.replace(b': 1, "r', b': 0, "r').replace(b': 2}', b': 0}')
          + end + arrays,
          header.replace(b'{"a"', b'["a"').replace(b'}}', b']}') + end,
          b'[' * 60_000,
      ):
        pathlib.Path(path).write_bytes(content)
        with self.assertRaisesRegex(ValueError, f'^{path} is damaged .*$'):
          digests.read(path)
      for version in (1, 3):
        with open(path, 'wb') as f:
          f.write(whole.replace(b'_version": 2', b'_version": %d' % version))
        with self.assertRaisesRegex(
            ValueError,
            r'by an older version \(format 1\).* --overwrite'
            if version == 1 else 'damaged',
        ):
          digests.read(path)


class CorpusTest(cases.TestCase):

  def test_written_corpora_are_compared(self):
    clients = {'ann': 2, 'bob': 1, 'cai': 3}
    private = client_data.load(
        fakes.write_split(self.path('private'), clients)
    )
    seed = client_data.load(
        fakes.write_split(self.path('seed'), {'bob': 2, 'dee': 1})
    )
    self.assertEqual(
        digests.shared(private.digests, seed.digests), (1, 1, 3, True)
    )
    for ids, expected in ((['ann', 'cai'], 0), (['bob'], 1)):
      selected = private.select(ids)
      found = digests.shared(selected.digests, seed.digests)
      self.assertEqual(found, (expected, expected, len(ids), True))
    path = self.path('private', digests.FILE)
    self.assertEqual(os.stat(path).st_mode & 0o777, 0o600)
    other = self.path('seed', digests.FILE)
    os.replace(other, path)
    with self.assertRaisesRegex(ValueError, 'is of another corpus'):
      _ = private.digests
    self.assertEqual(seed.digests, digests.UNKNOWN)

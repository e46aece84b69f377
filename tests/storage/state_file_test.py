"""Tests of tff_asr.storage.state_file on files that somebody else made up."""

import json
import os
import pathlib
import struct
from typing import Any
import zlib

from absl.testing import parameterized

from tests import cases
from tff_asr.storage import state_file

_MAGIC = b'TFFASR\x00\x01'
_DATA = bytes(64)


def _trailer(offset: int, manifest: bytes, length: int | None = None) -> bytes:
  length = len(manifest) if length is None else length
  return struct.pack('<QQI4s', offset, length, zlib.crc32(manifest), b'TASR')


def _leaf(**changes: Any) -> dict[str, Any]:
  """A leaf of one zero, with the right checksum of its bytes."""
  leaf = dict(
      path='a', kind='array', dtype='<f4', shape=[1], offset=8, nbytes=4
  ) | changes
  size = leaf['nbytes']
  return dict(crc32=zlib.crc32(bytes(size if type(size) is int else 0))) | leaf


class StateFileTest(cases.TestCase):

  def setUp(self):
    super().setUp()
    self.path = os.path.join(self.root, 'model.state')

  def write(self, manifest: Any, data: bytes = _DATA) -> None:
    """A file whose checksums are right, whatever it says."""
    if not isinstance(manifest, bytes):
      manifest = json.dumps({'format_version': 1, **manifest}).encode()
    body = _MAGIC + data
    pathlib.Path(self.path).write_bytes(
        body + manifest + _trailer(len(body), manifest)
    )

  def assert_damaged(self, message: str) -> None:
    with self.assertRaisesRegex(
        state_file.DamagedStateError, f'model.state is damaged: .*{message}'
    ):
      state_file.read_leaves(self.path)

  def test_what_is_made_up_here_can_be_read(self):
    self.write({'leaves': [_leaf()]})
    self.assertEqual(state_file.read_leaves(self.path)['a'].tolist(), [0.0])

  def test_a_huge_manifest_is_not_read(self):
    # A terabyte, of which the disk has two pages.
    size, trailer = 10**12, 24
    with open(self.path, 'wb') as f:
      f.write(_MAGIC)
      f.truncate(size)
      f.seek(size - trailer)
      f.write(_trailer(8, b'', size - trailer - 8))
    self.assert_damaged('its manifest claims 999,999,999,968 bytes')

  def test_deep_nesting_is_refused(self):
    self.write(b'[' * 10**6)
    self.assert_damaged('it is nested too deeply')
    data = b'[' * 10**6
    leaf = _leaf(kind='int', nbytes=len(data), crc32=zlib.crc32(data))
    self.write({'leaves': [leaf]}, data)
    self.assert_damaged("leaf 'a': it is nested too deeply")

  def test_leaves_do_not_share_bytes(self):
    # 1,000 leaves of the same 1 MB would fill a gigabyte.
    self.write({'leaves': [_leaf(), _leaf(path='b', offset=11)]})
    self.assert_damaged("leaf 'b' lies outside of it")

  @parameterized.parameters(
      (dict(dtype='O', nbytes=8), 'object'),
      (dict(dtype='O,O', nbytes=16), 'object'),
      (dict(dtype='finfo'), 'object'),
      (dict(dtype='__builtins__'), ''),
      (dict(dtype='S0', nbytes=0), ''),
      (dict(offset=8.5), 'no integer'),
      (dict(nbytes=True), 'no integer'),
      (dict(shape=['1']), 'no integer'),
      (dict(offset=2**64), 'lies outside'),
      (dict(nbytes=2**63), 'lies outside'),
      (dict(shape=[10**18]), ''),
      (dict(kind='list', dtype=''), ''),
      (dict(path=['a']), 'unhashable'),
      (dict(extra=1), 'unexpected'),
  )
  def test_leaves_that_are_none_are_refused(self, changes, message):
    self.write({
        'leaves': [
            _leaf(**changes) if changes.get('nbytes', 0) < 2**20 else
            _leaf() | changes
        ],
    })
    self.assert_damaged(message)

"""Tests of tff_asr.files; for locks see tests/storage/run_dir_test.py."""

import os
import pathlib
import stat
from unittest import mock

from absl.testing import parameterized

from tests import cases
from tff_asr import files


class FilesTest(cases.TestCase):

  def setUp(self):
    super().setUp()
    self.path = os.path.join(self.root, 'a.txt')

  def read(self) -> str:
    return pathlib.Path(self.path).read_text()

  def test_a_file_is_replaced_and_has_its_mode(self):
    files.write_text(self.path, 'ö')
    files.write_json(self.path, {'a': [1]})
    self.assertEqual(self.read(), '{\n "a": [\n  1\n ]\n}\n')
    files.write(self.path, b'key', mode=0o600)
    self.assertEqual(stat.S_IMODE(os.stat(self.path).st_mode), 0o600)
    self.assertEqual(os.listdir(self.root), ['a.txt'])

  def test_json_keeps_letters_and_escapes_what_is_not_utf_8(self):
    # A file name with the byte 0x80, as Python returns it.
    value = ['ö', os.fsdecode(b'a\x80'), 'b\\c']
    files.write_json(self.path, value)
    self.assertEqual(
        pathlib.Path(self.path).read_bytes(),
        '[\n "ö",\n "a\\udc80",\n "b\\\\c"\n]\n'.encode(),
    )
    self.assertEqual(files.parse_json(files.read(self.path)), value)

  def test_a_new_file_has_its_mode_from_the_first_byte_and_follows_no_link(
      self,
  ):
    # Left by a program that was killed, or put there by somebody.
    partial, other = f'{self.path}.partial', os.path.join(self.root, 'other')
    files.write_text(other, 'as it was')
    os.symlink(other, partial)
    before = os.umask(0o022)
    self.addCleanup(os.umask, before)
    with files.replacing(self.path, mode=0o600) as file:
      mode = os.fstat(file.fileno()).st_mode
      self.assertEqual(stat.S_IMODE(mode), 0o600)
      file.write(b'key')
    self.assertEqual(self.read(), 'key')
    self.assertEqual(pathlib.Path(other).read_text(), 'as it was')
    with open(partial, 'wb'):
      os.chmod(partial, 0o666)
    with files.replacing(self.path, mode=0o600) as file:
      mode = os.fstat(file.fileno()).st_mode
      self.assertEqual(stat.S_IMODE(mode), 0o600)

  def test_replaced_or_erased_files_are_overwritten(self):
    for leave in (lambda: files.write(self.path, b'new'),
                  lambda: files.erase(self.path)):
      files.write(self.path, b'key')
      with open(self.path, 'rb') as old:
        with files.overwriting(self.path):
          leave()
        self.assertEqual(old.read(), b'\0\0\0')
    self.assertEmpty(os.listdir(self.root))

  def test_an_erased_file_leaves_nothing_and_need_not_be_there(self):
    files.erase(self.path)
    for path in (self.path, f'{self.path}.partial'):
      files.write(path, b'key')
    with open(self.path, 'rb') as old:
      files.erase(self.path)
      self.assertEqual(old.read(), b'\0\0\0')
    self.assertEmpty(os.listdir(self.root))

  @parameterized.parameters('fsync', 'replace')
  def test_a_failed_write_leaves_the_old_file_and_nothing_else(self, step):
    files.write_text(self.path, 'old')
    with mock.patch.object(os, step, side_effect=OSError('full')):
      with self.assertRaisesRegex(OSError, 'full'):
        files.write_text(self.path, 'new')
    self.assertEqual(os.listdir(self.root), ['a.txt'])
    self.assertEqual(self.read(), 'old')

  def test_contents_and_names_are_on_disk_before_it_returns(self):
    order = []

    def look(step):
      real = getattr(os, step)

      def call(*arguments):
        order.append(step)
        return real(*arguments)

      return mock.patch.object(os, step, call)

    with look('fsync'), look('replace'):
      files.write(self.path, b'x')
    self.assertEqual(order, ['fsync', 'replace', 'fsync'])

"""Tests of tff_asr.files; of locks, tests/storage/run_dir_test.py."""

import os
import stat
import tempfile
from unittest import mock

from absl.testing import absltest
from absl.testing import parameterized

from tff_asr import files


class FilesTest(parameterized.TestCase):

  def setUp(self):
    super().setUp()
    self.folder = self.enterContext(tempfile.TemporaryDirectory())
    self.path = os.path.join(self.folder, 'a.txt')

  def read(self) -> str:
    with open(self.path, encoding='utf-8') as file:
      return file.read()

  def test_a_file_is_replaced_and_has_its_mode(self):
    files.write_text(self.path, 'ö')
    files.write_json(self.path, {'a': [1]})
    self.assertEqual(self.read(), '{\n "a": [\n  1\n ]\n}\n')
    files.write(self.path, b'key', mode=0o600)
    self.assertEqual(stat.S_IMODE(os.stat(self.path).st_mode), 0o600)
    self.assertEqual(os.listdir(self.folder), ['a.txt'])

  @parameterized.parameters('fsync', 'replace')
  def test_a_failed_write_leaves_the_old_file_and_nothing_else(self, step):
    files.write_text(self.path, 'old')
    with mock.patch.object(os, step, side_effect=OSError('full')):
      with self.assertRaisesRegex(OSError, 'full'):
        files.write_text(self.path, 'new')
    self.assertEqual(os.listdir(self.folder), ['a.txt'])
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


if __name__ == '__main__':
  absltest.main()

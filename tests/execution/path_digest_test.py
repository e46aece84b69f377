import os
import pathlib
import shutil
import tempfile

from absl.testing import absltest

from tff_asr.execution import path_digest


class PathDigestTest(absltest.TestCase):

  def setUp(self):
    super().setUp()
    self.root = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
    self.folder = self.root / 'corpus'
    (self.folder / 'part').mkdir(parents=True)
    (self.folder / 'corpus.json').write_text('{"sha256": "abc"}')
    (self.folder / 'part/shard').write_bytes(b'x' * 10)

  def test_a_copy_is_the_same(self):
    shutil.copytree(self.folder, self.root / 'elsewhere')
    self.assertEqual(
        path_digest.digest(str(self.root / 'elsewhere')),
        path_digest.digest(str(self.folder)),
    )

  def test_another_version_size_or_name_is_told(self):
    index, shard = self.folder / 'corpus.json', self.folder / 'part/shard'
    for path, change in (
        # Of the same names and sizes, with other checksums.
        (self.folder, lambda: index.write_text('{"sha256": "abd"}')),
        (self.folder, lambda: shard.write_bytes(b'x' * 9)),
        (shard, lambda: shard.write_bytes(b'x' * 8)),  # A file alone.
        (self.folder, lambda: shard.rename(self.folder / 'part/other')),
    ):
      before = path_digest.digest(str(path))
      change()
      self.assertNotEqual(path_digest.digest(str(path)), before)

  def test_an_unmounted_folder_is_refused(self):
    (self.root / 'mount').mkdir()
    with self.assertRaisesRegex(ValueError, "mount', which is an empty folder"):
      path_digest.digest(str(self.root / 'mount'))

  def test_what_is_missing_or_unreadable_is_refused(self):
    with self.assertRaisesRegex(ValueError, "nowhere'"):
      path_digest.digest(str(self.root / 'nowhere'))
    os.symlink('nowhere', self.folder / 'part/dangling')
    with self.assertRaisesRegex(ValueError, "corpus'"):
      path_digest.digest(str(self.folder))

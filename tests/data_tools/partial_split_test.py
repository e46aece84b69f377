"""A split that is killed at any moment keeps its finished shards."""

import contextlib
import itertools
import os
import pathlib
import shutil
from unittest import mock


from data_tools import partial_split
from tests import cases

_IDENTITY = {'what': 'a corpus', 'how': [1, 2]}
_NUM_SHARDS = 3


class _Kill(BaseException):
  """Stands for SIGKILL: nothing in the code catches it."""


class PartialSplitTest(cases.TestCase):

  def setUp(self):
    super().setUp()
    self.output = pathlib.Path(self.root) / 'split'
    self.num_written = 0

  def write(self):
    """Writes what shards are missing, and moves the split into place."""
    with partial_split.PartialSplit(
        str(self.output), identity=_IDENTITY
    ) as partial:
      for number in range(len(partial.entries), _NUM_SHARDS):
        name = f'shard-{number}'
        path = pathlib.Path(partial.folder) / name
        path.write_bytes(bytes([number]) * 100)
        self.num_written += 1
        entry = {'files': [{'name': name, 'num_bytes': 100}]}
        partial.commit(entry, files=[name])
      partial.move_into_place()

  def test_links_lead_to_no_other_file_or_folder(self):
    other = pathlib.Path(self.root) / 'other'
    other.mkdir()
    (other / 'file').write_text('as it was')
    partial = pathlib.Path(self.root) / '.split.partial'
    partial.symlink_to(other)
    with self.assertRaisesRegex(ValueError, '.split.partial is a link'):
      self.write()
    partial.unlink()
    partial.mkdir()
    (partial / 'shard-0').symlink_to(other / 'file')
    (partial / 'journal.jsonl').symlink_to(other / 'file')
    with self.assertRaisesRegex(ValueError, 'journal.jsonl is a link or no re'):
      self.write()
    (partial / 'journal.jsonl').unlink()
    self.write()
    self.assertEqual([path.name for path in other.iterdir()], ['file'])
    self.assertEqual((other / 'file').read_text(), 'as it was')

  def killed_write(self, number: int) -> bool:
    """Like `write`, killed at a call; whether it was."""
    calls = itertools.count()

    def wrap(function):
      def call(*args, **kwargs):
        if next(calls) >= number:
          raise _Kill
        return function(*args, **kwargs)

      return call

    with contextlib.ExitStack() as stack:
      for module, name in (
          (os, 'fsync'), (os, 'rename'), (os, 'remove'), (shutil, 'rmtree'),
      ):
        function = wrap(getattr(module, name))
        stack.enter_context(mock.patch.object(module, name, function))
      try:
        self.write()
      except _Kill:
        return True
    return False

  def check_whole(self):
    self.assertCountEqual(
        os.listdir(self.output), [f'shard-{i}' for i in range(_NUM_SHARDS)]
    )
    self.assertEqual(os.listdir(self.output.parent), ['split'])

  def interrupt(self):
    """Writes all shards, and is killed before they are moved."""
    with mock.patch.object(
        partial_split.PartialSplit, 'move_into_place', side_effect=_Kill
    ):
      with self.assertRaises(_Kill):
        self.write()

  def test_a_kill_at_any_moment_loses_no_finished_shard(self):
    # A split that begins, and one that resumes with all shards written.
    for prepare, num_rewritten in ((lambda: None, 4), (self.interrupt, 0)):
      number, was_killed = 0, True
      while was_killed:
        prepare()
        self.num_written = 0
        was_killed = self.killed_write(number)
        if not self.output.exists():
          self.write()
        # The one that was being committed, at most, is written twice.
        self.assertLessEqual(self.num_written, num_rewritten, number)
        partial_split.forget_journal(str(self.output))
        self.check_whole()
        shutil.rmtree(self.output)
        number += 1
      self.assertGreater(number, 3)

  def test_a_kill_while_replacing_leaves_the_old_or_the_new(self):
    number, was_killed = 0, True
    while was_killed:
      self.output.mkdir()
      (self.output / 'old').write_text('of another corpus')
      was_killed = self.killed_write(number)
      if was_killed:
        # What an interrupted one left is kept until the new one is in place.
        self.num_written = 0
        self.write()
        self.assertLessEqual(self.num_written, _NUM_SHARDS)
      self.check_whole()
      shutil.rmtree(self.output)
      number += 1

  def test_incomplete_shards_are_written_again(self):
    self.interrupt()
    folder = self.output.parent / '.split.partial'
    journal = folder / partial_split.JOURNAL_FILE
    whole = journal.read_bytes()

    def num_entries(identity=_IDENTITY):
      with partial_split.PartialSplit(
          str(self.output), identity=identity
      ) as partial:
        self.assertLen(
            os.listdir(folder), 1 + len(partial.entries)  # and the journal
        )
        return len(partial.entries)

    for cut in (1, 10):
      journal.write_bytes(whole[:-cut])
      self.assertEqual(num_entries(), _NUM_SHARDS - 1)
      self.assertTrue(whole.startswith(journal.read_bytes()))
      self.interrupt()
    # Whichever shard is cut short, those before it are kept.
    for number in (2, 1, 0):
      os.truncate(folder / f'shard-{number}', 99)
      self.assertEqual(num_entries(), number)
      self.interrupt()
    # What another identity left is deleted.
    self.assertEqual(num_entries({'another': 1}), 0)

"""Tests of data_tools.archives on archives that an attacker may have made."""

import gzip
import io
import os
import resource
import tarfile

from absl.testing import parameterized

from data_tools import archives
from tests import cases


def _member(name: str, **attributes) -> tarfile.TarInfo:
  member = tarfile.TarInfo(name)
  for attribute, value in attributes.items():
    setattr(member, attribute, value)
  return member


def _link(name: str, target: str, kind=tarfile.SYMTYPE) -> tarfile.TarInfo:
  return _member(name, type=kind, linkname=target)


def _beyond_the_longest_path(outside: str) -> list[tarfile.TarInfo]:
  """Leads out by a path too long to be resolved: CVE-2025-4517."""
  found, path, part, steps = [], '', 'd' * 247, 'abcdefghijklmnop'
  for step in steps:
    found.append(_member(os.path.join(path, part), type=tarfile.DIRTYPE))
    found.append(_link(os.path.join(path, step), part))
    path = os.path.join(path, part)
  long = os.path.join('/'.join(steps), 'l' * 254)
  found.append(_link(long, '../' * len(steps)))
  found.append(_link('escape', f'{long}/../../{outside}'))
  return [*found, _member('escape/evil')]


class ArchivesTest(cases.TestCase):

  def setUp(self):
    super().setUp()
    self.archive = self.path('dev.tar')
    self.evil = self.path('outside', 'evil')
    os.mkdir(os.path.dirname(self.evil))

  def find(self) -> str:
    with archives.Scratch(self.path('scratch')) as scratch:
      return scratch.find(
          self.archive, split='dev', holds_split=lambda *unused: False
      )

  def test_nothing_is_unpacked_through_a_link(self):
    outside = os.path.dirname(self.evil)
    with tarfile.open(self.archive, 'w') as tar:
      tar.add(outside, 'dev')
    os.mkdir(self.path('scratch'))
    os.symlink(outside, self.path('scratch', 'dev.tar.partial'))
    with self.assertRaisesRegex(ValueError, 'dev.tar.partial is in the way'):
      self.find()
    self.assertEmpty(os.listdir(outside))
    os.remove(self.path('scratch', 'dev.tar.partial'))
    self.find()

  def assert_refused(self, message: str) -> None:
    with self.assertRaisesRegex(
        ValueError, f'dev.tar cannot be unpacked into .*{message}'
    ) as caught:
      self.find()
    self.assertNotIn('\n', str(caught.exception))
    self.assertFalse(os.path.exists(self.evil))
    # Nothing that was unpacked stays on the disk.
    scratch = self.path('scratch')
    self.assertEqual([*os.walk(scratch)][1:], [])

  @parameterized.named_parameters(
      ('up', [_member('a/../../../outside/evil')], 'outside'),
      ('link', [_link('a', '../../outside'), _member('a/evil')], "'a' is a li"),
      ('inner_link', [_member('a'), _link('b', 'a')], "'b' is a link"),
      (
          'hard_link',
          [_link('a', '../../outside/x', tarfile.LNKTYPE)],
          "'a' is a link",
      ),
      ('device', [_member('a', type=tarfile.CHRTYPE)], "'a' is a link"),
      ('pipe', [_member('a', type=tarfile.FIFOTYPE)], "'a' is a link"),
      (
          'beyond_the_longest_path',
          _beyond_the_longest_path('outside'),
          'is a link',
      ),
  )
  def test_members_outside_the_folder_are_refused(self, members, message):
    with tarfile.open(self.archive, 'w') as tar:
      for member in members:
        tar.addfile(member)
    self.assert_refused(message)

  def test_an_absolute_name_stays_inside(self):
    with tarfile.open(self.archive, 'w') as tar:
      tar.addfile(_member(self.evil))
    self.find()
    self.assertFalse(os.path.exists(self.evil))

  def test_an_archive_that_expands_without_bound_is_refused(self):
    # A megabyte that expands to a gigabyte of zeros; nothing is written.
    with tarfile.open(self.archive, 'w') as tar:
      tar.addfile(_member('a', size=2**20), io.BytesIO(bytes(2**20)))
      tar.addfile(_member('b', size=2**40))
    self.assert_refused('more than 100 times the bytes of the archive')

  def test_a_folder_of_negative_size_does_not_raise_the_limit(self):
    below = _member('x', type=tarfile.DIRTYPE, size=-(2**40))
    with gzip.open(self.archive, 'wb') as f:
      for member in below, _member('big', size=2**20):
        f.write(member.tobuf(tarfile.GNU_FORMAT))
      f.write(bytes(2**20 + 2 * tarfile.BLOCKSIZE))
    self.assert_refused('more than 100 times the bytes of the archive')

  def test_a_header_that_claims_any_length_takes_no_memory(self):
    head = _member('a', type=tarfile.XHDTYPE, size=2**30).tobuf()
    with gzip.open(self.archive, 'wb', compresslevel=1) as f:
      f.write(head)
      for _ in range(2**8):
        f.write(bytes(2**20))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    self.assert_refused('has a header of 1,073,741,824 bytes')
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    self.assertLess(after - before, 2**16)  # In KiB.

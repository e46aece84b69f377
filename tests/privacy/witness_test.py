"""Tests of tff_asr.privacy.witness."""

import json
import os
import pathlib
import shutil
from unittest import mock

from absl.testing import parameterized

from tests import cases
from tests import fakes
from tff_asr.privacy import ledger
from tff_asr.privacy import witness


class WitnessTest(cases.TestCase):

  def setUp(self):
    super().setUp()
    self.witness = self.path('witness.jsonl')
    self.path_of_run = self.path('ledger.jsonl')

  def create(self, path=None):
    return self.enterContext(ledger.create(path or self.path_of_run))

  def charge(self, opened, number, key=0):
    opened.append(fakes.charged_round(number, key=key))
    witness.append(self.witness, opened)

  def lines(self):
    return pathlib.Path(self.witness).read_bytes().splitlines(keepends=True)

  def overwrite(self, lines):
    pathlib.Path(self.witness).write_bytes(b''.join(lines))

  def check_refused(self, message, look=None):
    """`look`, or a check of the ledger, raises LedgerError in one line."""
    look = look or (lambda: witness.check(self.witness, self.path_of_run))
    with self.assertRaisesRegex(ledger.LedgerError, message) as raised:
      look()
    self.assertNotIn('\n', str(raised.exception))

  def test_each_line_is_as_documented_and_on_disk(self):
    opened = self.create()
    heads = [opened.end]
    synced = []
    with mock.patch.object(
        os, 'fsync', lambda file: synced.append(os.fstat(file).st_size)
    ):
      witness.append(self.witness, opened)
    self.assertIn(os.path.getsize(self.witness), synced)
    self.charge(opened, 0)
    witness.append(self.witness, opened)  # The same head again.
    found = [json.loads(line) for line in self.lines()]
    self.assertLen(found, 2)
    heads.append(opened.end)
    self.assertEqual(
        [(line['run_id'], line['count'], line['digest']) for line in found],
        [(opened.contents.run_id, *head) for head in heads],
    )
    self.assertRegex(found[0]['time'], r'^20\d\d-\d\d-\d\dT[\d:]{8}\+00:00$')
    witness.check(self.witness, self.path_of_run)

  def test_a_folder_put_back_to_an_earlier_time_is_refused(self):
    opened = self.create()
    self.charge(opened, 0)
    before, head = self.path('before'), opened.head
    shutil.copy(self.path_of_run, before)
    self.charge(opened, 1)
    opened.close()
    shutil.copy(before, self.path_of_run)
    # The chain, and the head of an equally old state, show nothing.
    ledger.read(self.path_of_run, head=head)
    self.check_refused('was shortened: it has 1 entries, .*witness.* knows 2')
    with ledger.resume(self.path_of_run, head=head) as opened:
      self.check_refused(
          'was shortened', lambda: witness.append(self.witness, opened)
      )
      # Nor does another continuation help.
      for number in (1, 2):
        opened.append(fakes.charged_round(number, key=9))
      self.check_refused(
          'were rewritten', lambda: witness.append(self.witness, opened)
      )
    self.check_refused('were rewritten')
    self.assertLen(self.lines(), 2)

  def test_of_a_copy_and_its_original_one_goes_on(self):
    opened = self.create()
    self.charge(opened, 0)
    copy = self.path('copy.jsonl')
    shutil.copy(self.path_of_run, copy)
    with ledger.resume(copy, head=opened.head) as other:
      self.charge(other, 1, key=5)
    self.check_refused(
        'was shortened', lambda: witness.append(self.witness, opened)
    )
    self.check_refused('was shortened')

  def test_another_ledger_and_a_missing_witness_are_refused(self):
    self.create()
    self.check_refused('witness .* is missing')
    witness.check(self.witness, self.path_of_run, must_know=False)
    with ledger.create(self.path('other.jsonl')) as other:
      self.charge(other, 0)
    self.check_refused('does not know the run')
    witness.check(self.witness, self.path_of_run, must_know=False)
    self.witness = self.path('folder')
    os.mkdir(self.witness)
    message = 'folder is a folder: name a file'
    self.check_refused(message)
    self.check_refused(message, lambda: witness.append(self.witness, other))

  def test_runs_share_a_file(self):
    first, second = self.create(), self.create(self.path('second.jsonl'))
    for number in range(3):
      self.charge(first, number)
      self.charge(second, number, key=1)
    self.assertLen(self.lines(), 6)
    for path in (self.path_of_run, self.path('second.jsonl')):
      witness.check(self.witness, path)
      with open(path, 'r+b') as file:
        file.seek(-1, os.SEEK_END)
        file.truncate()
      self.check_refused(
          'was shortened', lambda path=path: witness.check(self.witness, path)
      )

  def test_a_line_that_a_crash_cut_short_is_marked_and_does_not_count(self):
    opened = self.create()
    self.charge(opened, 0)
    (whole,) = self.lines()
    for number, kept in enumerate((1, 40, len(whole) - 1), start=1):
      self.overwrite([whole, whole[:kept]])
      witness.check(self.witness, self.path_of_run)
      self.charge(opened, number)
      witness.check(self.witness, self.path_of_run)
      # Nothing that stood there was changed.
      self.assertStartsWith(b''.join(self.lines()), whole + whole[:kept])
      self.assertEqual(
          self.lines()[1], whole[:kept] + b' # cut short\n'
      )
      self.assertEqual(json.loads(self.lines()[2])['count'], number + 1)
    # At the start of the file, too.
    self.overwrite([whole[:30]])
    witness.append(self.witness, opened)
    witness.check(self.witness, self.path_of_run)

  @parameterized.parameters(0, 1, 2)
  def test_damage_is_refused_wherever_it_is(self, number):
    opened = self.create()
    for each in range(3):
      self.charge(opened, each)
    good = self.lines()
    line = json.loads(good[number])
    encode = lambda fields: json.dumps(fields, sort_keys=True).encode() + b'\n'
    for bad in (
        *(
            good[number][:place] + bytes([good[number][place] ^ 1])
            + good[number][place + 1 :]
            for place in range(0, len(good[number]) - 1, 7)
        ),
        good[number][:20] + b'\n',
        b'\n', b'[]\n', b'3\n', b'[' * 100_000 + b'\n', b'\xff\n',
        encode(line | {'count': 0}), encode(line | {'run_id': 'x'}),
        encode({k: v for k, v in line.items() if k != 'hash'}),
    ):
      self.overwrite(good[:number] + [bad] + good[number + 1 :])
      self.check_refused(f'Line {number + 1} of the witness')
      self.check_refused(
          f'Line {number + 1} of',
          lambda: witness.append(self.witness, opened),
      )

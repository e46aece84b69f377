"""Tests for hash_chain and ledger."""

import json
import os
import shutil
import signal
import tempfile
from unittest import mock

from absl.testing import absltest
from absl.testing import parameterized
import numpy as np

from tff_asr.privacy import accounting
from tff_asr.privacy import hash_chain
from tff_asr.privacy import keys
from tff_asr.privacy import ledger

_SAMPLING = accounting.Sampling(
    kind='poisson', cohort_size=10, population=1000
)


def _round(
    round_num, *, configuration='config', noise=(1.0,), seed=0, result='',
    sampling=_SAMPLING,
):
  return ledger.Round(
      round_num=round_num,
      sampling=sampling,
      result=result,
      noise_multipliers=noise,
      configuration=configuration,
      identity=ledger.round_identity(
          noise_key=keys.from_seed(seed),
          noise_counter=round_num,
          sampler_key=keys.from_seed(100),
          round_num=round_num,
          configuration=configuration,
      ),
  )


def _count(contents):
  return sum(group.count for group in contents.rounds)


class _LedgerTestCase(parameterized.TestCase):

  def setUp(self):
    super().setUp()
    self.folder = self.enterContext(tempfile.TemporaryDirectory())
    self.path = os.path.join(self.folder, 'ledger.jsonl')

  def _write(self, count, **kwargs):
    """Writes rounds 0 to count - 1 and returns the heads after each line."""
    with ledger.create(self.path, **kwargs) as opened:
      heads = [opened.head]
      for round_num in range(count):
        self.assertTrue(opened.append(_round(round_num)))
        heads.append(opened.head)
    return heads

  def _lines(self):
    with open(self.path, 'rb') as file:
      return file.read().splitlines(keepends=True)

  def _overwrite(self, lines):
    with open(self.path, 'wb') as file:
      file.write(b''.join(lines))


class LedgerTest(_LedgerTestCase):

  def test_rounds_are_grouped_and_composed(self):
    with ledger.create(self.path, unit='device') as opened:
      opened.append(_round(0))
      opened.append(_round(1))
      opened.append(_round(2, noise=(3.0, 4.0)))  # as one of 2.4
      contents = opened.contents
    self.assertEqual(contents, ledger.read(self.path))
    self.assertEqual(contents.unit, 'device')
    self.assertEqual(
        contents.rounds,
        [
            accounting.RoundGroup(
                sampling=_SAMPLING, noise_multiplier=1.0, count=2
            ),
            accounting.RoundGroup(
                sampling=_SAMPLING, noise_multiplier=2.4, count=1
            ),
        ],
    )

  def test_file_is_as_documented_and_names_no_client(self):
    self._write(1)
    header, line = map(json.loads, self._lines())
    self.assertCountEqual(
        header,
        ['kind', 'format_version', 'run_id', 'unit', 'private', 'fixed_seeds',
         'inherited', 'parents', 'previous', 'hash'],
    )
    self.assertCountEqual(
        line,
        ['kind', 'index', 'round_num', 'event', 'configuration', 'identity',
         'result', 'previous', 'hash'],
    )
    self.assertEqual(line['previous'], header['hash'])
    self.assertEqual(
        line['event'],
        {
            'sampling': {
                'kind': 'poisson', 'cohort_size': 10, 'population': 1000,
            },
            'noise_multipliers': [1.0],
        },
    )

  def test_fixed_seeds_are_in_the_header(self):
    self._write(0, fixed_seeds=['NOISE_SEED'])
    self.assertFalse(json.loads(self._lines()[0])['private'])
    self.assertEqual(ledger.read(self.path).fixed_seeds, ('NOISE_SEED',))

  def test_round_is_on_disk_when_append_returns(self):
    synced = []
    real = os.fsync

    def fsync(descriptor):
      synced.append(os.fstat(descriptor).st_size)
      real(descriptor)

    with ledger.create(self.path) as opened:
      with mock.patch.object(os, 'fsync', fsync):
        opened.append(_round(0))
      self.assertEqual(synced, [os.path.getsize(self.path)])

  def test_failed_append_charges_nothing_and_can_be_repeated(self):
    with ledger.create(self.path) as opened:
      before = self._lines()
      with mock.patch.object(os, 'fsync', side_effect=OSError('full')):
        with self.assertRaisesRegex(OSError, 'full'):
          opened.append(_round(0))
      self.assertEqual(self._lines(), before)
      self.assertEqual(opened.head.count, 0)
      self.assertTrue(opened.append(_round(0)))
    self.assertEqual(_count(ledger.read(self.path)), 1)

  def test_heads_are_those_of_the_lines(self):
    heads = self._write(3)
    hashes = [json.loads(line)['hash'] for line in self._lines()]
    self.assertEqual(heads, list(map(ledger.Head, range(4), hashes)))

  def test_resume_continues(self):
    heads = self._write(2)
    with ledger.resume(self.path, head=heads[-1]) as opened:
      self.assertEqual(opened.head, heads[-1])
      self.assertTrue(opened.append(_round(2)))
    self.assertEqual(_count(ledger.read(self.path)), 3)

  def test_head_may_come_back_as_numpy(self):
    heads = self._write(2)
    head = ledger.Head(np.int64(2), np.str_(heads[-1].digest))
    with ledger.resume(self.path, head=head) as opened:
      self.assertEqual(opened.head, heads[-1])

  def test_two_runs_exclude_each_other(self):
    with ledger.create(self.path) as opened:
      with self.assertRaisesRegex(ledger.LedgerError, 'in use'):
        ledger.resume(self.path, head=opened.head)
      with self.assertRaisesRegex(ledger.LedgerError, 'in use'):
        ledger.create(self.path)

  def test_new_run_does_not_overwrite_a_charged_one(self):
    self._write(1)
    with self.assertRaisesRegex(ledger.LedgerError, 'already charges 1 round'):
      ledger.create(self.path)
    self.assertEqual(_count(ledger.read(self.path)), 1)

  @parameterized.parameters(0, 5, 40, None)
  def test_new_run_replaces_one_that_ended_before_its_first_round(self, size):
    first = self._write(0)
    if size is not None:
      os.truncate(self.path, size)
    second = self._write(0)
    self.assertNotEqual(first, second)

  def test_other_files_are_not_overwritten(self):
    self._overwrite([b'my only copy'])
    with self.assertRaisesRegex(ledger.LedgerError, 'not a privacy ledger'):
      ledger.create(self.path)
    self.assertEqual(self._lines(), [b'my only copy'])


class CrashTest(_LedgerTestCase):
  """The ledger is ahead of the saved program state."""

  def test_identical_round_is_not_charged_twice(self):
    heads = self._write(5)
    size = os.path.getsize(self.path)
    with ledger.resume(self.path, head=heads[3]) as opened:
      self.assertFalse(opened.append(_round(3)))
      self.assertEqual(opened.head, heads[4])
      self.assertFalse(opened.append(_round(4)))
      self.assertEqual(opened.head, heads[5])
      self.assertEqual(os.path.getsize(self.path), size)
      self.assertTrue(opened.append(_round(5)))
    self.assertEqual(_count(ledger.read(self.path)), 6)

  @parameterized.named_parameters(
      ('configuration', dict(configuration='other')), ('key', dict(seed=1))
  )
  def test_different_round_is_charged_in_addition(self, change):
    heads = self._write(5)
    with ledger.resume(self.path, head=heads[3]) as opened:
      self.assertTrue(opened.append(_round(3, **change)))
      self.assertEqual(opened.head.count, 6)
      # What was passed over is no longer ahead: a repetition is charged.
      self.assertTrue(opened.append(_round(4)))
    self.assertEqual(_count(ledger.read(self.path)), 7)

  def test_branch_that_crashes_again_is_charged_once(self):
    heads = self._write(4)
    for expected in (True, False):  # the state is never saved in between
      with ledger.resume(self.path, head=heads[3]) as opened:
        self.assertEqual(opened.append(_round(3, seed=1)), expected)
    self.assertEqual(_count(ledger.read(self.path)), 5)

  def test_round_within_the_saved_state_is_charged_again(self):
    heads = self._write(3)
    with ledger.resume(self.path, head=heads[3]) as opened:
      self.assertTrue(opened.append(_round(1)))
    self.assertEqual(_count(ledger.read(self.path)), 4)

  def test_identity_without_the_event_is_refused(self):
    heads = self._write(1)
    with ledger.resume(self.path, head=heads[0]) as opened:
      with self.assertRaisesRegex(ledger.LedgerError, 'must cover'):
        opened.append(_round(0, noise=(0.5,)))

  def test_torn_line_is_cut_off(self):
    heads = self._write(3)
    lines = self._lines()
    for kept in range(len(lines[3])):  # all but the newline, and less
      self._overwrite(lines[:3] + [lines[3][:kept]])
      with ledger.resume(self.path, head=heads[2]) as opened:
        self.assertEqual(_count(opened.contents), 2)
        self.assertTrue(opened.append(_round(2)))
      self.assertEqual(self._lines(), lines)

  def test_kill_inside_append_charges_the_round_or_not(self):
    heads = self._write(1)
    for where in ('os.write', 'os.fsync'):
      child = os.fork()
      if not child:
        kill = lambda *unused: os.kill(os.getpid(), signal.SIGKILL)
        try:
          with ledger.resume(self.path, head=heads[1]) as opened:
            with mock.patch(where, kill):
              opened.append(_round(1))
        finally:
          os._exit(1)  # not reached  # pylint: disable=protected-access
      _, status = os.waitpid(child, 0)
      self.assertEqual(os.WTERMSIG(status), signal.SIGKILL)
      with ledger.resume(self.path, head=heads[1]) as opened:
        charged = where == 'os.fsync'
        self.assertEqual(_count(opened.contents), 1 + charged)
    with ledger.resume(self.path, head=heads[1]) as opened:
      self.assertFalse(opened.append(_round(1)))


class ParentTest(_LedgerTestCase):
  """A run that starts from another run's model goes on with its ledger."""

  def setUp(self):
    super().setUp()
    self.parent = os.path.join(self.folder, 'parent.jsonl')

  def write_parent(self, count, **kwargs):
    with ledger.create(self.parent, **kwargs) as opened:
      for round_num in range(count):
        opened.append(_round(round_num))
      return opened.head

  def test_rounds_and_fixed_seeds_are_taken_over(self):
    head = self.write_parent(3, fixed_seeds=['NOISE_SEED'])
    with ledger.create(
        self.path,
        parent=self.parent,
        parent_head=head,
        fixed_seeds=['NOISE_SEED', 'SAMPLER_SEED'],
    ) as opened:
      self.assertEqual(opened.head.count, 3)
      self.assertTrue(opened.append(_round(0, seed=7)))
      head = opened.head
    contents = ledger.read(self.path, head=head)
    self.assertEqual(_count(contents), 4)
    self.assertEqual(contents.inherited, 3)
    self.assertEqual(contents.fixed_seeds, ('NOISE_SEED', 'SAMPLER_SEED'))
    header = json.loads(self._lines()[0])
    self.assertEqual(header['parents'], [ledger.read(self.parent).run_id])
    with ledger.resume(self.path, head=head) as opened:
      self.assertEqual(opened.head, head)

  def test_a_chain_of_runs_adds_up(self):
    self.write_parent(2)
    with ledger.create(self.path, parent=self.parent) as opened:
      opened.append(_round(0, seed=7))
    third = os.path.join(self.folder, 'third.jsonl')
    with ledger.create(third, parent=self.path) as opened:
      self.assertEqual(_count(opened.contents), 3)
    self.assertLen(json.loads(open(third, 'rb').readline())['parents'], 2)

  def test_a_changed_or_missing_parent_is_refused(self):
    head = self.write_parent(2)
    with open(self.parent, 'rb') as file:
      lines = file.read().splitlines(keepends=True)
    with open(self.parent, 'wb') as file:
      file.write(b''.join(lines[:-1]))
    with self.assertRaisesRegex(ledger.LedgerError, 'was shortened'):
      ledger.create(self.path, parent=self.parent, parent_head=head)
    os.remove(self.parent)
    with self.assertRaisesRegex(ledger.LedgerError, 'is missing'):
      ledger.create(self.path, parent=self.parent, parent_head=head)
    self.assertFalse(os.path.exists(self.path))

  def test_an_unbegun_ledger_is_replaced_a_begun_one_not(self):
    self.write_parent(2)
    for _ in range(2):
      with ledger.create(self.path, parent=self.parent) as opened:
        self.assertEqual(opened.head.count, 2)
    with ledger.create(self.path, parent=self.parent) as opened:
      opened.append(_round(0, seed=7))
    with self.assertRaisesRegex(ledger.LedgerError, 'already charges 1 rounds'):
      ledger.create(self.path, parent=self.parent)


class ResultTest(_LedgerTestCase):
  """The same noise never covers two sums that differ."""

  def test_the_same_round_with_the_same_result_is_not_charged_again(self):
    with ledger.create(self.path) as opened:
      before = opened.head
      opened.append(_round(0, result='a' * 64))
    with ledger.resume(self.path, head=before) as opened:
      self.assertTrue(opened.holds(_round(0).identity))
      self.assertFalse(opened.holds(_round(1).identity))
      self.assertFalse(opened.append(_round(0, result='a' * 64)))
      self.assertFalse(opened.holds(_round(0).identity))
      self.assertEqual(_count(opened.contents), 1)

  def test_another_result_asks_for_a_new_key_and_is_charged_with_it(self):
    with ledger.create(self.path) as opened:
      before = opened.head
      opened.append(_round(0, result='a' * 64))
    with ledger.resume(self.path, head=before) as opened:
      with self.assertRaisesRegex(ledger.NoiseReuseError, 'new noise key'):
        opened.append(_round(0, result='b' * 64))
      self.assertEqual(_count(opened.contents), 1)
      self.assertTrue(opened.append(_round(0, result='b' * 64, seed=1)))
      self.assertEqual(_count(opened.contents), 2)

  def test_a_copy_has_another_place_and_a_renamed_folder_its_own(self):
    run, renamed, copy = (
        os.path.join(self.folder, name) for name in ('run', 'renamed', 'copy')
    )
    os.mkdir(run)
    with ledger.create(os.path.join(run, 'ledger.jsonl')) as opened:
      place, head = opened.place, opened.head
    os.rename(run, renamed)
    shutil.copytree(renamed, copy)
    with ledger.resume(
        os.path.join(renamed, 'ledger.jsonl'), head=head
    ) as opened:
      self.assertEqual(opened.place, place)
    with ledger.resume(os.path.join(copy, 'ledger.jsonl'), head=head) as opened:
      self.assertNotEqual(opened.place, place)

  def test_a_backup_written_over_it_has_another_place(self):
    with ledger.create(self.path) as opened:
      place, head = opened.place, opened.head
    backup = os.path.join(self.folder, 'backup')
    os.mkdir(backup)
    names = [n for n in os.listdir(self.folder) if n.startswith('ledger')]
    self.assertLen(names, 2)
    for name in names:
      shutil.copy2(os.path.join(self.folder, name), backup)
    with ledger.resume(self.path, head=head) as opened:
      self.assertEqual(opened.place, place)
    inode = os.stat(self.path).st_ino
    for name in names:
      shutil.copy2(os.path.join(backup, name), self.folder)
    self.assertEqual(os.stat(self.path).st_ino, inode)
    with ledger.resume(self.path, head=head) as opened:
      self.assertNotEqual(opened.place, place)
    # Without the file beside it, too.
    os.remove(os.path.join(self.folder, 'ledger.jsonl.place'))
    with ledger.resume(self.path, head=head) as opened:
      self.assertNotEqual(opened.place, place)


class PassTest(_LedgerTestCase):
  """Rounds of shuffled passes cost by trees, which roll-backs break."""

  # 12 clients, 3 a round: 4 rounds a pass.
  sampling = accounting.Sampling(kind='pass', cohort_size=3, population=12)

  def count(self, round_nums):
    with tempfile.TemporaryDirectory() as folder:
      path = os.path.join(folder, 'ledger.jsonl')
      with ledger.create(path) as opened:
        for index, round_num in enumerate(round_nums):
          opened.append(
              _round(round_num, sampling=self.sampling, seed=index)
          )
        count = _count(opened.contents)
      self.assertEqual(_count(ledger.read(path)), count)
    return count

  def test_rounds_in_order_count_as_they_are(self):
    for number in (1, 3, 4, 5, 8):
      self.assertEqual(self.count(range(number)), number)

  def test_a_roll_back_within_a_pass_costs_a_tree_more(self):
    # 0 1 2, then 1 again: a client of rounds 1 or 2 took part twice. The first
    # tree counts whole (4), the second up to where it is (rounds 0 and 1).
    self.assertEqual(self.count([0, 1, 2, 1]), 4 + 2)
    self.assertEqual(self.count([0, 1, 2, 1, 2, 3]), 4 + 4)
    self.assertEqual(self.count([0, 1, 2, 1, 2, 3, 4]), 4 + 4 + 1)

  def test_a_roll_back_to_the_start_of_a_pass_costs_a_tree_more(self):
    self.assertEqual(self.count([0, 1, 2, 3, 4, 4]), 4 + 4 + 1)
    self.assertEqual(self.count([0, 1, 2, 3, 0]), 4 + 1)

  def test_a_roll_back_by_a_whole_pass_costs_a_tree_more(self):
    # Round 2 stands where round 6 would: two clients of one tree, or one twice.
    self.assertEqual(self.count([0, 1, 2, 3, 4, 5, 2]), 4 + 4 + 3)
    self.assertEqual(self.count([*range(8), 4, 5]), 4 + 4 + 2)

  def test_a_single_round_repeated_costs_again(self):
    self.assertEqual(self.count([0, 0]), 4 + 1)


class TamperingTest(_LedgerTestCase):

  def test_missing_file_is_refused(self):
    head = self._write(1)[-1]
    os.remove(self.path)
    with self.assertRaisesRegex(ledger.LedgerError, 'missing.*1 charged'):
      ledger.resume(self.path, head=head)

  def test_every_changed_byte_is_refused(self):
    head = self._write(2)[-1]
    good = b''.join(self._lines())
    for position in range(len(good)):
      for change in (0x01, 0x20):
        bad = bytearray(good)
        bad[position] ^= change
        self._overwrite([bad])
        with self.assertRaises(ledger.LedgerError, msg=position):
          ledger.resume(self.path, head=head)

  @parameterized.named_parameters(
      ('reordered', lambda lines: [lines[i] for i in (0, 2, 1, 3)]),
      ('first_removed', lambda lines: lines[:1] + lines[2:]),
      ('last_removed', lambda lines: lines[:-1]),
      ('all_removed', lambda lines: lines[:1]),
      ('header_removed', lambda lines: lines[1:]),
      ('emptied', lambda lines: []),
      ('repeated', lambda lines: lines[:2] + lines[1:]),
      ('cut', lambda lines: lines[:-1] + [lines[-1][:-1]]),
      ('blank_line', lambda lines: lines[:2] + [b'\n'] + lines[2:]),
      ('spaces', lambda lines: lines[:3] + [lines[3].replace(b', ', b',  ')]),
      ('not_json', lambda lines: lines[:3] + [b'\xff[[[\n']),
      ('nested', lambda lines: lines[:3] + [b'[' * 100_000 + b'\n']),
  )
  def test_changed_file_is_refused_in_one_line(self, change):
    head = self._write(3)[-1]
    self._overwrite(change(self._lines()))
    with self.assertRaises(ledger.LedgerError) as context:
      ledger.resume(self.path, head=head)
    self.assertIn(self.path, str(context.exception))
    self.assertNotIn('\n', str(context.exception))

  @parameterized.parameters(1, 2)
  def test_rewritten_chain_is_refused_by_the_head(self, first):
    heads = self._write(3)
    lines = [json.loads(line) for line in self._lines()]
    for i in range(first, 4):
      fields = dict(lines[i], round_num=lines[i]['round_num'] + 7)
      del fields['hash'], fields['previous']
      lines[i] = hash_chain.seal(fields, previous=lines[i - 1]['hash'])
    self._overwrite(
        json.dumps(line, sort_keys=True).encode() + b'\n' for line in lines
    )
    self.assertEqual(_count(ledger.read(self.path)), 3)
    with self.assertRaisesRegex(ledger.LedgerError, 'were rewritten'):
      ledger.resume(self.path, head=heads[-1])

  def test_line_with_more_noise_and_its_own_new_hash_is_refused(self):
    head = self._write(3)[-1]
    lines = self._lines()
    fields = json.loads(lines[2])
    del fields['hash']
    fields['event']['noise_multipliers'] = [100.0]
    forged = hash_chain.seal(fields, previous=fields['previous'])
    lines[2] = json.dumps(forged, sort_keys=True).encode() + b'\n'
    self._overwrite(lines)
    with self.assertRaisesRegex(ledger.LedgerError, 'line 4 does not follow'):
      ledger.resume(self.path, head=head)

  def test_ledger_of_another_run_is_refused(self):
    head = self._write(1)[-1]
    os.remove(self.path)
    self._write(2)
    with self.assertRaisesRegex(ledger.LedgerError, 'another run'):
      ledger.resume(self.path, head=head)

  @parameterized.named_parameters(
      ('version', dict(format_version=1), {}, 'format version 1'),
      ('inherited', dict(inherited=5), {}, 'not well formed'),
      ('result', {}, dict(result='abc'), 'not well formed'),
      ('kind', dict(kind='note'), {}, 'no header'),
      ('noise', {}, dict(event={'sampling': {}}), 'not well formed'),
      ('index', {}, dict(index=5), 'not well formed'),
      ('extra', {}, dict(extra=5), 'not well formed'),
      ('identity', {}, dict(identity='abc'), 'not well formed'),
  )
  def test_well_chained_but_malformed_is_refused(self, header, line, message):
    self._write(1)
    fields = [
        dict(json.loads(old), **change)
        for old, change in zip(self._lines(), (header, line))
    ]
    sealed, previous = [], ''
    for one in fields:
      del one['hash'], one['previous']
      sealed.append(hash_chain.seal(one, previous=previous))
      previous = sealed[-1]['hash']
    self._overwrite(
        json.dumps(one, sort_keys=True).encode() + b'\n' for one in sealed
    )
    with self.assertRaisesRegex(ledger.LedgerError, message):
      ledger.read(self.path)

  def test_random_bytes_are_refused(self):
    random = np.random.default_rng(0)
    for size in (0, 1, 100, 5000):
      self._overwrite([random.bytes(size)])
      with self.assertRaises(ledger.LedgerError):
        ledger.read(self.path)


class RoundTest(parameterized.TestCase):

  def test_identity_covers_each_part(self):
    parts = dict(
        noise_key=keys.from_seed(0),
        noise_counter=1,
        sampler_key=keys.from_seed(2),
        round_num=3,
        configuration='c',
        state_digest='s',
    )
    changes = dict(
        noise_key=keys.from_seed(9),
        noise_counter=9,
        sampler_key=keys.from_seed(9),
        round_num=9,
        configuration='9',
        state_digest='9',
    )
    identities = {ledger.round_identity(**parts)}
    for name, value in changes.items():
      identities.add(ledger.round_identity(**{**parts, name: value}))
    self.assertLen(identities, 7)
    self.assertEqual(
        ledger.round_identity(**parts), ledger.round_identity(**parts)
    )

  @parameterized.named_parameters(
      ('round_num', dict(round_num=-1), 'round_num'),
      ('no_noise', dict(noise_multipliers=()), 'noise_multipliers'),
      ('nan', dict(noise_multipliers=(float('nan'),)), 'noise_multiplier'),
      ('configuration', dict(configuration=3), 'configuration'),
      ('identity', dict(identity='xyz'), 'identity'),
  )
  def test_bad_fields_are_named(self, change, message):
    good = dict(
        round_num=0,
        sampling=_SAMPLING,
        noise_multipliers=(1.0,),
        configuration='',
        identity='0' * 64,
    )
    ledger.Round(**good)
    with self.assertRaisesRegex(ValueError, message):
      ledger.Round(**{**good, **change})


if __name__ == '__main__':
  absltest.main()

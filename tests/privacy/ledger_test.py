"""Tests of tff_asr.privacy.ledger."""

import itertools
import json
import os
import pathlib
import resource
import shutil
import signal
from unittest import mock

from absl.testing import parameterized
import numpy as np

from tests import cases
from tests import fakes
from tff_asr.privacy import accounting
from tff_asr.privacy import keys
from tff_asr.privacy import ledger
from tff_asr.privacy import strategies

_round = fakes.charged_round
_BLT = strategies.Toeplitz(output_scale=(2**29,), buf_decay=(2**29,))
_SEPARATED = accounting.Sampling(
    kind='min_sep', cohort_size=3, population=12, min_sep=4
)


def _count(contents):
  return sum(group.count for group in contents.rounds)


class _LedgerTestCase(cases.TestCase):

  def setUp(self):
    super().setUp()
    self.path = self.path_of('ledger')

  def path_of(self, name):
    return os.path.join(self.root, f'{name}.jsonl')

  def write(self, rounds, path=None, key=0, **kwargs):
    """Writes rounds (3: 0 to 2) and returns the heads after each line."""
    if isinstance(rounds, int):
      rounds = [_round(round_num, key=key) for round_num in range(rounds)]
    with ledger.create(path or self.path, **kwargs) as opened:
      heads = [opened.head]
      for charged in rounds:
        self.assertTrue(opened.append(charged))
        heads.append(opened.head)
    return heads

  def lines(self, path=None):
    with open(path or self.path, 'rb') as file:
      return file.read().splitlines(keepends=True)

  def overwrite(self, lines, path=None):
    pathlib.Path(path or self.path).write_bytes(b''.join(lines))

  def check_refused(self, message, look):
    """`look` raises LedgerError in one line."""
    with self.assertRaisesRegex(ledger.LedgerError, message) as context:
      look()
    self.assertNotIn('\n', str(context.exception))


class FileTest(_LedgerTestCase):

  def test_file_is_as_documented_and_read_back(self):
    *_, head = self.write(
        [_round(i, noise_multiplier=z) for i, z in enumerate([1.0, 2.4, 1.0])],
        privacy_unit='device',
    )
    header, *lines = map(json.loads, self.lines())
    self.assertCountEqual(
        header,
        ['kind', 'format_version', 'run_id', 'privacy_unit', 'invalidations',
         'inherited', 'parents', 'previous', 'hash'],
    )
    self.assertEqual(
        [line['previous'] for line in lines],
        [line['hash'] for line in [header, *lines[:-1]]],
    )
    self.assertEqual(head, (3, lines[-1]['hash']))
    sampling = {'kind': 'poisson', 'cohort_size': 10, 'population': 1000}
    self.assertEqual(
        {n: v for n, v in lines[1].items() if n not in ('previous', 'hash')},
        {
            'kind': 'round', 'privacy_unit': 'device',
            'round_num': 1, 'configuration': '',
            'cost': {
                'sampling': sampling, 'noise_multiplier': 2.4, 'count': 1,
                'sampler_epsilon': 0.0,
            },
            'identity': _round(1).identity, 'result': '',
        },
    )
    # The hashes are those of the canonical JSON, computed again.
    self.assertEqual(
        fakes.sealed_ledger([header, *lines]), b''.join(self.lines())
    )
    contents = ledger.read(self.path, head=head)
    self.assertEqual(contents.privacy_unit, 'device')
    group = lambda noise, count: accounting.RoundGroup(
        sampling=accounting.Sampling(**sampling),
        noise_multiplier=noise,
        count=count,
    )
    self.assertEqual(contents.rounds, [group(1.0, 2), group(2.4, 1)])

  def test_groups_keep_what_differs_in_any_order(self):
    sampling = lambda cohort_size, population: accounting.Sampling(
        kind='poisson', cohort_size=cohort_size, population=population
    )
    kinds = [
        dict(),
        dict(noise_multiplier=2.0),
        dict(sampling=sampling(20, 1000)),
        dict(sampling=sampling(10, 500)),
        dict(sampler_epsilon=1e-9),
    ]
    found = []
    for number, order in enumerate([kinds, kinds[::-1]]):
      path = self.path_of(f'order_{number}')
      self.write(
          [_round(i, **kind) for i, kind in enumerate([*order, *order])], path
      )
      found.append(ledger.read(path).rounds)
    self.assertCountEqual(*found)
    self.assertLen(found[0], 5)
    self.assertEqual({group.count for group in found[0]}, {2})
    self.assertEqual(
        sum(group.count * group.sampler_epsilon for group in found[0]), 2e-9
    )

  def test_a_line_is_written_whole_in_any_parts(self):
    write = os.write
    for size in (1, 7, 10**6):
      path = self.path_of(f'in_parts_{size}')
      with mock.patch.object(
          os, 'write', lambda to, data, size=size: write(to, data[:size])
      ), ledger.create(path) as opened:
        opened.append(fakes.charged_round(0))
        opened.append(fakes.charged_round(1))
      self.assertEqual(ledger.read(path).rounds[0].count, 2)

  @parameterized.parameters(os.symlink, os.link)
  def test_no_line_is_written_through_a_link(self, link):
    with ledger.create(self.path) as opened:
      opened.append(fakes.charged_round(0))
      head = opened.head
    before = pathlib.Path(self.path).read_bytes()
    linked = self.path_of('linked')
    link(self.path, linked)
    with self.assertRaisesRegex(ValueError, 'linked.jsonl is a link or no regular'):
      ledger.resume(linked, head=head)
    self.assertEqual(pathlib.Path(self.path).read_bytes(), before)

  def test_append_returns_when_the_round_is_on_disk_or_charges_nothing(self):
    sizes = []
    synced = lambda descriptor: sizes.append(os.fstat(descriptor).st_size)
    with ledger.create(self.path) as opened:
      with mock.patch.object(os, 'write', side_effect=OSError('full')):
        with self.assertRaisesRegex(OSError, 'full'):
          opened.append(_round(0))
      self.assertEqual((opened.head.count, _count(opened.contents)), (0, 0))
      with mock.patch.object(os, 'fsync', synced):
        self.assertTrue(opened.append(_round(0)))
      self.assertEqual(sizes, [os.path.getsize(self.path)])
    self.assertEqual(_count(ledger.read(self.path)), 1)

  def test_another_file_is_left_alone(self):
    self.overwrite([b'my only copy'])
    self.check_refused(
        'not a privacy ledger', lambda: ledger.create(self.path)
    )
    self.assertEqual(self.lines(), [b'my only copy'])

  def test_a_copied_file_has_another_identity_and_a_renamed_one_the_same(self):
    run, renamed, copy = (
        pathlib.Path(self.root, name) for name in ('run', 'renamed', 'copy')
    )
    run.mkdir()
    (head,) = self.write(0, str(run / 'ledger.jsonl'))

    def identity_in(folder):
      path = str(folder / 'ledger.jsonl')
      with ledger.resume(path, head=head) as opened:
        return opened.file_identity

    identity = identity_in(run)
    run.rename(renamed)
    shutil.copytree(renamed, copy)
    self.assertEqual(identity_in(renamed), identity)
    self.assertNotEqual(identity_in(copy), identity)


class NoteTest(_LedgerTestCase):

  def test_notes_stand_between_rounds_and_are_chained(self):
    with ledger.create(self.path) as opened:
      opened.note('copied')
      opened.append(_round(0))
      opened.append(_round(1))
      opened.note('exact_metrics')
      # One of a kind is enough.
      opened.note('copied')
      opened.append(_round(2))
      head = opened.head
      self.assertEqual(head.count, 5)
      with self.assertRaisesRegex(ValueError, 'what must be one of'):
        opened.note('else')
    expected = (
        ledger.Note('copied', 0), ledger.Note('exact_metrics', 2)
    )
    contents = ledger.read(self.path, head=head)
    self.assertEqual((_count(contents), contents.notes), (3, expected))
    lines = self.lines()
    # Rounds cannot be freed of a note, nor exchanged with it.
    for changed in (
        lines[:1] + lines[2:],
        lines[:4] + lines[5:],
        lines[:3] + [lines[4], lines[3]] + lines[5:],
    ):
      self.overwrite(changed)
      self.check_refused('was changed', lambda: ledger.read(self.path))

  def test_rounds_left_by_a_crash_after_a_note_are_found(self):
    before, _ = self.write(1)
    with ledger.resume(self.path, head=before) as opened:
      opened.note('copied')
      self.assertEqual(opened.head, before)
      self.assertTrue(opened.holds(_round(0).identity))
      self.assertFalse(opened.append(_round(0)))
      self.assertTrue(opened.append(_round(1)))
      self.assertEqual(opened.head.count, 3)
    with ledger.resume(self.path, head=before) as opened:
      self.assertFalse(opened.append(_round(1)))
      self.assertEqual(opened.head.count, 3)

  def test_a_run_inherits_notes_and_counts_rounds_alone(self):
    parent = self.path_of('parent')
    with ledger.create(parent) as opened:
      opened.append(_round(0))
      opened.note('copied')
      head = opened.head
    with ledger.create(self.path, parents=[(parent, head)]) as opened:
      opened.append(_round(0, key=1))
      contents = opened.contents
    self.assertEqual(ledger.read(self.path), contents)
    self.assertEqual(contents.inherited, 1)
    self.assertEqual(contents.notes, (ledger.Note('copied', 1),))
    self.check_refused(
        'already charges 1 rounds',
        lambda: ledger.create(self.path, parents=[(parent, head)]),
    )
    # A note alone is not worth keeping.
    with ledger.create(self.path_of('other')) as opened:
      opened.note('copied')
    with ledger.create(self.path_of('other')) as opened:
      self.assertEmpty(opened.contents.notes)


class CrashTest(_LedgerTestCase):
  """The ledger is ahead of the saved program state."""

  def test_identical_rounds_are_not_charged_twice(self):
    heads = self.write(5)
    before = self.lines()
    head = ledger.Head(np.int64(3), np.str_(heads[3].digest))
    with ledger.resume(self.path, head=head) as opened:
      self.assertEqual(opened.head, heads[3])
      for number in (3, 4):
        self.assertTrue(opened.holds(_round(number).identity))
        self.assertFalse(opened.append(_round(number)))
        self.assertFalse(opened.holds(_round(number).identity))
        self.assertEqual(opened.head, heads[number + 1])
      self.assertFalse(opened.holds(_round(5).identity))
      self.assertEqual(self.lines(), before)
      self.assertTrue(opened.append(_round(5)))
    self.assertEqual(_count(ledger.read(self.path)), 6)

  @parameterized.parameters(dict(configuration='other'), dict(key=1))
  def test_different_round_is_charged_in_addition(self, **change):
    heads = self.write(5)
    for expected in (True, False):  # the state is never saved in between
      with ledger.resume(self.path, head=heads[3]) as opened:
        self.assertEqual(opened.append(_round(3, **change)), expected)
        self.assertEqual(opened.head.count, 6)
    with ledger.resume(self.path, head=heads[3]) as opened:
      opened.append(_round(3, **change))
      # What was passed over is no longer ahead: a repetition is charged, as is
      # one that the saved state holds.
      self.assertTrue(opened.append(_round(4)))
      self.assertTrue(opened.append(_round(1)))
    self.assertEqual(_count(ledger.read(self.path)), 8)

  def test_the_same_round_with_other_contents_is_refused(self):
    before, _ = self.write(1)
    with ledger.resume(self.path, head=before) as opened:
      grown = accounting.Sampling(
          kind='poisson', cohort_size=10, population=1001
      )
      for change in (
          dict(result='b' * 64),
          dict(noise_multiplier=0.5),
          dict(sampling=grown),
      ):
        with self.assertRaisesRegex(ledger.NoiseReuseError, 'new noise key'):
          opened.append(_round(0, **change))
      self.assertEqual(_count(opened.contents), 1)
      # With a new key it is charged.
      self.assertTrue(opened.append(_round(0, result='b' * 64, key=1)))
      self.assertEqual(_count(opened.contents), 2)

  def test_torn_line_is_cut_off(self):
    heads = self.write(3)
    lines = self.lines()
    for kept in range(len(lines[3])):  # all but the newline, and less
      self.overwrite(lines[:3] + [lines[3][:kept]])
      with ledger.resume(self.path, head=heads[2]) as opened:
        self.assertEqual(_count(opened.contents), 2)
        self.assertTrue(opened.append(_round(2)))
      self.assertEqual(self.lines(), lines)


class ParentTest(_LedgerTestCase):
  """A run that starts from another run's model continues its ledger."""

  def run_of(self, name, *parents, num_rounds, **kwargs):
    """The ledger of a run, as a parent for the next one."""
    path = self.path_of(name)
    key = 1 + len(os.listdir(self.root))
    return path, self.write(
        num_rounds, path, key, parents=parents, **kwargs
    )[-1]

  def counts(self, parent):
    path, head = parent
    contents = ledger.read(path, head=head)
    return {
        each.privacy_unit: _count(each)
        for each in (contents, *contents.other_units)
    }

  def test_a_chain_of_runs_adds_up_rounds_and_invalidations(self):
    first = self.run_of('first', num_rounds=3, invalidations=['a key'])
    second = self.run_of(
        'second', first, num_rounds=1,
        invalidations=['a dev set', 'a key'],
    )
    third = self.run_of('third', second, num_rounds=2)
    contents = ledger.read(third[0], head=third[1])
    self.assertEqual((_count(contents), contents.inherited), (6, 4))
    self.assertEqual(contents.invalidations, ('a key', 'a dev set'))
    inherited = ledger.read_inherited([third], privacy_unit='speaker')
    self.assertEqual(inherited.charges.rounds, contents.rounds)
    nothing = ledger.read_inherited([], privacy_unit='speaker')
    self.assertEmpty(nothing.charges.rounds)

  def test_several_ledgers_of_parents_are_one_account(self):
    first = self.run_of('first', num_rounds=2, privacy_unit='example')
    second = self.run_of(
        'second', first, num_rounds=1, privacy_unit='speaker'
    )
    other = self.run_of('other', first, num_rounds=3, privacy_unit='speaker')
    void = self.run_of(
        'void', first, num_rounds=0, invalidations=['a'],
        privacy_unit='example',
    )
    for number, parents in enumerate(itertools.permutations(
        [first, second, other, void]
    )):
      both = self.run_of(
          f'both_{number}', *parents, num_rounds=0, privacy_unit='speaker'
      )
      # What is in several ledgers counts once: 2 examples, and 1 + 3 speakers.
      self.assertEqual(self.counts(both), {'speaker': 4, 'example': 2})
      (examples,) = ledger.read(both[0]).other_units
      self.assertEqual(examples.invalidations, ('a',))

  def extend(self, run, num_rounds, *, key, note=None, **kind):
    """Charges more to a run that has ended; returns it with its new head."""
    path, head = run
    with ledger.resume(path, head=head) as opened:
      if note:
        opened.note(note)
      for round_num in range(num_rounds):
        opened.append(_round(round_num, key=key, **kind))
      return path, opened.head

  def test_what_a_parent_charges_later_counts_in_its_children(self):
    grand = self.run_of('grand', num_rounds=2)
    parent = self.run_of('parent', grand, num_rounds=3)
    child = self.run_of('child', parent, num_rounds=4)
    before = ledger.read(child[0])
    self.assertEqual(
        (_count(before), before.inherited, before.later), (9, 5, 0)
    )
    # An evaluation of the parent, and its first run is prolonged.
    self.extend(parent, 1, key=20, noise_multiplier=7.0)
    self.extend(grand, 5, key=21, note='length_changed')
    for path, inherited, later in (
        (grand[0], 0, 0), (parent[0], 7, 5), (child[0], 11, 6)
    ):
      found = ledger.read(path)
      self.assertEqual((found.inherited, found.later), (inherited, later))
      self.assertEqual(
          [each.what for each in found.notes], ['length_changed']
      )
      self.assertEmpty(found.unread)
    self.assertEqual(_count(found), 15)
    self.assertIn(7.0, [group.noise_multiplier for group in found.rounds])
    # Whoever continues the child counts them, too, and writes them nowhere.
    lines = self.lines(child[0])
    with ledger.resume(*child[:1], head=child[1]) as opened:
      self.assertEqual(opened.contents, found)
      self.assertEqual(opened.charges.rounds, found.rounds)
      self.assertEqual(opened.head, child[1])
    self.assertEqual(self.lines(child[0]), lines)
    # A run that starts now inherits them, and no ledger is asked twice.
    last = self.run_of('last', child, grand, num_rounds=1)
    found = ledger.read(last[0])
    self.assertEqual(
        (_count(found), found.inherited, found.later), (16, 15, 0)
    )

  def test_correlated_rounds_of_a_prolonged_parent_continue_its_sequence(self):
    kind = dict(sampling=_SEPARATED, strategy=_BLT)
    with ledger.create(self.path_of('parent')) as opened:
      for number in range(3):
        opened.append(_round(number, key=1, **kind))
      parent = self.path_of('parent'), opened.head
    self.write(
        [_round(i, key=2, **kind) for i in range(2)], parents=[parent]
    )
    with ledger.resume(parent[0], head=parent[1]) as opened:
      for number in (3, 4):
        opened.append(_round(number, key=1, **kind))
    self.assertEqual(
        [group.count for group in ledger.read(self.path).rounds], [5, 2]
    )

  def test_a_ledger_of_a_parent_that_is_gone_is_named(self):
    parent = self.run_of('parent', self.run_of('grand', num_rounds=1),
                         num_rounds=2)
    self.write(1, parents=[parent], key=9)
    grand = self.path_of('grand')
    for damage in (
        lambda: self.overwrite([b'{}\n'], parent[0]),
        lambda: self.overwrite([], parent[0]),
        # Another run took its folder.
        lambda: self.write(1, parent[0], key=30),
        lambda: None,
    ):
      if os.path.exists(parent[0]):
        os.remove(parent[0])
      damage()
      contents = ledger.read(self.path)
      self.assertEqual((_count(contents), contents.unread), (4, (parent[0],)))
    # Those before it are still asked.
    self.extend((grand, ledger.Head(1, ledger._read(grand).head(1).digest)), 1,
                key=31)
    self.assertEqual(ledger.read(self.path).later, 1)
    # Ledgers of older versions do not say where their parents are.
    header, *lines = map(json.loads, self.lines())
    del header['parents']
    self.overwrite([fakes.sealed_ledger([header, *lines])])
    (unread,) = ledger.read(self.path).unread
    self.assertIn('does not name', unread)

  @parameterized.product(
      unit=('speaker', 'example', None),
      invalidations=([], ['a fixed key']),
      population=(500, 5000),
      note=(None, 'copied'),
      is_later=(False, True),
  )
  def test_nothing_of_a_parent_is_missing_in_a_child(
      self, unit, invalidations, population, note, is_later
  ):
    grown = dict(sampling=accounting.Sampling(
        kind='poisson', cohort_size=10, population=population
    ))
    parent = self.run_of(
        'parent', num_rounds=1, invalidations=invalidations,
        privacy_unit='speaker',
    )
    extend = lambda: self.extend(parent, 2, key=40, note=note, **grown)
    if not is_later:
      parent = extend()
    middle = self.run_of('middle', parent, num_rounds=0, privacy_unit=unit)
    child = self.run_of('child', middle, num_rounds=1, privacy_unit='speaker')
    if is_later:
      extend()
    found = ledger.read(child[0])
    self.assertEqual((_count(found), found.inherited), (4, 3))
    self.assertEqual(found.invalidations, tuple(invalidations))
    self.assertEqual(
        {group.sampling.population: group.count for group in found.rounds},
        {1000: 2, population: 2},
    )
    self.assertEqual(
        [each.what for each in found.notes], [note] if note else []
    )

  def test_a_chain_of_runs_charges_each_privacy_unit_separately(self):
    runs = []
    for number, (num_rounds, unit, inherited, counts) in enumerate((
        (0, 'device', 0, {'device': 0}),
        # A unit without rounds is not reported.
        (3, 'example', 0, {'example': 3}),
        (2, 'speaker', 0, {'speaker': 2, 'example': 3}),
        (0, None, 2, {'speaker': 2, 'example': 3}),
        (4, 'example', 3, {'example': 7, 'speaker': 2}),
        (1, 'device', 0, {'device': 1, 'example': 7, 'speaker': 2}),
    )):
      run = self.run_of(
          str(number), *runs, num_rounds=num_rounds, privacy_unit=unit
      )
      runs = [run]
      self.assertEqual(self.counts(run), counts)
      self.assertEqual(ledger.read(run[0]).inherited, inherited)
    for unit, count in counts.items():
      (group,) = ledger.read_inherited(
          runs, privacy_unit=unit
      ).charges.rounds
      self.assertEqual(group.count, count)

  def test_a_changed_or_missing_ledger_of_a_parent_is_refused(self):
    path, head = self.run_of('run', num_rounds=2)
    create = lambda: ledger.create(self.path, parents=[(path, head)])
    self.overwrite(self.lines(path)[:-1], path)
    self.check_refused('was shortened', create)
    os.remove(path)
    self.check_refused('is missing', create)
    self.assertFalse(os.path.exists(self.path))

  def test_only_a_ledger_without_rounds_of_its_own_is_replaced(self):
    for parents in ([], [self.run_of('parent', num_rounds=2)]):
      first = self.write(0, parents=parents)
      self.assertNotEqual(first, self.write(0, parents=parents))
      self.write(1, key=7, parents=parents)
      lines = self.lines()
      self.check_refused(
          'already charges 1 rounds',
          lambda parents=parents: ledger.create(self.path, parents=parents),
      )
      self.assertEqual(self.lines(), lines)
      os.remove(self.path)

  def test_a_ledger_killed_at_any_byte_of_its_start_starts_over(self):
    parent = self.run_of('parent', num_rounds=2)
    self.write(0, parents=[parent])
    ends = np.cumsum([0, *map(len, self.lines())])
    for size in (*ends[:-1], *(ends[1:] - 1)):
      for has_older in (True, False):
        if not has_older:
          os.remove(self.path)
        self.kill_at(
            int(size), lambda: ledger.create(self.path, parents=[parent])
        )
        if has_older:
          self.assertEqual(_count(ledger.read(self.path)), 2)
        with ledger.create(self.path, parents=[parent]) as opened:
          self.assertEqual(_count(opened.contents), 2)

  def kill_at(self, size, work):
    """Does the work in a process that is killed at `size` bytes of a file."""
    process_id = os.fork()
    if not process_id:
      try:
        signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))
        work()
      finally:
        os._exit(0)
    _, status = os.waitpid(process_id, 0)
    self.assertTrue(os.WIFSIGNALED(status), size)


class ChargesTest(_LedgerTestCase):

  @parameterized.parameters(
      *((range(number), [number]) for number in (1, 4, 5)),
      # 0 1 2, then 1 again: other noise from 1 on. Both are charged, each with
      # its own and its shared rounds.
      ([0, 1, 2, 1], [3, 2]),
      ([0, 1, 2, 1, 2, 3, 4], [3, 5]),
      ([0, 1, 2, 3, 4, 4], [5, 5]),
      # Another run, or lost secrets.
      ([0, 1, 2, 3, 0, 1], [4, 2]),
      ([0, 0], [1, 1]),
      ([0, 1, 3], [2, 4]),
  )
  def test_correlated_rounds_cost_by_sequence(self, round_nums, expected):
    kind = dict(sampling=_SEPARATED, strategy=_BLT)
    charges = ledger.Charges()
    planned = charges.after(round_nums, _round(**kind).cost)
    self.assertEmpty(charges.rounds)
    self.write([
        _round(round_num, key=key, **kind)
        for key, round_num in enumerate(round_nums)
    ])
    for rounds in (planned, ledger.read(self.path).rounds):
      self.assertEqual([group.count for group in rounds], expected)
      self.assertEqual({group.strategy for group in rounds}, {_BLT})
      self.assertEqual({group.sampling for group in rounds}, {_SEPARATED})

  @parameterized.parameters(
      (_SEPARATED, [2, 1]),
      (
          accounting.Sampling(kind='fixed_size', cohort_size=3, population=12),
          [3],
      ),
  )
  def test_rounds_of_secure_sums_are_read_as_they_were(self, sampling, counts):
    secure_sum = accounting.SecureSumParams(
        bits=16, num_clients=3, min_clients=2
    )
    kind = dict(sampling=sampling, secure_sum=secure_sum)
    planned = ledger.Charges().after([0, 1, 0], _round(**kind).cost)
    self.write([
        _round(round_num, key=key, **kind)
        for key, round_num in enumerate([0, 1, 0])
    ])
    for rounds in (planned, ledger.read(self.path).rounds):
      self.assertEqual([group.count for group in rounds], counts)
      self.assertEqual({group.secure_sum for group in rounds}, {secure_sum})

  def test_a_round_beyond_what_is_charged_for_is_refused(self):
    with self.assertRaisesRegex(ValueError, 'at most 16,384 rounds'):
      _round(2**14, sampling=_SEPARATED, strategy=_BLT)

  def test_a_sequence_ends_where_other_rounds_come_between(self):
    others = (
        dict(sampling=_SEPARATED, strategy=strategies.Toeplitz(
            output_scale=(2**29,), buf_decay=(2**28,)
        )),
        dict(sampling=accounting.Sampling(
            kind='full', cohort_size=4, population=4
        )),
    )
    # Whichever number the other round has, also the one that is due next.
    for other, number in itertools.product(others, (0, 1, 2, 3, 7)):
      charges = ledger.Charges()
      own = dict(sampling=_SEPARATED, strategy=_BLT)
      for round_num, kind in ((0, own), (1, own), (number, other), (2, own)):
        charges.add(_round(**kind).cost, round_num=round_num)
      self.assertEqual(
          [each.count for each in charges.rounds if each.strategy == _BLT],
          [2, 3],
      )


class TamperingTest(_LedgerTestCase):

  def setUp(self):
    super().setUp()
    self.heads = self.write(3)

  def resume(self):
    return ledger.resume(self.path, head=self.heads[-1])

  def test_a_missing_file_is_refused(self):
    os.remove(self.path)
    self.check_refused('missing.*3 entries', self.resume)

  def test_every_changed_byte_is_refused(self):
    good = b''.join(self.lines())
    for position, change in itertools.product(range(len(good)), (0x01, 0x20)):
      bad = bytearray(good)
      bad[position] ^= change
      self.overwrite([bad])
      with self.assertRaises(ledger.LedgerError, msg=position):
        self.resume()

  def test_every_removed_repeated_or_exchanged_line_is_refused(self):
    lines = self.lines()
    for i in range(4):
      for changed in (
          lines[:i] + lines[i + 1 :],
          lines[:i],
          lines[: i + 1] + lines[i:],
          lines[:i] + [lines[i - 1]] + lines[i + 1 :],
          lines[:i] + [b'\n'] + lines[i:],
          lines[:i] + [lines[i].replace(b', ', b',  ')] + lines[i + 1 :],
          lines[:i] + [b'\xff[[[\n'] + lines[i + 1 :],
          lines[:i] + [b'[' * 100_000 + b'\n'] + lines[i + 1 :],
      ):
        self.overwrite(changed)
        self.check_refused(self.path, self.resume)
    self.overwrite([lines[0], lines[2], lines[1], lines[3]])
    self.check_refused('line 2 does not follow', self.resume)
    self.overwrite([*lines[:3], lines[3][:-1]])
    self.check_refused('was shortened', self.resume)

  @parameterized.named_parameters(
      # A whole chain, except for the head.
      *(
          (f'rewritten_{number}', number, dict(round_num=7), 'were rewritten')
          for number in (1, 2, 3)
      ),
      ('run', 0, dict(run_id='another'), 'another run'),
      ('version', 0, dict(format_version=1), 'format version 1'),
      ('kind', 0, dict(kind='note'), 'no header'),
      ('note', 2, dict(kind='note', what='else'), 'what must be one of'),
      ('sampling', 2, dict(cost={'sampling': {}}), 'not well formed'),
      ('extra', 2, dict(cost={'extra': 5}), 'not well formed'),
  )
  def test_well_chained_but_changed_is_refused(self, number, change, message):
    lines = [json.loads(line) for line in self.lines()]
    lines[number] |= change
    self.overwrite([fakes.sealed_ledger(lines)])
    self.check_refused(message, self.resume)


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
        # One bit at the start and at the end of each key.
        noise_key=[parts['noise_key'] ^ [1, *[0] * 7],
                   parts['noise_key'] ^ [*[0] * 7, 1 << 30]],
        noise_counter=[9, 3],
        sampler_key=[parts['sampler_key'] ^ [1, *[0] * 7],
                     parts['sampler_key'] ^ [*[0] * 7, 1 << 30],
                     parts['noise_key']],
        round_num=[9, 1],
        configuration=['9', 'cs'],
        state_digest=['9', ''],
    )
    identities = [ledger.round_identity(**parts)]
    for name, values in changes.items():
      for value in values:
        value = np.asarray(value, np.int32) if 'key' in name else value
        identities.append(ledger.round_identity(**{**parts, name: value}))
    self.assertLen(set(identities), len(identities))
    # As ledgers on disk have it.
    self.assertEqual(
        identities[0],
        '35df9f46747508dbb0ec07f731ed6c6d'
        '05bb4492985513af802f9e1bbefbb9da',
    )

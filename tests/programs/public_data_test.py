"""Tests of tff_asr.programs.public_data; see also federated_test."""

import json
import os
import pathlib
import shutil

from absl.testing import parameterized

from tests import cases
from tests import fakes
from tff_asr.data import client_data as client_data_lib
from tff_asr.privacy import ledger as ledger_lib
from tff_asr.programs import public_data
from tff_asr.storage import run_dir

_PRIVATE = {'ann': 2, 'bob': 1, 'cai': 3}


class _TestCase(cases.TestCase):

  def setUp(self):
    super().setUp()
    self.private = self.data('private', _PRIVATE)

  def data(self, name, num_utterances, *, namespace='here', **settings):
    """A corpus of fake speakers."""
    spoken = [
        example
        for client_id, count in num_utterances.items()
        for example in fakes.examples(client_id, count)
    ]
    return client_data_lib.load(
        fakes.write_examples(
            self.path(name), spoken, namespace=namespace, **settings
        )
    )

  def check(self, data, *, init_from_run=None, scores_run=None, **settings):
    """Checks a run; by default it trains without a guarantee."""
    runs = {
        'the seed model (INIT_FROM_RUN)': init_from_run,
        'the layer scores (SCORES_RUN)': scores_run,
    }
    settings = dict(
        dev_data=None,
        selects_on_dev=False,
        parent_runs={label: run for label, run in runs.items() if run},
        is_protected=False,
        on_shared_data='refuse',
    ) | settings
    return public_data.check_overlap(train_data=data, **settings)

  def run_of(self, name, data, **settings):
    """The folder of a run that was trained on these data."""
    folder = self.path(name)
    os.makedirs(folder, exist_ok=True)
    public_data.write(folder, self.check(data, **settings).sources)
    return folder


class PublicDataTest(_TestCase):

  def assert_refused(self, reason, *args, **settings):
    """A run is refused in one line, or trains and gives the reason."""
    with self.assertRaises(ValueError) as context:
      self.check(*args, **settings)
    message = str(context.exception)
    self.assertStartsWith(message, f'{reason}: take data without them')
    self.assertNotIn('\n', message)
    for name in ('ann', 'bob', 'cai', self.root):
      self.assertNotIn(name, message)
    found = self.check(*args, on_shared_data='not_private', **settings)
    self.assertEqual(found.invalidations, (reason,))
    self.assertEqual(found.words, f'but {reason}')

  def test_a_seed_of_private_speakers_is_refused(self):
    # Other recordings of 'bob', too.
    seed = self.run_of('seed', self.data('seed_data', {'bob': 3, 'dee': 2}))
    self.assert_refused(
        'the seed model (INIT_FROM_RUN) has 1 of the 3 private speakers',
        self.private,
        is_protected=True,
        init_from_run=seed,
    )
    # Also through a run that starts from it and trains on other data.
    second = self.run_of(
        'second', self.data('more', {'eve': 1}), init_from_run=seed
    )
    with self.assertRaisesRegex(ValueError, 'has 1 of the 3 private speakers'):
      self.check(self.private, is_protected=True, init_from_run=second)

  def test_equal_ids_in_other_namespaces_are_other_speakers(self):
    data = self.data('seed_data', {'bob': 2}, namespace='elsewhere')
    found = self.check(
        self.private, is_protected=True, init_from_run=self.run_of('seed', data)
    )
    self.assertEqual((found.invalidations, found.unchecked), ((), ()))
    self.assertIn('no private speaker', found.words)

  def test_a_private_run_protects_its_speakers_and_exposes_none(self):
    first = self.run_of('first', self.private, is_protected=True)
    (source,) = public_data.read(first)
    self.assertTrue(source.is_private)
    self.assertEqual(source.folder, self.path('private'))
    # Again, on the same speakers: their rounds are added up by the ledger.
    self.check(self.private, is_protected=True, init_from_run=first)
    # But their data must not be shown, nor trained on without noise.
    other = self.data('other', {'dee': 1})
    speakers = 'private speakers of the seed model (INIT_FROM_RUN)'
    for settings in (dict(is_protected=True), dict()):
      self.assert_refused(
          f'the dev set has 1 of the 3 {speakers}',
          other,
          dev_data=self.data('dev', {'bob': 1}),
          init_from_run=first,
          **settings,
      )
    self.assert_refused(
        f'the training data has 1 of the 3 {speakers}',
        self.data('again', {'ann': 2, 'dee': 1}),
        init_from_run=first,
    )

  def test_without_a_guarantee_training_exposes(self):
    seed = self.run_of('seed', self.data('part', {'cai': 3}))
    self.assert_refused(
        'the seed model (INIT_FROM_RUN) has 1 of the 3 private speakers',
        self.private,
        is_protected=True,
        init_from_run=seed,
    )

  def test_a_dev_set_is_exposed_where_it_chooses_the_weights(self):
    arguments = dict(data=self.data('x', {'dee': 1}), dev_data=self.private)
    last = self.run_of('last', **arguments)
    best = self.run_of('best', selects_on_dev=True, **arguments)
    self.check(self.private, is_protected=True, init_from_run=last)
    with self.assertRaisesRegex(ValueError, 'has 3 of the 3 private speakers'):
      self.check(self.private, is_protected=True, init_from_run=best)

  def test_scores_of_private_data_are_refused(self):
    scores = self.run_of('scores', self.data('part', {'ann': 1, 'dee': 1}))
    seed = self.run_of('seed', self.data('other', {'eve': 1}))
    self.assert_refused(
        'the layer scores (SCORES_RUN) has 1 of the 3 private speakers',
        self.private,
        is_protected=True,
        init_from_run=seed,
        scores_run=scores,
    )
    # They count as one of the sources of the model that they shaped.
    shaped = self.run_of(
        'shaped',
        self.data('y', {'fay': 1}),
        is_protected=True,
        scores_run=scores,
    )
    with self.assertRaisesRegex(ValueError, 'INIT_FROM_RUN.* has 1 of the 3'):
      self.check(self.private, is_protected=True, init_from_run=shaped)

  def test_data_that_cannot_be_compared_are_reported(self):
    # No file; a corpus that is gone; one that has other clients by now; data in
    # memory.
    nothing = self.path('nothing')
    os.makedirs(nothing)
    gone = self.run_of('gone', self.data('gone_data', {'dee': 1}))
    shutil.rmtree(self.path('gone_data'))
    other = self.run_of('other', self.data('other_data', {'dee': 1}))
    self.data('other_data', {'eve': 1}, overwrite=True)
    for seed in (nothing, gone, other):
      found = self.check(
          self.private,
          is_protected=True,
          init_from_run=seed,
          dev_data=fakes.client_data(_PRIVATE),
      )
      self.assertEqual(
          found.words,
          'taken to be so; the ids of their speakers could not be compared: '
          'the dev set, the seed model (INIT_FROM_RUN)',
      )
    # A model that starts from such a run is not known completely either.
    second = self.run_of(
        'second', self.data('x', {'fay': 1}), init_from_run=nothing
    )
    found = self.check(self.private, is_protected=True, init_from_run=second)
    self.assertEqual(found.unchecked, ('the seed model (INIT_FROM_RUN)',))
    # Where nothing was promised, nothing is missed.
    self.assertEmpty(self.check(self.private, init_from_run=nothing).unchecked)

  def test_only_the_owner_reads_the_file_and_its_size_is_fixed(self):
    run = self.run_of('run', self.private, is_protected=True)
    path = os.path.join(run, public_data.FILE)
    self.assertEqual(os.stat(path).st_mode & 0o777, 0o600)
    size = os.path.getsize(path)
    # A run that is resumed adds what is new.
    public_data.write(run, self.check(self.private, is_protected=True).sources)
    self.assertEqual(os.path.getsize(path), size)
    self.data('private', _PRIVATE | {'longername': 5}, overwrite=True)
    more = client_data_lib.load(self.path('private'))
    public_data.write(run, self.check(more, is_protected=True).sources)
    self.assertLen(public_data.read(run), 2)
    os.remove(path)
    public_data.write(run, self.check(more, is_protected=True).sources)
    self.assertEqual(os.path.getsize(path), size)

  @parameterized.parameters('{', '[1]', '{"a": 1}', '[{"is_private": true}]')
  def test_a_damaged_file_is_named(self, text):
    seed = self.run_of('seed', self.private)
    path = os.path.join(seed, public_data.FILE)
    pathlib.Path(path).write_text(text)
    with self.assertRaisesRegex(ValueError, f'^{path} is damaged .*put it'):
      self.check(self.private, is_protected=True, init_from_run=seed)

  def test_dev_speakers_are_counted_without_a_guarantee(self):
    dev = self.data('dev', {'ann': 3, 'dee': 1})
    with self.assertLogs('absl', level='WARNING') as logs:
      self.check(self.private, dev_data=dev)
    self.assertIn('1 of the 2 dev speakers are also trained on', logs.output[0])
    with self.assertNoLogs('absl', level='WARNING'):
      self.check(self.private, dev_data=self.data('fine', {'dee': 1}))

  def test_private_speakers_in_an_evaluation_are_counted(self):
    run = self.run_of('run', self.private, is_protected=True)
    test = self.data('test', {'ann': 1, 'cai': 3, 'dee': 1})
    found = public_data.count_overlap(run, test)
    self.assertEqual(found, (2, True))
    self.assertStartsWith(
        found.words, 'NOT PRIVATE: 2 of these speakers are private'
    )
    found = public_data.count_overlap(run, self.data('other', {'dee': 1}))
    self.assertEqual((found, found.words), ((0, True), ''))
    # A central run promises no privacy.
    central = self.run_of('central', self.private)
    self.assertEqual(public_data.count_overlap(central, test), (0, True))
    os.remove(os.path.join(run, public_data.FILE))
    with ledger_lib.create(os.path.join(run, run_dir.LEDGER)):
      pass
    found = public_data.count_overlap(run, test)
    self.assertEqual(found, (0, False))
    self.assertIn('could not be checked', found.words)

# What is refused (docs/privacy.md, "What is public"): by what a run has done
# with people, the commands that may not have them.
_PROTECTED = ('trained privately', 'evaluated', 'counted')
_MADE_MODEL = ('trained', 'selected')
_SHOWN = ('dev', 'tuning', 'test')
_REFUSED = {
    **dict.fromkeys(_PROTECTED, ('trained', 'selected', 'dev', 'tuning')),
    **dict.fromkeys(
        _MADE_MODEL, ('trained privately', 'evaluated', 'counted')
    ),
    # The model does not depend on them, and so its children do not either.
    **dict.fromkeys(_SHOWN, ('evaluated', 'counted')),
}


class RolesTest(_TestCase):

  def use(self, run, data, role):
    """Uses people in a run's child, or in a command with its model."""
    other = self.data('child_data', {'eve': 1}, overwrite=True)
    settings = dict(init_from_run=run)
    if role == 'trained privately':
      return self.check(data, is_protected=True, **settings)
    if role == 'trained':
      return self.check(data, **settings)
    if role in ('dev', 'selected'):
      return self.check(
          other, dev_data=data, selects_on_dev=role == 'selected',
          is_protected=True, **settings,
      )
    return public_data.add(run, data, role=role)

  def folder_of(self, role):
    """A run that has done something with three people."""
    run = self.path('run')
    os.makedirs(run)
    public_data.write(run, [public_data.source(
        self.private,
        is_private=role in _PROTECTED,
        role=role.split()[0],
    )])
    return run

  @parameterized.product(before=[*_REFUSED], command=[*_REFUSED])
  def test_commands_keep_to_the_table(self, before, command):
    run = self.folder_of(before)
    listed = public_data.read(run)
    data = self.data('others', {'bob': 2, 'dee': 1})
    if command in _REFUSED[before]:
      with self.assertRaisesRegex(ValueError, '1 (of the 3|of the 2|speakers)'):
        self.use(run, data, command)
      self.assertEqual(public_data.read(run), listed)
      # Others are welcome.
      data = self.data('strangers', {'dee': 1})
    found = self.use(run, data, command)
    sources = getattr(found, 'sources', public_data.read(run))
    own = public_data.source(
        data, is_private=command in _PROTECTED, role=command.split()[0]
    )
    self.assertIn(own, sources)
    # A run's list keeps all; a child inherits what its model depends on.
    self.assertEqual(
        listed[0] in sources, not hasattr(found, 'sources')
        or before not in _SHOWN
    )
    if command == 'test':
      self.assertEqual(
          found.words.startswith('NOT PRIVATE: 1 of these speakers'),
          before in _PROTECTED,
      )

  def test_an_evaluated_person_is_refused_as_dev_and_a_dev_one_is_not_evaluated(
      self,
  ):
    # In the order in which they once were accepted.
    dev = self.data('dev', {'dee': 1, 'eve': 1})
    run = self.run_of('run', self.private, is_protected=True, dev_data=dev)
    with self.assertRaisesRegex(
        ValueError, r'2 of the 2 people are public in .*run \(dev\)'
    ):
      public_data.add(run, dev, role='evaluated')
    # So the same dev set still serves a run from it, and LM tuning.
    self.check(
        self.private, is_protected=True, dev_data=dev, init_from_run=run
    )
    public_data.add(run, dev, role='tuning')

  def test_an_unknown_list_stays_unknown(self):
    run = self.path('unknown')
    os.makedirs(run)
    with ledger_lib.create(os.path.join(run, run_dir.LEDGER)):
      pass
    data = self.data('test', {'ann': 1})
    for _ in range(2):
      self.assertFalse(public_data.add(run, data, role='test').is_checked)
    with self.assertLogs('absl', level='WARNING') as logs:
      public_data.add(run, self.data('x', {'fay': 1}), role='evaluated')
    self.assertIn('could not be compared', logs.output[0])

  def test_a_list_of_an_older_version_has_no_dev_set(self):
    run = self.folder_of('trained privately')
    path = pathlib.Path(run, public_data.FILE)
    (entry,) = json.loads(path.read_text())
    del entry['role']
    for was_evaluated in (False, True):
      path.write_text(json.dumps([entry | {'is_evaluated': was_evaluated}]))
      self.assertEqual(
          public_data.is_trained_on(run, self.private), not was_evaluated
      )
      with self.assertLogs('absl', level='WARNING'):
        public_data.check(run, self.data(
            'x', {'fay': 1}, overwrite=True
        ), role='evaluated')
      with self.assertRaisesRegex(ValueError, 'private in'):
        public_data.check(run, self.private, role='tuning')

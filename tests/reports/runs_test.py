"""Tests of tff_asr.reports.runs."""

import asyncio
import json
import os
import pathlib

from absl.testing import parameterized

from tests import cases
from tests.reports import run_folders
from tff_asr.reports import runs
from tff_asr.storage import metrics_file


class RunsTest(cases.TestCase):

  def write(self, name: str, **content) -> str:
    return run_folders.write(self.path(name), **content)

  def release(self, folder: str, metrics: dict[str, float], *keys: int) -> str:
    """Writes metrics to a new file of TensorBoard; returns its folder."""
    folder = os.path.join(folder, 'tensorboard')
    manager = metrics_file.TensorBoardFile(folder, with_times=True)
    for key in keys:
      asyncio.run(manager.release(metrics, key=key))
    return folder

  def test_a_run_is_read_from_its_folder(self):
    folder = self.write(
        'run',
        settings={'NUM_ROUNDS': '3', 'RUNS': "\\\n    ['a',\n     'b']"},
        metrics={
            'not_private/train_loss': {1: 4.0, 2: 3.0}, 'dev_loss': {2: 5}
        },
        privacy=run_folders.privacy(epsilon=12.5),
        errors={'bob': (0, 4), 'ann': (1, 4)},
    )
    (run,) = runs.read([folder])
    self.assertEqual((run.name, run.unit, run.num_done), ('run', 'round', 2))
    self.assertEqual(run.settings['RUNS'], "\\\n    ['a',\n     'b']")
    self.assertEqual(run.metric('train_loss'), {1: 4.0, 2: 3.0})
    self.assertEqual(run.last('train_loss'), 3.0)
    self.assertEqual(run.metric('dev_loss'), {2: 5.0})
    self.assertEqual(run.epsilon, 12.5)
    self.assertEqual(run.rounds['cohort_size'], 10)
    self.assertIn('NOT PRIVATE', run.privacy_report)
    self.assertEqual(
        list(run.speakers.items()),
        [('ann', (1, 0, 0, 4)), ('bob', (0, 0, 0, 4))],
    )
    self.assertEqual(run.test_errors.rate, 0.125)
    # Four characters a word.
    self.assertEqual(run.scores[runs.CER]['ann'], (1, 0, 0, 16))
    self.assertNotIn(runs.WER_WITH_LM, run.scores)

  def test_data_of_a_central_run_without_a_ledger_are_public(self):
    folder = self.write('seed', **run_folders.SEED)
    (seed,) = runs.read([folder])
    self.assertTrue(seed.is_public)
    # A private run in progress: its report is still to be written.
    pathlib.Path(folder, 'ledger.jsonl').write_text('')
    (private,) = runs.read([folder])
    self.assertFalse(private.is_public)
    (federated,) = runs.read(
        [self.write('federated', settings={'NUM_ROUNDS': '3'})]
    )
    self.assertFalse(federated.is_public)

  def test_rounds_are_of_training(self):
    privacy = run_folders.privacy(cohort_size=10)
    evaluations = run_folders.privacy(cohort_size=7, rounds=2)['groups']
    (run,) = runs.read([self.write('run', privacy=privacy | {
        'groups': privacy['groups'] + evaluations,
        'releases': {'evaluation': 2},
    })])
    self.assertEqual(run.rounds['cohort_size'], 10)
    # Equal rounds are one group: of these 20, two are evaluations.
    (run,) = runs.read([self.write('equal', privacy=privacy | {
        'releases': {'evaluation': 2},
    })])
    self.assertEqual(run.rounds['cohort_size'], 10)

  def test_a_decoding_with_a_language_model_is_read(self):
    run = run_folders.read(
        self.path('run'), errors={'ann': (1, 4)}, errors_with_lm={'ann': (0, 4)}
    )
    self.assertEqual(
        {measure: dict(found) for measure, found in run.scores.items()},
        {
            runs.WER: {'ann': (1, 0, 0, 4)},
            runs.CER: {'ann': (1, 0, 0, 16)},
            runs.SER: {'ann': (1, 0, 0, 8)},
            runs.WER_WITH_LM: {'ann': (0, 0, 0, 4)},
            runs.CER_WITH_LM: {'ann': (0, 0, 0, 16)},
            runs.SER_WITH_LM: {'ann': (0, 0, 0, 8)},
        },
    )

  def test_an_evaluation_without_characters_is_to_be_repeated(self):
    folder = self.write('run', errors={'ann': (1, 4)})
    path = pathlib.Path(folder, 'test.json')
    content = json.loads(path.read_text())
    del content['characters']
    path.write_text(json.dumps(content))
    with self.assertRaisesRegex(
        ValueError, "test.json has no 'characters': evaluate the run again"
    ):
      runs.read([folder])

  def test_an_evaluation_without_sentences_is_older_and_has_no_rate(self):
    folder = self.write('run', errors={'ann': (1, 4)})
    path = pathlib.Path(folder, 'test.json')
    content = json.loads(path.read_text())
    del content['sentences']
    path.write_text(json.dumps(content))
    (run,) = runs.read([folder])
    self.assertCountEqual(run.scores, [runs.WER, runs.CER])

  def test_missing_fields_are_none_or_empty(self):
    run = run_folders.read(self.path('run'))
    self.assertEqual((run.unit, run.num_done), ('step', 0))
    for missing in (run.results, run.epsilon, run.evaluation, run.last('x')):
      self.assertIsNone(missing)
    for empty in (
        run.privacy_report, run.layers, run.speakers, run.rounds, run.metric('x')
    ):
      self.assertEmpty(empty)

  def test_layers_come_from_tensorboard_and_the_later_release_counts(self):
    folder = self.write('run')
    for value in (1.0, 2.0):
      self.release(
          folder,
          {
              'not_private/layer_norm/block_00/ln1': value,
              'not_private/clipped_layer_norm/head': 3.0,
              'not_private/layer_clipped/head': 0.5,
              'not_private/delta_norm': 7.0,
          },
          4,
      )
    (run,) = runs.read([folder])
    self.assertEqual(
        run.layers,
        {
            'layer_norm': {'block_00/ln1': {4: 2.0}},
            'clipped_layer_norm': {'head': {4: 3.0}},
            'layer_clipped': {'head': {4: 0.5}},
        },
    )

  def test_an_incomplete_record_of_tensorboard_is_left_out(self):
    folder = self.write('run')
    events = self.release(folder, {'x/layer_norm/a': 1.0}, 1, 2)
    path = os.path.join(events, *os.listdir(events))
    os.truncate(path, os.path.getsize(path) - 3)
    (run,) = runs.read([folder])
    self.assertEqual(run.layers, {'layer_norm': {'a': {1: 1.0}}})

  def test_names_tell_runs_apart(self):
    folders = [self.write(name) for name in ('a/x', 'b/x', 'b/y')]
    self.assertEqual(
        [run.name for run in runs.read(folders)], ['a/x', 'b/x', 'b/y']
    )

  def test_all_bad_folders_are_named_in_one_error(self):
    good = self.write('good')
    with self.assertRaisesRegex(ValueError, 'good is given more than once'):
      runs.read([good, good + '/'])
    with self.assertRaisesRegex(ValueError, 'x has no config.*\n.*y has no'):
      runs.read([self.path(name) for name in ('x', 'good', 'y')])

  @parameterized.parameters(
      ('test.json', '{', 'test.json is damaged'),
      ('test.json', '[' * 10**5, 'test.json is damaged .it is nested too'),
      ('test.json', '3', 'test.json is damaged'),
      ('privacy_report.json', '[]', 'privacy_report.json is damaged .it is not a dict'),
      ('private_evaluation.json', '{}', 'is damaged .it is not a list'),
      ('metrics.csv', 'round,a\n1,x\n', 'metrics.csv does not contain'),
      ('metrics.csv', None, 'has no metrics.csv'),
  )
  def test_damaged_files_are_named(self, name, text, message):
    path = os.path.join(self.write('run'), name)
    if text is None:
      os.remove(path)
    else:
      pathlib.Path(path).write_text(text)
    with self.assertRaisesRegex(ValueError, message):
      runs.read([self.path('run')])

"""Tests of tff_asr.reports.run_record."""

import asyncio
import os
import tempfile

from absl.testing import absltest
import tensorflow_federated as tff

from tests.reports import run_folders
from tff_asr.reports import run_record


class RunRecordTest(absltest.TestCase):

  def setUp(self):
    super().setUp()
    self.root = self.enterContext(tempfile.TemporaryDirectory())

  def write(self, name: str, **content) -> str:
    return run_folders.write(
        os.path.join(self.root, name),
        **dict(settings={'NUM_ROUNDS': '3'}, metrics={'epsilon': {1: 0.5}})
        | content,
    )

  def test_reads_what_the_folder_has(self):
    folder = self.write(
        'run',
        settings={'NUM_ROUNDS': '3', 'RUNS': "\\\n    ['a',\n     'b']"},
        metrics={'not_private/train_loss': {1: 4.0, 2: 3.0}, 'dev_loss': {2: 5}},
        privacy=run_folders.privacy(epsilon=12.5),
        errors={'ann': (1, 4)},
    )
    (run,) = run_record.read([folder])
    self.assertEqual(run.name, 'run')
    self.assertEqual(run.unit, 'round')
    self.assertEqual(run.settings['RUNS'], "\\\n    ['a',\n     'b']")
    self.assertEqual(run.metric('train_loss'), {1: 4.0, 2: 3.0})
    self.assertEqual(run.last('train_loss'), 3.0)
    self.assertEqual(run.metric('dev_loss'), {2: 5.0})
    self.assertEqual(run.metric('no_such'), {})
    self.assertIsNone(run.last('no_such'))
    self.assertEqual(run.epsilon, 12.5)
    self.assertIn('NOT PRIVATE', run.statement)
    self.assertEqual(run.evaluation['word_error_rate'], 0.25)

  def test_what_is_missing_is_none(self):
    (run,) = run_record.read([self.write('run', settings={'NUM_STEPS': '3'})])
    self.assertEqual(run.unit, 'step')
    self.assertIsNone(run.results)
    self.assertIsNone(run.epsilon)
    self.assertIsNone(run.evaluation)
    self.assertEqual(run.statement, '')
    self.assertEqual(run.layers, {})

  def test_layers_come_from_tensorboard_and_the_later_release_counts(self):
    folder = self.write('run')
    for value in (1.0, 2.0):
      manager = tff.program.TensorBoardReleaseManager(
          os.path.join(folder, 'tensorboard')
      )
      asyncio.run(manager.release(
          {
              'not_private/layer_norm/block_00/ln1': value,
              'not_private/clipped_layer_norm/head': 3.0,
              'not_private/layer_clipped/head': 0.5,
              'not_private/delta_norm': 7.0,
          },
          key=4,
      ))
      manager._summary_writer.close()  # pylint: disable=protected-access
    (run,) = run_record.read([folder])
    self.assertEqual(
        run.layers,
        {
            'layer_norm': {'block_00/ln1': {4: 2.0}},
            'clipped_layer_norm': {'head': {4: 3.0}},
            'layer_clipped': {'head': {4: 0.5}},
        },
    )

  def test_a_torn_record_of_tensorboard_ends_what_is_read(self):
    folder = self.write('run')
    manager = tff.program.TensorBoardReleaseManager(
        os.path.join(folder, 'tensorboard')
    )
    for key in (1, 2):
      asyncio.run(manager.release({'x/layer_norm/a': 1.0}, key=key))
    manager._summary_writer.close()  # pylint: disable=protected-access
    (name,) = os.listdir(os.path.join(folder, 'tensorboard'))
    path = os.path.join(folder, 'tensorboard', name)
    os.truncate(path, os.path.getsize(path) - 3)
    (run,) = run_record.read([folder])
    self.assertEqual(run.layers, {'layer_norm': {'a': {1: 1.0}}})

  def test_names_tell_runs_apart(self):
    folders = [self.write(name) for name in ('a/x', 'b/x', 'b/y')]
    self.assertEqual(
        [run.name for run in run_record.read(folders)], ['a/x', 'b/x', 'b/y']
    )

  def test_a_run_twice_is_refused(self):
    folder = self.write('run')
    with self.assertRaisesRegex(ValueError, 'run is given more than once'):
      run_record.read([folder, folder + '/'])

  def test_folders_of_no_run_are_named_together(self):
    self.write('good')
    with self.assertRaisesRegex(ValueError, 'x has no config.gin.*\n.*y has no'):
      run_record.read([os.path.join(self.root, n) for n in ('x', 'good', 'y')])

  def test_damaged_files_are_named(self):
    for name, text, message in (
        ('test.json', '{', 'test.json is damaged'),
        ('test.json', '{"a": 1}', 'test.json is not what an evaluation writes'),
        ('privacy.json', '[]', 'privacy.json is not what a program'),
        ('metrics.csv', 'round,a\n1,x\n', 'metrics.csv is damaged'),
    ):
      with self.subTest(message), tempfile.TemporaryDirectory() as root:
        folder = run_folders.write(
            os.path.join(root, 'run'), settings={}, metrics={'a': {1: 1.0}}
        )
        with open(os.path.join(folder, name), 'w', encoding='utf-8') as f:
          f.write(text)
        with self.assertRaisesRegex(ValueError, message):
          run_record.read([folder])


if __name__ == '__main__':
  absltest.main()

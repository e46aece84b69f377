"""Tests of tff_asr.storage.run_dir."""

import asyncio
import collections
import os
import pathlib
import signal
from unittest import mock

from absl.testing import absltest
from absl.testing import parameterized
import numpy as np
from tensorboard.plugins.hparams import metadata
import tensorflow as tf

from tests import cases
from tests import fakes
from tff_asr import files
from tff_asr.storage import run_dir


_CONFIGURATION = """# Macros:
# ==============
EVALUATE_EVERY = 10
NUM_ROUNDS = 30
SEED = 1
"""


class RunFolderTest(cases.TestCase):

  def setUp(self):
    super().setUp()
    self.path = os.path.join(self.root, 'runs', 'one')

  def open(self, configuration: str = _CONFIGURATION) -> run_dir.RunDir:
    return run_dir.RunDir(self.path, configuration=configuration)

  def begin(self):
    """A run that has saved a state."""
    asyncio.run(self.open().state_manager.save({'a': np.ones(2)}, 0))

  def configuration(self) -> str:
    return pathlib.Path(self.path, 'config.gin').read_text()

  def test_only_settings_of_the_run_length_may_change(self):
    os.makedirs(self.path)
    files.write_text(os.path.join(self.path, 'notes.txt'), 'of the user')
    self.begin()
    for old, new in (
        ('', ''),
        ('NUM_ROUNDS = 30', 'NUM_ROUNDS = 60'),
        ('EVALUATE_EVERY = 10', 'EVALUATE_EVERY = 5'),
    ):
      self.open(_CONFIGURATION.replace(old, new))
      self.assertEqual(self.configuration(), _CONFIGURATION)

  def test_settings_may_change_until_the_first_state_is_saved(self):
    files.write_text(
        self.open().file('state/state_00000000.safetensors.partial'), ''
    )
    other = _CONFIGURATION.replace('SEED = 1', 'SEED = 2')
    self.open(other)
    self.assertEqual(self.configuration(), other)

  @parameterized.parameters('config.gin', 'model.safetensors', 'results.json')
  def test_a_folder_of_other_files_is_refused(self, name):
    os.makedirs(self.path)
    files.write_text(os.path.join(self.path, name), 'mine')
    with self.assertRaisesRegex(ValueError, f'one contains {name} but no saved'):
      self.open()
    self.assertEqual(os.listdir(self.path), [name])
    with open(os.path.join(self.path, name), encoding='utf-8') as f:
      self.assertEqual(f.read(), 'mine')

  def test_a_finished_run_without_states_does_not_start_over(self):
    with self.open() as folder:
      files.write_json(folder.file('results.json'), {})
    with self.assertRaisesRegex(ValueError, 'contains results.json but no saved'):
      self.open()

  def test_folders_that_cannot_be_written_are_named(self):
    # tests/bin/bad_input_test.py has files in their place.
    with mock.patch.object(os, 'access', return_value=False):
      with self.assertRaisesRegex(ValueError, 'one cannot be written: .* read'):
        run_dir.check_folder(self.path, configuration='')
    self.assertFalse(os.path.exists(self.path))

  @parameterized.named_parameters(
      ('changed', _CONFIGURATION.replace('SEED = 1', 'SEED = 2'), 'SEED = 1'),
      ('more', _CONFIGURATION + 'DIM = 8\n', 'here: DIM = 8'),
      ('less', _CONFIGURATION.replace('SEED = 1\n', ''), 'there: SEED = 1'),
      (
          'looks_like_one_that_may',
          _CONFIGURATION + 'NUM_ROUNDS_MORE = 8\n',
          'here: NUM_ROUNDS_MORE = 8',
      ),
  )
  def test_another_configuration_is_refused(self, configuration, difference):
    self.begin()
    with self.assertRaisesRegex(ValueError, rf'one contains .*\(.*{difference}\)'):
      self.open(configuration)

  def test_model_round_trip(self):
    model = fakes.tiny_model(num_blocks=1)
    weights = model.initialize(tf.constant([1, 2]))
    self.open().write_model(weights, tokens=' abc')
    read = run_dir.read_model(self.path, model=model, tokens=' abc')
    self.assertEqual(list(read), list(weights))
    for name, value in weights.items():
      np.testing.assert_array_equal(read[name], value)

  def test_models_that_do_not_fit_are_explained(self):
    model = fakes.tiny_model(num_blocks=1)
    with self.assertRaisesRegex(ValueError, 'one contains no trained model'):
      run_dir.read_model(self.path, model=model, tokens=' abc')
    folder = self.open()
    folder.write_model(model.initialize([1, 2]), tokens=' ab')
    with self.assertRaisesRegex(ValueError, "is ' ab', .* ' abc'"):
      run_dir.read_model(self.path, model=model, tokens=' abc')
    weights = model.initialize([1, 2])
    weights['head/bias'] = np.zeros([7], np.float32)
    weights['tail'] = weights.pop('norm/bias')
    folder.write_model(weights, tokens=' abc')
    with self.assertRaisesRegex(
        ValueError,
        r'head/bias is \[7\] there and \[5\] here; it has no norm/bias; tail is'
        r' unknown here\.',
    ):
      run_dir.read_model(self.path, model=model, tokens=' abc')

  def test_another_public_model_is_refused(self):
    model = fakes.tiny_model(num_blocks=1)
    read = lambda **public: run_dir.read_model(
        self.path, model=model, tokens=' abc', **public
    )
    folder = self.open()
    write = lambda **public: folder.write_model(
        model.initialize([1, 2]), tokens=' abc', **public
    )
    write(public_sha256='0a')
    read(public_sha256='0a')
    with self.assertRaisesRegex(ValueError, 'SHA-256 0a, and this one has 0b'):
      read(public_sha256='0b')
    with self.assertRaisesRegex(ValueError, 'SHA-256 0a, and here is none'):
      read()
    write()
    read(public_sha256='0a')

  def test_metrics_go_to_a_table_and_to_tensorboard(self):
    managers = self.open().release_managers(last=0)
    # The table has no column for each layer of a model.
    of_layers = ('x/layer_clip/a/b', 'not_private/clipped_layer_norm/a')
    metrics = dict.fromkeys(of_layers, 1.0)

    async def release():
      for key, loss in ((1, 3.0), (2, 2.0)):
        for manager in managers:
          await manager.release(metrics | {'loss': loss}, key=key)

    asyncio.run(release())
    self.assertEqual(
        self.open().read_metrics(), {'loss': {1: 3.0, 2: 2.0}}
    )
    # Resumed after the first round: the second is released again.
    self.open().release_managers(last=1)
    self.assertEqual(self.open().read_metrics(), {'loss': {1: 3.0}})
    self.assertTrue(os.listdir(self.open().file('tensorboard')))

  def hyperparameters(self, **options) -> list[tf.compat.v1.Event]:
    """TensorBoard's events of settings, of a run in a new folder."""
    self.path = os.path.join(self.root, str(options))
    folder = self.open(
        _CONFIGURATION + "DIR = 'a b'\nSIZES = [1,\n    2]\nRATE = 0.5\n"
        'SHOW = True\nMODEL = @ctc.build()\nNOTHING = None\n'
    )
    folder.release_managers(last=0, **options)
    (name,) = os.listdir(folder.file('tensorboard'))
    path = os.path.join(folder.file('tensorboard'), name)
    return [
        event for event in tf.compat.v1.train.summary_iterator(path)
        if event.summary.value
    ]

  def test_settings_are_hyperparameters_of_tensorboard(self):
    (values,) = self.hyperparameters(with_times=True)
    content = values.summary.value[0].metadata.plugin_data.content
    found = metadata.parse_session_start_info_plugin_data(content)
    plain = {
        name: getattr(value, value.WhichOneof('kind'))
        for name, value in found.hparams.items()
    }
    self.assertEqual(plain, {
        'EVALUATE_EVERY': 10, 'NUM_ROUNDS': 30, 'SEED': 1, 'DIR': 'a b',
        'SIZES': '[1,\n    2]', 'RATE': 0.5, 'SHOW': True,
        'MODEL': '@ctc.build()', 'NOTHING': 'None',
    })
    self.assertGreater(found.start_time_secs, 1e9)

  def test_tensorboard_of_a_private_run_does_not_show_when_it_began(self):
    (values,) = self.hyperparameters(with_times=False)
    content = values.summary.value[0].metadata.plugin_data.content
    found = metadata.parse_session_start_info_plugin_data(content)
    self.assertEqual((found.start_time_secs, values.wall_time), (0, 0))

  def test_two_runs_exclude_each_other(self):
    run_dir.check_folder(self.path, configuration=_CONFIGURATION)
    self.assertFalse(os.path.exists(self.path))  # To look writes nothing.
    with self.open():
      with self.assertRaisesRegex(ValueError, f'process {os.getpid()} on '):
        self.open()
      with self.assertRaisesRegex(ValueError, 'in use by process'):
        run_dir.check_folder(self.path, configuration=_CONFIGURATION)
    self.open()

  @parameterized.parameters(os.symlink, os.link)
  def test_a_lock_that_is_a_link_changes_no_other_file(self, link):
    other = os.path.join(self.root, 'other')
    pathlib.Path(other).write_text('as it was')
    os.makedirs(self.path)
    link(other, os.path.join(self.path, 'run.lock'))
    for take in (
        self.open,
        lambda: run_dir.RunLock(self.path),
        lambda: run_dir.check_folder(self.path, configuration=_CONFIGURATION),
    ):
      with self.assertRaisesRegex(ValueError, 'run.lock is a link or no regul'):
        take()
    self.assertEqual(pathlib.Path(other).read_text(), 'as it was')
    os.remove(os.path.join(self.path, 'run.lock'))
    self.open()
    self.assertEqual(pathlib.Path(other).read_text(), 'as it was')

  def test_the_lock_is_released_when_its_process_ends(self):
    folder = self.root  # Made here, and not in the child.
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
      lock = run_dir.RunLock(folder)
      os.write(writer, b'held')
      signal.pause()
      lock.release()
    self.assertEqual(os.read(reader, 4), b'held')
    with self.assertRaisesRegex(ValueError, f' {child} on '):
      run_dir.RunLock(folder)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    run_dir.RunLock(folder).release()

  def test_states_and_secrets_have_mode_0600(self):
    folder = self.open()
    asyncio.run(folder.state_manager.save(1, 1))
    folder.release_managers(last=0)
    modes = {
        name: os.stat(os.path.join(root, name)).st_mode & 0o077
        for root, _, names in os.walk(self.path)
        for name in names
    }
    closed = [name for name, mode in modes.items() if not mode]
    self.assertEqual(closed, ['state_00000001.safetensors'])
    self.assertContainsSubset(
        ['config.gin', 'machine.json', 'metrics.csv'], modes
    )


  def test_new_folders_have_mode_0700(self):
    # Others must not see names and sizes of files.
    before = os.umask(0o022)
    try:
      folder = self.open()
      folder.release_managers(last=0)
      self.assertEqual(os.umask(0o022), 0o022)
    finally:
      os.umask(before)
    modes = {
        os.path.relpath(each, self.root): os.stat(each).st_mode & 0o777
        for each, _, _ in os.walk(os.path.dirname(self.path))
    }
    made = ['runs', 'runs/one', 'runs/one/state', 'runs/one/tensorboard']
    self.assertEqual(modes, dict.fromkeys(made, 0o700))


class FlattenTest(absltest.TestCase):

  def test_nested_metrics_are_flattened_and_only_scalars_are_kept(self):
    self.assertEqual(
        run_dir.flatten_metrics(
            collections.OrderedDict(
                a=collections.OrderedDict(b=np.float32(0.5), c=()),
                d=tf.constant(2),
            )
        ),
        {'a/b': 0.5, 'd': 2.0},
    )

"""Tests of tff_asr.programs.preflight; tests/bin/bad_input_test.py sees all."""

import os
import tempfile

from absl.testing import absltest
import tensorflow as tf

from tests import fakes
from tff_asr import checks
from tff_asr.data import client_data
from tff_asr.programs import preflight
from tff_asr.storage import run_dir


def _check_size(size):
  checks.positive_int(size=size)


def _check_order(first, last):
  if first > last:
    raise ValueError('first must be at most last.')


def _check_file(path):
  if path is not None:
    open(path, 'rb').close()


class RunTest(absltest.TestCase):

  def run_checks(self, **settings):
    preflight.run((_check_size, _check_order, _check_file), settings)

  def test_good_settings_pass(self):
    self.run_checks(size=1, first=1, last=2, path=None, other='x')

  def test_all_that_is_wrong_is_in_one_error(self):
    with self.assertRaises(checks.Problems) as caught:
      self.run_checks(size=0, first=3, last=2, path='no/file')
    self.assertLen(caught.exception.messages, 3)
    for part, message in zip(
        ('size must be', 'first must be', 'no/file'), caught.exception.messages
    ):
      self.assertIn(part, message)

  def test_a_single_error_stays_as_it_is(self):
    with self.assertRaises(FileNotFoundError):
      self.run_checks(size=1, first=1, last=2, path='no/file')

  def test_what_is_not_given_is_not_checked(self):
    self.run_checks(first=3, size=1)
    with self.assertRaisesRegex(ValueError, 'first must be'):
      self.run_checks(first=3, last=2)

  def test_defects_are_not_swallowed(self):
    with self.assertRaises(TypeError):
      self.run_checks(first=3, last='2')


class ChecksTest(absltest.TestCase):

  def setUp(self):
    super().setUp()
    self.root = self.enterContext(tempfile.TemporaryDirectory())
    self.model = fakes.tiny_model(num_blocks=1)
    self.pipeline = fakes.tiny_pipeline(self.model)
    self.seed = os.path.join(self.root, 'seed')
    run_dir.RunDir(self.seed, configuration='').write_model(
        self.model.initialize(tf.constant([1, 2])), tokens=' abc'
    )

  def test_seed_run(self):
    preflight.check_seed_run(None, self.model, self.pipeline)
    preflight.check_seed_run(self.seed, self.model, self.pipeline)
    with self.assertRaisesRegex(ValueError, 'does not fit .* it has no block_01'):
      preflight.check_seed_run(
          self.seed, fakes.tiny_model(num_blocks=2), self.pipeline
      )

  def test_seed_run_is_another(self):
    preflight.check_seed_run_is_another(None, self.seed)
    preflight.check_seed_run_is_another(self.seed, self.root)
    with self.assertRaisesRegex(ValueError, 'cannot start from itself'):
      preflight.check_seed_run_is_another(self.seed + '/', self.seed)

  def test_delta(self):
    preflight.check_delta(None, None)
    preflight.check_delta(1e-5, None)
    preflight.check_delta(1e-5, 2.0)
    for delta, target, message in (
        (1.0, None, 'delta'),
        (1e-5, 0, 'target_epsilon must be positive'),
        (None, 2.0, 'target_epsilon is 2 at no delta: set DELTA'),
    ):
      with self.assertRaisesRegex(ValueError, message):
        preflight.check_delta(delta, target)

  def test_durations(self):
    # Utterances of 0.5 to 1.5 seconds, allowed up to 3.
    shards = fakes.write_split(os.path.join(self.root, 'shards'), {'ann': 3})
    data = client_data.load(shards)
    preflight.check_durations(data, self.pipeline)
    preflight.check_durations(fakes.client_data(), self.pipeline)
    short = fakes.tiny_pipeline(self.model, max_utterance_sec=0.4)
    with self.assertRaisesRegex(
        ValueError, r'max_utterance_sec 0\.4 .*shards last [01]\.\d s'
    ):
      preflight.check_durations(data, short)


if __name__ == '__main__':
  absltest.main()

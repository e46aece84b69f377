"""Tests of tff_asr.programs.dry_run."""

import functools
import os
import tempfile

from absl.testing import absltest
import tensorflow_federated as tff

from tests import fakes
from tests.bin import in_process
from tests.bin import programs
from tff_asr import launch
from tff_asr.models import weights
from tff_asr.privacy import accounting
from tff_asr.programs import dry_run


class DryRunTest(absltest.TestCase):

  def setUp(self):
    super().setUp()
    self.root = self.enterContext(tempfile.TemporaryDirectory())

  def run_program(self, *gin_params: str) -> in_process.Finished:
    tiny = programs.write_tiny(os.path.join(self.root, 'shards'))
    return in_process.run(
        'bin/train_federated.py',
        '--dry_run',
        f'--output_dir={self.root}/run',
        '--gin_file=gin/experiments/quickstart_federated_dp.gin',
        *(f'--gin_param={param}' for param in (*tiny, *gin_params)),
    )

  def test_federated_training_is_described_and_not_begun(self):
    finished = self.run_program(
        'NOISE_MULTIPLIER = 10.0', 'NUM_ROUNDS = 50', 'DELTA = 1e-5',
        'TARGET_EPSILON = 1.0', 'KEEP_EVERY = 7',
    )
    self.assertEqual(finished.code, 0, finished.stderr)
    self.assertFalse(os.path.exists(os.path.join(self.root, 'run')))

    def epsilon(count):
      rounds = accounting.Rounds(
          sampling=accounting.Sampling(
              kind='poisson', cohort_size=2, population=3
          ),
          noise_multiplier=10.0,
          count=count,
      )
      return accounting.epsilon(accounting.compose([rounds]), delta=1e-5)

    last = max(count for count in range(1, 51) if epsilon(count) <= 1)
    self.assertLess(last, 50)
    for part in (
        'NUM_ROUNDS = 50\n',
        'nothing was trained or written',
        'parameters:',
        '3 kept and each 7th',
        'rounds:       50',
        '2 of 3 clients (poisson)',
        f'{epsilon(50):.4g} (RDP) after all rounds; TARGET_EPSILON = 1 ends '
        f'the run after {last}, at delta 1e-05',
    ):
      self.assertIn(part, finished.stdout)

  def test_all_that_is_wrong_is_found(self):
    finished = self.run_program('NUM_ROUNDS = 0', 'COHORT_SIZE = 9')
    self.assertEqual(finished.code, 1)
    self.assertEqual(finished.stdout, '')
    self.assertIn('num_rounds must be', finished.stderr)
    self.assertIn('cohort_size', finished.stderr)

  def test_fixed_seeds_are_not_private(self):
    finished = self.run_program('NOISE_SEED = 1')
    self.assertIn('NOT PRIVATE: NOISE_SEED fixes a key', finished.stdout)

  def test_central_training_is_described(self):
    model = fakes.tiny_model(num_blocks=1)
    describe = functools.partial(
        dry_run.central,
        output_dir=os.path.join(self.root, 'run'),
        configuration='A = 1\n',
        model=model,
        pipeline=fakes.tiny_pipeline(model),
        client_data=fakes.client_data({'ann': 1, 'bob': 1}),
        optimizer=tff.learning.optimizers.build_adam(0.01),
        seed=1,
    )
    text = launch.run_async(describe(num_steps=7))
    count = weights.count(model.specs)
    for part in (
        'A = 1\n',
        f'parameters:   {count:,}',
        # Adam's two moments, the weights, and the best of them: 4 floats each.
        f'{4 * 4 * count / 1e6:.1f} MB each, 3 kept',
        'steps:        7 at most',
        'speakers:     2',
        'not private',
    ):
      self.assertIn(part, text)
    self.assertEmpty(os.listdir(self.root))
    with self.assertRaisesRegex(ValueError, 'num_steps must be'):
      launch.run_async(describe(num_steps=0))


if __name__ == '__main__':
  absltest.main()

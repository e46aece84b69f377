"""The published runs of gin/experiments: their settings and their headers."""

import functools
import re

from absl.testing import absltest
from absl.testing import parameterized

from tests import experiment_files
from tff_asr import config
from tff_asr.programs import central
from tff_asr.programs import evaluation

_PATHS = [
    path
    for path in experiment_files.paths()
    if experiment_files.name(path).startswith(('ls_', 'cv_'))
]
_TRAINING = [
    path
    for path in _PATHS
    if experiment_files.program(path) is not evaluation.evaluate
]

# The table of hyperparameters of https://arxiv.org/abs/2310.00098, section 4.2
# of its facts: server and client rate, start and period of decay, seconds.
_FROM_SCRATCH = (0.006, 0.4, 1000, 500)
_LS_FROM_SEED = (0.003, 0.2, 1000, 250)
_CV_FROM_SEED = (0.002, 0.2, 750, 750)
_FEDERATED = (
    ('ls_federated_960', *_FROM_SCRATCH, 360.0),
    ('ls_federated_860_from_100', *_LS_FROM_SEED, 360.0),
    ('ls_federated_960_from_cv_en', *_LS_FROM_SEED, 360.0),
    ('cv_en_federated', *_FROM_SCRATCH, 120.0),
    ('cv_fr_federated', *_FROM_SCRATCH, 120.0),
    ('cv_de_federated', *_FROM_SCRATCH, 120.0),
    *(
        (experiment_files.name(path), *_CV_FROM_SEED, 120.0)
        for path in _TRAINING
        if re.search(r'cv_.._(dp_|federated_)', path)
    ),
)


def _path(name: str) -> str:
  return f'gin/experiments/{name}.gin'


@functools.lru_cache(maxsize=None)
def _settings(path: str) -> dict[str, str]:
  """All settings that an experiment ends up with, as text."""
  config.bind(experiment_files.program(path), gin_files=[path])
  return dict(
      re.findall(r'^([A-Z]\w*) = (?:\\\n +)?(.+)$', config.text(), re.MULTILINE)
  )


class PublishedRunsTest(parameterized.TestCase):

  @parameterized.named_parameters((row[0], *row) for row in _FEDERATED)
  def test_federated_runs_have_the_published_settings(
      self, name, server_rate, client_rate, start, period, batch_sec
  ):
    settings = _settings(_path(name))
    self.assertEqual(
        {key: float(settings[key]) for key in (
            'SERVER_LEARNING_RATE', 'CLIENT_LEARNING_RATE', 'DECAY_START',
            'DECAY_ROUNDS', 'DECAY_RATE', 'LAMB_EPSILON', 'MAX_BATCH_SEC',
        )},
        {
            'SERVER_LEARNING_RATE': server_rate,
            'CLIENT_LEARNING_RATE': client_rate,
            'DECAY_START': start,
            'DECAY_ROUNDS': period,
            'DECAY_RATE': 0.6,
            'LAMB_EPSILON': 1e-6,
            'MAX_BATCH_SEC': batch_sec,
        },
    )
    self.assertIn(settings['NUM_ROUNDS'], ('2000', '2002'))
    self.assertEqual(settings['LANGUAGE'], repr(
        {'fr': 'fr', 'de': 'de'}.get(name.split('_')[1], 'en')
    ))
    is_private = '_dp_' in name
    has_steps = is_private or '_steps_' in name
    self.assertEqual(
        (settings['NUM_LOCAL_STEPS'], settings['NUM_LOCAL_EPOCHS']),
        ('10', 'None') if has_steps else ('None', '10'),
    )
    self.assertEqual(
        settings['BUILD_COHORTS'],
        '@cohorts.poisson' if is_private else '@cohorts.fixed_size',
    )
    if is_private:
      self.assertEqual(settings['L2_NORM_CLIP'], '0.01')
      self.assertEqual(float(settings['DELTA']), 1e-9)
      # z = sigma_DP S, for one of the paper's sigma_DP.
      sigma = float(settings['NOISE_MULTIPLIER']) / int(settings['COHORT_SIZE'])
      self.assertIn(round(sigma * 1e6, 6), (3.0, 10.0, 30.0))
      split = re.search(r'_dp_([a-z]+)_', name)[1]
      self.assertEqual(settings['CLIP_SPLIT'], repr(split))
    else:
      self.assertEqual(settings['NOISE_MULTIPLIER'], '0.0')
      self.assertEqual(settings['L2_NORM_CLIP'], '1e999')

  @parameterized.named_parameters(
      (experiment_files.name(path), path)
      for path in _TRAINING
      if experiment_files.program(path) is central.CentralTraining
  )
  def test_central_runs_have_the_published_settings(self, path):
    settings = _settings(path)
    is_tuned = '_90_from_10' in path
    self.assertEqual(
        float(settings['LEARNING_RATE']), 0.2 if is_tuned else 0.5
    )
    self.assertEqual(
        [settings[key] for key in (
            'BASE_OPTIMIZER', 'WARMUP_STEPS', 'DECAY_START', 'DECAY_STEPS',
            'DECAY_RATE', 'LARS_MOMENTUM', 'TRUST_COEFFICIENT',
        )],
        ['@lars.build_lars()', '0', '250000', '50000', '0.5', '0.9', '0.001'],
    )
    # 240 s on each of 8 GPUs.
    self.assertEqual(float(settings['MAX_BATCH_SEC']), 8 * 240)

  @parameterized.named_parameters(
      (experiment_files.name(path), path) for path in _TRAINING
  )
  def test_the_model_is_the_paper_s(self, path):
    settings = _settings(path)
    size = path.rpartition('_')[2].removesuffix('.gin')
    sizes = ('narrow', 'shallow', 'baseline', 'wide', 'deep')
    self.assertEqual(
        [settings[key] for key in ('NUM_BLOCKS', 'DIM', 'MLP_DIM')],
        {
            'narrow': ['36', '512', '2048'],
            'shallow': ['16', '768', '3072'],
            'wide': ['36', '1024', '4096'],
            'deep': ['72', '768', '3072'],
        }.get(size, ['36', '768', '3072']),
    )
    self.assertEqual(
        [settings[key] for key in (
            'DROPOUT', 'LAYER_DROP', 'NUM_HEADS', 'NORM', 'POSITION',
            'LOSS_KERNEL',
        )],
        ['0.3', '0.1' if size in sizes else '0.3', '4', "'pre'", "'cape'",
         "'dense'"],
    )

  @parameterized.named_parameters(
      (experiment_files.name(path), path) for path in _TRAINING
  )
  def test_the_header_says_what_to_expect_and_how_to_run_it(self, path):
    header = experiment_files.read(path).split('from __gin__')[0]
    for part in ('Expected WER', 'Cost:', 'Table', f'--gin_file={path}',
                 f'--output_dir=runs/{experiment_files.name(path)} '):
      self.assertIn(part, header)
    seed = _settings(path)['INIT_FROM_RUN'].strip("'").removeprefix('runs/')
    if seed != 'None' and _path(seed) not in _PATHS:
      self.assertIn(f'--output_dir=runs/{seed} ', header)

  @parameterized.named_parameters(
      (experiment_files.name(path), path)
      for path in experiment_files.paths()
      if re.search(r'/(ssl|pretrain_mini|finetune_mini)_', path)
  )
  def test_headers_of_pretraining_say_how_to_run_it(self, path):
    header = experiment_files.read(path).split('from __gin__')[0]
    self.assertIn(f'--gin_file={path}', header.replace(' \\\n#      ', ''))
    is_training = experiment_files.program(path) is not evaluation.evaluate
    if '/ssl_' in path and is_training:
      for part in ('Expected WER', 'Cost:'):
        self.assertIn(part, header)

  def test_the_table_of_docs_has_each(self):
    documented = re.findall(
        r'^\| `((?:ls|cv)_\w+)` \|', experiment_files.read('docs/recipe.md'),
        re.MULTILINE,
    )
    self.assertCountEqual(documented, map(experiment_files.name, _TRAINING))


if __name__ == '__main__':
  absltest.main()

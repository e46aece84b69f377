"""The published runs of gin/experiments: settings, headers, docs/recipe.md."""

import ast
from collections.abc import Callable
import functools
import re
import shlex
from typing import Any, NamedTuple

from absl.testing import parameterized
import numpy as np

from tests import experiment_files
from tff_asr import config
from tff_asr.data import pipeline
from tff_asr.learning import client_update
from tff_asr.learning import layer_freeze
from tff_asr.models import best_rq
from tff_asr.models import ctc
from tff_asr.models import weights as weights_lib
from tff_asr.optimizers import schedules
from tff_asr.privacy import accounting
from tff_asr.privacy import clipping
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
# What rows change and no model depends on.
_NO_MODELS = (
    'CLIP_SPLIT', 'FREEZE', 'FREEZE_SHARE', 'INIT_FROM_RUN', 'NOISE_MULTIPLIER',
    'TEST_DIR', 'TRAIN_DIR',
)
_AS_PUBLISHED = 'gin/experiments/as_published.gin'

# The table of hyperparameters of https://arxiv.org/abs/2310.00098, section 4.2
# of its facts: server and client rate, start and period of decay, seconds.
_FROM_SCRATCH = (0.006, 0.4, 1000, 500)
_LS_FROM_SEED = (0.003, 0.2, 1000, 250)
_CV_FROM_SEED = (0.002, 0.2, 750, 750)
_FEDERATED = (
    ('ls_federated_100', 0.006, 0.4, 32000, 16000, 360.0),
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

# Central runs by the schedule of their configuration in the published code
# (optimizer.py): rate, start of decay, and which of its two functions.
#   steps: rate / 2^((t - start + 1) // 50000 + 1) from `start` on; before it
#     a linear warm-up of one step, which is at 0 in step 0
#   exponential: rate * 0.5^((t - start) / period) from `start` on
_CENTRAL = {
    'ls_central_100': (0.5, 330_000, 'steps'),
    'ls_central_860_from_100': (0.5, 150_000, 'steps'),
    'ls_central_960': (0.5, 250_000, 50_000),
    'ls_central_960_from_cv_en': (0.5, 100_000, 'steps'),
    'cv_en_central': (0.5, 330_000, 'steps'),
    'cv_en_central_05': (0.5, 100_000, 25_000),
    'cv_en_central_10': (0.5, 100_000, 25_000),
    'cv_en_central_90_from_10': (0.2, 150_000, 'steps'),
    'cv_en_central_95_from_05': (0.5, 150_000, 'steps'),
    'cv_en_central_from_ls_100': (0.5, 40_000, 'steps'),
    'cv_en_central_from_ls_960': (0.5, 150_000, 'steps'),
    'cv_fr_central': (0.5, 200_000, 'steps'),
    'cv_fr_central_10': (0.5, 100_000, 25_000),
    'cv_fr_central_90_from_10': (0.2, 150_000, 'steps'),
    # The paper's text has the two the other way round.
    'cv_de_central': (0.2, 150_000, 'steps'),
    'cv_de_central_10': (0.5, 100_000, 25_000),
    'cv_de_central_90_from_10': (0.5, 200_000, 'steps'),
}


class _Row(NamedTuple):
  """A row of docs/recipe.md."""

  paper: str
  run: str
  arguments: str
  wer: str
  cost: str
  settings: str

  @property
  def path(self) -> str:
    return f'gin/experiments/{self.run}.gin'

  def commands(self) -> list[list[str]]:
    """The arguments of each run that the row stands for, as a shell splits."""
    # A mapping of gin has colons.
    braces = [
        [value.strip() for value in found.split(',')]
        for found in re.findall(r'\{([^{}:]*)\}', self.arguments)
    ]
    commands = []
    for values in zip(*braces, strict=True) if braces else [()]:
      values = iter(values)
      text = re.sub(
          r'\{[^{}:]*\}', lambda _: next(values), self.arguments
      )
      commands.append([
          f'--output_dir=runs/{self.run}', f'--gin_file={self.path}',
          *shlex.split(text),
      ])
    return commands


def _rows() -> list[_Row]:
  found = []
  for line in experiment_files.read('docs/recipe.md').splitlines():
    cells = [cell.strip('` ') for cell in line.strip('|').split('|')]
    if len(cells) == 6 and re.fullmatch(r'(ls|cv)_\w+', cells[1]):
      found.append(_Row(*cells))
  return found


_ROWS = _rows()


class _Command(NamedTuple):
  gin_files: tuple[str, ...]
  gin_params: tuple[str, ...]


def _parse(arguments: list[str]) -> _Command:
  """What the flags of bin/training.py make of a command line."""
  values = {name: [] for name in re.findall(
      r"DEFINE_\w+\(\s*'(\w+)'", experiment_files.read('bin/training.py')
  )}
  for argument in arguments:
    flag, _, value = argument.removeprefix('--').partition('=')
    values[flag].append(value)  # KeyError: no flag of training.
  return _Command(tuple(values['gin_file']), tuple(values['gin_param']))


def _path(name: str) -> str:
  return f'gin/experiments/{name}.gin'


def tearDownModule():  # pylint: disable=invalid-name
  _text.cache_clear()


@functools.lru_cache(maxsize=None)
def _text(gin_files: tuple[str, ...], gin_params: tuple[str, ...] = ()) -> str:
  """The whole configuration that an experiment ends up with."""
  config.bind(
      experiment_files.program(gin_files[0]),
      gin_files=gin_files,
      gin_params=gin_params,
  )
  return config.text()


def _settings(*gin_files: str) -> dict[str, str]:
  """All settings that an experiment ends up with, as text."""
  return _found(_text(gin_files))


def _found(text: str) -> dict[str, str]:
  """The settings of a configuration, as text."""
  return dict(
      re.findall(r'^([A-Z]\w*) = (?:\\\n +)?(.+)$', text, re.MULTILINE)
  )


def _value(text: str) -> Any:
  """A setting's value, where it is a literal: 1e-4 is 0.0001."""
  try:
    return ast.literal_eval(text)
  except (SyntaxError, ValueError):
    return text


def _bound(part: Callable[..., Any], command: _Command) -> Any:
  """A part of a program as a command configures it."""
  return config.bind(
      part, gin_files=command.gin_files, gin_params=command.gin_params
  )()


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
    self.assertIn(
        settings['NUM_ROUNDS'],
        ('64000',) if name == 'ls_federated_100' else ('2000', '2002'),
    )
    # Batches are filled, from a buffer of 64 utterances.
    self.assertEqual(
        (float(settings['MAX_PADDING']), settings['CHUNK_SIZE']), (1.0, '64')
    )
    self.assertEqual(settings['UNAUGMENTED_ROUNDS'], '1')
    self.assertEqual(settings['ACTIVATION_DTYPE'], "'bfloat16'")
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
    # The published code clips runs of 10 steps without noise, too.
    self.assertEqual(settings['L2_NORM_CLIP'], '0.01' if has_steps else '1e999')
    self.assertEqual(settings['EVALUATE_EVERY'], '25' if has_steps else '100')
    if is_private:
      self.assertEqual(float(settings['DELTA']), 1e-9)
      # z = sigma_DP S, for one of the paper's sigma_DP.
      sigma = float(settings['NOISE_MULTIPLIER']) / int(settings['COHORT_SIZE'])
      self.assertIn(round(sigma * 1e6, 6), (3.0, 10.0, 30.0))
      split = re.search(r'_dp_([a-z]+)_', name)[1]
      self.assertEqual(settings['CLIP_SPLIT'], repr(split))
    else:
      self.assertEqual(settings['NOISE_MULTIPLIER'], '0.0')
      self.assertEqual(settings['CLIP_SPLIT'], "'global'")

  def test_central_runs_are_those_of_the_table(self):
    self.assertCountEqual(_CENTRAL, [
        experiment_files.name(path)
        for path in _TRAINING
        if experiment_files.program(path) is central.CentralTraining
    ])

  @parameterized.named_parameters((name, name) for name in _CENTRAL)
  def test_central_runs_have_the_published_settings(self, name):
    settings = _settings(_path(name))
    self.assertEqual(
        [settings[key] for key in (
            'BASE_OPTIMIZER', 'LARS_MOMENTUM', 'TRUST_COEFFICIENT',
            'LARS_EPSILON', 'MAX_PADDING', 'EVALUATE_EVERY',
            'UNAUGMENTED_STEPS',
        )],
        ['@lars.build_lars()', '0.9', '0.001', '1e-08', '1.0', '1000', '1'],
    )
    # The lowest WER is kept; no run ends before its last step.
    self.assertGreaterEqual(
        int(settings['PATIENCE']) * int(settings['EVALUATE_EVERY']),
        int(settings['NUM_STEPS']),
    )
    is_seed = _CENTRAL[name][2] == 25_000
    # One process a GPU, with batches of its own.
    self.assertEqual(
        [float(settings[key]) for key in (
            'NUM_LOADERS', 'MAX_BATCH_SEC', 'CHUNK_SIZE',
        )],
        [8, 216 if is_seed else 240, 512],
    )
    self.assertEqual(
        settings['ACTIVATION_DTYPE'],
        "'float32'" if name == 'cv_en_central' else "'bfloat16'",
    )

  @parameterized.named_parameters((name, name) for name in _CENTRAL)
  def test_central_rates_are_the_published_ones(self, name):
    rate, start, kind = _CENTRAL[name]
    schedule = config.bind(schedules.warmup, gin_files=[_path(name)])()
    if kind == 'steps':
      pairs = {
          0: 0.0,
          1: rate,
          start - 1: rate,
          start: rate / 2,
          start + 49_998: rate / 2,
          start + 49_999: rate / 4,
          start + 99_998: rate / 4,
          start + 99_999: rate / 8,
          start + 249_999: rate / 64,
      }
    else:
      pairs = {
          0: rate,
          1: rate,
          start: rate,
          start + kind // 2: rate * 0.7071068,
          start + kind: rate / 2,
          start + 2 * kind: rate / 4,
          start + 6 * kind: rate / 64,
      }
    np.testing.assert_allclose(
        [float(schedule(step)) for step in pairs], list(pairs.values()),
        rtol=1e-5,
    )

  @parameterized.named_parameters(
      (experiment_files.name(path), path) for path in _TRAINING
  )
  def test_the_model_is_the_paper_s(self, path):
    settings = _settings(path)
    self.assertEqual(settings['LABEL_BOUNDARY'], "' '")
    size = path.rpartition('_')[2].removesuffix('.gin')
    name = experiment_files.name(path)
    is_seed = name in _CENTRAL and _CENTRAL[name][2] == 25_000
    sizes = ('narrow', 'shallow', 'baseline', 'wide', 'deep')
    # `published_build_test` counts blocks and widths.
    self.assertEqual(
        [settings[key] for key in (
            'DROPOUT', 'LAYER_DROP', 'NUM_HEADS', 'NORM', 'POSITION',
            'LOSS_KERNEL',
        )],
        [
            *(
                ('0.4', '0.4') if is_seed
                else ('0.3', '0.1' if size in sizes else '0.3')
            ),
            '4', "'pre'", "'cape'", "'scan'",
        ],
    )

  @parameterized.named_parameters(
      (experiment_files.name(path), path) for path in _TRAINING
  )
  def test_the_header_says_what_to_expect_and_how_to_run_it(self, path):
    header = experiment_files.read(path).split('from __gin__')[0]
    for part in ('Expected WER', 'Cost:', 'Table', f'--gin_file={path}',
                 f'--output_dir=runs/{experiment_files.name(path)} '):
      self.assertIn(part, header)
    if experiment_files.program(path) is central.CentralTraining:
      self.assertIn('\n# Settings: ', header)
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

  @parameterized.parameters('multi_device', 'ray', 'native')
  def test_another_context_resets_nothing_else(self, context):
    for name in ('cv_en_dp_dim_from_ls_100', 'ls_federated_960'):
      before = _settings(_path(name))
      after = _settings(_path(name), f'gin/execution/{context}.gin')
      self.assertLessEqual(
          {key for key in before if before[key] != after[key]},
          # The same noise, by ops that the context has.
          {'CONTEXT', 'NOISE_KERNEL'},
      )


class RecipeTest(parameterized.TestCase):
  """docs/recipe.md: each row's command parses, binds, and has its effect."""

  def test_each_file_has_a_row(self):
    self.assertEqual(
        {row.run for row in _ROWS}, set(map(experiment_files.name, _TRAINING))
    )
    for table in range(3, 22):
      self.assertTrue(
          any(re.match(rf'(\d+, )?{table}[:,]', row.paper) for row in _ROWS),
          table,
      )

  def test_each_folder_of_data_is_made_by_a_command(self):
    made = set()
    text = experiment_files.read('docs/recipe.md').replace('\\\n', ' ')
    for line in re.findall(r'^ +python -m data_tools.*$', text, re.MULTILINE):
      flag = dict(re.findall(r'--(\w+)=(\S+)', line))
      parts = [
          f'.{part.split("=")[0]}'
          for part in flag.get('partition', '').split(',')
          if part
      ] or ['']
      made |= {
          f"{flag['output_dir']}/{split.split('=')[0]}{part}"
          for split in flag['splits'].split(',')
          for part in parts
      }
    # As the text says, of these commands.
    made |= {
        folder.replace('10', '05').replace('90', '95') for folder in made
        if folder.startswith('data/cv_en/train.')
    }
    made |= {
        folder.replace('cv_en', language)
        for folder in made for language in ('cv_fr', 'cv_de')
    }
    made |= {f'{folder}.iid' for folder in made}
    needed = set()
    for path in _PATHS:
      needed |= set(re.findall(
          r"^(?:\w+_DIR) = '(.+)'$", experiment_files.read(path), re.MULTILINE
      ))
    for row in _ROWS:
      needed |= set(re.findall(r"PRIVATE_DIR = '(.+?)'", row.arguments))
    self.assertNotEmpty(needed)
    self.assertEmpty(needed - made)

  @parameterized.named_parameters(
      (f'{index}_{re.sub(r"[^a-zA-Z0-9]+", "_", row.paper)}', row)
      for index, row in enumerate(_ROWS)
  )
  def test_a_row(self, row):
    commands = [_parse(arguments) for arguments in row.commands()]
    first = commands[0]
    self.assertLessEqual(
        set(first.gin_files), set(experiment_files.every_file())
    )
    self.assertEqual(first.gin_files[0], row.path)
    text = _text(first.gin_files, first.gin_params)
    settings = _found(text)
    for param in first.gin_params:
      name, _, value = param.partition(' = ')
      self.assertEqual(_value(settings[name]), _value(value))
      self.assertIn(f'%{name}', text)  # Something takes it.
    # The others set the same to something else.
    self.assertLen(set(commands), len(commands))
    for command in commands:
      self.assertEqual(command.gin_files, first.gin_files)
      self.assertEqual(
          [param.partition(' = ')[0] for param in command.gin_params],
          [param.partition(' = ')[0] for param in first.gin_params],
      )
      for param in command.gin_params:
        name, _, value = param.partition(' = ')
        self.assertIs(type(_value(value)), type(_value(settings[name])))
    figures = re.findall(r'[\d.]+/[\d.]+', row.wer)
    if figures:
      self.assertLen(figures, len(commands))
    costs = row.cost.split(', ')
    self.assertIn(len(costs), (1, len(commands)))
    self.assertIn(
        row.settings.split(' ')[0],
        ('code', 'paper', 'preset', 'choice', 'guess'),
    )

  @parameterized.named_parameters(
      (row.run, row)
      # A run's last row has most files.
      for row in {
          row.run: row for row in _ROWS if row.settings.startswith('preset')
      }.values()
  )
  def test_presets_do_what_the_code_did(self, row):
    command = _parse(row.commands()[0])
    is_global = _found(_text(*command))['CLIP_SPLIT'] == "'global'"
    for rule, cohorts in (
        ('clip', '@cohorts.poisson'), ('rescale', '@cohorts.fixed_size')
    ):
      if rule == 'rescale' and is_global:
        rule = 'clip'
        command = command._replace(gin_params=(
            *command.gin_params, 'BUILD_COHORTS = @cohorts.fixed_size'
        ))
      elif rule == 'rescale':
        command = command._replace(
            gin_files=(*command.gin_files, _AS_PUBLISHED)
        )
      found = _bound(clipping.Clipping, command)
      settings = _found(config.text())
      self.assertEqual((found.rule, found.split == 'global'), (rule, is_global))
      self.assertEqual(settings['BUILD_COHORTS'], cohorts)
      self.assertEqual(settings['L2_NORM_CLIP'][0], '0')

  def test_rows_without_a_column_of_their_own_have_their_effect(self):
    def only(paper, index=0):
      (row,) = [row for row in _ROWS if row.paper == paper]
      return _parse(row.commands()[index])

    for index, weight in enumerate((0.01, 1e-4, 1e-4)):
      local = _bound(
          client_update.LocalTraining, only('13: CV-en, FedProx', index)
      )
      self.assertEqual(local.proximal_weight, weight)
      self.assertEqual((local.num_steps, local.num_epochs), (None, 10))
    command = only('12: CV-en, no SpecAugment')
    self.assertIsNone(_bound(pipeline.Pipeline, command).augment)
    command = only('17: LS-100 to CV-en, central, batches 3x')
    self.assertEqual(_bound(pipeline.Pipeline, command).max_batch_sec, 3 * 240)
    command = only('H.5: dim, beta 10 for MLPs')
    found = _bound(clipping.Clipping, command)
    self.assertAlmostEqual(found.weights['/w[12]$'] ** 2, 10)
    self.assertEqual(found.split, 'dim')


class PretrainingRowsTest(parameterized.TestCase):
  """docs/pretraining.md: each row binds, and costs what it says."""

  def rows(self) -> list[_Row]:
    text = experiment_files.read('docs/pretraining.md')
    table = text.split('## The paper\'s runs')[1]
    rows = [
        [cell.strip() for cell in line.strip('|').split('|')]
        for line in table.splitlines()
        if re.match(r'\|[^|]+\| `ssl_', line)
    ]
    self.assertGreaterEqual(len(rows), 12)
    return [
        _Row(paper, run.strip('`'), arguments.strip('`'), wer, cost, '')
        for paper, run, arguments, wer, cost in rows
    ]

  def test_the_sweeps_and_the_splits_are_among_the_rows(self):
    changed = ' '.join(row.arguments for row in self.rows())
    for setting in (
        'NOISE_MULTIPLIER', 'FREEZE', 'FREEZE_SHARE', 'CLIP_SPLIT', 'TRAIN_DIR',
        'INIT_FROM_RUN', 'NORM', 'RELATIVE_ATTENTION', 'TEST_DIR',
    ):
      self.assertIn(f'"{setting} = ', changed)

  def test_rows_have_their_epsilon_size_and_share_of_frozen_layers(self):
    # By hand: 303 million of the encoder, with relative positions a matrix and
    # two vectors a block.
    encoder = {True: 302_889_312}
    encoder[False] = encoder[True] - 12 * (1024**2 + 2 * 1024)
    models = {}  # By the settings that a model may follow.
    for row in self.rows():
      for command in map(_parse, row.commands()):
        with self.subTest(row.paper, command=command):
          settings = _found(_text(command.gin_files, command.gin_params))
          self.check_cost(row, settings)
          is_pretraining = 'NUM_CODES' in settings
          build = best_rq.build if is_pretraining else ctc.build
          key = frozenset(
              item for item in settings.items() if item[0] not in _NO_MODELS
          )
          if key not in models:
            models[key] = _bound(build, command)
          model = models[key]
          expected = encoder[settings['RELATIVE_ATTENTION'] == 'True']
          if settings['NORM'] == "'batch'":
            # The running mean and variance of a block.
            expected += 12 * 2 * 1024
          # The labels of 4 frames, or characters, and the blank.
          outputs = 8192 if is_pretraining else 30
          self.assertEqual(
              weights_lib.count(model.specs), expected + (1024 + 1) * outputs
          )
          if row.run != 'ssl_private':
            continue
          live = weights_lib.tensor_specs(model.specs)
          if settings['FREEZE'] != 'None':
            freeze = _bound(layer_freeze.LayerFreeze, command)
            scores = np.random.default_rng(0).random(len(live))
            frozen = freeze.choose(dict(zip(live, scores)), model.specs)
            live = weights_lib.without(frozen, live)
            left = sum(spec.shape.num_elements() for spec in live.values())
            self.assertAlmostEqual(
                left / weights_lib.count(model.specs),
                1 - float(settings['FREEZE_SHARE']),
                delta=0.02,
            )
          layers = _bound(clipping.Clipping, command).divide(live)
          shares = [layer.share for layer in layers]
          self.assertLen(shares, len(live))
          if settings['CLIP_SPLIT'] == "'global'":
            self.assertEqual(set(shares), {None})
          else:
            self.assertAlmostEqual(sum(share**2 for share in shares), 1)

  def check_cost(self, row: _Row, settings: dict[str, str]) -> None:
    """Checks epsilon, delta and how many times the utterances a row says."""
    if not row.cost:
      return
    epsilon, delta, times = map(float, row.cost.split(', '))
    self.assertEqual(float(settings['DELTA']), delta)
    batch, steps = (
        int(settings[name]) for name in ('BATCH_SIZE', 'NUM_STEPS')
    )
    # 10^(9 / 1.1) utterances are ten times as many as Libri-Light's.
    group = accounting.RoundGroup(
        sampling=accounting.Sampling(
            kind='poisson',
            cohort_size=int(times * batch),
            population=int(times * 15_200_000),
        ),
        # The same noise on the mean.
        noise_multiplier=times * float(settings['NOISE_MULTIPLIER']),
        count=steps,
    )
    found = accounting.epsilon(accounting.compose([group]), delta=delta)
    self.assertAlmostEqual(found / epsilon, 1, delta=0.02)

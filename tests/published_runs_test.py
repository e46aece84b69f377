"""The published runs: settings of gin/experiments, rows of docs/recipe.md."""

import itertools
import re
import shlex
from typing import NamedTuple

from absl.testing import parameterized
import numpy as np

from experiments import published
from tests import experiment_files
from tests import published_numbers
from tff_asr import config
from tff_asr.optimizers import schedules
from tff_asr.privacy import accounting
from tff_asr.privacy import clipping
from tff_asr.privacy import privacy_report
from tff_asr.programs import evaluation

_TRAINING = [
    path
    for path in experiment_files.paths()
    if experiment_files.name(path).startswith(('ls_', 'cv_'))
    and experiment_files.program(path) is not evaluation.evaluate
]

# Server and client rate, start and period of decay, seconds a batch: the table
# of hyperparameters of https://arxiv.org/abs/2310.00098.
_FEDERATED_SETTINGS = (
    'SERVER_LEARNING_RATE', 'CLIENT_LEARNING_RATE', 'DECAY_START',
    'DECAY_ROUNDS', 'MAX_BATCH_SEC',
)
_FEDERATED = {
    'ls_federated_100': (0.006, 0.4, 32000, 16000, 360),
    'ls_federated_960': (0.006, 0.4, 1000, 500, 360),
    'ls_federated_from_seed': (0.003, 0.2, 1000, 250, 360),
    'cv_federated': (0.006, 0.4, 1000, 500, 120),
    'cv_federated_90_from_10': (0.002, 0.2, 750, 750, 120),
    'cv_en_federated_from_ls': (0.002, 0.2, 750, 750, 120),
    'cv_en_federated_steps_from_ls': (0.002, 0.2, 750, 750, 120),
    'cv_dp_90_from_10': (0.002, 0.2, 750, 750, 120),
    'cv_en_dp_from_ls': (0.002, 0.2, 750, 750, 120),
}
_OF_EACH_FEDERATED_RUN = {
    'DECAY_RATE': '0.6',
    'LAMB_EPSILON': '1e-06',
    'MAX_PADDING': '1.0',
    'CHUNK_SIZE': '64',
    'UNAUGMENTED_ROUNDS': '1',
}
_OF_EACH_CENTRAL_RUN = {
    'BASE_OPTIMIZER': '@lars.build_lars()',
    'LARS_MOMENTUM': '0.9',
    'TRUST_COEFFICIENT': '0.001',
    'LARS_EPSILON': '1e-08',
    'MAX_PADDING': '1.0',
    'EVALUATE_EVERY': '1000',
    'UNAUGMENTED_STEPS': '1',
    'NUM_LOADERS': '8',
    'CHUNK_SIZE': '512',
}
_OF_EACH_MODEL = {
    'LABEL_BOUNDARY': "' '",
    'NUM_BLOCKS': '36',
    'DIM': '768',
    'MLP_DIM': '3072',
    'NUM_HEADS': '4',
    'NORM': "'pre'",
    'POSITION': "'cape'",
    'LOSS_KERNEL': "'scan'",
}

# Rows of docs/recipe.md with the schedule of the published code (optimizer.py):
# the rate, the step at which its decay starts, and the steps of one halving, or
# None for its function of steps, rate / 2^((t - start + 1) // 50000 + 1).
_CENTRAL = {
    ('Table 3', 'seed LS-100'): (0.5, 330_000, None),
    ('Table 3', 'LS-100 to LS-860, central'): (0.5, 150_000, None),
    ('Table 3', 'LS-960, central'): (0.5, 250_000, 50_000),
    ('Table 3', 'CV-en to LS-960, central'): (0.5, 100_000, None),
    ('Table 4', 'CV-en, central'): (0.5, 330_000, None),
    ('Table 4', 'seed CV-en-05'): (0.5, 100_000, 25_000),
    ('Table 4', 'seed CV-en-10'): (0.5, 100_000, 25_000),
    ('Table 4', 'CV-en-10 to 90, central'): (0.2, 150_000, None),
    ('Table 4', 'CV-en-05 to 95, central'): (0.5, 150_000, None),
    ('Table 4', 'LS-100 to CV-en, central'): (0.5, 40_000, None),
    ('Table 4', 'LS-960 to CV-en, central'): (0.5, 150_000, None),
    ('Table 10', 'CV-fr, central'): (0.5, 200_000, None),
    ('Table 10', 'CV-fr-10 to 90, central'): (0.2, 150_000, None),
    # The paper's text has these two the other way round.
    ('Table 10', 'CV-de, central'): (0.2, 150_000, None),
    ('Table 10', 'CV-de-10 to 90, central'): (0.5, 200_000, None),
}


class _Command(NamedTuple):
  """Flags of a training run."""

  gin_files: tuple[str, ...]
  gin_params: tuple[str, ...]

  def settings(self) -> dict[str, str]:
    """All macros of the run, as text."""
    config.bind(
        experiment_files.program(self.gin_files[0]),
        gin_files=self.gin_files,
        gin_params=self.gin_params,
    )
    return dict(
        re.findall(r'^([A-Z]\w*) = (?:\\\n +)?(.+)$', config.text(), re.M)
    )


def _command(row: published.PublishedRun) -> _Command:
  """The flags that the page's command has for a row."""
  return _Command(row.gin_files, row.gin_params)


def _commands(run: str, arguments: str) -> list[_Command]:
  """The commands of a row of pre-training; {a, b} stands for each of them."""
  # A mapping of gin has colons.
  braces = re.findall(r'\{([^{}:]*)\}', arguments)
  found = []
  for values in itertools.product(*(each.split(', ') for each in braces)):
    text = arguments
    for each, value in zip(braces, values):
      text = text.replace(f'{{{each}}}', value, 1)
    found.append(text)
  return [
      _Command(
          (f'gin/experiments/{run}.gin', *_flags('gin_file', text)),
          _flags('gin_param', text),
      )
      for text in found
  ]


def _flags(name: str, text: str) -> tuple[str, ...]:
  """The values of a flag on a command line."""
  prefix = f'--{name}='
  return tuple(
      word.removeprefix(prefix)
      for word in shlex.split(text)
      if word.startswith(prefix)
  )


def _table(page: str, prefixes: str) -> list[list[str]]:
  """Rows of a page with a file of gin/experiments in the second cell."""
  rows = [
      [cell.strip('` ') for cell in line.strip('|').split('|')]
      for line in experiment_files.read(page).splitlines()
  ]
  return [
      row
      for row in rows
      if len(row) > 4 and re.fullmatch(rf'({prefixes})_\w+', row[1])
  ]


_ROWS = published.read()


def _row(table: str, run: str, *settings: str) -> published.PublishedRun:
  """The first row of a run with these settings."""
  return next(
      row for row in _ROWS
      if (row.table, row.run) == (table, run)
      and set(settings) <= set(row.differs_by)
  )


class SettingsTest(parameterized.TestCase):
  """The files have the settings of the paper and of its published code."""

  def test_each_federated_file_has_the_published_rates(self):
    for name, values in _FEDERATED.items():
      with self.subTest(name):
        found = _Command((f'gin/experiments/{name}.gin',), ()).settings()
        self.assertEqual(
            tuple(float(found[key]) for key in _FEDERATED_SETTINGS), values
        )
        expected = _OF_EACH_FEDERATED_RUN | _OF_EACH_MODEL | {
            'DROPOUT': '0.3', 'LAYER_DROP': '0.3',
            'ACTIVATION_DTYPE': "'bfloat16'",
        }
        self.assertEqual({key: found[key] for key in expected}, expected)

  def test_private_runs_take_ten_steps_and_clip_to_0_01(self):
    for name in _FEDERATED:
      found = _Command((f'gin/experiments/{name}.gin',), ()).settings()
      is_private, takes_steps = '_dp_' in name, '_steps_' in name
      with self.subTest(name):
        self.assertEqual(
            (found['NUM_LOCAL_STEPS'], found['NUM_LOCAL_EPOCHS']),
            ('10', 'None') if is_private or takes_steps else ('None', '10'),
        )
        # The published code clips runs of 10 steps without noise, too.
        self.assertEqual(
            found['L2_NORM_CLIP'],
            '0.01' if is_private or takes_steps else '1e999',
        )
        self.assertEqual(
            found['BUILD_COHORTS'],
            '@cohorts.poisson' if is_private else '@cohorts.fixed_size',
        )
        self.assertEqual(found['DELTA'], '1e-09' if is_private else 'None')
        self.assertEqual(
            found['NOISE_MULTIPLIER'], '0.003072' if is_private else '0.0'
        )

  def test_each_central_file_has_the_published_settings(self):
    for path in _TRAINING:
      if '_central' not in path:
        continue
      name = experiment_files.name(path)
      found = _Command((path,), ()).settings()
      is_seed = name == 'cv_central_10'
      expected = _OF_EACH_CENTRAL_RUN | _OF_EACH_MODEL | {
          'DROPOUT': '0.4' if is_seed else '0.3',
          'LAYER_DROP': '0.4' if is_seed else '0.3',
          'MAX_BATCH_SEC': '216.0' if is_seed else '240.0',
          'ACTIVATION_DTYPE': (
              "'float32'" if name == 'cv_central' else "'bfloat16'"
          ),
      }
      with self.subTest(name):
        self.assertEqual({key: found[key] for key in expected}, expected)
        # The lowest WER is kept; no run ends before its last step.
        self.assertGreaterEqual(
            int(found['PATIENCE']) * int(found['EVALUATE_EVERY']),
            int(found['NUM_STEPS']),
        )

  @parameterized.parameters(*_CENTRAL)
  def test_central_rates_are_the_published_ones(self, table, run):
    rate, start, halving = _CENTRAL[table, run]
    command = _command(_row(table, run))
    schedule = config.bind(
        schedules.warmup,
        gin_files=command.gin_files,
        gin_params=command.gin_params,
    )()
    if halving is None:
      expected = {
          0: 0.0,
          1: rate,
          start - 1: rate,
          start: rate / 2,
          start + 49_998: rate / 2,
          start + 49_999: rate / 4,
          start + 99_999: rate / 8,
      }
    else:
      expected = {
          0: rate,
          start: rate,
          start + halving // 2: rate * 0.7071068,
          start + halving: rate / 2,
          start + 6 * halving: rate / 64,
      }
    np.testing.assert_allclose(
        [float(schedule(step)) for step in expected],
        list(expected.values()),
        rtol=1e-5,
    )


class RecipeTest(parameterized.TestCase):
  """docs/recipe.md: each row is a run that binds."""

  def test_each_file_and_each_table_of_the_paper_has_a_row(self):
    self.assertEqual(
        {row.file for row in _ROWS}, set(map(experiment_files.name, _TRAINING))
    )
    tables = ' '.join(row.table for row in _ROWS)
    for table in range(3, 22):
      self.assertRegex(tables, rf'\b{table}\b')
    self.assertLen(set(_ROWS), len(_ROWS))

  def test_rows_bind_with_their_settings(self):
    # Rows of one file that set the same macros bind alike.
    kinds = {}
    for row in _ROWS:
      names = [each.partition(' = ')[0] for each in row.differs_by]
      kinds.setdefault((row.file, *sorted(names)), row)
    self.assertGreater(len(kinds), 50)
    for row in kinds.values():
      with self.subTest(row):
        found = _command(row).settings()
        for param in row.gin_params:
          self.assertIn(param.partition(' = ')[0], found)

  @parameterized.parameters(*_ROWS)
  def test_a_row_has_its_rate_and_source(self, *row):
    row = published.PublishedRun(*row)
    self.assertRegex(row.source, r'^(code|paper|guess|choice)\b')
    self.assertRegex(row.wer, r'^[\d.]+/[\d.]+$|^[a-z]')

  @parameterized.parameters(3, 4, 15, 16, 17, 18, 20, 21)
  def test_word_error_rates_are_the_paper_s(self, table):
    columns = getattr(published_numbers, f'TABLE_{table}')
    for run, printed in columns.items():
      found = {}
      for row in _ROWS:
        if (row.table, row.run) == (_title(table), run):
          settings = dict(each.split(' = ') for each in row.differs_by
                          if ' = ' in each)
          column = settings.get('COHORT_SIZE')
          if '_dp_' in row.file:
            # z over 1,024, in 1e-6; the default is 3.
            z = float(settings.get('NOISE_MULTIPLIER', 0.003072))
            column = round(z / 1024 * 1e6, 3)
          found[column and int(column) if table < 17 else column] = row.wer
      self.assertEqual(printed.items() & found.items(), printed.items(), run)

  def test_hours_are_the_paper_s(self):
    lines = experiment_files.read('docs/recipe.md').splitlines()
    number = lambda cell: int(cell.replace(',', ''))
    rows = [
        [cell.strip('` ') for cell in line.strip('|').split(' |')]
        for line in lines[lines.index('## Table 22: A100 hours'):]
    ]
    names = rows[[row[0] for row in rows].index('run')]
    of_passes = {
        row[1]: {
            int(name.removeprefix('S = ')): number(cell)
            for name, cell in zip(names[2:], row[2:], strict=True) if cell
        }
        for row in rows if row[1:] and row[1] in _FEDERATED
    }
    self.assertEqual(of_passes, published_numbers.HOURS_OF_PASSES)
    of_steps = {
        (language, row[0].endswith(', noise')): number(cell)
        for row in rows if row[0].startswith('10 steps')
        for language, cell in zip(('en', 'fr', 'de'), row[1:], strict=True)
    }
    self.assertEqual(of_steps, published_numbers.HOURS_OF_STEPS)

  def test_runs_have_the_code_s_rounds(self):
    for name in _FEDERATED:
      found = _Command((f'gin/experiments/{name}.gin',), ()).settings()
      expected = 64_000 if name == 'ls_federated_100' else (
          published_numbers.NUM_ROUNDS
      )
      self.assertEqual(int(found['NUM_ROUNDS']), expected, name)

  def test_figures_of_noise_by_layer_have_their_captions_settings(self):
    rows = [row for row in _ROWS if row.run.startswith('Figure 1')]
    self.assertLen(rows, 20)
    caption = published_numbers.NOISE_BY_LAYER
    splits = {'15 left': 'global', '15 right': 'uniform', '16': 'dim'}
    for row in rows:
      found = _command(row).settings()
      self.assertAlmostEqual(
          float(found['NOISE_MULTIPLIER']),
          caption['sigma'] * caption['cohort'],
      )
      self.assertEqual(
          (float(found['L2_NORM_CLIP']), int(found['NUM_ROUNDS']),
           int(found['COHORT_SIZE']), found['INIT_FROM_RUN']),
          (caption['clip'], caption['rounds'], caption['cohort'],
           "'runs/ls_central_100'"),
      )
      (split,) = [
          split for panel, split in splits.items()
          if f'Figure {panel}' in row.run
      ]
      self.assertEqual(found['CLIP_SPLIT'], f"'{split}'")

  def test_the_gap_to_central_training_at_256_clients(self):
    # docs/results.md: it is gone from LS-960 only.
    rate = lambda run, column: float(
        published_numbers.TABLE_4[run][column].split('/')[0]
    )
    gaps = {
        run: rate(run, 256) - rate(f'{run}, central', None)
        for run in published_numbers.TABLE_4 if 'central' not in run
    }
    self.assertEqual([run for run, gap in gaps.items() if gap <= 0],
                     ['LS-960 to CV-en'])
    text = ' '.join(experiment_files.read('docs/results.md').split())
    self.assertIn('only from LS-960 (13.7 against 14.1 %', text)

  def test_a_row_s_arguments_have_their_effect(self):
    dim = _command(_row('Table 1, 17', 'dim')).settings()
    self.assertEqual(dim['CLIP_SPLIT'], "'dim'")
    de = _command(
        _row('Table 18', 'CV-de-10 to 90, global')
    ).settings()
    self.assertEqual(
        [de[name] for name in (
            'LANGUAGE', 'CLIP_SPLIT', 'NUM_ROUNDS', 'SEED_RUN',
        )],
        ["'de'", "'global'", '2000', "'runs/cv_de_central_10'"],
    )

  @parameterized.parameters(*_FEDERATED)
  def test_as_published_is_one_file_for_each_federated_run(self, name):
    files = (f'gin/experiments/{name}.gin', 'gin/experiments/as_published.gin')
    found = _Command(files, ()).settings()
    self.assertEqual(found['CLIP_RULE'], "'rescale'")
    self.assertEqual(found['BUILD_COHORTS'], '@cohorts.fixed_size')
    self.assertEqual(found['FRONT_PADDING'], "'flax_same'")
    # 22 copies of an utterance, or 10 steps.
    self.assertIn(
        (found['NUM_LOCAL_EPOCHS'], found['NUM_LOCAL_STEPS']),
        [('11', 'None'), ('11', '10')],
    )
    self.assertIn('Pipeline.repeats = 2', config.text().replace(
        'pipeline.', ''
    ))
    # Clients of a run of steps are dealt out evenly.
    self.assertEqual(
        found['NUM_PROCESSES'] == '%PUBLISHED_PROCESSES'
        and found['PUBLISHED_PROCESSES'],
        '2' if found['NUM_LOCAL_STEPS'] == 'None' else '1',
    )
    # Global clipping takes the same file.
    config.bind(
        clipping.Clipping, gin_files=files, gin_params=["CLIP_SPLIT = 'global'"]
    )()

  @parameterized.parameters(*_TRAINING)
  def test_a_header_says_what_to_expect_and_how_to_run_it(self, path):
    header = experiment_files.read(path).split('from __gin__')[0]
    for part in ('Expected WER', 'Cost', 'Table', f'--gin_file={path}'):
      self.assertIn(part, header)


def _title(table: int) -> str:
  return 'Table 1, 17' if table == 17 else f'Table {table}'


class PretrainingRowsTest(parameterized.TestCase):
  """docs/pretraining.md: each row binds, and has the stated epsilon."""

  def test_each_row_binds_and_has_its_epsilon(self):
    rows = _table('docs/pretraining.md', 'ssl')
    self.assertGreaterEqual(len(rows), 17)
    for paper, run, arguments, _, cost in rows:
      for command in _commands(run, arguments):
        with self.subTest(paper, command=command):
          found = command.settings()
          if cost:
            self.check_epsilon(found, *map(float, cost.split(', ')))

  def check_epsilon(
      self, found: dict[str, str], epsilon: float, delta: float, times: float
  ) -> None:
    """Checks epsilon for `times` as many utterances, at equal noise."""
    self.assertEqual(float(found['DELTA']), delta)
    # 10^(9 / 1.1) utterances are ten times as many as Libri-Light's.
    group = accounting.RoundGroup(
        sampling=accounting.Sampling(
            kind='poisson',
            cohort_size=int(times * int(found['BATCH_SIZE'])),
            population=int(times * 15_200_000),
        ),
        noise_multiplier=times * float(found['NOISE_MULTIPLIER']),
        count=int(found['NUM_STEPS']),
    )
    total = accounting.epsilon([group], delta=delta)
    self.assertAlmostEqual(total / epsilon, 1, delta=0.02)
    # Above it, reports say NOT PRIVATE.
    self.assertLess(total, privacy_report.MAX_USEFUL_EPSILON)

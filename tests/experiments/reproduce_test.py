"""`experiments.published` and `reproduce`: the paper's runs by name."""

import pathlib
import re
import shlex
import subprocess
import sys

from absl.testing import parameterized
import pytest

from experiments import published
from tests import cases
from tests import fakes
from tests.bin import programs
from tff_asr import config
from tff_asr.models import ctc
from tff_asr.models import weights as weights_lib

_RUNS = published.read()


class NamesTest(parameterized.TestCase):

  def test_names_and_folders_are_those_of_one_run(self):
    self.assertLen(_RUNS, 288)
    self.assertLen({run.name for run in _RUNS}, 288)
    # Some rows are repeated in another table, but no folder is.
    self.assertLen({run.folder for run in _RUNS}, 288)

  @parameterized.parameters(
      ('Table 21, deep, uniform', 'Table 21: deep, uniform, z = 0.01024'),
      ('UNIFORM deep 21', 'Table 21: deep, uniform, z = 0.01024'),
      # The name is also the beginning of other names.
      ('Table 3: LS-960, central', 'Table 3: LS-960, central'),
      ('17 global z = 0.003072', 'Table 1, 17: global, z = 0.003072'),
  )
  def test_words_find_a_run(self, words, name):
    self.assertEqual(published.find(_RUNS, words).name, name)

  def test_words_of_no_run_and_of_several(self):
    with self.assertRaisesRegex(ValueError, "words 'Table 99': --list"):
      published.find(_RUNS, 'Table 99')
    with self.assertRaisesRegex(ValueError, '^4 runs .*: Table 21: seed'):
      published.find(_RUNS, 'deep')

  def test_a_run_comes_after_its_seed_models(self):
    chain = lambda words: [
        run.name
        for run in published.chain(_RUNS, published.find(_RUNS, words))
    ]
    self.assertEqual(
        chain('Table 21, deep, uniform'),
        ['Table 21: seed LS-100, deep', 'Table 21: deep, uniform, z = 0.01024'],
    )
    # CV-en to LS-960: the seed's own start is from nothing.
    self.assertEqual(
        chain('Table 3: CV-en to LS-960, S = 64'),
        ['Table 3: seed CV-en', 'Table 3: CV-en to LS-960, S = 64'],
    )
    alone = 'Table 3: LS-960, S = 8'
    self.assertEqual(chain(alone), [alone])

  def test_every_seed_model_is_trained_where_it_is_looked_for(self):
    for run in _RUNS:
      for each in published.chain(_RUNS, run)[:-1]:
        self.assertIn('_central', each.file, run.name)
    seed = published.find(_RUNS, 'Table 4: seed CV-en-05')
    self.assertEqual(seed.folder, 'runs/cv_en_central_05')

  @parameterized.parameters(
      ('Table 4: seed LS-100', ['cv_en/dev', 'cv_en/test']),
      ('Table 3: seed CV-en', ['librispeech/test-clean',
                               'librispeech/test-other']),
      ('Table 10: CV-fr-10 to 90, S = 8', ['cv_fr/dev', 'cv_fr/test']),
      ('Table 5: LS-960, IID, S = 8', ['librispeech/test-clean',
                                       'librispeech/test-other']),
  )
  def test_rates_are_of_the_table_s_sets(self, name, expected):
    found = [
        re.search(r"TEST_DIR = 'data/(.+?)'", ' '.join(each))[1]
        for each in published.evaluation_arguments(
            published.find(_RUNS, name), folder='x'
        )
    ]
    self.assertEqual(found, expected)


class CommandsTest(parameterized.TestCase):

  def test_printed_commands_are_those_that_run(self):
    for run in _RUNS:
      for command in published.commands(_RUNS, run, tiny_dir=None):
        shown = published.shown(command)
        self.assertEqual(
            shlex.split(shown.replace('\\\n', ' ')), ['python', *command]
        )

  def test_each_run_binds_and_builds_at_toy_size(self):
    sizes = {}
    for run in _RUNS:
      command = published.commands(_RUNS, run, tiny_dir='tiny')[-2]
      flag = lambda name, c=command: [
          each.removeprefix(f'--{name}=')
          for each in c
          if each.startswith(f'--{name}=')
      ]
      model = config.bind(
          ctc.build, gin_files=flag('gin_file'), gin_params=flag('gin_param')
      )()
      sizes[run.name] = weights_lib.num_parameters(model.specs)
    self.assertLen(sizes, 288)
    self.assertBetween(min(sizes.values()), 5_000, 20_000)
    self.assertLess(max(sizes.values()), 50_000)
    # The deeper model has twice as many blocks: four in place of two, each of
    # 4 D^2 + 2 D M + 4 D weights.
    size = lambda words: sizes[published.find(_RUNS, words).name]
    self.assertEqual(
        size('Table 21: deep, uniform, z = 0.01024')
        - size('Table 21: baseline, uniform, z = 0.01024'),
        2 * (4 * 16**2 + 2 * 16 * 64 + 4 * 16),
    )

  def test_toy_noise_on_the_mean_is_the_paper_s(self):
    run = published.find(_RUNS, 'Table 21, deep, uniform')
    command = ' '.join(published.commands(_RUNS, run, tiny_dir='tiny')[-2])
    cohort_size = int(re.search(r'COHORT_SIZE = (\d+)', command)[1])
    z = float(re.search(r'NOISE_MULTIPLIER = (\S+)', command)[1])
    self.assertAlmostEqual(z / cohort_size, 0.01024 / 1024)


@pytest.mark.slow
class TinyRunTest(cases.TestCase):

  def test_a_private_run_comes_after_its_seed_and_is_kept(self):
    folder = pathlib.Path(self.root)
    for part, people in (
        ('public', {'ann': 2, 'bob': 2}),
        ('private', {'cai': 1, 'dan': 2, 'eve': 1, 'fay': 1}),
        ('dev', {'gil': 1, 'hal': 1}),
        ('test', {'ida': 1, 'jon': 1}),
    ):
      fakes.write_split(str(folder / 'data' / part), people)
    command = [
        sys.executable, '-m', 'experiments.reproduce', '--scale=tiny',
        '--run=Table 1, 17: dim, z = 0.003072', f'--output_dir={folder}',
    ]
    first = subprocess.run(
        command, cwd=programs.ROOT, text=True, capture_output=True, check=True
    )
    self.assertIn('runs/ls_central_100: the whole model is taken', first.stdout)
    self.assertEqual(first.stdout.count('\npython bin/'), 4)
    for run in ('ls_central_100', 'table_1_17_dim_z_0.003072'):
      self.assertTrue((folder / 'runs' / run / 'test.json').exists())
    # The same command finds that all is done.
    again = subprocess.run(
        command, cwd=programs.ROOT, text=True, capture_output=True, check=True
    )
    self.assertEqual(again.stdout.count('python bin/'), 0)

"""Every program's --help has its docstring, an example, and its flags."""

import re

from absl.testing import parameterized

from tests.bin import in_process
from tests.bin import programs

_PROGRAMS = [
    path.relative_to(programs.ROOT).as_posix()
    for path in sorted((programs.ROOT / 'bin').glob('*.py'))
    if path.name != 'training.py'
]
_CONVERTERS = [
    f'data_tools.{name}'
    for name in (
        'an4', 'common_voice', 'libri_light', 'librispeech', 'manifest',
        'sentence_pieces', 'synthetic_population',
    )
]


class HelpTest(parameterized.TestCase):

  @parameterized.parameters(*_PROGRAMS, *_CONVERTERS)
  def test_help(self, program):
    finished = in_process.run(program, '--help')
    self.assertEqual((finished.code, finished.stderr), (0, ''))
    name = program.removeprefix('bin/').removeprefix('run_')
    self.assertIn(name.removesuffix('.py'), finished.stdout)
    self.assertRegex(finished.stdout, r'\n  --\w+: ')
    self.assertNotIn('.;', finished.stdout)
    if program in ('bin/train_central.py', 'bin/pretrain.py'):
      self.assertIn('\n  --[no]dry_run: ', finished.stdout)

  @parameterized.parameters(
      # The quickstart would begin.
      *(each for each in _PROGRAMS if 'quickstart' not in each), *_CONVERTERS
  )
  def test_says_which_flags_are_required(self, program):
    words = ' '.join(in_process.run(program, '--help').stdout.split())
    finished = in_process.run(program)
    needed = re.match(
        r'error: (?:no configuration: give a file with )?(--\w+)( is needed|\.)',
        finished.stderr,
    )
    if needed:
      self.assertRegex(words, rf'{needed[1]}: (?:(?! --).)*Required\b')
    else:
      self.assertNotIn('Required', words)

  @parameterized.named_parameters(
      ('train_federated', 'train_federated', 'COHORT_SIZE = (required)'),
      ('train_central', 'train_central', 'MAX_BATCH_SEC = 120.0'),
      ('pretrain', 'pretrain', 'SEED = 1'),
      ('evaluate', 'evaluate', 'RUNS = (required)'),
      ('audit_privacy', 'audit_privacy', 'NUM_CANARIES = '),
  )
  def test_lists_settings(self, program, line):
    finished = in_process.run(f'bin/{program}.py', '--help')
    self.assertIn(f'\n  {line}', finished.stdout)

  def test_lists_an_experiments_settings(self):
    finished = in_process.run(
        'bin/train_federated.py', '--help',
        '--gin_file=gin/experiments/quickstart_federated_dp.gin',
    )
    self.assertIn('\n  NOISE_MULTIPLIER = 0.8\n', finished.stdout)
    self.assertEqual(finished.stdout.count('  NOISE_MULTIPLIER = '), 1)

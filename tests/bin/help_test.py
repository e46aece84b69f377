"""Every program's --help has its docstring, an example, and its flags."""

import re

from absl.testing import parameterized

from tests.bin import in_process
from tests.bin import programs

_PROGRAMS = [
    path.relative_to(programs.ROOT).as_posix()
    for path in sorted((programs.ROOT / 'bin').glob('*.py'))
    if path.name not in ('configuration.py', 'training.py')
]
_CONVERTERS = [
    f'data_tools.{name}'
    for name in (
        'an4', 'common_voice', 'libri_light', 'librispeech', 'manifest',
        'ngram', 'sentence_pieces', 'synthetic_population',
    )
]


# A line of what a program lists of its settings.
_SETTINGS = {
    'bin/audit_privacy.py': 'NUM_CANARIES = ',
    'bin/evaluate.py': 'RUNS = (required)',
    'bin/personalize.py': 'PERSONAL_DIR = (required)',
    'bin/pretrain.py': 'SEED = 1',
    'bin/train_central.py': 'MAX_BATCH_SEC = 120.0',
    'bin/train_federated.py': 'COHORT_SIZE = (required)',
}


class HelpTest(parameterized.TestCase):

  @parameterized.parameters(*_PROGRAMS, *_CONVERTERS)
  def test_help(self, program):
    shown = in_process.run(program, '--help')
    self.assertEqual((shown.code, shown.stderr), (0, ''))
    name = program.removeprefix('bin/').removeprefix('run_')
    self.assertIn(name.removesuffix('.py'), shown.stdout)
    self.assertRegex(shown.stdout, r'\n  --\w+: ')
    if program in ('bin/train_central.py', 'bin/pretrain.py'):
      self.assertIn('\n  --[no]dry_run: ', shown.stdout)
    if program in _SETTINGS:
      self.assertIn(f'\n  {_SETTINGS[program]}', shown.stdout)
      self.assertIn('\n  --pretrained: ', shown.stdout)
    if 'quickstart' in program:
      return  # Without flags it would begin.
    words = ' '.join(shown.stdout.split())
    needed = re.match(
        'error: (?:no configuration: give a file with )?'
        r'(--\w+)( is needed|\.)',
        in_process.run(program).stderr,
    )
    if needed:
      self.assertRegex(words, rf'{needed[1]}: (?:(?! --).)*Required\b')
    else:
      self.assertNotIn('Required', words)

  def test_lists_an_experiments_settings(self):
    finished = in_process.run(
        'bin/train_federated.py', '--help',
        '--gin_file=gin/experiments/quickstart_federated_dp.gin',
    )
    self.assertIn('\n  NOISE_MULTIPLIER = 0.8\n', finished.stdout)
    self.assertEqual(finished.stdout.count('  NOISE_MULTIPLIER = '), 1)

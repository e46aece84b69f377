"""Every program's --help has its docstring, an example, and its flags."""

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
        'synthetic_speech',
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
    if program in ('bin/train_central.py', 'bin/pretrain.py'):
      self.assertIn('\n  --[no]dry_run: ', finished.stdout)

"""Every program's --help says what it does, by an example, and has its flags."""

from absl.testing import absltest
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
        'an4', 'common_voice', 'libri_light', 'librispeech', 'synthetic_speech',
    )
]


class HelpTest(parameterized.TestCase):

  @parameterized.parameters(*_PROGRAMS, *_CONVERTERS)
  def test_help(self, program):
    finished = in_process.run(program, '--help')
    self.assertEqual((finished.code, finished.stderr), (0, ''))
    example = program.removeprefix('bin/run_').removesuffix('.py')
    self.assertIn(f'{example.removeprefix("bin/")}', finished.stdout)
    for flag in ('gin_param', 'dry_run'):
      is_training = program.startswith(('bin/train_', 'bin/pretrain'))
      self.assertTrue(f'--[no]{flag}' in finished.stdout
                      or f'--{flag}' in finished.stdout or not is_training)
    self.assertRegex(finished.stdout, r'\n  --\w+')


if __name__ == '__main__':
  absltest.main()

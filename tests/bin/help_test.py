"""Every program's --help is short, has groups, and an example."""

import pathlib

from absl.testing import absltest
from absl.testing import parameterized

from tests.bin import in_process
from tests.bin import programs

_MAX_LINES = 50
_PROGRAMS = sorted(
    path.relative_to(programs.ROOT).as_posix()
    for path in pathlib.Path(programs.ROOT, 'bin').glob('*.py')
)
_CONVERTERS = (
    'data_tools.an4',
    'data_tools.common_voice',
    'data_tools.libri_light',
    'data_tools.librispeech',
    'data_tools.synthetic_speech',
)


class HelpTest(parameterized.TestCase):

  @parameterized.parameters(*_PROGRAMS, *_CONVERTERS)
  def test_help(self, program):
    finished = in_process.run(program, '--help')
    self.assertEqual(finished.code, 0, finished.stderr)
    self.assertEqual(finished.stderr, '')
    lines = finished.stdout.splitlines()
    self.assertLessEqual(len(lines), _MAX_LINES)
    self.assertLessEqual(max(map(len, lines)), 80)
    self.assertTrue(
        any(line.startswith(f'  python {program} ') for line in lines)
        or f'  {program.removeprefix("bin/run_")}' in finished.stdout
        or f'python -m {program} ' in finished.stdout
        or '  bin/quickstart' in lines,
        finished.stdout,
    )
    headings = [line for line in lines if line in ('Needed:', 'Optional:')]
    self.assertNotEmpty(headings)


if __name__ == '__main__':
  absltest.main()

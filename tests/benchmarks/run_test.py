"""Names, flags and tables of the benchmarks' one command."""

import glob
import os
import subprocess
import sys

from absl.testing import parameterized

from benchmarks import run
from tests import cases

_ROOT = os.path.join(os.path.dirname(__file__), '..', '..')


class RunTest(cases.TestCase):

  def test_knows_every_program_of_the_folder(self):
    folder = os.path.dirname(run.__file__)
    found = set()
    for path in glob.glob(os.path.join(folder, '*.py')):
      with open(path, encoding='utf-8') as file:
        if 'report.write(' in file.read():
          found.add(os.path.basename(path).removesuffix('.py'))
    self.assertNotEmpty(found)
    self.assertEqual(found, set(run.NAMES))

  def test_a_quoted_argument_has_flags_of_its_own(self):
    self.assertEqual(
        run.parse(['soak', "conversion --speech='my speech'"]),
        [('soak', []), ('conversion', ['--speech=my speech'])],
    )
    self.assertNotIn(('conversion', []), run.parse(['all']))

  @parameterized.parameters(
      (['soaks'], "no benchmark is called 'soaks'; there are local_step,"),
      (['soak', 'soak --rounds=9'], 'soak is given twice'),
  )
  def test_refuses(self, arguments, message):
    with self.assertRaisesRegex(ValueError, message):
      run.parse(arguments)

  def test_a_section_has_the_command_and_the_tables_without_progress(self):
    output = 'corpus: 1.0 s\n\nMemory\n\n| a | b |\n|---|---|\n| 1 | 2 |\n'
    self.assertEqual(
        run.section('soak', ['--rounds=20', '--x=a b'], output),
        '## soak\n\n'
        "    python -m benchmarks.soak --rounds=20 '--x=a b'\n\n"
        'Memory\n\n| a | b |\n|---|---|\n| 1 | 2 |\n\n',
    )

  def test_lists_without_loading_tensorflow(self):
    done = subprocess.run(
        [sys.executable, '-X', 'importtime', '-m', 'benchmarks.run', '--list'],
        cwd=_ROOT,
        check=True,
        capture_output=True,
        text=True,
        timeout=60,
    )
    self.assertLen(done.stdout.splitlines(), len(run.NAMES))
    self.assertNotIn('tensorflow', done.stderr)

  def test_a_failure_is_named_after_the_others_ran(self):
    done = subprocess.run(
        [
            sys.executable,
            '-m',
            'benchmarks.run',
            'conversion',
            f'--results={self.root}',
        ],
        cwd=_ROOT,
        check=False,
        capture_output=True,
        text=True,
        timeout=300,
    )
    self.assertEqual(done.returncode, 1)
    self.assertIn('--speech is needed', done.stderr)
    self.assertIn('error: failed: conversion;', done.stderr)
    self.assertEmpty(os.listdir(self.root))

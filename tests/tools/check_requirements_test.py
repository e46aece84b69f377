"""Tests of tools/check_requirements.py."""

import subprocess
from unittest import mock

from absl.testing import absltest
import pytest

from tools import check_requirements

_KNOWN = '\n'.join(check_requirements.KNOWN) + '\n'


class CheckRequirementsTest(absltest.TestCase):

  def test_the_two_known_lines_are_no_surprise(self):
    self.assertLen(check_requirements.KNOWN, 2)
    self.assertEmpty(list(check_requirements.surprises(_KNOWN)))

  def test_another_line_is_a_surprise(self):
    line = 'ray 2.52.1 requires msgpack, which is not installed.'
    self.assertEqual(
        list(check_requirements.surprises(_KNOWN + line)),
        [f'pip check: {line}'],
    )

  def test_a_known_line_of_another_version_is_two_surprises(self):
    changed = _KNOWN.replace('jax 0.4.13', 'jax 0.4.12')
    self.assertLen(list(check_requirements.surprises(changed)), 2)

  def test_a_known_line_that_is_gone_is_a_surprise(self):
    self.assertLen(
        list(check_requirements.surprises('No broken requirements found.\n')), 3
    )

  def test_pins_that_are_not_there_are_named(self):
    pins = ['# A comment.', '', 'pytest==0.1', f'pytest=={pytest.__version__}']
    self.assertEqual(
        list(check_requirements.missing([*pins, 'no-such-package==1.0'])),
        [
            f'pytest==0.1 is needed, found {pytest.__version__}.',
            'no-such-package==1.0 is not installed.',
        ],
    )

  def test_program_ends_with_1_and_a_line_for_each_difference(self):
    output = subprocess.CompletedProcess([], 1, stdout=_KNOWN + 'more\n')
    with mock.patch.object(subprocess, 'run', return_value=output):
      with mock.patch.object(
          check_requirements, 'missing', return_value=['x==1 is not installed.']
      ):
        with self.assertRaises(SystemExit) as caught:
          check_requirements.main()
    self.assertEqual(
        caught.exception.code,
        'error: x==1 is not installed.\nerror: pip check: more',
    )


if __name__ == '__main__':
  absltest.main()

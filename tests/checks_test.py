import math
import os
import pathlib
import tempfile
from unittest import mock

from absl.testing import parameterized
import numpy as np

from tff_asr import checks

_NAN = math.nan
_INF = math.inf


class ChecksTest(parameterized.TestCase):

  @parameterized.named_parameters(
      ('positive', checks.positive, [1, 0.5, _INF, np.float64(2)]),
      ('non_negative', checks.non_negative, [0, 0.0, 3, _INF]),
      ('positive_int', checks.positive_int, [1, 2**70]),
      ('non_negative_int', checks.non_negative_int, [0, 5]),
      ('finite', checks.finite, [0, -1.5, 1e308]),
      ('in_range', lambda **v: checks.in_range(0, 1, **v), [0, 1, 0.5]),
      ('below_one', checks.below_one, [0, 0.5, 1 - 1e-9]),
      ('one_of', lambda **v: checks.one_of(('a', 'b'), **v), ['a', 'b']),
  )
  def test_allowed_values_pass(self, check, values):
    for value in values:
      self.assertIsNone(check(clip=value))

  @parameterized.named_parameters(
      ('positive', checks.positive, [0, -1, _NAN, '1', None, True]),
      ('non_negative', checks.non_negative, [-1e-9, -_INF, _NAN, '0', False]),
      ('positive_int', checks.positive_int, [0, -3, 1.0, True, '1', None]),
      ('non_negative_int', checks.non_negative_int, [-1, 0.0, False, None]),
      ('finite', checks.finite, [_INF, -_INF, _NAN, '0', True]),
      (
          'in_range',
          lambda **v: checks.in_range(0, 1, **v),
          [-0.01, 1.01, _NAN, '0', True],
      ),
      ('below_one', checks.below_one, [-0.01, 1, 1.0, _NAN, '0', True]),
      ('one_of', lambda **v: checks.one_of(('a', 'b'), **v), ['c', '', None]),
  )
  def test_other_values_raise_with_the_name_and_the_value(self, check, values):
    for value in values:
      with self.subTest(repr(value)):
        with self.assertRaises(ValueError) as caught:
          check(clip=value)
        self.assertStartsWith(str(caught.exception), 'clip must be ')
        self.assertIn(f'found {value!r}.', str(caught.exception))
        self.assertNotIn('\n', str(caught.exception))

  def test_each_of_several_values_is_checked(self):
    with self.assertRaisesRegex(ValueError, '^second must be positive'):
      checks.positive(first=1, second=0, third=2)

  def test_the_message_says_what_is_allowed(self):
    with self.assertRaisesRegex(ValueError, 'between 0 and 1, found 2'):
      checks.in_range(0, 1, beta=2)
    with self.assertRaisesRegex(ValueError, "one of 'op', 'dense', found 'x'"):
      checks.one_of(('op', 'dense'), kernel='x')

  def test_range_bounds_may_share_a_name_with_the_value(self):
    checks.in_range(0, 1, low=0.5, high=1)
    with self.assertRaisesRegex(ValueError, '^allowed must be one of'):
      checks.one_of(('a',), allowed='b')

  @parameterized.parameters(False, True)
  def test_flags_of_xla_that_change_arithmetic_are_refused(self, is_file):
    flags = '--xla_dump_to=x --xla_cpu_enable_fast_math=true'
    if is_file:
      folder = self.enterContext(tempfile.TemporaryDirectory())
      path = pathlib.Path(folder, 'flags')
      path.write_text(flags, 'utf-8')
      flags = str(path)
    for accepted in ('', '--xla_dump_to=x', 'no/such/file'):
      with mock.patch.dict(os.environ, XLA_FLAGS=accepted):
        checks.xla_is_exact()
    with mock.patch.dict(os.environ, XLA_FLAGS=flags):
      with self.assertRaisesRegex(ValueError, 'XLA_FLAGS.*leave it out'):
        checks.xla_is_exact()

  def test_several_errors_are_raised_as_one_with_a_line_each(self):
    one, two = ValueError('one.'), OSError('two.')
    checks.raise_errors([])
    with self.assertRaises(OSError) as caught:
      checks.raise_errors([two])
    self.assertIs(caught.exception, two)
    # The same twice is one.
    with self.assertRaises(ValueError) as caught:
      checks.raise_errors([one, ValueError('one.')])
    self.assertIs(caught.exception, one)
    with self.assertRaises(checks.Problems) as caught:
      checks.raise_errors(
          [one, checks.Problems('three.', 'one.'), two]
      )
    self.assertEqual(caught.exception.messages, ('one.', 'three.', 'two.'))
    self.assertEqual(str(caught.exception), 'one.\nthree.\ntwo.')

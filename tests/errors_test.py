"""Tests of tff_asr.errors."""

from absl.testing import parameterized
import tensorflow as tf

from tff_asr import checks
from tff_asr import errors


def _chained(error: Exception, cause: Exception) -> Exception:
  error.__cause__ = cause
  return error


class ErrorsTest(parameterized.TestCase):

  @parameterized.named_parameters(
      ('plain', ValueError('a setting is wrong.'), 'a setting is wrong.'),
      ('lines', ValueError('one\n  two\n\n three'), 'one two three'),
      ('empty', ValueError(), 'ValueError'),
      ('file', FileExistsError(17, 'File exists', '/a/b'), '/a/b: File exists'),
      ('no_file', OSError(28, 'Saving takes 3 MB.'), 'Saving takes 3 MB.'),
      (
          'gin',
          ValueError("clip is wrong.\n  In call to configurable 'x' (<f>)"),
          'clip is wrong.',
      ),
      (
          'tensorflow',
          tf.errors.InvalidArgumentError(
              None, None, 'record 3 is damaged\n\t [[{{node Assert}}]]\nmore'
          ),
          'record 3 is damaged',
      ),
      (
          'check_in_a_graph',
          ValueError(
              'Client 1 failed: {{function_node __inference_f_1}} assertion'
              ' failed: [record 1 of 2 is damaged; copy it.]'
          ),
          'Client 1 failed: record 1 of 2 is damaged; copy it.',
      ),
      (
          'check_in_the_native_worker',
          RuntimeError(
              '<_InactiveRpcError of RPC that terminated with:\n\tdetails = '
              '"Failed to run computation: assertion failed: [record 1 is '
              'damaged; copy it.]\n\t [[{{node Assert}}]] while evaluating x"'
          ),
          'record 1 is damaged; copy it.',
      ),
      (
          'in_a_context',
          _chained(RuntimeError('wrong.'), ValueError('deep')),
          'wrong.',
      ),
      (
          'at_a_client',
          _chained(
              RuntimeError('wrong.'),
              tf.errors.InvalidArgumentError(None, None, 'deep'),
          ),
          'wrong.',
      ),
  )
  def test_users_errors_are_one_line(self, error, expected):
    self.assertTrue(errors.is_users(error))
    self.assertEqual(errors.lines(error), [expected])

  def test_several_problems_are_a_line_each(self):
    problems = checks.Problems('one is\n  wrong.', 'two is.')
    self.assertEqual(errors.lines(problems), ['one is wrong.', 'two is.'])

  @parameterized.parameters(
      TypeError('a defect'),
      KeyError('a defect'),
      RuntimeError('a defect'),
      _chained(RuntimeError('a defect'), TypeError('deep')),
  )
  def test_defects_are_not_users(self, error):
    self.assertFalse(errors.is_users(error))

"""Tests of tff_asr.launch; `tests/bin` sees it at work."""

import contextlib
import io
import signal

from absl import flags
from absl.testing import absltest
from absl.testing import flagsaver
from absl.testing import parameterized
import tensorflow as tf

from tff_asr import launch


def _chained(error: Exception, cause: Exception) -> Exception:
  error.__cause__ = cause
  return error


class LaunchTest(parameterized.TestCase):

  @parameterized.named_parameters(
      ('plain', ValueError('a setting is wrong.'), 'a setting is wrong.'),
      ('lines', ValueError('one\n  two\n\n three'), 'one two three'),
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
      ('empty', ValueError(), 'ValueError'),
  )
  def test_one_line(self, error, expected):
    self.assertEqual(launch.one_line(error), expected)

  def run_main(self, error: BaseException | None, *, argv=('program',)):
    """(exit argument, standard error) of a main that raises."""

    def main(_):
      if error is not None:
        raise error

    wrapped = launch._explain_errors(main)
    stream = io.StringIO()
    flags.FLAGS(['program'])
    with contextlib.redirect_stderr(stream):
      with self.assertRaises(SystemExit) as caught:
        wrapped(list(argv))
    return caught.exception.code, stream.getvalue()

  @parameterized.named_parameters(
      ('value', ValueError('wrong.')),
      ('file', FileNotFoundError('wrong.')),
      ('graph', tf.errors.InvalidArgumentError(None, None, 'wrong.')),
      ('in_a_context', _chained(RuntimeError('wrong.'), ValueError('deep'))),
      (
          'at_a_client',
          _chained(
              RuntimeError('wrong.'),
              tf.errors.InvalidArgumentError(None, None, 'deep'),
          ),
      ),
  )
  def test_users_errors_become_a_line_without_traceback(self, error):
    code, printed = self.run_main(error)
    # What Python prints on standard error, with exit code 1.
    self.assertEqual(code, 'error: wrong.')
    self.assertEqual(printed, '')

  def test_verbosity_adds_the_traceback(self):
    flags.FLAGS(['program'])
    with flagsaver.flagsaver(verbosity=1):
      code, printed = self.run_main_verbose()
    self.assertEqual(code, 'error: wrong.')
    self.assertIn('Traceback', printed)

  def run_main_verbose(self):
    wrapped = launch._explain_errors(self.fail_with_value_error)
    stream = io.StringIO()
    with contextlib.redirect_stderr(stream):
      with self.assertRaises(SystemExit) as caught:
        wrapped(['program'])
    return caught.exception.code, stream.getvalue()

  def fail_with_value_error(self, _):
    raise ValueError('wrong.')

  @parameterized.named_parameters(
      ('type', TypeError('a defect')),
      ('key', KeyError('a defect')),
      ('runtime', RuntimeError('a defect')),
      ('caused', _chained(RuntimeError('a defect'), TypeError('deep'))),
  )
  def test_defects_keep_their_traceback(self, error):
    def main(_):
      raise error

    flags.FLAGS(['program'])
    with self.assertRaises(type(error)) as caught:
      launch._explain_errors(main)(['program'])
    self.assertIs(caught.exception, error)

  def test_interrupt_says_how_to_go_on(self):
    code, printed = self.run_main(KeyboardInterrupt())
    self.assertEqual(code, 130)
    self.assertEqual(
        printed,
        'interrupted: the same command goes on from what was saved last.\n',
    )

  def test_sigterm_ends_as_an_interrupt_with_its_own_code(self):
    before = signal.getsignal(signal.SIGTERM)
    wrapped = launch._explain_errors(
        lambda _: signal.raise_signal(signal.SIGTERM)
    )
    stream = io.StringIO()
    with contextlib.redirect_stderr(stream):
      with self.assertRaises(SystemExit) as caught:
        wrapped(['program'])
    self.assertEqual(caught.exception.code, 143)
    self.assertStartsWith(stream.getvalue(), 'terminated: ')
    self.assertEqual(signal.getsignal(signal.SIGTERM), before)

  def test_arguments_that_are_not_flags_are_refused(self):
    code, _ = self.run_main(None, argv=('program', 'gin/x.gin'))
    self.assertIn("unexpected argument 'gin/x.gin'", code)


if __name__ == '__main__':
  absltest.main()

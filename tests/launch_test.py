"""Tests of tff_asr.launch; tests/bin covers it in real programs."""

import contextlib
import io
import os
import signal
import subprocess
import sys
import textwrap
import time

from absl import flags
from absl.testing import flagsaver
from absl.testing import parameterized
import psutil
import tensorflow as tf

from tff_asr import checks
from tff_asr import launch


def _chained(error: Exception, cause: Exception) -> Exception:
  error.__cause__ = cause
  return error


class ErrorLinesTest(parameterized.TestCase):

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
    self.assertTrue(launch.is_user_error(error))
    self.assertEqual(launch.error_lines(error), [expected])

  def test_several_problems_are_a_line_each(self):
    problems = checks.Problems('one is\n  wrong.', 'two is.')
    self.assertEqual(launch.error_lines(problems), ['one is wrong.', 'two is.'])

  @parameterized.parameters(
      TypeError('a defect'),
      KeyError('a defect'),
      RuntimeError('a defect'),
      _chained(RuntimeError('a defect'), TypeError('deep')),
  )
  def test_defects_are_not_user_errors(self, error):
    self.assertFalse(launch.is_user_error(error))


class ErrorsTest(parameterized.TestCase):

  def run_main(self, error: BaseException, *, ends_in=SystemExit):
    """The end of a main that raises, and its standard error."""

    def main(_):
      raise error

    stream = io.StringIO()
    flags.FLAGS(['program'])
    with contextlib.redirect_stderr(stream):
      with self.assertRaises(ends_in) as caught:
        launch.run_with_user_errors(main, ['program'], after_interrupt='go on.')
    return caught.exception, stream.getvalue()

  def test_verbosity_adds_the_traceback(self):
    flags.FLAGS(['program'])
    with flagsaver.flagsaver(verbosity=1):
      end, printed = self.run_main(ValueError('wrong.'))
    self.assertEqual(end.code, 'error: wrong.')
    self.assertIn('Traceback', printed)

  def test_defects_keep_their_traceback(self):
    error = TypeError('a defect')
    self.assertIs(self.run_main(error, ends_in=TypeError)[0], error)

  def test_an_interrupt_says_how_to_resume(self):
    end, printed = self.run_main(KeyboardInterrupt())
    self.assertEqual((end.code, printed), (130, 'interrupted: go on.\n'))


class SignalsTest(parameterized.TestCase):

  def run_program(
      self, main: str, *, before: str = ''
  ) -> subprocess.CompletedProcess:
    """Runs a program with these lines in its main, after other lines."""
    program = (
        'import asyncio, os, signal, subprocess, sys, threading, time\n'
        'from tff_asr import launch\n'
        f'{before}\n'
        f'def main(_):\n{textwrap.indent(textwrap.dedent(main), "  ")}\n'
        'launch.run(main)\n'
    )
    return subprocess.run(
        [sys.executable, '-c', program],
        capture_output=True,
        check=False,
        text=True,
        timeout=60,
        # A measured process has a handler of the measurement.
        env={k: v for k, v in os.environ.items() if 'COVERAGE' not in k},
    )

  @parameterized.parameters(signal.SIGINT, signal.SIGTERM)
  def test_signals_during_imports_end_the_program(self, signal_num):
    # An import that swallows an interrupt, as some libraries do.
    finished = self.run_program('pass', before=(
        'launch.install_early_sigint(__name__)\n'
        'try:\n'
        f'  signal.raise_signal({int(signal_num)})\n'
        'except BaseException:\n'
        '  print("swallowed")\n'
    ))
    self.assertEqual(finished.returncode, -signal_num)
    self.assertEqual(finished.stdout + finished.stderr, '')

  def test_nohup_is_respected(self):
    finished = self.run_program(
        'signal.raise_signal(signal.SIGINT)\nprint("done")',
        before='signal.signal(signal.SIGINT, signal.SIG_IGN)\n'
        'launch.install_early_sigint(__name__)',
    )
    self.assertEqual((finished.returncode, finished.stdout), (0, 'done\n'))

  @parameterized.parameters(
      (signal.SIGINT, 130, 'interrupted'), (signal.SIGTERM, 143, 'terminated')
  )
  def test_a_second_signal_ends_the_program_and_its_children_at_once(
      self, signal_num, code, word
  ):
    finished = self.run_program(f'''
        child = subprocess.Popen(['sleep', '600'])
        print(child.pid, flush=True)
        try:
          signal.raise_signal({int(signal_num)})
        finally:
          # What it cannot leave half done takes forever.
          threading.Timer(
              0.2, os.kill, (os.getpid(), {int(signal_num)})
          ).start()
          time.sleep(600)
    ''')
    self.assertEqual(finished.returncode, code)
    self.assertEqual(
        finished.stderr,
        f'{word} twice, ended at once: the same command continues from the '
        'last saved state.\n',
    )
    child = int(finished.stdout)
    # It was sent SIGKILL, and a busy machine takes a moment to act on it.
    deadline = time.monotonic() + 30
    while (
        psutil.pid_exists(child)
        and psutil.Process(child).status() != psutil.STATUS_ZOMBIE
    ):
      self.assertLess(time.monotonic(), deadline)
      time.sleep(0.01)

  def test_a_signal_ends_a_coroutine_where_it_awaits(self):
    finished = self.run_program(f'''
        async def work():
          threading.Timer(
              0.2, os.kill, (os.getpid(), {int(signal.SIGTERM)})
          ).start()
          try:
            await asyncio.sleep(600)
          except asyncio.CancelledError:
            print('saved')
            raise
        launch.run_async(work())
    ''')
    self.assertEqual(finished.returncode, 143)
    self.assertEqual(finished.stdout, 'saved\n')
    self.assertStartsWith(finished.stderr, 'terminated: ')

  def test_a_thread_that_hangs_does_not_block_the_exit(self):
    finished = self.run_program('''
        threading.Thread(target=time.sleep, args=(600,)).start()
        raise TimeoutError('a device hangs.')
    ''')
    self.assertEqual(finished.returncode, 1)
    self.assertEqual(finished.stderr, 'error: a device hangs.\n')

  def test_an_imported_program_restores_the_signal_handlers(self):
    signals = (signal.SIGINT, signal.SIGTERM)
    before = [signal.getsignal(each) for each in signals]
    launch.install_early_sigint('data_tools.an4')
    flags.FLAGS(['program'])
    launch.run_with_user_errors(lambda _: None, ['program'])
    self.assertEqual([signal.getsignal(each) for each in signals], before)

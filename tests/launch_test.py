"""Tests of tff_asr.launch; `tests/bin` sees it at work."""

import contextlib
import io
import os
import signal
import subprocess
import sys
import textwrap
import time

from absl import flags
from absl.testing import absltest
from absl.testing import flagsaver
from absl.testing import parameterized
import psutil
import tensorflow as tf

from tff_asr import checks
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

  def test_several_problems_are_a_line_each(self):
    code, _ = self.run_main(checks.Problems('one is\n  wrong.', 'two is.'))
    self.assertEqual(code, 'error: one is wrong.\nerror: two is.')

  def test_errors_of_files_are_shown_without_their_number(self):
    code, _ = self.run_main(FileExistsError(17, 'File exists', '/a/b'))
    self.assertEqual(code, 'error: /a/b: File exists')
    code, _ = self.run_main(OSError(28, 'Saving takes 3 MB.'))
    self.assertEqual(code, 'error: Saving takes 3 MB.')

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

  def test_the_advice_to_interrupted_users_is_the_programs(self):
    wrapped = launch._explain_errors(
        lambda _: signal.raise_signal(signal.SIGINT), after_interrupt='go on.'
    )
    stream = io.StringIO()
    with contextlib.redirect_stderr(stream):
      with self.assertRaises(SystemExit):
        wrapped(['program'])
    self.assertEqual(stream.getvalue(), 'interrupted: go on.\n')

  @parameterized.parameters(
      (signal.SIGINT, 130, b'interrupted.\n'),
      (signal.SIGTERM, 143, b'terminated.\n'),
  )
  def test_signals_during_imports_end_the_program_with_a_line(
      self, signal_num, code, expected
  ):
    # An import that swallows an interrupt, as some libraries do.
    program = (
        'import signal\n'
        'from tff_asr import launch\n'
        'launch.begin(__name__)\n'
        'try:\n'
        f'  signal.raise_signal({int(signal_num)})\n'
        'except BaseException:\n'
        '  print("swallowed")\n'
    )
    finished = subprocess.run(
        [sys.executable, '-c', program],
        capture_output=True,
        check=False,
        # A measured process has a handler of the measurement.
        env={k: v for k, v in os.environ.items() if 'COVERAGE' not in k},
    )
    self.assertEqual(finished.returncode, code)
    self.assertEqual(finished.stderr, expected)
    self.assertEqual(finished.stdout, b'')

  def run_program(self, main: str) -> subprocess.CompletedProcess:
    """Runs a program whose main has these lines."""
    program = (
        'import asyncio, os, signal, subprocess, sys, threading, time\n'
        'from tff_asr import launch\n'
        f'def main(_):\n{textwrap.indent(textwrap.dedent(main), "  ")}\n'
        'launch.run(main)\n'
    )
    return subprocess.run(
        [sys.executable, '-c', program],
        capture_output=True,
        check=False,
        text=True,
        timeout=60,
    )

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
        f'{word} twice, ended at once: the same command goes on from what was '
        'saved last.\n',
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

  def test_a_coroutine_gives_its_result(self):
    async def work():
      return 3

    self.assertEqual(launch.run_async(work()), 3)

  def test_what_hangs_does_not_keep_the_program_from_its_end(self):
    finished = self.run_program('''
        threading.Thread(target=time.sleep, args=(600,)).start()
        raise TimeoutError('a device hangs.')
    ''')
    self.assertEqual(finished.returncode, 1)
    self.assertEqual(finished.stderr, 'error: a device hangs.\n')

  def test_begin_does_nothing_where_a_program_is_imported(self):
    before = signal.getsignal(signal.SIGINT)
    launch.begin('data_tools.an4')
    self.assertIs(signal.getsignal(signal.SIGINT), before)

  def test_begin_leaves_ignored_signals_and_run_takes_over(self):
    # As under nohup.
    before = {
        signal_num: signal.getsignal(signal_num)
        for signal_num in (signal.SIGINT, signal.SIGTERM)
    }
    seen = {}

    def main(_):
      seen.update({each: signal.getsignal(each) for each in before})

    try:
      signal.signal(signal.SIGINT, signal.SIG_IGN)
      signal.signal(signal.SIGTERM, signal.SIG_DFL)
      launch.begin('__main__')
      self.assertIs(signal.getsignal(signal.SIGINT), signal.SIG_IGN)
      self.assertIs(signal.getsignal(signal.SIGTERM), launch._end_at_once)
      launch._explain_errors(main)(['program'])
      self.assertIs(seen[signal.SIGINT], signal.SIG_IGN)
      self.assertIsNot(seen[signal.SIGTERM], launch._end_at_once)
    finally:
      for signal_num, handler in before.items():
        signal.signal(signal_num, handler)

  def test_arguments_that_are_not_flags_are_refused(self):
    code, _ = self.run_main(None, argv=('program', 'gin/x.gin'))
    self.assertIn("unexpected argument 'gin/x.gin'", code)


if __name__ == '__main__':
  absltest.main()

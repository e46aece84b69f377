"""Tests of tff_asr.execution.native."""

import pathlib
import socket
import subprocess
import sys
import textwrap
from unittest import mock

from absl.testing import absltest
import psutil
import pytest

from tff_asr.execution import native

_ROOT = pathlib.Path(__file__).parents[2]
_TIMEOUT_SEC = 120

_PROGRAM = """
    import os, signal, sys
    import psutil
    import tensorflow as tf
    import tensorflow_federated as tff
    from tff_asr.execution import native

    tff.framework.set_default_context(
        native.build_sync_context(trust_network=True)
    )
    comp = tff.tensorflow.computation(lambda: tf.constant(7))
    print('result', comp())
    for child in psutil.Process().children():
      print('child', child.pid, child.name())
    sys.stdout.flush()
"""

_IN_BACKGROUND = """
    import gc, os, signal
    import psutil
    import tensorflow as tf
    import tensorflow_federated as tff
    from tff_asr.execution import native

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    context = native.build_sync_context(trust_network=True)
    comp = tff.tensorflow.computation(lambda: tf.constant(7))
    with tff.framework.get_context_stack().install(context):
      print('background', comp())
    del context
    gc.collect()
    print('workers', len(psutil.Process().children()))
    os.kill(os.getpid(), signal.SIGINT)
    print('went on')
    signal.signal(signal.SIGINT, signal.default_int_handler)
"""


def _run_piped(program: str) -> list[str]:
  """The lines of `python -c program | cat`, read to the end of the pipe."""
  command = f'"{sys.executable}" -c "$PROGRAM" 2>/dev/null | cat'
  finished = subprocess.run(
      ['bash', '-c', command],
      cwd=_ROOT,
      env={'PROGRAM': textwrap.dedent(program), 'PATH': '/usr/bin:/bin'},
      stdout=subprocess.PIPE,
      text=True,
      timeout=_TIMEOUT_SEC,
      check=True,
  )
  return finished.stdout.splitlines()


def _is_running(pid: int) -> bool:
  try:
    return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
  except psutil.NoSuchProcess:
    return False


class EndOfProgramTest(absltest.TestCase):

  @pytest.mark.slow
  def test_piped_program_that_fails_ends_and_leaves_no_worker(self):
    self.check_end("raise ValueError('the end')")

  def test_interrupted_program_ends_and_leaves_no_worker(self):
    # Before that, it does not wait for its worker while it ignores SIGINT, by
    # which TFF ends workers, as what a script starts with `&` does; and its
    # next worker is stopped after an op that it lacks.
    lines = self.check_end(textwrap.dedent("""
        from tff_asr import launch
        from tff_asr.text import tokenizer
        pieces = tokenizer.SentencePieceTokenizer({'a': -1.0, '\u2581': -1.0})
        unknown = tff.tensorflow.computation(
            lambda: pieces.encode(tf.constant(['a'])).flat_values
        )
        try:
          unknown()
        except ValueError as error:
          print('error', *launch.error_lines(error))
        native.stop()
        print('left', [
            child.pid for child in psutil.Process().children()
            if child.status() != psutil.STATUS_ZOMBIE
        ])
        tff.framework.set_default_context(
            native.build_sync_context(trust_network=True)
        )
        print('again', comp())
        for child in psutil.Process().children():
          print('child', child.pid, child.name())
        sys.stdout.flush()
        os.kill(os.getpid(), signal.SIGINT)
    """), first_lines=_IN_BACKGROUND)
    self.assertEqual(
        lines[:3], ['background 7', 'workers 0', 'went on'], lines
    )
    self.assertContainsSubset(['left []', 'again 7'], lines)
    (error,) = [line for line in lines if line.startswith('error')]
    self.assertRegex(error, r"ops only, and found 'SentencepieceOp'; .* PCM .*"
                     'characters if it makes sentence pieces')

  def check_end(self, last_lines: str, first_lines: str = '') -> list[str]:
    """Checks that its workers end with a program; returns what it prints."""
    lines = _run_piped(
        textwrap.dedent(first_lines)
        + textwrap.dedent(_PROGRAM)
        + last_lines
        + '\n'
    )
    self.assertIn('result 7', lines)
    children = [line.split() for line in lines if line.startswith('child')]
    self.assertNotEmpty(children)
    for _, process_id, name in children:
      self.assertEqual(name, 'worker_binary')
      self.assertFalse(_is_running(int(process_id)))
    return lines


class BadArgumentTest(absltest.TestCase):

  def test_setting_is_named(self):
    for build in (native.build_sync_context, native.build_async_context):
      with self.assertRaisesRegex(ValueError, 'max_concurrent_clients'):
        build(max_concurrent_clients=0, trust_network=True)

  def test_a_worker_that_others_can_reach_is_refused(self):
    addresses = {
        'lo': [
            mock.Mock(family=socket.AF_INET, address='127.0.0.1'),
            mock.Mock(family=socket.AF_INET6, address='::1'),
            mock.Mock(family=socket.AF_PACKET, address='00:00:00:00:00:00'),
        ],
    }
    link = mock.Mock(family=socket.AF_INET6, address='fe80::1%eth0')
    for others in ({}, {'eth0': [link]}):
      with mock.patch.object(
          psutil, 'net_if_addrs', return_value=addresses | others
      ):
        for build in (native.build_sync_context, native.build_async_context):
          message = (
              'addresses of this machine .eth0. and runs what anyone .* use '
              'multi_device. For what that refuses, run without a network, as '
              '`unshare .*, or pass trust_network=True'
          )
          if not others:
            message = 'max_concurrent_clients'
          with self.assertRaisesRegex(ValueError, message):
            build(max_concurrent_clients=0)


class StopTest(absltest.TestCase):

  def test_only_workers_end(self):
    sleeper = subprocess.Popen(['sleep', '60'])
    reader = subprocess.Popen(['cat'], stdin=subprocess.PIPE)
    try:
      with mock.patch.object(native, '_WORKER', 'sleep'):
        native.stop()
      self.assertTrue(_is_running(reader.pid))
      self.assertEqual(sleeper.wait(timeout=5), -9)
    finally:
      sleeper.kill()
      reader.stdin.close()
      reader.wait(timeout=5)
      sleeper.wait(timeout=5)

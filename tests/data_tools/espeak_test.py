import pathlib
import subprocess
import sys
import textwrap

from absl.testing import absltest

_ROOT = pathlib.Path(__file__).parents[2]


def _run(code: str) -> subprocess.CompletedProcess:
  """Runs code in a process that has not loaded TensorFlow, as forking needs."""
  return subprocess.run(
      [sys.executable, '-c', textwrap.dedent(code)],
      cwd=_ROOT,
      capture_output=True,
      text=True,
      check=False,
  )


class EspeakTest(absltest.TestCase):

  def test_unknown_language_raises_and_its_task_is_named(self):
    done = _run("""
        from data_tools import espeak
        engine = espeak.Espeak()
        def task():
          engine.speak('hello', voice='en-gb+m3', rate=170, pitch=50)
        espeak.run_forked([('speaker 7', task)], num_workers=1)
    """)
    self.assertIn(
        "RuntimeError: speaker 7: RuntimeError: eSpeak NG has no voice"
        " 'en-gb+m3'.",
        done.stderr,
    )

  def test_silence_raises(self):
    done = _run("""
        from data_tools import espeak
        espeak.Espeak().speak(' ', voice='en-us+m3', rate=170, pitch=50)
    """)
    self.assertIn('eSpeak NG said nothing', done.stderr)

  def test_breath_does_not_depend_on_the_clock(self):
    # Variant f2 has breath noise, m3 has none.
    code = """
        import hashlib, sys
        from data_tools import espeak
        for variant in ('f2', 'm3'):
          samples = espeak.Espeak().speak(
              'seven', voice='en-us+' + variant, rate=170, pitch=50)
          print(hashlib.sha256(samples.tobytes()).hexdigest())
    """
    first = _run('import time; time.time\n' + textwrap.dedent(code))
    second = _run('import time; time.sleep(1.1)\n' + textwrap.dedent(code))
    self.assertEqual(first.returncode, 0, first.stderr)
    self.assertEqual(first.stdout, second.stdout)
    self.assertLen(set(first.stdout.split()), 2)

  def test_a_failing_task_leaves_no_process(self):
    done = _run("""
        import os, time
        from data_tools import espeak
        def fail(): raise ValueError('as told')
        tasks = [('a', fail), ('b', lambda: time.sleep(0.2))] * 3
        try:
          espeak.run_forked(tasks, num_workers=4)
        except RuntimeError as e:
          print(e)
        try:
          os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
          print('none left')
    """)
    self.assertEqual(done.stdout, 'a: ValueError: as told\nnone left\n')


if __name__ == '__main__':
  absltest.main()

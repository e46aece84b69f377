"""Jobs that are small programs of Python's own library."""

import os
import signal
import sys
import tempfile
import threading
import time

from absl.testing import absltest

from tff_asr.findings import job_queue


class JobQueueTest(absltest.TestCase):

  def setUp(self):
    super().setUp()
    self.root = self.enterContext(tempfile.TemporaryDirectory())

  def path(self, name: str) -> str:
    return os.path.join(self.root, name)

  def job(self, name: str, code: str) -> job_queue.Job:
    """Runs code, with its working folder's names in ROOT."""
    code = code.replace('ROOT', repr(self.root))
    return job_queue.Job(
        name, (sys.executable, '-S', '-c', code), self.path(f'logs/{name}.log')
    )

  def read(self, name: str) -> str:
    with open(self.path(name), encoding='utf-8') as f:
      return f.read()

  def test_each_job_runs_once_in_order_and_has_its_log(self):
    jobs = [self.job(name, f'print({name!r})') for name in 'abc']
    started, ended = [], []
    failed = job_queue.run(
        lambda unused_failed: jobs,
        num_at_once=1,
        on_start=lambda job: started.append(job.name),
        on_end=lambda each: ended.append((each.job.name, each.status)),
    )
    self.assertEqual(failed, [])
    self.assertEqual(started, ['a', 'b', 'c'])
    self.assertEqual(ended, [('a', 0), ('b', 0), ('c', 0)])
    self.assertEqual(self.read('logs/b.log'), 'b\n')

  def test_a_job_can_wait_for_what_another_writes(self):
    first = self.job('first', "open(ROOT + '/made', 'w').close()")
    second = self.job('second', 'pass')

    def wanted(unused_failed):
      yield first
      if os.path.exists(self.path('made')):
        yield second

    ended = []
    job_queue.run(
        wanted, num_at_once=2, on_end=lambda each: ended.append(each.job.name)
    )
    self.assertEqual(ended, ['first', 'second'])

  def test_failed_jobs_are_told_and_the_others_run(self):
    bad = self.job('bad', "raise SystemExit('no')")
    good = self.job('good', 'pass')
    seen = []

    def wanted(failed):
      seen.append(failed)
      return [bad, good]

    self.assertEqual(job_queue.run(wanted, num_at_once=1), ['bad'])
    self.assertIn(frozenset(['bad']), seen)
    self.assertEqual(self.read('logs/bad.log'), 'no\n')
    self.assertEqual(self.read('logs/good.log'), '')

  def test_processors_are_divided_among_jobs_at_a_time(self):
    everything = os.sched_getaffinity(0)
    if len(everything) < 2:
      self.skipTest('needs two processors')
    # Each waits for the other, so both run at once.
    code = (
        'import os, time\n'
        "open(ROOT + '/NAME', 'w').write(repr(os.sched_getaffinity(0)))\n"
        "while not os.path.exists(ROOT + '/OTHER'): time.sleep(0.01)\n"
    )
    jobs = [
        self.job('a', code.replace('NAME', 'a').replace('OTHER', 'b')),
        self.job('b', code.replace('NAME', 'b').replace('OTHER', 'a')),
    ]
    self.assertEqual(job_queue.run(lambda failed: jobs, num_at_once=2), [])
    shares = [eval(self.read(name)) for name in 'ab']  # pylint: disable=eval-used
    self.assertEqual(shares[0] | shares[1], everything)
    self.assertEqual(shares[0] & shares[1], set())
    self.assertEqual(os.sched_getaffinity(0), everything)

  def test_an_interrupt_ends_what_runs(self):
    # Says when it is asked to end, as the programs that save their state.
    job = self.job(
        'long',
        'import signal, sys, time\n'
        'def end(*_):\n'
        "  open(ROOT + '/saved', 'w').close()\n"
        '  sys.exit(143)\n'
        'signal.signal(signal.SIGTERM, end)\n'
        "open(ROOT + '/ready', 'w').close()\n"
        'time.sleep(60)\n',
    )

    def interrupt():
      while not os.path.exists(self.path('ready')):
        time.sleep(0.01)
      signal.raise_signal(signal.SIGINT)

    # The handler runs in the main thread, wherever the signal comes from.
    thread = threading.Thread(target=interrupt)
    thread.start()
    with self.assertRaises(KeyboardInterrupt):
      job_queue.run(lambda failed: [job], num_at_once=1)
    thread.join()
    self.assertTrue(os.path.exists(self.path('saved')))

  def test_number_at_once_must_be_positive(self):
    with self.assertRaisesRegex(ValueError, 'num_at_once'):
      job_queue.run(lambda failed: [], num_at_once=0)


if __name__ == '__main__':
  absltest.main()

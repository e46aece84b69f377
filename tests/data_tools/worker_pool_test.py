import os
import signal
import subprocess
import sys
from unittest import mock

import numpy as np
import soundfile

from data_tools import utterances
from data_tools import worker_pool
from tests import cases


class _Exit:
  """Ends the process that unpickles it, as a crashing decoder would."""

  audio = None

  def __reduce__(self):
    return os._exit, (3,)


class WorkerPoolTest(cases.TestCase):

  def utterances(self, count):
    listed = []
    for i in range(count):
      path = self.path(f'{i}.wav')
      soundfile.write(path, np.full(100 + i, i, np.int16), 16000)
      listed.append(utterances.Utterance('c', str(i), 'words', path))
    return listed

  def check(self, outcomes):
    for i, outcome in enumerate(outcomes):
      (record,) = outcome.records
      self.assertEqual(record.num_samples, 100 + i)
      self.assertEqual(record.content, np.full(100 + i, i, '<i2').tobytes())

  def test_processes_give_what_this_one_gives_in_order(self):
    listed = self.utterances(50)  # Four tasks.
    for num_workers in (0, 2):
      with worker_pool.WorkerPool(num_workers) as pool:
        outcomes = list(pool.encode(listed, encoding='pcm'))
        self.assertLen(outcomes, 50)
        self.check(outcomes)

  def test_an_item_that_ends_its_process_is_told_and_the_rest_goes_on(self):
    listed = self.utterances(4)
    with worker_pool.WorkerPool(1) as pool:
      first, crashed, *rest = pool.encode(
          [listed[0], _Exit(), *listed[1:]], encoding='pcm'
      )
    self.check([first, *rest])
    self.assertEqual(crashed.reason, 'ends the program that decodes it')

  def test_what_is_no_broken_file_ends_the_work(self):
    # A worker that is killed, a defect, and one that cannot start.
    with worker_pool.WorkerPool(1) as pool:
      results = pool.encode(
          self.utterances(4), task_size=1, encoding='pcm'
      )
      next(results)
      (process,) = pool._processes
      process.send_signal(signal.SIGKILL)
      with self.assertRaisesRegex(RuntimeError, 'was killed.*fewer --workers'):
        list(results)
      with self.assertRaisesRegex(RuntimeError, "encoding must be .*'mp3'"):
        list(pool.encode(self.utterances(1), encoding='mp3'))
    program = mock.patch.object(worker_pool, '_PROGRAM', 'raise SystemExit(3)')
    with program, worker_pool.WorkerPool(1) as pool:
      with self.assertRaisesRegex(RuntimeError, 'code 3 before it was ready'):
        list(pool.encode(self.utterances(2), encoding='pcm'))

  def test_what_is_read_ahead_is_bounded_and_leaving_leaves_no_process(self):
    asked = []
    listed = (asked.append(u) or u for u in self.utterances(40))
    # conftest fails the session if a process is left.
    with worker_pool.WorkerPool(2) as pool:
      next(pool.encode(listed, task_size=1, encoding='pcm'))
      processes = list(pool._processes)
    # Three tasks a worker.
    self.assertLen(asked, 6)
    self.assertNotEmpty(processes)
    for process in processes:
      self.assertIsNotNone(process.poll())

  def test_workers_do_not_load_tensorflow(self):
    program = (
        'import sys; from data_tools import worker_pool;'
        " print([m for m in ('tensorflow', 'tensorflow_federated') if m in"
        ' sys.modules])'
    )
    done = subprocess.run(
        [sys.executable, '-c', program],
        check=True,
        capture_output=True,
        text=True,
    )
    self.assertEqual(done.stdout, '[]\n')

"""Tests of data_tools.parallel_encoding."""

import multiprocessing
import os

import numpy as np
import soundfile

from data_tools import parallel_encoding
from data_tools import utterances
from tests import cases


class _CrashesItsProcess:
  """Ends the process that unpickles it, as a crashing decoder would."""

  audio = None

  def __reduce__(self):
    return os._exit, (3,)


def _waveform(number: int) -> np.ndarray:
  """The sound of an utterance: its number, after a sample of another."""
  return np.array([number + 1] + [number] * (99 + number), '<i2')


class ParallelEncodingTest(cases.TestCase):

  def utterances(self, count):
    """Utterances 0, 1, ... of 100, 101, ... samples."""
    listed = []
    for i in range(count):
      path = self.path(f'{i}.wav')
      soundfile.write(path, _waveform(i), 16000)
      listed.append(utterances.Utterance('c', str(i), 'words', path))
    return listed

  def assert_encoded(self, outcomes):
    """Asserts that outcomes are those of `utterances`, in order."""
    for i, outcome in enumerate(outcomes):
      (record,) = outcome.records
      self.assertEqual(record.num_samples, 100 + i)
      self.assertEqual(record.content, _waveform(i).tobytes())

  def test_workers_return_the_same_as_this_process_in_order(self):
    listed = self.utterances(50)  # Four tasks.
    for num_workers in (0, 2):
      outcomes = list(parallel_encoding.encode(
          listed, num_workers=num_workers, encoding='pcm'
      ))
      self.assertLen(outcomes, 50)
      self.assert_encoded(outcomes)

  def test_a_crash_is_reported_for_its_utterance_alone(self):
    listed = self.utterances(6)
    items = [*listed[:3], _CrashesItsProcess(), *listed[3:]]
    for task_size in (1, 4):
      outcomes = list(parallel_encoding.encode(
          items, num_workers=2, task_size=task_size, encoding='pcm'
      ))
      crashed = outcomes.pop(3)
      self.assertEqual(crashed.reason, 'crashes its decoder')
      self.assertLen(outcomes, 6)
      self.assert_encoded(outcomes)

  def test_errors_of_a_worker_are_raised_here(self):
    with self.assertRaisesRegex(ValueError, "encoding must be .*'mp3'"):
      list(parallel_encoding.encode(
          self.utterances(1), num_workers=1, encoding='mp3'
      ))

  def test_read_ahead_is_bounded_and_no_process_is_left(self):
    asked = []
    listed = (asked.append(u) or u for u in self.utterances(40))
    encoded = parallel_encoding.encode(
        listed, num_workers=2, task_size=1, encoding='pcm'
    )
    next(encoded)
    self.assertLen(asked, 6)  # Three tasks for each worker.
    self.assertNotEmpty(multiprocessing.active_children())
    encoded.close()
    self.assertEmpty(multiprocessing.active_children())

"""Tests of tff_asr.storage.hardware_fingerprint."""

import json
import os
import tempfile
from unittest import mock

from absl.testing import absltest
import tensorflow as tf

from tff_asr.storage import hardware_fingerprint

class MachineTest(absltest.TestCase):

  def setUp(self):
    super().setUp()
    self.run = self.enterContext(tempfile.TemporaryDirectory())

  def write(self, **changes) -> None:
    with open(hardware_fingerprint.path(self.run), 'w', encoding='utf-8') as f:
      json.dump(hardware_fingerprint.describe() | changes, f)

  def test_the_same_machine_is_no_line(self):
    with self.assertNoLogs('absl', 'WARNING'):
      hardware_fingerprint.check(self.run)
      self.write()
      hardware_fingerprint.check(self.run)

  def test_what_differs_is_one_line(self):
    self.write(processor='abacus', tensorflow='1.0')
    with self.assertLogs('absl', 'WARNING') as logs:
      hardware_fingerprint.check(self.run)
    (line,) = logs.output
    self.assertIn("processor 'abacus', here ", line)
    self.assertIn("tensorflow '1.0', here ", line)
    self.assertNotIn('devices', line)
    self.assertNotIn('\n', line)

  def test_the_number_of_threads_is_restored(self):
    threads = len(os.sched_getaffinity(0)) + 3
    self.write(threads_per_op=threads)
    with mock.patch.object(
        tf.config.threading, 'set_intra_op_parallelism_threads'
    ) as restored:
      hardware_fingerprint.restore_threads(self.run)
    restored.assert_called_once_with(threads)

  def test_what_cannot_be_read_is_left_alone(self):
    for text in ('', '[]', '{"threads_per_op": "many"}', '\0'):
      path = hardware_fingerprint.path(self.run)
      with open(path, 'w', encoding='utf-8') as f:
        f.write(text)
      with mock.patch.object(
          tf.config.threading, 'set_intra_op_parallelism_threads'
      ) as restored:
        hardware_fingerprint.restore_threads(self.run)
      restored.assert_not_called()

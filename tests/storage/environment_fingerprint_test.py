"""Tests of tff_asr.storage.environment_fingerprint."""

import json
import os
from unittest import mock

import tensorflow as tf

from tests import cases
from tff_asr import files
from tff_asr.storage import environment_fingerprint


class MachineTest(cases.TestCase):

  def write(self, **changes) -> None:
    with open(environment_fingerprint.path(self.root), 'w', encoding='utf-8') as f:
      json.dump(environment_fingerprint.current_properties() | changes, f)

  def test_the_same_machine_logs_nothing(self):
    with self.assertNoLogs('absl', 'WARNING'):
      environment_fingerprint.check(self.root)
      self.write()
      environment_fingerprint.check(self.root)

  def test_a_damaged_file_is_named_with_what_to_do(self):
    path = environment_fingerprint.path(self.root)
    for text in ('', '[]', '{}', '{"threads_per_op": "x"}', 'nul'):
      files.write_text(path, text)
      for read in (
          environment_fingerprint.check, environment_fingerprint.restore_threads
      ):
        with self.assertRaisesRegex(
            ValueError, f'^{path} is damaged .*: delete it, and the run takes'
        ):
          read(self.root)

  def test_another_machine_logs_its_differences_in_one_line(self):
    self.write(processor='abacus', tensorflow='1.0')
    with self.assertLogs('absl', 'WARNING') as logs:
      environment_fingerprint.check(self.root)
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
      environment_fingerprint.restore_threads(self.root)
    restored.assert_called_once_with(threads)

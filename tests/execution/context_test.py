"""Tests of tff_asr.execution.context: memory that is returned."""

import os
from unittest import mock

from absl.testing import absltest
import numpy as np
import tensorflow as tf

from tff_asr.execution import context


def _resident_bytes() -> int:
  with open('/proc/self/statm', encoding='utf-8') as f:
    return int(f.read().split()[1]) * os.sysconf('SC_PAGE_SIZE')


class FreedMemoryTest(absltest.TestCase):

  def test_free_memory_is_returned_to_the_system(self):
    large = tf.zeros([context._TRIM_BYTES // 4])
    # Below glibc's first threshold, so that they are kept when they are freed;
    # the last one keeps the heap from shrinking by itself.
    blocks = [np.ones(12_000, np.float64) for _ in range(2_000)]
    last = np.ones(12_000, np.float64)
    del blocks
    before = _resident_bytes()
    context.trim_malloc([large])
    self.assertGreater(before - _resident_bytes(), 100e6)
    del last

  def test_small_models_are_not_trimmed(self):
    small = tf.zeros([context._TRIM_BYTES // 4 - 1])
    with mock.patch.object(context, '_malloc_trim') as trim:
      context.trim_malloc([small, tf.constant('text'), tf.zeros([0])])
      trim.assert_not_called()
      context.trim_malloc([small, tf.constant(1.0)])
      trim.assert_called_once_with(0)

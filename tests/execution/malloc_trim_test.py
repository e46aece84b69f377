import os
from unittest import mock

from absl.testing import absltest
import numpy as np
import tensorflow as tf

from tff_asr.execution import malloc_trim


def _resident_bytes() -> int:
  with open('/proc/self/statm', encoding='utf-8') as f:
    return int(f.read().split()[1]) * os.sysconf('SC_PAGE_SIZE')


class FreedMemoryTest(absltest.TestCase):

  def test_what_is_free_is_given_back(self):
    large = tf.zeros([malloc_trim.MIN_BYTES // 4])
    # Below glibc's first threshold, so that they are kept when they are freed;
    # the last one keeps the heap from shrinking by itself.
    blocks = [np.ones(12_000, np.float64) for _ in range(2_000)]
    last = np.ones(12_000, np.float64)
    del blocks
    before = _resident_bytes()
    malloc_trim.give_back([large])
    self.assertGreater(before - _resident_bytes(), 100e6)
    del last

  def test_small_models_and_other_types_do_not_count(self):
    small = tf.zeros([malloc_trim.MIN_BYTES // 4 - 1])
    with mock.patch.object(malloc_trim, '_trim') as trim:
      malloc_trim.give_back([small, tf.constant('text'), tf.zeros([0])])
      trim.assert_not_called()
      malloc_trim.give_back([small, tf.constant(1.0)])
      trim.assert_called_once_with(0)

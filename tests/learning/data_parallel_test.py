"""Tests of tff_asr.learning.data_parallel."""

import threading

from absl.testing import parameterized
import tensorflow as tf

from tests import logical_devices
from tff_asr.learning import data_parallel


def _build(compute, devices=None, merge=tf.add):
  return data_parallel.DataParallelSum(
      compute,
      merge=merge,
      shared_spec=tf.TensorSpec([]),
      batch_spec=tf.TensorSpec([None]),
      devices=devices,
  )


_BATCHES = [tf.constant([float(2**k)] * (k + 1)) for k in range(5)]


@logical_devices.needed
class DataParallelSumTest(parameterized.TestCase):

  @parameterized.parameters(1, 2, 3, 4)
  def test_every_batch_is_added_once(self, num_devices):
    total = _build(
        lambda factor, batch: factor * tf.reduce_sum(batch),
        logical_devices.CPUS[:num_devices],
    )
    # 2 (1 + 2 2 + 3 4 + 4 8 + 5 16).
    self.assertEqual(float(total(tf.constant(2.0), _BATCHES)), 258)
    self.assertIsNone(total(tf.constant(2.0), []))

  def test_batches_go_to_devices_in_turn_and_are_added_in_their_order(self):
    devices = logical_devices.CPUS[:3]
    total = _build(
        lambda _, batch: tf.strings.as_string(batch[0], precision=0),
        devices,
        merge=lambda one, other: tf.strings.join(['(', one, ' ', other, ')']),
    )
    self.assertEqual(
        total(tf.constant(0.0), _BATCHES).numpy(), b'(((1 8) (2 16)) 4)'
    )

  def test_devices_compute_at_the_same_time(self):
    # Each waits until the other one computes, too.
    barrier = threading.Barrier(2, timeout=60)

    def compute(factor, batch):
      wait = tf.py_function(lambda: barrier.wait() and 0, [], tf.int64)
      with tf.control_dependencies([wait]):
        return factor * tf.reduce_sum(batch)

    total = _build(compute, logical_devices.CPUS[:2])
    self.assertEqual(float(total(tf.constant(1.0), _BATCHES[:2])), 5)

  def test_is_traced_once_for_batches_of_any_size(self):
    traced = []

    def compute(factor, batch):
      traced.append(batch)
      return factor * tf.reduce_sum(batch)

    total = _build(compute, logical_devices.CPUS[:2])
    for _ in range(2):
      total(tf.constant(1.0), _BATCHES)
    self.assertLen(traced, 1)

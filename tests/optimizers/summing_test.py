"""Tests of tff_asr.optimizers.summing; see also contract_test."""

from absl.testing import absltest
import numpy as np
import tensorflow as tf

from tff_asr.optimizers import lamb
from tff_asr.optimizers import summing


class SummingTest(absltest.TestCase):

  def test_adds_up_gradients_and_changes_nothing_else(self):
    inner = lamb.build_lamb(0.1)
    outer = summing.build_summing(inner)
    spec = tf.TensorSpec([2])
    state, inner_state = outer.initialize(spec), inner.initialize(spec)
    weights = expected = tf.constant([1.0, 2.0])
    for gradient in ([1.0, 0.0], [0.5, -3.0]):
      state, weights = outer.next(state, weights, tf.constant(gradient))
      inner_state, expected = inner.next(
          inner_state, expected, tf.constant(gradient)
      )
    np.testing.assert_array_equal(weights, expected)
    np.testing.assert_array_equal(state['gradient_sum'], [1.5, -3.0])


if __name__ == '__main__':
  absltest.main()

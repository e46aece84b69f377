"""Tests of tff_asr.learning.server_update."""

import collections

from absl.testing import parameterized
import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_asr.execution import multi_device
from tff_asr.learning import server_update
from tff_asr.optimizers import lamb
from tff_asr.optimizers import schedules

_TYPE = tff.to_type(
    collections.OrderedDict(
        a=tff.TensorType(np.float32, [2]), b=tff.TensorType(np.float32, [])
    )
)


def _weights(*values: float):
  return collections.OrderedDict(
      a=np.array(values[:2], np.float32), b=np.float32(values[2])
  )


class ServerUpdateTest(parameterized.TestCase):

  def setUp(self):
    super().setUp()
    context = multi_device.build_sync_context()
    self.enterContext(tff.framework.get_context_stack().install(context))

  def test_steps_against_the_delta(self):
    finalizer = server_update.build(
        optimizer=tff.learning.optimizers.build_sgdm(0.5), weights_type=_TYPE
    )
    output = finalizer.next(
        finalizer.initialize(), _weights(1, 2, 3), _weights(2, 0, -2)
    )
    # 1 - .5 * 2, 2 - .5 * 0, 3 + .5 * 2.
    np.testing.assert_allclose(output.result['a'], [0, 2])
    np.testing.assert_allclose(output.result['b'], 4)
    self.assertEqual(output.measurements['learning_rate'], 0.5)
    np.testing.assert_allclose(
        output.measurements['update_norm'], np.sqrt(8), rtol=1e-6
    )
    np.testing.assert_allclose(
        output.measurements['weights_norm'], np.sqrt(20), rtol=1e-6
    )

  def test_frozen_weights_have_no_delta_and_no_state(self):
    finalizer = server_update.build(
        optimizer=lamb.build_lamb(0.5), weights_type=_TYPE, frozen=['a']
    )
    state = finalizer.initialize()
    self.assertEqual(list(state['first_moment']), ['b'])
    output = finalizer.next(
        state, _weights(1, 2, 3), collections.OrderedDict(b=np.float32(-2))
    )
    np.testing.assert_array_equal(output.result['a'], [1, 2])
    # LAMB: 3 + .5 * 3 / 1 * 1.
    np.testing.assert_allclose(output.result['b'], 4.5, rtol=1e-4)
    self.assertEqual(list(output.result), ['a', 'b'])

  def test_reports_the_scheduled_rate_of_each_round(self):
    optimizer = schedules.scheduled(
        lamb.build_lamb(0.1),
        schedule=schedules.exponential_decay(
            0.1, start=0, decay_rate=0.5, transition_rounds=1
        ),
    )
    finalizer = server_update.build(optimizer=optimizer, weights_type=_TYPE)
    state, rates = finalizer.initialize(), []
    for _ in range(3):
      output = finalizer.next(state, _weights(1, 2, 3), _weights(1, 1, 1))
      state = output.state
      rates.append(float(output.measurements['learning_rate']))
    np.testing.assert_allclose(rates, [0.1, 0.05, 0.025], rtol=1e-6)

  @parameterized.parameters(np.nan, np.inf)
  def test_an_aggregate_that_is_not_finite_raises(self, value):
    finalizer = server_update.build(
        optimizer=tff.learning.optimizers.build_sgdm(0.5), weights_type=_TYPE
    )
    with self.assertRaisesRegex(
        tf.errors.InvalidArgumentError, 'is not finite'
    ):
      finalizer.next(
          finalizer.initialize(), _weights(1, 2, 3), _weights(0, value, 0)
      )

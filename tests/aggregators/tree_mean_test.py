"""Tests of tff_asr.aggregators.tree_mean, executed by TFF on several threads."""

import collections

from absl.testing import absltest
import dp_accounting
import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_asr.aggregators import dp_mean
from tff_asr.aggregators import tree_mean
from tff_asr.execution import multi_device
from tff_asr.privacy import clipping as clipping_lib
from tff_asr.privacy import keys
from tff_asr.privacy import queries
from tff_asr.privacy import tree_query

_KEY = keys.from_seed(0)
_VALUE_TYPE = tff.to_type(
    collections.OrderedDict(
        a=tff.TensorType(np.float32, [2]), b=tff.TensorType(np.float32)
    )
)
# 11 clients, 2 a round: trees of 5 rounds, one client waits.
_POPULATION, _COHORT_SIZE, _ROUNDS_PER_TREE = 11, 2, 5


def _client_data(count: int) -> tff.simulation.datasets.ClientData:
  return tff.simulation.datasets.ClientData.from_clients_and_tf_fn(
      [f'c{number:02}' for number in range(count)],
      lambda client_id: tf.data.Dataset.from_tensors(client_id),
  )


def _build(**changes) -> tff.aggregators.WeightedAggregationFactory:
  arguments = dict(
      client_data=_client_data(_POPULATION),
      cohort_size=_COHORT_SIZE,
      l2_norm_clip=0.5,
      noise_multiplier=2.0,
      clipping=clipping_lib.Clipping(split='dim'),
  )
  return tree_mean.build(**arguments | changes)


def _value(*numbers: float):
  return collections.OrderedDict(
      a=np.float32(numbers[:2]), b=np.float32(numbers[2])
  )


def _flat(result) -> np.ndarray:
  return np.concatenate([np.ravel(result['a']), np.ravel(result['b'])])


class TreeMeanTest(absltest.TestCase):

  def setUp(self):
    super().setUp()
    self.enterContext(
        tff.framework.get_context_stack().install(
            multi_device.build_sync_context(
                devices=['CPU:0'], clients_per_device=2
            )
        )
    )

  def test_rounds_are_the_query_s_over_the_cohort_size(self):
    process = _build().create(_VALUE_TYPE, tff.TensorType(np.float32))
    state = dp_mean.set_noise_key(process.initialize(), _KEY)
    query = tree_query.TreeSumQuery(
        l2_norm_clip=0.5,
        noise_multiplier=2.0,
        rounds_per_tree=_ROUNDS_PER_TREE,
        record_specs=tff.types.type_to_tf_tensor_specs(_VALUE_TYPE),
    )
    query_state = queries.set_noise_key(query.initial_global_state(), _KEY)
    values = [_value(0.01, 0.02, 0.03), _value(0.1, 0, 0)]
    total = tf.nest.map_structure(
        lambda *parts: tf.add_n(list(map(tf.constant, parts))), *values
    )
    release = tf.function(
        lambda total, state: query.get_noised_result(total, state)[:2]
    )
    # A tree and the start of the next.
    for _ in range(_ROUNDS_PER_TREE + 2):
      output = process.next(state, values, [1.0] * 2)
      state = output.state
      expected, query_state = release(total, query_state)
      np.testing.assert_allclose(
          _flat(output.result), _flat(expected) / _COHORT_SIZE, atol=1e-6
      )

  def test_the_state_names_the_event_from_the_start(self):
    process = _build().create(_VALUE_TYPE, tff.TensorType(np.float32))
    state = dp_mean.set_noise_key(process.initialize(), _KEY)
    for _ in range(2):
      event = dp_accounting.DpEvent.from_named_tuple(state.dp_event)
      self.assertIsInstance(
          event, dp_accounting.SingleEpochTreeAggregationDpEvent
      )
      self.assertEqual(float(event.noise_multiplier), 2.0)
      self.assertEqual(int(event.step_counts), _ROUNDS_PER_TREE)
      state = process.next(state, [], []).state

  def test_types_stay_and_what_the_state_grows_by_is_said(self):
    with self.assertLogs('absl', 'WARNING') as logs:
      process = _build().create(_VALUE_TYPE, tff.TensorType(np.float32))
    # Trees of 5 rounds have levels 0, 1 and 2.
    self.assertIn('holds 3 more copies of the model', logs.output[0])
    type_signature = process.next.type_signature
    self.assertIn('nodes=<a=float32[3,2],b=float32[3]>', str(type_signature))
    self.assertEqual(
        type_signature.parameter.state, type_signature.result.state
    )

  def test_bad_arguments_are_named(self):
    for changes, message in (
        (dict(cohort_size=12), 'cohort_size is 12 but population is only 11'),
        (dict(noise_multiplier=0.0), 'noise_multiplier'),
        (dict(l2_norm_clip=0.0), 'l2_norm_clip'),
    ):
      with self.assertRaisesRegex(ValueError, message):
        _build(**changes)
    with self.assertRaisesRegex(ValueError, 'none of the 2 layers, a to b'):
      _build(
          clipping=clipping_lib.Clipping(split='dim', weights={'c': 2.0})
      ).create(_VALUE_TYPE, tff.TensorType(np.float32))


if __name__ == '__main__':
  absltest.main()

"""Tests of tff_asr.aggregators.aggregation: with a guarantee, and without."""

import collections
import functools
from unittest import mock

from absl.testing import parameterized
import dp_accounting
import numpy as np
import tensorflow_federated as tff

from tests import fakes
from tff_asr.aggregators import aggregation
from tff_asr.aggregators import dp_mean
from tff_asr.execution import multi_device
from tff_asr.privacy import clipping as clipping_lib
from tff_asr.privacy import queries

_VALUE_TYPE = tff.to_type(
    collections.OrderedDict(a=tff.TensorType(np.float32, [2]), b=np.float32)
)
# As the client work's, which has none.
_WEIGHT_TYPE = tff.StructType([])
_VALUES = [
    collections.OrderedDict(a=np.float32([1, 2]), b=np.float32(3)),
    collections.OrderedDict(a=np.float32([4, -2]), b=np.float32(0)),
    collections.OrderedDict(a=np.float32([-1, 0]), b=np.float32(9)),
]
_WEIGHTS = [(), (), ()]


def _create(factory):
  return aggregation.create_weighted_process(
      factory, value_type=_VALUE_TYPE, weight_type=_WEIGHT_TYPE
  )


_build_query = functools.partial(
    queries.PerLayerClipSumQuery,
    l2_norm_clip=1.0,
    noise_multiplier=2.0,
    clipping=clipping_lib.Clipping(split='global'),
)


def _dp_mean():
  return dp_mean.build(build_query=_build_query, cohort_size=3)


class AggregationTest(parameterized.TestCase):

  def setUp(self):
    super().setUp()
    multi_device.set_default_context()

  @parameterized.named_parameters(
      # (1 + 4 - 1) / 3, 0, 12 / 3
      ('weighted', tff.aggregators.MeanFactory(), [4 / 3, 0], 4.0),
      ('unweighted', tff.aggregators.UnweightedMeanFactory(), [4 / 3, 0], 4.0),
      (
          'clipped',
          tff.aggregators.clipping_factory(
              1.0, tff.aggregators.SumFactory()
          ),
          # Each update has norm 1: v / |v|.
          [1 / 14**0.5 + 4 / 20**0.5 - 1 / 82**0.5,
           2 / 14**0.5 - 2 / 20**0.5],
          3 / 14**0.5 + 9 / 82**0.5,
      ),
  )
  def test_result_is_the_factorys(self, factory, a, b):
    process = _create(factory)
    state = process.initialize()
    for number in (1, 2):
      output = process.next(state, _VALUES, _WEIGHTS)
      np.testing.assert_allclose(output.result['a'], a, rtol=1e-6, atol=1e-7)
      np.testing.assert_allclose(output.result['b'], b, rtol=1e-6)
      state = output.state
      self.assertEqual(state.query_state.counter, number)
    self.assertIn('not_private', output.measurements)

  def test_tffs_dp_noise_is_not_accounted_for(self):
    # A state with an event, without a key.
    process = _create(
        tff.aggregators.DifferentiallyPrivateFactory.gaussian_fixed(
            noise_multiplier=1.0, clients_per_round=3, clip=1.0
        )
    )
    key = np.arange(1, 9, dtype=np.int32)
    state = fakes.set_noise_key(process.initialize(), key)
    event = dp_accounting.DpEvent.from_named_tuple(state.dp_event)
    self.assertEqual(event, dp_accounting.GaussianDpEvent(0.0))
    output = process.next(state, _VALUES, _WEIGHTS)
    self.assertNotEqual(output.result['b'], 0)
    np.testing.assert_array_equal(
        output.state.query_state.noise_key, key
    )

  def test_an_accounted_factory_is_unchanged_and_built_once(self):
    build_query = mock.Mock(wraps=_build_query)
    process = _create(dp_mean.build(build_query=build_query, cohort_size=3))
    build_query.assert_called_once()
    own = _dp_mean().create(_VALUE_TYPE, _WEIGHT_TYPE)
    self.assertEqual(
        str(process.next.type_signature), str(own.next.type_signature)
    )
    event = dp_accounting.DpEvent.from_named_tuple(
        process.initialize().dp_event
    )
    self.assertEqual(event.noise_multiplier, 2.0)

  def test_a_state_of_the_right_fields_claims_no_guarantee(self):

    class Alike(tff.aggregators.WeightedAggregationFactory):
      """A factory of processes that imitate the state of an accounted one."""

      def create(self, value_type, unused_weight_type):
        return _dp_mean().create(value_type, tff.TensorType(np.float32))

    event = dp_accounting.DpEvent.from_named_tuple(
        _create(Alike()).initialize().dp_event
    )
    self.assertEqual(event, dp_accounting.GaussianDpEvent(0.0))

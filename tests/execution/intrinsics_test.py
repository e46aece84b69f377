"""Tests of tff_asr.execution.intrinsics, in both contexts that use it."""

import functools

from absl.testing import parameterized
import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tests.execution import toys
from tff_asr.execution import intrinsics
from tff_asr.execution import native


def tearDownModule():
  native.stop()
  _build_native.cache_clear()


@functools.lru_cache
def _build_native():
  return native.build_sync_context(trust_network=True)


_CONTEXTS = dict(multi_device=toys.build_context, native=_build_native)
_install = tff.framework.get_context_stack().install

_one = tff.tensorflow.computation(lambda: tf.constant(1.0))


@tff.federated_computation
def _sum_of_a_value():
  return tff.federated_sum(tff.federated_value(1.0, tff.CLIENTS))


@tff.federated_computation
def _largest_of_evaluations():
  return tff.federated_max(tff.federated_eval(_one, tff.CLIENTS))


@tff.federated_computation(toys.SERVER_FLOAT)
def _mean_of_a_broadcast(value):
  return tff.federated_mean(tff.federated_broadcast(value))


@tff.federated_computation(
    tff.FederatedType(np.float32, tff.CLIENTS, all_equal=True)
)
def _sum_of_all_equal(value):
  return tff.federated_sum(value)


@tff.federated_computation
def _nested():
  return _sum_of_a_value()


def _over_clients(aggregate):
  return tff.federated_computation(
      lambda values: aggregate(values), toys.CLIENT_FLOAT
  )


_sum = _over_clients(tff.federated_sum)
_mean = _over_clients(tff.federated_mean)
_max = _over_clients(tff.federated_max)
_min = _over_clients(tff.federated_min)


class ZeroClientsTest(parameterized.TestCase):

  @parameterized.product(
      context=tuple(_CONTEXTS),
      comp_and_args=(
          (_sum_of_a_value,),
          (_largest_of_evaluations,),
          (_mean_of_a_broadcast, 2.0),
          (_sum_of_all_equal, 2.0),
          (_nested,),
      ),
  )
  def test_an_unknown_number_of_clients_is_refused(
      self, context, comp_and_args
  ):
    comp, *args = comp_and_args
    with _install(_CONTEXTS[context]()):
      with self.assertRaisesRegex(
          ValueError,
          r'^The computation of type \(.* has no argument with one value per '
          'client, .* such as a list of client ids',
      ):
        comp(*args)

  @parameterized.parameters(*_CONTEXTS)
  def test_extremes_over_zero_clients_are_refused_and_sums_are_zero(
      self, context
  ):
    with _install(_CONTEXTS[context]()):
      self.assertEqual(_sum([]), 0.0)
      self.assertTrue(np.isnan(_mean([])))
      for comp, value in ((_max, 3.0), (_min, 1.0)):
        self.assertEqual(comp([1.0, 3.0]), value)
        with self.assertRaisesRegex(ValueError, 'over zero clients has no'):
          comp([])

  def test_extremes_are_refused_when_all_clients_failed(self):
    largest = tff.federated_computation(
        lambda values: tff.federated_max(
            tff.federated_map(toys.scale, (values, values))
        ),
        toys.CLIENT_FLOAT,
    )
    settings = dict(max_failed_share=1.0)
    self.assertEqual(toys.invoke(largest, [13.0, 2.0], **settings), 4.0)
    with self.assertRaisesRegex(ValueError, 'over zero clients has no'):
      toys.invoke(largest, [13.0], **settings)


class FindTest(parameterized.TestCase):

  def test_intrinsics_of_inner_computations_are_found(self):
    self.assertEqual(
        intrinsics.called_intrinsics(_nested),
        {'federated_sum', 'federated_value_at_clients'},
    )
    self.assertEmpty(intrinsics.called_intrinsics(_one))

  def test_the_first_list_of_clients_tells_their_number(self):
    type_spec = tff.to_type((
        toys.SERVER_FLOAT,
        (
            tff.FederatedType(np.float32, tff.CLIENTS, all_equal=True),
            toys.CLIENT_FLOAT,
        ),
    ))
    for count in (0, 3):
      argument = (1.0, (2.0, [3.0] * count))
      self.assertEqual(intrinsics.count_clients(argument, type_spec), count)
    self.assertIsNone(intrinsics.count_clients(1.0, toys.SERVER_FLOAT))
    self.assertIsNone(intrinsics.count_clients(None, None))

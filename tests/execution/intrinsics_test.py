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
  def test_over_zero_clients_a_sum_is_zero_and_a_mean_not_a_number(
      self, context
  ):
    with _install(_CONTEXTS[context]()):
      self.assertEqual(_sum([]), 0.0)
      self.assertTrue(np.isnan(_mean([])))


class FindTest(parameterized.TestCase):

  def test_intrinsics_of_inner_computations_are_found(self):
    self.assertEqual(
        intrinsics.called_intrinsics(_nested),
        {'federated_sum', 'federated_value_at_clients'},
    )
    self.assertEmpty(intrinsics.called_intrinsics(_one))

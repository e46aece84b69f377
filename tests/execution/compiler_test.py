"""Tests of tff_asr.execution.compiler: which sums are exact in any order."""

import collections
import functools

from absl.testing import absltest
from absl.testing import parameterized
import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tests.execution import toys
from tff_asr.aggregators import dp_mean
from tff_asr.execution import compiler
from tff_asr.privacy import queries

_CLIENTS = tff.FederatedType(
    collections.OrderedDict(count=np.int64, value=np.float32), tff.CLIENTS
)


@tff.federated_computation(_CLIENTS)
def _sum(clients):
  return tff.federated_sum(clients)


@tff.federated_computation(tff.FederatedType(np.int64, tff.CLIENTS))
def _count(clients):
  return tff.federated_sum(clients)


def _build_aggregate(combine):
  """A sum of <count, value>; a function combines its two parts."""
  member = _CLIENTS.member

  @tff.tensorflow.computation
  def zero():
    return collections.OrderedDict(
        count=tf.constant(0, tf.int64), value=tf.constant(0.0)
    )

  @tff.tensorflow.computation(member, member)
  def add(one, other):
    return combine(one, other)

  @tff.tensorflow.computation(member)
  def report(total):
    return total

  @tff.federated_computation(_CLIENTS)
  def aggregate(clients):
    return tff.federated_aggregate(clients, zero(), add, add, report)

  return aggregate


def _largest_count(one, other):
  return collections.OrderedDict(
      count=tf.maximum(one['count'], other['count']),
      value=one['value'] + other['value'],
  )


def _mean_by_count(one, other):
  """A mean that its merge weighs by the counts."""
  count = one['count'] + other['count']
  total = sum(
      tf.cast(each['count'], tf.float32) * each['value']
      for each in (one, other)
  )
  return collections.OrderedDict(
      count=count,
      value=tf.math.divide_no_nan(total, tf.cast(count, tf.float32)),
  )


def _difference(one, other):
  return collections.OrderedDict(
      count=one['count'] + other['count'] - one['count'],
      value=one['value'] + other['value'],
  )


def _checked_sum(one, other):
  count = one['count'] + other['count']
  with tf.control_dependencies([tf.debugging.assert_less(count, 2**40)]):
    count = tf.identity(count)
  return collections.OrderedDict(
      count=count, value=one['value'] + other['value']
  )


class ExactSumsTest(parameterized.TestCase):

  @parameterized.named_parameters(
      ('sums', _sum, (True, False), True),
      ('counts', _count, (True,), True),
      ('maximum', _build_aggregate(_largest_count), (False, False), False),
      ('arithmetic', _build_aggregate(_difference), (False, False), False),
      ('sum_with_a_check', _build_aggregate(_checked_sum), (False,) * 2, False),
      # A count that another leaf needs goes with it.
      ('mean', _build_aggregate(_mean_by_count), (False, False), False),
  )
  def test_only_plain_sums_of_integers_are_exact(
      self, comp, expected, only_adds
  ):
    found = compiler.compile_computation(comp).clients
    self.assertEqual(found.is_exact, expected)
    # Of the others: whether NumPy may add them in place of TensorFlow.
    self.assertEqual(found.only_adds, only_adds)

  @parameterized.parameters(1, 3)
  def test_exact_and_ordered_sums_are_right(self, clients_per_device):
    clients = [
        collections.OrderedDict(count=count, value=value)
        for count, value in ((1, 2.0), (5, 4.0), (2, 3.0), (2**60, 2.0))
    ]
    for comp, values, expected in (
        (_sum, clients, dict(count=2**60 + 8, value=11.0)),
        (_count, [1, 2, 2**60], 2**60 + 3),
        (_count, [], 0),
        (
            _build_aggregate(_largest_count),
            clients,
            dict(count=2**60, value=11.0),
        ),
        # (1 * 2 + 5 * 4 + 2 * 3) / 8 = 3.5.
        (
            _build_aggregate(_mean_by_count),
            clients[:3],
            dict(count=8, value=3.5),
        ),
    ):
      found = toys.invoke(
          comp,
          values,
          devices=('CPU:0',),
          clients_per_device=clients_per_device,
      )
      self.assertEqual(found, expected)


class InPlaceTest(absltest.TestCase):

  def test_all_layers_of_a_sum_with_noise_are_added_in_place(self):
    types = tff.to_type(collections.OrderedDict(
        (name, tff.TensorType(np.float32, [3])) for name in 'abc'
    ))
    process = dp_mean.build(
        build_query=functools.partial(
            queries.PerLayerClipSumQuery, l2_norm_clip=1.0, noise_multiplier=1.0
        ),
        cohort_size=2,
    ).create(types, tff.TensorType(np.float32))
    compiled = compiler.compile_computation(process.next)
    self.assertEqual(sum(compiled.clients.work.in_place), 3)

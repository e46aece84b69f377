"""Tests of tff_asr.learning.canaries, with client work that counts."""

import collections
import os
import tempfile

from absl.testing import absltest
import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tests import fakes
from tff_asr.data import client_data
from tff_asr.execution import multi_device
from tff_asr.learning import canaries as canaries_lib

_CANARIES = canaries_lib.Canaries(num_canaries=3)
_SHAPES = [tf.TensorShape([50, 40]), tf.TensorShape([]), tf.TensorShape([3])]


class CanariesTest(absltest.TestCase):

  def directions(self, canaries, client_id):
    return [
        layer.numpy()
        for layer in canaries.directions(tf.constant(client_id), _SHAPES)
    ]

  def test_ids_are_sorted_and_known_as_canaries(self):
    ids = canaries_lib.Canaries(num_canaries=12).client_ids
    self.assertLen(set(ids), 12)
    self.assertEqual(ids, sorted(ids))
    for client_id in ids:
      self.assertTrue(canaries_lib.is_canary(tf.constant(client_id)))
    for client_id in ('', 'ann', 'canary', 'Canary/1'):
      self.assertFalse(canaries_lib.is_canary(tf.constant(client_id)))

  def test_each_layer_is_far_above_any_clip(self):
    canaries = canaries_lib.Canaries(num_canaries=1)
    for layer in self.directions(canaries, canaries.client_ids[0]):
      self.assertAlmostEqual(np.linalg.norm(layer) / 1e6, 1, places=5)

  def test_directions_follow_from_seed_and_number_and_are_nearly_orthogonal(
      self,
  ):
    canaries = canaries_lib.Canaries(num_canaries=3)
    updates = [self.directions(canaries, one) for one in canaries.client_ids]
    again = self.directions(canaries, canaries.client_ids[1])
    np.testing.assert_array_equal(updates[1][0], again[0])
    other = self.directions(
        canaries_lib.Canaries(num_canaries=3, seed=2), canaries.client_ids[1]
    )
    for first, second in (
        (updates[0][0], updates[1][0]),
        (updates[1][0], updates[2][0]),
        (updates[1][0], other[0]),
    ):
      cosine = np.sum(first * second) / 1e12
      self.assertLess(abs(cosine), 5 / np.sqrt(2000))

  def test_only_included_canaries_send_and_coins_choose_them(self):
    canaries = canaries_lib.Canaries(num_canaries=400)
    # Of 400 coins 200, give or take 4 times 10.
    self.assertBetween(int(canaries.included.sum()), 160, 240)
    other = canaries_lib.Canaries(num_canaries=400, seed=2).included
    self.assertBetween(int((canaries.included == other).sum()), 160, 240)
    sent = lambda name: canaries.update(tf.constant(name), _SHAPES)
    for number in range(10):
      name = canaries.client_ids[number]
      expected = self.directions(canaries, name)
      for found, direction in zip(sent(name), expected):
        np.testing.assert_array_equal(
            found, direction * canaries.included[number]
        )
    for layer in sent('ann'):
      self.assertEqual(np.count_nonzero(layer), 0)

  def test_bad_numbers_are_named(self):
    with self.assertRaisesRegex(ValueError, 'num_canaries'):
      canaries_lib.Canaries(num_canaries=0)
    with self.assertRaisesRegex(ValueError, 'seed'):
      canaries_lib.Canaries(num_canaries=1, seed=-1)


class CanaryDataTest(absltest.TestCase):

  def load(self, *people: str) -> client_data.SpeechClientData:
    root = self.enterContext(tempfile.TemporaryDirectory())
    return client_data.load(
        fakes.write_split(
            os.path.join(root, 'split'), {name: 2 for name in people}
        )
    )

  def test_each_client_has_one_element_with_its_id_and_no_cost(self):
    people = self.load('ann', 'bob')
    data = canaries_lib.add_canaries(client_data=people, canaries=_CANARIES)
    self.assertEqual(
        data.client_ids, ['ann', 'bob', *_CANARIES.client_ids]
    )
    self.assertEqual(data.element_type_structure, people.element_type_structure)
    for client in data.locate_clients(data.client_ids):
      self.assertLen(client.offsets, 1)
    self.assertEqual(
        [client.client_id for client in data.locate_clients(data.client_ids)],
        data.client_ids,
    )
    self.assertEqual({data.duration_sec(name) for name in data.client_ids}, {0})

  def test_clients_with_names_of_canaries_are_refused(self):
    with self.assertRaisesRegex(ValueError, 'canary/1 has an id like a canary'):
      canaries_lib.add_canaries(
          client_data=self.load('ann', 'canary/1'), canaries=_CANARIES
      )


_EXAMPLES = tff.SequenceType(collections.OrderedDict(client_id=np.str_))
_WEIGHTS = tff.to_type(
    collections.OrderedDict(
        a=tff.TensorType(np.float32, [3]), b=tff.TensorType(np.float32)
    )
)


def _counting_work() -> tff.learning.templates.ClientWorkProcess:
  """Updates are all the number of examples; so is the measurement."""

  @tff.tensorflow.computation(_WEIGHTS, _EXAMPLES)
  def count(weights, examples):
    number = examples.reduce(0.0, lambda total, _: total + 1.0)
    update = tf.nest.map_structure(
        lambda weight: tf.fill(weight.shape, number), weights
    )
    result = tff.learning.templates.ClientResult(
        update=update, update_weight=tf.constant(7, tf.int64)
    )
    return result, number

  @tff.federated_computation
  def init_fn():
    return tff.federated_value((), tff.SERVER)

  @tff.federated_computation(
      init_fn.type_signature.result,
      tff.FederatedType(_WEIGHTS, tff.CLIENTS),
      tff.FederatedType(_EXAMPLES, tff.CLIENTS),
  )
  def next_fn(state, broadcast, examples):
    result, number = tff.federated_map(count, (broadcast, examples))
    return tff.templates.MeasuredProcessOutput(
        state, result, tff.federated_sum(number)
    )

  return tff.learning.templates.ClientWorkProcess(init_fn, next_fn)


class CanaryWorkTest(absltest.TestCase):

  def test_no_client_trains_and_only_canaries_send(self):
    self.enterContext(
        tff.framework.get_context_stack().install(
            multi_device.build_sync_context(
                multi_device.Settings(devices=['CPU:0'])
            )
        )
    )
    inner = _counting_work()
    work = canaries_lib.only_canaries_contribute(inner, canaries=_CANARIES)
    self.assertEqual(work.next.type_signature, inner.next.type_signature)

    # A round does not return updates of clients: sum them, one at a time.
    @tff.federated_computation(work.next.type_signature.parameter)
    def run(arg):
      output = work.next(arg)
      return (
          tff.federated_sum(output.result.update),
          tff.federated_sum(output.result.update_weight),
          output.measurements,
      )

    weights = collections.OrderedDict(
        a=np.zeros(3, np.float32), b=np.float32(0)
    )
    client = lambda *names: tf.data.Dataset.from_tensor_slices(
        collections.OrderedDict(client_id=tf.constant(names, tf.string))
    )
    shapes = [tf.TensorShape([3]), tf.TensorShape([])]
    numbers = set()
    for name in ('ann', *_CANARIES.client_ids):
      update, number, count = run((), [weights], [client(name)])
      self.assertEqual(count, 0)
      # Without examples, but still with a distinct number.
      numbers.add(int(number))
      expected = _CANARIES.update(tf.constant(name), shapes)
      np.testing.assert_allclose(update['a'], expected[0])
      np.testing.assert_allclose(update['b'], expected[1])
    self.assertLen(numbers, 1 + len(_CANARIES.client_ids))
    self.assertLen(set(_CANARIES.included), 2)

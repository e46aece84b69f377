"""Tests of tff_asr.learning.canary_work, with client work that counts."""

import collections

from absl.testing import absltest
import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_asr.execution import multi_device
from tff_asr.learning import canary_work
from tff_asr.privacy import canaries as canaries_lib

_CANARIES = canaries_lib.Canaries(num_canaries=2)
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
        update=update, update_weight=()
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

  def test_type_signature_is_that_of_what_it_wraps(self):
    inner = _counting_work()
    wrapped = canary_work.build(inner, canaries=_CANARIES)
    self.assertEqual(
        str(wrapped.next.type_signature), str(inner.next.type_signature)
    )

  def test_canaries_send_their_update_and_train_on_nothing(self):
    self.enterContext(
        tff.framework.get_context_stack().install(
            multi_device.build_sync_context(
                multi_device.Settings(devices=['CPU:0'])
            )
        )
    )
    work = canary_work.build(_counting_work(), canaries=_CANARIES)

    # Updates at clients are no result of a round: sum them, one at a time.
    @tff.federated_computation(work.next.type_signature.parameter)
    def run(arg):
      output = work.next(arg)
      return tff.federated_sum(output.result.update), output.measurements

    weights = collections.OrderedDict(
        a=np.zeros(3, np.float32), b=np.float32(0)
    )
    client = lambda *names: tf.data.Dataset.from_tensor_slices(
        collections.OrderedDict(client_id=tf.constant(names, tf.string))
    )
    update, number = run((), [weights], [client('ann', 'ann')])
    np.testing.assert_array_equal(update['a'], [2, 2, 2])
    self.assertEqual(number, 2)
    update, number = run((), [weights], [client()])
    self.assertEqual((update['b'], number), (0, 0))
    name = _CANARIES.client_ids[1]
    update, number = run((), [weights], [client(name)])
    self.assertEqual(number, 0)
    expected = _CANARIES.update(
        tf.constant(name), [tf.TensorShape([3]), tf.TensorShape([])]
    )
    np.testing.assert_allclose(update['a'], expected[0])
    np.testing.assert_allclose(update['b'], expected[1])


if __name__ == '__main__':
  absltest.main()

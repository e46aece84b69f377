"""Tests of tff_asr.learning.central_step."""

import collections

from absl.testing import absltest
import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tests import fakes
from tff_asr.learning import central_step
from tff_asr.learning import client_update


class CentralStepTest(absltest.TestCase):

  def test_is_the_optimizers_step_along_the_clipped_gradient(self):
    model = fakes.tiny_model(num_blocks=1)
    weights = model.initialize(tf.constant([1, 2]))
    batches = list(
        fakes.tiny_pipeline(model, max_batch_sec=3.0).training_batches(
            fakes.client_data().create_tf_dataset_for_client('bob'),
            seed=tf.constant([1, 2]),
            num_epochs=1,
        )
    )
    self.assertGreater(len(batches), 1)
    optimizer = tff.learning.optimizers.build_sgdm(0.1, momentum=0.5)
    step = central_step.build(
        model=model, optimizer=optimizer, max_grad_norm=3.0
    )
    state = tf.nest.map_structure(
        tf.convert_to_tensor,
        optimizer.initialize(
            tf.nest.map_structure(
                lambda value: tf.TensorSpec(value.shape, value.dtype), weights
            )
        ),
    )
    momentum = {name: np.zeros(value.shape) for name, value in weights.items()}
    for batch in batches:
      gradients, expected_sum = client_update.clipped_gradients(
          model, weights, batch, max_grad_norm=3.0
      )
      expected = {}
      for name, gradient in gradients.items():
        momentum[name] = 0.5 * momentum[name] + gradient.numpy()
        expected[name] = weights[name].numpy() - 0.1 * momentum[name]
      state, weights, loss_sum, num_utterances = step(state, weights, batch)
      np.testing.assert_allclose(loss_sum, expected_sum, rtol=1e-5)
      self.assertEqual(num_utterances, len(batch['example_weights']))
      for name, value in weights.items():
        np.testing.assert_allclose(value, expected[name], atol=1e-5)

    stubs = collections.OrderedDict(
        batches[0], example_weights=tf.zeros_like(batches[0]['example_weights'])
    )
    plain = tff.learning.optimizers.build_sgdm(0.1)
    step = central_step.build(model=model, optimizer=plain)
    _, same, loss_sum, num_utterances = step(
        collections.OrderedDict(learning_rate=tf.constant(0.1)), weights, stubs
    )
    self.assertEqual((float(loss_sum), float(num_utterances)), (0, 0))
    for name, value in same.items():
      np.testing.assert_array_equal(value, weights[name])


if __name__ == '__main__':
  absltest.main()

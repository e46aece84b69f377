"""Tests of what tff_asr.optimizers.per_tensor does for all its optimizers."""

from absl.testing import absltest
import tensorflow as tf

from tff_asr.optimizers import per_tensor


class PerTensorTest(absltest.TestCase):

  def test_tensors_are_updated_one_after_the_other(self):
    updates = []

    def update(weight, gradient, slots, scalars):
      # Where an executor could begin with all tensors at once.
      direction = gradient * gradient
      new_weight = weight - scalars['learning_rate'] * direction
      updates.append((direction, new_weight))
      return new_weight, slots

    optimizer = per_tensor.build(
        update, hparams={'learning_rate': 0.1}, slots=()
    )
    weights = {name: tf.ones([3]) for name in 'abc'}
    state = optimizer.initialize(
        tf.nest.map_structure(tf.TensorSpec.from_tensor, weights)
    )

    @tf.function(autograph=False)
    def step(weights, gradients):
      return optimizer.next(state, weights, gradients)

    step.get_concrete_function(weights, weights)
    self.assertLen(updates, 3)
    for (_, done), (begun, _) in zip(updates, updates[1:]):
      self.assertIn(done.op, begun.op.control_inputs)


if __name__ == '__main__':
  absltest.main()

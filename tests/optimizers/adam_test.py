from absl.testing import absltest
from absl.testing import parameterized
import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tests import reference
from tests.optimizers import steps
from tff_asr.optimizers import adam

_arrays = steps.arrays
_run = steps.run


class AdamTest(parameterized.TestCase):

  def test_three_steps_to_40_digits(self):
    # The module's formulas in decimal arithmetic of 40 digits, from w = 2 with
    # rate .1, epsilon 1e-8 and decay .01. The gradients are near epsilon.
    optimizer = adam.build_adam(0.1, weight_decay=0.01)
    weight = tf.constant(2.0)
    state = optimizer.initialize(tf.TensorSpec([]))
    for gradient, expected in (
        (1e-7, 1.90709090909091),  # 2 - .1 (1e-7 / (1e-7 + 1e-8) + .02).
        (-3e-8, 1.86750402095271),
        (5e-8, 1.81567664427600),
    ):
      state, weight = optimizer.next(state, weight, tf.constant(gradient))
      np.testing.assert_allclose(weight, expected, rtol=1e-5)

  @parameterized.named_parameters(
      ('defaults', {}),
      ('weight_decay', dict(weight_decay=0.1)),
      ('epsilon', dict(epsilon=0.1)),
      ('betas', dict(beta_1=0.5, beta_2=0.8)),
  )
  def test_agrees_with_the_numpy_twin_over_steps(self, options):
    gradients = [
        _arrays(2, step, scale=10.0 ** -(step % 9)) for step in range(12)
    ]
    twin, expected = reference.Adam(0.03, **options), _arrays(1)
    for each in gradients:
      expected = twin.step(expected, each)
    found = _run(adam.build_adam(0.03, **options), _arrays(1), gradients)
    for one, other in zip(found, expected):
      np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-6)

  def test_of_large_gradients_it_is_tffs_and_of_tiny_ones_not(self):
    # TFF's epsilon counts 1 / sqrt(1 - .999) = 31.6 times in the first step:
    # for a gradient of 1e-7 that is 1 / (1 + 3.16) in place of 1 / 1.1.
    theirs = tff.learning.optimizers.build_adam(0.1, epsilon=1e-8)
    for gradient, expected in ((1.0, 0.1), (1e-7, 0.1 / (1 + 0.1 * 31.6228))):
      (found,) = _run(theirs, [np.float32(0)], [[np.float32(gradient)]])
      np.testing.assert_allclose(found, -expected, rtol=1e-4)
    ours = adam.build_adam(0.1)
    for gradient, expected in ((1.0, 0.1), (1e-7, 0.1 / 1.1)):
      (found,) = _run(ours, [np.float32(0)], [[np.float32(gradient)]])
      np.testing.assert_allclose(found, -expected, rtol=1e-4)

  @parameterized.named_parameters(
      ('learning_rate', dict(learning_rate=0.02)),
      ('beta_1', dict(beta_1=0.5)),
      ('beta_2', dict(beta_2=0.5)),
      ('epsilon', dict(epsilon=1.0)),
      ('weight_decay', dict(weight_decay=0.5)),
  )
  def test_each_option_changes_the_result(self, options):
    run = lambda **options: _run(
        adam.build_adam(**(dict(learning_rate=0.01) | options)),
        _arrays(1),
        [_arrays(2, step) for step in range(2)],
    )
    self.assertGreater(np.abs(run()[0] - run(**options)[0]).max(), 1e-4)

  @parameterized.named_parameters(
      ('learning_rate', 'learning_rate', (-0.1, float('nan'))),
      ('beta_1', 'beta_1', (-0.1, 1.0, 1.5)),
      ('beta_2', 'beta_2', (-0.1, 1.0, 1.5)),
      ('epsilon', 'epsilon', (-1e-9,)),
      ('weight_decay', 'weight_decay', (-0.1,)),
  )
  def test_bad_arguments_are_named(self, name, values):
    for value in values:
      with self.assertRaisesRegex(ValueError, f'{name} must be'):
        adam.build_adam(**(dict(learning_rate=0.1) | {name: value}))


if __name__ == '__main__':
  absltest.main()

from absl.testing import absltest
from absl.testing import parameterized
import numpy as np
import tensorflow as tf

from tests import reference
from tests.optimizers import steps
from tff_asr.optimizers import lars

_arrays = steps.arrays
_run = steps.run


class LarsTest(parameterized.TestCase):

  def test_two_steps_by_hand(self):
    # w = (3, 4), g = (.6, .8), rate .5: v = .5 * .001 * 5 / 1 * g
    # = (.0015, .002). Then ||w|| = 4.9975 and
    # v = .9 (.0015, .002) + .5 * .001 * 4.9975 g = (.00284925, .003799).
    (weights,) = _run(lars.build_lars(0.5), [[3.0, 4.0]], [[[0.6, 0.8]]] * 2)
    np.testing.assert_allclose(weights, [2.99565075, 3.994201], rtol=1e-6)

  def test_three_steps_to_40_digits(self):
    # The module's formulas in decimal arithmetic of 40 digits, with decay .1.
    # The first: u = (.9, 1.2), ||u|| = 1.5, so w = (3, 4) - (.0015, .002).
    gradients = [[[0.6, 0.8]], [[-0.3, 0.1]], [[0.2, 0.4]]]
    for steps, expected in enumerate(
        (
            [2.9985, 3.998],
            [2.99715074992494, 3.99370125011253],
            [2.99461300871590, 3.98771537018555],
        ),
        start=1,
    ):
      optimizer = lars.build_lars(0.5, weight_decay=0.1)
      (weights,) = _run(optimizer, [[3.0, 4.0]], gradients[:steps])
      np.testing.assert_allclose(weights, expected, rtol=1e-6)

  @parameterized.named_parameters(
      ('defaults', {}),
      ('momentum', dict(momentum=0.0)),
      ('trust_coefficient', dict(trust_coefficient=0.1)),
      ('epsilon', dict(epsilon=0.1)),
      ('weight_decay', dict(weight_decay=0.1)),
  )
  def test_agrees_with_the_numpy_twin_over_steps(self, options):
    gradients = [
        _arrays(2, step, scale=10.0 ** -(step % 9)) for step in range(12)
    ]
    twin, expected = reference.Lars(0.3, **options), _arrays(1)
    for each in gradients:
      expected = twin.step(expected, each)
    found = _run(lars.build_lars(0.3, **options), _arrays(1), gradients)
    for one, other in zip(found, expected):
      np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)

  def test_what_was_added_at_another_rate_keeps_it(self):
    # One step of v = .0025 g at rate .5; at rate 0 afterwards .9 v is left.
    optimizer = lars.build_lars(0.5)
    weights = tf.constant([3.0, 4.0])
    state = optimizer.initialize(tf.TensorSpec([2]))
    gradient = tf.constant([0.6, 0.8])
    state, weights = optimizer.next(state, weights, gradient)
    hparams = optimizer.get_hparams(state) | {'learning_rate': 0.0}
    state = optimizer.set_hparams(state, hparams)
    _, stopped = optimizer.next(state, weights, gradient)
    np.testing.assert_allclose(weights - stopped, [0.00135, 0.0018], rtol=1e-3)

  def test_weights_of_norm_0_move_by_the_plain_step(self):
    (weights,) = _run(lars.build_lars(0.1), [[0.0, 0.0]], [[[3.0, -5.0]]])
    np.testing.assert_allclose(weights, [-0.3, 0.5], rtol=1e-6)

  def test_the_size_of_gradients_does_not_matter_without_epsilon(self):
    run = lambda scale: _run(
        lars.build_lars(0.1), _arrays(1), [_arrays(2, scale=scale)]
    )
    for small, large in zip(run(1e-8), run(1e8)):
      np.testing.assert_allclose(small, large, rtol=1e-5)

  def test_layers_do_not_affect_each_other(self):
    together = _run(lars.build_lars(0.1), _arrays(1), [_arrays(2)])
    for i, (weight, gradient) in enumerate(zip(_arrays(1), _arrays(2))):
      (alone,) = _run(lars.build_lars(0.1), [weight], [[gradient]])
      np.testing.assert_allclose(alone, together[i], rtol=1e-6)

  @parameterized.named_parameters(
      ('learning_rate', dict(learning_rate=2.0)),
      ('momentum', dict(momentum=0.1)),
      ('trust_coefficient', dict(trust_coefficient=0.1)),
      ('epsilon', dict(epsilon=1.0)),
      ('weight_decay', dict(weight_decay=0.5)),
  )
  def test_each_option_changes_the_result(self, options):
    run = lambda **options: _run(
        lars.build_lars(**(dict(learning_rate=1.0) | options)),
        _arrays(1),
        [_arrays(2, step) for step in range(2)],
    )
    self.assertGreater(np.abs(run()[0] - run(**options)[0]).max(), 1e-4)

  @parameterized.named_parameters(
      ('learning_rate', 'learning_rate', (-0.1, float('inf'))),
      ('momentum', 'momentum', (-0.1, 1.0)),
      ('trust_coefficient', 'trust_coefficient', (0.0, -1.0)),
      ('epsilon', 'epsilon', (-1e-9,)),
      ('weight_decay', 'weight_decay', (-0.1,)),
  )
  def test_bad_arguments_are_named(self, name, values):
    for value in values:
      with self.assertRaisesRegex(ValueError, f'{name} must be'):
        lars.build_lars(**(dict(learning_rate=0.1) | {name: value}))


if __name__ == '__main__':
  absltest.main()

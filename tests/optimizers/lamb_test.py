import collections

from absl.testing import absltest
from absl.testing import parameterized
import numpy as np
import tensorflow as tf

from tests import reference
from tff_asr.optimizers import lamb

_SHAPES = ((4, 3), (5,), (), (2, 1, 2))


def _arrays(*key: int, scale: float = 1.0) -> list[np.ndarray]:
  rng = np.random.default_rng(key)
  return [
      scale * rng.normal(size=shape).astype(np.float32) for shape in _SHAPES
  ]


def _specs(weights) -> list[tf.TensorSpec]:
  return tf.nest.map_structure(tf.TensorSpec.from_tensor, weights)


def _step(optimizer, weights, gradients):
  """One step from a new state."""
  weights = [tf.constant(w, tf.float32) for w in weights]
  gradients = [tf.constant(g, tf.float32) for g in gradients]
  state = optimizer.initialize(_specs(weights))
  return optimizer.next(state, weights, gradients)


class LambTest(parameterized.TestCase):

  def test_first_step_by_hand(self):
    # w = (3, 4), g = (.1, -.2), learning rate .1, epsilon 0. With t = 1 the
    # corrections undo the decays: m / (1 - .9) = g and v / (1 - .999) = g^2.
    # So u = g / |g| = (1, -1), ||w|| = 5, ||u|| = sqrt(2) and
    # w = (3, 4) - .1 * 5 / sqrt(2) * (1, -1) = (2.6464466, 4.3535534).
    optimizer = lamb.build_lamb(0.1, epsilon=0.0)
    state, weights = _step(optimizer, [[3.0, 4.0]], [[0.1, -0.2]])
    np.testing.assert_allclose(weights[0], [2.6464466, 4.3535534], rtol=1e-6)
    self.assertEqual(int(state['step']), 1)
    np.testing.assert_allclose(state['first_moment'][0], [0.01, -0.02], 1e-6)
    np.testing.assert_allclose(state['second_moment'][0], [1e-5, 4e-5], 1e-4)

  def test_first_step_with_epsilon_and_decay_by_hand(self):
    # w = 2, g = .5, epsilon .5, decay .25: u = .5 / (.5 + .5) + .25 * 2 = 1,
    # ratio 2 / 1, so w = 2 - .1 * 2 * 1 = 1.8.
    optimizer = lamb.build_lamb(0.1, epsilon=0.5, weight_decay=0.25)
    _, weights = _step(optimizer, [2.0], [0.5])
    np.testing.assert_allclose(weights[0], 1.8, rtol=1e-6)

  def test_three_steps_to_40_digits(self):
    # The module's formulas in decimal arithmetic of 40 digits, from w = (3, 4)
    # with rate .1, epsilon 1e-6, decay .01 and these gradients.
    optimizer = lamb.build_lamb(0.1, weight_decay=0.01)
    weights = tf.constant([3.0, 4.0])
    state = optimizer.initialize(tf.TensorSpec([2]))
    for gradient, expected in (
        ([0.1, -0.2], [2.63423704072847, 4.34090681663019]),
        ([-0.3, 0.1], [3.09262498437855, 4.55932673534267]),
        ([0.2, 0.4], [3.03843034583227, 4.01107420512601]),
    ):
      state, weights = optimizer.next(state, weights, tf.constant(gradient))
      np.testing.assert_allclose(weights, expected, rtol=2e-6)

  @parameterized.named_parameters(
      ('defaults', {}),
      ('weight_decay', dict(weight_decay=0.1)),
      ('epsilon', dict(epsilon=0.1)),
      ('betas', dict(beta_1=0.5, beta_2=0.8)),
      ('no_memory', dict(beta_1=0.0, beta_2=0.0)),
  )
  def test_agrees_with_the_numpy_twin_over_steps(self, options):
    optimizer = lamb.build_lamb(0.03, **options)
    twin = reference.Lamb(0.03, **options)
    weights = [tf.constant(w) for w in _arrays(1)]
    expected = _arrays(1)
    state = optimizer.initialize(_specs(weights))
    next_fn = tf.function(optimizer.next)
    for step in range(12):
      # Like client updates under DP in some steps: far below epsilon.
      gradients = _arrays(2, step, scale=10.0 ** -(step % 9))
      state, weights = next_fn(state, weights, gradients)
      expected = twin.step(expected, gradients)
    for found, value in zip(weights, expected):
      np.testing.assert_allclose(found, value, rtol=1e-4, atol=1e-6)

  @parameterized.named_parameters(
      ('learning_rate', dict(learning_rate=0.02)),
      ('beta_1', dict(beta_1=0.5)),
      ('beta_2', dict(beta_2=0.5)),
      ('epsilon', dict(epsilon=1.0)),
      ('weight_decay', dict(weight_decay=0.5)),
  )
  def test_each_option_changes_the_result(self, options):
    def run(**options):
      optimizer = lamb.build_lamb(**(dict(learning_rate=0.01) | options))
      weights = [tf.constant(w) for w in _arrays(1)]
      state = optimizer.initialize(_specs(weights))
      for step in range(2):
        gradients = [tf.constant(g) for g in _arrays(2, step)]
        state, weights = optimizer.next(state, weights, gradients)
      return weights

    self.assertGreater(np.abs(run()[0] - run(**options)[0]).max(), 1e-4)

  def test_weights_of_norm_0_move_by_the_plain_step(self):
    # Ratio 1: w = 0 - .1 * g / |g|.
    _, weights = _step(lamb.build_lamb(0.1), [[0.0, 0.0]], [[3.0, -5.0]])
    np.testing.assert_allclose(weights[0], [-0.1, 0.1], rtol=1e-5)

  def test_a_gradient_of_0_changes_nothing(self):
    _, weights = _step(lamb.build_lamb(0.1), [[1.0, 2.0]], [[0.0, 0.0]])
    np.testing.assert_array_equal(weights[0], [1.0, 2.0])

  def test_a_gradient_of_0_without_epsilon_is_not_a_number(self):
    # 0 / 0, as in the paper; epsilon 0 is for whoever has no zeros.
    _, weights = _step(lamb.build_lamb(0.1, epsilon=0.0), [[1.0]], [[0.0]])
    self.assertTrue(np.isnan(weights[0]).all())

  def test_a_missing_gradient_leaves_its_weight_alone(self):
    optimizer = lamb.build_lamb(0.1)
    weights = [tf.constant([1.0]), tf.constant([2.0])]
    state = optimizer.initialize(_specs(weights))
    new_state, new_weights = optimizer.next(
        state, weights, [None, tf.constant([1.0])]
    )
    np.testing.assert_array_equal(new_weights[0], [1.0])
    np.testing.assert_array_equal(new_state['first_moment'][0], [0.0])
    np.testing.assert_allclose(new_weights[1], [1.8], rtol=1e-5)

  def test_layers_do_not_affect_each_other(self):
    together = _step(lamb.build_lamb(0.1), _arrays(1), _arrays(2))[1]
    for i, (weight, gradient) in enumerate(zip(_arrays(1), _arrays(2))):
      alone = _step(lamb.build_lamb(0.1), [weight], [gradient])[1][0]
      np.testing.assert_allclose(alone, together[i], rtol=1e-6)

  def test_the_size_of_gradients_does_not_matter_without_epsilon(self):
    optimizer = lamb.build_lamb(0.1, epsilon=0.0)
    small = _step(optimizer, _arrays(1), _arrays(2, scale=1e-8))[1]
    large = _step(optimizer, _arrays(1), _arrays(2, scale=1e8))[1]
    for a, b in zip(small, large):
      np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)

  def test_sparse_gradients_equal_dense_ones(self):
    weights = tf.constant([[1.0, 2.0], [3.0, 4.0]])
    sparse = tf.IndexedSlices(
        tf.constant([[0.5, 0.5]]), tf.constant([1]), tf.constant([2, 2])
    )
    optimizer = lamb.build_lamb(0.1)
    state = optimizer.initialize(tf.TensorSpec([2, 2]))
    np.testing.assert_array_equal(
        optimizer.next(state, weights, sparse)[1],
        optimizer.next(state, weights, tf.convert_to_tensor(sparse))[1],
    )

  def test_state_and_hparams_have_these_names(self):
    optimizer = lamb.build_lamb(0.1, weight_decay=0.5)
    state = optimizer.initialize(tf.TensorSpec([2]))
    self.assertEqual(
        list(state),
        ['learning_rate', 'beta_1', 'beta_2', 'epsilon', 'weight_decay', 'step',
         'first_moment', 'second_moment'],
    )
    self.assertEqual(
        optimizer.get_hparams(state),
        collections.OrderedDict(
            learning_rate=0.1, beta_1=0.9, beta_2=0.999, epsilon=1e-6,
            weight_decay=0.5,
        ),
    )

  @parameterized.named_parameters(
      ('learning_rate', 'learning_rate', (-0.1, float('nan'))),
      ('beta_1', 'beta_1', (-0.1, 1.0, 1, 1.5)),
      ('beta_2', 'beta_2', (-0.1, 1.0, 1, 1.5)),
      ('epsilon', 'epsilon', (-1e-9,)),
      ('weight_decay', 'weight_decay', (-0.1,)),
  )
  def test_bad_arguments_are_named(self, name, values):
    for value in values:
      with self.assertRaisesRegex(ValueError, f'{name} must be'):
        lamb.build_lamb(**(dict(learning_rate=0.1) | {name: value}))


if __name__ == '__main__':
  absltest.main()

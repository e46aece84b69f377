import math

from absl.testing import parameterized
import numpy as np
import scipy.stats
import tensorflow as tf

from tff_asr.models import weights

_SEED = (1, 2)


def _draw(specs: weights.Specs, seed: tuple[int, int] = _SEED):
  return weights.initialize(specs, tf.constant(seed))


class WeightsTest(parameterized.TestCase):

  def test_initial_values_are_float32_of_their_shapes_sorted_by_name(self):
    drawn = _draw({
        'b': weights.zeros_spec(3),
        'c/a': weights.WeightSpec((2, 3, 4), limit=0.1),
        'a': weights.matrix_spec(5, 2),
    })
    self.assertEqual(list(drawn), ['a', 'b', 'c/a'])
    self.assertEqual(
        [value.shape.as_list() for value in drawn.values()],
        [[5, 2], [3], [2, 3, 4]],
    )
    self.assertEqual({value.dtype for value in drawn.values()}, {tf.float32})

  def test_a_matrix_is_uniform_with_variance_a_third_of_1_over_fan_in(self):
    # Limit 1 / sqrt(64) = .125, variance .125^2 / 3 = 1 / (3 * 64).
    value = _draw({'w': weights.matrix_spec(64, 300)})['w'].numpy().ravel()
    self.assertLessEqual(np.max(np.abs(value)), 0.125)
    np.testing.assert_allclose(np.var(value), 1 / (3 * 64), rtol=0.03)
    # Seeded; a new seed would fail 1 time in 1,000, a wrong limit always.
    test = lambda limit: scipy.stats.kstest(
        value, scipy.stats.uniform(-limit, 2 * limit).cdf
    )
    self.assertGreater(test(0.125).pvalue, 1e-3)
    self.assertLess(test(0.14).pvalue, 1e-6)

  def test_constants(self):
    drawn = _draw({
        'ones': weights.ones_spec(2),
        'offset': weights.WeightSpec((1,), limit=0.5, offset=10.0),
        'zeros': weights.zeros_spec(2),
    })
    np.testing.assert_array_equal(drawn['ones'], [1, 1])
    np.testing.assert_array_equal(drawn['zeros'], [0, 0])
    self.assertBetween(float(drawn['offset'][0]), 9.5, 10.5)

  def test_a_value_depends_on_seed_and_name_only(self):
    spec = weights.matrix_spec(4, 4)
    alone = _draw({'w': spec})
    among = tf.function(lambda: _draw({'a': spec, 'w': spec, 'z': spec}))()
    np.testing.assert_array_equal(alone['w'], among['w'])
    self.assertFalse(np.array_equal(among['a'], among['w']))
    for seed in ((1, 3), (2, 2), (2, 1)):
      other = _draw({'w': spec}, seed)
      self.assertFalse(np.array_equal(alone['w'], other['w']))

  def test_select_undoes_prefix(self):
    specs = {'a': weights.ones_spec(1), 'b/c': weights.zeros_spec(2)}
    other = weights.prefix('block_10', specs)
    both = {**weights.prefix('block_1', specs), **other}
    self.assertEqual(
        sorted(both),
        ['block_1/a', 'block_1/b/c', 'block_10/a', 'block_10/b/c'],
    )
    selected = weights.subtree('block_1', _draw(both))
    self.assertEqual(list(selected), ['a', 'b/c'])

  def test_count_by_hand(self):
    # 2 * 3 + 4 + 1 (a scalar).
    specs = {
        'a': weights.matrix_spec(2, 3),
        'b': weights.ones_spec(4),
        'c': weights.WeightSpec(()),
    }
    self.assertEqual(weights.num_parameters(specs), 11)
    self.assertEqual(
        sum(math.prod(value.shape) for value in _draw(specs).values()), 11
    )

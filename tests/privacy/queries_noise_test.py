"""Noise, events and state; clipping is in queries_test."""

import collections
import math

from absl.testing import absltest
from absl.testing import parameterized
import dp_accounting
import numpy as np
import scipy.stats
import tensorflow as tf

from tff_asr.privacy import clipping as clipping_lib
from tff_asr.privacy import queries

_KEY = np.array([1, -2, 3, 2**31 - 1], np.int32)
_SPLITS = tuple(clipping_lib.SPLITS)


def _query(clip=1.0, multiplier=0.0, split='global'):
  return queries.PerLayerClipSumQuery(
      l2_norm_clip=clip,
      noise_multiplier=multiplier,
      clipping=clipping_lib.Clipping(split=split),
  )


def _noise(
    shapes, *, clip=1.0, multiplier=1.0, split='global', key=_KEY, counter=0
) -> list[np.ndarray]:
  """What the query adds to sums of zeros of these shapes."""
  query = _query(clip, multiplier, split)
  state = queries.set_noise_key(query.initial_global_state(), key)
  state = state._replace(counter=tf.constant(counter, tf.int64))
  result, _, _ = query.get_noised_result(
      [tf.zeros(shape) for shape in shapes], state
  )
  return [layer.numpy() for layer in result]


def _p_value(values: np.ndarray, stddev: float) -> float:
  return scipy.stats.kstest(
      values.ravel(), scipy.stats.norm(scale=stddev).cdf
  ).pvalue


class NoiseTest(parameterized.TestCase):

  # All draws are of fixed keys, so these never change by chance. With new keys
  # a test at 1e-3 would fail 1 time in 1,000 for each p-value that it takes.

  @parameterized.product(split=_SPLITS)
  def test_noise_is_gaussian_of_z_times_c_in_every_layer(self, split):
    clip, multiplier = 0.3, 0.7
    for layer in _noise(
        [[5000], [70, 90], [3000]],
        clip=clip,
        multiplier=multiplier,
        split=split,
    ):
      stddev = clip * multiplier
      self.assertGreater(_p_value(layer, stddev), 1e-3)
      self.assertLess(_p_value(layer, stddev * 2 / 3), 1e-9)
      self.assertLess(_p_value(layer, stddev * 3 / 2), 1e-9)

  def test_noise_is_added_to_the_sum(self):
    query = _query(0.3, 0.7)
    state = queries.set_noise_key(query.initial_global_state(), _KEY)
    total = [tf.constant([100.0, -200.0, 0.0])]
    noised, _, _ = query.get_noised_result(total, state)
    noise = _noise([[3]], clip=0.3, multiplier=0.7)
    np.testing.assert_allclose(noised[0] - total[0], noise[0], atol=2e-5)

  def test_the_same_state_gives_the_same_bits(self):
    shapes = [[5], [3, 7], [], [1000]]
    query = _query(1.0, 1.0)
    state = queries.set_noise_key(query.initial_global_state(), _KEY)
    zeros = [tf.zeros(shape) for shape in shapes]
    traced = tf.function(lambda *a: query.get_noised_result(*a)[0])
    first = _noise(shapes)
    for again in (_noise(shapes), traced(zeros, state)):
      for a, b in zip(first, again):
        self.assertEqual(a.tobytes(), np.asarray(b).tobytes())

  def test_noise_of_the_next_round_is_new_and_uncorrelated(self):
    size = 20000
    rounds = [_noise([[size]], counter=t)[0] for t in (0, 1, 2, 2**22)]
    for i, a in enumerate(rounds):
      for b in rounds[:i]:
        # 5 standard deviations of a correlation of independent values.
        self.assertLess(abs(np.corrcoef(a, b)[0, 1]), 5 / math.sqrt(size))
    # Between rounds at one place it is as Gaussian as within a round.
    across = [_noise([[4]], counter=t)[0] for t in range(500)]
    self.assertGreater(_p_value(np.array(across), 1.0), 1e-3)

  def test_each_noised_result_counts(self):
    query = _query(1.0, 1.0)
    state = queries.set_noise_key(query.initial_global_state(), _KEY)
    for t in range(3):
      self.assertEqual(int(state.counter), t)
      np.testing.assert_array_equal(state.noise_key, _KEY)
      result, state, _ = query.get_noised_result([tf.zeros([9])], state)
      np.testing.assert_array_equal(result[0], _noise([[9]], counter=t)[0])

  def test_every_word_of_the_key_matters(self):
    size = 20000
    base = _noise([[size]])[0]
    for word in range(4):
      for bit in (0, 31):
        key = _KEY.copy().view(np.uint32)
        key[word] ^= np.uint32(1 << bit)
        other = _noise([[size]], key=key.view(np.int32))[0]
        correlation = np.corrcoef(base, other)[0, 1]
        self.assertLess(abs(correlation), 5 / math.sqrt(size))

  def test_no_stretch_of_noise_comes_twice(self):
    # Sizes that do not divide by the generator's blocks of 4, so that a stream
    # of one layer that overlapped the next one's, shifted or not, would repeat
    # a stretch. Pairs of equal floats come by chance, three in a row do not.
    shapes = [[1], [5], [3], [], [1000], [7], [2], [1001], [4], [4], [66, 3]]
    stretches = collections.Counter()
    for counter in (0, 1, 2, 3):
      for layer in _noise(shapes, counter=counter):
        values = layer.ravel()
        for i in range(len(values) - 2):
          stretches[values[i : i + 3].tobytes()] += 1
        if len(values) < 3:
          stretches[values.tobytes()] += 1
    self.assertEqual(stretches.most_common(1)[0][1], 1)

  @parameterized.parameters(1, 2, 3, 5, 4097)
  def test_layers_are_uncorrelated_at_any_shift(self, first_size):
    size = 4000
    layers = _noise([[first_size], [size], [size]])
    a, b = layers[1], layers[2]
    for shift in range(-8, 9):
      rolled = np.roll(b, shift)
      self.assertLess(abs(np.corrcoef(a, rolled)[0, 1]), 5 / math.sqrt(size))

  def test_elements_of_a_layer_are_uncorrelated(self):
    size = 40000
    values = _noise([[size]])[0]
    for lag in (1, 2, 3, 4, 5, 8, 16, 1024):
      correlation = np.corrcoef(values[:-lag], values[lag:])[0, 1]
      self.assertLess(abs(correlation), 5 / math.sqrt(size))

  def test_a_layer_of_no_elements_takes_no_noise(self):
    layers = _noise([[0, 3], [5]])
    self.assertEqual(layers[0].shape, (0, 3))
    self.assertTrue(np.all(np.isfinite(layers[1])))

  def test_without_a_key_the_result_is_nan(self):
    query = _query(1.0, 0.5)
    result, _, _ = query.get_noised_result(
        [tf.ones([3]), tf.ones([])], query.initial_global_state()
    )
    for layer in result:
      self.assertTrue(np.all(np.isnan(layer)))

  @parameterized.product(split=_SPLITS, clip=(1.0, math.inf))
  def test_no_noise_needs_no_key_and_changes_nothing(self, split, clip):
    query = _query(clip, 0.0, split)
    state = query.initial_global_state()
    total = [tf.constant([1.5, -2.0])]
    result, _, event = query.get_noised_result(total, state)
    np.testing.assert_array_equal(result[0], total[0])
    self.assertEqual(float(event.noise_multiplier), 0.0)

  @parameterized.product(split=_SPLITS)
  def test_the_event_is_one_gaussian_of_z(self, split):
    query = _query(0.01, 1.3, split)
    _, _, event = query.get_noised_result(
        [tf.zeros([2])] * 5, query.initial_global_state()
    )
    self.assertIsInstance(event, dp_accounting.GaussianDpEvent)
    self.assertAlmostEqual(float(event.noise_multiplier), 1.3, places=6)

  @parameterized.parameters(
      (1.0, 0.0, 0.0), (math.inf, 0.0, 0.0), (0.5, 3.0, 1.5)
  )
  def test_metrics_by_hand(self, clip, multiplier, stddev):
    query = _query(clip, multiplier)
    metrics = query.derive_metrics(query.initial_global_state())
    self.assertEqual(list(metrics), ['l2_norm_clip', 'noise_stddev_on_sum'])
    self.assertEqual(float(metrics['l2_norm_clip']), clip)
    self.assertEqual(float(metrics['noise_stddev_on_sum']), stddev)

  def test_no_key_is_in_the_graph_nor_is_stateful_randomness(self):
    query = _query(1.0, 1.0)
    state = queries.set_noise_key(query.initial_global_state(), _KEY)
    state_specs = tf.nest.map_structure(
        lambda leaf: tf.TensorSpec.from_tensor(tf.convert_to_tensor(leaf)),
        state,
    )
    traced = tf.function(query.get_noised_result).get_concrete_function(
        [tf.TensorSpec([5])], state_specs
    )
    graph = traced.graph.as_graph_def()
    text = graph.SerializeToString()
    self.assertNotIn(_KEY.tobytes(), text)
    ops = {node.op for node in graph.node}
    self.assertIn('StatelessRandomNormalV2', ops)
    self.assertEmpty(
        [op for op in ops if 'Random' in op and 'Stateless' not in op]
    )

  def test_state_has_the_same_types_before_and_after(self):
    query = _query(1.0, 1.0)
    state = query.initial_global_state()
    _, new_state, _ = query.get_noised_result([tf.zeros([2])], state)
    types = lambda value: [(leaf.dtype, leaf.shape) for leaf in value]
    self.assertEqual(types(new_state), types(state))
    self.assertEqual(
        [dtype for dtype, _ in types(state)],
        [tf.float32, tf.float32, tf.int32, tf.int64],
    )


if __name__ == '__main__':
  absltest.main()

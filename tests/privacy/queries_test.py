"""Clipping and arguments; the noise is in queries_noise_test."""

import collections
import math

from absl.testing import absltest
from absl.testing import parameterized
import numpy as np
import tensorflow as tf

from tff_asr.privacy import clipping as clipping_lib
from tff_asr.privacy import queries

_KEY = np.array([1, -2, 3, 2**31 - 1], np.int32)
_SPLITS = tuple(clipping_lib.SPLITS)
# What the guarantee allows beyond C, for float32.
_SLACK = 1 + 1e-6


def _query(clip=1.0, multiplier=0.0, split='global', **clipping):
  return queries.PerLayerClipSumQuery(
      l2_norm_clip=clip,
      noise_multiplier=multiplier,
      clipping=clipping_lib.Clipping(split=split, **clipping),
  )


def _clip(query, record):
  """Returns the clipped record, as arrays in a list of layers."""
  record = tf.nest.map_structure(tf.constant, record)
  params = query.derive_sample_params(query.initial_global_state())
  clipped = query.preprocess_record(params, record)
  tf.nest.assert_same_structure(clipped, record)
  return [layer.numpy() for layer in tf.nest.flatten(clipped)]


def _norm(layers) -> float:
  """L2 norm over all layers, in float64."""
  return math.sqrt(
      sum(np.sum(np.square(layer, dtype=np.float64)) for layer in layers)
  )


def _layer_clips(record, *, clip, split) -> list[float]:
  sizes = [layer.size for layer in tf.nest.flatten(record)]
  return [share * clip for share in clipping_lib.SPLITS[split](sizes)]


def _random_record(rng: np.random.Generator):
  """A random nest of float32 layers, some zero, of all magnitudes."""

  def layer():
    shape = rng.integers(1, 6, size=rng.integers(0, 4))
    values = rng.normal(size=shape)
    kind = rng.integers(5)
    if kind == 0:
      values = values * 0
    elif kind == 1:  # Every element of another magnitude.
      values = values * 10.0 ** rng.uniform(-45, 30, size=shape)
    else:
      values = values * 10.0 ** rng.uniform(-45, 37)
    return np.asarray(values, np.float32)

  def nest(depth):
    kind = rng.integers(4) if depth else 0
    parts = rng.integers(1, 4)
    if kind == 1:
      return [nest(depth - 1) for _ in range(parts)]
    if kind == 2:
      return tuple(nest(depth - 1) for _ in range(parts))
    if kind == 3:
      return collections.OrderedDict(
          (f'k{i}', nest(depth - 1)) for i in range(parts)
      )
    return layer()

  return nest(3)


class ClippingTest(parameterized.TestCase):

  def test_global_by_hand(self):
    # Norm sqrt(9 + 16 + 144) = 13, clip 6.5: halved.
    clipped = _clip(_query(6.5), [np.float32([3, 4]), np.float32(12)])
    np.testing.assert_allclose(clipped[0], [1.5, 2], rtol=1e-6)
    np.testing.assert_allclose(clipped[1], 6, rtol=1e-6)

  def test_uniform_by_hand(self):
    # C_h = 5 / sqrt(4) = 2.5: norms 5, 12, 2 and 0 become 2.5, 2.5, 2 and 0.
    record = [np.float32([3, 4]), np.float32(12), np.float32([[2]]),
              np.zeros([3], np.float32)]
    clipped = _clip(_query(5.0, split='uniform'), record)
    np.testing.assert_allclose(clipped[0], [1.5, 2], rtol=1e-6)
    np.testing.assert_allclose(clipped[1], 2.5, rtol=1e-6)
    np.testing.assert_array_equal(clipped[2], [[2]])
    np.testing.assert_array_equal(clipped[3], [0, 0, 0])

  def test_dim_by_hand(self):
    # Sizes 2, 1 and 1 of 4: C_h = 2 sqrt(.5), 2 / 2 and 2 / 2.
    record = [np.float32([30, 40]), np.float32(-12), np.float32([[0.5]])]
    clipped = _clip(_query(2.0, split='dim'), record)
    np.testing.assert_allclose(
        clipped[0], math.sqrt(2) * np.array([0.6, 0.8]), rtol=1e-6
    )
    np.testing.assert_allclose(clipped[1], -1, rtol=1e-6)
    np.testing.assert_array_equal(clipped[2], [[0.5]])

  @parameterized.product(split=_SPLITS, clip=(1e-30, 1e-8, 0.01, 1.0, 1e20))
  def test_clipped_norms_are_at_most_the_clip(self, split, clip):
    # Seeded: random structures, from denormals to 1e37.
    rng = np.random.default_rng(3)
    query = _query(clip, split=split)
    for _ in range(40):
      record = _random_record(rng)
      clipped = _clip(query, record)
      self.assertLessEqual(_norm(clipped), clip * _SLACK)
      layers = tf.nest.flatten(record)
      if split == 'global':
        if _norm(layers) > clip:
          self.assertGreater(_norm(clipped), clip * (1 - 1e-5))
        continue
      layer_clips = _layer_clips(record, clip=clip, split=split)
      for layer, result, layer_clip in zip(layers, clipped, layer_clips):
        self.assertLessEqual(_norm([result]), layer_clip * _SLACK)
        if _norm([layer]) > layer_clip:
          self.assertGreater(_norm([result]), layer_clip * (1 - 1e-5))

  @parameterized.product(
      split=('uniform', 'dim'),
      layers=clipping_lib.LAYERS,
      clip=(1e-8, 0.01, 1e20),
  )
  def test_rescaled_layers_have_their_clip_or_their_bits(
      self, split, layers, clip
  ):
    # Seeded, as above.
    rng = np.random.default_rng(6)
    clipping = dict(split=split, layers=layers, rule='rescale')
    query = _query(clip, **clipping)
    num_scaled_up = 0
    for _ in range(40):
      record = _random_record(rng)
      clipped = _clip(query, record)
      self.assertLessEqual(_norm(clipped), clip * _SLACK)
      tensors = tf.nest.flatten(record)
      if _norm(tensors) <= clip * (1 - 1e-6):
        for tensor, result in zip(tensors, clipped):
          # Processors may flush a denormal number to 0, and nothing else.
          is_same = result == tensor
          np.testing.assert_array_equal(is_same | (result == 0), True)
        continue
      for layer in clipping_lib.Clipping(**clipping).divide(record):
        before = _norm([tensors[place] for place in layer.indices])
        if before < 1e-37:  # Denormal, or zero.
          continue
        after = _norm([clipped[place] for place in layer.indices])
        self.assertAlmostEqual(after / (layer.share * clip), 1, delta=1e-5)
        num_scaled_up += before < 0.9 * layer.share * clip
    self.assertGreater(num_scaled_up, 0)

  def test_rescaling_by_hand(self):
    # C = 10, C_h = 10 / sqrt(4) = 5. Norms 5, 12, .5 and 0: in all 13.01.
    record = [np.float32([3, 4]), np.float32(-12), np.float32([[0.3, 0.4]]),
              np.zeros([3], np.float32)]
    clipped = _clip(_query(10.0, split='uniform', rule='rescale'), record)
    np.testing.assert_allclose(clipped[0], [3, 4], rtol=1e-6)
    np.testing.assert_allclose(clipped[1], -5, rtol=1e-6)
    np.testing.assert_allclose(clipped[2], [[3, 4]], rtol=1e-6)
    np.testing.assert_array_equal(clipped[3], [0, 0, 0])
    # Within C as a whole: one layer is above C_h = 7, and stays.
    for layer, result in zip(
        record, _clip(_query(14.0, split='uniform', rule='rescale'), record)
    ):
      np.testing.assert_array_equal(result, layer)

  def test_modules_share_their_norm_by_hand(self):
    # C_h = 10 / sqrt(2). m: norm 13, factor .5439; w: norm 1, as it is.
    record = collections.OrderedDict([
        ('m/a', np.float32([3, 4])), ('m/b', np.float32(12)),
        ('w', np.float32([1])),
    ])
    clipped = _clip(_query(10.0, split='uniform', layers='modules'), record)
    factor = 10 / math.sqrt(2) / 13
    np.testing.assert_allclose(clipped[0], [3 * factor, 4 * factor], rtol=1e-6)
    np.testing.assert_allclose(clipped[1], 12 * factor, rtol=1e-6)
    np.testing.assert_array_equal(clipped[2], [1])

  def test_weights_by_hand(self):
    # Norms as 3 to 1, so C_h = 10 * 3 / sqrt(10) and 10 / sqrt(10).
    record = {'a': np.float32([30]), 'b': np.float32([30])}
    clipped = _clip(_query(10.0, split='uniform', weights={'a': 3.0}), record)
    np.testing.assert_allclose(clipped[0], 3 * math.sqrt(10), rtol=1e-6)
    np.testing.assert_allclose(clipped[1], math.sqrt(10), rtol=1e-6)

  @parameterized.product(split=_SPLITS, size=(1e30, 3.4e38))
  def test_huge_updates_keep_their_direction(self, split, size):
    # C over the norm is below float32's normal numbers here, where rounding
    # it could double it.
    clip = 1e-8
    record = [np.full([1000], size, np.float32), np.float32([-size])]
    clipped = _clip(_query(clip, split=split), record)
    self.assertLessEqual(_norm(clipped), clip * _SLACK)
    self.assertGreater(_norm(clipped), clip * (1 - 1e-5))
    np.testing.assert_allclose(clipped[0], clipped[0][0])
    self.assertGreater(clipped[0][0], 0)
    self.assertLess(clipped[1][0], 0)

  @parameterized.product(split=_SPLITS)
  def test_denormal_updates_do_not_grow(self, split):
    record = [np.float32([1e-45, -1e-40, 1e-39]), np.float32([0.0, 1e-42])]
    clipped = _clip(_query(1e-30, split=split), record)
    for layer, result in zip(record, clipped):
      # Processors may flush a denormal number to 0, and nothing else.
      is_same = result == layer
      np.testing.assert_array_equal(is_same | (result == 0), True)

  @parameterized.product(split=_SPLITS)
  def test_layers_within_their_clip_keep_their_bits(self, split):
    rng = np.random.default_rng(4)
    record = [
        rng.normal(size=shape).astype(np.float32)
        for shape in ((7,), (3, 3), (), (2, 1, 5))
    ]
    record[0][0] = -0.0
    record[0][1] = 1.1754944e-38  # The smallest normal number.
    limit = 100 * _norm(record)
    clipped = _clip(_query(limit, split=split), record)
    for layer, result in zip(record, clipped):
      self.assertEqual(layer.tobytes(), result.tobytes())

  @parameterized.parameters('uniform', 'dim')
  def test_a_large_layer_does_not_change_a_small_one(self, split):
    small = np.float32([0.01, 0.02])
    clipped = _clip(_query(1.0, split=split), [np.float32([1e30, 1]), small])
    self.assertEqual(clipped[1].tobytes(), small.tobytes())
    # Clipping all layers as one does.
    clipped = _clip(_query(1.0), [np.float32([1e30, 1]), small])
    self.assertLess(_norm(clipped[1:]), 1e-10)

  def test_a_layer_exactly_at_its_clip_is_unchanged(self):
    clipped = _clip(_query(5.0), [np.float32([3, 4])])
    np.testing.assert_array_equal(clipped[0], np.float32([3, 4]))

  @parameterized.product(split=_SPLITS, bad=(np.nan, np.inf, -np.inf))
  def test_a_non_finite_update_becomes_all_zeros(self, split, bad):
    record = {'a': np.float32([1, 2]), 'b': np.float32([[bad, 1]])}
    for clip in (1.0, math.inf):
      for layer in _clip(_query(clip, split=split), record):
        np.testing.assert_array_equal(layer, np.zeros_like(layer))

  @parameterized.product(split=_SPLITS)
  def test_zeros_stay_zeros(self, split):
    record = [np.zeros([3], np.float32)] * 2
    for layer in _clip(_query(1.0, split=split), record):
      np.testing.assert_array_equal(layer, [0, 0, 0])

  @parameterized.product(split=_SPLITS)
  def test_an_infinite_clip_changes_nothing(self, split):
    record = [np.float32([3e38, -1e30]), np.float32(1), np.float32([0, 0])]
    clipped = _clip(_query(math.inf, split=split), record)
    for layer, result in zip(record, clipped):
      self.assertEqual(layer.tobytes(), result.tobytes())

  @parameterized.product(split=_SPLITS)
  def test_adding_or_removing_a_record_moves_the_sum_by_at_most_c(self, split):
    rng = np.random.default_rng(5)
    clip = 0.5
    query = _query(clip, split=split)
    state = query.initial_global_state()
    params = query.derive_sample_params(state)
    template = [np.zeros([40], np.float32), np.zeros([3, 2], np.float32)]
    records = [
        [
            np.float32(10.0**k * rng.normal(size=layer.shape))
            for layer in template
        ]
        for k in range(-3, 31, 3)
    ]
    records.append([np.full_like(layer, np.nan) for layer in template])

    def total(chosen):
      sample = query.initial_sample_state(
          [tf.constant(layer) for layer in template]
      )
      for record in chosen:
        sample = query.accumulate_record(
            params, sample, [tf.constant(layer) for layer in record]
        )
      return [layer.numpy() for layer in sample]

    whole = total(records)
    moves = []
    for i in range(len(records)):
      without = total(records[:i] + records[i + 1 :])
      moves.append(_norm([a - b for a, b in zip(whole, without)]))
    # Sums in float32 round at some 1e-7 of their size, here under 6.
    self.assertLessEqual(max(moves), clip + 1e-5)
    # The bound is tight: an adversary reaches it.
    self.assertGreater(max(moves), clip - 1e-5)

  def test_no_clip_and_no_noise_is_the_plain_sum(self):
    query = _query(math.inf, split='dim')
    state = query.initial_global_state()
    sample = query.initial_sample_state([tf.zeros([2]), tf.zeros([])])
    for i in range(4):
      sample = query.accumulate_record(
          query.derive_sample_params(state),
          sample,
          [tf.constant([float(i), 100.0]), tf.constant(-1.0)],
      )
    result, new_state, _ = query.get_noised_result(sample, state)
    np.testing.assert_array_equal(result[0], [6, 400])
    np.testing.assert_array_equal(result[1], -4)
    self.assertEqual(int(new_state.counter), 1)

  def test_params_hold_the_clip_and_not_the_key(self):
    query = _query(2.0, 1.0)
    state = queries.set_noise_key(query.initial_global_state(), _KEY)
    params = tf.nest.flatten(query.derive_sample_params(state))
    self.assertLen(params, 1)
    self.assertEqual(float(params[0]), 2.0)


class ArgumentsTest(parameterized.TestCase):

  @parameterized.named_parameters(
      ('zero_clip', dict(l2_norm_clip=0.0), 'l2_norm_clip'),
      ('tiny_clip', dict(l2_norm_clip=1e-31), 'l2_norm_clip'),
      ('negative_clip', dict(l2_norm_clip=-1.0), 'l2_norm_clip'),
      ('nan_clip', dict(l2_norm_clip=math.nan), 'l2_norm_clip'),
      ('negative_noise', dict(noise_multiplier=-1.0), 'noise_multiplier'),
      ('infinite_noise', dict(noise_multiplier=math.inf), 'noise_multiplier'),
      ('nan_noise', dict(noise_multiplier=math.nan), 'noise_multiplier'),
      (
          'noise_without_clip',
          dict(l2_norm_clip=math.inf),
          'noise_multiplier 1.0 needs a finite l2_norm_clip',
      ),
  )
  def test_bad_arguments_are_named(self, arguments, message):
    defaults = dict(l2_norm_clip=1.0, noise_multiplier=1.0)
    with self.assertRaisesRegex(ValueError, message):
      queries.PerLayerClipSumQuery(**(defaults | arguments))

  @parameterized.named_parameters(
      ('zeros', np.zeros([4], np.int32)),
      ('short', np.ones([3], np.int32)),
      ('int64', np.ones([4], np.int64)),
      ('two_dims', np.ones([1, 4], np.int32)),
      ('bytes', b'0123456789abcdef'),
  )
  def test_bad_keys_are_refused(self, key):
    state = _query(1.0, 1.0).initial_global_state()
    with self.assertRaisesRegex(ValueError, 'noise key must be four int32'):
      queries.set_noise_key(state, key)


if __name__ == '__main__':
  absltest.main()

"""Streams of noise of all queries: keyed, and none drawn from twice."""

import itertools
import math
from unittest import mock

from absl.testing import absltest
from absl.testing import parameterized
import numpy as np
import tensorflow as tf

from tff_asr.privacy import adaptive_query
from tff_asr.privacy import clipping as clipping_lib
from tff_asr.privacy import correlated_noise
from tff_asr.privacy import keys
from tff_asr.privacy import queries

# Philox gives four values a counter: sizes around multiples of four.
_SHAPES = ([1], [5], [3], [], [1000], [7], [0], [2], [1001], [4], [4], [66, 3])
_SETTINGS = dict(l2_norm_clip=1.0, noise_multiplier=1.0)
_DIM = clipping_lib.Clipping(split='dim')
_BUILD = {
    'per_layer': lambda specs: queries.PerLayerClipSumQuery(
        specs, **_SETTINGS
    ),
    'adaptive': lambda specs: adaptive_query.AdaptiveClipSumQuery(
        specs, cohort_size=100, clipping=_DIM, **_SETTINGS
    ),
    # Seven rounds and the next tree's first ones: nodes of three levels.
    'correlated': lambda specs: correlated_noise.TreeSumQuery(
        specs, rounds_per_tree=7, **_SETTINGS
    ),
}
_NUM_ROUNDS = 10


def _draws(query):
  """(key, start, size) of each draw of some rounds, and the rounds' results."""
  found, results = [], []
  draw = tf.raw_ops.StatelessRandomNormalV2

  def spy(*, shape, key, counter, alg):
    words = np.concatenate([key, counter[1:]]).tobytes()
    found.append((words, int(counter[0]), int(np.prod(shape))))
    return draw(shape=shape, key=key, counter=counter, alg=alg)

  total = query.initial_sample_state(
      [tf.zeros(shape) for shape in _SHAPES]
  )
  state = queries.set_noise_key(
      query.initial_global_state(), keys.from_seed(0)
  )
  with mock.patch.object(tf.raw_ops, 'StatelessRandomNormalV2', spy):
    for _ in range(_NUM_ROUNDS):
      result, state, _ = query.get_noised_result(total, state)
      results.append([layer.numpy() for layer in result])
  return found, results


class NoiseStreamsTest(parameterized.TestCase):

  def setUp(self):
    super().setUp()
    # So that the spy sees numbers in the tree's tf.functions, too.
    tf.config.run_functions_eagerly(True)
    self.addCleanup(tf.config.run_functions_eagerly, False)

  @parameterized.named_parameters(_BUILD.items())
  def test_no_counter_is_drawn_from_twice(self, build):
    draws, _ = _draws(build([tf.TensorSpec(shape) for shape in _SHAPES]))
    self.assertGreaterEqual(len(draws), _NUM_ROUNDS * len(_SHAPES))
    by_key = {}
    for key, start, size in draws:
      if size:
        by_key.setdefault(key, []).append((start, start + -(-size // 4)))
    for ranges in by_key.values():
      ranges.sort()
      for (_, end), (start, _) in itertools.pairwise(ranges):
        self.assertLessEqual(end, start)

  def test_counts_of_adaptive_clips_are_drawn_as_well(self):
    specs = [tf.TensorSpec(shape) for shape in _SHAPES]
    plain, _ = _draws(_BUILD['per_layer'](specs))
    adaptive, _ = _draws(_BUILD['adaptive'](specs))
    self.assertLen(adaptive, len(plain) + _NUM_ROUNDS)

  @parameterized.named_parameters(_BUILD.items())
  def test_without_a_key_whatever_is_released_is_nan(self, build):
    query = build([tf.TensorSpec([3]), tf.TensorSpec([])])
    total = query.initial_sample_state([tf.ones([3]), tf.ones([])])
    result, state, _ = query.get_noised_result(
        total, query.initial_global_state()
    )
    for value in (*result, getattr(state, 'layer_clips', math.nan)):
      self.assertTrue(np.all(np.isnan(value)))

  @parameterized.named_parameters(_BUILD.items())
  def test_no_stretch_of_noise_comes_twice(self, build):
    # Three equal floats in a row do not come by chance.
    _, rounds = _draws(build([tf.TensorSpec(shape) for shape in _SHAPES]))
    stretches = [
        values[i : i + 3].tobytes()
        for values in map(np.ravel, itertools.chain(*rounds))
        for i in range(len(values) - 2)
    ]
    self.assertLen(set(stretches), len(stretches))


if __name__ == '__main__':
  absltest.main()

"""Streams of noise of all queries: keyed, and none drawn from twice."""

import itertools
import math
from unittest import mock

from absl.testing import parameterized
import numpy as np
import tensorflow as tf

from tests.privacy import mechanisms
from tff_asr.privacy import keys
from tff_asr.privacy import noise as noise_lib
from tff_asr.privacy import queries

_SHAPES = ([1], [5], [3], [], [1000], [7], [0], [2], [1001], [4], [4], [66, 3])
_NUM_ROUNDS = 10


def _draws(query):
  """(key, release, shapes) of each draw of some rounds, and their results."""
  found, results = [], []
  draw = noise_lib.gaussian

  def spy(shapes, *, key, release, **settings):
    found.append((np.asarray(key).tobytes(), int(release), len(shapes)))
    return draw(shapes, key=key, release=release, **settings)

  total = query.initial_sample_state(
      [tf.zeros(shape) for shape in _SHAPES]
  )
  state = queries.set_noise_key(
      query.initial_global_state(), keys.from_seed(0)
  )
  with mock.patch.object(noise_lib, 'gaussian', spy):
    for _ in range(_NUM_ROUNDS):
      result, state, _ = query.get_noised_result(total, state)
      results.append([layer.numpy() for layer in result])
  return found, results


class NoiseStreamsTest(parameterized.TestCase):

  @parameterized.named_parameters(mechanisms.QUERIES.items())
  def test_no_release_is_drawn_from_twice(self, build):
    draws, _ = _draws(build([tf.TensorSpec(shape) for shape in _SHAPES]))
    self.assertGreaterEqual(len(draws), _NUM_ROUNDS)
    self.assertLen({draw[:2] for draw in draws}, len(draws))

  @parameterized.named_parameters(mechanisms.QUERIES.items())
  def test_without_a_key_every_release_is_nan(self, build):
    for shapes in ([[3]], [[3], []]):
      query = build([tf.TensorSpec(shape) for shape in shapes])
      total = query.initial_sample_state([tf.zeros(shape) for shape in shapes])
      result, state, _ = query.get_noised_result(
          total, query.initial_global_state()
      )
      for value in (*result, getattr(state, 'layer_clips', math.nan)):
        self.assertTrue(np.all(np.isnan(value)))

  @parameterized.named_parameters(mechanisms.QUERIES.items())
  def test_no_stretch_of_noise_comes_twice(self, build):
    # Three equal numbers in a row do not come by chance.
    _, rounds = _draws(build([tf.TensorSpec(shape) for shape in _SHAPES]))
    stretches = [
        values[i : i + 3].tobytes()
        for values in map(np.ravel, itertools.chain(*rounds))
        for i in range(len(values) - 2)
    ]
    self.assertLen(set(stretches), len(stretches))

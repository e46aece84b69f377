"""Streams of noise of all queries: keyed, and none drawn from twice."""

import itertools
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
  def test_without_a_key_each_release_has_its_own_noise(self, build):
    query = build([tf.TensorSpec([1000])])
    total = query.initial_sample_state([tf.zeros([1000])])

    @tf.function
    def release_twice(state):
      # Equal calls, which no optimizer may merge.
      return [query.get_noised_result(total, state)[0][0] for _ in range(2)]

    state = query.initial_global_state()
    releases = [
        noise.numpy() for _ in range(2) for noise in release_twice(state)
    ]
    for noise in releases:
      # z C on each element, and 1 / .98 of it with counts of adaptive clips; a
      # standard deviation of 1000 elements varies by 2.2 %.
      stddev = query.derive_metrics(state)
      (stated,) = [
          float(value) for name, value in stddev.items() if 'stddev' in name
      ]
      self.assertBetween(noise.std() / stated, 0.87, 1.13)
    # Of independent noise a correlation exceeds .17 once in 10^7 times.
    others = np.corrcoef(releases) - np.eye(4)
    self.assertLess(np.abs(others).max(), 0.17)

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

"""Tests of tff_asr.privacy.correlated_noise.

Streams and keys: noise_streams_test; events: aggregators/dp_mean_test.
"""

import collections
import functools
from unittest import mock

from absl.testing import parameterized
import numpy as np
import scipy.stats
import tensorflow as tf

from tests import fakes
from tests import graphs
from tests import reference
from tff_asr.privacy import correlated_noise
from tff_asr.privacy import keys
from tff_asr.privacy import noise as noise_lib
from tff_asr.privacy import queries
from tff_asr.privacy import strategies

_SPECS = collections.OrderedDict(
    a=tf.TensorSpec([3], tf.float32), b=tf.TensorSpec([], tf.float32)
)
_KEY = keys.from_seed(0)
_BLT = strategies.optimize(num_rounds=20, min_sep=5, num_buffers=2)

_BANDED = strategies.optimize_banded(num_rounds=20, num_bands=4)


def _query(*, specs=None, clip=0.5, multiplier=2.0, strategy=_BLT, apart=5):
  return queries.PerLayerClipSumQuery(
      _SPECS if specs is None else specs,
      l2_norm_clip=clip,
      noise_multiplier=multiplier,
      noise=correlated_noise.CorrelatedNoise(
          strategy=strategy, min_sep=apart
      ),
  )


def _start(query, key=_KEY):
  return queries.set_noise_key(query.initial_global_state(), key)


def _zeros(specs=None):
  return tf.nest.map_structure(
      lambda spec: tf.zeros(spec.shape, tf.int64),
      _SPECS if specs is None else specs,
  )


def _drawn(query, round_num):
  """w of a round in steps of 1/32, under `_KEY`."""
  state = _start(query)
  drawn = list(noise_lib.gaussian(
      [spec.shape for spec in _SPECS.values()],
      key=state.noise_key,
      release=tf.constant(round_num, tf.int64),
      stddev=32 * query._stddev_in_steps(state),
  ))
  return [int(x) for x in fakes.flat(drawn)]


@functools.lru_cache
def _release(query):
  """`get_noised_result` traced once, without its event."""
  return tf.function(
      lambda total, state: query.get_noised_result(total, state)[:2]
  )


def _rounds(query, count, *, state=None, specs=None):
  """The noise of rounds of empty sums, and the last state."""
  state = _start(query) if state is None else state
  noises = []
  for _ in range(count):
    noised, state = _release(query)(_zeros(specs), state)
    noises.append(fakes.flat(noised))
  return noises, state


class CorrelatedNoiseTest(parameterized.TestCase):

  @parameterized.parameters(_BLT, _BANDED)
  def test_noise_has_the_bits_of_its_integer_definition(self, strategy):
    # `reference.blt_noise` has no word length: Python's integers.
    num_rounds = 13
    query = _query(strategy=strategy)
    grid = float(query.grid_step(_start(query)))
    drawn = [_drawn(query, number) for number in range(num_rounds)]
    expected = reference.blt_noise(
        drawn, strategy.output_scale, strategy.buf_decay
    )
    found, _ = _rounds(query, num_rounds)
    np.testing.assert_array_equal(
        [[int(x) for x in noise / grid] for noise in found], expected
    )

  def test_rounding_moves_queries_by_no_more_than_is_charged(self):
    # Of the buffers of two random noises, in steps of 1/32: R less the real
    # C y - y. E of the module, with what float64 itself errs.
    num_rounds = 60
    strategy = strategies.optimize(
        num_rounds=2000, min_sep=400, num_buffers=3
    )
    noise = np.random.default_rng(0).integers(
        -(2**28), 2**28, size=(num_rounds, 50)
    )
    column = strategy.coefficients(num_rounds)
    worst = 0.0
    for number in range(1, num_rounds):
      taken = np.array(reference.blt_taken(
          noise[:number].tolist(), strategy.output_scale, strategy.buf_decay,
          num_elements=50,
      ))
      exact = column[number:0:-1] @ noise[:number]
      worst = max(worst, np.abs(taken / 32 - exact).max())
    error = 2**-6 + 2**-17 * (3 + column[1:].sum())
    self.assertLess(worst, error + 1e-5)
    self.assertGreater(worst, 0.9 * 2**-6)

  @parameterized.parameters(_BLT, _BANDED)
  def test_noise_of_executed_rounds_has_the_stated_covariance(self, strategy):
    specs = tf.TensorSpec([20_000], tf.float32)
    query = _query(specs=specs, strategy=strategy)  # z C = 1.
    noise = np.stack(_rounds(query, 12, specs=specs)[0])
    covariance = strategy.covariance(12)
    root = np.linalg.cholesky(covariance)
    white = np.linalg.solve(root, noise).ravel()
    # Of a fixed key; a new one would fail 1 time in 10,000.
    self.assertGreater(scipy.stats.kstest(white, 'norm').pvalue, 1e-4)
    products = np.linalg.solve(root, noise) @ np.linalg.solve(root, noise).T
    off = products[np.triu_indices(12, 1)] / np.sqrt(20_000)
    self.assertGreater(scipy.stats.chi2.sf(off @ off, len(off)), 1e-4)
    # Noise that is independent from round to round would be found out.
    self.assertLess(
        scipy.stats.kstest(
            np.linalg.solve(root, np.random.default_rng(0).normal(
                size=noise.shape)).ravel(), 'norm'
        ).pvalue,
        1e-9,
    )
    # Prefix sums have less noise than those of independent rounds.
    self.assertLess(noise.sum(axis=0).std(), 0.6 * np.sqrt(12))

  def test_a_round_s_key_decides_its_noise_and_no_earlier_one(self):
    query = _query()
    _, state = _rounds(query, 2)
    rekeyed = queries.set_noise_key(state, keys.from_seed(1))
    one, _ = _rounds(query, 1, state=state)
    other, _ = _rounds(query, 1, state=rekeyed)
    again, _ = _rounds(query, 1, state=state)
    self.assertTrue(np.all(one[0] != other[0]))
    np.testing.assert_array_equal(one, again)
    # Lost buffers change it, too.
    empty = tf.nest.map_structure(tf.zeros_like, state.buffers)
    lost, _ = _rounds(query, 1, state=state._replace(buffers=empty))
    self.assertTrue(np.all(one[0] != lost[0]))

  def test_a_run_keeps_the_strategy_that_it_began_with(self):
    other = strategies.optimize(num_rounds=20, min_sep=1, num_buffers=2)
    _, state = _rounds(_query(), 3)
    expected, _ = _rounds(_query(), 1, state=state)
    found, _ = _rounds(_query(strategy=other), 1, state=state)
    np.testing.assert_array_equal(found, expected)
    *_, event = _query(strategy=other).get_noised_result(_zeros(), state)
    self.assertEqual(event.strategy, _BLT)

  def test_sums_are_kept_and_records_clipped(self):
    query = _query()
    state = _start(query)
    record = collections.OrderedDict(
        a=tf.constant([3e30, 0, 4e30]), b=tf.constant(0.0)
    )
    clipped = query.preprocess_record(query.derive_sample_params(state), record)
    np.testing.assert_allclose(
        float(query.grid_step(state)) * fakes.flat(clipped),
        [0.3, 0, 0.4, 0],
        rtol=1e-6,
    )
    noised, _ = _release(query)(clipped, state)
    noise, _ = _release(query)(_zeros(), state)
    np.testing.assert_allclose(
        fakes.flat(noised) - fakes.flat(noise), [0.3, 0, 0.4, 0], atol=1e-6
    )

  @parameterized.parameters(_BLT, _BANDED)
  def test_layers_are_released_one_after_the_other(self, strategy):
    # Else a round takes the memory of all layers' temporary tensors.
    query = _query(strategy=strategy)
    with mock.patch.object(noise_lib, '_GROUP', 1):
      graph = _release(query).get_concrete_function(
          _zeros(), _start(query)
      ).graph
    first, second = graphs.of_type(graph, 'PyFuncStateless')
    of_first, _ = graphs.of_type(graph, 'Pack')  # Its buffers.
    self.assertNotIn(of_first, graphs.before(first))
    self.assertIn(of_first, graphs.before(second))

  def test_the_cost_of_rounding_is_charged(self):
    *_, event = _query().get_noised_result(_zeros(), _start(_query()))
    for num_elements, share in ((4, 1e-6), (255_800_000, 4.5e-3)):
      found = correlated_noise.charged_noise_multiplier(
          event, num_elements=num_elements
      )
      self.assertLess(found, 2.0)
      self.assertGreater(found, 2.0 * (1 - share))

  @parameterized.parameters(
      (dict(multiplier=0.0), 'noise_multiplier'),
      (dict(clip=-1.0), 'l2_norm_clip'),
      (dict(clip=float('inf')), 'finite l2_norm_clip'),
      (dict(apart=0), 'min_sep'),
      (dict(multiplier=100.0), 'exceeds 62 bits'),
  )
  def test_bad_arguments_are_named(self, arguments, message):
    with self.assertRaisesRegex(ValueError, message):
      _query(**arguments)

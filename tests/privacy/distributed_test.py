"""Tests of tff_asr.privacy.distributed."""

import functools
import math

from absl.testing import parameterized
import numpy as np
import tensorflow as tf

from tests import fakes
from tests.models import calls
from tff_asr.privacy import clipping as clipping_lib
from tff_asr.privacy import distributed
from tff_asr.privacy import keys
from tff_asr.privacy import queries

_SPECS = {
    'a': tf.TensorSpec([40]), 'b': tf.TensorSpec([3, 5]), 'c': tf.TensorSpec([])
}
_DIM = clipping_lib.Clipping(split='dim')
_PLAN = dict(
    num_elements=10_000,
    noise_multiplier=1.0,
    num_clients=100,
    max_failed_share=0.1,
    bits=16,
    modulus_stddevs=4.0,
)


def _query(specs=None, **settings) -> distributed.DistributedSumQuery:
  defaults = dict(
      l2_norm_clip=0.5,
      noise_multiplier=1.0,
      num_clients=10,
      max_failed_share=0.0,
      bits=20,
      clipping=_DIM,
  )
  return distributed.DistributedSumQuery(
      specs or _SPECS, **defaults | settings
  )


def _state(query, seed=1):
  return queries.set_noise_key(
      query.initial_global_state(), keys.from_seed(seed)
  )


def _record(value, specs=None):
  return tf.nest.map_structure(
      lambda spec: tf.fill(spec.shape, tf.constant(value, tf.float32)),
      specs or _SPECS,
  )


@functools.lru_cache
def _encoder(query):
  """The graph by which all clients of a query encode."""
  return tf.function(query.encode)


def tearDownModule():  # pylint: disable=invalid-name
  _encoder.cache_clear()


def _sum(query, records, state=None, decode=True):
  """The decoded modular sum of records."""
  state = _state(query) if state is None else state
  params = query.derive_sample_params(state)
  encode = _encoder(query)
  total = sum(
      encode(params, record, client=tf.constant(place, tf.int64))[0]
      for place, record in enumerate(records)
  ) % query.modulus
  if not decode:
    return total.numpy()
  decoded, _ = query.decode(
      total, num_clients=tf.constant(len(records)), global_state=state
  )
  return {name: part.numpy() for name, part in decoded.items()}


class PlanTest(parameterized.TestCase):

  def test_numbers_are_those_of_the_paper(self):
    # D = 10^4: D / 4 = 2500, sqrt(D) / 2 = 50; (t + sqrt(D))^2 is more.
    found = distributed.choose_plan(**_PLAN)
    t = found.clip_in_steps
    square = t**2 + 2500 + (t + 50)
    self.assertEqual(found.squared_sensitivity, math.floor(square))
    # 90 of 100 clients suffice.
    self.assertEqual(found.min_clients, 90)
    self.assertAlmostEqual(
        90 * found.local_stddev**2, found.squared_sensitivity + 4, delta=1e-6
    )
    # Four standard deviations are half the modulus.
    spread = 100**2 * t**2 / 10**4 + 25 + 100 * found.local_stddev**2
    self.assertAlmostEqual(4 * math.sqrt(spread) / 2**15, 1, places=7)

  def test_more_bits_cost_less_noise_down_to_that_of_a_trusted_server(self):
    ratios = []
    for bits in (12, 14, 20, 24):
      found = distributed.choose_plan(
          **_PLAN | dict(bits=bits, max_failed_share=0.0)
      )
      ratios.append(10 * found.local_stddev / found.clip_in_steps)
    self.assertEqual(ratios, sorted(ratios, reverse=True))
    self.assertGreater(ratios[0], 1.001)
    self.assertLess(ratios[-1], 1.0001)

  def test_noise_makes_up_for_clients_that_may_drop_out(self):
    whole, half = (
        distributed.choose_plan(
            **_PLAN | dict(bits=24, max_failed_share=share)
        )
        for share in (0.0, 0.5)
    )
    self.assertEqual((whole.min_clients, half.min_clients), (100, 50))
    self.assertAlmostEqual(
        (half.local_stddev / half.clip_in_steps) ** 2
        / (whole.local_stddev / whole.clip_in_steps) ** 2,
        2,
        places=4,
    )
    # .29 * 100 is below 29 in floating point.
    found = distributed.choose_plan(**_PLAN | dict(max_failed_share=0.29))
    self.assertEqual(found.min_clients, 71)

  @parameterized.parameters(
      (dict(bits=8), 'raise BITS'),
      (dict(bits=31), 'bits'),
      (dict(noise_multiplier=0.0), 'noise_multiplier'),
      (dict(noise_multiplier=1e-3), 'raise BITS or NOISE_MULTIPLIER'),
      (dict(num_clients=0), 'num_clients'),
      (dict(max_failed_share=1.0), 'max_failed_share'),
      (dict(modulus_stddevs=0.0), 'modulus_stddevs'),
  )
  def test_bad_arguments(self, changes, message):
    with self.assertRaisesRegex(ValueError, message):
      distributed.choose_plan(**_PLAN | changes)


class DistributedSumQueryTest(parameterized.TestCase):

  @parameterized.product(
      rotation=distributed.ROTATIONS,
      split=['global', 'uniform', 'dim'],
      value=[0.0, 1e-9, 0.01, 1.0, 3e38],
  )
  def test_no_record_exceeds_the_sensitivity(self, rotation, split, value):
    query = _query(
        rotation=rotation, clipping=clipping_lib.Clipping(split=split), bits=16
    )
    state = _state(query)
    largest = 0
    for client in range(5):
      rounded, _ = query.round(
          query.derive_sample_params(state),
          _record(value),
          client=tf.constant(client, tf.int64),
      )
      largest = max(largest, int(np.sum(rounded.numpy() ** 2)))
    self.assertLessEqual(largest, query.plan.squared_sensitivity)
    if value == 3e38:  # A larger one would be seen.
      self.assertGreater(largest, 0.9 * query.plan.clip_in_steps**2)

  def test_values_that_round_beyond_the_bound_are_cut_off(self):
    query = _query(bits=16, rotation='none')
    limit = math.isqrt(query.plan.squared_sensitivity)
    params = query.derive_sample_params(_state(query))
    size = 56
    exact = np.zeros(size)
    # Rounded up it is beyond the bound, at any try; beyond it by itself, too.
    for value, expected in ((limit + 1 - 1e-12, limit), (limit + 5.0, 0)):
      exact[0] = value
      rounded = query._round(
          tf.constant(exact), params=params, client=tf.constant(0, tf.int64)
      )
      self.assertEqual(rounded.numpy()[0], expected)
      self.assertFalse(np.any(rounded.numpy()[1:]))

  def test_rounding_keeps_the_mean(self):
    query = _query({'a': tf.TensorSpec([1000])}, rotation='none', bits=16)
    params = query.derive_sample_params(_state(query))
    exact = tf.constant(np.linspace(-3.3, 3.3, 1000))
    rounding = tf.function(query._round)
    draws = np.stack([
        rounding(
            exact, params=params, client=tf.constant(client, tf.int64)
        ).numpy()
        for client in range(400)
    ])
    self.assertLess(np.abs(draws - exact).max(), 1)
    errors = (draws - exact.numpy()).mean(0)
    self.assertLess(np.abs(errors).max(), 0.5 / math.sqrt(400) * 5)
    self.assertGreater(draws.std(0).mean(), 0.2)
    # Each client has a different rounding.
    self.assertLess(abs(np.corrcoef(
        (draws[0] - exact), (draws[1] - exact)
    )[0, 1]), 0.2)

  def test_rounds_clients_and_tries_round_and_rotate_apart(self):
    query = _query()
    # Nothing fits: all tries are taken.
    query.plan = query.plan._replace(squared_sensitivity=-1)
    state, found = _state(query), []
    for counter in (0, 1):
      params = query.derive_sample_params(
          state._replace(counter=tf.constant(counter, tf.int64))
      )
      for client in (5, 2**40, -1):
        with calls.recorded_seeds() as seeds:
          query.round(
              params, _record(0.3), client=tf.constant(client, tf.int64)
          )
        self.assertLen(seeds, 1 + distributed._MAX_TRIES)
        found += seeds
    # A round's clients have the rotation in common, and nothing else.
    self.assertLen(set(found), len(found) - 2 * 2)

  def test_rotations_are_undone_and_keep_norms(self):
    for size in (64, 16384, 24576):
      vector = tf.constant(np.random.default_rng(size).normal(size=size))
      seed = tf.constant([1, size])
      turned = distributed._rotate(vector, seed)
      np.testing.assert_allclose(
          distributed._rotate_back(turned, seed), vector, atol=1e-12
      )
      self.assertAlmostEqual(
          float(tf.norm(turned)), float(tf.norm(vector)), places=9
      )
      self.assertGreater(float(tf.norm(turned - vector)), 0.5)

  def test_a_rotation_makes_large_elements_small(self):
    vector = np.zeros(16384)
    vector[7] = 100.0
    turned = distributed._rotate(tf.constant(vector), tf.constant([1, 2]))
    self.assertLess(np.abs(turned).max(), 100 / math.sqrt(4096) + 1e-9)
    other = distributed._rotate(tf.constant(vector), tf.constant([1, 3]))
    self.assertGreater(np.abs(turned - other).max(), 0.1)

  @parameterized.product(
      rotation=distributed.ROTATIONS, split=['global', 'uniform', 'dim']
  )
  def test_the_sum_is_that_of_records_clipped_by_layer(self, rotation, split):
    clipping = clipping_lib.Clipping(split=split)
    query = _query(
        rotation=rotation, clipping=clipping, bits=30, noise_multiplier=0.01
    )
    generator = np.random.default_rng(2)
    records = [
        {
            # Layer a is far above its clip, c below.
            'a': generator.normal(size=40).astype(np.float32) * 100,
            'b': generator.normal(size=[3, 5]).astype(np.float32),
            'c': np.array(1e-3, np.float32),
        }
        for _ in range(10)
    ]
    expected = np.zeros(56)
    for record in records:
      layers = clipping.divide(record)
      if split == 'global':
        norm = np.linalg.norm(fakes.flat(record))
        expected += fakes.flat(record) * min(1, 0.5 / norm)
      else:
        expected += np.concatenate([
            np.ravel(part) * min(1, 0.5 * layer.share / np.linalg.norm(part))
            for part, layer in zip(record.values(), layers, strict=True)
        ])
    # Of a later round, which rotates otherwise than the first.
    state = _state(query)._replace(counter=tf.constant(3, tf.int64))
    found = fakes.flat(_sum(query, records, state))
    # The noise is .01 * .5 on each element.
    self.assertLess(np.abs(found - expected).max(), 0.005 * 5)
    self.assertGreater(np.linalg.norm(expected), 1)

  @parameterized.parameters(0.0, 0.3)
  def test_noise_has_the_stated_size(self, share):
    specs = {'a': tf.TensorSpec([10_000])}
    query = _query(specs, bits=20, max_failed_share=share, noise_multiplier=2.0)
    state = _state(query)
    found = fakes.flat(_sum(query, [_record(0.0, specs)] * 10, state))
    stated = float(query.derive_metrics(state)['noise_stddev_on_sum'])
    self.assertAlmostEqual(found.std() / stated, 1, delta=0.03)
    # Those who are sure to be there are enough for z.
    survivors = query.plan.min_clients
    self.assertEqual(survivors, 7 if share else 10)
    if share:
      found = fakes.flat(_sum(query, [_record(0.0, specs)] * survivors, state))
    self.assertAlmostEqual(found.std() / (2.0 * 0.5), 1, delta=0.03)

  def test_rounds_and_keys_have_different_noise(self):
    query = _query()
    state = _state(query)
    records = [_record(0.0)] * 10
    first = fakes.flat(_sum(query, records, state))
    np.testing.assert_array_equal(
        first, fakes.flat(_sum(query, records, state))
    )
    later = state._replace(counter=state.counter + 1)
    for other in (later, _state(query, seed=2)):
      self.assertGreater(
          np.abs(fakes.flat(_sum(query, records, other)) - first).min(), 0
      )

  def test_sums_wrap_around_and_come_back_as_long_as_they_fit(self):
    query = _query(rotation='none', bits=16)
    state = _state(query)
    half = 2**15
    steps = 0.5 / query.plan.clip_in_steps
    for total in (-half, -1, 0, 1, half - 1):
      decoded, _ = query.decode(
          tf.fill([56], tf.constant(total % 2**16, tf.int64)),
          num_clients=tf.constant(10),
          global_state=state,
      )
      np.testing.assert_allclose(
          fakes.flat(decoded), total * steps, rtol=1e-6, atol=1e-12
      )
    # One more is the other end.
    decoded, _ = query.decode(
        tf.fill([56], tf.constant(half, tf.int64)),
        num_clients=tf.constant(10),
        global_state=state,
    )
    np.testing.assert_allclose(fakes.flat(decoded), -half * steps, rtol=1e-6)

  def test_updates_are_sent_in_the_stated_bits(self):
    query = _query(bits=12, num_clients=2)
    state = _state(query)
    for value in (-1.0, 1.0):
      sent, _ = query.encode(
          query.derive_sample_params(state), _record(value),
          client=tf.constant(1, tf.int64),
      )
      self.assertBetween(sent.numpy().min(), 0, 2**12 - 1)
      self.assertBetween(sent.numpy().max(), 2**11, 2**12 - 1)

  def test_the_largest_sums_fit(self):
    # All clients send the same, as large as the clip lets them.
    specs = {'a': tf.TensorSpec([5000])}
    for bits in (14, 16, 20):
      query = _query(specs, bits=bits, num_clients=8, modulus_stddevs=6.0)
      record = {'a': np.random.default_rng(1).normal(size=5000).astype('f')}
      found = fakes.flat(_sum(query, [record] * 8))
      exact = 8 * 0.5 * record['a'] / np.linalg.norm(record['a'])
      stated = float(
          query.derive_metrics(_state(query))['noise_stddev_on_sum']
      )
      self.assertAlmostEqual((found - exact).std() / stated, 1, delta=0.05)

  def test_too_few_clients_release_nothing(self):
    query = _query(max_failed_share=0.2)
    eight = fakes.flat(_sum(query, [_record(0.1)] * 8))
    self.assertTrue(np.all(np.isfinite(eight)))
    with self.assertRaisesRegex(
        tf.errors.InvalidArgumentError, 'Too few clients .*MAX_FAILED_SHARE'
    ):
      _sum(query, [_record(0.1)] * 7)

  def test_without_a_key_each_round_has_its_own_noise(self):
    query = _query()
    state = query.initial_global_state()
    first, second = (
        fakes.flat(_sum(query, [_record(0.0)] * 10, state)) for _ in range(2)
    )
    stated = float(query.derive_metrics(state)['noise_stddev_on_sum'])
    # Some 60 elements: within 50 %, except for 1 in 10^6 keys.
    for noise in (first, second, (first - second) / math.sqrt(2)):
      self.assertBetween(noise.std() / stated, 0.5, 1.5)

  def test_a_key_of_zeros_draws_nothing(self):
    query = _query()
    params = query.derive_sample_params(_state(query))._replace(
        noise_key=tf.zeros([8], tf.int32)
    )
    with self.assertRaisesRegex(
        tf.errors.InvalidArgumentError, 'key of the noise is all zeros'
    ):
      query.encode(params, _record(0.0), client=tf.constant(1, tf.int64))

  def test_records_that_are_not_finite_count_as_zeros(self):
    query = _query()
    np.testing.assert_array_equal(
        _sum(query, [_record(math.nan)] * 10, decode=False),
        _sum(query, [_record(0.0)] * 10, decode=False),
    )

  def test_the_event_states_the_noise(self):
    query = _query(noise_multiplier=0.1, max_failed_share=0.2)
    event = query.event(query.initial_global_state())
    # In float32, as states keep it.
    self.assertEqual(event.noise_multiplier, np.float32(0.1))
    self.assertEqual(event.num_elements, 64)
    self.assertEqual((event.num_clients, event.min_clients), (10, 8))
    noise = 8 * query.plan.local_stddev**2 - 4
    self.assertAlmostEqual(
        math.sqrt(noise / query.plan.squared_sensitivity),
        event.noise_multiplier,
        places=9,
    )
    self.assertLess(distributed.sampler_epsilon(event), 1e-12)

  @parameterized.parameters(
      (dict(l2_norm_clip=math.inf), 'l2_norm_clip'),
      (dict(noise_multiplier=math.nan), 'noise_multiplier'),
      (dict(rotation='hadamard'), 'rotation'),
  )
  def test_bad_arguments(self, changes, name):
    with self.assertRaisesRegex(ValueError, name):
      _query(**changes)

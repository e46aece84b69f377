"""Tests of tff_asr.privacy.adaptive_query."""

import collections
import fractions
import math

from absl.testing import parameterized
import numpy as np
import scipy.stats
import tensorflow as tf

from tests import fakes
from tests import reference
from tff_asr.privacy import adaptive_query
from tff_asr.privacy import clipping as clipping_lib
from tff_asr.privacy import correlated_noise
from tff_asr.privacy import keys
from tff_asr.privacy import noise as noise_lib
from tff_asr.privacy import queries
from tff_asr.privacy import strategies

_SPECS = collections.OrderedDict(
    a=tf.TensorSpec([2], tf.float32), b=tf.TensorSpec([], tf.float32)
)
# Names in a folder, so that modules are fewer than tensors.
_FOLDERS = collections.OrderedDict([
    ('m/a', tf.TensorSpec([3], tf.float32)),
    ('m/b', tf.TensorSpec([], tf.float32)),
    ('w', tf.TensorSpec([4], tf.float32)),
])
_KEY = keys.from_seed(0)
_BLT = correlated_noise.CorrelatedNoise(
    strategy=strategies.optimize(num_rounds=12, min_sep=3),
    min_sep=3,
)
_BANDED = correlated_noise.CorrelatedNoise(
    strategy=strategies.optimize_banded(num_rounds=12, num_bands=4),
    min_sep=4,
)
_UNIFORM = clipping_lib.Clipping(split='uniform')


def _query(specs=_SPECS, **changes):
  arguments = dict(
      l2_norm_clip=math.sqrt(2),  # C_h = 1.
      noise_multiplier=0.0,
      cohort_size=4.0,
      clipping=_UNIFORM,
  )
  return adaptive_query.AdaptiveClipSumQuery(specs, **arguments | changes)


def _record(*numbers: float):
  return collections.OrderedDict(
      a=tf.constant(numbers[:2], tf.float32),
      b=tf.constant(numbers[2], tf.float32),
  )


def _sum(query, state, records, specs=_SPECS):
  """The sum of clipped records and their counts."""
  total = query.initial_sample_state(specs)
  params = query.derive_sample_params(state)
  for record in records:
    total = query.accumulate_record(params, total, record)
  return total


def _round(query, state, records, specs=_SPECS):
  """The released sum, flat, and the new state."""
  total = _sum(query, state, records, specs)
  result, state, _ = query.get_noised_result(total, state)
  return fakes.flat(result), state


def _extreme(rng, *, is_finite):
  """A record of `_FOLDERS` with layers of any float32 magnitude."""
  record = collections.OrderedDict(
      (
          name,
          np.float32(
              10.0 ** rng.uniform(-30, 37) * rng.normal(size=spec.shape)
          ),
      )
      for name, spec in _FOLDERS.items()
  )
  if not is_finite:
    record['w'][2] = rng.choice([np.nan, np.inf])
  return record


def _attacks(query):
  """States of any clips, and what one record of any size moves sums by."""
  state = query.initial_global_state()
  rng = np.random.default_rng(1)
  for number in range(40):
    layer_clips = np.float32(
        10.0 ** rng.uniform(-29, 29, size=state.layer_clips.shape)
    )
    if number % 2:
      layer_clips = np.float32(
          rng.uniform(0.5, 2, size=state.layer_clips.shape)
      )
    drawn = state._replace(
        layer_clips=layer_clips,
        l2_norm_clip=adaptive_query._whole_clip(layer_clips),
    )
    record = _extreme(rng, is_finite=number % 10 != 0)
    yield drawn, _sum(query, drawn, [record], _FOLDERS)


class ClipsTest(parameterized.TestCase):

  def test_a_round_by_hand(self):
    # Clips 1 and 1. a: norms 5, .5, 2; b: .99 (below), .1, 7. Of n = 4,
    # share of a = 1/2 + (1 - 2) / 8 = .375, of b = 1/2 + (2 - 1) / 8 = .625.
    query = _query(
        adaptation=adaptive_query.ClipAdaptation(
            target_quantile=0.75, learning_rate=0.4
        )
    )
    state = query.initial_global_state()
    np.testing.assert_allclose(state.layer_clips, [1, 1], rtol=1e-6)
    released, state = _round(
        query, state, [_record(3, 4, 0.99), _record(0.3, 0.4, 0.1),
                       _record(0, -2, -7)]
    )
    np.testing.assert_allclose(released, [0.9, 0.2, 0.09], atol=1e-6)
    np.testing.assert_allclose(
        state.layer_clips,
        [math.exp(-0.4 * -0.375), math.exp(-0.4 * -0.125)],
        rtol=1e-6,
    )
    self.assertAlmostEqual(
        float(state.l2_norm_clip), math.sqrt(math.exp(0.3) + math.exp(0.1)),
        places=5,
    )
    self.assertEqual(int(state.counter), 1)

  @parameterized.product(split=('uniform', 'dim'), layers=clipping_lib.LAYERS)
  def test_rounds_equal_a_numpy_simulation(self, split, layers):
    rng = np.random.default_rng(7)
    clipping = clipping_lib.Clipping(split=split, layers=layers)
    query = _query(
        _FOLDERS, l2_norm_clip=1.0, clipping=clipping,
        cohort_size=5.0,
        adaptation=adaptive_query.ClipAdaptation(
            target_quantile=0.3, learning_rate=0.5
        ),
    )
    state = query.initial_global_state()
    division = clipping.divide(_FOLDERS)
    expected = [layer.share for layer in division]
    for num_records in (3, 0, 6, 5):
      records = [
          collections.OrderedDict(
              (name, np.float32(rng.normal(size=spec.shape)))
              for name, spec in _FOLDERS.items()
          )
          for _ in range(num_records)
      ]
      norms = [
          [
              np.linalg.norm(fakes.flat(
                  [list(record.values())[place] for place in layer.indices]
              ))
              for layer in division
          ]
          for record in records
      ]
      _, state = _round(query, state, records, _FOLDERS)
      expected = reference.adapt_clips(
          expected, norms, cohort_size=5, target_quantile=0.3,
          learning_rate=0.5,
      )
      np.testing.assert_allclose(state.layer_clips, expected, rtol=1e-5)
      np.testing.assert_allclose(
          state.l2_norm_clip, np.linalg.norm(expected), rtol=1e-5
      )

  @parameterized.parameters((0.0, 0.25), (2.0, 0.8))
  def test_clips_come_to_the_quantile(self, noise_multiplier, quantile):
    # 100 clients with norms of a 10 to 1000, of b .01 to 1, evenly by rank. The
    # noise on a share is 5 * 2 * sqrt(2) / 200 = .07.
    query = _query(
        noise_multiplier=noise_multiplier,
        cohort_size=100.0,
        adaptation=adaptive_query.ClipAdaptation(target_quantile=quantile),
    )
    state = queries.set_noise_key(query.initial_global_state(), _KEY)
    state = tf.nest.map_structure(tf.constant, state)
    ranks = np.arange(100) / 99
    sizes = np.stack([10 * 100**ranks, 0.01 * 100**ranks], axis=1)
    release = tf.function(
        lambda total, state: query.get_noised_result(total, state)[1]
    )
    late = []
    for number in range(250):
      clips_now = np.asarray(state.layer_clips)
      counts = np.sum(np.where(sizes <= clips_now, 1, -1), axis=0)
      total = adaptive_query.CountedRecord(
          query.initial_sample_state(_SPECS).record,
          tf.constant(query._count_steps * counts, tf.int64),
      )
      state = release(total, state)
      if number >= 150:
        late.append(np.mean(sizes <= clips_now, axis=0))
    # Of a fixed key. Ranks go by steps of .01.
    np.testing.assert_allclose(np.mean(late, axis=0), quantile, atol=0.03)

  def test_one_clip_over_all_layers(self):
    # Norms 13 and .6 of the whole, C = 2: one below, one above.
    query = _query(l2_norm_clip=2.0, clipping=clipping_lib.Clipping())
    state = query.initial_global_state()
    self.assertEqual(state.layer_clips.shape, [1])
    released, state = _round(
        query, state, [_record(3, 4, 12), _record(0, 0, 0.6)]
    )
    np.testing.assert_allclose(
        released, [6 / 13, 8 / 13, 24 / 13 + 0.6], rtol=1e-5
    )
    # Share 1/2, the target.
    np.testing.assert_allclose(state.layer_clips, [2.0])

  @parameterized.parameters(math.nan, math.inf)
  def test_a_record_that_is_not_finite_counts_as_no_record(self, bad):
    query = _query()
    state = query.initial_global_state()
    total = _sum(query, state, [_record(bad, 0, 1)])
    np.testing.assert_array_equal(fakes.flat(total), 0)

  def test_clips_stay_normal_numbers(self):
    for start, quantile, bound in ((1e-30, 0.0, 1e-30), (5e29, 1.0, 1e30)):
      query = _query(
          l2_norm_clip=start,
          clipping=clipping_lib.Clipping(),
          adaptation=adaptive_query.ClipAdaptation(
              target_quantile=quantile, learning_rate=10.0
          ),
      )
      _, state = _round(query, query.initial_global_state(), [])
      np.testing.assert_allclose(state.layer_clips, [bound], rtol=1e-6)
      np.testing.assert_allclose(state.l2_norm_clip, bound, rtol=1e-6)


class PrivacyTest(parameterized.TestCase):

  @parameterized.parameters(1.1, 2.0, 5.0, 1e3)
  def test_noise_on_update_and_counts_combines_to_z(self, ratio):
    adaptation = adaptive_query.ClipAdaptation(count_noise_ratio=ratio)
    z = 0.7
    # Gaussians on one cohort cost as one of (sum of z_i^-2)^-1/2:
    # https://arxiv.org/abs/1812.06210, section 3.
    noises = np.array([z * adaptation.update_noise_ratio, z * ratio])
    self.assertAlmostEqual(np.sum(noises**-2.0) ** -0.5, z, places=12)

  @parameterized.parameters(
      (clipping_lib.Clipping(), 2.0),
      (clipping_lib.Clipping(split='dim'), 1.1),
      (clipping_lib.Clipping(split='dim'), 1e3),
      (clipping_lib.Clipping(split='uniform', layers='modules'), 2.0),
      (clipping_lib.Clipping(split='dim', weights={'w': 5.0}), 2.0),
  )
  def test_a_record_with_its_counts_has_the_norm_that_noise_covers(
      self, clipping, ratio
  ):
    # In whole steps, exactly: 4^24 r^2 / (r^2 - 1), at whatever clips.
    query = _query(
        _FOLDERS, clipping=clipping, noise_multiplier=1.0,
        adaptation=adaptive_query.ClipAdaptation(count_noise_ratio=ratio),
    )
    square = fractions.Fraction(ratio) ** 2
    bound = 4**24 * square / (square - 1)
    largest = 0
    for state, moved in _attacks(query):
      self.assertEqual(
          float(query.grid_step(state)) * 2**24, float(state.l2_norm_clip)
      )
      norm = sum(int(step) ** 2 for step in fakes.flat(moved))
      self.assertLessEqual(norm, bound)
      largest = max(largest, norm)
    # An adversary reaches it.
    self.assertGreater(largest, (1 - 1e-5) * bound)

  # z / sqrt(1 - 1.25^-2) = z / .6; 5 z / sqrt(24). C = 3.
  @parameterized.parameters((1.25, 4.0), (5.0, 2.4 * 5 / math.sqrt(24)))
  def test_noise_of_the_update_and_of_the_counts(self, ratio, stddev):
    # 5,000 elements and 400 clips, of a fixed key: estimates of a standard
    # deviation are off by 1 % and 3.5 % (one standard error).
    specs = [tf.TensorSpec([4601], tf.float32)] + [
        tf.TensorSpec([1], tf.float32)
    ] * 399
    query = _query(
        specs, l2_norm_clip=3.0, noise_multiplier=0.8,
        cohort_size=1000.0,
        adaptation=adaptive_query.ClipAdaptation(
            count_noise_ratio=ratio, learning_rate=1.0
        ),
    )
    state = queries.set_noise_key(query.initial_global_state(), _KEY)
    released, new_state = _round(query, state, [], specs)
    np.testing.assert_allclose(np.std(released), stddev, rtol=0.04)
    shares = -np.log(new_state.layer_clips / state.layer_clips)
    # ratio * z * sqrt(400) / 2 = 8 ratio on the counts, over 1000.
    np.testing.assert_allclose(np.std(shares), 0.008 * ratio, rtol=0.14)
    # What the counts get is noise of their own, four standard errors.
    together = np.corrcoef(released[-400:], shares)[0, 1]
    self.assertLess(abs(together), 0.2)

  def test_noise_follows_the_clips(self):
    query = _query(noise_multiplier=1.0)
    state = queries.set_noise_key(query.initial_global_state(), _KEY)
    first, state = _round(query, state, [])
    whole = float(state.l2_norm_clip)
    rewound = state._replace(counter=tf.constant(0, tf.int64))
    again, _ = _round(query, rewound, [])
    np.testing.assert_allclose(
        again, first * whole / math.sqrt(2), rtol=1e-5, atol=1e-6
    )
    other, _ = _round(query, state, [])
    self.assertFalse(np.allclose(other, again))

  def test_metrics_are_of_settings_and_noised_values(self):
    query = _query(
        noise_multiplier=2.0,
        adaptation=adaptive_query.ClipAdaptation(count_noise_ratio=1.25),
    )
    metrics = query.derive_metrics(query.initial_global_state())
    self.assertEqual(
        list(metrics), ['l2_norm_clip', 'noise_stddev_on_sum', 'layer_clip']
    )
    self.assertAlmostEqual(
        float(metrics['noise_stddev_on_sum']), 2 / 0.6 * math.sqrt(2), places=5
    )
    self.assertEqual(list(metrics['layer_clip']), ['a', 'b'])

  def test_counts_hidden_by_their_noise_are_logged(self):
    with self.assertLogs('absl', 'WARNING') as logs:
      _query(noise_multiplier=1.0)  # 5 * sqrt(2) / 8.
    self.assertIn('known to +-0.88 only (2 layers, 4 clients', logs.output[0])


class CorrelatedTest(parameterized.TestCase):

  @parameterized.parameters(_BLT, _BANDED)
  def test_rounds_equal_those_of_whole_numbers(self, process):
    # 2 records in each of 11 rounds, and clips that change much.
    n, r, z, target, rate = 4.0, 2.0, 0.25, 0.3, 1.0
    num_rounds, elements, num_clips = 11, 3, 2
    query = _query(
        noise_multiplier=z, noise=process,
        adaptation=adaptive_query.ClipAdaptation(
            target_quantile=target, learning_rate=rate, count_noise_ratio=r
        ),
    )
    c = math.isqrt(int(fractions.Fraction(4**24, num_clips * 3)))
    stddev = 32 * z / math.sqrt(0.75) * 2**24
    drawn = [
        [
            int(x)
            for x in fakes.flat(list(noise_lib.gaussian(
                [[2], [], [num_clips]],
                key=tf.constant(_KEY),
                release=tf.constant(number, tf.int64),
                stddev=tf.constant(stddev, tf.float64),
            )))
        ]
        for number in range(num_rounds)
    ]
    strategy = process.strategy
    noise = reference.blt_noise(
        drawn, strategy.output_scale, strategy.buf_decay
    )
    release = tf.function(
        lambda total, state: query.get_noised_result(total, state)[:2]
    )
    state = queries.set_noise_key(query.initial_global_state(), _KEY)
    state = tf.nest.map_structure(tf.constant, state)
    clips, rng = [1.0, 1.0], np.random.default_rng(3)
    found_clips = []
    for number in range(num_rounds):
      records = [_record(*rng.normal(size=3)) for _ in range(2)]
      total = _sum(query, state, records)
      above = np.sum([
          [np.linalg.norm(record['a']) > clips[0], abs(record['b']) > clips[1]]
          for record in records
      ], axis=0)
      np.testing.assert_array_equal(total.counts, c * (2 - 2 * above))
      grid = float(state.l2_norm_clip) * 2.0**-24
      noised, state = release(total, state)
      # What comes out, over the clip of the round, is the whole number.
      np.testing.assert_array_equal(
          fakes.flat(noised),
          [
              grid * (int(x) + y)
              for x, y in zip(fakes.flat(total.record), noise[number])
          ],
      )
      shares = [
          0.5 + (int(x) + y) / c / (2 * n)
          for x, y in zip(total.counts, noise[number][elements:], strict=True)
      ]
      clips = [
          clip * math.exp(-rate * (min(max(share, 0), 1) - target))
          for clip, share in zip(clips, shares)
      ]
      np.testing.assert_allclose(state.layer_clips, clips, rtol=1e-5)
      clips = [float(clip) for clip in state.layer_clips]
      found_clips.append(clips[0])
    self.assertEqual(int(state.counter), num_rounds)
    # By more than a power of two, which a grid of these would follow.
    self.assertGreater(max(found_clips) / min(found_clips), 2)

  @parameterized.parameters(_BLT, _BANDED)
  def test_noise_over_the_clip_has_the_stated_covariance(self, process):
    size, num_rounds = 20_000, 12
    specs = [tf.TensorSpec([size], tf.float32)]
    query = _query(
        specs, l2_norm_clip=1.0, noise_multiplier=0.8, cohort_size=6.0,
        clipping=clipping_lib.Clipping(), noise=process,
        adaptation=adaptive_query.ClipAdaptation(learning_rate=2.0),
    )
    state = queries.set_noise_key(query.initial_global_state(), _KEY)
    noise, clips, first = [], [], state
    for number in range(num_rounds):
      if number == 7:  # As where a round is undone: its clips, the noise after.
        state = state._replace(
            l2_norm_clip=first.l2_norm_clip, layer_clips=first.layer_clips
        )
      clips.append(float(state.l2_norm_clip))
      metrics = query.derive_metrics(state)
      released, state = _round(query, state, [], specs)
      noise.append(
          released / float(metrics['noise_stddev_before_correlation'])
      )
    self.assertGreater(max(clips) / min(clips), 3)
    root = np.linalg.cholesky(process.strategy.covariance(num_rounds))
    white = np.linalg.solve(root, np.stack(noise))
    # Of a fixed key; a new one would fail 1 time in 10,000.
    self.assertGreater(scipy.stats.kstest(white.ravel(), 'norm').pvalue, 1e-4)
    off = (white @ white.T)[np.triu_indices(num_rounds, 1)] / math.sqrt(size)
    self.assertGreater(scipy.stats.chi2.sf(off @ off, len(off)), 1e-4)
    # Prefix sums of normalised noise have less of it than independent rounds.
    self.assertLess(np.sum(noise, axis=0).std(), 0.7 * math.sqrt(num_rounds))

  def test_all_noise_that_is_taken_back_is_in_the_buffers(self):
    query = _query(
        noise_multiplier=1.0, cohort_size=100.0, noise=_BLT
    )
    state = queries.set_noise_key(query.initial_global_state(), _KEY)
    self.assertEqual(
        [part.shape.as_list() for part in tf.nest.flatten(state.buffers)],
        [[3, 2], [3], [3, 2]],
    )
    _, state = _round(query, state, [])
    whole, following = _round(query, state, [])
    for name in ('record', 'counts'):
      part = getattr(state.buffers, name)
      lost = state.buffers._replace(
          **{name: tf.nest.map_structure(tf.zeros_like, part)}
      )
      found, after = _round(query, state._replace(buffers=lost), [])
      self.assertEqual(np.array_equal(found, whole), name == 'counts')
      self.assertEqual(
          np.array_equal(after.layer_clips, following.layer_clips),
          name == 'record',
      )


class ArgumentsTest(parameterized.TestCase):

  @parameterized.named_parameters(
      ('infinite', dict(l2_norm_clip=math.inf), 'must be a finite number'),
      ('clip', dict(l2_norm_clip=0.0), 'l2_norm_clip'),
      ('noise', dict(noise_multiplier=-1.0), 'noise_multiplier'),
      ('cohort', dict(cohort_size=0), 'cohort_size must be positive'),
      (
          'correlated',
          dict(noise=_BLT, noise_multiplier=0.0),
          'noise_multiplier must be',
      ),
      (
          'too_large',
          dict(noise=_BLT, noise_multiplier=400.0),
          'exceeds 62 bits',
      ),
      (
          'counts',
          dict(
              noise=_BLT,
              noise_multiplier=1.0,
              adaptation=adaptive_query.ClipAdaptation(count_noise_ratio=1e8),
          ),
          'less than a step of the grid to counts',
      ),
      (
          'rescale',
          dict(clipping=clipping_lib.Clipping(split='dim', rule='rescale')),
          "rule_of_adaptive_clips must be one of 'clip', found 'rescale'",
      ),
  )
  def test_bad_arguments_are_named(self, arguments, message):
    with self.assertRaisesRegex(ValueError, message):
      _query(**arguments)

  @parameterized.parameters(
      (dict(target_quantile=1.1), 'target_quantile must be'),
      (dict(learning_rate=-0.1), 'learning_rate must be'),
      (dict(count_noise_ratio=1.0), 'at least 1.1, found 1: the counts'),
      (dict(count_noise_ratio=math.inf), 'a finite number'),
  )
  def test_bad_adaptations_are_named(self, arguments, message):
    with self.assertRaisesRegex(ValueError, message):
      adaptive_query.ClipAdaptation(**arguments)

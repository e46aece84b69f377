"""Tests of tff_asr.privacy.queries and grid_clipper.

noise_streams_test checks that no two draws share a stream and that noise needs
a key; aggregators/sensitivity_test how far one client moves the sum.
"""

import collections
import fractions
import itertools
import math
import os
from unittest import mock

from absl.testing import parameterized
import dp_accounting
import numpy as np
import scipy.stats
import tensorflow as tf

from tff_asr.privacy import clipping as clipping_lib
from tff_asr.privacy import grid_clipper
from tff_asr.privacy import noise
from tff_asr.privacy import queries

_KEY = np.array([1, -2, 3, 2**31 - 1, 5, 6, 7, 8], np.int32)
_SPLITS = tuple(clipping_lib.SPLITS)
_RULES = (
    dict(split='global'),
    dict(split='uniform'),
    dict(split='dim'),
    dict(split='dim', rule='rescale'),
    dict(split='uniform', weights={'0': 0.01}),
)


def _query(record, clip=1.0, multiplier=0.0, split='global', **clipping):
  """The query of records like this one."""
  return queries.PerLayerClipSumQuery(
      tf.nest.map_structure(lambda x: tf.TensorSpec(x.shape), record),
      l2_norm_clip=clip,
      noise_multiplier=multiplier,
      clipping=clipping_lib.Clipping(split=split, **clipping),
  )


def _clip(record, clip, **clipping):
  """Returns the clipped record, as float64 arrays in a list of layers."""
  # With noise, where there is a clip: only then records are on a grid.
  multiplier = 1.0 if math.isfinite(clip) else 0.0
  query = _query(record, clip, multiplier, **clipping)
  state = query.initial_global_state()
  clipped = query.preprocess_record(
      query.derive_sample_params(state),
      tf.nest.map_structure(tf.constant, record),
  )
  tf.nest.assert_same_structure(clipped, record)
  unit = float(query.sum_unit(state))
  return [unit * layer.numpy() for layer in tf.nest.flatten(clipped)]


def _grid(clip: float, size: int = 1) -> float:
  """The largest power of two of at most 2^-24 C and 2^-8 C / sqrt(D)."""
  bound = float(np.float32(clip)) * min(2.0**-24, 2.0**-8 / math.sqrt(size))
  return 2.0 ** (math.frexp(bound)[1] - 1)


def _norm(layers) -> float:
  """L2 norm over all layers, in float64."""
  return math.sqrt(
      sum(np.sum(np.square(layer, dtype=np.float64)) for layer in layers)
  )


def _is_within(layers, clip: float) -> bool:
  """Whether the norm of float64 layers is at most C, without rounding."""
  # A float is an integer over a power of two. Sums of fractions are slow.
  ratios = [
      float(x).as_integer_ratio()
      for x in np.concatenate([np.ravel(layer) for layer in layers])
  ]
  unit = max((below for _, below in ratios), default=1)
  squares = sum((above * (unit // below)) ** 2 for above, below in ratios)
  bound = fractions.Fraction(float(np.float32(clip))) ** 2
  return squares * bound.denominator <= bound.numerator * unit**2


def _random_record(rng: np.random.Generator):
  """A random nest of float32 layers, some zero, of all magnitudes."""

  def layer():
    shape = rng.integers(1, 6, size=rng.integers(0, 4))
    values = rng.normal(size=shape)
    exponents = (
        -math.inf,  # Zeros.
        rng.uniform(-45, 30, size=shape),  # Every element another magnitude.
        *[rng.uniform(-45, 37)] * 3,
    )[rng.integers(5)]
    return np.asarray(values * 10.0**exponents, np.float32)

  layers = [layer() for _ in range(rng.integers(1, 9))]
  half = len(layers) // 2
  return (
      layers,
      (layers[0], collections.OrderedDict(z=layers[1:], a=())),
      collections.OrderedDict(b=tuple(layers[half:]), a=[[layers[:half]]]),
  )[rng.integers(3)]


class ClippingTest(parameterized.TestCase):

  @parameterized.named_parameters(
      # Norm sqrt(9 + 16 + 144) = 13, clip 6.5: halved.
      ('global', 6.5, {}, [[3, 4], 12], [[1.5, 2], 6]),
      # C_h = 5 / sqrt(4) = 2.5: norms 5, 12, 2 and 0 become 2.5, 2.5, 2 and 0.
      ('uniform', 5.0, dict(split='uniform'),
       [[3, 4], 12, [[2]], [0, 0, 0]], [[1.5, 2], 2.5, [[2]], [0, 0, 0]]),
      # Sizes 2, 1 and 1 of 4: C_h = 2 sqrt(.5), 2 / 2 and 2 / 2.
      ('dim', 2.0, dict(split='dim'), [[30, 40], -12, [[0.5]]],
       [[0.6 * 2**0.5, 0.8 * 2**0.5], -1, [[0.5]]]),
      # C_h = 10 / sqrt(4) = 5. Norms 5, 12, .5 and 0: in all 13.01.
      ('rescale', 10.0, dict(split='uniform', rule='rescale'),
       [[3, 4], -12, [[0.3, 0.4]], [0, 0]], [[3, 4], -5, [[3, 4]], [0, 0]]),
      # Within C as a whole: one layer is above C_h = 7, and stays.
      ('rescale_within', 14.0, dict(split='uniform', rule='rescale'),
       [[3, 4], -12, [[0.3, 0.4]], [0, 0]],
       [[3, 4], -12, [[0.3, 0.4]], [0, 0]]),
      # C_h = 10 / sqrt(2). m: norm 13; w: norm 1, as it is.
      ('modules', 10.0, dict(split='uniform', layers='modules'),
       {'m/a': [3, 4], 'm/b': 12, 'w': [1]},
       [[30 / 13 / 2**0.5, 40 / 13 / 2**0.5], 120 / 13 / 2**0.5, [1]]),
      # Norms as 3 to 1, so C_h = 10 * 3 / sqrt(10) and 10 / sqrt(10).
      ('weights', 10.0, dict(split='uniform', weights={'a': 3.0}),
       {'a': [30], 'b': [30]}, [[3 * 10**0.5], [10**0.5]]),
      ('at_the_clip', 5.0, {}, [[3, 4]], [[3, 4]]),
      # C over the norm is below float32's normal numbers, where rounding it
      # could double it.
      ('huge', 1e-8, {}, [[3e38], [-4e37]],
       [[30e-8 / 916**0.5], [-4e-8 / 916**0.5]]),
  )
  def test_by_hand(self, clip, clipping, record, expected):
    if isinstance(record, dict):
      record = {name: np.float32(value) for name, value in record.items()}
    else:
      record = [np.float32(value) for value in record]
    for found, wanted in zip(
        _clip(record, clip, **clipping), expected, strict=True
    ):
      np.testing.assert_allclose(
          found, wanted, rtol=1e-7, atol=1.001 * _grid(clip)
      )
      self.assertTrue(np.all(np.abs(found) <= np.abs(wanted) * (1 + 1e-7)))

  @parameterized.product(split=_SPLITS, clip=(1e-30, 0.01, 1e20))
  def test_clipped_norms_are_at_most_the_clip(self, split, clip):
    # Seeded: random structures, from denormals to 1e37.
    rng = np.random.default_rng(3)
    for _ in range(40):
      record = _random_record(rng)
      clipped = _clip(record, clip, split=split)
      self.assertTrue(_is_within(clipped, clip))
      layers = tf.nest.flatten(record)
      parts = [(layers, clipped, clip)]
      if split != 'global':
        shares = clipping_lib.SPLITS[split]([layer.size for layer in layers])
        parts = [
            ([layer], [result], share * clip)
            for layer, result, share in zip(layers, clipped, shares)
        ]
      for before, after, part_clip in parts:
        self.assertLessEqual(_norm(after), part_clip * (1 + 1e-7))
        if _norm(before) > part_clip:
          self.assertGreater(_norm(after), part_clip * (1 - 1e-5))

  @parameterized.product(
      split=('uniform', 'dim'), layers=clipping_lib.LAYERS, clip=(1e-8, 1e20)
  )
  def test_rescaled_layers_have_their_clip_or_their_bits(
      self, split, layers, clip
  ):
    # Seeded, as above.
    rng = np.random.default_rng(6)
    clipping = dict(split=split, layers=layers, rule='rescale')
    num_scaled_up = 0
    for _ in range(40):
      record = _random_record(rng)
      clipped = _clip(record, clip, **clipping)
      self.assertTrue(_is_within(clipped, clip))
      tensors = tf.nest.flatten(record)
      if _norm(tensors) <= clip * (1 - 1e-6):
        self.check_rounded(tensors, clipped, _grid(clip))
        continue
      for layer in clipping_lib.Clipping(**clipping).divide(record):
        before = _norm([tensors[place] for place in layer.indices])
        if before < 1e-27:  # Up to 2^-90 layers are not scaled.
          continue
        after = _norm([clipped[place] for place in layer.indices])
        self.assertAlmostEqual(after / (layer.share * clip), 1, delta=1e-5)
        num_scaled_up += before < 0.9 * layer.share * clip
    self.assertGreater(num_scaled_up, 0)

  @parameterized.parameters(1e-30, 1e-28, 1e-27)
  def test_layers_too_small_to_be_scaled_up_are_scaled_down(self, clip):
    small = np.full([4], 4e-28, np.float32)
    for other in (small, np.full([4], 1e30, np.float32)):
      clipped = _clip([small, other], clip, split='uniform', rule='rescale')
      self.assertTrue(_is_within(clipped, clip))
      self.assertAlmostEqual(_norm(clipped) / clip, 1, delta=1e-5)

  @parameterized.product(
      split=_SPLITS, clip=(1e-3, 1e4, math.inf), bad=(None, math.nan, math.inf)
  )
  def test_tensors_that_xla_clips_have_the_bits_of_others(
      self, split, clip, bad
  ):
    # Squares of small integers have the same sum in any order: layers of one
    # size have one factor, whether XLA clips them or not.
    size = grid_clipper._COMPILED_SIZE
    rng = np.random.default_rng(8)  # Seeded; the claim holds for any.
    large = rng.integers(-9, 10, size=[2, size // 2]).astype(np.float32)
    if bad is not None:
      large[1, 5] = bad
    halves = [half.reshape([-1, 4]) for half in large]
    layers = 'modules' if split != 'global' else 'tensors'
    (whole,) = _clip({'a/x': large}, clip, split=split, layers=layers)
    parts = _clip(
        {'a/x': halves[0], 'a/y': halves[1]}, clip, split=split, layers=layers
    )
    np.testing.assert_array_equal(whole.ravel(), np.concatenate(parts).ravel())
    self.assertEqual(bool(np.any(whole)), bad is None)

  def test_clipping_refuses_less_exact_arithmetic(self):
    flags = '--xla_cpu_enable_fast_math=true'
    with mock.patch.dict(os.environ, XLA_FLAGS=flags):
      _clip([np.ones([2], np.float32)], 1.0)  # Not by XLA.
      with self.assertRaisesRegex(ValueError, 'XLA_FLAGS.*leave it out'):
        _clip([np.ones([grid_clipper._COMPILED_SIZE], np.float32)], 1.0)

  def test_where_there_are_gpus_xla_clips_nothing(self):
    record = [np.ones([grid_clipper._COMPILED_SIZE], np.float32)]
    query = _query(record, 1.0, 1.0)
    params = query.derive_sample_params(query.initial_global_state())
    for gpus, is_compiled in (([], True), (['a GPU'], False)):
      clip = tf.function(lambda: query.preprocess_record(params, record))
      with mock.patch.object(
          tf.config, 'list_physical_devices', return_value=gpus
      ):
        nodes = clip.get_concrete_function().graph.as_graph_def().node
      self.assertEqual(
          any('_XlaMustCompile' in node.attr for node in nodes), is_compiled
      )

  def check_rounded(self, record, clipped, grid):
    """Each element is rounded toward zero to the grid, and not scaled."""
    for layer, result in zip(record, clipped, strict=True):
      np.testing.assert_array_equal(
          result, grid * np.trunc(layer.astype(np.float64) / grid)
      )

  @parameterized.product(split=_SPLITS)
  def test_layers_within_their_clip_are_rounded_toward_zero(self, split):
    rng = np.random.default_rng(4)
    record = [
        np.asarray(rng.normal(size=shape), np.float32)
        for shape in ((7,), (3, 3), (), (2, 1, 5))
    ]
    clip = 100 * _norm(record)
    record[0][:4] = -0.0, 1e-45, -_grid(clip), 1.5 * _grid(clip)
    self.check_rounded(record, _clip(record, clip, split=split), _grid(clip))
    denormal = [np.float32([1e-45, -1e-40, 1e-39]), np.float32([0.0, 1e-42])]
    for layer in _clip(denormal, 1e-30, split=split):
      np.testing.assert_array_equal(layer, np.zeros_like(layer))
    if split != 'global':
      # A large layer does not change a small one.
      large, small = np.float32([1e30, 1]), np.float32([0.01, 0.02])
      self.check_rounded(
          [small], _clip([large, small], 1.0, split=split)[1:], _grid(1.0)
      )

  @parameterized.product(split=_SPLITS)
  def test_without_a_clip_records_keep_their_bits(self, split):
    huge = [np.float32([3e38, -1e30]), np.float32(1), np.float32([0, 0])]
    for layer, result in zip(huge, _clip(huge, math.inf, split=split)):
      np.testing.assert_array_equal(result, layer)
    total = _query(huge, math.inf, split=split).initial_sample_state(huge)
    self.assertEqual([layer.dtype for layer in total], [tf.float32] * 3)

  @parameterized.parameters(*_RULES)
  def test_records_at_the_clip_do_not_exceed_it_by_a_bit(self, **clipping):
    # Norms within float64's rounding of the clip: their sums of squares come
    # out too small as often as too large; elements on the grid, so that
    # rounding takes nothing off.
    rng = np.random.default_rng(8)
    shapes = ((300,), (20, 30), (101,))
    for _ in range(30):
      clip = float(np.float32(rng.uniform(0.5, 1)))
      record = [np.float32(rng.normal(size=shape)) for shape in shapes]
      record = [np.float32(x * (clip / _norm(record))) for x in record]
      self.assertTrue(_is_within(_clip(record, clip, **clipping), clip))
      huge = [np.float32(1e20) * layer for layer in record]
      clipped = _clip(huge, clip, **clipping)
      self.assertTrue(_is_within(clipped, clip))
      self.assertGreater(_norm(clipped), clip * (1 - 1e-5))

  @parameterized.parameters(
      dict(split='global'),
      dict(split='uniform'),
      dict(split='dim'),
      dict(split='uniform', layers='modules'),
      dict(split='dim', weights={'.': 2.0}),
      dict(split='uniform', rule='rescale'),
      dict(split='dim', rule='rescale'),
  )
  def test_layers_exactly_at_their_clip_lose_a_step(self, **clipping):
    # Four layers [3, 4] of norm 5 = C_h, all on the grid: rounding could take
    # nothing off, so the margin of the clips has to.
    grid = _grid(10.0)
    self.assertEqual(3 % grid, 0)
    at_clip = [np.float32([3, -4])] * 4
    for layer in _clip(at_clip, 10.0, **clipping):
      np.testing.assert_array_equal(layer, [3 - grid, -4 + grid])
    # A step below the clip nothing changes: the margin is no larger.
    below = [np.float32([3, -4 + grid])] * 4
    for layer in _clip(below, 10.0, **clipping):
      np.testing.assert_array_equal(layer, below[0])

  @parameterized.parameters(
      # 2^-24 C = 2^-24; 2^-24 / 100 is between 2^-31 and 2^-30.
      (1.0, [3], -24), (0.01, [5, 2], -31),
      # D = 2^34, more than 2^32: 2^-8 / 2^17.
      (1.0, [2**34], -25),
  )
  def test_the_grid_by_hand(self, clip, shape, exponent):
    query = queries.PerLayerClipSumQuery(
        tf.TensorSpec(shape), l2_norm_clip=clip, noise_multiplier=1.0
    )
    state = query.initial_global_state()
    self.assertEqual(float(query.grid_step(state)), 2.0**exponent)

  @parameterized.product(split=_SPLITS, bad=(np.nan, np.inf, -np.inf))
  def test_a_non_finite_update_becomes_all_zeros(self, split, bad):
    for clip, place in itertools.product((1.0, math.inf), range(3)):
      record = [np.ones(shape, np.float32) for shape in ([2], [1, 2], [])]
      np.put(record[place], 0, bad)
      for layer in _clip(record, clip, split=split):
        np.testing.assert_array_equal(layer, np.zeros_like(layer))

  def test_clients_get_the_clip_and_not_the_key(self):
    query = _query([_KEY], 2.0, 1.0)
    state = queries.set_noise_key(query.initial_global_state(), _KEY)
    self.assertEqual(float(query.derive_sample_params(state)), 2.0)

  def test_sums_start_at_integers(self):
    record = [tf.ones([2]), tf.ones([])]
    query = _query(record, multiplier=1.0)
    for start in (record, [tf.TensorSpec([2]), tf.TensorSpec([])]):
      total = query.initial_sample_state(start)
      self.assertEqual([layer.dtype for layer in total], [tf.int64] * 2)
      np.testing.assert_array_equal(total[0], [0, 0])


def _noise(
    shapes, *, clip=1.0, multiplier=1.0, split='global', key=_KEY, counter=0,
    total=0,
) -> list[np.ndarray]:
  """The noised sums of these shapes, all of one value, int64."""
  sums = [tf.fill(shape, tf.constant(total, tf.int64)) for shape in shapes]
  query = _query(sums, clip, multiplier, split)
  state = queries.set_noise_key(query.initial_global_state(), key)
  state = state._replace(counter=tf.constant(counter, tf.int64))
  return [
      layer.numpy() for layer in query.get_noised_result(sums, state)[0]
  ]


def _p_value(values: np.ndarray, stddev: float) -> float:
  return scipy.stats.kstest(
      values.ravel(), scipy.stats.norm(scale=stddev).cdf
  ).pvalue


class NoiseTest(parameterized.TestCase):

  # All draws are of fixed keys, so these never change by chance. With new keys
  # a test at 1e-3 would fail 1 time in 1,000 for each p-value that it takes.

  @parameterized.product(split=_SPLITS)
  def test_noise_is_gaussian_of_z_times_c_in_every_layer(self, split):
    stddev = 0.3 * 0.7
    for layer in _noise(
        [[5000], [70, 90], [3000]], clip=0.3, multiplier=0.7, split=split
    ):
      self.assertGreater(_p_value(layer, stddev), 1e-3)
      self.assertLess(_p_value(layer, stddev * 2 / 3), 1e-9)
      self.assertLess(_p_value(layer, stddev * 3 / 2), 1e-9)

  def test_noise_is_added_to_the_sum(self):
    (noise,), (noised,) = _noise([[3]]), _noise([[3]], total=12345)
    # All are multiples of g, so there is no rounding.
    np.testing.assert_array_equal(noised - noise, 12345 * _grid(1.0))
    self.assertEmpty(_noise([[0, 3], [5]])[0])

  def test_releases_are_a_function_of_an_integer(self):
    # Steps of the grid: two sums one step apart and their noise released as the
    # same integer give the same bits.
    released = [
        _noise([[1000]], clip=0.3, total=total)[0] for total in (5, 6)
    ]
    for values in released:
      steps = values / _grid(0.3)
      np.testing.assert_array_equal(steps, np.round(steps))
    np.testing.assert_array_equal(released[0] + _grid(0.3), released[1])

  def test_the_same_state_gives_the_same_bits_and_counts(self):
    shapes = [[5], [3, 7], [], [1000]]
    zeros = [tf.zeros(shape, tf.int64) for shape in shapes]
    query = _query(zeros, 1.0, 1.0)
    state = queries.set_noise_key(query.initial_global_state(), _KEY)
    traced = tf.function(lambda *a: query.get_noised_result(*a)[:2])
    for t in range(3):
      self.assertEqual(int(state.counter), t)
      np.testing.assert_array_equal(state.noise_key, _KEY)
      result, state = traced(zeros, state)
      for one, other in zip(result, _noise(shapes, counter=t)):
        self.assertEqual(one.numpy().tobytes(), other.tobytes())

  @parameterized.product(split=_SPLITS, clip=(1.0, math.inf))
  def test_no_noise_needs_no_key_and_changes_nothing(self, split, clip):
    total = [tf.constant([15, -2]), tf.constant(3)]
    query = _query(total, clip, 0.0, split)
    start = query.initial_sample_state(total)
    total = [tf.cast(x, s.dtype) for x, s in zip(total, start)]
    result, state, event = query.get_noised_result(
        total, query.initial_global_state()
    )
    for found, expected in zip(result, ([15, -2], 3)):
      np.testing.assert_array_equal(found, expected)
    self.assertEqual(int(state.counter), 1)
    self.assertEqual(event, dp_accounting.GaussianDpEvent(0.0))

  @parameterized.parameters(1.0, math.inf)
  def test_another_query_s_state_has_no_noise_that_is_not_drawn(self, clip):
    total = [tf.constant([15, -2], tf.int64)]
    noised = _query(total, 1.0, 2.0)
    state = queries.set_noise_key(noised.initial_global_state(), _KEY)
    query = _query(total, clip, 0.0)
    total = [tf.cast(total[0], query.initial_sample_state(total)[0].dtype)]
    _, _, event = query.get_noised_result(total, state)
    self.assertEqual(event, dp_accounting.GaussianDpEvent(0.0))

  @parameterized.product(split=_SPLITS)
  def test_event_and_metrics_by_hand(self, split):
    zeros = [tf.zeros([2], tf.int64)] * 5
    query = _query(zeros, 0.5, 3.0, split)
    state = query.initial_global_state()
    *_, event = query.get_noised_result(zeros, state)
    self.assertEqual(event, dp_accounting.GaussianDpEvent(3.0))
    self.assertEqual(
        query.derive_metrics(state),
        collections.OrderedDict(l2_norm_clip=0.5, noise_stddev_on_sum=1.5),
    )
    self.assertEqual(query.num_noised, 10)

  def test_no_key_is_in_the_graph_nor_is_stateful_randomness(self):
    query = _query([tf.zeros([5])], 1.0, 1.0)
    state = queries.set_noise_key(query.initial_global_state(), _KEY)
    specs = tf.nest.map_structure(
        lambda leaf: tf.TensorSpec.from_tensor(tf.convert_to_tensor(leaf)),
        state,
    )
    graph = tf.function(query.get_noised_result).get_concrete_function(
        [tf.TensorSpec([5], tf.int64)], specs
    ).graph.as_graph_def()
    self.assertNotIn(_KEY.tobytes(), graph.SerializeToString())
    self.assertEqual(
        {node.op for node in graph.node if 'Random' in node.op}, set()
    )


class PartialNoiseTest(parameterized.TestCase):

  # Whole steps of the grid.
  total = collections.OrderedDict(
      block_00=collections.OrderedDict(
          w1=tf.fill([3, 2], _grid(0.5)), wf=tf.fill([5], 2 * _grid(0.5)),
      ),
      head=tf.fill([4], 3 * _grid(0.5)),
  )
  arguments = dict(
      l2_norm_clip=0.5,
      noise_multiplier=2.0,
      clipping=clipping_lib.Clipping(split='uniform'),
  )

  def query(self, factors=None):
    return queries.PerLayerClipSumQuery(
        tf.nest.map_structure(tf.TensorSpec.from_tensor, self.total),
        noise_factors=factors,
        **self.arguments,
    )

  def noised(self, query, total):
    state = queries.set_noise_key(query.initial_global_state(), _KEY)
    return query.get_noised_result(total, state)

  def test_layers_have_their_factors_of_the_noise_that_all_would_have(self):
    everywhere, _, _ = self.noised(self.query(), tf.nest.map_structure(
        lambda x: tf.cast(x / _grid(0.5), tf.int64), self.total
    ))
    # The first pattern that is found decides; w1 keeps its noise.
    result, state, event = self.noised(
        self.query({'head': 0.5, '(wf|head)$': 0.0}), self.total
    )
    noise = everywhere['head'].numpy() - self.total['head'].numpy()
    for expected, found in (
        (everywhere['block_00']['w1'], result['block_00']['w1']),
        (self.total['block_00']['wf'], result['block_00']['wf']),
        (self.total['head'].numpy() + noise / 2, result['head']),
    ):
      np.testing.assert_array_equal(found, expected)
    self.assertTrue(np.all(noise != 0))
    self.assertEqual(int(state.counter), 1)
    # A round counts as one without noise.
    self.assertEqual(event, dp_accounting.GaussianDpEvent(0.0))

  @parameterized.parameters(
      # w1 has 3 x 2, wf 5, the head 4.
      ({'/w': 1.0, '': 0.0}, 11), ({'head': 0.0}, 11), (None, 15),
      ({'head': 0.5}, 12), ({'head': 1.0}, 15),
  )
  def test_elements_count_by_the_square_of_their_factor(self, factors, count):
    self.assertEqual(self.query(factors).num_noised, count)

  def test_all_layers_are_clipped(self):
    query = self.query({'head': 0.0})
    clipped = query.preprocess_record(
        query.derive_sample_params(query.initial_global_state()),
        tf.nest.map_structure(lambda value: value / _grid(0.5), self.total),
    )
    for layer in tf.nest.flatten(clipped):
      # C / sqrt(H) = .5 / sqrt(3).
      self.assertAlmostEqual(_norm([layer]), 0.2886751, places=6)

  @parameterized.parameters(
      ({}, 'noise_factors is empty'),
      ({'(': 1.0}, r"'\(' is not a regular expression"),
      ({'head': 1.0, 'w3': 0.0}, "'w3' is found in none of the 3 layers"),
      ({'head': -1.0}, 'noise factor of head'),
  )
  def test_bad_arguments_are_named(self, factors, message):
    with self.assertRaisesRegex(ValueError, message):
      self.query(factors)


class FloatSumsTest(parameterized.TestCase):
  """Without a guarantee sums are float32."""

  @parameterized.named_parameters(
      ('noise', 1.0, 2.0, None, tf.int64, 2.0),
      ('no_noise', 1.0, 0.0, None, tf.float32, 0.0),
      ('no_clip', math.inf, 0.0, None, tf.float32, 0.0),
      ('factors_of_1', 1.0, 2.0, {'': 1.0}, tf.float32, 0.0),
  )
  def test_an_epsilon_is_claimed_for_sums_of_integers_only(
      self, clip, multiplier, factors, dtype, charged
  ):
    query = queries.PerLayerClipSumQuery(
        [tf.TensorSpec([2])], l2_norm_clip=clip, noise_multiplier=multiplier,
        noise_factors=factors,
    )
    (start,) = query.initial_sample_state([tf.zeros([2])])
    state = query.initial_global_state()
    (record,) = query.preprocess_record(
        query.derive_sample_params(state), [tf.ones([2])]
    )
    self.assertEqual((start.dtype, record.dtype), (dtype, dtype))
    # Also of a state of a query with noise.
    state = state._replace(noise_multiplier=tf.constant(2.0))
    self.assertEqual(
        query.event(state), dp_accounting.GaussianDpEvent(charged)
    )

  def test_small_layers_keep_their_direction(self):
    # The paper's norms: .7 of a delta, 1e-6 of an attention output (H.3).
    rng = np.random.default_rng(1)
    shapes = {'large': [1000], 'small': [768, 768]}
    record = {name: rng.normal(size=shape) for name, shape in shapes.items()}
    for name, norm in (('large', 0.7), ('small', 1e-6)):
      record[name] *= norm / np.linalg.norm(record[name])
    record = {
        name: tf.constant(value, tf.float32) for name, value in record.items()
    }
    kept = {}
    for multiplier in (0.0, 1.0):
      query = _query(record, 0.01, multiplier)
      params = query.derive_sample_params(query.initial_global_state())
      found = query.preprocess_record(params, record)['small'].numpy()
      kept[multiplier] = np.mean(found != 0)
    self.assertEqual(kept[0.0], 1)
    # On the grid of g = 2^-31, elements of 2e-11 are 0.
    self.assertEqual(kept[1.0], 0)


def _drifting_sum(num_records: int) -> np.ndarray:
  """Numbers up to 1; their float32 sum depends on the one in the middle.

  4,096 ones and an ulp end just above 4,096. From there, -.3 ulp is rounded
  away, record after record. From below 4,096 it is rounded to -.5 ulp. So who
  adds the -1 that leads there moves the sum by more with each record.
  """
  ulp = 2.0**-11  # Of float32 from 4096 on; below, it is half of this.
  rest = num_records - 4098
  return np.float32([1.0] * 4096 + [ulp] + [-1.0] + [-0.3 * ulp] * rest)


class ExactSumsTest(parameterized.TestCase):

  def sum_of(self, records: np.ndarray) -> int:
    """The sum of these numbers, one after another in one graph."""
    query = _query([np.zeros(1)], 1.0, 1.0)
    params = query.derive_sample_params(query.initial_global_state())

    @tf.function(autograph=False)
    def add_all(records):
      _, total = tf.while_loop(
          lambda number, _: number < tf.shape(records)[0],
          lambda number, total: (
              number + 1,
              query.accumulate_record(params, total, [records[number]]),
          ),
          (tf.constant(0), query.initial_sample_state([records[0]])),
          parallel_iterations=1,
      )
      return total

    return int(add_all(tf.constant(records[:, np.newaxis]))[0])

  def test_sums_that_drift_in_floats_move_by_the_clip(self):
    for count, in_floats in ((8194, 2.0), (28_658, 7.0)):
      with_it = _drifting_sum(count)
      without = np.delete(with_it, 4097)
      moved = np.cumsum(without)[-1] - np.cumsum(with_it)[-1]
      self.assertAlmostEqual(moved, in_floats, delta=0.02)
    # C is 2^24 steps. The record at C is shrunk by a step: see the query.
    self.assertEqual(
        self.sum_of(without) - self.sum_of(with_it), 2**24 - 1
    )


class ArgumentsTest(parameterized.TestCase):

  @parameterized.parameters(
      *((dict(l2_norm_clip=clip), 'l2_norm_clip')
        for clip in (0.0, 1e-31, -1.0, math.nan, 1e31)),
      *((dict(noise_multiplier=noise), 'noise_multiplier')
        for noise in (-1.0, math.inf, math.nan)),
      (dict(l2_norm_clip=math.inf),
       'noise_multiplier 1.0 needs a finite l2_norm_clip'),
      (dict(noise_multiplier=2.0**12), 'exceeds 62 bits'),
      (dict(clipping=clipping_lib.Clipping(split='dim', weights={'x': 2.0})),
       "'x' is found in none of the 1 layers"),
  )
  def test_bad_arguments_are_named(self, arguments, message):
    defaults = dict(l2_norm_clip=1.0, noise_multiplier=1.0)
    with self.assertRaisesRegex(ValueError, message):
      queries.PerLayerClipSumQuery(
          [tf.TensorSpec([2])], **(defaults | arguments)
      )

  @parameterized.product(
      key=(np.zeros([8], np.int32), np.ones([8], np.int64))
  )
  def test_bad_keys_are_refused(self, key):
    state = _query([np.zeros(2)], 1.0, 1.0).initial_global_state()
    with self.assertRaisesRegex(ValueError, 'int32 array|all zeros'):
      queries.set_noise_key(state, key)

  def test_the_sampler_s_error_bounds_that_of_the_noise_that_is_drawn(self):
    self.assertEqual(queries.sampler_epsilon(0.0, num_elements=9), 0)
    for num_elements in (1, 1000, 10**6):
      for z in (0.01, 0.8, 50.0):
        query = _query([np.zeros(num_elements)], 1.0, z)
        state = query.initial_global_state()
        cells = z / float(query.grid_step(state))
        self.assertBetween(
            queries.sampler_epsilon(z, num_elements=num_elements)
            / noise.sampler_error_epsilon(num_draws=num_elements, stddev=cells),
            2, 20,
        )
    # The paper's run: 2,006 rounds of 255.8M parameters.
    self.assertLess(
        2006 * queries.sampler_epsilon(0.8, num_elements=255_800_000), 1e-7
    )

"""Tests for noise."""

import itertools
import math
import os
from unittest import mock

from absl.testing import parameterized
import mpmath
import numpy as np
from scipy import stats
import tensorflow as tf
import tensorflow_federated as tff

from tests import graphs
from tests import lattice
from tff_asr import sequential
from tff_asr.execution import multi_device
from tff_asr.execution import native
from tff_asr.privacy import chacha20
from tff_asr.privacy import keys
from tff_asr.privacy import noise
from tff_asr.privacy import numpy_ops

_KEY = keys.from_seed(0)
_SHAPES = ([5], [], [0], [3, 7], [1], [1001], [8192 * 2 + 6], [2])


def _draw(shapes, *, key=_KEY, release=0, stddev=1000.0, kernel='host'):
  return [
      tensor.numpy()
      for tensor in noise.gaussian(
          shapes,
          key=tf.constant(key),
          release=tf.constant(release, tf.int64),
          stddev=tf.constant(stddev, tf.float64),
          kernel=kernel,
      )
  ]


# One pair in 16 of these needs refinement.
_STORED = dict(shapes=[[7], [30_001], [3, 2]], stddev=2.0**36)


def _stored(kernel):
  """(key, release) -> noise, read from bytes."""

  @tff.tensorflow.computation(
      tff.TensorType(np.int32, [8]), tff.TensorType(np.int64)
  )
  def draw(key, release):
    return list(noise.gaussian(
        _STORED['shapes'], key=key, release=release,
        stddev=tf.constant(_STORED['stddev'], tf.float64), kernel=kernel,
    ))

  return tff.framework.deserialize_computation(
      tff.framework.serialize_computation(draw)
  )


def _normal(size, **kwargs):
  """Draws in units of the standard deviation."""
  stddev = kwargs.pop('stddev', 2.0**23)
  return _draw([[size]], stddev=stddev, **kwargs)[0] / stddev


def _real_pair(radius_bits, angle_bits):
  """The pair of normals, with 60 digits, of bits: (integer, number of bits)."""
  with mpmath.workdps(150):
    value, num_bits = radius_bits
    uniform = mpmath.mpf(2 * value + 1) / 2 ** (num_bits + 1)
    radius = mpmath.sqrt(-2 * mpmath.log(uniform))
    value, num_bits = angle_bits
    turns = mpmath.mpf(2 * value + 1) / 2 ** (num_bits + 1)
    return (
        radius * mpmath.cospi(2 * turns), radius * mpmath.sinpi(2 * turns)
    )


def _chosen_words():
  """Words at the borders of what the formulas tell apart, and some others."""
  generator = np.random.default_rng(0)
  word = lambda: int(generator.integers(2**64, dtype=np.uint64))
  borders = [
      0, 1, 2**30, 2**43, 2**44 - 1, 2**44, 2**50, 2**62, 2**63 - 1, 2**63,
      3 * 2**62 - 1, 3 * 2**62, 2**64 - 2**44, 2**64 - 2**44 - 1,
      2**64 - 2**30, 2**64 - 2, 2**64 - 1,
      round(math.sqrt(0.5) * 2**64), round(math.sqrt(0.125) * 2**64),
  ]
  angles = [
      0, 2**64 - 1, *(i * 2**61 + j for i in range(1, 8) for j in (-1, 0, 1)),
  ]
  pairs = [*itertools.product(borders, angles)]
  pairs += [(word() >> i % 64, word()) for i in range(2000)]
  return [np.array(words, np.uint64) for words in zip(*pairs)]


class GaussianTest(parameterized.TestCase):

  @parameterized.parameters(
      (0, 0, 0.0), (0, 0, 0.01), (1, 2**40 + 3, 1.0), (2, 2**63 - 1, 1000.25),
      (3, 1, 2.0**23), (4, 2, 2.0**30 / 3), (5, 3, 2.0**36),
  )
  def test_kernels_give_the_same_bits(self, seed, release, stddev):
    settings = dict(key=keys.from_seed(seed), release=release, stddev=stddev)
    for shape, host, tensorflow in zip(
        _SHAPES,
        _draw(_SHAPES, **settings),
        _draw(_SHAPES, kernel='tensorflow', **settings),
    ):
      self.assertEqual((host.dtype, list(host.shape)), (np.int64, shape))
      np.testing.assert_array_equal(tensorflow, host)

  def test_threads_do_not_change_bits(self):
    # Two chunks and a part of one.
    size = 600_003
    expected = _draw([[size]])[0]
    # The first draws of more, as pairs lie a half apart.
    half = (size + 1) // 2
    np.testing.assert_array_equal(_draw([[2000]])[0][:1000], expected[:1000])
    np.testing.assert_array_equal(
        _draw([[2000]])[0][1000:], expected[half : half + 1000]
    )

  @parameterized.parameters(1, 64, 65, 192)
  def test_chunks_and_blocks_do_not_change_bits(self, num_pairs):
    shapes = [[2 * num_pairs], [2 * num_pairs - 1]]
    expected = _draw(shapes)  # In one chunk, of one block.
    for chunk, block in ((64, 8192), (2**17, 64), (192, 64)):
      with (
          mock.patch.object(noise, '_CHUNK', chunk),
          mock.patch.object(noise, '_BLOCK', block),
      ):
        found = _draw(shapes)
      for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one, other, str((chunk, block)))

  @parameterized.parameters(2.0**23, 2.0**36)
  def test_the_compiled_path_gives_the_same_bits(self, stddev):
    # Chunks of several tensors, and tensors in several chunks.
    shapes = [[2**18 - 6], [3], [0], [1], [600_003], [2**18 + 17], [5]]
    expected = _draw(shapes, stddev=stddev)
    build = noise._compiled_fast_path
    with (
        mock.patch.object(noise, '_MIN_COMPILED_CHUNKS', 1),
        mock.patch.object(
            noise, '_compiled_fast_path', side_effect=build
        ) as compiled,
    ):
      found = _draw(shapes, stddev=stddev)
    compiled.assert_called_once()
    for one, other in zip(found, expected, strict=True):
      np.testing.assert_array_equal(one, other)

  def test_large_draws_are_compiled(self):
    # Eight chunks of pairs, and one element less.
    for size, num_calls in ((2**21, 1), (2**21 - 2**18, 0)):
      with mock.patch.object(
          noise, '_compiled_fast_path', wraps=noise._compiled_fast_path
      ) as compiled:
        _draw([[size]])
      self.assertEqual(compiled.call_count, num_calls)

  def test_compiling_refuses_less_exact_arithmetic(self):
    flags = '--xla_cpu_enable_fast_math=true'
    with mock.patch.dict(os.environ, XLA_FLAGS=flags):
      with self.assertRaisesRegex(ValueError, 'XLA_FLAGS.*leave it out'):
        noise._compiled_fast_path.__wrapped__()

  def test_noise_is_drawn_when_that_before_it_was_used(self):
    expected = _draw(_SHAPES)
    # Groups of up to 30 elements, or of one tensor.
    with mock.patch.object(noise, '_GROUP', 30):
      for found, whole in zip(_draw(_SHAPES), expected, strict=True):
        np.testing.assert_array_equal(found, whole)
      graph = tf.function(
          lambda key: sequential.sequential_map(
              tf.square,
              noise.gaussian(
                  _SHAPES,
                  key=key,
                  release=tf.constant(0, tf.int64),
                  stddev=tf.constant(1.0, tf.float64),
              ),
          )
      ).get_concrete_function(tf.constant(_KEY)).graph
    used = graphs.of_type(graph, 'Square')
    self.assertEqual(
        [
            len(graphs.before(draw) & {*used})
            for draw in graphs.of_type(graph, 'PyFuncStateless')
        ],
        [0, 5, 6, 7],
    )

  def test_a_stored_graph_finds_the_host_s_kernel(self):
    context = multi_device.build_sync_context()
    with tff.framework.get_context_stack().install(context):
      found = _stored('host')(_KEY, 4)
    for one, other in zip(found, _draw(**_STORED, release=4)):
      np.testing.assert_array_equal(one, other)

  def test_tff_s_worker_draws_the_same_by_its_ops_only(self):
    self.addCleanup(native.stop)
    context = native.build_sync_context(trust_network=True)
    with tff.framework.get_context_stack().install(context):
      found = _stored('tensorflow')(_KEY, 4)
      with self.assertRaisesRegex(
          ValueError, "'PyFuncStateless'.*kernel='tensorflow'"
      ):
        _stored('host')(_KEY, 4)
    for one, other in zip(found, _draw(**_STORED, release=4)):
      np.testing.assert_array_equal(one, other)

  @parameterized.named_parameters(
      ('host', 'host'), ('tensorflow', 'tensorflow')
  )
  def test_bad_arguments_are_named(self, kernel):
    for stddev in (-1.0, 2.0**36 + 1):
      with self.assertRaisesRegex(
          tf.errors.InvalidArgumentError, 'stddev of the noise'
      ):
        _draw([[3]], stddev=stddev, kernel=kernel)
    for shape in ([None], [2**32 + 1]):
      with self.assertRaisesRegex(ValueError, 'at most 2.32'):
        _draw([shape], kernel=kernel)
    with self.assertRaisesRegex(ValueError, 'kernel'):
      _draw([[3]], kernel='gpu')


class ExactnessTest(parameterized.TestCase):

  @parameterized.named_parameters(
      ('numpy', noise._in_blocks),
      ('xla', lambda *args: noise._compiled_fast_path()(*args)),
  )
  def test_the_fast_path_is_as_accurate_as_it_says(self, fast_path):
    u, v = _chosen_words()
    scale = np.float64(2.0**48)
    # As many as a compiled path takes.
    words = np.stack([np.resize(each, noise._CHUNK) for each in (u, v)])
    first, second, needs_refinement = (
        each[: len(u)] for each in fast_path(words, scale)
    )
    # In that scale only what is outside the range is told apart.
    least = np.uint64(2**44)
    inside = (u >= least) & (u < np.uint64(2**64 - 2**44))
    np.testing.assert_array_equal(inside | needs_refinement, True)
    largest = 0.0
    for i in np.flatnonzero(inside):
      # Further bits may be all zeros or all ones.
      for rest in (0, 2**200 - 1):
        real = _real_pair(
            ((int(u[i]) << 200) + rest, 264), ((int(v[i]) << 200) + rest, 264)
        )
        for value, points in zip(real, (first[i], second[i])):
          error = abs(float(value * scale - int(points))) / scale
          largest = max(largest, error - 0.5 / scale)
    self.assertLess(largest, noise._MAX_ERROR / 2)
    self.assertGreater(largest, noise._MAX_ERROR / 64)

  def test_exact_normals_have_30_digits(self):
    u, v = _chosen_words()
    generator = np.random.default_rng(1)
    further = generator.integers(2**64, size=[len(u), 8], dtype=np.uint64)
    # Where all bits are zeros but the last, and where all are ones.
    further[::50], further[7::50] = 0, 2**64 - 1
    radius = noise._radius([u, *further[:, :6].T], numpy_ops)
    direction = noise._direction(v, further[:, 6:].T, numpy_ops)
    join = lambda words: sum(
        int(word) << 64 * i for i, word in enumerate(reversed(words))
    )
    for i in range(len(u)):
      expected = _real_pair(
          (join([u[i], *further[i, :6]]), 448),
          (join([v[i], *further[i, 6:]]), 192),
      )
      for part, value in zip(direction, expected):
        with mpmath.workdps(60):
          exact = lambda pair: mpmath.mpf(pair[0][i]) + mpmath.mpf(pair[1][i])
          error = abs(exact(radius) * exact(part) - value)
          self.assertLess(float(error), noise._MAX_EXACT_ERROR)

  def test_draws_that_need_refinement_are_exact(self):
    # At this scale one pair in 16 needs refinement. Its first results are
    # thrown away.
    stddev, size = 2.0**36, 8000
    fast_path = noise._fast_path

    def damaged(*args):
      *points, needs_refinement = fast_path(*args)
      return *(each * ~needs_refinement for each in points), needs_refinement

    expected = _draw([[size]], stddev=stddev)[0].reshape([2, -1])
    with mock.patch.object(noise, '_fast_path', damaged):
      points = _draw([[size]], stddev=stddev)[0].reshape([2, -1])
    np.testing.assert_array_equal(points, expected)
    draw = lambda stream, count: chacha20.words64(
        _KEY, release=0, stream=stream, count=count
    )
    u, v = draw(0, size // 2), draw(1, size // 2)
    *_, needs_refinement = fast_path(u, v, stddev, numpy_ops)
    self.assertBetween(needs_refinement.sum(), 190, 310)
    for i in np.flatnonzero(needs_refinement):
      further = draw(2, 8 * i + 8)[8 * i :]
      bits = [
          b''.join(int(word).to_bytes(8, 'big') for word in words)
          for words in ((u[i], *further[:6]), (v[i], *further[6:]))
      ]
      real = _real_pair(*(
          (int.from_bytes(each, 'big'), 8 * len(each)) for each in bits
      ))
      self.assertEqual(
          list(points[:, i]), [int(mpmath.nint(x * stddev)) for x in real]
      )


class DistributionTest(parameterized.TestCase):

  def test_draws_are_normal(self):
    drawn = _normal(1_000_000)
    self.assertGreater(stats.kstest(drawn, 'norm').pvalue, 1e-3)
    wider = 1.02 * drawn[:200_000]
    self.assertLess(stats.kstest(wider, 'norm').pvalue, 1e-3)

  @parameterized.parameters(0.3, 1.0, 2.7)
  def test_few_cells_have_the_probabilities_of_a_rounded_normal(self, stddev):
    drawn = _draw([[1_000_000]], stddev=stddev)[0]
    last = math.floor(4 * stddev + 0.5)
    borders = np.arange(-last, last) + 0.5
    below = stats.norm.cdf(borders / stddev)
    probabilities = np.diff(below, prepend=0, append=1)
    counts = np.bincount(np.clip(drawn, -last, last) + last)
    # Of a fixed key; a new one would fail 1 time in 1,000.
    expected = probabilities * drawn.size
    self.assertGreater(stats.chisquare(counts, expected).pvalue, 1e-3)
    moved = stats.norm.cdf(borders / stddev + 0.01)
    expected = np.diff(moved, prepend=0, append=1) * drawn.size
    self.assertLess(stats.chisquare(counts, expected).pvalue, 1e-3)

  def test_no_lattice_as_that_of_tensorflow_s_normal(self):
    drawn = _normal(400_000)
    for pairs in (drawn, drawn.reshape([2, -1]).T.ravel()):
      # Some 27,000 pairs count: five standard errors, of .1443 each.
      self.assertAlmostEqual(lattice.mean_distance(pairs), 0.25, delta=0.0044)
    floats = tf.random.stateless_normal([400_000], seed=[1, 2]).numpy()
    self.assertLess(lattice.mean_distance(floats), 0.2)

  def test_tails_come_as_often_as_they_should(self):
    # With 30 leading zeros: what all U below 2^-30 give, that is all N of more
    # than 6.45 standard deviations, and others.
    fast_path, exact = noise._fast_path, noise._exact_path
    lower = lambda function: lambda u, *args: function(u >> 30, *args)
    with (
        mock.patch.object(noise, '_fast_path', lower(fast_path)),
        mock.patch.object(noise, '_exact_path', lower(exact)),
    ):
      drawn = np.abs(_normal(100_000))
    for least in (6.5, 6.7, 7.0, 7.3):
      probability = 2 * stats.norm.sf(least) * 2**30
      count = int(np.sum(drawn > least))
      # Of a fixed key; a new one would fail 1 time in 1,000.
      self.assertGreater(
          stats.binomtest(count, drawn.size, probability).pvalue, 1e-3
      )
    self.assertGreater(drawn.max(), 7.5)

  def test_streams_of_keys_releases_and_tensors_are_unrelated(self):
    size = 20_000
    streams = [
        stream / 2.0**23
        for seed in (0, 1)
        for release in (0, 1, 2**32)
        for stream in _draw(
            [[size], [size]], key=keys.from_seed(seed), release=release,
            stddev=2.0**23,
        )
    ]
    # Nor are parts of a stream, as a pair's two.
    halves = [half for stream in streams for half in np.split(stream, 2)]
    halves += [np.roll(half, 1) for half in halves]
    correlations = np.corrcoef(halves) - np.eye(len(halves))
    self.assertLess(np.abs(correlations).max(), 5 / math.sqrt(size / 2))
    squares = np.corrcoef(np.square(halves)) - np.eye(len(halves))
    self.assertLess(np.abs(squares).max(), 5 / math.sqrt(size / 2))

  def test_the_sampler_s_error_by_hand(self):
    # 4 * 2^39 * 2^-93 * (2^20 + 21 + 2^-20), and what it must be far below.
    self.assertAlmostEqual(
        noise.sampler_error_epsilon(num_draws=2.0**39, stddev=2.0**20)
        / 2.0**-32,
        1.0,
        4,
    )
    # As the privacy report says, for a grid of at least 2^-25 of the clip.
    for multiplier in (0.01, 1.0, 1000.0):
      charged = noise.sampler_error_epsilon(
          num_draws=1, stddev=multiplier * 2.0**25
      )
      self.assertLess(charged, 1.5e-20 * multiplier)

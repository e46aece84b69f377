"""Tests of tff_asr.data.shapes."""

import itertools

from absl.testing import parameterized
import numpy as np
import tensorflow as tf

from benchmarks import batches as batches_lib
from tff_asr.data import shapes as shapes_lib
from tff_asr.features import log_mel

_MAX_FRAMES = 3000


def _fill(seconds: np.ndarray, max_sec: float) -> list[np.ndarray]:
  """Batches as frames of their rows, filled to a size."""
  lengths = batches_lib.samples(seconds)
  return [
      log_mel.num_frames(lengths[rows])
      for rows in batches_lib.fill(lengths, log_mel.samples_of_seconds(max_sec))
  ]


def _common_voice_like(generator):
  for seconds in batches_lib.common_voice_like(generator, 200):
    yield from _fill(seconds, 120.0)


def _librispeech_like(generator):
  for seconds in batches_lib.librispeech_like(generator, 20):
    yield from _fill(seconds, 360.0)


def _all_equal(generator):
  for _ in range(100):
    yield from _fill(np.full(generator.integers(1, 80), 7.31), 120.0)


def _one_long_among_short(generator):
  for _ in range(100):
    seconds = np.full(generator.integers(1, 80), 2.0)
    seconds[0] = 29.9
    yield from _fill(seconds, 120.0)


def _uniform(generator):
  for _ in range(25):
    count = generator.integers(1, 80)
    yield from _fill(generator.uniform(1, 30, count), 120.0)


def _few_of_all_scales(generator):
  for _ in range(100):
    seconds = np.exp(generator.uniform(0, np.log(30), generator.integers(1, 9)))
    yield from _fill(seconds, 120.0)


def _costs_of_all_covers(lengths, shapes) -> list[int]:
  """Cost of each way to cut rows into pieces, each in its cheapest shape."""
  totals = []
  inner = range(1, len(lengths))
  for number in range(len(lengths)):
    for cuts in itertools.combinations(inner, number):
      bounds = [0, *cuts, len(lengths)]
      total = 0
      for start, end in itertools.pairwise(bounds):
        total += min(
            (
                count * frames + shapes.launch
                for count, frames in shapes.sizes
                if count >= end - start and frames >= lengths[end - 1]
            ),
            default=10**9,
        )
      totals.append(total)
  return totals


@tf.function(autograph=False, reduce_retracing=True)
def _cover(lengths, shapes):
  return shapes_lib.cover(lengths, shapes)


def _walk(lengths, shapes) -> list[tuple[int, int, tuple[int, int]]]:
  """(start, end, shape) of each piece, in the order of the rows."""
  first, numbers = _cover(tf.constant(lengths, tf.int32), shapes)
  pieces, end = [], len(lengths)
  while end:
    start = int(first[end])
    pieces.append((start, end, shapes.sizes[int(numbers[end])]))
    end = start
  return pieces[::-1]


class CoverTest(parameterized.TestCase):

  @parameterized.parameters(
      # Two pieces: 2 x 10 + 5 and 1 x 20 + 5 are 50. One: 3 x 20 + 5 is 65.
      (5, [(0, 2, (2, 10)), (2, 3, (1, 20))]),
      # Two: 60 and 60. One: 100.
      (40, [(0, 3, (3, 20))]),
  )
  def test_by_hand(self, launch, expected):
    shapes = shapes_lib.Shapes(((1, 20), (2, 10), (3, 20)), launch)
    self.assertEqual(_walk([3, 9, 18], shapes), expected)

  def test_is_the_cheapest_of_all_covers_and_as_its_twin(self):
    generator = np.random.default_rng(2)
    for _ in range(3):
      sizes = generator.integers([1, 20], [7, 100], [6, 2]).tolist()
      shapes = shapes_lib.Shapes(
          (*map(tuple, sizes), (1, 100)), int(generator.integers(0, 200))
      )
      for count in (1, 2, 5, 9, 9):
        lengths = np.sort(generator.integers(1, 101, count))
        pieces = _walk(lengths, shapes)
        # Each row once, in order, in a shape that holds it.
        ends = [0, *(end for _, end, _ in pieces)]
        self.assertEqual([start for start, _, _ in pieces], ends[:-1])
        self.assertEqual(ends[-1], count)
        for start, end, (utterances, frames) in pieces:
          self.assertLessEqual(end - start, utterances)
          self.assertLessEqual(lengths[end - 1], frames)
        cost = sum(
            utterances * frames + shapes.launch
            for _, _, (utterances, frames) in pieces
        )
        self.assertEqual(cost, min(_costs_of_all_covers(lengths, shapes)))
        self.assertEqual(cost, shapes_lib._covers([lengths], shapes)[1])

  def test_pieces_are_the_batch_and_have_the_shapes(self):
    lengths = [3, 9, 18, 19]
    features = np.arange(4 * 25 * 2, dtype=np.float32).reshape(4, 25, 2)
    batch = dict(
        example_weights=tf.constant([1.0, 0.0, 1.0, 1.0]),
        feature_lengths=tf.constant(lengths),
        features=tf.constant(features),
        label_lengths=tf.constant([1, 0, 2, 3]),
        labels=tf.constant([[1, 0, 0], [0, 0, 0], [2, 3, 0], [4, 5, 6]]),
        seed=tf.constant([1, 2]),
    )
    shapes = shapes_lib.Shapes(((3, 12), (2, 40)), 1)
    pieces = []

    def keep(total, piece):
      pieces.append({key: value.numpy() for key, value in piece.items()})
      return total + tf.reduce_sum(piece['example_weights'])

    total = shapes_lib.sum_over_pieces(
        keep,
        batch,
        shapes,
        output_lengths=lambda frames: frames // 6,
        zeros=tf.zeros([]),
    )
    self.assertEqual(float(total), 3)
    longer, shorter = pieces
    self.assertEqual(shorter['features'].shape, (3, 12, 2))
    np.testing.assert_array_equal(
        shorter['features'][:2], features[:2, :12]
    )
    self.assertFalse(np.any(shorter['features'][2]))
    np.testing.assert_array_equal(shorter['feature_lengths'], [3, 9, 8])
    np.testing.assert_array_equal(shorter['example_weights'], [1, 0, 0])
    np.testing.assert_array_equal(shorter['label_lengths'], [1, 0, 0])
    np.testing.assert_array_equal(
        shorter['labels'], [[1, 0], [0, 0], [0, 0]]
    )
    self.assertEqual(longer['features'].shape, (2, 40, 2))
    np.testing.assert_array_equal(longer['features'][:, :25], features[2:])
    self.assertFalse(np.any(longer['features'][:, 25:]))
    np.testing.assert_array_equal(longer['feature_lengths'], [18, 19])
    np.testing.assert_array_equal(
        longer['labels'], [[2, 3, 0, 0, 0, 0], [4, 5, 6, 0, 0, 0]]
    )
    self.assertFalse(np.array_equal(longer['seed'], shorter['seed']))


class FitTest(parameterized.TestCase):

  @parameterized.parameters(
      _common_voice_like,
      _librispeech_like,
      _all_equal,
      _one_long_among_short,
      _uniform,
      _few_of_all_scales,
  )
  def test_two_passes_in_16_shapes_of_little_padding(self, lengths):
    one, other = (
        list(lengths(np.random.default_rng(seed))) for seed in (1, 2)
    )
    shapes = shapes_lib.fit(one, max_frames=_MAX_FRAMES)
    self.assertLessEqual(len(shapes.sizes), 16)
    # Whatever comes can be covered.
    self.assertGreaterEqual(shapes.max_frames, _MAX_FRAMES)
    for batches in (one, other):
      area, num_pieces = shapes_lib.area(batches, shapes)
      self.assertLessEqual(area, 1.15)
      self.assertLess(num_pieces, 2.5)

  def test_area_by_hand(self):
    # 2 x 10 + 1 x 20 of 3 x 18 frames, and 1 x 20 of 1 x 15, in 3 pieces.
    shapes = shapes_lib.Shapes(((1, 20), (2, 10)), 5)
    area, num_pieces = shapes_lib.area(
        [np.array([3, 9, 18]), np.array([15])], shapes
    )
    self.assertAlmostEqual(area, 60 / 69)
    self.assertEqual(num_pieces, 1.5)


class ArgumentsTest(parameterized.TestCase):

  @parameterized.parameters(
      ([], 1, 'at least one shape'),
      ([(0, 5)], 1, 'utterances'),
      ([(1, -5)], 1, 'frames'),
      ([(1, 5)], -1, 'launch'),
  )
  def test_bad_arguments_are_named(self, sizes, launch, message):
    with self.assertRaisesRegex(ValueError, message):
      shapes_lib.Shapes(sizes, launch)

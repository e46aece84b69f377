from absl.testing import absltest
from absl.testing import parameterized
import numpy as np
import tensorflow as tf

from tff_asr.models import positions


def _cape(
    lengths, size: int, *, dim=8, frame_sec=0.03, max_shift_sec=30.0, seed=None
) -> np.ndarray:
  return positions.cape(
      tf.constant(lengths),
      tf.constant(size),
      dim=dim,
      frame_sec=frame_sec,
      max_shift_sec=max_shift_sec,
      seed=None if seed is None else tf.constant(seed),
  ).numpy()


def _products(embedding: np.ndarray) -> np.ndarray:
  """Dot products of all pairs of frames: [S, S]."""
  return embedding @ embedding.T


class CapeTest(parameterized.TestCase):

  def test_by_hand(self):
    # 3 frames of .1 s centred on 0: -.1, 0 and .1 s. D = 4 has frequencies 30
    # and 30 / 100, so angles 3 and .03.
    s, c, s2, c2 = np.sin(3), np.cos(3), np.sin(0.03), np.cos(0.03)
    np.testing.assert_allclose(
        _cape([3], 3, dim=4, frame_sec=0.1)[0],
        [[-s, c, -s2, c2], [0, 1, 0, 1], [s, c, s2, c2]],
        atol=1e-6,
    )

  @parameterized.product(seed=(None, (1, 2)))
  def test_padding_is_zero_and_changes_nothing_before_it(self, seed):
    embedding = _cape([4, 0, 7], 9, seed=seed)
    shorter = _cape([4, 0, 7], 7, seed=seed)
    for row, other, length in zip(embedding, shorter, [4, 0, 7]):
      np.testing.assert_array_equal(row[length:], 0)
      np.testing.assert_allclose(row[:length], other[:length], atol=1e-6)

  def test_a_shift_keeps_products_of_frames(self):
    # sin a sin b + cos a cos b = cos(a - b): only differences count, whatever
    # the utterance's shift.
    shifted = _cape([20, 20], 20, seed=(1, 2))
    self.assertGreater(np.abs(shifted[0] - shifted[1]).max(), 0.1)
    products = _products(_cape([20], 20)[0])
    for row in shifted:
      self.assertGreater(np.abs(row - _cape([20], 20)[0]).max(), 0.1)
      # Angles of up to 900 radians leave float32 some 6e-5.
      np.testing.assert_allclose(_products(row), products, atol=1e-3)

  def test_one_utterance_shifts_as_a_whole_within_the_limit(self):
    # Read off the slowest pair: its angle, 30 * 10000^(-6 / 8) * seconds, stays
    # under half a turn.
    slowest = 30 * 10000 ** (-6 / 8)
    embedding = _cape([5] * 500, 5, max_shift_sec=2.0, seed=(3, 4))
    angles = np.arctan2(embedding[..., 6], embedding[..., 7])
    shifts = angles / slowest - (np.arange(5) - 2) * 0.03
    np.testing.assert_allclose(shifts, shifts[:, :1].repeat(5, 1), atol=1e-4)
    self.assertLessEqual(np.abs(shifts).max(), 2.0 + 1e-4)
    # Uniform: of 500 draws the largest is nearly at the limit on both sides.
    self.assertGreater(shifts.max(), 1.9)
    self.assertLess(shifts.min(), -1.9)
    self.assertGreater(len(np.unique(shifts[:, 0])), 450)


class SinusoidalTest(absltest.TestCase):

  def test_by_hand(self):
    # D = 4 has frequencies 1 and 10000^(-1/2) = .01. The third is padding.
    np.testing.assert_allclose(
        positions.sinusoidal(tf.constant([2]), tf.constant(3), dim=4)[0],
        [
            [0, 1, 0, 1],
            [np.sin(1), np.cos(1), np.sin(0.01), np.cos(0.01)],
            [0, 0, 0, 0],
        ],
        atol=1e-6,
    )

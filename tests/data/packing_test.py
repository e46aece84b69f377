"""Tests of tff_asr.data.packing."""

from absl.testing import absltest
from absl.testing import parameterized
import numpy as np
import tensorflow as tf

from tff_asr.data import packing


class PackingTest(parameterized.TestCase):

  def librispeech_like(self) -> np.ndarray:
    """Frames: three quarters of 12 to 17 s, the rest of 1.4 to 14 s."""
    generator = np.random.default_rng(9)
    usual = generator.normal(14.5, 1.3, 96)
    short = generator.uniform(1.4, 14, 32)
    return np.sort((np.concatenate([usual, short]) * 100).astype(np.int32))

  @parameterized.product(max_sec=(40, 120, 360), max_padding=(0.05, 0.15, 1.0))
  def test_batches_are_greedy_within_both_bounds(self, max_sec, max_padding):
    lengths = self.librispeech_like()
    starts = packing.batch_starts(
        tf.constant(lengths), 100 * max_sec, max_padding=max_padding
    ).numpy()

    def fits(batch):
      padded = len(batch) * batch[-1]
      share = 1 - batch.sum() / padded
      return padded <= 100 * max_sec and share <= max_padding + 1e-6

    bounds = [*starts, len(lengths)]
    self.assertEqual(bounds[0], 0)
    padded = 0
    for start, end in zip(bounds, bounds[1:]):
      self.assertTrue(fits(lengths[start:end]))
      if end < len(lengths):
        self.assertFalse(fits(lengths[start : end + 1]))
      padded += (end - start) * lengths[end - 1]
    if max_padding < 1:
      self.assertLess(1 - lengths.sum() / padded, max_padding)

  def test_an_utterance_beyond_the_bound_is_a_batch_of_its_own(self):
    starts = packing.batch_starts(
        tf.constant([10, 10, 50, 60]), 30, max_padding=0.5
    )
    self.assertEqual(starts.numpy().tolist(), [0, 2, 3])


if __name__ == '__main__':
  absltest.main()

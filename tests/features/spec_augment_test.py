from absl.testing import parameterized
import numpy as np
import scipy.stats
import tensorflow as tf

from tff_asr.features import spec_augment

_NUM_BINS = 80


def _masked(lengths, *, num_bins: int = _NUM_BINS, **options) -> np.ndarray:
  """Bool [B, T, F]: where features of ones were set to 0."""
  augment = spec_augment.build(**options)
  features = tf.ones([len(lengths), max(lengths), num_bins])
  outputs = augment(features, tf.constant(lengths), tf.constant([3, 7])).numpy()
  np.testing.assert_array_equal(np.isin(outputs, [0, 1]), True)
  return outputs == 0


def _runs(masked: np.ndarray) -> list[int]:
  """Widths of the runs of True in a vector."""
  edges = np.flatnonzero(np.diff(np.concatenate([[0], masked, [0]])))
  return list(edges[1::2] - edges[::2])


class SpecAugmentTest(parameterized.TestCase):

  def test_counts_and_widths_stay_within_the_limits(self):
    masked = _masked(
        [300] * 200,
        num_freq_masks=2,
        max_freq_width=10,
        num_time_masks=3,
        max_time_width=20,
    )
    frames, bins = masked.all(axis=2), masked.all(axis=1)
    # Masks are whole rows and columns.
    np.testing.assert_array_equal(
        masked, frames[:, :, np.newaxis] | bins[:, np.newaxis, :]
    )
    for vectors, count, limit in ((frames, 3, 20), (bins, 2, 10)):
      self.assertLessEqual(max(len(_runs(vector)) for vector in vectors), count)
      # Widths are under the limit; masks may touch or overlap.
      totals = vectors.sum(axis=1)
      self.assertLessEqual(totals.max(), count * (limit - 1))
      self.assertGreater(totals.max(), limit - 1)

  @parameterized.named_parameters(
      ('time', dict(num_freq_masks=0, num_time_masks=1, max_time_width=20), 2),
      ('freq', dict(num_freq_masks=1, num_time_masks=0, max_freq_width=20), 1),
  )
  def test_widths_and_starts_are_uniform(self, options, axis):
    # Seeded, so it always does the same; new seeds would fail 1 time in 5,000.
    masked = _masked([400] * 2000, **options).all(axis=axis)
    widths = masked.sum(axis=1)
    counts = np.bincount(widths, minlength=20)
    self.assertLen(counts, 20)  # Widths 0 to 19.
    self.assertGreater(scipy.stats.chisquare(counts).pvalue, 1e-4)
    # A start is uniform in [0, size - width), so its place in there is too.
    rows = np.flatnonzero(widths > 0)
    size = masked.shape[1]
    starts = masked[rows].argmax(axis=1)
    places = (starts + 0.5) / (size - widths[rows])
    # Of some 1900 places; on 62 starts or more they are a 62nd apart.
    self.assertLess(scipy.stats.kstest(places, 'uniform').statistic, 0.06)
    # Masks reach the first and the last but one; the last stays, as published.
    self.assertTrue(masked[:, 0].any())
    self.assertTrue(masked[:, -2].any())
    self.assertFalse(masked[:, -1].any())

  @parameterized.parameters((100, 9), (55, 4), (20, 1), (10, 0), (9, 0), (1, 0))
  def test_a_time_mask_is_shorter_than_its_share(self, num_frames, widest):
    # Under a tenth of the frames, rounded down: of 100, widths 0 to 9.
    masked = _masked([num_frames] * 100, num_freq_masks=0, num_time_masks=1)
    widths = masked.all(axis=2).sum(axis=1)
    self.assertEqual(widths.max(), widest)

  def test_a_share_in_percent_is_not_a_frame_short(self):
    # 13 % of 900 are 117, of which a mask may have 116; in float32 116.99999.
    masked = _masked(
        [900] * 2000,
        num_bins=1,
        num_freq_masks=0,
        num_time_masks=1,
        max_time_width=900,
        max_time_share=0.13,
    )
    self.assertEqual(masked.all(axis=2).sum(axis=1).max(), 116)

  def test_masks_of_a_batch_lie_in_each_utterance(self):
    lengths = [30, 120, 0, 30]
    # A draw reaches frame 118 with probability .018. Seeded; of 600 new ones
    # none would 1 time in 50,000.
    masked = _masked(
        lengths * 600,
        num_bins=3,
        num_freq_masks=0,
        num_time_masks=2,
        max_time_width=15,
        max_time_share=0.5,
    )[..., 0]
    masked = masked.reshape(600, 4, 120)
    for row, length in zip(np.moveaxis(masked, 1, 0), lengths):
      # Padding is never masked, nor is the last frame; the one before it is.
      self.assertFalse(row[:, max(0, length - 1) :].any())
      if length:
        self.assertTrue(row[:, length - 2].any())

  def test_no_two_draws_share_a_stream(self):
    # A square, on which equal draws would mask both axes alike. One mask has
    # some 700 equally likely widths and starts.
    augment = tf.function(
        spec_augment.build(
            num_freq_masks=1,
            num_time_masks=1,
            max_freq_width=40,
            max_time_width=40,
            max_time_share=1.0,
        )
    )
    seeds = ([3, 4], [3, 5], [4, 4], [4, 3])
    rows = []
    for seed in seeds:
      # Eight utterances of a batch.
      args = (tf.ones([8, 80, 80]), tf.fill([8], 80), tf.constant(seed))
      masked = augment(*args).numpy() == 0
      np.testing.assert_array_equal(masked, augment(*args).numpy() == 0)
      rows += [*masked.all(axis=2), *masked.all(axis=1)]
    widths = [(row.sum(), row.argmax()) for row in rows if row.any()]
    # Of 64 draws, 3 pairs or so are alike by chance; seeded.
    self.assertGreater(len(set(widths)), len(widths) - 8)

  def test_unmasked_features_are_unchanged(self):
    features = tf.random.stateless_normal([1, 150, _NUM_BINS], [1, 2]).numpy()
    augment = spec_augment.build()
    outputs = augment(features, tf.constant([150]), tf.constant([3, 4])).numpy()
    kept = outputs != 0
    self.assertGreater(kept.mean(), 0.1)
    np.testing.assert_array_equal(outputs[kept], features[kept])

  @parameterized.named_parameters(
      ('no_masks', dict(num_freq_masks=0, num_time_masks=0)),
      ('no_widths', dict(max_freq_width=0, max_time_width=0)),
      ('no_share_nor_freq', dict(max_time_share=0.0, num_freq_masks=0)),
  )
  def test_nothing_allowed_masks_nothing(self, options):
    self.assertFalse(_masked([100] * 5, **options).any())

  @parameterized.parameters((0, _NUM_BINS), (20, 4))
  def test_masks_wider_than_the_features(self, size, num_bins):
    masked = _masked([size], num_bins=num_bins, max_freq_width=500)
    self.assertEqual(masked.shape, (1, size, num_bins))

  @parameterized.parameters(
      'num_freq_masks', 'max_freq_width', 'num_time_masks', 'max_time_width',
      'max_time_share',
  )
  def test_bad_arguments_are_named(self, name):
    for value in (-1, 1.5):
      with self.assertRaisesRegex(ValueError, name):
        spec_augment.build(**{name: value})

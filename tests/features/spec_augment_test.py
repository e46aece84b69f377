from absl.testing import absltest
from absl.testing import parameterized
import numpy as np
import scipy.stats
import tensorflow as tf

from tff_asr.features import spec_augment

_NUM_BINS = 80


def _masked(num_frames: int, *, num_seeds: int, **options) -> np.ndarray:
  """Bool [num_seeds, T, F]: where features of ones were set to 0."""
  augment = _build(**options)

  @tf.function
  def run(seeds):
    features = tf.ones([num_frames, _NUM_BINS])
    return tf.map_fn(
        lambda seed: augment(features, seed),
        seeds,
        fn_output_signature=tf.float32,
    )

  seeds = np.stack([np.arange(num_seeds), [7] * num_seeds], axis=1)
  outputs = run(seeds).numpy()
  np.testing.assert_array_equal(np.isin(outputs, [0, 1]), True)
  return outputs == 0


def _runs(masked: np.ndarray) -> list[int]:
  """Widths of the runs of True in a vector."""
  edges = np.flatnonzero(np.diff(np.concatenate([[0], masked, [0]])))
  return list(edges[1::2] - edges[::2])


def _build(**options):
  """The augmentation of one utterance [T, F], as a batch of one."""
  augment = spec_augment.build(**options)
  return lambda features, seed: augment(
      features[tf.newaxis], tf.shape(features)[:1], seed
  )[0]


class SpecAugmentTest(parameterized.TestCase):

  def test_masks_are_whole_rows_and_columns(self):
    masked = _masked(200, num_seeds=20)
    frames = masked.all(axis=2)
    bins = masked.all(axis=1)
    np.testing.assert_array_equal(
        masked, frames[:, :, np.newaxis] | bins[:, np.newaxis, :]
    )
    self.assertTrue(frames.any())
    self.assertTrue(bins.any())

  def test_counts_and_widths_stay_within_the_limits(self):
    masked = _masked(
        300,
        num_seeds=200,
        num_freq_masks=2,
        max_freq_width=10,
        num_time_masks=3,
        max_time_width=20,
    )
    frames, bins = masked.all(axis=2), masked.all(axis=1)
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
    masked = _masked(400, num_seeds=2000, **options).all(axis=axis)
    widths = masked.sum(axis=1)
    counts = np.bincount(widths, minlength=20)
    self.assertLen(counts, 20)  # Widths 0 to 19.
    self.assertGreater(scipy.stats.chisquare(counts).pvalue, 1e-4)
    # A start is uniform in [0, size - width], so its place in there is too.
    rows = np.flatnonzero(widths > 0)
    size = masked.shape[1]
    starts = masked[rows].argmax(axis=1)
    places = (starts + 0.5) / (size - widths[rows] + 1)
    # Of some 1900 places; on 62 starts or more they are a 62nd apart.
    self.assertLess(scipy.stats.kstest(places, 'uniform').statistic, 0.06)
    # Masks reach both ends and never leave a part outside.
    self.assertTrue(masked[:, 0].any())
    self.assertTrue(masked[:, -1].any())

  @parameterized.parameters((100, 9), (55, 4), (20, 1), (10, 0), (9, 0), (1, 0))
  def test_a_time_mask_is_shorter_than_its_share(self, num_frames, widest):
    # Under a tenth of the frames, rounded down: of 100, widths 0 to 9.
    masked = _masked(
        num_frames, num_seeds=100, num_freq_masks=0, num_time_masks=1
    )
    widths = masked.all(axis=2).sum(axis=1)
    self.assertEqual(widths.max(), widest)

  def test_masks_of_a_batch_lie_in_each_utterance_and_differ(self):
    lengths = [30, 120, 0, 30]
    augment = spec_augment.build(
        num_freq_masks=0,
        num_time_masks=2,
        max_time_width=15,
        max_time_share=0.5,
    )

    @tf.function
    def run(seeds):
      return tf.map_fn(
          lambda seed: augment(
              tf.ones([4, 120, 3]), tf.constant(lengths), seed
          ),
          seeds,
          fn_output_signature=tf.float32,
      )

    # A draw reaches frame 119 with probability .018. Seeded; of 600 new ones
    # none would 1 time in 50,000.
    seeds = np.stack([np.arange(600), [9] * 600], axis=1)
    masked = run(seeds).numpy()[..., 0] == 0
    for row, length in zip(np.moveaxis(masked, 1, 0), lengths):
      # Padding is never masked, and the last frame of an utterance is.
      self.assertFalse(row[:, length:].any())
      if length:
        self.assertTrue(row[:, length - 1].any())
    self.assertFalse(np.array_equal(masked[:, 0], masked[:, 3]))

  def test_the_same_seed_gives_the_same_masks_and_others_differ(self):
    augment = _build()
    features = tf.random.stateless_normal([200, _NUM_BINS], [1, 2])
    first = augment(features, tf.constant([3, 4]))
    np.testing.assert_array_equal(first, augment(features, tf.constant([3, 4])))
    np.testing.assert_array_equal(
        first, tf.function(augment)(features, tf.constant([3, 4]))
    )
    for other in ([3, 5], [4, 4], [4, 3]):
      changed = augment(features, tf.constant(other))
      self.assertFalse(np.array_equal(first, changed))

  def test_time_and_frequency_masks_do_not_share_their_draws(self):
    # On a square, equal draws would give the same mask on both axes.
    masked = _masked(
        _NUM_BINS,
        num_seeds=50,
        num_freq_masks=1,
        num_time_masks=1,
        max_freq_width=40,
        max_time_width=40,
        max_time_share=1.0,
    )
    frames, bins = masked.all(axis=2), masked.all(axis=1)
    equal = [np.array_equal(a, b) for a, b in zip(frames, bins)]
    self.assertLess(sum(equal), 10)

  def test_what_is_not_masked_is_unchanged(self):
    features = tf.random.stateless_normal([150, _NUM_BINS], [1, 2]).numpy()
    outputs = _build()(features, tf.constant([3, 4])).numpy()
    kept = outputs != 0
    self.assertGreater(kept.mean(), 0.1)
    np.testing.assert_array_equal(outputs[kept], features[kept])

  @parameterized.named_parameters(
      ('num_freq_masks', dict(num_freq_masks=6)),
      ('max_freq_width', dict(max_freq_width=70)),
      ('num_time_masks', dict(num_time_masks=40)),
      ('max_time_width', dict(max_time_width=2)),
      ('max_time_share', dict(max_time_share=0.01)),
  )
  def test_each_option_changes_the_result(self, options):
    augment = _build()
    changed = _build(**options)
    features = tf.ones([600, _NUM_BINS])
    seed = tf.constant([3, 4])
    self.assertFalse(
        np.array_equal(augment(features, seed), changed(features, seed))
    )

  @parameterized.named_parameters(
      ('no_masks', dict(num_freq_masks=0, num_time_masks=0)),
      ('no_widths', dict(max_freq_width=0, max_time_width=0)),
      ('no_share_nor_freq', dict(max_time_share=0.0, num_freq_masks=0)),
  )
  def test_nothing_allowed_masks_nothing(self, options):
    self.assertFalse(_masked(100, num_seeds=5, **options).any())

  def test_no_frames_stay_no_frames(self):
    augment = _build()
    outputs = augment(tf.zeros([0, _NUM_BINS]), tf.constant([1, 2]))
    self.assertEqual(outputs.shape, [0, _NUM_BINS])

  def test_a_mask_wider_than_the_bins_is_cut_to_them(self):
    outputs = _build(max_freq_width=500)(
        tf.ones([20, 4]), tf.constant([1, 2])
    )
    self.assertEqual(outputs.shape, [20, 4])

  @parameterized.parameters(
      'num_freq_masks', 'max_freq_width', 'num_time_masks', 'max_time_width',
      'max_time_share',
  )
  def test_bad_arguments_are_named(self, name):
    for value in (-1, 1.5):
      with self.assertRaisesRegex(ValueError, name):
        spec_augment.build(**{name: value})


if __name__ == '__main__':
  absltest.main()

"""Tests of tff_asr.models.{best_rq,quantizer} and features.span_masks."""

from absl.testing import parameterized
import numpy as np
import tensorflow as tf

from tests import reference_ssl
from tests.models import calls
from tff_asr.features import span_masks
from tff_asr.models import best_rq
from tff_asr.models import conformer
from tff_asr.models import quantizer as quantizer_lib
from tff_asr.models import transformer

_BINS = 6
_features = calls.features


def _quantizer(**options) -> quantizer_lib.RandomProjectionQuantizer:
  return quantizer_lib.RandomProjectionQuantizer(
      **(dict(num_codes=31, code_dim=4, feature_dim=_BINS) | options)
  )


def _encoder(**options):
  sizes = dict(
      num_blocks=1,
      dim=8,
      mlp_dim=8,
      num_heads=2,
      num_groups=2,
      front_channels=2,
      feature_dim=_BINS,
  )
  return conformer.build(**(sizes | options))


def _model(**options) -> best_rq.BestRqModel:
  settings = dict(encoder=_encoder(), quantizer=_quantizer(), start_prob=0.05)
  return best_rq.build(**(settings | options))


def _seeds(*numbers: int) -> tf.Tensor:
  return tf.constant([[number, 7] for number in numbers])


class SpanMasksTest(parameterized.TestCase):

  def test_share_of_masked_frames_is_that_of_the_probability(self):
    # A frame is masked unless none of the 40 up to it starts: 1 - .99^40 =
    # .331; the first 39 have fewer. 200 utterances of 500 frames; spans are
    # some 1000, stddev .01: seeded, a new seed would fail 1 time in 10^4.
    is_masked = span_masks.draw(
        tf.fill([200], 500),
        tf.constant(500),
        _seeds(*range(200)),
        start_prob=0.01,
        width=40,
    ).numpy()
    self.assertAlmostEqual(
        is_masked[:, 39:].mean(), 1 - 0.99**40, delta=0.04
    )
    # Frame t is masked with probability 1 - .99^(t + 1).
    self.assertAlmostEqual(is_masked[:, 0].mean(), 0.01, delta=0.03)

  def test_spans_have_their_width_and_end_with_the_utterance(self):
    lengths = [100, 37, 0, 63]
    is_masked = span_masks.draw(
        tf.constant(lengths),
        tf.constant(100),
        _seeds(*range(4)),
        start_prob=0.02,
        width=7,
    ).numpy()
    self.assertTrue(is_masked.any(axis=1)[[0, 1, 3]].all())
    for row, length in zip(is_masked, lengths):
      self.assertFalse(row[length:].any())
      edges = np.flatnonzero(np.diff(np.pad(row, 1).astype(int)))
      for start, end in edges.reshape([-1, 2]):
        self.assertTrue(end - start >= 7 or end == length, (start, end))

  def test_masked_frames_hold_noise_and_others_their_features(self):
    features = 5 + _features(20, 300, _BINS)
    is_masked = np.zeros([20, 300], bool)
    is_masked[:, 100:200] = True
    filled = span_masks.replace_by_noise(
        tf.constant(features), is_masked, _seeds(*range(20)), noise_stddev=0.1
    ).numpy()
    np.testing.assert_array_equal(filled[~is_masked], features[~is_masked])
    # 12,000 values: stddev of the mean .0009, of the stddev .00065.
    self.assertAlmostEqual(filled[is_masked].mean(), 0, delta=0.005)
    self.assertAlmostEqual(filled[is_masked].std(), 0.1, delta=0.004)
    # Another value in each place, except a few equal float32.
    self.assertGreater(np.unique(filled[is_masked]).size, 11_900)


class QuantizerTest(parameterized.TestCase):

  @parameterized.parameters(3, 4, 17, 40)
  def test_agrees_with_the_numpy_twin(self, num_frames):
    quantizer = _quantizer(num_stacked=3)
    features = 2 + 3 * _features(num_frames, _BINS)
    expected = reference_ssl.labels(
        features,
        quantizer.projection.numpy(),
        quantizer.codes.numpy(),
        num_stacked=3,
    )
    labels = quantizer.labels(
        tf.constant(features[np.newaxis]), tf.constant([num_frames])
    )
    np.testing.assert_array_equal(labels[0], expected)

  def test_matrix_and_codes_are_as_described(self):
    quantizer = quantizer_lib.RandomProjectionQuantizer()
    # Xavier: uniform in +- sqrt(6 / (4 * 80 + 16)) = .1336.
    matrix = quantizer.projection.numpy()
    self.assertEqual(matrix.shape, (320, 16))
    self.assertBetween(np.abs(matrix).max(), 0.133, 0.1337)
    codes = quantizer.codes.numpy()
    self.assertEqual(codes.shape, (8192, 16))
    np.testing.assert_allclose(np.linalg.norm(codes, axis=1), 1, rtol=1e-5)
    self.assertLess(np.abs(codes.mean(axis=0)).max(), 0.02)

  def test_perplexity_by_hand(self):
    for counts, expected in (
        ([0, 0, 0], 1.0),
        ([5, 0, 0], 1.0),
        ([2, 2, 2], 3.0),
        ([1, 0, 1], 2.0),
        # exp(3/4 ln(4/3) + 1/4 ln 4) = exp(.21576 + .34657).
        ([3, 1], 1.75477),
    ):
      self.assertAlmostEqual(
          float(quantizer_lib.perplexity(tf.constant(counts))),
          expected,
          places=4,
      )


class BestRqTest(parameterized.TestCase):

  def test_loss_is_the_mean_over_masked_frames_by_hand(self):
    # Two codes. Frame 0: scores (0, ln 3), so P(1) = 3/4; frame 2: P(0) = 1/2.
    logits = tf.constant([[[0, np.log(3.0)], [9, 0], [1, 1]], [[0, 0]] * 3])
    masked = best_rq.Masked(
        features=None,
        feature_lengths=None,
        labels=tf.constant([[1, 1, 0], [0, 0, 0]]),
        is_masked=tf.constant([[True, False, True], [False] * 3]),
    )
    expected = -(np.log(0.75) + np.log(0.5)) / 2
    np.testing.assert_allclose(
        best_rq.loss(tf.cast(logits, tf.float32), masked),
        [expected, 0],
        rtol=1e-6,
    )
    # Ties go to the first label: frame 0 is 1, frame 2 is 0, both right.
    counts = best_rq.count(tf.cast(logits, tf.float32), masked)
    self.assertEqual(
        [float(counts.masked), float(counts.correct)], [2.0, 2.0]
    )
    np.testing.assert_array_equal(counts.labels, [1, 1])
    np.testing.assert_array_equal(counts.predictions, [1, 1])

  def test_a_frame_is_masked_where_all_its_features_are_hidden(self):
    # Spans of 5 frames: with its start at frame t, those of whole fours.
    model = _model(span_sec=0.05, start_prob=0.02)
    features = tf.ones([30, 43, _BINS]) * 7
    masked = model.mask(features, tf.fill([30], 42), _seeds(*range(30)))
    hidden = np.any(masked.features.numpy() != 7, axis=-1)
    expected = hidden[:, :40].reshape([30, 10, 4]).all(axis=-1)
    np.testing.assert_array_equal(masked.is_masked, expected)
    self.assertTrue(expected.any())
    self.assertFalse(hidden[:, 42:].any())
    # Some frames have hidden features and are not masked themselves.
    self.assertTrue(
        (hidden[:, :40].reshape([30, 10, 4]).any(axis=-1) & ~expected).any()
    )

  @parameterized.parameters(0.0, 1e3, np.nan)
  def test_padding_and_the_batch_change_no_draw_label_or_loss(self, padding):
    model = _model()
    weights = model.initialize(tf.constant([1, 2]))
    features = _features(3, 80, _BINS)
    lengths = [80, 50, 31]
    for row, length in zip(features, lengths):
      row[length:] = padding

    def look(rows, size):
      masked = model.mask(
          tf.gather(features, rows)[:, :size],
          tf.gather(lengths, rows),
          tf.gather(_seeds(1, 2, 3), rows),
      )
      return masked, model.masked_loss(weights, masked).numpy()

    whole, losses = look([0, 1, 2], 80)
    self.assertTrue((losses > 0).all())
    for row, length in enumerate(lengths):
      alone, loss = look([row], length)
      np.testing.assert_allclose(loss, losses[row], rtol=1e-5)
      for name, size in (
          ('features', length), ('labels', length // 4),
          ('is_masked', length // 4),
      ):
        np.testing.assert_array_equal(
            getattr(alone, name)[0, :size], getattr(whole, name)[row, :size]
        )

  def test_labels_are_of_what_is_hidden_and_not_of_the_noise(self):
    model = _model()
    features = tf.constant(_features(2, 60, _BINS))
    lengths = tf.constant([60, 44])
    one = model.mask(features, lengths, _seeds(1, 2))
    other = model.mask(features, lengths, _seeds(3, 4))
    np.testing.assert_array_equal(one.labels, other.labels)
    self.assertFalse(np.array_equal(one.features, other.features))

  def test_masks_noise_and_dropout_are_drawn_from_independent_streams(self):
    # Two steps of three utterances, in which two layers draw their dropout.
    model = _model(
        encoder=transformer.build(
            num_blocks=1,
            dim=8,
            mlp_dim=8,
            num_heads=2,
            feature_dim=_BINS,
            dropout=0.1,
            max_shift_sec=0.0,
        ),
        quantizer=_quantizer(num_stacked=3),
    )
    weights = model.initialize(tf.constant([1, 2]))
    features = tf.constant(_features(3, 60, _BINS))
    lengths = tf.constant([60, 44, 60])
    with calls.recorded_seeds() as fixed:
      model.quantizer.labels(features, lengths)
    with calls.recorded_seeds() as seeds:
      for step in ([3, 4], [3, 5]):
        model.loss(weights, features, lengths, None, None, tf.constant(step))
    seeds = [seed for seed in seeds if seed not in fixed]
    # A step: its seed and those of masks, dropout and the block are split; an
    # utterance's is, and draws masks and noise; the model draws dropout.
    self.assertGreaterEqual(len(seeds), 2 * (4 + 3 * 3 + 3))
    self.assertLen(set(seeds), len(seeds))

  @parameterized.parameters(
      dict(start_prob=0.3),
      dict(span_sec=0.1),
      dict(noise_stddev=0.5),
      dict(quantizer=_quantizer(seed=5)),
  )
  def test_each_option_changes_the_loss(self, **options):
    def loss(model):
      masked = model.mask(
          tf.constant(_features(2, 60, _BINS)),
          tf.constant([60, 44]),
          _seeds(1, 2),
      )
      weights = model.initialize(tf.constant([1, 2]))
      return model.masked_loss(weights, masked).numpy()

    self.assertFalse(np.allclose(loss(_model()), loss(_model(**options))))

  def test_any_encoder_with_as_many_frames_can_be_used(self):
    encoder = transformer.build(
        num_blocks=1, dim=8, mlp_dim=8, num_heads=2, feature_dim=_BINS
    )
    model = _model(encoder=encoder, quantizer=_quantizer(num_stacked=3))
    masked = model.mask(
        tf.constant(_features(1, 60, _BINS)), tf.constant([60]), _seeds(1)
    )
    weights = model.initialize(tf.constant([1, 2]))
    self.assertEqual(model.logits(weights, masked).shape, (1, 20, 31))
    with self.assertRaisesRegex(ValueError, 'label of 4.*encoder makes 33'):
      _model(encoder=encoder)

  @parameterized.parameters(
      (_model, 'start_prob', 1.1), (_model, 'span_sec', 0.0),
      (_model, 'noise_stddev', -0.1), (_model, 'span_sec', 0.03),
      *((_quantizer, name, -1) for name in (
          'num_codes', 'code_dim', 'num_stacked', 'feature_dim', 'seed'
      )),
  )
  def test_bad_options_are_named(self, build, name, value):
    with self.assertRaisesRegex(ValueError, name):
      build(**{name: value})

"""Tests of tff_asr.recognition.recognizer."""

from absl.testing import parameterized
import numpy as np
import tensorflow as tf

from tests import fakes
from tff_asr.data import pipeline as pipeline_lib
from tff_asr.models import ctc
from tff_asr.models import encoder as encoder_lib
from tff_asr.models import weights as weights_lib
from tff_asr.programs import evaluation
from tff_asr.recognition import recognizer as recognizer_lib

_RATE_HZ = 16000
# The mel bins in which a tone of a token is loudest, by frequency.
_TONES_HZ = {'a': 300, 'b': 1000, 'c': 3000}


def _tone_model() -> ctc.CtcModel:
  """Hears the loudest of three bands of mel bins in each group of 3 frames."""

  def apply(weights, features, lengths, seed):
    del weights, seed
    size = tf.shape(features)[1] // 3
    groups = tf.reshape(
        features[:, : 3 * size], [tf.shape(features)[0], size, 3, 80]
    )
    bins = tf.reduce_mean(groups, axis=2)
    bands = [bins[:, :, :20], bins[:, :, 20:40], bins[:, :, 40:]]
    loudness = [tf.reduce_max(band, axis=-1) for band in bands]
    # The space is never emitted; the blank is, where no band is loud.
    space = tf.fill(tf.shape(loudness[0]), -100.0)
    blank = tf.fill(tf.shape(loudness[0]), 1.5)
    return tf.stack([space, *loudness, blank], axis=-1), lengths // 3

  encoder = encoder_lib.Encoder(
      specs={}, apply=apply, output_lengths=lambda n: n // 3, output_dim=5
  )
  return ctc.CtcModel(
      encoder=encoder,
      vocab_size=5,
      loss_kernel='op',
      specs={
          'head/bias': weights_lib.zeros_spec(5),
          'head/kernel': weights_lib.WeightSpec((5, 5)),
      },
  )


def _tones(text: str, *, tone_sec: float = 0.2) -> np.ndarray:
  """A tone for each character, with as long a silence after it."""
  seconds = np.arange(int(tone_sec * _RATE_HZ)) / _RATE_HZ
  parts = []
  for character in text:
    parts.append(
        8000 * np.sin(2 * np.pi * _TONES_HZ[character] * seconds)
    )
    parts.append(np.zeros(len(seconds)))
  return np.concatenate(parts).astype(np.int16)


def _tone_recognizer(**options) -> recognizer_lib.Recognizer:
  model = _tone_model()
  return recognizer_lib.Recognizer(
      model=model,
      pipeline=pipeline_lib.Pipeline(
          tokenizer=fakes.tiny_tokenizer(),
          output_lengths=model.encoder.output_lengths,
          max_batch_sec=20.0,
          max_utterance_sec=10.0,
      ),
      weights={
          'head/bias': np.zeros(5, np.float32),
          'head/kernel': np.eye(5, dtype=np.float32),
      },
      **options,
  )


class RecognizerTest(parameterized.TestCase):

  def test_transcripts_are_those_of_the_evaluation(self):
    model = fakes.tiny_model()
    pipeline = fakes.tiny_pipeline(model, chunk_size=4)
    weights = model.initialize(tf.constant([1, 2]))
    data = fakes.client_data()
    evaluated = evaluation.Evaluator(
        model=model, pipeline=pipeline, client_data=data
    )(weights)
    found = recognizer_lib.Recognizer(
        model=model, pipeline=pipeline, weights=weights
    )(
        (example['utterance_id'].numpy().decode(), example['waveform'].numpy())
        for client_id in sorted(data.client_ids)
        for example in data.create_tf_dataset_for_client(client_id)
    )
    self.assertEqual(
        {each.name: each.text for each in found},
        {each.utterance_id: each.text for each in evaluated.hypotheses},
    )
    # They are not empty texts.
    self.assertNotEmpty(''.join(h.text for h in evaluated.hypotheses))

  def test_results_come_in_the_order_of_the_waveforms(self):
    recognizer = _tone_recognizer(window_sec=2.0)
    texts = ['abc' * 10, 'a', 'cb' * 3, '', 'b' * 40, 'c']
    # Nothing at all is a waveform, too.
    waveforms = [
        (text or 'none', _tones(text) if text else np.zeros(1, np.int16))
        for text in texts
    ]
    found = list(recognizer(waveforms))
    self.assertEqual([each.name for each in found], [n for n, _ in waveforms])
    self.assertEqual([each.text for each in found], texts)
    self.assertEqual(
        [each.seconds for each in found],
        [len(waveform) / 16000 for _, waveform in waveforms],
    )

  @parameterized.parameters(1.0, 3.14)
  def test_windows_neither_cut_nor_double(self, window_sec):
    text = ''.join(np.random.default_rng(1).choice(list('abc'), 60))
    waveform = _tones(text, tone_sec=0.11)
    self.assertGreater(len(waveform), 13 * _RATE_HZ)
    (found,) = _tone_recognizer(window_sec=window_sec)([('x', waveform)])
    self.assertEqual(found.text, text)

  def test_a_window_of_whole_frames_is_not_one_short(self):
    # 2.01 * 16000 is below 32160 in floating point: 67 frames of 30 ms.
    recognizer = _tone_recognizer(window_sec=2.01)
    self.assertEqual(recognizer.window_samples, (3 * 67 - 1) * 160 + 400)

  def test_windows_have_as_many_frames_as_the_whole(self):
    # The last window ends anywhere.
    waveforms = [
        (str(extra), np.zeros(5 * _RATE_HZ + extra, np.int16))
        for extra in (0, 1, 1000, 7777)
    ]
    in_windows = _tone_recognizer(window_sec=1.0).logits(waveforms)
    whole = _tone_recognizer(window_sec=10.0).logits(waveforms)
    for (_, waveform), one, other in zip(
        waveforms, in_windows, whole, strict=True
    ):
      self.assertEqual(one[:2], other[:2])
      self.assertEqual(one[1], len(waveform))
      self.assertEqual(one[2].shape, other[2].shape)

  def test_words_have_the_times_of_their_sounds(self):
    (found,) = _tone_recognizer(window_sec=1.0)([('x', _tones('ab' * 5))])
    # One word, without a space: from the first tone to the last, which begins
    # at 9 * .4 = 3.6 s; frames are 30 ms.
    (word,) = found.words
    self.assertEqual(word.text, 'ab' * 5)
    self.assertAlmostEqual(word.start_sec, 0.0, delta=0.04)
    self.assertAlmostEqual(word.end_sec, 3.6, delta=0.07)
    self.assertEqual(found.seconds, 4.0)

  def test_words_are_split_at_spaces(self):
    recognizer = _tone_recognizer()
    # Frames of 30 ms: 'a' 0, 'b' 2, space 3, space 5, 'c' 6 and again 7.
    blank, space, a, b, c = 4, 0, 1, 2, 3
    best = [a, a, b, space, blank, space, c, c, blank]
    (found,) = recognizer._decode(np.eye(5, dtype=np.float32)[best])  # pylint: disable=protected-access
    text, words = found.text, recognizer._words(found)  # pylint: disable=protected-access
    self.assertEqual(text, 'ab  c')
    self.assertEqual([word.text for word in words], ['ab', 'c'])
    np.testing.assert_allclose(
        [word[1:3] for word in words], [[0, 0.09], [0.18, 0.21]]
    )

  @parameterized.parameters(0.5, 20.5)
  def test_bad_windows_are_refused(self, window_sec):
    with self.assertRaisesRegex(ValueError, 'window_sec must be between'):
      _tone_recognizer(window_sec=window_sec)

  def test_uneven_frames_are_refused(self):
    with self.assertRaisesRegex(ValueError, 'uneven distances'):
      recognizer_lib._stride(  # pylint: disable=protected-access
          lambda lengths: tf.cast(tf.cast(lengths, tf.float32) / 2.5, tf.int32)
      )

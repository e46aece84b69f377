"""Tests of the server in tff_asr.recognition.export."""

from absl.testing import absltest
import numpy as np
import tensorflow as tf

from tests import fakes
from tff_asr.recognition import export
from tff_asr.recognition import recognizer as recognizer_lib

_CLIENTS = {'ann': 3, 'bob': 3}


def _waveforms() -> list[np.ndarray]:
  return [
      example['waveform']
      for client_id, count in _CLIENTS.items()
      for example in fakes.examples(client_id, count)
  ]


def _pad(waveforms: list[np.ndarray], *, fill: int = 0) -> np.ndarray:
  size = max(map(len, waveforms))
  return np.stack([
      np.pad(w, (0, size - len(w)), constant_values=fill) for w in waveforms
  ])


class ServingTest(absltest.TestCase):

  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    cls.model = fakes.tiny_model()
    cls.weights = cls.model.initialize(tf.constant([1, 2]))
    cls.server = export.Server(
        model=cls.model, weights=cls.weights, characters=' abc'
    )
    cls.waveforms = _waveforms()
    recognizer = recognizer_lib.Recognizer(
        model=cls.model,
        pipeline=fakes.tiny_pipeline(cls.model),
        weights=cls.weights,
    )
    cls.expected = [
        heard.text for heard in recognizer(('', w) for w in cls.waveforms)
    ]

  def serve(self, waveforms, *, fill=0):
    heard = self.server.transcribe(
        tf.constant(_pad(waveforms, fill=fill)),
        tf.constant([len(w) for w in waveforms], tf.int32),
    )
    texts = [text.decode() for text in heard['text'].numpy()]
    return texts, heard['token_ids'].numpy()

  def test_hears_what_the_recognizer_hears(self):
    texts, ids = self.serve(self.waveforms)
    self.assertEqual(texts, self.expected)
    self.assertNotEmpty(''.join(texts))
    for text, row in zip(texts, ids):
      spelled = ''.join(' abc'[i] for i in row if i >= 0)
      self.assertEqual(spelled.strip(), text)

  def test_padding_and_company_do_not_matter(self):
    texts, _ = self.serve(self.waveforms, fill=1234)
    self.assertEqual(texts, self.expected)
    for waveform, text in zip(self.waveforms, self.expected):
      self.assertEqual(self.serve([waveform])[0], [text])

  def test_one_at_a_time_gives_the_same_ids(self):
    _, ids = self.serve(self.waveforms)
    for waveform, row in zip(self.waveforms, ids):
      one = self.server.tokens_of_one(tf.constant(waveform[np.newaxis]))
      self.assertEqual(one['token_ids'].numpy().tolist(), row[row >= 0].tolist())

  def test_nothing_is_heard_in_next_to_nothing(self):
    texts, ids = self.serve([np.ones(100, np.int16), self.waveforms[0]])
    self.assertEqual(texts, ['', self.expected[0]])
    self.assertTrue((ids[0] == -1).all())
    empty = self.server.tokens_of_one(tf.zeros([1, 0], tf.int16))
    self.assertEmpty(empty['token_ids'])

  def test_characters_of_another_model_are_refused(self):
    with self.assertRaisesRegex(ValueError, '4 tokens and a blank, found 2'):
      export.Server(model=self.model, weights=self.weights, characters='ab')


if __name__ == '__main__':
  absltest.main()

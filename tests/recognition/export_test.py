"""Tests of tff_asr.recognition.export."""

import json
import os
import pathlib
import tempfile
from unittest import mock

from absl.testing import absltest
import numpy as np
import pytest
import tensorflow as tf

from tests import cases
from tests import fakes
from tests import front_ends
from tests.learning import tiny
from tests.recognition import recognizers
from tff_asr.data import client_data
from tff_asr.features import front_end
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


class ExportedRecognizerTest(absltest.TestCase):

  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    cls.model = fakes.tiny_model()
    cls.weights = cls.model.initialize(tf.constant([1, 2]))
    cls.exported = export.ExportedRecognizer(
        model=cls.model,
        weights=cls.weights,
        tokens=' abc',
        front_end=front_end.build_log_mel(),
    )
    cls.waveforms = _waveforms()
    recognizer = recognizer_lib.Recognizer(
        model=cls.model,
        pipeline=fakes.tiny_pipeline(cls.model),
        weights=cls.weights,
    )
    cls.expected = [
        each.text for each in recognizer(('', w) for w in cls.waveforms)
    ]

  def transcribe_all(self, waveforms, *, fill=0):
    outputs = self.exported.transcribe(
        tf.constant(_pad(waveforms, fill=fill)),
        tf.constant([len(w) for w in waveforms], tf.int32),
    )
    texts = [text.decode() for text in outputs['text'].numpy()]
    return texts, outputs['token_ids'].numpy()

  def test_greedy_search_has_the_transcripts_of_the_recognizer(self):
    texts, ids = self.transcribe_all(self.waveforms)
    self.assertEqual(texts, self.expected)
    self.assertNotEmpty(''.join(texts))
    for text, row in zip(texts, ids):
      spelled = ''.join(' abc'[i] for i in row if i >= 0)
      self.assertEqual(spelled.strip(), text)

  def test_tokens_may_be_pieces_of_words(self):
    tokens = 'a ', ' ab', 'bc', 'ca'
    pieces = export.ExportedRecognizer(
        model=self.model,
        weights=self.weights,
        tokens=tokens,
        front_end=front_end.build_log_mel(),
    )
    (waveform,) = _waveforms()[:1]
    outputs = pieces.transcribe(
        tf.constant(waveform[np.newaxis]), tf.constant([len(waveform)])
    )
    written = [tokens[i] for i in outputs['token_ids'][0]]
    self.assertGreater(len(''.join(written)), len(written))
    self.assertEqual(
        outputs['text'].numpy()[0].decode(), ''.join(written).strip()
    )

  def test_padding_and_other_utterances_do_not_change_transcripts(self):
    texts, ids = self.transcribe_all(self.waveforms, fill=1234)
    self.assertEqual(texts, self.expected)
    for waveform, text, row in zip(self.waveforms, self.expected, ids):
      self.assertEqual(self.transcribe_all([waveform])[0], [text])
      one = self.exported.tokens_of_one(tf.constant(waveform[np.newaxis]))
      np.testing.assert_array_equal(one['token_ids'], row[row >= 0])

  def test_very_short_audio_has_no_words(self):
    texts, ids = self.transcribe_all([np.ones(100, np.int16), self.waveforms[0]])
    self.assertEqual(texts, ['', self.expected[0]])
    self.assertTrue((ids[0] == -1).all())
    empty = self.exported.tokens_of_one(tf.zeros([1, 0], tf.int16))
    self.assertEmpty(empty['token_ids'])

  def test_tflite_holds_each_weight_in_float16_and_none_in_8_bits(self):
    model = tiny.recognizer()
    weights = model.initialize(tf.constant([1, 2]))
    converted = export._convert(  # pylint: disable=protected-access
        export.ExportedRecognizer(
            model=model,
            weights=weights,
            tokens=' abc',
            front_end=front_end.build_log_mel(),
        )
    )
    interpreter = tf.lite.Interpreter(model_content=converted)
    details = interpreter.get_tensor_details()
    self.assertNoCommonElements(
        [each['dtype'] for each in details], [np.int8, np.uint8]
    )
    kernel = weights['front/kernel'].numpy()
    (held,) = (
        interpreter.get_tensor(each['index'])
        for each in details
        if each['dtype'] == np.float16
        and sorted(each['shape']) == sorted(kernel.shape)
    )
    np.testing.assert_array_equal(held, kernel.T.astype(np.float16))
    # Features have two matrices of 200 * 256 and one of 256 * 80 numbers.
    num_weights = sum(tf.size(each).numpy() for each in weights.values())
    self.assertBetween(
        len(converted) / (2 * (num_weights + 256 * (2 * 200 + 80))), 1.0, 1.15
    )

  def test_characters_of_another_model_are_refused(self):
    with self.assertRaisesRegex(ValueError, '4 tokens and a blank, found 2'):
      export.ExportedRecognizer(
          model=self.model,
          weights=self.weights,
          tokens='ab',
          front_end=front_end.build_log_mel(),
      )


@pytest.mark.slow
class CopyModelTest(cases.TestCase):

  def test_files_that_transcription_reads_are_copied(self):
    names = ['model.safetensors', 'model_spec.json']
    for number, further in enumerate(([], ['decoding.json'])):
      run, copy = (self.path(f'{each}{number}') for each in ('run', 'copy'))
      os.makedirs(run)
      os.makedirs(copy)
      for name in [*names, *further, 'ledger.jsonl']:
        pathlib.Path(run, name).write_text(json.dumps(name))
      export.copy_model(run, output_dir=copy)
      self.assertCountEqual(os.listdir(copy), names + further)
      for name in names + further:
        self.assertEqual(pathlib.Path(copy, name).read_text(), json.dumps(name))


class ExportTest(absltest.TestCase):

  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    cls.root = cls.enterClassContext(tempfile.TemporaryDirectory())
    cls.shards = fakes.write_split(
        os.path.join(cls.root, 'test'), {'ann': 3, 'bob': 4}
    )
    cls.recognizer = recognizers.tiny()
    cls.folder = os.path.join(cls.root, 'exported')
    cls.checks = export.export(
        recognizer=cls.recognizer,
        client_data=client_data.load(cls.shards),
        output_dir=cls.folder,
        num_utterances=5,
    )

  def test_writes_the_files_that_its_docstring_lists(self):
    self.assertCountEqual(
        os.listdir(self.folder),
        ['saved_model', 'model.float16.tflite', 'tokens.json'],
    )
    with open(os.path.join(self.folder, 'tokens.json'), encoding='utf-8') as f:
      self.assertEqual(json.load(f), [' ', 'a', 'b', 'c'])

  def test_exports_have_the_transcripts_of_the_checkpoint(self):
    saved, half = self.checks
    self.assertEqual((saved.num_utterances, saved.num_same), (5, 5))
    self.assertEqual(saved.errors, saved.checkpoint_errors)
    self.assertEqual(half.num_utterances, 5)
    # Random weights are near ties everywhere; float16 turns few of them.
    self.assertGreaterEqual(half.num_same, 4)
    self.assertGreater(saved.num_bytes, half.num_bytes)

  def test_the_saved_model_runs_without_this_project(self):
    loaded = tf.saved_model.load(os.path.join(self.folder, 'saved_model'))
    signature = loaded.signatures['serving_default']
    _, inputs = signature.structured_input_signature
    self.assertEqual(
        {name: (spec.dtype, spec.shape.as_list())
         for name, spec in inputs.items()},
        {'waveforms': (tf.int16, [None, None]), 'num_samples': (tf.int32, [None])},
    )
    self.assertEqual(
        {name: spec.dtype for name, spec in signature.structured_outputs.items()},
        {'text': tf.string, 'token_ids': tf.int32},
    )

  def test_tflite_has_built_in_ops_only(self):
    # The interpreter without TensorFlow's own ops takes it.
    interpreter = tf.lite.Interpreter(
        os.path.join(self.folder, 'model.float16.tflite'),
        experimental_op_resolver_type=(
            tf.lite.experimental.OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES
        ),
    )
    interpreter.allocate_tensors()
    ops = [op['op_name'] for op in interpreter._get_ops_details()]  # pylint: disable=protected-access
    self.assertNotEmpty(ops)
    self.assertEmpty([op for op in ops if op.startswith('Flex')])

  def test_an_export_with_other_transcripts_is_refused(self):
    with mock.patch.object(
        export, 'saved_model_texts', lambda path, utterances: ['x'] * 7
    ):
      with self.assertRaisesRegex(ValueError, 'in only 0 of 7 utterances'):
        export.export(
            recognizer=self.recognizer,
            client_data=client_data.load(self.shards),
            output_dir=os.path.join(self.root, 'other'),
        )

  def test_long_utterances_are_left_out_of_checks(self):
    short, long = (
        export.Utterance(f'{size}', 'a', np.zeros(size, np.int16))
        for size in (12_000, 40_000)
    )
    recognizer = recognizers.tiny(window_sec=1.0)
    self.assertBetween(recognizer.window_samples, 12_000, 39_999)
    outputs = []

    def transcribe(_, utterances):
      outputs.extend(utterances)
      return ['something else'] * len(utterances)

    for found, message in (
        ([long, short, long], 'in only 0 of 1 utterances'),
        ([long], 'all utterances .* longer than .* decodes at once, 1.0 s'),
    ):
      with (
          mock.patch.object(export, '_utterances', lambda _, f=found: f),
          mock.patch.object(export, 'saved_model_texts', transcribe),
          self.assertRaisesRegex(ValueError, message),
      ):
        export.export(
            recognizer=recognizer,
            client_data=client_data.load(self.shards),
            output_dir=os.path.join(self.root, message[:6].strip()),
        )
    self.assertEqual(outputs, [short])

  def test_bad_arguments(self):
    data = client_data.load(self.shards)
    with self.assertRaisesRegex(ValueError, 'contains an export already'):
      export.export(
          recognizer=self.recognizer, client_data=data, output_dir=self.folder
      )
    with self.assertRaisesRegex(ValueError, 'holds features'):
      export.export(
          recognizer=self.recognizer,
          client_data=client_data.load(
              front_ends.embedded(self.shards, os.path.join(self.root, 'f'))
          ),
          output_dir=os.path.join(self.root, 'new'),
      )
    with self.assertRaisesRegex(ValueError, 'num_utterances'):
      export.export(
          recognizer=self.recognizer, client_data=data,
          output_dir=os.path.join(self.root, 'new'), num_utterances=0,
      )

"""Tests of tff_asr.pretrained.ctc_head and of public recognisers on it.

`expected.json` has logits and transcripts of `transformers`.
"""

import json
import os
import pathlib
from unittest import mock

from absl.testing import absltest
from absl.testing import parameterized
import numpy as np
import tensorflow as tf

from tests import cases
from tests import fakes
from tff_asr.models import ctc
from tff_asr.pretrained import adapted
from tff_asr.pretrained import ctc_head
from tff_asr.pretrained import features
from tff_asr.pretrained import hugging_face
from tff_asr.recognition import recognizer as recognizer_lib
from tools.pretrained_parity import random_folders
from tools.pretrained_parity import tf_side

_EXPECTED = json.loads(
    pathlib.Path(__file__).with_name('expected.json').read_text('utf-8')
)
_HEADS = random_folders.with_heads(random_folders.TINY)
_NAME = 'wav2vec2_base_ctc'
# Whose blank is not `<pad>`.
_RENAMED = {
    'A': 0, 'B': 1, '[PAD]': 2, ' ': 3, 'C': 4, '[UNK]': 5, '<s>': 6, 'D': 7
}
_NAMES = {
    'pad_token': {'content': '[PAD]', 'lstrip': False},
    'unk_token': '[UNK]',
    'word_delimiter_token': ' ',
    'bos_token': None,
}


def _letters(*letters: str) -> dict[str, int]:
  """A vocabulary of 8 tokens: a delimiter, these, `<pad>` and digits."""
  tokens = ['|', *letters, '<pad>']
  tokens += [str(each) for each in range(8 - len(tokens))]
  return {token: number for number, token in enumerate(tokens)}


class _TestCase(cases.TestCase):

  def setUp(self):
    super().setUp()
    self.enterContext(
        mock.patch.dict(
            os.environ, {features.CACHE_VARIABLE: self.path('cache')}
        )
    )

  def write(self, name: str = _NAME, *, pad: int | None = None, **options):
    folder = self.path(name)
    config = _HEADS[name] | dict(pad_token_id=pad)
    if pad is None and 'vocabulary' not in options:
      config = _HEADS[name]
    random_folders.write_ctc(folder, config, **options)
    return folder

  def read(self, name: str = _NAME, **options) -> ctc_head.CtcHead:
    return ctc_head.read(hugging_face.load(self.write(name, **options)))


class ParityTest(_TestCase):

  @parameterized.named_parameters(*((name, name) for name in _HEADS))
  def test_logits_and_transcripts_are_those_of_transformers(self, name):
    recognizer = recognizer_lib.load_pretrained(self.write(name))
    inputs = tf_side.ctc_inputs_of(name, _HEADS[name])
    found = tf_side.expected(tf_side.compute_ctc(recognizer, name, inputs))
    expected = {
        key: value for key, value in _EXPECTED.items()
        if key.startswith(f'{name}/')
    }
    self.assertEqual(found.keys(), expected.keys())
    self.assertLen(expected, 5)
    self.assertGreater(len(set(expected[f'{name}/text/any'])), 3)
    for key, value in expected.items():
      if '/text/' in key:
        self.assertEqual(found[key], value)
      else:
        np.testing.assert_allclose(
            found[key], value, rtol=1e-4, atol=1e-5, err_msg=key
        )


class ReadTest(_TestCase):

  def test_outputs_are_characters_then_special_tokens_then_the_blank(self):
    # Ids: A 1, B 2, | 4, C 5; <s> 0, </s> 6, <unk> 7; <pad> 3.
    weight = np.arange(96, dtype=np.float32).reshape(8, 12)
    head = self.read(changes={
        'lm_head.weight': weight,
        'lm_head.bias': np.arange(8, dtype=np.float32),
    })
    order = [1, 2, 4, 5, 0, 6, 7, 3]
    self.assertEqual(head.weights['head/bias'].tolist(), order)
    np.testing.assert_array_equal(
        head.weights['head/kernel'], weight[order].T
    )
    tokenizer = head.tokenizer
    self.assertEqual(tokenizer.tokens, ('a', 'b', ' ', 'c', '', '', ''))
    self.assertEqual(tokenizer.characters, 'ab c')
    self.assertEqual(tokenizer.identity, 'ab c and 3 tokens without text')
    self.assertEqual(tokenizer.encode(['cab a']).to_list(), [[3, 0, 1, 2, 0]])
    self.assertEqual(tokenizer.decode([3, 5, 0, 4, 2, 6, 1]), 'ca b')
    self.assertIn('public model wav2vec2_base_ctc', tokenizer.source)

  @parameterized.parameters('tokenizer_config', 'special_tokens_map')
  def test_files_of_the_tokenizer_rename_tokens(self, name):
    other = {} if name == 'tokenizer_config' else {
        'tokenizer_config': {'word_delimiter_token': ' '}
    }
    tokenizer = self.read(
        vocabulary=_RENAMED, pad=2, **{name: _NAMES}, **other
    ).tokenizer
    self.assertEqual(tokenizer.tokens, ('a', 'b', ' ', 'c', 'd', '', ''))

  def test_added_special_tokens_are_outputs_if_the_head_has_them(self):
    vocabulary = {
        token: number for number, token in enumerate('ABCD|')
    } | {'<pad>': 5}
    expected = ('a', 'b', 'c', 'd', ' ', '', '')
    added = {'<s>': 6, '</s>': 7}
    for settings in (
        dict(added_tokens=added),
        # The head has 8 outputs, and cannot write the last one.
        dict(added_tokens=added | {'<unk>': 8}),
        dict(tokenizer_config={'added_tokens_decoder': {
            '5': {'content': '<pad>', 'special': True},
            '6': {'content': '<s>'}, '7': {'content': '</s>'},
        }}),
    ):
      head = self.read(vocabulary=vocabulary, **settings)
      self.assertEqual(head.tokenizer.tokens, expected)

  @parameterized.parameters(
      ('ABß', 'abß'), ('abc', 'abc'), ('aBc', 'abc'),
      # Two letters would be the same, or one would be two.
      ('aAB', 'aAB'), ('İIA', 'İIA'),
  )
  def test_letters_are_lower_case_unless_two_would_be_one(
      self, letters, expected
  ):
    head = self.read(vocabulary=_letters(*letters))
    self.assertStartsWith(head.tokenizer.characters, f' {expected}')

  @parameterized.parameters(
      (dict(vocabulary=None), 'vocab.json is missing'),
      (dict(vocabulary=[]), 'vocab.json is damaged .its values are of other types.'),
      (dict(vocabulary=_letters('A', 'B') | {'x': 8}),
       'must have the ids 0 to 7, .* found 9 ids up to 8'),
      (dict(vocabulary={'A': 0, '|': 1, '<pad>': 2}),
       'must have the ids 0 to 7, .* found 3 ids up to 2'),
      (dict(vocabulary=_letters('A', 'B') | {'x': 2}),
       "has the id 2 twice, for 'B' and 'x'"),
      (dict(vocabulary=_letters('A') | {'A': '1'}), "id of 'A' is '1'"),
      (dict(vocabulary=_letters('A') | {'A': True}), "id of 'A' is True"),
      (dict(vocabulary={'eng': _letters('A')}),
       'for each language, .*MMS, target_lang'),
      (dict(vocabulary=_letters('AH')), "token 'AH', which is no single"),
      (dict(vocabulary=_letters('')), "token '', which is no single"),
      (dict(vocabulary=_letters(' ')), r"characters has \[' '\] more than"),
      (dict(vocabulary=_letters('\x07')), 'control characters'),
      (dict(vocabulary={str(n): n for n in range(7)} | {'|': 7}),
       "has no '<pad>', the pad token"),
      (dict(vocabulary={str(n): n for n in range(7)} | {'<pad>': 7}),
       r"has no '\|', the word delimiter"),
      (dict(vocabulary=_letters('A'), added_tokens={'<de>': 8}),
       "adds the token '<de>' .* not as a special one"),
      (dict(vocabulary=_letters('A'), added_tokens={'<s>': 7}),
       'has the id 7 twice'),
      (dict(vocabulary=_letters('A'), pad=0), 'has the pad_token_id 0'),
      (dict(changes={'lm_head.weight': np.zeros([8, 7], np.float32)}),
       r"lm_head.weight' is \[8, 7\]"),
      (dict(changes={'lm_head.weight': np.zeros([3, 12], np.float32)}),
       'must have the ids 0 to 2, .* found 8 ids up to 7'),
      (dict(changes={'lm_head.bias': None}), "no tensor 'lm_head.bias'"),
      (dict(changes={'lm_head.bias': np.full([8], np.nan, np.float32)}),
       'holds NaN'),
      (dict(changes={'lm_head.weight': None}), 'has no CTC head'),
  )
  def test_what_is_refused_in_one_line(self, options, message):
    folder = self.write(**options)
    with self.assertRaisesRegex(ValueError, message) as caught:
      recognizer_lib.load_pretrained(folder)
    self.assertNotIn('\n', str(caught.exception))

  def test_models_without_a_head_and_with_adapters_are_refused(self):
    whisper = self.path('whisper')
    random_folders.write(whisper, random_folders.TINY['whisper'])
    with self.assertRaisesRegex(ValueError, '^whisper has no CTC head .*head'):
      recognizer_lib.load_pretrained(whisper)
    for change in (dict(add_adapter=True), dict(adapter_attn_dim=16)):
      folder = self.path('adapter')
      random_folders.write_ctc(folder, _HEADS[_NAME] | change)
      with self.assertRaisesRegex(ValueError, f'{[*change][0]} must be one of'):
        recognizer_lib.load_pretrained(folder)

  def test_the_files_of_the_vocabulary_go_into_an_export(self):
    public = hugging_face.load(self.write(tokenizer_config={}))
    self.assertEqual(
        [os.path.basename(path) for path in public.files],
        ['config.json', 'model.safetensors', 'tokenizer_config.json',
         'vocab.json'],
    )


class HeadTest(_TestCase):

  def build(self, folder: str, **options) -> ctc.CtcModel:
    public = adapted.load(name=folder)
    return ctc.build(**dict(
        encoder=adapted.frozen(public),
        tokenizer=adapted.ctc_tokenizer(public),
        head=adapted.ctc_head(public),
    ) | options)

  def test_only_the_head_is_trained_from_its_public_values(self):
    folder = self.write()
    model = self.build(folder)
    self.assertEqual(model.specs.keys(), {'head/bias', 'head/kernel'})
    self.assertNotEmpty(model.encoder.frozen)
    expected = ctc_head.read(hugging_face.load(folder)).weights
    for name, value in model.initialize(tf.constant([1, 2])).items():
      np.testing.assert_array_equal(value, expected[name])

  def test_other_tokens_and_another_width_are_refused(self):
    folder = self.write()
    for options, message in (
        (dict(tokenizer=fakes.tiny_tokenizer()), "TOKENIZER has ' abc'"),
        (dict(encoder=fakes.tiny_model().encoder), 'but ENCODER gives 8'),
    ):
      with self.assertRaisesRegex(
          ValueError, f'{message}.*public_ctc.gin after'
      ):
        self.build(folder, **options)


if __name__ == '__main__':
  absltest.main()

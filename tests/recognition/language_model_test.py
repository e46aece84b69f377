"""Tests of tff_asr.recognition.language_model."""

import importlib.util
import math
import os
import pathlib
import sys
import types
from unittest import mock

from absl.testing import parameterized
import numpy as np
import pytest

from tests import cases
from tff_asr.recognition import language_model as language_model_lib

# 'ab' is a hundred times as probable as 'ac'; both end a text.
_ARPA = """\\data\\
ngram 1=5
ngram 2=4

\\1-grams:
-99\t<s>\t0
-4\t<unk>\t0
-1\t</s>\t0
-1\tab\t0
-3\tac\t0

\\2-grams:
-0.01\t<s> ab
-2.01\t<s> ac
-0.1\tab </s>
-0.1\tac </s>

\\end\\
"""


_needs_packages = pytest.mark.skipif(
    not all(map(importlib.util.find_spec, ('pyctcdecode', 'kenlm'))),
    reason='needs the packages of requirements-lm.txt',
)


class LanguageModelTest(cases.TestCase):

  def setUp(self):
    super().setUp()
    self.path = os.path.join(self.root, 'words.arpa')
    pathlib.Path(self.path).write_text(_ARPA)

  def build(self, *, tokens=tuple(' abc'), **settings):
    return language_model_lib.build_decode(
        language_model_lib.LanguageModel(path=self.path, **settings),
        tokens=tokens,
    )

  @parameterized.parameters(
      (dict(alpha=-0.1), 'alpha'),
      (dict(beta=math.inf), 'beta'),
      (dict(beam_width=0), 'beam_width'),
      (dict(path='nowhere.arpa'), 'nowhere.arpa does not exist'),
      (dict(path=__file__), 'must be a file of KenLM'),
  )
  def test_bad_settings(self, settings, message):
    with self.assertRaisesRegex(ValueError, message):
      language_model_lib.LanguageModel(**{'path': self.path} | settings)

  def test_tokens_without_a_space_are_refused(self):
    with self.assertRaisesRegex(ValueError, 'a token for the space'):
      self.build(tokens='abc')
    with self.assertRaisesRegex(ValueError, 'this model has sentence pieces'):
      self.build(tokens=(' ', 'ab'))

  def test_missing_packages_are_named_with_what_installs_them(self):
    with mock.patch.dict(sys.modules, {'pyctcdecode': None}):
      with self.assertRaisesRegex(
          ValueError, 'pip install --no-deps -r requirements-lm.txt'
      ):
        self.build()

  def test_settings_reach_the_search_and_words_come_in_frames(self):
    decoder = mock.Mock()
    decoder.decode_beams.return_value = [
        ('ab c', None, [('ab', (2, 5)), ('c', (7, 8))], -1.0, -2.0)
    ]
    library = types.ModuleType('pyctcdecode')
    library.build_ctcdecoder = mock.Mock(return_value=decoder)
    with mock.patch.dict(sys.modules, {'pyctcdecode': library}):
      decode = self.build(alpha=0.25, beta=2.0, beam_width=7)
    library.build_ctcdecoder.assert_called_once_with(
        # The blank is the last.
        [' ', 'a', 'b', 'c', ''],
        kenlm_model_path=self.path, alpha=0.25, beta=2.0,
    )
    logits = np.zeros([9, 5], np.float32)
    self.assertEqual(
        decode(logits), ('ab c', [('ab', 2, 5), ('c', 7, 8)])
    )
    decoder.decode_beams.assert_called_once_with(logits, beam_width=7)
    self.assertEqual(decode(logits[:0]), ('', []))

  @_needs_packages
  def test_the_language_model_decides_between_similar_logits(self):
    # 'a', then 'b' or 'c', which sounds a little more like it.
    logits = np.full([2, 5], -20.0, np.float32)
    logits[0, 1] = 0.0
    logits[1, 2:4] = (-0.1, 0.0)
    self.assertEqual(self.build(alpha=0.0)(logits)[0], 'ac')
    text, ((word, start, end),) = self.build(alpha=1.0)(logits)
    self.assertEqual((text, word, start, end), ('ab', 'ab', 0, 2))

  @_needs_packages
  def test_another_kind_of_file_is_named(self):
    pathlib.Path(self.path).write_text('no model')
    with self.assertRaisesRegex(ValueError, 'words.arpa is not a model'):
      self.build()

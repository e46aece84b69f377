"""Tests of tff_asr.decoding.language_model."""

import importlib.util
import itertools
import math
import os
import pathlib
import subprocess
import sys
from unittest import mock

from absl.testing import parameterized
import numpy as np
import pytest

from tests import cases
from tff_asr.decoding import hypothesis
from tff_asr.decoding import language_model as language_model_lib

# 'ab' is a hundred times as probable as 'ac'; both end a text. The unigrams of
# words that begin no bigram have no back-off weights, as some writers leave
# them out.
ARPA = """\\data\\
ngram 1=5
ngram 2=4

\\1-grams:
-99\t<s>\t0
-4\t<unk>
-1\t</s>
-1\tab\t0
-3\tac\t0

\\2-grams:
-0.01\t<s> ab
-2.01\t<s> ac
-0.1\tab </s>
-0.1\tac </s>

\\end\\
"""

needs_packages = pytest.mark.skipif(
    not all(map(importlib.util.find_spec, ('pyctcdecode', 'kenlm'))),
    reason='needs the packages of requirements-lm.txt',
)


class LanguageModelTest(cases.TestCase):

  def setUp(self):
    super().setUp()
    self.path = os.path.join(self.root, 'words.arpa')
    pathlib.Path(self.path).write_text(ARPA)

  def build(self, *, tokens=tuple(' abc'), **settings):
    return language_model_lib.BeamSearch(
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
    for make in language_model_lib.LanguageModel, language_model_lib.build:
      with self.assertRaisesRegex(ValueError, message):
        make(**{'path': self.path} | settings)

  def test_no_file_is_no_language_model(self):
    self.assertIsNone(language_model_lib.build(path=None))

  def test_tokens_without_a_space_are_refused(self):
    with self.assertRaisesRegex(ValueError, 'a token for the space'):
      self.build(tokens='abc')
    with self.assertRaisesRegex(ValueError, 'this model has sentence pieces'):
      self.build(tokens=(' ', 'ab'))

  @parameterized.parameters('pyctcdecode', 'kenlm')
  def test_missing_packages_are_named_with_what_installs_them(self, package):
    with mock.patch.dict(sys.modules, {package: None}):
      with self.assertRaisesRegex(
          ValueError, 'pip install --no-deps -r requirements-lm.txt'
      ):
        self.build()

  @needs_packages
  def test_the_language_model_decides_between_similar_logits(self):
    # 'a', then 'b' or 'c', which sounds a little more like it.
    logits = np.full([2, 5], -20.0, np.float32)
    logits[0, 1] = 0.0
    logits[1, 2:4] = (-0.1, 0.0)
    self.assertEqual(self.build(alpha=0.0)(logits).text, 'ac')
    self.assertEqual(
        self.build(alpha=1.0)(logits),
        hypothesis.Hypothesis('ab', [hypothesis.Word('ab', 0, 2)]),
    )

  @needs_packages
  def test_the_best_text_has_the_largest_sum_of_scores(self):
    """Every text of at most three characters, scored by hand.

    A wide beam finds the best one, so no pruning is at work.
    """
    logits = np.random.default_rng(0).normal(size=[3, 5]).astype(np.float32)
    log_probs = logits - np.log(np.exp(logits).sum(1, keepdims=True))
    # log10 of p(word | previous) as in the file; -10 for words outside of it
    # is pyctcdecode's rule.
    unigrams = {'ab': -1.0, 'ac': -3.0, '</s>': -1.0}
    bigrams = {
        ('<s>', 'ab'): -0.01, ('<s>', 'ac'): -2.01,
        ('ab', '</s>'): -0.1, ('ac', '</s>'): -0.1,
    }
    alpha, beta = 0.7, 0.4
    acoustic = {}
    for path in itertools.product(range(5), repeat=3):
      merged = [token for token, _ in itertools.groupby(path)]
      text = ''.join(' abc'[token] for token in merged if token < 4)
      # Texts that differ in spaces alone differ for CTC, not for words.
      score = sum(log_probs[frame, token] for frame, token in enumerate(path))
      acoustic[text] = np.logaddexp(acoustic.get(text, -np.inf), score)
    scores = {}
    for text, score in acoustic.items():
      previous = '<s>'
      for word in (*text.split(), '</s>'):
        known = word in unigrams
        log10 = bigrams.get((previous, word), unigrams.get(word, -4.0))
        score += alpha * (log10 - (0 if known else 10)) * math.log(10)
        score += beta * (word != '</s>')
        previous = word if known else '<unk>'
      scores[text] = score
    best = max(scores, key=scores.get)
    found = self.build(alpha=alpha, beta=beta, beam_width=1000)(logits)
    self.assertEqual(found.text, best.strip())

  @needs_packages
  def test_nothing_is_said_in_no_frames(self):
    self.assertEqual(
        self.build()(np.zeros([0, 5], np.float32)),
        hypothesis.Hypothesis('', []),
    )

  @needs_packages
  def test_words_without_a_backoff_weight_are_words(self):
    # 'ac' has none here, and yet is no unknown word: 'ab' wins by its
    # probability at a weight at which any unknown word would lose.
    pathlib.Path(self.path).write_text(ARPA.replace('ac\t0', 'ac'))
    logits = np.full([2, 5], -20.0, np.float32)
    logits[0, 1] = 0.0
    logits[1, 2:4] = (-4.0, 0.0)
    self.assertEqual(self.build(alpha=0.7)(logits).text, 'ac')
    self.assertEqual(self.build(alpha=1.0)(logits).text, 'ab')

  @needs_packages
  def test_the_description_names_file_and_search(self):
    found = self.build(alpha=0.25, beta=2.0, beam_width=7).describe()
    self.assertEqual(
        found | {'sha256': len(found['sha256'])},
        dict(
            file='words.arpa', sha256=64, order=2, alpha=0.25, beta=2.0,
            beam_width=7,
        ),
    )
    self.assertRegex(
        language_model_lib.name(found),
        r'^words.arpa \(order 2, SHA-256 [0-9a-f]{8}\)$',
    )

  @needs_packages
  def test_another_kind_of_file_is_named(self):
    pathlib.Path(self.path).write_text('no model')
    with self.assertRaisesRegex(ValueError, 'words.arpa is not a model'):
      self.build()

  @needs_packages
  def test_a_model_of_single_words_is_refused_as_kenlm_does(self):
    pathlib.Path(self.path).write_text(
        '\\data\\\nngram 1=4\n\n\\1-grams:\n'
        '-1\t<s>\n-4\t<unk>\n-1\t</s>\n-1\tab\n\n\\end\\\n'
    )
    with self.assertRaisesRegex(
        ValueError, 'KenLM can read: This ngram .* at least a bigram model'
    ):
      self.build()

  @needs_packages
  def test_reading_prints_nothing(self):
    process = subprocess.run(
        [
            sys.executable, '-c',
            'import sys; from tff_asr.decoding import language_model as lm; '
            'lm.BeamSearch(lm.LanguageModel(path=sys.argv[1]), tokens=" abc")',
            self.path,
        ],
        capture_output=True,
        check=True,
        text=True,
    )
    self.assertEqual(process.stdout + process.stderr, '')

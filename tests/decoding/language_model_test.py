"""Tests of tff_asr.decoding.language_model."""

import gzip
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

  def build(self, *, tokens=tuple(' abc'), search=None, **settings):
    return language_model_lib.BeamSearch(
        language_model_lib.LanguageModel(path=self.path, **settings),
        tokens=tokens,
        **search or {},
    )

  @parameterized.parameters(
      (dict(alpha=-0.1), 'alpha'),
      (dict(beta=math.inf), 'beta'),
      (dict(temperature=0.0), 'temperature'),
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
    with self.assertRaisesRegex(ValueError, "'b a' has a space inside"):
      self.build(tokens=(' ', 'a', 'b a'))

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
    self.assertEqual(self.build(alpha=0.0)(logits)[0].text, 'ac')
    (found,) = self.build(alpha=1.0)(logits)
    self.assertEqual(found.text, 'ab')
    self.assertEqual([each[:3] for each in found.words], [('ab', 0, 2)])

  @needs_packages
  def test_the_best_text_has_the_largest_sum_of_scores(self):
    """Every text of at most three characters, scored by hand.

    A wide beam finds the best one, so no pruning is at work.
    """
    logits = np.random.default_rng(0).normal(size=[3, 5]).astype(np.float32)
    temperature = 1.6
    flat = logits / temperature
    log_probs = flat - np.log(np.exp(flat).sum(1, keepdims=True))
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
    (found,) = self.build(
        alpha=alpha, beta=beta, temperature=temperature, beam_width=1000
    )(logits)
    self.assertEqual(found.text, best.strip())

  @needs_packages
  def test_nothing_is_said_in_no_frames(self):
    self.assertEqual(
        self.build()(np.zeros([0, 5], np.float32)),
        [hypothesis.Hypothesis('', [], 0.0)],
    )

  @needs_packages
  def test_words_without_a_backoff_weight_are_words(self):
    # 'ac' has none here, and yet is a known word: 'ab' wins by its
    # probability at a weight at which any unknown word would lose.
    pathlib.Path(self.path).write_text(ARPA.replace('ac\t0', 'ac'))
    logits = np.full([2, 5], -20.0, np.float32)
    logits[0, 1] = 0.0
    logits[1, 2:4] = (-4.0, 0.0)
    self.assertEqual(self.build(alpha=0.7)(logits)[0].text, 'ac')
    self.assertEqual(self.build(alpha=1.0)(logits)[0].text, 'ab')

  @needs_packages
  def test_the_description_names_file_and_search(self):
    found = self.build(alpha=0.25, beta=2.0, beam_width=7).describe()
    self.assertEqual(
        found | {'sha256': len(found['sha256'])},
        dict(
            file='words.arpa', sha256=64, order=2, alpha=0.25, beta=2.0,
            temperature=1.0, beam_width=7,
        ),
    )
    self.assertRegex(
        language_model_lib.label(found),
        r'^words.arpa \(order 2, SHA-256 [0-9a-f]{8}\)$',
    )
    # As data_tools.ngram writes it.
    pathlib.Path(self.path).write_text('# {"text": "AN4 public"}\n' + ARPA)
    self.assertStartsWith(
        language_model_lib.label(self.build().describe()),
        'words.arpa of AN4 public (order 2, ',
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

  @needs_packages
  def test_frames_of_blanks_are_skipped_without_a_change(self):
    # 'ab', a long pause, 'ac': more and less sure blanks.
    logits = np.full([40, 5], -9.0, np.float32)
    logits[:, 4] = 0.0
    logits[30, 4] = -8.0
    for frame, token in ((3, 1), (4, 2), (8, 0), (25, 1), (27, 3)):
      logits[frame] = (-9.0, -9.0, -8.0, -8.5, -9.0)
      logits[frame, token] = 0.0
    log_probs = hypothesis.log_softmax(logits)
    kept = language_model_lib._frames_to_search(log_probs)
    self.assertLess(len(kept), 20)
    # The first blank of each stretch stays: it parts repeated letters.
    self.assertContainsSubset({0, 3, 4, 5, 8, 9, 25, 26, 27, 28, 30}, {*kept})
    search = self.build(alpha=1.0)
    (found,) = search(logits)
    with mock.patch.object(
        language_model_lib, '_frames_to_search', lambda x: np.arange(len(x))
    ):
      (expected,) = search(logits)
    self.assertEqual(found.text, expected.text)
    self.assertEqual(
        [each[:3] for each in found.words], [('ab', 3, 5), ('ac', 25, 28)]
    )
    self.assertAlmostEqual(found.score, expected.score, places=5)

  @needs_packages
  def test_alternatives_come_best_first_and_words_have_their_share(self):
    # 'ab' or 'ac', then the space and 'ab' for certain.
    logits = np.full([6, 5], -20.0, np.float32)
    logits[0, 1] = logits[2, 0] = logits[3, 1] = logits[4, 2] = 0.0
    logits[5, 4] = 0.0
    logits[1, 2:4] = np.log((0.25, 0.75))
    found = self.build(alpha=0.0, beta=0.0, search=dict(num_best=3))(logits)
    self.assertEqual([each.text for each in found][:2], ['ac ab', 'ab ab'])
    self.assertAlmostEqual(
        found[0].score - found[1].score, math.log(3), places=4
    )
    self.assertGreaterEqual(found[1].score, found[-1].score)
    unsure, sure = found[0].words
    self.assertAlmostEqual(unsure.confidence, 0.75, places=3)
    self.assertAlmostEqual(sure.confidence, 1.0, places=3)
    # The same word at another time does not count.
    self.assertAlmostEqual(found[1].words[0].confidence, 0.25, places=3)

  @needs_packages
  def test_a_hotword_is_preferred_with_and_without_a_language_model(self):
    logits = np.full([2, 5], -20.0, np.float32)
    logits[0, 1] = 0.0
    logits[1, 2:4] = (0.0, -3.0)
    self.assertEqual(self.build()(logits)[0].text, 'ab')
    search = dict(hotwords=['ac'], hotword_weight=12.0)
    self.assertEqual(self.build(search=search)(logits)[0].text, 'ac')
    alone = language_model_lib.BeamSearch(None, tokens=' abc', **search)
    self.assertEqual(alone(logits)[0].text, 'ac')
    search['hotword_weight'] = 1.0
    alone = language_model_lib.BeamSearch(None, tokens=' abc', **search)
    self.assertEqual(alone(logits)[0].text, 'ab')

  @needs_packages
  def test_tokens_without_text_are_blanks(self):
    logits = np.random.default_rng(0).normal(size=[6, 7], scale=3.0)
    logits = logits.astype(np.float32)
    # Alternating: a blank and a token without text divide equal letters alike.
    logits[1::2, 5] = 9.0
    logits[::2, 1] = 9.0
    blank = np.logaddexp.reduce(logits[:, 4:], axis=-1, keepdims=True)
    (expected,) = self.build(alpha=1.0)(np.hstack([logits[:, :4], blank]))
    search = self.build(tokens=(*' abc', '', ''), alpha=1.0)
    (found,) = search(logits)
    self.assertEqual(found.text, expected.text)
    self.assertStartsWith(found.text, 'aaa')
    self.assertAlmostEqual(found.score, expected.score, places=3)
    self.assertEqual(
        [each[:3] for each in found.words],
        [each[:3] for each in expected.words],
    )

  @needs_packages
  @parameterized.parameters('AC', 'ab AC', 'ac')
  def test_a_hotword_has_the_case_of_the_tokens_and_may_be_a_phrase(self, word):
    logits = np.full([2, 5], -20.0, np.float32)
    logits[0, 1] = 0.0
    logits[1, 2:4] = (0.0, -3.0)
    search = dict(hotword_weight=12.0)
    found = self.build(search=search | {'hotwords': [word]})(logits)[0].text
    # A phrase prefers either word.
    self.assertEqual(found, 'ab' if ' ' in word else 'ac')
    upper = language_model_lib.BeamSearch(
        None, tokens=' ABC', hotwords=['ac'], **search
    )
    self.assertEqual(upper(logits)[0].text, 'AC')

  @needs_packages
  @parameterized.parameters(
      (ARPA.replace('ab', 'AB').replace('ac', 'AC'), ' abc',
       "write 0% of the words of .*words.arpa, and not 'AB', 'AC'; they are in "
       'another case: write the file in lower case'),
      (ARPA, ' ABC', 'another case: write the file in upper case'),
      (ARPA.replace('ab', 'аб').replace('ac', 'ас'), ' abc',
       "not 'аб', 'ас'; they are of another script or language"),
  )
  def test_a_model_of_other_words_is_refused_with_the_cause(
      self, text, tokens, message
  ):
    for name in ('words.arpa', 'words.arpa.gz'):
      self.path = os.path.join(self.root, name)
      opened = gzip.open if name.endswith('gz') else open
      with opened(self.path, 'wt', encoding='utf-8') as file:
        file.write(text)
      with self.assertRaisesRegex(
          ValueError, message.replace('.arpa,', r'.arpa\S*,')
      ):
        self.build(tokens=tuple(tokens))

  @needs_packages
  def test_a_model_of_which_half_can_be_written_is_taken(self):
    pathlib.Path(self.path).write_text(ARPA.replace('ac', 'AC'))
    logits = np.full([2, 5], -20.0, np.float32)
    logits[0, 1] = logits[1, 2] = 0.0
    self.assertEqual(self.build()(logits)[0].text, 'ab')

  @needs_packages
  def test_a_compressed_model_is_the_same(self):
    logits = np.full([2, 5], -20.0, np.float32)
    logits[0, 1] = 0.0
    logits[1, 2:4] = (-0.1, 0.0)
    comment = '# {"text": "AN4 public"}\n'
    pathlib.Path(self.path).write_text(comment + ARPA)
    plain = self.build(alpha=1.0)
    self.path += '.gz'
    with gzip.open(self.path, 'wt', encoding='utf-8') as file:
      file.write(comment + ARPA)
    packed = self.build(alpha=1.0)
    self.assertEqual(packed(logits), plain(logits))
    self.assertEqual(packed(logits)[0].text, 'ab')
    self.assertEqual(packed.describe()['text'], 'AN4 public')

  @parameterized.parameters(
      ('ad', "'ad' must be of the tokens' characters, without 'd'"),
      ('a BD', "'a BD' must be of the tokens' characters, without 'd'"),
      ('', "'' must be of the tokens' characters"),
  )
  def test_bad_hotwords(self, hotword, message):
    with self.assertRaisesRegex(ValueError, message):
      language_model_lib.BeamSearch(None, tokens=' abc', hotwords=[hotword])


class SentencePiecesTest(cases.TestCase):

  def decode(self, *ids: int, tokens, **settings) -> hypothesis.Hypothesis:
    """Decodes logits that leave no doubt; the blank is the last id."""
    path = os.path.join(self.root, 'words.arpa')
    pathlib.Path(path).write_text(ARPA)
    logits = np.full([len(ids), len(tokens) + 1], -20.0, np.float32)
    logits[np.arange(len(ids)), list(ids)] = 0.0
    (found,) = language_model_lib.BeamSearch(
        language_model_lib.LanguageModel(path=path, **settings), tokens=tokens
    )(logits)
    return found

  @needs_packages
  def test_pieces_join_to_words_with_their_frames(self):
    tokens = (' ', ' a', 'a', 'b', 'c', ' ab')
    for ids, text, words in (
        # ' a' 'b', ' ab': the space belongs to the piece.
        ((6, 1, 6, 3, 6, 5), 'ab ab', [('ab', 1, 4), ('ab', 5, 6)]),
        # A repeated piece is one, unless a blank parts it.
        ((5, 5, 5), 'ab', [('ab', 0, 3)]),
        ((5, 6, 5), 'ab ab', [('ab', 0, 1), ('ab', 2, 3)]),
        # A lone space begins a word.
        ((0, 2, 4, 6, 0, 3), 'ac b', [('ac', 0, 3), ('b', 4, 6)]),
        # Without a space at the beginning, with one at the end.
        ((2, 3, 0), 'ab', [('ab', 0, 2)]),
    ):
      with self.subTest(text, ids=ids):
        found = self.decode(*ids, tokens=tokens, alpha=0.0, beta=0.0)
        self.assertEqual(found.text, text)
        self.assertEqual([each[:3] for each in found.words], words)

  @needs_packages
  def test_a_lone_space_breaks_no_other_prefix(self):
    """All prefixes, some with a space in their middle, get their own pieces.

    pyctcdecode forces a break after a label that ends in the symbol of a space,
    in whichever prefix it extends next.
    """
    tokens = (' ', ' a', 'b', 'c')
    logits = np.random.default_rng(0).normal(size=[4, 5]).astype(np.float32)
    log_probs = hypothesis.log_softmax(logits)
    expected = {}
    for ids in itertools.product(range(5), repeat=4):
      merged = [token for token, _ in itertools.groupby(ids)]
      text = ''.join(tokens[token] for token in merged if token < 4)
      text = ' '.join(text.split())
      score = sum(log_probs[frame, token] for frame, token in enumerate(ids))
      expected[text] = np.logaddexp(expected.get(text, -np.inf), score)
    search = language_model_lib.BeamSearch(None, tokens=tokens, num_best=1000)
    search._beam_width = 1000
    found = {each.text: each.score for each in search(logits)}
    likely = {text for text, score in expected.items() if score > -6.0}
    self.assertGreater(len(likely), 20)
    self.assertContainsSubset(likely, {*found})
    for text in likely:
      self.assertAlmostEqual(found[text], expected[text], places=2, msg=text)

  @needs_packages
  def test_the_language_model_scores_words_of_pieces(self):
    path = os.path.join(self.root, 'words.arpa')
    pathlib.Path(path).write_text(ARPA)
    logits = np.full([2, 5], -20.0, np.float32)
    logits[0, 1] = 0.0
    logits[1, 2:4] = (-0.1, 0.0)
    for alpha, text in ((0.0, 'ac'), (1.0, 'ab')):
      (found,) = language_model_lib.BeamSearch(
          language_model_lib.LanguageModel(path=path, alpha=alpha),
          tokens=(' ', ' a', 'b', 'c'),
      )(logits)
      self.assertEqual(found.text, text)

"""Tests of data_tools.kneser_ney: by hand, by a twin, and read by KenLM."""

import collections
import importlib.util
import itertools
import pathlib
import random

from absl.testing import absltest
from absl.testing import parameterized
import numpy as np
from scipy import stats

from data_tools import kneser_ney
from tests import cases

_Words = tuple[str, ...]
_HAS_KENLM = importlib.util.find_spec('kenlm') is not None


def _text(seed: int, num_sentences: int = 250) -> list[list[str]]:
  """Sentences of common and rare words, with many repetitions."""
  generator = random.Random(seed)
  words = [f'w{i}' for i in range(12)]
  return [
      [words[int(12 * generator.random() ** 3)] for _ in range(length)]
      for length in generator.choices(range(1, 9), k=num_sentences)
  ]


class _Twin:
  """The formulas as they are written, over dictionaries of words."""

  def __init__(self, sentences, *, order: int, prune=(0,)):
    self.order = order
    self.prune = [*prune, *prune[-1:] * order]
    self.words = {'</s>', '<unk>', *itertools.chain(*sentences)}
    self.counts = [collections.Counter() for _ in range(order + 1)]
    for sentence in sentences:
      padded = ('<s>', *sentence, '</s>')
      for n in range(1, order + 1):
        for i in range(len(padded) - n + 1):
          self.counts[n][padded[i : i + n]] += 1
    self.adjusted = [{} for _ in range(order)] + [self.counts[order]]
    for n in range(1, order):
      before = collections.defaultdict(set)
      for ngram in self.counts[n + 1]:
        before[ngram[1:]].add(ngram[0])
      for ngram, count in self.counts[n].items():
        if ngram == ('<s>',):
          continue  # Never predicted.
        if ngram[0] == '<s>':
          self.adjusted[n][ngram] = count
        else:
          self.adjusted[n][ngram] = len(before[ngram])
    self.discounts = [None, *map(self._discounts, self.adjusted[1:])]

  def _discounts(self, adjusted) -> dict[int, float]:
    n1, n2, n3, n4 = (
        sum(a == i for a in adjusted.values()) for i in range(1, 5)
    )
    found = {}
    if n1 * n2 * n3 * n4:
      y = n1 / (n1 + 2 * n2)
      found = {
          1: 1 - 2 * y * n2 / n1, 2: 2 - 3 * y * n3 / n2,
          3: 3 - 4 * y * n4 / n3,
      }
    if not found or min(found.values()) <= 0:
      found = {1: 0.5, 2: 1.0, 3: 1.5}
    return found

  def prob(self, word: str, context: _Words) -> float:
    n = len(context) + 1
    lower = 1 / len(self.words)
    if context:
      lower = self.prob(word, context[1:])
    after = {
        ngram: a
        for ngram, a in self.adjusted[n].items()
        if ngram[:-1] == context
    }
    if not after:
      return lower
    total = sum(after.values())
    shares = {
        ngram[-1]: (a - self.discounts[n][min(a, 3)]) / total
        for ngram, a in after.items()
        if self.counts[n][ngram] > self.prune[n - 1]
    }
    return shares.get(word, 0.0) + (1 - sum(shares.values())) * lower


def _prob(lines: dict[_Words, tuple[float, float]], ngram: _Words) -> float:
  """The probability of a last word, by the rule of ARPA files.

  Args:
    lines: Logarithms to base 10 by n-gram: of the probability, of the backoff.
    ngram: The context and the word.
  """
  if ngram in lines:
    return 10 ** lines[ngram][0]
  _, backoff = lines.get(ngram[:-1], (0.0, 0.0))
  return 10**backoff * _prob(lines, ngram[1:])


def _parse(arpa: str) -> dict[_Words, tuple[float, float]]:
  """The lines of an ARPA file, by n-gram."""
  found = {}
  for line in arpa.splitlines():
    prob, _, rest = line.partition('\t')
    if rest:
      words, _, backoff = rest.partition('\t')
      found[tuple(words.split())] = float(prob), float(backoff or 0)
  return found


class KneserNeyTest(cases.TestCase):

  def test_probabilities_are_those_by_hand(self):
    # Counts: <s> a 2; a b, a c, b </s>, c </s> 1. Words before a, b, c: 1 each;
    # before </s>: 2. No counts of counts of 3 and 4, so D = 0.5, 1, 1.5.
    model = kneser_ney.estimate([['a', 'b'], ['a', 'c']], order=2)
    found = {
        words: (round(10**prob, 6), round(10**backoff, 6))
        for words, (prob, backoff) in _parse(kneser_ney.arpa(model)).items()
    }
    # b = (3 (0.5) + 1) / 5 = 0.5, and V = 5: each word gets 0.1.
    self.assertEqual(found, {
        ('<unk>',): (0.1, 1.0),
        ('<s>',): (0.0, 0.5),
        ('</s>',): (0.3, 1.0),  # (2 - 1) / 5 + 0.1
        ('a',): (0.2, 0.5),  # (1 - 0.5) / 5 + 0.1
        ('b',): (0.2, 0.5),
        ('c',): (0.2, 0.5),
        ('<s>', 'a'): (0.6, 1.0),  # (2 - 1) / 2 + 0.5 (0.2)
        ('a', 'b'): (0.35, 1.0),  # (1 - 0.5) / 2 + 0.5 (0.2)
        ('a', 'c'): (0.35, 1.0),
        ('b', '</s>'): (0.65, 1.0),  # (1 - 0.5) / 1 + 0.5 (0.3)
        ('c', '</s>'): (0.65, 1.0),
    })

  @parameterized.product(
      order=(2, 3, 4, 5), prune=((0,), (0, 1), (0, 0, 2))
  )
  def test_equals_the_formulas_and_sums_to_one(self, order, prune):
    sentences = _text(order)
    twin = _Twin(sentences, order=order, prune=prune)
    model = kneser_ney.estimate(sentences, order=order, prune=prune)
    lines = _parse(kneser_ney.arpa(model))
    self.assertEqual(
        {len(ngram) for ngram in lines}, set(range(1, order + 1))
    )
    generator = random.Random(order)
    words = sorted(twin.words)
    for _ in range(15):
      # Contexts that were seen, others, and starts of sentences.
      context = tuple(
          generator.choice(words[:8]) for _ in range(order - 1)
      )
      if generator.random() < 0.3:
        context = ('<s>', *context[1:])
      probs = {word: _prob(lines, (*context, word)) for word in words}
      self.assertAlmostEqual(sum(probs.values()), 1, places=5)
      for word in generator.sample(words, 6):
        self.assertAlmostEqual(
            probs[word] / twin.prob(word, context), 1, places=5
        )

  def test_discounts_come_from_counts_of_counts_of_each_order(self):
    sentences = _text(3)
    twin = _Twin(sentences, order=3)
    self.assertLen({str(each) for each in twin.discounts[2:]}, 2)
    self.assertNotIn({1: 0.5, 2: 1.0, 3: 1.5}, twin.discounts[2:])

  def test_pruned_ngrams_are_rare_and_words_stay(self):
    sentences = _text(1)
    counts = _Twin(sentences, order=3).counts
    model = kneser_ney.estimate(sentences, order=3, prune=(0, 1, 2))
    lines = _parse(kneser_ney.arpa(model))
    self.assertEqual(
        {each for each in lines if len(each) > 1},
        {each for each, count in counts[2].items() if count > 1}
        | {each for each, count in counts[3].items() if count > 2},
    )
    self.assertContainsSubset(counts[1], lines)

  def test_unknown_words_of_the_text_are_counted(self):
    rare, often = (
        _parse(kneser_ney.arpa(kneser_ney.estimate(text, order=2)))
        for text in ([['a', 'b']], [['a', '<unk>'], ['b', '<unk>']])
    )
    self.assertGreater(often[('<unk>',)][0], rare[('<unk>',)][0])
    self.assertIn(('a', '<unk>'), often)

  @parameterized.named_parameters(
      ('order', [['a']], dict(order=6), 'order must be one of'),
      ('unigrams', [['a']], dict(order=1), 'order must be one of'),
      ('words', [[]], dict(order=2), 'no words'),
      ('start', [['<s>']], dict(order=2), '<s> stands in the text'),
      ('short', [['a'], ['b']], dict(order=4), 'no sentence has 2 words'),
      ('first', [['a']], dict(order=2, prune=(1,)), 'must begin with 0'),
      ('all', [['a']], dict(order=2, prune=(0, 9)), 'no n-gram of order 2'),
      ('falling', [['a']], dict(order=3, prune=(0, 2, 1)), 'not decrease'),
  )
  def test_refuses(self, sentences, settings, message):
    with self.assertRaisesRegex(ValueError, message):
      kneser_ney.estimate(sentences, **settings)

  @parameterized.parameters(2, 3)
  def test_bigram_counts_of_other_text_are_mixed_in(self, order):
    sentences = _text(order)
    model = kneser_ney.estimate(sentences, order=order, prune=(0, 1))
    # All but one word of the model, in another order.
    words = ['w3', '<unk>', '</s>', '<s>', *(f'w{i}' for i in range(11, 3, -1))]
    stddev = 2.0
    generator = np.random.default_rng(1)
    counts = stddev * generator.normal(size=[len(words)] * 2)
    counts[:5] *= 10
    mixed = kneser_ney.with_bigram_counts(
        model, counts, words=words, stddev=stddev
    )
    old, new = (_parse(kneser_ney.arpa(each)) for each in (model, mixed))
    self.assertGreater(sum(len(ngram) == 2 for ngram in new),
                       sum(len(ngram) == 2 for ngram in old))
    # Noise exceeds this once in 4 times 12.
    threshold = stddev * stats.norm.isf(1 / 48)
    for i, context in enumerate(words):
      if context == '</s>':
        continue
      kept = {
          word: count
          for word, count in zip(words, counts[i])
          if word != '<s>' and count > (
              0 if (context, word) in old else threshold
          )
      }
      total = max(counts[i].sum(), sum(kept.values()))
      rest = total - sum(kept.values()) + 40 * stddev
      for word in ['w0', *words]:
        expected = (
            kept.get(word, 0) + rest * _prob(old, (context, word))
        ) / (total + 40 * stddev)
        self.assertAlmostEqual(
            _prob(new, (context, word)), expected, places=6
        )
    # A word without counts, and contexts of two words.
    for context in [('w0',), ('w0', 'w1'), ('<s>', 'w4'), ('w5', 'w4')]:
      self.assertAlmostEqual(sum(
          _prob(new, (*context[1 - order :], word))
          for word in model.vocabulary
          if word != '<s>'
      ), 1, places=5)

  @parameterized.parameters(2, 3, 5)
  @absltest.skipUnless(_HAS_KENLM, 'needs the packages of requirements-lm.txt')
  def test_kenlm_reads_it_and_sums_to_one(self, order):
    import kenlm  # pylint: disable=g-import-not-at-top

    sentences = _text(order)
    path = self.path('text.arpa')
    model = kneser_ney.estimate(sentences, order=order, prune=(0, 0, 1))
    pathlib.Path(path).write_text(
        kneser_ney.arpa(model, comment='{"text": "a text"}')
    )
    lines = _parse(kneser_ney.arpa(model))
    read = kenlm.Model(path)
    self.assertEqual(read.order, order)
    for sentence in sentences[:5]:
      state, after = kenlm.State(), kenlm.State()
      read.BeginSentenceWrite(state)
      words = ['<s>']
      for word in sentence:
        probs = {
            each: 10 ** read.BaseScore(state, each, kenlm.State())
            for each in [*model.vocabulary[2:], '<unk>']
        }
        self.assertAlmostEqual(sum(probs.values()), 1, places=5)
        context = tuple(words[1 - order :])
        for each, prob in probs.items():
          self.assertAlmostEqual(
              _prob(lines, (*context, each)) / prob, 1, places=4
          )
        read.BaseScore(state, word, after)
        state, after = after, state
        words.append(word)


if __name__ == '__main__':
  absltest.main()

r"""N-gram models with modified Kneser-Ney smoothing, as ARPA files.

Interpolated, after Chen and Goodman (1999),
https://doi.org/10.1006/csla.1999.0128. For a word w after a context h, and h'
the context without its first word,

    p(w | h) = (a(h w) - D(a(h w))) / sum_v a(h v) + b(h) p(w | h'),
    p(w) = (a(w) - D(a(w))) / sum_v a(v) + b / V,

where a is the count of an n-gram of the highest order, or of one that begins
with <s>, and otherwise the number of different words before it. b makes the
probabilities after h sum to one. V counts all words, </s> and <unk>. Each order
has discounts D(1), D(2) and D(3 and more), from its counts of counts.

    >>> model = estimate([['a', 'rose'], ['a', 'lily']], order=2)
    >>> print(arpa(model).splitlines()[1])
    ngram 1=6

  G: n-grams of an order.
"""

from collections.abc import Iterator, Sequence
import dataclasses
import itertools
import statistics
from typing import NamedTuple

import numpy as np

from tff_asr import checks

UNKNOWN, START, END = '<unk>', '<s>', '</s>'
MAX_ORDER = 5
# KenLM's lmplz has them for text whose counts of counts give none.
FALLBACK_DISCOUNTS = (0.5, 1.0, 1.5)
_SPECIAL = (UNKNOWN, START, END)
_START_ID, _END_ID = map(_SPECIAL.index, (START, END))
# Of a model, in standard deviations of the noise: see `with_bigram_counts`.
_MODEL_WEIGHT = 40
# A start is never predicted; by convention its logarithm is this.
_LOG_ZERO = -99.0


class _Counts(NamedTuple):
  """The n-grams of one order, each once; they are numbered by row.

  contexts, words, suffixes: As in `NGrams`.
  counts: int64 [G], how often each occurs in the text; of a unigram maybe 0.
  """

  contexts: np.ndarray
  words: np.ndarray
  suffixes: np.ndarray
  counts: np.ndarray


@dataclasses.dataclass(frozen=True)
class NGrams:
  """The n-grams of one order, numbered by row.

  Attributes:
    contexts: int64 [G], number of the (n-1)-gram without the last word.
    words: int64 [G], id of the last word.
    suffixes: int64 [G], number of the (n-1)-gram without the first word.
    shares: float64 [G], the first term of p; of unigrams, p.
    backoffs: float64 [G], b of the n-gram as a context; 1 if nothing follows.
    is_kept: bool [G], False for those that pruning leaves out.
  """

  contexts: np.ndarray
  words: np.ndarray
  suffixes: np.ndarray
  shares: np.ndarray
  backoffs: np.ndarray
  is_kept: np.ndarray


@dataclasses.dataclass(frozen=True)
class Model:
  """An n-gram model.

  Attributes:
    vocabulary: The word of each id: <unk>, <s>, </s>, then others, sorted.
    orders: The n-grams of each order, from 1 on. The number of a unigram is the
      id of its word.
  """

  vocabulary: tuple[str, ...]
  orders: tuple[NGrams, ...]

  def probs(self) -> list[np.ndarray]:
    """Returns p of each n-gram's last word after the others, by order."""
    found = [self.orders[0].shares]
    for lower, ngrams in zip(self.orders, self.orders[1:]):
      found.append(
          ngrams.shares
          + lower.backoffs[ngrams.contexts] * found[-1][ngrams.suffixes]
      )
    return found


def estimate(
    sentences: Sequence[Sequence[str]],
    *,
    order: int,
    prune: Sequence[int] = (0,),
) -> Model:
  """Estimates a model.

  Args:
    sentences: The words of each sentence, at least one. <unk> is the unknown
      word.
    order: Words of the longest n-grams, 2 to 5.
    prune: As of KenLM's lmplz: n-grams of order i are left out if they occur at
      most prune[i - 1] times. The last number is also that of further orders.
      The first is 0: no word is left out.

  Raises:
    ValueError: An argument is not as above, a word is <s> or </s>, or the text
      has no n-gram of the order.
  """
  checks.one_of(range(2, MAX_ORDER + 1), order=order)
  prune = [*prune, *prune[-1:] * order][:order]
  if not prune or prune[0] != 0 or sorted(prune) != prune:
    raise ValueError(
        f'prune must begin with 0 and must not decrease, found {prune}.'
    )
  vocabulary = _vocabulary(sentences)
  orders: list[NGrams] = []
  tables = _count(sentences, vocabulary, order=order)
  for n, (table, adjusted) in enumerate(zip(tables, _adjust(tables))):
    is_kept = table.counts > prune[n]
    if not n:
      is_kept[:] = True  # Also <unk>, which may not occur.
    if not np.any(is_kept):
      raise ValueError(f'prune {prune} leaves no n-gram of order {n + 1}.')
    discounted = adjusted - _discounts(adjusted)[np.minimum(adjusted, 3)]
    discounted[~is_kept] = 0
    totals = np.bincount(table.contexts, adjusted)
    rest = np.bincount(table.contexts, adjusted - discounted)
    # Not 0 / 0: no word follows such an n-gram.
    backoffs = np.divide(
        rest, totals, out=np.ones_like(rest), where=totals > 0
    )
    shares = discounted / totals[table.contexts]
    if n:
      # Contexts after the last one that a word follows are not in the sums.
      orders[-1].backoffs[: len(backoffs)] = backoffs
    else:
      # All words have the same probability below; a start has none.
      shares += backoffs / (len(vocabulary) - 1)
      shares[_START_ID] = 0
    orders.append(NGrams(
        *table[:3], shares, backoffs=np.ones(len(shares)), is_kept=is_kept
    ))
  return Model(vocabulary, tuple(orders))


def with_bigram_counts(
    model: Model, counts: np.ndarray, *, words: Sequence[str], stddev: float
) -> Model:
  """Returns a model with the noised counts of bigrams of other text.

  Counts c that may be noise alone are set to 0. With S(h) the sum of the others
  after a context h, T(h) the sum of all after h (at least S(h)), and M the
  weight of the model,

      p'(w | h) = (c(h w) + (T(h) - S(h) + M) p(w | h)) / (T(h) + M).

  A bigram that the model has not counts if noise alone would exceed it in one
  bigram for four words. Longer n-grams keep their shares. Privacy: this looks
  at the noised counts only, not at the text.

  Args:
    model: The model, p.
    counts: float64 [W, W], by context and word after it.
    words: W different words of the model, as `counts` has them.
    stddev: Standard deviation of the noise of each count, above 0.
  """
  unigrams, bigrams, *longer = model.orders
  number = {word: i for i, word in enumerate(model.vocabulary)}
  ids = np.array([number[word] for word in words])
  columns = np.full(len(number), -1)
  columns[ids] = np.arange(len(ids))
  # Rows of the model's bigrams in `counts`.
  rows = np.flatnonzero(
      (columns[bigrams.contexts] >= 0) & (columns[bigrams.words] >= 0)
  )
  cells = columns[bigrams.contexts[rows]], columns[bigrams.words[rows]]
  false_share = 1 / (4 * len(words))
  threshold = stddev * statistics.NormalDist().inv_cdf(1 - false_share)
  thresholds = np.full_like(counts, threshold)
  thresholds[cells] = np.where(bigrams.is_kept[rows], 0, threshold)
  kept = np.where(counts > thresholds, counts, 0)
  # Nothing follows an end, and a start follows nothing.
  kept[ids == _END_ID] = 0
  kept[:, ids == _START_ID] = 0
  sums = kept.sum(axis=1)
  weights = np.maximum(counts.sum(axis=1), sums) + _MODEL_WEIGHT * stddev
  kept /= weights[:, np.newaxis]
  rest = np.ones(len(number))
  rest[ids] = 1 - sums / weights
  shares = bigrams.shares * rest[bigrams.contexts]
  shares[rows] += kept[cells]
  is_kept = bigrams.is_kept.copy()
  is_kept[rows] |= kept[cells] > 0
  # What is left is new.
  kept[cells] = 0
  new = np.nonzero(kept)
  contexts, following = ids[new[0]], ids[new[1]]
  ones = np.ones(len(contexts))
  added = NGrams(contexts, following, following, kept[new], ones, ones > 0)
  changed = dataclasses.replace(bigrams, shares=shares, is_kept=is_kept)
  joined = [
      np.concatenate([getattr(each, field.name) for each in (changed, added)])
      for field in dataclasses.fields(NGrams)
  ]
  unigrams = dataclasses.replace(unigrams, backoffs=unigrams.backoffs * rest)
  return Model(model.vocabulary, (unigrams, NGrams(*joined), *longer))


def arpa(model: Model, *, comment: str = '') -> str:
  """Returns a model as the text of an ARPA file.

  Args:
    model: The model.
    comment: One line, which the file begins with after '# '; readers other than
      KenLM may not take it.
  """
  lines = [f'# {comment}'] if comment else []
  lines.append('\\data\\')
  for n, ngrams in enumerate(model.orders, start=1):
    lines.append(f'ngram {n}={np.count_nonzero(ngrams.is_kept)}')
  texts, probs = [''], model.probs()
  for n, ngrams in enumerate(model.orders, start=1):
    texts = [
        f'{texts[context]} {model.vocabulary[word]}'.lstrip()
        for context, word in zip(ngrams.contexts, ngrams.words)
    ]
    lines += ['', f'\\{n}-grams:']
    is_last = n == len(model.orders)
    with np.errstate(divide='ignore'):  # Of <s>.
      logs = np.maximum(np.log10(probs[n - 1]), _LOG_ZERO)
    backoffs = np.log10(ngrams.backoffs)
    for i in np.flatnonzero(ngrams.is_kept):
      line = f'{logs[i]:.7g}\t{texts[i]}'
      lines.append(line if is_last else f'{line}\t{backoffs[i]:.7g}')
  return '\n'.join([*lines, '', '\\end\\', ''])


def _vocabulary(sentences: Sequence[Sequence[str]]) -> tuple[str, ...]:
  """`Model.vocabulary` of some text."""
  words = {word for sentence in sentences for word in sentence}
  if not words:
    raise ValueError('the text has no words.')
  if found := words & {START, END}:
    raise ValueError(f'{min(found)} stands in the text; it cannot be a word.')
  return (*_SPECIAL, *sorted(words - {UNKNOWN}))


def _count(
    sentences: Sequence[Sequence[str]],
    vocabulary: Sequence[str],
    *,
    order: int,
) -> list[_Counts]:
  """Counts the n-grams of each order in sentences from <s> to </s>."""
  ids = {word: i for i, word in enumerate(vocabulary)}
  tokens = np.array([
      ids[word]
      for sentence in sentences
      if sentence
      for word in (START, *sentence, END)
  ])
  size = len(vocabulary)
  zeros = np.zeros(size, np.int64)
  tables = [_Counts(
      zeros, np.arange(size), zeros, np.bincount(tokens, minlength=size)
  )]
  # The number of the n-gram that ends at each token; -1 if it would begin in
  # the sentence before.
  ending = tokens
  for n in range(2, order + 1):
    before = np.concatenate([[-1], ending[:-1]])
    is_longer = (before >= 0) & (tokens != _START_ID)
    keys = before[is_longer] * size + tokens[is_longer]
    if not len(keys):
      raise ValueError(
          f'order is {order}, but no sentence has {n - 2} words: take a '
          'smaller order.'
      )
    keys, first, numbers, counts = np.unique(
        keys, return_index=True, return_inverse=True, return_counts=True
    )
    suffixes = ending[is_longer][first]
    tables.append(_Counts(keys // size, keys % size, suffixes, counts))
    ending = np.full_like(tokens, -1)
    ending[is_longer] = numbers
  return tables


def _adjust(tables: Sequence[_Counts]) -> Iterator[np.ndarray]:
  """Yields the counts a of each order: int64 [G]."""
  begins = np.array([])  # Whether each n-gram begins with <s>.
  for table, longer in itertools.zip_longest(tables, tables[1:]):
    if longer is None:
      yield table.counts
      return
    adjusted = np.bincount(longer.suffixes, minlength=len(table.counts))
    if not len(begins):
      begins = table.words == _START_ID
    else:
      begins = begins[table.contexts]
      # No word is before a start.
      adjusted = np.where(begins, table.counts, adjusted)
    yield adjusted


def _discounts(adjusted: np.ndarray) -> np.ndarray:
  """D of the counts 0, 1, 2, and of those from 3 on: float64 [4]."""
  # Of n-grams that occur once, twice, three and four times.
  counts = [np.count_nonzero(adjusted == i) for i in range(1, 5)]
  if all(counts):
    share = counts[0] / (counts[0] + 2 * counts[1])
    discounts = [
        i - (i + 1) * share * counts[i] / counts[i - 1] for i in range(1, 4)
    ]
    # Without a discount, words that are new after a context had probability 0.
    if min(discounts) > 0:
      return np.array([0, *discounts])
  return np.array([0, *FALLBACK_DISCOUNTS])

"""Tests of an audit's residuals: is a release its known sum plus stated noise?

In an audit everyone but the canaries sends zeros, and canaries send known
directions far above the clip. So the sum that each round should have released
is known, and the residual, what was released minus that sum, should be the
stated noise: independent N(0, 1) in units of the stated deviation. Rounds whose
noise is correlated by design (`strategies`) are whitened by its covariance
first, residuals and known sums alike.

  D: elements of a layer. T: rounds.

    test      statistic                                     null distribution
    layers    squares of a layer's residuals: of a round,   chi-squared, D or
              over rounds, and over all layers              D T degrees
              square of a layer's mean, over rounds         chi-squared, T
    elements  squares of an element over rounds: the k-th   chi-squared, T;
              smallest and largest of D, k = 1, 2, 4, ...   binomial, D
    rounds    cosine of two rounds, in a layer and in all   Beta((n - 1) / 2,
                                                            (n - 1) / 2)
    pieces    cosine of the first 64 elements of two        the same
              halves of layers, over rounds
    sums      inner product with the known sum, in a layer  normal, above
              and in all: high if someone counts for more

The smallest p-value of a test is multiplied by the number of statistics in it
(Bonferroni), and `decide` corrects for the number of tests (Holm 1979): an
honest run fails with a probability of at most `LEVEL`. What these tests cannot
see is listed in docs/attacks.md.
"""

from collections.abc import Iterable, Sequence
import itertools
from typing import NamedTuple

import numpy as np
from scipy import linalg
from scipy import special
from scipy import stats

# The probability that an honest run fails.
LEVEL = 0.01

# Noise is on a grid and releases are float32: nearer to 0 than this share of
# the deviation, an element's residual tells nothing.
_RESOLUTION = 2.0**-12
# Elements of half a layer that are compared with those of other halves.
_PIECE = 64


class Layer(NamedTuple):
  """A layer of all rounds, in units of the noise's stated deviation.

  Attributes:
    name: Its name.
    residuals: What was released minus the known sum, float64 [T, D].
    known: The known sum, float64 [T, D].
  """

  name: str
  residuals: np.ndarray
  known: np.ndarray


class Test(NamedTuple):
  """A test's result.

  Attributes:
    name: The test.
    finding: The most unlikely statistic in it.
    p_value: Its p-value, corrected for the number of statistics.
  """

  name: str
  finding: str
  p_value: float


class _Finding(NamedTuple):
  """A statistic in words, and its p-value."""

  text: str
  p_value: float


def run_tests(
    layers: Iterable[Layer], *, covariance: np.ndarray
) -> list[Test]:
  """Returns the results of the module's tests.

  Args:
    layers: At least one layer; each is used once and not kept.
    covariance: Covariance of the noise of rounds in units of the stated
      variance, float64 [T, T].
  """
  root = np.linalg.cholesky(covariance)
  whiten = lambda values: linalg.solve_triangular(root, values, lower=True)
  findings = {
      name: [] for name in ('layers', 'elements', 'rounds', 'pieces', 'sums')
  }
  pieces = []
  total_size, total_gram, total_product, total_energy = 0, 0.0, 0.0, 0.0

  def add(name: str, size: int, gram, product, energy) -> None:
    findings['layers'].append(_scale(name, np.diag(gram), size))
    if len(gram) > 1 and size > 1:
      findings['rounds'].append(_rounds(name, gram, size))
    if energy > 0:
      findings['sums'].append(_sum(name, product / np.sqrt(energy)))

  for layer in layers:
    residuals, known = whiten(layer.residuals), whiten(layer.known)
    size = residuals.shape[1]
    gram = residuals @ residuals.T
    product, energy = np.vdot(residuals, known), np.vdot(known, known)
    add(layer.name, size, gram, product, energy)
    findings['layers'].append(_mean(layer.name, residuals))
    findings['elements'].append(_elements(layer.name, residuals))
    pieces += _halves(layer.name, residuals)
    total_size += size
    total_gram = total_gram + gram
    total_product += product
    total_energy += energy
  add('all layers', total_size, total_gram, total_product, total_energy)
  if len(pieces) > 1:
    findings['pieces'].append(_pieces(pieces))
  return [
      Test(name, *_smallest(found)) for name, found in findings.items() if found
  ]


def decide(tests: Sequence[Test]) -> list[bool]:
  """Returns which tests fail, with an error of `LEVEL` over all (Holm)."""
  fails = [False] * len(tests)
  order = sorted(range(len(tests)), key=lambda place: tests[place].p_value)
  for rank, place in enumerate(order):
    if tests[place].p_value > LEVEL / (len(tests) - rank):
      break
    fails[place] = True
  return fails


def _smallest(findings: Sequence[_Finding]) -> _Finding:
  """The finding with the smallest p-value, times their number."""
  text, p_value = min(findings, key=lambda finding: finding.p_value)
  return _Finding(text, float(min(1.0, len(findings) * p_value)))


def _two_sided(squares: np.ndarray, counts: np.ndarray) -> np.ndarray:
  """P-values of sums of squares of `counts` standard normals."""
  below = stats.chi2.cdf(squares, counts)
  above = stats.chi2.sf(squares, counts)
  return np.minimum(1.0, 2 * np.minimum(below, above))


def _scale(name: str, squares: np.ndarray, size: int) -> _Finding:
  """Squares of a layer's residuals in each round, [T], and over rounds."""
  counts = np.append(np.full(len(squares), size), size * len(squares))
  squares = np.append(squares, squares.sum())
  found = []
  for number, p_value in enumerate(_two_sided(squares, counts), start=1):
    where = f'round {number}' if number < len(squares) else 'all rounds'
    ratio = np.sqrt(squares[number - 1] / counts[number - 1])
    found.append(
        _Finding(f'{ratio:.5g} of the stated deviation ({name}, {where})',
                 p_value)
    )
  return _smallest(found)


def _mean(name: str, residuals: np.ndarray) -> _Finding:
  """The square of a layer's mean, over rounds."""
  num_rounds, size = residuals.shape
  square = np.sum(residuals.sum(axis=1) ** 2) / size
  return _Finding(
      f'{np.sqrt(square / num_rounds):.5g} of the stated deviation (mean of '
      f'{name})',
      _two_sided(square, num_rounds),
  )


def _elements(name: str, residuals: np.ndarray) -> _Finding:
  """The k smallest and k largest sums of squares of elements over rounds."""
  num_rounds, size = residuals.shape
  counts = 2 ** np.arange(size.bit_length())
  least = np.sum((np.abs(residuals) + _RESOLUTION) ** 2, axis=0)
  most = np.sum(residuals**2, axis=0)
  found = []
  for words, edges, tail in (
      ('most', np.sort(least)[counts - 1], stats.chi2.cdf),
      ('least', np.sort(most)[-counts], stats.chi2.sf),
  ):
    # That as many of D independent elements or more are as far out.
    p_values = stats.binom.sf(counts - 1, size, tail(edges, num_rounds))
    found += [
        _Finding(
            f'at {words} {np.sqrt(edge / num_rounds):.3g} of the stated '
            f'deviation in {count:,} of {size:,} elements ({name})',
            p_value,
        )
        for edge, count, p_value in zip(edges, counts, p_values, strict=True)
    ]
  return _smallest(found)


def _rounds(name: str, gram: np.ndarray, size: int) -> _Finding:
  """The highest correlation of two rounds, of their inner products [T, T]."""
  first, second = np.triu_indices(len(gram), 1)
  norms = np.sqrt(np.diag(gram))
  cosines = _cosines(gram[first, second], norms[first] * norms[second])
  place = int(np.argmax(np.abs(cosines)))
  return _Finding(
      f'correlation {cosines[place]:.2g} of rounds {first[place] + 1} and '
      f'{second[place] + 1} ({name})',
      len(cosines) * float(_cosine_p(cosines[place], size)),
  )


def _halves(
    name: str, residuals: np.ndarray
) -> list[tuple[str, np.ndarray]]:
  """The first elements of each half of a layer, and their names."""
  half = residuals.shape[1] // 2
  if not half:
    return [(name, residuals)]
  size = min(half, _PIECE)
  return [
      (f'{which} half of {name}', residuals[:, start : start + size])
      for which, start in (('first', 0), ('second', half))
  ]


def _pieces(pieces: Sequence[tuple[str, np.ndarray]]) -> _Finding:
  """The highest correlation of two pieces, by the elements that both have."""
  pairs = [*itertools.combinations(pieces, 2)]
  products, norms, counts = np.zeros([3, len(pairs)])
  for place, ((_, first), (_, second)) in enumerate(pairs):
    size = min(first.shape[1], second.shape[1])
    first, second = first[:, :size], second[:, :size]
    products[place] = np.vdot(first, second)
    norms[place] = np.linalg.norm(first) * np.linalg.norm(second)
    counts[place] = first.size
  cosines = _cosines(products, norms)
  # One value has no direction.
  p_values = np.where(
      counts > 1, _cosine_p(cosines, np.maximum(counts, 2)), 1.0
  )
  place = int(np.argmin(p_values))
  (first, _), (second, _) = pairs[place]
  return _Finding(
      f'correlation {cosines[place]:.2g} of {first} and {second}',
      len(pairs) * p_values[place],
  )


def _sum(name: str, deviations: float) -> _Finding:
  """The inner product of residuals and known sum, in its deviations."""
  return _Finding(
      f'{deviations:.1f} deviations above the known sum ({name})',
      special.ndtr(-deviations),
  )


def _cosines(products: np.ndarray, norms: np.ndarray) -> np.ndarray:
  """Inner products over norms, 0 where these are 0."""
  return np.divide(
      products, norms, where=norms > 0, out=np.zeros(len(products))
  )


def _cosine_p(cosines: np.ndarray, counts: np.ndarray) -> np.ndarray:
  """P-values of cosines of independent normal vectors of `counts` elements.

  (1 + cosine) / 2 is Beta((n - 1) / 2, (n - 1) / 2).
  """
  shape = (np.asarray(counts) - 1) / 2
  far = np.clip((1 - np.abs(cosines)) / 2, 0, 1)
  return 2 * special.betainc(shape, shape, far)

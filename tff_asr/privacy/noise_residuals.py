"""Residual tests of an audit: each release is its known sum plus stated noise.

In an audit all clients except the canaries send zeros, and canaries send known
directions far above the clip. So the sum that each round should have released
is known, and the residual, the release minus that sum, should be the stated
noise: independent N(0, 1) in units of the stated deviation. Correlated noise
(`strategies`) is first whitened by its covariance.

  D: elements of a layer. T: rounds.

    by         statistic                                    null distribution
    layers     squares of a layer's residuals, of a round   chi-squared, D or
               and over rounds, and over all layers         D T degrees
    elements   squares of an element over rounds: the k-th  chi-squared, T;
               smallest and largest, k = 1, 2, 4, ...       binomial, D
    rounds     cosine of two rounds, in a layer and in all  Beta((n - 1) / 2,
                                                            (n - 1) / 2)
    sums       inner product with the known sum, in a       normal, above
               layer and in all: high if clients count
               for more than the clip

P-values are multiplied by the number of statistics (Bonferroni), so that an
honest run fails with a probability of at most `LEVEL`. docs/attacks.md
("Audit") lists what the test cannot see.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
from scipy import linalg
from scipy import special
from scipy import stats

# The probability that an honest run fails.
LEVEL = 0.01

# Noise is on a grid and releases are float32, so an element's residual is not
# resolved below this share of the deviation.
_RESOLUTION = 2.0**-12
# Layers, elements, rounds and sums share the level.
_NUM_VIEWS = 4


class NoiseResiduals(NamedTuple):
  """A layer of all rounds, in units of the noise's stated deviation.

  Attributes:
    name: Its name.
    residuals: The release minus the known sum, float64 [T, D].
    known: The known sum, float64 [T, D].
  """

  name: str
  residuals: np.ndarray
  known: np.ndarray


class ResidualTest(NamedTuple):
  """The result of a test.

  Attributes:
    name: The test.
    finding: Its most unlikely statistic, in words.
    p_value: The statistic's p-value, corrected for all others.
  """

  name: str
  finding: str
  p_value: float

  @property
  def fails(self) -> bool:
    return self.p_value < LEVEL


class _Finding(NamedTuple):
  """A statistic in words, and its p-value."""

  text: str
  p_value: float


def run_tests(
    layers: Iterable[NoiseResiduals], *, covariance: np.ndarray
) -> list[ResidualTest]:
  """Tests residuals by layers, elements, rounds (if several) and sums.

  Args:
    layers: At least one layer; each is used once and not kept.
    covariance: Covariance of the noise of rounds in units of the stated
      variance, float64 [T, T].
  """
  # With covariance L L^T, L^-1 makes the noise of rounds independent.
  root = np.linalg.cholesky(covariance)
  whiten = lambda values: linalg.solve_triangular(root, values, lower=True)
  findings = {name: [] for name in ('layers', 'elements', 'rounds', 'sums')}
  # Sums of layers suffice for the views of all layers together.
  total_size, total_gram, total_product, total_energy = 0, 0.0, 0.0, 0.0

  def add(
      name: str, size: int, gram: np.ndarray, product: float, energy: float
  ) -> None:
    findings['layers'].append(_scale(name, np.diag(gram), size))
    # A round without canaries has no known sum.
    if energy > 0:
      findings['sums'].append(_sum(name, product / np.sqrt(energy)))
    # One element has no direction, and one round no pair.
    if len(gram) > 1 and size > 1:
      findings['rounds'].append(_rounds(name, gram, size))

  for layer in layers:
    whitened, known = whiten(layer.residuals), whiten(layer.known)
    size = whitened.shape[1]
    gram = whitened @ whitened.T
    product, energy = np.vdot(whitened, known), np.vdot(known, known)
    add(layer.name, size, gram, product, energy)
    findings['elements'].append(_elements(layer.name, whitened))
    total_size += size
    total_gram = total_gram + gram
    total_product += product
    total_energy += energy
  add('all layers', total_size, total_gram, total_product, total_energy)
  tests = []
  for name, found in findings.items():
    if found:
      text, p_value = _smallest(found)
      tests.append(ResidualTest(name, text, min(1.0, _NUM_VIEWS * p_value)))
  return tests


def _smallest(findings: Sequence[_Finding]) -> _Finding:
  """The finding with the smallest p-value, times their number."""
  text, p_value = min(findings, key=lambda finding: finding.p_value)
  return _Finding(text, float(min(1.0, len(findings) * p_value)))


def _two_sided(squares: np.ndarray, counts: np.ndarray) -> np.ndarray:
  """P-values of sums of squares of `counts` standard normals."""
  # Both tails alone: 1 - cdf would lose small p-values.
  below = stats.chi2.cdf(squares, counts)
  above = stats.chi2.sf(squares, counts)
  return np.minimum(1.0, 2 * np.minimum(below, above))


def _scale(name: str, squares: np.ndarray, size: int) -> _Finding:
  """Squares of a layer's residuals in each round, [T], and over rounds."""
  # Degrees of freedom of each round, and of all rounds.
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


def _elements(name: str, residuals: np.ndarray) -> _Finding:
  """The k smallest and k largest sums of squares of elements over rounds."""
  num_rounds, size = residuals.shape
  # Powers of two: one p-value for each scale, from single elements to all.
  counts = 2 ** np.arange(size.bit_length())
  # Widened by the resolution, so that rounding alone cannot fail the test.
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
  # Each pair once, no round with itself.
  first, second = np.triu_indices(len(gram), 1)
  norms = np.sqrt(np.diag(gram))
  norms = norms[first] * norms[second]
  # A layer without noise has no direction; other tests fail for it.
  cosines = np.divide(
      gram[first, second], norms, where=norms > 0, out=np.zeros(len(norms))
  )
  place = int(np.argmax(np.abs(cosines)))
  return _Finding(
      f'correlation {cosines[place]:.2g} of rounds {first[place] + 1} and '
      f'{second[place] + 1} ({name})',
      # Corrected for the number of pairs.
      len(cosines) * float(_cosine_p(cosines[place], size)),
  )


def _sum(name: str, deviations: float) -> _Finding:
  """The inner product of residuals and known sum, in its deviations."""
  return _Finding(
      f'{deviations:.1f} deviations above the known sum ({name})',
      # One-sided: only clients that count for more than the clip are a risk.
      special.ndtr(-deviations),
  )


def _cosine_p(cosine: float, size: int) -> float:
  """P-value of the cosine of independent normal vectors of this many elements.

  (1 + cosine) / 2 is Beta((n - 1) / 2, (n - 1) / 2).
  """
  shape = (size - 1) / 2
  # Rounding can take the cosine of a repeated round above 1.
  far = max(0.0, (1 - abs(cosine)) / 2)
  # Two-sided: noise that cancels between rounds is as bad as repeated noise.
  return 2 * special.betainc(shape, shape, far)

"""Tests of released sums whose parts are known, with p-values and a verdict.

Whoever audits a run knows the sum that each round should have released: all
clients but the canaries send zeros, and canaries send known directions, far
above the clip. The noise is what was released, less that sum. `observe` takes
from a round what the tests need, and `run_tests` tests, of what is stated:

    charged    the noise of the sums is at least what the ledger charges
    scale      noise is N(0, stddev^2): the sum of its squares in each round and
               layer, over all elements (chi-squared), and over rounds
    shape      and by Kolmogorov and Smirnov, each layer
    lattice    exp(-(a^2 + b^2) / 2) 2^23 of neighbouring elements a, b is no
               integer, as it is for TensorFlow's float32 normal, which is
               Box-Muller from uniforms of 23 bits: from one release of that,
               members are told from non-members at any epsilon
    rounds     noise of two rounds is not correlated, in any layer
    layers     noise of two layers is not correlated
    held out   noise along directions that never joined is N(0, 1), of rounds,
               of their sum, and of differences of rounds
    clip       nobody counts for more than the clip, in any layer, nor twice
    sampling   cohorts are drawn as stated: their sizes, how often each client
               joins, and how many clients two cohorts share
    membership no adversary guesses more than epsilon allows (`audit`)

Each test corrects its p-value for the number of things it looks at
(Bonferroni), and `decide` for the number of tests (Holm 1979): an honest run
fails with a probability of at most `LEVEL`.

Where the noise of rounds is correlated by design (`strategies`), it is
brought to independent rounds first.

  D: elements of a layer. H: layers. K: canaries. T: rounds.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
import dataclasses
from typing import NamedTuple

import numpy as np
from scipy import linalg
from scipy import special
from scipy import stats

from tff_asr.privacy import accounting
from tff_asr.privacy import audit

# The probability that an honest run fails.
LEVEL = 0.01

# Elements of a round, and of a layer in it, whose noise is kept.
_KEPT_OF_ROUND = 2**18
_KEPT_OF_LAYER = 2**14
# Values of the layers that are compared with each other.
_COMPARED = 2**25
# Fewer elements than these say nothing about a lattice.
_MIN_PAIRS = 30

# Slices of the canaries, and their layers as they count in a sum over the clip,
# float32 [k, D] each.
Blocks = Callable[[], Iterable[tuple[slice, Sequence[np.ndarray]]]]


class Observation(NamedTuple):
  """What is kept of a round. Noise is in units of its stated deviation.

  Attributes:
    ratio: Stated standard deviation of the noise over the clip.
    noise: Noise of the elements that are kept, float64, the layers one after
      another.
    squares: Sums of the noise's squares over all elements, float64 [H].
    products: Inner products of noise and known sum, float64 [H].
    energies: Squared norms of the known sum, float64 [H].
    projections: Noise along the canaries' directions, float64 [K].
    scores: Canaries' scores, from the release alone, float64 [K].
    means: What `audit.scores` returns with them, float64 [K].
  """

  ratio: float
  noise: np.ndarray
  squares: np.ndarray
  products: np.ndarray
  energies: np.ndarray
  projections: np.ndarray
  scores: np.ndarray
  means: np.ndarray


class Test(NamedTuple):
  """A test's result: what is most unlikely in it, and how likely that is."""

  name: str
  finding: str
  p_value: float


@dataclasses.dataclass(frozen=True, kw_only=True)
class Audited:
  """A run's rounds, and what is stated about them.

  Attributes:
    rounds: What was observed, T of them.
    layers: The layers' names and numbers of elements, in order.
    covariance: Covariance of the noise of rounds in units of the stated
      variance, float64 [T, T].
    charged: The noise multiplier that the ledger charges.
    sampling: How cohorts are drawn, as the ledger has it.
    cohorts: The rounds' clients, ascending places in the population, int [n].
    canaries: The canaries' places in the population, int [K].
    included: Canaries that are not held out, bool [K].
    epsilon: Accounted epsilon, at least 0; may be infinite.
    delta: Its delta.
  """

  rounds: Sequence[Observation]
  layers: dict[str, int]
  covariance: np.ndarray
  charged: float
  sampling: accounting.Sampling
  cohorts: Sequence[np.ndarray]
  canaries: np.ndarray
  included: np.ndarray
  epsilon: float
  delta: float

  def stacked(self, name: str) -> np.ndarray:
    """A field of all rounds, float64 [T, ...]."""
    return np.stack([getattr(each, name) for each in self.rounds])

  @property
  def joined(self) -> np.ndarray:
    """Which canary counts in which round's sum, bool [T, K]."""
    drawn = np.stack([
        np.isin(self.canaries, cohort, assume_unique=True)
        for cohort in self.cohorts
    ])
    return drawn & self.included

  def likelihood_ratios(self) -> np.ndarray:
    """The canaries' `audit.likelihood_ratios`, float64 [K]."""
    return audit.likelihood_ratios(
        self.stacked('scores'),
        self.stacked('means'),
        sampling=self.sampling,
        covariance=self.covariance,
        places=self.canaries,
    )


def observe(
    released: Sequence[np.ndarray],
    *,
    joined: np.ndarray,
    blocks: Blocks,
    noise_ratio: float,
) -> Observation:
  """Takes from a round's release what the tests need.

  Args:
    released: Layers of the released sum over the round's clip C, float64 [D]
      each.
    joined: Canaries that count in this sum, bool [K].
    blocks: What canaries add to it, in the same blocks at each call.
    noise_ratio: Stated standard deviation of the noise on the sum, over C.
  """
  known = [np.zeros(len(layer)) for layer in released]
  for places, directions in blocks():
    here = joined[places]
    if here.any():
      for total, layer in zip(known, directions, strict=True):
        total += layer[here].sum(axis=0, dtype=np.float64)
  noise = [
      (layer - total) / noise_ratio
      for layer, total in zip(released, known, strict=True)
  ]
  projections, scores, means = [], [], []
  for _, directions in blocks():
    inner = norms = 0.0
    for layer, rows in zip(noise, directions, strict=True):
      inner = inner + rows @ layer.astype(rows.dtype)
      norms = norms + np.einsum('kd,kd->k', rows, rows)
    projections.append(inner / np.sqrt(norms))
    found = audit.scores(released, directions)
    scores.append(found[0])
    means.append(found[1])
  kept = kept_places([len(layer) for layer in noise])
  return Observation(
      ratio=noise_ratio,
      noise=np.concatenate(
          [layer[places] for layer, places in zip(noise, kept, strict=True)]
      ),
      squares=np.array([layer @ layer for layer in noise]),
      products=np.array([
          layer @ total / noise_ratio
          for layer, total in zip(noise, known, strict=True)
      ]),
      energies=np.array([total @ total / noise_ratio**2 for total in known]),
      projections=np.concatenate(projections).astype(np.float64),
      scores=np.concatenate(scores),
      means=np.concatenate(means),
  )


def kept_places(sizes: Sequence[int]) -> list[np.ndarray]:
  """Returns which elements of each layer are kept, int64 ascending.

  All elements of a small layer are kept. A larger layer keeps an even number of
  its first elements, and as many in pairs of neighbours, from all over it.

  Args:
    sizes: The layers' numbers of elements.
  """
  most = min(_KEPT_OF_LAYER, _KEPT_OF_ROUND // len(sizes))
  half = max(2, most // 4 * 2)
  places = []
  for size in sizes:
    if size <= 2 * half:
      places.append(np.arange(size))
    else:
      pairs = np.linspace(half, size - 2, half // 2).astype(np.int64) // 2 * 2
      spread = np.stack([pairs, pairs + 1], axis=1).ravel()
      places.append(np.concatenate([np.arange(half), spread]))
  return places


def run_tests(audited: Audited) -> list[Test]:
  """Returns the results of all tests; see the module."""
  return [
      _charged(audited),
      _scale(audited),
      _shape(audited),
      _lattice(audited),
      *([_rounds(audited)] if len(audited.rounds) > 1 else []),
      *([_layers(audited)] if len(audited.layers) > 1 else []),
      _held_out(audited),
      _clip(audited),
      _sampling(audited),
      _membership(audited),
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


def _worst(
    name: str, p_values: np.ndarray, describe: Callable[..., str]
) -> Test:
  """The smallest p-value, times their number; `describe` takes its place."""
  p_values = np.asarray(p_values, np.float64)
  place = np.unravel_index(np.argmin(p_values), p_values.shape)
  return Test(
      name,
      describe(*(int(index) for index in place)),
      float(min(1.0, p_values.size * p_values[place])),
  )


def _charged(audited: Audited) -> Test:
  """The stated noise against the charged one: certain either way."""
  least = min(each.ratio for each in audited.rounds)
  # Both were rounded to float32.
  is_enough = least >= audited.charged * (1 - 1e-6)
  return Test(
      'charged',
      f'noise / clip is {least:.4g}, charged is {audited.charged:.4g}',
      float(is_enough),
  )


def _two_sided(squares: np.ndarray, counts: np.ndarray) -> np.ndarray:
  """P-values of sums of squares of so many standard normals."""
  below = stats.chi2.cdf(squares, counts)
  above = stats.chi2.sf(squares, counts)
  return np.minimum(1.0, 2 * np.minimum(below, above))


def _scale(audited: Audited) -> Test:
  """Sums of squares, of a round and layer, a round, a layer and of all."""
  sizes = np.array([*audited.layers.values()])
  squares = audited.stacked('squares') / np.diag(audited.covariance)[:, None]
  num_rounds = len(squares)
  over_rounds, kept = [], []
  for noise in _whitened(audited):
    over_rounds.append(np.vdot(noise, noise))
    kept.append(noise.size)
  all_squares = np.concatenate([
      squares.ravel(),
      squares.sum(axis=1),
      over_rounds,
      [np.sum(over_rounds)],
  ])
  counts = np.concatenate([
      np.tile(sizes, num_rounds),
      np.full(num_rounds, sizes.sum()),
      kept,
      [np.sum(kept)],
  ])
  names = list(audited.layers)

  def describe(place: int) -> str:
    root = np.sqrt(all_squares[place] / counts[place])
    number, layer = divmod(place, len(names))
    if place < squares.size:
      where = f'{names[layer]}, round {number + 1}'
    elif place < squares.size + num_rounds:
      where = f'round {place - squares.size + 1}'
    else:
      where = [*names, 'all'][place - squares.size - num_rounds]
    return f'{root:.5g} of the stated deviation ({where})'

  return _worst('scale', _two_sided(all_squares, counts), describe)


def _shape(audited: Audited) -> Test:
  """Kolmogorov's distance of each layer's noise."""
  return _kolmogorov(
      'shape', zip(audited.layers, _whitened(audited), strict=True)
  )


def _kolmogorov(
    name: str, sets: Iterable[tuple[str, np.ndarray]]
) -> Test:
  """Kolmogorov's distance of sets of values, by name, from N(0, 1)."""
  names, distances, p_values = [], [], []
  for each, values in sets:
    names.append(each)
    distances.append(_distance(values))
    p_values.append(stats.kstwo.sf(distances[-1], values.size))
  return _worst(
      name,
      p_values,
      lambda place: f'distance {distances[place]:.2g} ({names[place]})',
  )


def _lattice(audited: Audited) -> Test:
  """The mean distance to an integer, of each layer and of all."""
  totals, counts = [], []
  for noise in _by_layer(audited):
    pairs = noise[:, : noise.shape[1] // 2 * 2].reshape(-1, 2)
    half_squares = (pairs**2).sum(axis=1) / 2
    # Nearer to the middle a float32 residual is too coarse for the lattice.
    steps = np.exp(-half_squares[(half_squares > 2) & (half_squares < 40)])
    steps *= 2**23
    totals.append(np.abs(steps - np.round(steps)).sum())
    counts.append(len(steps))
  totals = np.append(totals, np.sum(totals))
  counts = np.append(counts, np.sum(counts))
  # The distance is uniform on [0, 1/2]: variance 1/48.
  deviations = (counts / 4 - totals) * np.sqrt(48 / np.maximum(counts, 1))
  names = [*audited.layers, 'all']
  return _worst(
      'lattice',
      np.where(counts < _MIN_PAIRS, 1.0, special.ndtr(-deviations)),
      lambda place: (
          f'mean distance {totals[place] / max(1, counts[place]):.4f} of '
          f'{counts[place]} pairs, .25 without one ({names[place]})'
      ),
  )


def _rounds(audited: Audited) -> Test:
  """The highest correlation of two rounds, in a layer or in all."""
  def grams() -> Iterator[tuple[str, np.ndarray, int]]:
    total, count = 0.0, 0
    for name, noise in zip(audited.layers, _whitened(audited), strict=True):
      gram = noise @ noise.T
      total, count = total + gram, count + noise.shape[1]
      if noise.shape[1] > 1:
        yield name, gram, noise.shape[1]
    yield 'all', total, count

  found = [
      (name, *_highest_correlation(gram, count))
      for name, gram, count in grams()
  ]

  def describe(place: int) -> str:
    name, _, correlation, (first, second) = found[place]
    return (
        f'correlation {correlation:.2g} of rounds {first + 1} and '
        f'{second + 1} ({name})'
    )

  return _worst('rounds', [p for _, p, *_ in found], describe)


def _highest_correlation(
    gram: np.ndarray, count: int
) -> tuple[float, float, tuple[int, int]]:
  """P-value, corrected for the pairs, of the highest; itself; and whose."""
  norms = np.sqrt(np.diag(gram))
  first, second = np.triu_indices(len(gram), 1)
  scale = norms[first] * norms[second]
  cosines = _ratios(gram[first, second], scale)
  place = int(np.argmax(np.abs(cosines)))
  p = min(1.0, len(first) * float(_cosine_p(cosines[place], count)))
  return p, float(cosines[place]), (int(first[place]), int(second[place]))


def _cosine_p(cosines: np.ndarray, counts: np.ndarray) -> np.ndarray:
  """P-values of cosines of independent normal vectors of so many elements.

  (1 + cosine) / 2 is Beta((n - 1) / 2, (n - 1) / 2).
  """
  shape = (np.asarray(counts) - 1) / 2
  far = np.clip((1 - np.abs(cosines)) / 2, 0, 1)
  return 2 * special.betainc(shape, shape, far)


def _layers(audited: Audited) -> Test:
  """The highest correlation of the first elements of two layers."""
  num_rounds, num_layers = len(audited.rounds), len(audited.layers)
  most = _COMPARED // (num_rounds * num_layers)
  sizes = [*audited.layers.values()]
  whole = [len(places) for places in kept_places(sizes)]
  first = [
      min(most, size if size == kept else kept // 2)
      for size, kept in zip(sizes, whole, strict=True)
  ]
  width = max(first)
  values = np.zeros([num_layers, width, num_rounds])
  for place, noise in enumerate(_whitened(audited)):
    values[place, : first[place]] = noise[:, : first[place]].T
  squares = np.cumsum((values**2).sum(axis=2), axis=1)
  rows, columns = np.triu_indices(num_layers, 1)
  common = np.minimum.outer(first, first)[rows, columns]
  flat = values.reshape(num_layers, -1)
  scale = np.sqrt(squares[rows, common - 1] * squares[columns, common - 1])
  cosines = _ratios((flat @ flat.T)[rows, columns], scale)
  p_values = np.where(
      common * num_rounds > 1,
      _cosine_p(cosines, np.maximum(2, common * num_rounds)),
      1.0,
  )
  names = list(audited.layers)
  return _worst(
      'layers',
      p_values,
      lambda place: (
          f'correlation {cosines[place]:.2g} of {names[rows[place]]} and '
          f'{names[columns[place]]}'
      ),
  )


def _held_out(audited: Audited) -> Test:
  """Kolmogorov's distance of noise along directions that never joined."""
  values = _to_independent_rounds(
      audited.covariance,
      audited.stacked('projections')[:, ~audited.included],
  )
  sets = {
      'rounds': values.ravel(),
      'sums': values.sum(axis=0) / np.sqrt(len(values)),
  }
  if len(values) > 1:
    even = values[: len(values) // 2 * 2]
    sets['differences'] = (even[::2] - even[1::2]).ravel() / np.sqrt(2)
  return _kolmogorov('held out', sets.items())


def _clip(audited: Audited) -> Test:
  """Noise along what should have been summed: high if more was."""
  variances = np.diag(audited.covariance)[:, None]
  products = audited.stacked('products').sum(axis=0)
  energies = (audited.stacked('energies') * variances).sum(axis=0)
  # What is along a canary that joined rounds J has the variance of the sum of
  # the noise over J.
  joined = audited.joined.astype(np.float64)
  along = (audited.stacked('projections') * joined).sum(axis=0)
  spread = np.einsum('tk,ts,sk->k', joined, audited.covariance, joined)
  # In units of what is expected, of one: excess e is 1 + e times the clip.
  values = np.concatenate([products, [products.sum()], along])
  scales = np.sqrt(np.concatenate([energies, [energies.sum()], spread]))
  deviations = _ratios(values, scales)
  names = [
      *audited.layers,
      'all layers',
      *(f'canary {number}' for number in range(len(along))),
  ]
  return _worst(
      'clip',
      special.ndtr(-deviations),
      lambda place: f'{deviations[place]:.1f} deviations above it '
      f'({names[place]})',
  )


def _sampling(audited: Audited) -> Test:
  """Sizes of cohorts, rounds of clients, and clients of two rounds."""
  sampling = audited.sampling
  num_rounds, population = len(audited.cohorts), sampling.population
  sizes = np.array([len(cohort) for cohort in audited.cohorts])
  counts = np.zeros(population, np.int64)
  for cohort in audited.cohorts:
    counts[cohort] += 1
  is_of_a_size = sampling.kind not in ('poisson', 'cyclic')
  if is_of_a_size and np.any(sizes != sampling.cohort_size):
    return Test('sampling', f'cohorts of {sizes.min()} to {sizes.max()}', 0.0)
  if sampling.min_separation is not None:
    last = np.full(population, -np.inf)
    least = np.inf
    for number, cohort in enumerate(audited.cohorts):
      least = min(least, *(number - last[cohort]), np.inf)
      last[cohort] = number
    return Test(
        'sampling',
        f'a client joins again after {least:g} rounds',
        float(least >= sampling.min_separation),
    )
  prob = sampling.sampling_prob
  if prob == 1:
    return Test('sampling', 'everyone joins', 1.0)
  p_values, findings = [], []

  def add(p: float, finding: str) -> None:
    p_values.append(p)
    findings.append(finding)

  generator = np.random.default_rng(0)
  if sampling.kind == 'poisson':
    found = _normal_scores(sizes, population, prob, generator)
    add(
        _two_sided(found @ found, num_rounds),
        f'cohorts of {sizes.min()} to {sizes.max()}',
    )
    total, most = int(sizes.sum()), population * num_rounds
    tails = (
        stats.binom.cdf(total, most, prob),
        stats.binom.sf(total - 1, most, prob),
    )
    add(min(1.0, 2 * min(tails)), f'{total / most:.4g} of clients a round')
  found = _normal_scores(counts, num_rounds, prob, generator)
  add(
      stats.chi2.sf(found @ found, population),
      f'clients join {counts.min()} to {counts.max()} rounds',
  )
  if num_rounds > 1:
    shared = _shared(audited.cohorts, population)
    if sampling.kind == 'poisson':
      tail = stats.binom.sf(shared.max() - 1, population, prob**2)
    else:
      size = sampling.cohort_size
      tail = stats.hypergeom.sf(shared.max() - 1, population, size, size)
    add(
        min(1.0, tail * len(shared)),
        f'two rounds share {shared.max()} clients',
    )
  return _worst('sampling', p_values, lambda place: findings[place])


def _shared(
    cohorts: Sequence[np.ndarray], population: int
) -> np.ndarray:
  """How many clients each two rounds share, int64 [T (T - 1) / 2]."""
  joined = np.zeros([len(cohorts), population], np.float32)
  for row, cohort in zip(joined, cohorts, strict=True):
    row[cohort] = 1
  both = joined @ joined.T
  return both[np.triu_indices(len(cohorts), 1)].astype(np.int64)


def _normal_scores(
    values: np.ndarray,
    count: int,
    prob: float,
    generator: np.random.Generator,
) -> np.ndarray:
  """Values of Binomial(count, prob) as exactly standard normal ones.

  Within its step of the distribution function each takes a random place.
  """
  below = stats.binom.cdf(values - 1, count, prob)
  here = stats.binom.pmf(values, count, prob)
  uniform = below + here * generator.uniform(size=len(values))
  return special.ndtri(np.clip(uniform, 1e-300, 1 - 1e-16))


def _membership(audited: Audited) -> Test:
  """Steinke's test of the accounted epsilon."""
  p = audit.membership_p_value(
      audited.likelihood_ratios(),
      audited.included,
      epsilon=audited.epsilon,
      delta=audited.delta,
  )
  return Test('membership', f'at the accounted {audited.epsilon:.4g}', p)


def _ratios(values: np.ndarray, scales: np.ndarray) -> np.ndarray:
  """Values over scales, 0 where these are 0."""
  return np.divide(
      values, scales, where=scales > 0, out=np.zeros(len(values))
  )


def _distance(values: np.ndarray) -> float:
  """Kolmogorov's distance of values from N(0, 1)."""
  below = np.sort(special.ndtr(values), axis=None)
  steps = np.arange(len(below) + 1) / len(below)
  return float(max((steps[1:] - below).max(), (below - steps[:-1]).max()))


def _by_layer(audited: Audited) -> Iterator[np.ndarray]:
  """The kept noise of each layer, float64 [T, n]."""
  start = 0
  for places in kept_places([*audited.layers.values()]):
    end = start + len(places)
    yield np.stack([each.noise[start:end] for each in audited.rounds])
    start = end


def _whitened(audited: Audited) -> Iterator[np.ndarray]:
  """The same, independent from round to round."""
  for noise in _by_layer(audited):
    yield _to_independent_rounds(audited.covariance, noise)


def _to_independent_rounds(
    covariance: np.ndarray, values: np.ndarray
) -> np.ndarray:
  """Values [T, n] of this covariance between rounds, less it."""
  if np.array_equal(covariance, np.eye(len(covariance))):
    return values
  return linalg.solve_triangular(
      np.linalg.cholesky(covariance), values, lower=True
  )

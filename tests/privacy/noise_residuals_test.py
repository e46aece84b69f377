"""Tests of tff_asr.privacy.noise_residuals.

How often the tests find planted defects is tested in
tests/benchmarks/audit_power_test.py, on simulated runs.
"""

import itertools

from absl.testing import absltest
from absl.testing import parameterized
import numpy as np
import scipy.stats

from tff_asr.privacy import noise_residuals
from tff_asr.privacy import strategies

_SIZES = {'a': 1, 'b': 7, 'c': 300}


def _layers(num_rounds: int = 4, *, seed: int = 0) -> dict[str, np.ndarray]:
  """Standard normal noise of layers."""
  generator = np.random.default_rng(seed)
  return {
      name: generator.standard_normal([num_rounds, size])
      for name, size in _SIZES.items()
  }


def _known(layer: np.ndarray) -> np.ndarray:
  """A known sum of norm 1 in each round."""
  return np.full_like(layer, layer.shape[1] ** -0.5)


def _test(
    layers: dict[str, np.ndarray], *, covariance: np.ndarray | None = None
) -> dict[str, noise_residuals.ResidualTest]:
  """The tests' results, by name."""
  num_rounds = len(next(iter(layers.values())))
  tests = noise_residuals.run_tests(
      (
          noise_residuals.NoiseResiduals(name, layer, _known(layer))
          for name, layer in layers.items()
      ),
      covariance=np.eye(num_rounds) if covariance is None else covariance,
  )
  return {test.name: test for test in tests}


def _fails(layers: dict[str, np.ndarray], **settings) -> list[str]:
  """Names of the tests that fail."""
  tests = _test(layers, **settings).values()
  return [test.name for test in tests if test.fails]


def _cosine_p(first: np.ndarray, second: np.ndarray) -> float:
  """By Student's distribution."""
  first, second = first.ravel(), second.ravel()
  cosine = first @ second / np.linalg.norm(first) / np.linalg.norm(second)
  freedom = len(first) - 1
  t = cosine * np.sqrt(freedom / (1 - cosine**2))
  return 2 * scipy.stats.t.sf(abs(t), freedom)


class RunTestsTest(parameterized.TestCase):

  def test_p_values_against_scipy(self):
    layers = _layers()
    # So that no p-value is near the 1 at which it is cut.
    layers['b'] *= 2
    layers['c'][2] += layers['c'][1] / 4
    layers['a'] += 3
    found = {name: test.p_value for name, test in _test(layers).items()}
    noise = [*layers.values()]
    together = np.concatenate(noise, axis=1)

    def two_sided(values, count):
      below = scipy.stats.chi2.cdf(np.sum(values**2), count)
      return 2 * min(below, 1 - below)

    # A layer's rounds and all of them, and all layers'; of four views.
    p_values = [
        5 * min(two_sided(part, part.size) for part in [*layer, layer])
        for layer in [*noise, together]
    ]
    np.testing.assert_allclose(
        found['layers'], 4 * 4 * min(p_values), rtol=1e-6
    )

    p_values = []
    for layer in noise:
      count = layer.shape[1]
      ordered = np.sort((layer**2).sum(axis=0))
      # The k-th of D uniform values is Beta(k, D + 1 - k).
      of_layer = []
      for k in (k for k in 2 ** np.arange(9) if k <= count):
        for square, tail in (
            (ordered[k - 1], scipy.stats.chi2.cdf),
            (ordered[count - k], scipy.stats.chi2.sf),
        ):
          of_layer.append(
              scipy.stats.beta.cdf(tail(square, 4), k, count + 1 - k)
          )
      p_values.append(len(of_layer) * min(of_layer))
    np.testing.assert_allclose(
        found['elements'], 4 * 3 * min(p_values), rtol=1e-2
    )

    p_values = [
        _cosine_p(*pair)
        for layer in [*noise[1:], together]
        for pair in itertools.combinations(layer, 2)
    ]
    np.testing.assert_allclose(
        found['rounds'], 4 * 18 * min(p_values), rtol=1e-6
    )

    # Known sums have norm 1 in each of four rounds; in all layers, sqrt(3).
    products = np.array([np.vdot(layer, _known(layer)) for layer in noise])
    deviations = np.append(products / 2, products.sum() / np.sqrt(12))
    np.testing.assert_allclose(
        found['sums'],
        min(1, 4 * 4 * scipy.stats.norm.sf(deviations.max())),
        rtol=1e-6,
    )

  def test_honest_noise_passes(self):
    self.assertEmpty(_fails(_layers()))

  @parameterized.named_parameters(
      ('larger', lambda noise: noise['c'].__imul__(1.2), 'layers'),
      ('smaller_in_a_round', lambda noise: noise['c'][1].__imul__(0.8),
       'layers'),
      ('none_in_a_layer_of_one', lambda noise: noise['a'].__imul__(0),
       'elements'),
      ('none_in_an_element', lambda noise: noise['c'][:, 7].__imul__(0),
       'elements'),
      ('a_tenth_in_six_elements',
       lambda noise: noise['c'][:, 50:56].__imul__(0.1), 'elements'),
      ('five_times_in_an_element', lambda noise: noise['c'][:, 7].__imul__(5),
       'elements'),
      ('a_round_repeated',
       lambda noise: noise['b'].__setitem__(3, noise['b'][1]), 'rounds'),
      ('more_than_the_known_sum',
       lambda noise: noise['c'].__iadd__(4 * _known(noise['c'])), 'sums'),
  )
  def test_a_defect_fails_the_test_that_is_for_it(self, break_noise, expected):
    layers = _layers(num_rounds=6)
    break_noise(layers)
    self.assertIn(expected, _fails(layers))

  def test_residuals_below_the_resolution_are_not_held_against_a_round(self):
    # One round, on a grid of steps of 2^-12: some residuals are 0.
    generator = np.random.default_rng(0)
    drawn = np.round(generator.standard_normal([1, 2**16]) * 2**12) / 2**12
    self.assertTrue(np.any(drawn == 0))
    self.assertEmpty(_fails({'layer': drawn}))

  def test_a_single_round_or_element_is_compared_with_none(self):
    self.assertNotIn('rounds', _test(_layers(num_rounds=1)))
    found = _test({'one': np.ones([1, 1])})
    self.assertEqual([*found], ['layers', 'elements', 'sums'])

  def test_correlated_noise_is_honest_under_its_covariance_only(self):
    layers = _layers()
    covariance = strategies.optimize(
        num_rounds=4, min_sep=4
    ).covariance(4)
    root = np.linalg.cholesky(covariance)
    correlated = {name: root @ noise for name, noise in layers.items()}
    self.assertEmpty(_fails(correlated, covariance=covariance))
    self.assertIn('rounds', _fails(correlated))
    self.assertIn('rounds', _fails(layers, covariance=covariance))

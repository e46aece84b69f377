"""Tests of tff_asr.privacy.known_sums.

What the tests find of planted defects is tested in
tests/benchmarks/audit_power_test.py, on simulated runs.
"""

import dataclasses

from absl.testing import absltest
from absl.testing import parameterized
import numpy as np
import scipy.stats

from benchmarks import audit_power
from tff_asr.privacy import accounting
from tff_asr.privacy import known_sums
from tff_asr.privacy import strategies


class ObserveTest(absltest.TestCase):

  def test_by_hand(self):
    # Two layers of 2 and 1, two canaries, of which the first joined. Noise is
    # (3, 1) and (-2), in deviations of 1/2: (6, 2) and (-4).
    blocks = [
        (slice(0, 1), [np.array([[0.6, 0.8]]), np.array([[0.0]])]),
        (slice(1, 2), [np.array([[0.0, 0.6]]), np.array([[0.8]])]),
    ]
    found = known_sums.observe(
        [np.array([3.6, 1.8]), np.array([-2.0])],
        joined=np.array([True, False]),
        blocks=lambda: blocks,
        noise_ratio=0.5,
    )
    self.assertEqual(found.ratio, 0.5)
    np.testing.assert_allclose(found.noise, [6, 2, -4])
    np.testing.assert_allclose(found.squares, [40, 16])
    # (6, 2) * (.6, .8) / .5 and 1 / .25.
    np.testing.assert_allclose(found.products, [10.4, 0])
    np.testing.assert_allclose(found.energies, [4, 0])
    np.testing.assert_allclose(found.projections, [5.2, 1.2 - 3.2])
    # Mean squares of what was released: 8.1 and 4.
    inner = np.array([3.6 / 8.1, 1.08 / 8.1 - 1.6 / 4])
    means = np.sqrt([1 / 8.1, 0.36 / 8.1 + 0.64 / 4])
    inner[0] = (3.6 * 0.6 + 1.8 * 0.8) / 8.1
    np.testing.assert_allclose(found.means, means)
    np.testing.assert_allclose(found.scores, inner / means)

  def test_kept_are_all_of_small_layers_and_pairs_from_all_over_others(self):
    sizes = [1, 5, 16384, 10**6 + 1]
    kept = known_sums.kept_places(sizes)
    for size, places in zip(sizes[:3], kept):
      np.testing.assert_array_equal(places, np.arange(size))
    first, pairs = kept[3][:8192], kept[3][8192:].reshape(-1, 2)
    np.testing.assert_array_equal(first, np.arange(8192))
    # Pairs begin at even places, as draws do; none is there twice.
    np.testing.assert_array_equal(pairs[:, 0] % 2, 0)
    np.testing.assert_array_equal(pairs[:, 1], pairs[:, 0] + 1)
    self.assertLen(set(kept[3]), 16384)
    self.assertGreater(kept[3].max(), 10**6 - 2)
    self.assertLess(np.diff(pairs[:, 0]).max(), 300)

  def test_a_model_of_many_layers_keeps_less_of_each(self):
    kept = known_sums.kept_places([10**5] * 400)
    self.assertLessEqual(sum(map(len, kept)), 2**18)
    self.assertGreater(sum(map(len, kept)), 2**17)


class DecideTest(absltest.TestCase):

  def test_holm_by_hand(self):
    # Of four tests: .01 / 4, .01 / 3, .01 / 2, .01.
    named = lambda *p_values: [known_sums.Test('', '', p) for p in p_values]
    self.assertEqual(
        known_sums.decide(named(0.0033, 0.9, 0.0024, 0.0051)),
        [True, False, True, False],
    )
    self.assertEqual(
        known_sums.decide(named(0.0026, 0.9, 0.0, 0.0)),
        [True, False, True, True],
    )
    self.assertEqual(known_sums.decide(named(0.003, 0.003)), [True, True])
    self.assertEqual(known_sums.decide(named(0.006, 0.006)), [False, False])


class RunTestsTest(parameterized.TestCase):

  def test_numbers_of_an_honest_run_against_scipy(self):
    # p-values before the correction for how many there are, of what is named.
    run = audit_power.Run(audit_power.Setting(1.0, 1.0, 3), seed=0)
    audited = run.observe()
    found = {test.name: test for test in known_sums.run_tests(audited)}
    noise = [*run.noise.values()]
    self.assertEqual(
        list(found),
        ['charged', 'scale', 'shape', 'lattice', 'rounds', 'layers',
         'held out', 'clip', 'sampling', 'membership'],
    )
    cells = [(layer[t],) for t in range(3) for layer in noise]
    rounds = [[layer[t] for layer in noise] for t in range(3)]
    sums = np.array([
        [sum(np.vdot(part, part) for part in parts), sum(map(np.size, parts))]
        for parts in [*cells, *rounds, *((layer,) for layer in noise), noise]
    ])
    tails = np.array([
        [scipy.stats.chi2.cdf(*pair), scipy.stats.chi2.sf(*pair)]
        for pair in sums
    ])
    self.assertAlmostEqual(
        found['scale'].p_value, min(1, 2 * tails.min() * len(sums)), places=6
    )
    p_values = [scipy.stats.kstest(n.ravel(), 'norm').pvalue for n in noise]
    self.assertAlmostEqual(
        found['shape'].p_value, min(1, 4 * min(p_values)), places=4
    )
    # Cosines, by Student's distribution.
    p_values = []
    for layer in [*noise, np.concatenate(noise, axis=1)]:
      for first, second in ((0, 1), (0, 2), (1, 2)):
        cosine = layer[first] @ layer[second] / (
            np.linalg.norm(layer[first]) * np.linalg.norm(layer[second])
        )
        freedom = layer.shape[1] - 1
        t = cosine * np.sqrt(freedom / (1 - cosine**2))
        p_values.append(2 * scipy.stats.t.sf(abs(t), freedom))
    self.assertAlmostEqual(
        found['rounds'].p_value, min(1, 15 * min(p_values)), places=6
    )

  def test_two_layers_against_scipy(self):
    run = audit_power.Run(audit_power.Setting(1.0, 1.0, 3), seed=0)
    # Every pair of layers of these sizes, by what both have.
    first = [layer[:, :1024] for layer in run.noise.values()]
    p_values = []
    for i, a in enumerate(first):
      for b in first[i + 1 :]:
        size = min(a.shape[1], b.shape[1])
        x, y = a[:, :size].ravel(), b[:, :size].ravel()
        cosine = x @ y / (np.linalg.norm(x) * np.linalg.norm(y))
        t = cosine * np.sqrt((len(x) - 1) / (1 - cosine**2))
        p_values.append(2 * scipy.stats.t.sf(abs(t), len(x) - 1))
    found = known_sums.run_tests(run.observe())
    (layers,) = [test for test in found if test.name == 'layers']
    self.assertAlmostEqual(layers.p_value, min(1, 6 * min(p_values)), places=6)

  @parameterized.named_parameters(
      # Three rounds of 100 of 1,000.
      ('fixed', 'fixed', lambda draw: [draw(100) for _ in range(3)], True),
      ('another_size', 'fixed', lambda draw: [draw(99)] * 3, False),
      ('repeated', 'fixed', lambda draw: [draw(100)] * 3, False),
      (
          'separated', 'separated',
          lambda draw: np.split(draw(1000)[:300], 3), True,
      ),
      (
          'cyclic', 'cyclic',
          lambda draw: np.split(draw(1000)[:300], [90, 202]), True,
      ),
      # One client after 1 round, which 2 have to be between.
      (
          'too_soon', 'separated',
          lambda draw: np.split(
              np.append(order := draw(1000)[:299], order[199]), 3
          ),
          False,
      ),
  )
  def test_cohorts_of_other_samplings(self, kind, build, is_honest):
    run = audit_power.Run(audit_power.Setting(0.1, 1.0, 3), seed=0)
    draw = lambda size: run.generator.permutation(1000)[:size]
    cohorts = [np.sort(cohort) for cohort in build(draw)]
    audited = dataclasses.replace(
        run.observe(),
        cohorts=cohorts,
        sampling=accounting.Sampling(
            kind=kind,
            cohort_size=100,
            population=1000,
            min_separation=(
                3 if kind in accounting.SEPARATED_KINDS else None
            ),
        ),
    )
    (sampling,) = [
        test for test in known_sums.run_tests(audited)
        if test.name == 'sampling'
    ]
    self.assertEqual(sampling.p_value > 1e-3, is_honest)

  def test_a_single_round_is_compared_with_none(self):
    run = audit_power.Run(audit_power.Setting(1.0, 1.0, 1), seed=0)
    names = [test.name for test in known_sums.run_tests(run.observe())]
    self.assertNotIn('rounds', names)
    self.assertIn('layers', names)

  def test_correlated_noise_is_honest_under_its_covariance_only(self):
    run = audit_power.Run(audit_power.Setting(1.0, 1.0, 4), seed=0)
    covariance = strategies.optimize(
        num_rounds=4, min_separation=4
    ).covariance(4)
    root = np.linalg.cholesky(covariance)
    run.noise = {name: root @ noise for name, noise in run.noise.items()}
    audited = run.observe()
    for given, is_honest in ((covariance, True), (np.eye(4), False)):
      tests = known_sums.run_tests(
          dataclasses.replace(audited, covariance=given)
      )
      self.assertEqual(not any(known_sums.decide(tests)), is_honest)

"""Power and false alarms of an audit, on simulated runs."""

import collections

from absl.testing import parameterized
import pytest

from benchmarks import audit_power

# Hidden by the noise itself, at most settings.
_HIDDEN = ('the clip of the layer of 1,024 doubled', 'one client counted twice')
_SETTING = audit_power.Setting(0.1, 1.0, 5)


class AuditPowerTest(parameterized.TestCase):

  @parameterized.named_parameters(
      ('reused', 'noise of round 1 in every round', 'rounds'),
      ('reused_in_one', 'the same in the layer of 16 elements', 'rounds'),
      ('shared', 'a tenth of the variance shared by all rounds', 'rounds'),
      ('halved', 'noise halved', 'scale'),
      ('smaller', 'noise 2 % too small', 'scale'),
      ('missing', 'no noise in the layer of 16 elements', 'scale'),
      ('copied', '64 elements with the noise of another layer', 'layers'),
      ('float32', 'float32 noise', 'lattice'),
      ('unclipped', 'the layer of 1,024 not clipped', 'clip'),
      ('twice', 'all clients counted twice', 'clip'),
      ('repeated', 'a cohort used in two rounds', 'sampling'),
      ('fixed', 'cohorts of fixed size charged as Poisson', 'sampling'),
      ('overcharged', 'a noise multiplier charged 1 % too large', 'charged'),
  )
  def test_a_defect_fails_the_test_that_is_for_it(self, defect, name):
    found = audit_power.found(defect, _SETTING, seed=0)
    self.assertIn(name, found)

  def test_what_is_found_of_one_is_not_blamed_on_others(self):
    for defect, expected in (
        ('none', []),
        ('float32 noise', ['lattice']),
        ('the same in the layer of 16 elements', ['rounds']),
        ('a cohort used in two rounds', ['sampling']),
        ('a noise multiplier charged 1 % too large', ['charged']),
    ):
      found = audit_power.found(defect, _SETTING, seed=1)
      self.assertEqual(found, expected, defect)

  @parameterized.parameters(*(
      name
      for name in audit_power.DEFECTS
      if name not in ('none', *_HIDDEN)
  ))
  @pytest.mark.slow
  def test_power_is_as_stated(self, defect):
    # docs/attacks.md states 96 % or more: fewer than 16 of 20 come 1 time in
    # 1,000. Seeded.
    hits = sum(
        bool(audit_power.found(defect, _SETTING, seed=seed))
        for seed in range(100, 120)
    )
    self.assertGreaterEqual(hits, 16)

  @parameterized.parameters(*audit_power.SETTINGS)
  @pytest.mark.slow
  def test_honest_runs_hold(self, *setting):
    # 50 runs at 1 %: more than 4 would come 1 time in 7,000.
    setting = audit_power.Setting(*setting)
    alarms = collections.Counter(
        name
        for seed in range(50)
        for name in audit_power.found('none', setting, seed=seed)
    )
    self.assertLess(alarms.total(), 5, alarms)

  @parameterized.parameters(*audit_power.SETTINGS)
  @pytest.mark.slow
  def test_bounds_of_honest_runs_hold(self, *setting):
    # Each at 95 % confidence, but far below what is accounted.
    setting = audit_power.Setting(*setting)
    accounted = audit_power.accounted_epsilon(setting)
    for seed in range(10):
      bound, _ = audit_power.measured(setting, seed=seed)
      self.assertLessEqual(bound, accounted)

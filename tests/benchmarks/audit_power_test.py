"""Power and false alarms of an audit, on simulated runs."""

import collections

from absl.testing import parameterized
import pytest

from benchmarks import audit_power

_SETTING = audit_power.Setting(0.1, 1.0, 5)
# docs/attacks.md lists these as unseen, or as seen in some settings only.
_UNSEEN = (
    'a seed of 16 bits for the noise of a round', 'float32 noise',
    'one client counted twice', 'no noise in the mean of each layer',
)
_SOMETIMES = (
    'half the noise in 64 elements of 8,192',
    'the clip of the layer of 1,024 doubled',
)


class AuditPowerTest(parameterized.TestCase):

  @parameterized.named_parameters(
      ('halved', 'noise halved', 'layers'),
      ('smaller', 'noise 2 % too small', 'layers'),
      ('missing', 'no noise in the layer of 16 elements', 'layers'),
      ('missing_in_one', 'no noise in 1 element of 8,192', 'elements'),
      ('missing_in_some', 'no noise in 64 elements of 8,192', 'elements'),
      ('small_in_some', 'a tenth of the noise in 16 elements of 8,192',
       'elements'),
      ('reused', 'noise of round 1 in every round', 'rounds'),
      ('reused_in_one', 'the same in the layer of 16 elements', 'rounds'),
      ('shared', 'a tenth of the variance shared by all rounds', 'rounds'),
      ('unclipped', 'the layer of 1,024 not clipped', 'sums'),
      ('twice', 'all clients counted twice', 'sums'),
  )
  def test_a_defect_fails_the_test_that_is_for_it(self, defect, name):
    found = audit_power.found(defect, _SETTING, seed=0)
    self.assertIn(name, found)

  def test_one_test_s_defect_is_not_blamed_on_others(self):
    for defect, expected in (
        ('none', []),
        ('no noise in 1 element of 8,192', ['elements']),
    ):
      found = audit_power.found(defect, _SETTING, seed=1)
      self.assertEqual(found, expected, defect)

  @parameterized.parameters(*(
      name
      for name in audit_power.DEFECTS
      if name not in ('none', *_UNSEEN, *_SOMETIMES)
  ))
  @pytest.mark.slow
  def test_power_is_as_stated(self, defect):
    # docs/attacks.md states 96 % or more: fewer than 17 of 20 come 7 times in
    # 1,000. Seeded.
    hits = sum(
        bool(audit_power.found(defect, _SETTING, seed=seed))
        for seed in range(100, 120)
    )
    self.assertGreaterEqual(hits, 17)

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

"""Tests of tff_asr.programs.divergence."""

import math

from absl.testing import absltest
from absl.testing import parameterized

from tff_asr.programs import divergence


def _metrics(update_norm: float, weights_norm: float) -> dict[str, float]:
  return {'update_norm': update_norm, 'weights_norm': weights_norm}


_BEFORE = divergence.Norms(update_norm=1.0, weights_norm=10.0)


class GuardTest(parameterized.TestCase):

  @parameterized.parameters(
      (math.nan, 10.0, 'update_norm is nan'),
      (1.0, math.inf, 'weights_norm is inf'),
      (2.5, 10.0, 'update_norm is 2.5, more than 2 times the 1 of the round'),
      (1.0, 21.0, 'weights_norm is 21, more than 2 times the 10 of the round'),
  )
  def test_stop_ends_the_run_with_what_was_found(self, update, weights, text):
    guard = divergence.Guard(action='stop', max_growth=2.0)
    with self.assertRaisesRegex(
        divergence.DivergedError, rf'round 7 diverged: its {text}.*ON_DIVERG'
    ):
      guard.is_good(_BEFORE, _metrics(update, weights), round_num=7)

  def test_growth_is_up_to_the_limit_and_none_is_no_limit(self):
    guard = divergence.Guard(action='stop', max_growth=2.0)
    self.assertTrue(guard.is_good(_BEFORE, _metrics(2.0, 20.0), round_num=1))
    # Nothing to compare the first round with.
    self.assertTrue(
        guard.is_good(divergence.Norms(), _metrics(9.0, 9.0), round_num=1)
    )
    guard = divergence.Guard(action='stop', max_growth=None)
    self.assertTrue(guard.is_good(_BEFORE, _metrics(1e9, 1e9), round_num=1))

  def test_roll_backs_end_after_three_in_a_row(self):
    guard = divergence.Guard(action='roll_back', max_growth=None)
    norms = _BEFORE
    for number in range(1, 4):
      self.assertFalse(
          guard.is_good(norms, _metrics(math.nan, 1.0), round_num=2)
      )
      norms = divergence.after_roll_back(norms)
      self.assertEqual((norms.roll_backs, norms.all_roll_backs), (number,) * 2)
      self.assertEqual((norms.update_norm, norms.weights_norm), (1.0, 10.0))
    with self.assertRaisesRegex(
        divergence.DivergedError, '3 roll-backs in a row did not help'
    ):
      guard.is_good(norms, _metrics(math.nan, 1.0), round_num=2)
    norms = divergence.after_good(norms, _metrics(3.0, 11.0))
    self.assertEqual(norms, divergence.Norms(3.0, 11.0, 0, 3))

  @parameterized.parameters(
      ({'action': 'ignore', 'max_growth': None}, 'on_divergence'),
      ({'action': 'stop', 'max_growth': 1.0}, 'max_norm_growth must be above'),
      ({'action': 'stop', 'max_growth': math.inf}, 'max_norm_growth'),
  )
  def test_bad_settings_are_named(self, settings, message):
    with self.assertRaisesRegex(ValueError, message):
      divergence.Guard(**settings)


if __name__ == '__main__':
  absltest.main()

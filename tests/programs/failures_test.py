"""Tests of tff_asr.programs.failures."""

import types

from absl.testing import absltest
from absl.testing import parameterized

from tff_asr.programs import failures


class FailuresTest(parameterized.TestCase):

  def count(self, failed: dict[int, str], num_non_finite: int, share):
    return failures.count(
        types.SimpleNamespace(last_failures=failed),
        {'num_non_finite': float(num_non_finite)},
        cohort_size=8,
        round_num=3,
        max_failed_share=share,
    )

  def test_failures_up_to_the_share_are_counted_and_logged(self):
    with self.assertLogs('absl', 'WARNING') as logs:
      self.assertEqual(self.count({4: 'E: second', 1: 'E: first'}, 0, 0.25), 2)
    self.assertIn(
        '2 of 8 clients of round 3 failed (the first of them: E: first) and '
        'were left out.',
        logs.output[0],
    )

  def test_no_failure_is_no_line(self):
    with self.assertNoLogs('absl', 'WARNING'):
      self.assertEqual(self.count({}, 0, 0.0), 0)

  def test_one_more_ends_the_run(self):
    with self.assertRaisesRegex(
        failures.TooManyFailuresError,
        r'3 of 8 clients of round 3 failed \(the first of them: E: first; 2 '
        r'with an update that is not finite\), more than MAX_FAILED_SHARE = '
        '0.25 allows',
    ):
      self.count({1: 'E: first'}, 2, 0.25)

  def test_none_allows_any_number_of_non_finite_updates(self):
    with self.assertLogs('absl', 'WARNING'):
      self.assertEqual(self.count({}, 8, None), 0)

  def test_a_context_that_leaves_nobody_out_has_no_failures(self):
    self.assertEqual(
        failures.count(
            object(),
            {'num_non_finite': 0.0},
            cohort_size=1,
            round_num=1,
            max_failed_share=0.0,
        ),
        0,
    )

  @parameterized.parameters(-0.1, 1.5, 'all')
  def test_what_is_no_share_is_named(self, share):
    with self.assertRaisesRegex(ValueError, 'max_failed_share must be'):
      failures.check_share(share)


if __name__ == '__main__':
  absltest.main()

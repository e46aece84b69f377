"""Tests of tff_asr.programs.faults."""

import errno
import math

from absl.testing import parameterized
import tensorflow as tf

from tff_asr import launch
from tff_asr.programs import faults


def _check(
    roll_backs: faults.RollbackCounts, update: float, weights: float, **settings
) -> tuple[faults.RollbackCounts, bool]:
  return faults.FaultSettings(**settings).check_divergence(
      roll_backs,
      {'update_norm': update, 'weights_norm': weights},
      round_num=7,
  )


class DivergenceTest(parameterized.TestCase):

  @parameterized.parameters(
      (math.nan, 10.0, 'update_norm is nan'),
      (1.0, math.inf, 'weights_norm is inf'),
  )
  def test_stop_ends_the_run_with_what_was_found(self, update, weights, text):
    with self.assertRaisesRegex(
        faults.DivergedError, rf'round 7 diverged: its {text}.*ON_DIVERG'
    ):
      _check(faults.RollbackCounts(), update, weights)

  def test_roll_backs_end_after_three_in_a_row(self):
    settings = dict(on_divergence='roll_back')
    roll_backs = faults.RollbackCounts()
    for number in range(1, 4):
      roll_backs, is_good = _check(roll_backs, math.nan, 1.0, **settings)
      self.assertFalse(is_good)
      self.assertEqual(roll_backs, faults.RollbackCounts(number, number))
    with self.assertRaisesRegex(
        faults.DivergedError, '3 roll-backs in a row did not help'
    ):
      _check(roll_backs, math.nan, 1.0, **settings)
    # Finite norms, however large, do not count as divergence.
    self.assertEqual(
        _check(roll_backs, 1e9, 1e9, **settings),
        (faults.RollbackCounts(0, 3), True),
    )

  @parameterized.parameters(
      ([0.0, 1.0], 0.5, None),
      ([0.0, 1.0], math.nan, 'loss is nan at step 7: .* diverged'),
      # The exact loss of private data decides nothing; None: it is private.
      ([0.0, 1.0], None, None),
      ([math.inf, 1.0], None, 'norm of the weights is inf at step 7'),
      ([math.inf, 1.0], 0.5, 'norm of the weights is inf'),
  )
  def test_steps(self, weights, loss, message):
    weights = {'a': tf.constant(weights), 'b': tf.constant(1.0)}
    if message is None:
      faults.check_step(weights, loss=loss, step_num=7)
      return
    with self.assertRaisesRegex(faults.DivergedError, message):
      faults.check_step(weights, loss=loss, step_num=7)


class FailuresTest(parameterized.TestCase):

  def count(
      self,
      failed,
      num_non_finite: int,
      share,
      shows_exact: bool = True,
      cohort_size: int = 8,
  ) -> int:
    return faults.FaultSettings(max_failed_share=share).count_failed(
        failed,
        {'num_non_finite': float(num_non_finite)},
        cohort_size=cohort_size,
        round_num=3,
        shows_exact=shows_exact,
    )

  def test_private_failures_are_counted_and_not_logged(self):
    with self.assertNoLogs('absl', 'WARNING'):
      self.assertEqual(self.count({4: 'E'}, 1, 0.25, shows_exact=False), 1)
    with self.assertRaisesRegex(
        faults.TooManyFailuresError, 'round 3 failed than MAX_FAILED_SHARE'
    ) as raised:
      self.count({4: 'E: x'}, 2, 0.25, shows_exact=False)
    for text in ('8', '2', 'E:'):
      self.assertNotIn(text, str(raised.exception))

  def test_failures_up_to_the_share_are_counted_and_logged(self):
    with self.assertLogs('absl', 'WARNING') as logs:
      self.assertEqual(self.count({4: 'E: second', 1: 'E: first'}, 0, 0.25), 2)
    self.assertIn(
        '2 of 8 clients of round 3 failed (the first of them: E: first) and '
        'were left out.',
        logs.output[0],
    )

  def test_without_failures_nothing_is_logged(self):
    with self.assertNoLogs('absl', 'WARNING'):
      self.assertEqual(self.count({}, 0, 0.0), 0)

  def test_one_more_ends_the_run(self):
    with self.assertRaisesRegex(
        faults.TooManyFailuresError,
        r'3 of 8 clients of round 3 failed \(the first of them: E: first; 2 '
        r'with an update that is not finite\), more than MAX_FAILED_SHARE = '
        '0.25 allows',
    ):
      self.count({1: 'E: first'}, 2, 0.25)

  def test_29_percent_of_100_are_29(self):
    # .29 * 100 is below 29 in floating point.
    hundred = dict(share=0.29, cohort_size=100, shows_exact=False)
    self.assertEqual(self.count({}, 29, **hundred), 0)
    with self.assertRaises(faults.TooManyFailuresError):
      self.count({}, 30, **hundred)

  def test_none_allows_any_number_of_non_finite_updates(self):
    with self.assertLogs('absl', 'WARNING'):
      self.assertEqual(self.count({}, 8, None), 0)


class SettingsTest(parameterized.TestCase):

  @parameterized.parameters(
      (dict(max_failed_share=-0.1), 'max_failed_share must be'),
      (
          dict(max_failed_share=2, on_divergence='no'),
          '(?s)max_failed_share.*on_divergence',
      ),
  )
  def test_bad_settings_are_named(self, settings, message):
    with self.assertRaisesRegex(ValueError, message):
      faults.FaultSettings(**settings).validate()


def _at_a_client(cause: Exception) -> Exception:
  error = RuntimeError('Client 3 of 8 failed')
  error.__cause__ = cause
  return error


_OOM = tf.errors.ResourceExhaustedError(
    None, None, 'OOM when allocating tensor with shape[9,9]\nmore'
)


class ExplainedShortageTest(parameterized.TestCase):

  @parameterized.parameters(
      (_OOM, 'OOM when allocating tensor'),
      (_at_a_client(_OOM), 'OOM when allocating tensor'),
      (MemoryError(), 'MemoryError'),
  )
  def test_a_shortage_names_the_settings_to_change(self, error, text):
    with self.assertRaises(OSError) as caught:
      with faults.explained_shortage():
        raise error
    (line,) = launch.error_lines(caught.exception)
    self.assertRegex(
        line,
        f'{text}.*MAX_BATCH_SEC.*CLIENTS_PER_DEVICE.*NUM_BLOCK',
    )
    self.assertNotIn('Errno', line)

  @parameterized.parameters(
      ('/x/y; No space left on device', r'the disk is full \(/x/y.*make room'),
      ('/x/y; Disk quota exceeded', r'quota is used up \(/x/y.*make room'),
      ('/x/y; Too many open files', r'too many open files \(/x/y.*ulimit -n'),
  )
  def test_exhausted_resources_are_not_always_memory(
      self, text, expected
  ):
    error = tf.errors.ResourceExhaustedError(None, None, text)
    for raised in (error, _at_a_client(error)):
      with self.assertRaises(OSError) as caught:
        with faults.explained_shortage():
          raise raised
      (line,) = launch.error_lines(caught.exception)
      self.assertRegex(line, expected)
      self.assertNotRegex(line, 'memory|MAX_BATCH_SEC')

  @parameterized.parameters(OSError, MemoryError)
  def test_a_full_disk_in_python_at_a_client_is_reported(self, kind):
    with self.assertRaises(OSError) as caught:
      with faults.explained_shortage():
        raise _at_a_client(kind(errno.ENOSPC, 'No space left', '/x'))
    (line,) = launch.error_lines(caught.exception)
    self.assertIn('MAX_BATCH_SEC' if kind is MemoryError else 'is full', line)

  def test_an_error_that_names_its_remedy_is_kept(self):
    error = OSError(errno.ENOSPC, 'Saving takes 3 MB: make room.')
    with self.assertRaises(OSError) as caught:
      with faults.explained_shortage():
        raise error
    self.assertIs(caught.exception, error)

  def test_private_shapes_are_not_shown(self):
    with self.assertRaises(OSError) as caught:
      with faults.explained_shortage(shows_details=False):
        raise _at_a_client(_OOM)
    (line,) = launch.error_lines(caught.exception)
    self.assertRegex(line, r'\(ResourceExhaustedError\).*MAX_BATCH_SEC')
    self.assertNotIn('shape', line)

  def test_other_errors_are_kept(self):
    error = _at_a_client(ValueError('no'))
    with self.assertRaises(RuntimeError) as caught:
      with faults.explained_shortage():
        raise error
    self.assertIs(caught.exception, error)

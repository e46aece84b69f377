"""Tests of tff_asr.programs.trial."""

from unittest import mock

from absl.testing import absltest

from tff_asr.models import conv
from tff_asr.models import ctc
from tff_asr.programs import trial
from tff_asr.text import tokenizer


def _model() -> ctc.CtcModel:
  return ctc.build(
      encoder=conv.build(
          num_blocks=1, dim=8, kernel_size=3, feature_dim=4, dropout=0.1
      ),
      tokenizer=tokenizer.for_language('en'),
  )


class TrialTest(absltest.TestCase):

  def test_longer_batches_take_longer(self):
    short, long = (
        trial.step_sec(
            _model(), feature_dim=4, batch_sec=seconds, trial_sec=0.2
        )
        for seconds in (8.0, 800.0)
    )
    self.assertGreater(short, 0)
    # A hundred times as long.
    self.assertGreater(long, 2 * short)

  def test_slow_steps_count_by_their_time(self):
    # Three steps take .5, .5 and 2 seconds.
    times = iter([10.0, 10.5, 11.0, 13.0])
    with mock.patch.object(trial.time, 'monotonic', lambda: next(times)):
      found = trial.step_sec(
          _model(), feature_dim=4, batch_sec=8.0, trial_sec=1.5
      )
    self.assertEqual(found, 1.0)
    self.assertEmpty([*times])

  def test_refuses(self):
    with self.assertRaisesRegex(ValueError, 'trial_sec'):
      trial.step_sec(mock.Mock(), feature_dim=4, batch_sec=1.0, trial_sec=0.0)


if __name__ == '__main__':
  absltest.main()

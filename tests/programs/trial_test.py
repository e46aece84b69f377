"""Tests of tff_asr.programs.trial."""

from unittest import mock

from absl.testing import absltest

from tff_asr.models import conv
from tff_asr.models import ctc
from tff_asr.programs import trial
from tff_asr.text import tokenizer


class TrialTest(absltest.TestCase):

  def test_longer_batches_take_longer(self):
    model = ctc.build(
        encoder=conv.build(
            num_blocks=1, dim=8, kernel_size=3, feature_dim=4, dropout=0.1
        ),
        tokenizer=tokenizer.for_language('en'),
    )
    short, long = (
        trial.step_sec(model, feature_dim=4, batch_sec=seconds)
        for seconds in (8.0, 800.0)
    )
    self.assertGreater(short, 0)
    # A hundred times as long.
    self.assertGreater(long, 2 * short)

  def test_refuses(self):
    with self.assertRaisesRegex(ValueError, 'num_steps'):
      trial.step_sec(mock.Mock(), feature_dim=4, batch_sec=1.0, num_steps=0)


if __name__ == '__main__':
  absltest.main()

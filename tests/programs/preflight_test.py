"""Tests of tff_asr.programs.preflight; tests/bin/bad_input_test.py sees all."""

import tempfile

from absl.testing import absltest

from tests import fakes
from tff_asr.data import client_data
from tff_asr.programs import preflight


class PreflightTest(absltest.TestCase):

  def setUp(self):
    super().setUp()
    self.root = self.enterContext(tempfile.TemporaryDirectory())
    self.model = fakes.tiny_model(num_blocks=1)
    self.pipeline = fakes.tiny_pipeline(self.model)

  def load(self, name: str, **options) -> client_data.SpeechClientData:
    folder = f'{self.root}/{name}'
    return client_data.load(fakes.write_split(folder, {'ann': 3}, **options))

  def test_a_run_does_not_start_from_itself(self):
    preflight.check_another_run(f'{self.root}/a', self.root)
    with self.assertRaisesRegex(ValueError, 'cannot start from itself'):
      preflight.check_another_run(f'{self.root}/a/..', self.root)

  def test_characters(self):
    with self.assertRaisesRegex(ValueError, "odd .*not tokens: 'o' 'ñ'; add"):
      preflight.check_characters(
          self.load('odd', transcript='año b'), self.pipeline
      )
    for data in (self.load('fine', transcript='ab c'), fakes.client_data()):
      preflight.check_characters(data, self.pipeline)

  def test_durations(self):
    # Utterances of 0.5 to 1.5 seconds, allowed up to 3.
    data = self.load('shards')
    preflight.check_durations(data, self.pipeline)
    preflight.check_durations(fakes.client_data(), self.pipeline)
    short = fakes.tiny_pipeline(self.model, max_utterance_sec=0.4)
    with self.assertRaisesRegex(
        ValueError, r'max_utterance_sec 0\.4 .*shards last [01]\.\d s'
    ):
      preflight.check_durations(data, short)


if __name__ == '__main__':
  absltest.main()

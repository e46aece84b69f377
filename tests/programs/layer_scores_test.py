"""Tests of tff_asr.programs.layer_scores; pretrain_test has a run's."""

import tempfile

from absl.testing import absltest

from tests import fakes
from tff_asr.learning import layer_freeze
from tff_asr.programs import layer_scores


class LayerScoresTest(absltest.TestCase):

  def setUp(self):
    super().setUp()
    self.run_dir = self.enterContext(tempfile.TemporaryDirectory())
    self.model = fakes.tiny_model(num_blocks=1)
    specs = self.model.encoder.specs
    # A pre-training run's layers: the encoder's, and others of its own.
    self.specs = dict(specs, prediction=specs['norm/bias'])
    self.squares = {
        name: float(number) for number, name in enumerate(sorted(self.specs))
    }

  def frozen(self, **options):
    return layer_scores.frozen(
        run=self.run_dir,
        model=self.model,
        freeze=layer_freeze.LayerFreeze(**options),
    )

  def test_the_encoder_s_layers_are_chosen_by_its_scores(self):
    layer_scores.write(self.run_dir, self.squares, specs=self.specs)
    names = sorted(self.model.encoder.specs)
    self.assertEqual(self.frozen(number=3), names[:3])
    self.assertEqual(
        self.frozen(number=2, order='highest'), sorted(names[-2:])
    )
    # The share is of the encoder's layers: its head has no score.
    self.assertLen(self.frozen(share=0.5), len(names) // 2)

  def test_scores_of_another_encoder_are_refused(self):
    with self.assertRaisesRegex(ValueError, 'has no layer_scores.csv'):
      self.frozen(number=1)
    del self.squares['norm/bias']
    layer_scores.write(self.run_dir, self.squares, specs=self.specs)
    with self.assertRaisesRegex(ValueError, 'has no score of norm/bias'):
      self.frozen(number=1)


if __name__ == '__main__':
  absltest.main()

"""The miniature warm start learns on real speech; minutes, so slow."""

import asyncio
import contextlib
import io
import os
import pathlib
import tempfile

from absl.testing import absltest
import pytest

from data_tools import libri_light
from data_tools import shards
from tff_asr import config
from tff_asr.programs import pretraining
from tff_asr.programs import training_loop

_SPEECH = os.environ.get('TFF_ASR_SPEECH')
_NUM_STEPS = 300


@pytest.mark.slow
class PretrainingOnSpeechTest(absltest.TestCase):

  def test_masked_labels_are_predicted_better_than_by_the_commonest(self):
    if not _SPEECH:
      self.skipTest('TFF_ASR_SPEECH names no folder of speech.')
    root = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
    listing = libri_light.list_utterances(
        _SPEECH, split='untranscribed', max_sec=5.0
    )
    speakers = sorted({each.client_id for each in listing.utterances})
    for name, members in (('train', speakers[:40]), ('dev', speakers[-16:])):
      shards.write_split(
          [each for each in listing.utterances if each.client_id in members],
          root / name,
          origin={'corpus': 'untranscribed'},
      )
    build = config.bind(
        pretraining.Pretraining,
        gin_files=['gin/experiments/pretrain_mini_public.gin'],
        gin_params=[
            f"TRAIN_DIR = '{root / 'train'}'",
            f"DEV_DIR = '{root / 'dev'}'",
            f'NUM_STEPS = {_NUM_STEPS}',
            f'EVALUATE_EVERY = {_NUM_STEPS}',
        ],
    )
    with contextlib.redirect_stderr(io.StringIO()):
      results = asyncio.run(training_loop.run(
          build(output_dir=str(root / 'run'), configuration=config.text())
      ))
    last = lambda name: results[f'dev_{name}'][_NUM_STEPS]
    self.assertGreater(last('accuracy'), 1.05 * last('most_frequent'))
    self.assertGreater(last('prediction_perplexity'), 1.5)
    self.assertLess(last('prediction_perplexity'), last('label_perplexity'))

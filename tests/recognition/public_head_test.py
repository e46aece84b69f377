"""A head on a public encoder, from its gin files to an export, tiny.

A folder of random weights stands for whisper-tiny.en.
"""

import asyncio
import contextlib
import io
import json
import os
from unittest import mock

from absl.testing import absltest
import numpy as np
import pytest

from data_tools import embed
from tests import cases
from tests import experiment_files
from tests import fakes
from tff_asr import config
from tff_asr.data import client_data
from tff_asr.data import index
from tff_asr.pretrained import features
from tff_asr.programs import training_loop
from tff_asr.recognition import export
from tff_asr.recognition import recognizer as recognizer_lib
from tools.pretrained_parity import random_folders

_SHARED = (
    'NUM_BLOCKS = 2', 'DIM = 8', 'KERNEL_SIZE = 3', 'MAX_UTTERANCE_SEC = 2.0'
)
# A tiny Whisper for utterances of 2 s.
_WHISPER = random_folders.TINY['whisper'] | dict(max_source_positions=100)


@pytest.mark.slow
class PublicHeadTest(cases.TestCase):

  def setUp(self):
    super().setUp()
    self.enterContext(mock.patch.dict(
        os.environ, {features.CACHE_VARIABLE: self.path('cache')}
    ))
    self.public = self.path('public_model')
    random_folders.write(self.public, _WHISPER)
    self.audio = fakes.write_split(
        self.path('audio'), {'ann': 3, 'bob': 2, 'cai': 2}
    )
    self.dev = fakes.write_split(self.path('dev'), {'dee': 2})
    self.private = fakes.write_split(
        self.path('private'), {'eve': 2, 'fay': 1}
    )

  def bind(self, name: str, **settings):
    path = f'gin/experiments/an4_whisper_{name}.gin'
    params = [f'{key} = {value!r}' for key, value in settings.items()]
    return config.bind(
        experiment_files.program(path),
        gin_files=[path],
        gin_params=[*_SHARED, f'PRETRAINED = {self.public!r}', *params],
    )

  def train(self, name: str, run: str, **settings):
    program = self.bind(name, DEV_DIR=self.dev, EVALUATE_EVERY=1, **settings)
    with (
        contextlib.redirect_stdout(io.StringIO()),
        contextlib.redirect_stderr(io.StringIO()),
    ):
      asyncio.run(training_loop.run(
          program(
              output_dir=self.path(run),
              configuration=config.text(),
              model_spec=config.model_spec('MODEL', 'PIPELINE'),
          )
      ))
    with open(self.path(run, 'results.json'), encoding='utf-8') as f:
      return json.load(f)

  def test_from_gin_to_an_export(self):
    stored = self.path('features')
    embed.embed(
        self.audio, stored, front_end=features.of_model(name=self.public)
    )
    self.assertIn(
        'layers 1,2', index.read(stored).corpus.features.identity
    )
    self.train('seed', 'seed', TRAIN_DIR=stored, NUM_STEPS=2, NUM_LOADERS=2)
    for name, settings in (
        ('federated', {}), ('dp', {'NOISE_MULTIPLIER': 0.01}),
    ):
      results = self.train(
          name, name,
          PRIVATE_DIR=self.private,
          INIT_FROM_RUN=self.path('seed'),
          NUM_ROUNDS=2,
          COHORT_SIZE=1,
          NUM_LOCAL_STEPS=1,
          SAVE_EVERY=1,
          **settings,
      )
      self.assertEqual(results['rounds'], 2)
    # Another layer than the stored ones: refused before the first step.
    with self.assertRaisesRegex(ValueError, 'features of another front end'):
      self.train(
          'seed', 'other',
          TRAIN_DIR=stored, PRETRAINED_LAYERS=[1], NUM_STEPS=1, NUM_LOADERS=2,
      )
    test = dict(TEST_DIR=stored, RUNS=[self.path('federated')])
    evaluate = self.bind('evaluate', **test)
    with contextlib.redirect_stdout(io.StringIO()):
      (found,) = evaluate()
    self.assertEqual(found['num_utterances'], 7)
    recognizer = recognizer_lib.load(run=self.path('seed'))
    waveforms = [e['waveform'] for e in fakes.examples('ann', 3)]
    texts = [each.text for each in recognizer(('', w) for w in waveforms)]
    self.assertLen(texts, 3)
    saved, lite = export.export(
        recognizer=recognizer,
        client_data=client_data.load(self.audio),
        output_dir=self.path('exported'),
    )
    self.assertEqual(saved.num_same, saved.num_utterances)
    self.assertEqual(lite.num_utterances, saved.num_utterances)

    # The export has all that transcribing needs.
    export.copy_model(self.path('seed'), output_dir=self.path('exported'))
    os.rename(self.public, self.path('elsewhere'))
    with mock.patch.dict(
        os.environ, {features.CACHE_VARIABLE: self.path('another_cache')}
    ):
      recognizer = recognizer_lib.load(run=self.path('exported'))
      self.assertEqual(
          [each.text for each in recognizer(('', w) for w in waveforms)], texts
      )
    os.rename(self.path('elsewhere'), self.public)

    # The folder holds another model of the same sizes.
    random_folders.write(
        self.public,
        _WHISPER,
        changes={'encoder.layer_norm.bias': np.ones([12])},
    )
    features._of_model.cache_clear()  # pylint: disable=protected-access
    test |= dict(TEST_DIR=self.audio)
    for use in (
        lambda: recognizer_lib.load(run=self.path('seed')),
        self.bind('evaluate', **test),
        lambda: self.train(
            'federated', 'next', PRIVATE_DIR=self.private,
            INIT_FROM_RUN=self.path('seed'), NUM_ROUNDS=1, COHORT_SIZE=1,
        ),
    ):
      with self.assertRaisesRegex(
          ValueError, 'trained with the public model of SHA-256 .* set PRETR'
      ):
        use()
    with self.assertRaisesRegex(ValueError, r'there: # PRETRAINED has SHA-256'):
      self.train(
          'federated', 'federated', PRIVATE_DIR=self.private,
          INIT_FROM_RUN=self.path('seed'), NUM_ROUNDS=3, COHORT_SIZE=1,
          NUM_LOCAL_STEPS=1, SAVE_EVERY=1,
      )


if __name__ == '__main__':
  absltest.main()

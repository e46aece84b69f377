"""A public CTC recogniser: as it is, adapted with noise, evaluated, exported.

A folder of random weights stands for a published model; the programs and their
files are those of docs/pretrained.md.
"""

import json
import os
import pathlib
import re
from unittest import mock

from absl.testing import absltest
from absl.testing import parameterized
import numpy as np
import pytest
import soundfile
import tensorflow as tf

from tests import cases
from tests import fakes
from tests.bin import in_process
from tff_asr import config
from tff_asr.data import client_data
from tff_asr.data import pipeline as pipeline_lib
from tff_asr.models import ctc
from tff_asr.pretrained import features
from tff_asr.programs import evaluation
from tff_asr.recognition import recognizer as recognizer_lib
from tff_asr.storage import model_file
from tools.pretrained_parity import random_folders

_MODEL = 'gin/models/public_ctc.gin'
_TRAINING = 'gin/experiments/own_recordings_whisper.gin'
# As data_tools.manifest writes it: with characters, which the model's replace.
_CORPUS = """
from __gin__ import dynamic_registration
from tff_asr.text import tokenizer
PRIVATE_DIR = {private!r}
DEV_DIR = {dev!r}
TEST_DIR = {dev!r}
CHARACTERS = ' abc'
TOKENIZER = @tokenizer.CharTokenizer()
tokenizer.CharTokenizer.characters = %CHARACTERS
"""


class PublicCtcTest(cases.TestCase):

  def setUp(self):
    super().setUp()
    self.enterContext(mock.patch.dict(
        os.environ, {features.CACHE_VARIABLE: self.path('cache')}
    ))
    self.public = self.path('public')
    random_folders.write_ctc(
        self.public, random_folders.TINY_20_MS | dict(pad_token_id=3)
    )
    self.private = fakes.write_split(
        self.path('private'), {'eve': 2, 'fay': 1, 'gil': 1}
    )
    self.dev = fakes.write_split(self.path('dev'), {'dee': 2, 'hal': 2})
    self.corpus = self.path('corpus.gin')
    pathlib.Path(self.corpus).write_text(
        _CORPUS.format(private=self.private, dev=self.dev), encoding='utf-8'
    )
    self.waveforms = [
        each['waveform'] for name in ('dee', 'hal')
        for each in fakes.examples(name, 2)
    ]

  def bind(self, part, *params: str):
    return config.bind(
        part,
        gin_files=[_TRAINING, self.corpus, _MODEL],
        gin_params=[f'PRETRAINED = {self.public!r}', *params],
    )

  @parameterized.parameters('frozen', 'lora', 'last_blocks', 'whole')
  def test_training_begins_with_the_logits_of_the_public_model(self, kind):
    public = recognizer_lib.load_pretrained(self.public)
    params = (f'ADAPTED_ENCODER = @adapted.{kind}()', 'LORA_RANK = 2')
    model = self.bind(ctc.build, *params)()
    pipeline = self.bind(pipeline_lib.Pipeline, *params)()
    self.assertIsNone(pipeline.augment)
    self.assertEqual(
        pipeline.tokenizer.identity, public.pipeline.tokenizer.identity
    )
    lengths = tf.constant([len(each) for each in self.waveforms])
    batch = np.zeros([len(lengths), max(lengths)], np.int16)
    for row, waveform in zip(batch, self.waveforms):
      row[: len(waveform)] = waveform
    inputs = pipeline.front_end.features(tf.constant(batch), lengths)
    found, _ = model.logits(model.initialize(tf.constant([3, 4])), *inputs)
    expected, _ = public.model.logits(public.weights, *inputs)
    np.testing.assert_array_equal(found, expected)
    self.assertGreater(np.std(found), 0.1)
    firsts = {name.partition('/')[0] for name in model.specs}
    trained = {
        'frozen': {'head'},
        'lora': {'head', 'block_00', 'block_01'},
        'last_blocks': {'head', 'block_01'},
        'whole': {'head', 'front', 'block_00', 'block_01'},
    }
    self.assertEqual(firsts, trained[kind])

  def test_the_characters_of_a_corpus_are_refused(self):
    build = config.bind(
        ctc.build,
        gin_files=[_TRAINING, _MODEL, self.corpus],
        gin_params=[f'PRETRAINED = {self.public!r}'],
    )
    with self.assertRaisesRegex(
        ValueError, "TOKENIZER has ' abc': name gin/models/public_ctc.gin after"
    ):
      build()

  def run_program(self, program: str, *arguments: str) -> str:
    finished = in_process.run(f'bin/{program}.py', *arguments)
    self.assertEqual(finished.code, 0, finished.stderr)
    return finished.stdout

  def configured(self, program: str, *files: str, flags=(), **settings):
    return self.run_program(
        program,
        *flags,
        *(f'--gin_file={file}' for file in files),
        f'--pretrained={self.public}',
        *(f'--gin_param={name} = {value}' for name, value in settings.items()),
    )

  def train(self, run: str, *files: str, **settings):
    """A private round; the results, and weights before and after it."""
    self.configured(
        'train_federated',
        _TRAINING,
        self.corpus,
        *files,
        _MODEL,
        flags=[f'--output_dir={self.path(run)}'],
        **dict(
            NUM_ROUNDS=1,
            COHORT_SIZE=2,
            NUM_LOCAL_STEPS=1,
            NOISE_MULTIPLIER=1.0,
            LORA_RANK=2,
            EVALUATE_EVERY=1,
        ) | settings,
    )
    results = json.loads(
        pathlib.Path(self.path(run, 'results.json')).read_text('utf-8')
    )
    return results, model_file.read(self.path(run, 'model.safetensors'))

  def evaluated(self, run: str):
    path = pathlib.Path(self.path(run, 'test.json'))
    return json.loads(path.read_text('utf-8'))

  @pytest.mark.slow
  def test_as_it_is_then_adapted_with_noise_then_evaluated(self):
    audio = []
    for index, waveform in enumerate(self.waveforms):
      audio.append(self.path(f'{index}.wav'))
      soundfile.write(audio[-1], waveform, 16000)
    lines = self.run_program(
        'transcribe', f'--pretrained={self.public}', *audio
    ).splitlines()
    self.assertLen(lines, 4)
    texts = [line.partition('\t')[2] for line in lines]
    for text in texts:
      self.assertRegex(text, '^[abc ]+$')
    self.run_program(
        'evaluate', f'--pretrained={self.public}', f'--data={self.dev}',
        f'--output_dir={self.path("untrained")}',
    )
    as_it_is = self.evaluated('untrained')
    self.assertEqual([each['text'] for each in as_it_is['hypotheses']], texts)
    public = recognizer_lib.load_pretrained(self.public)
    evaluated = evaluation.Evaluator(
        model=public.model,
        pipeline=public.pipeline,
        client_data=client_data.load(self.dev),
    )(public.weights)
    self.assertEqual([each.text for each in evaluated.hypotheses], texts)
    files = cases.digests(self.public)
    (cached,) = os.listdir(self.path('cache', 'pretrained'))
    cache = cases.digests(self.path('cache', 'pretrained', cached))

    results, head = self.train('head')
    self.assertGreater(results['privacy']['epsilon'], 0.1)
    self.assertLess(results['privacy']['epsilon'], 50)
    before = public.weights
    self.assertEqual(head.keys(), {'head/bias', 'head/kernel'})
    for name, value in head.items():
      self.assertFalse(np.any(value == before[name].numpy()), name)
    results, lora = self.train(
        'lora',
        'gin/optimizers/adam.gin',
        INIT_FROM_RUN=repr(self.path('head')),
        ADAPTED_ENCODER='@adapted.lora()',
        # What is clipped and noised, by layers.
        CLIP_LAYERS="'modules'",
    )
    self.assertGreater(results['privacy']['epsilon'], 0.1)
    self.assertEqual(
        {re.sub(r'block_\d\d', '*', name) for name in lora},
        {'head/bias', 'head/kernel', '*/wf/lora_a', '*/wf/lora_b',
         '*/wqkv/lora_a', '*/wqkv/lora_b'},
    )
    for name, value in lora.items():
      self.assertTrue(np.all(np.isfinite(value)), name)
      self.assertTrue(np.any(value != head.get(name, 0)), name)
    # Nothing else changed.
    self.assertEqual(cases.digests(self.public), files)
    self.assertEqual(
        cases.digests(self.path('cache', 'pretrained', cached)), cache
    )

    evaluate = 'gin/programs/evaluate.gin'
    for run, settings in (
        ('head', {}),
        ('lora', {'ADAPTED_ENCODER': '@adapted.lora()', 'LORA_RANK': 2}),
    ):
      shown = self.configured(
          'evaluate', evaluate, _MODEL,
          RUNS=repr([self.path(run)]), TEST_DIR=repr(self.dev), **settings,
      )
      self.assertRegex(shown, rf'{run}: WER \d+\.\d\d %')
      found = self.evaluated(run)
      self.assertNotEqual(found['loss'], evaluated.loss)
      by_name = self.run_program(
          'transcribe', f'--run={self.path(run)}', *audio
      )
      self.assertEqual(
          [line.partition('\t')[2] for line in by_name.splitlines()],
          [each['text'] for each in found['hypotheses']],
      )
    # People add low-rank changes of their own to a trained head.
    shown = self.configured(
        'personalize', 'gin/programs/personalize.gin', _MODEL,
        RUNS=repr([self.path('head')]), PERSONAL_DIR=repr(self.dev),
        ADAPTED_ENCODER='@adapted.lora()', LORA_RANK=2,
        TRAINED=['.*/lora_[ab]'], NUM_LOCAL_STEPS=1,
    )
    self.assertIn('new, and without effect at first: 8 tensors', shown)

    self.run_program(
        'export', f'--run={self.path("lora")}',
        f'--output_dir={self.path("exported")}', f'--data={self.dev}',
    )
    card = pathlib.Path(self.path('exported', 'model_card.md'))
    self.assertIn('the characters `ab␣c`', card.read_text('utf-8'))
    os.rename(self.public, self.path('elsewhere'))
    with mock.patch.dict(
        os.environ, {features.CACHE_VARIABLE: self.path('another_cache')}
    ):
      self.assertEqual(
          self.run_program(
              'transcribe', f'--run={self.path("exported")}', *audio
          ),
          by_name,
      )


if __name__ == '__main__':
  absltest.main()

"""Side channels: no output of a run may depend on private data.

Two runs have the same settings, keys and number of clients, but different
clients: other people, other amounts of speech, a recording that two of them
have, one that cannot be read. Here the released sums are noise alone, so any
difference in outputs comes from something other than the sum, and no epsilon
covers it. For files that only their owner may read, names and sizes are
compared, including files that a run replaces or erases before its end.
"""

import contextlib
import functools
import itertools
import os
import pathlib
import re
import secrets
import shutil
from unittest import mock

from absl import logging
import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tests import cases
from tests import fakes
from tests.learning import tiny
from tests.programs import runs
from tests.recognition import recognizers
from tff_asr import files
from tff_asr.data import client_data as client_data_lib
from tff_asr.execution import multi_device
from tff_asr.metrics import word_errors
from tff_asr.privacy import adaptive_query
from tff_asr.privacy import keys
from tff_asr.privacy import ledger as ledger_lib
from tff_asr.privacy import queries
from tff_asr.programs import evaluation
from tff_asr.programs import federated
from tff_asr.programs import pretraining
from tff_asr.programs import progress
from tff_asr.programs import public_data
from tff_asr.recognition import export
from tff_asr.reports import model_card
from tff_asr.reports import report
from tff_asr.reports import runs as reports_runs
from tff_asr.reports import tables
from tff_asr.storage import run_dir
from tff_asr.storage import state_file

_FEW = {'ann': 1, 'bob': 1, 'cai': 1, 'dee': 1}
_MANY = {'eve': 9, 'fay': 2, 'gus': 5, 'hal': 3}
# Their content is the owner's alone; others may get to know their size.
_OF_OWNER = (public_data.FILE, 'run.lock')


class _Deaf:
  """Of a query before which this stands: releases the noise of an empty sum."""

  def get_noised_result(self, sample_state, global_state):
    nothing = tf.nest.map_structure(tf.zeros_like, sample_state)
    return super().get_noised_result(nothing, global_state)


class _DeafAdaptive(_Deaf, adaptive_query.AdaptiveClipSumQuery):
  """Of updates and of the counts of adaptive clips."""


class _DeafSum(_Deaf, queries.PerLayerClipSumQuery):
  """Of gradients."""


class SideChannelsTest(cases.TestCase):

  def write(
      self, num_utterances, *, twins: bool = False, damaged: bool = False
  ) -> str:
    """Private data at a place that is the same for all."""
    folder = self.path('private')
    shutil.rmtree(folder, ignore_errors=True)
    spoken = [
        example
        for client_id, count in num_utterances.items()
        for example in fakes.examples(client_id, count)
    ]
    if twins:
      noise = np.random.default_rng(1).integers(-999, 999, [3200])
      spoken = [each | {'waveform': noise.astype(np.int16)} for each in spoken]
    fakes.write_examples(folder, spoken)
    if damaged:
      fakes.damage(os.path.join(folder, 'shard-00000.tfrecord'), offset=2000)
    return folder

  @contextlib.contextmanager
  def same_keys(self):
    """What is drawn and named at random comes the same in each run."""
    numbers = itertools.count()
    with (
        mock.patch.object(
            keys, 'draw', lambda: keys.from_seed(next(numbers))
        ),
        mock.patch.object(secrets, 'token_hex', lambda size: '0' * 2 * size),
        mock.patch.object(ledger_lib.Ledger, 'file_identity', 7),
        # Otherwise a log has one more line if ten seconds have passed.
        mock.patch.object(progress, '_SECONDS_BETWEEN_LINES', 0.0),
    ):
      yield

  def shown(self, program, *, dev: str, **settings) -> dict[str, bytes]:
    """All that a run writes and prints, by name."""
    run = self.path('run')
    shutil.rmtree(run, ignore_errors=True)
    written = []
    write_state = state_file.write

    def write(path, state):
      write_state(path, state)
      written.append(f'{os.path.basename(path)}: {os.path.getsize(path)}')

    with (
        self.same_keys(),
        self.assertLogs('absl', 'INFO') as logs,
        mock.patch.object(state_file, 'write', write),
    ):
      logging.info('There is a log.')
      results, printed = runs.train(
          program, output_dir=run, save_every=1, **settings
      )
    self.assertTrue(results['privacy']['private'])
    (read,) = reports_runs.read([run])
    if program.step_name == 'round':  # Pre-trained models write nothing.
      files.write_text(
          os.path.join(run, model_card.CARD),
          model_card.build(
              read,
              recognizer=recognizers.tiny(),
              exports=[export.Check(
                  file='saved_model',
                  num_bytes=1,
                  num_utterances=1,
                  num_same=1,
                  errors=word_errors.WordErrors(words=8),
                  checkpoint_errors=word_errors.WordErrors(words=8),
              )],
              data_dir=dev,
          ),
      )
    report.write(
        [tables.Row('run', [read])],
        output_dir=os.path.join(run, 'report'),
    )
    found = {
        'printed': re.sub(r', [^,]* left', '', printed).encode(),
        'logged': '\n'.join(logs.output).encode(),
        # States and secrets.
        'written': '\n'.join(written).encode(),
    }
    for path in pathlib.Path(run).rglob('*'):
      if path.is_file():
        content = path.read_bytes()
        if path.name in _OF_OWNER:
          content = b'%d bytes' % len(content)
        found[str(path.relative_to(run))] = content
    self.assertIn(b'secrets.safetensors', found['written'])
    self.assertContainsSubset(
        {run_dir.MODEL, run_dir.METRICS, run_dir.RESULTS, run_dir.PRIVACY_REPORT,
         run_dir.LEDGER, 'report/report.html'},
        found,
    )
    return found

  def assert_same(self, one, other):
    self.assertEqual(one.keys(), other.keys())
    self.assertEqual([name for name in one if one[name] != other[name]], [])

  def test_messages_do_not_depend_on_the_clients(self):
    dev = fakes.write_split(self.path('dev'), {'yan': 2, 'zoe': 1})
    folder = self.write(_FEW)
    # Of the data they have the place, and how many clients there are.
    settings = runs.federated(
        client_data_lib.load(folder),
        model=tiny.recognizer(),
        build_query=functools.partial(
            _DeafAdaptive,
            l2_norm_clip=0.01,
            noise_multiplier=30.0,
            cohort_size=2,
        ),
    )
    evaluator = evaluation.Evaluator(
        model=settings['model'],
        pipeline=settings['pipeline'],
        client_data=client_data_lib.load(dev),
    )

    def shown():
      return self.shown(
          federated.FederatedTraining,
          dev=dev,
          **settings | dict(
              client_data=client_data_lib.load(folder),
              configuration=f'NUM_ROUNDS = 4\nPRIVATE_DIR = {folder!r}\n',
              context=multi_device.build_async_context(
                  multi_device.Settings(max_failed_share=1.0)
              ),
              num_rounds=4,
              evaluator=evaluator,
          ),
      )

    few = shown()
    self.write(_MANY, twins=True, damaged=True)
    self.assert_same(few, shown())

  def test_messages_do_not_depend_on_the_recordings(self):
    model = tiny.predictor()
    optimizer = tff.learning.optimizers.build_adam(0.01)
    dev = fakes.write_split(self.path('dev'), {'yan': 2, 'zoe': 1})
    build_query = functools.partial(
        _DeafSum, l2_norm_clip=0.1, noise_multiplier=30.0
    )

    def shown(num_utterances):
      folder = self.write(num_utterances)
      return self.shown(
          pretraining.Pretraining,
          dev=dev,
          configuration=f'NUM_STEPS = 3\nTRAIN_DIR = {folder!r}\n',
          model=model,
          pipeline=fakes.tiny_pipeline(model),
          client_data=client_data_lib.load(folder),
          optimizer=optimizer,
          batch_size=3,
          num_steps=3,
          seed=3,
          build_query=build_query,
          evaluate_every=2,
      )

    # As many recordings, of another number of people.
    self.assert_same(
        shown({'ann': 6}), shown({'eve': 1, 'fay': 2, 'gus': 3})
    )

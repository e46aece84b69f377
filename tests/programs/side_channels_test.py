"""Side channels: nothing that a run shows may follow from private data.

Two runs have the same settings, keys and number of clients, and quite different
clients: other people, other amounts of speech, a recording that two of them
have, one that cannot be read. What is released of their updates is noise alone
here. So whatever still differs is told by something else than the sum, and no
epsilon covers it.
"""

import contextlib
import itertools
import os
import pathlib
import re
import secrets
import shutil
from unittest import mock

from absl import logging
from absl.testing import absltest
import numpy as np
import tensorflow as tf

from data_tools import shards
from tests import cases
from tests import fakes
from tests.programs import runs
from tests.recognition import recognizers
from tff_asr import files
from tff_asr.data import client_data as client_data_lib
from tff_asr.execution import multi_device
from tff_asr.metrics import word_errors
from tff_asr.privacy import adaptive_query
from tff_asr.privacy import keys
from tff_asr.privacy import ledger as ledger_lib
from tff_asr.programs import evaluation
from tff_asr.programs import federated
from tff_asr.programs import public_data
from tff_asr.recognition import export
from tff_asr.reports import model_card
from tff_asr.reports import report
from tff_asr.reports import runs as reports_runs
from tff_asr.reports import tables
from tff_asr.storage import run_dir

_FEW = {'ann': 1, 'bob': 1, 'cai': 1, 'dee': 1}
_MANY = {'eve': 9, 'fay': 2, 'gus': 5, 'hal': 3}
_NUM_ROUNDS = 4
# Of their owner alone, and not of what is released.
_OF_OWNER = (public_data.FILE, 'run.lock')


class _Deaf(adaptive_query.AdaptiveClipSumQuery):
  """Releases noise in place of the noised sum."""

  def get_noised_result(self, sample_state, global_state):
    nothing = tf.nest.map_structure(tf.zeros_like, sample_state)
    return super().get_noised_result(nothing, global_state)


def _build_query(specs):
  return _Deaf(
      specs, l2_norm_clip=0.01, noise_multiplier=30.0, cohort_size=2
  )


class SideChannelsTest(cases.TestCase):

  def setUp(self):
    super().setUp()
    self.settings = None

  def write(self, num_utterances, *, twins: bool, damaged: bool) -> str:
    """Private data at a place that is the same for all."""
    folder = self.path('private')
    shutil.rmtree(folder, ignore_errors=True)
    waveforms = itertools.repeat(None)
    if twins:
      noise = np.random.default_rng(1).integers(-999, 999, [3200])
      waveforms = itertools.repeat(noise.astype(np.int16))
    shards.write_split(
        [
            shards.Utterance(
                client_id=client_id,
                utterance_id=example['utterance_id'],
                transcript=example['transcript'],
                audio=lambda waveform=(
                    example['waveform'] if other is None else other
                ): waveform,
            )
            for client_id, count in num_utterances.items()
            for example, other in zip(
                fakes.examples(client_id, count), waveforms
            )
        ],
        folder,
        origin={'corpus': 'fake'},
        num_workers=0,
    )
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
    ):
      yield

  def shown(self, num_utterances, **data) -> dict[str, bytes]:
    """All that a run on these clients writes and prints, by name."""
    folder = self.write(num_utterances, **data)
    dev = self.path('dev')
    if not os.path.exists(dev):
      fakes.write_split(dev, {'yan': 2, 'zoe': 1})
    run = self.path('run')
    shutil.rmtree(run, ignore_errors=True)
    data = client_data_lib.load(folder)
    if self.settings is None:
      # Of the data it has the place, and how many clients there are.
      self.settings = runs.federated(data, build_query=_build_query)
    settings = self.settings | {'client_data': data}
    evaluator = evaluation.Evaluator(
        model=settings['model'],
        pipeline=settings['pipeline'],
        client_data=client_data_lib.load(dev),
    )
    with self.same_keys(), self.assertLogs('absl', 'INFO') as logs:
      logging.info('There is a log.')
      results, printed = runs.train(
          federated.FederatedTraining,
          **settings | dict(
              output_dir=run,
              configuration=(
                  f'NUM_ROUNDS = {_NUM_ROUNDS}\nPRIVATE_DIR = {folder!r}\n'
              ),
              context=multi_device.build_async_context(
                  multi_device.Settings(max_failed_share=1.0)
              ),
              num_rounds=_NUM_ROUNDS,
              evaluator=evaluator,
              save_every=1,
          ),
      )
    self.assertTrue(results['privacy']['private'])
    (read,) = reports_runs.read([run])
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
        # Of the server alone are warnings about the data themselves.
        'logged': '\n'.join(
            line for line in logs.output if 'have a recording' not in line
        ).encode(),
    }
    for path in pathlib.Path(run).rglob('*'):
      if path.is_file() and path.name not in _OF_OWNER:
        found[str(path.relative_to(run))] = path.read_bytes()
    return found

  def test_what_is_shown_is_the_same_for_other_clients(self):
    few = self.shown(_FEW, twins=False, damaged=False)
    self.assertContainsSubset(
        {run_dir.MODEL, run_dir.METRICS, run_dir.RESULTS, run_dir.STATEMENT,
         run_dir.LEDGER, model_card.CARD, 'report/report.html'},
        few,
    )
    many = self.shown(_MANY, twins=True, damaged=True)
    self.assertEqual(few.keys(), many.keys())
    self.assertEqual(
        [name for name in few if few[name] != many[name]], []
    )


if __name__ == '__main__':
  absltest.main()

"""Clients of odd data in a private run: of NaN features, of two samples."""

import functools
import os

import numpy as np
import tensorflow as tf

from tests import cases
from tests import fakes
from tests.learning import tiny
from tests.programs import runs
from tff_asr.data import client_data as client_data_lib
from tff_asr.data import cohorts
from tff_asr.privacy import queries
from tff_asr.programs import federated

_GOOD = ('ann', 'bob')


# Frames of the client of NaN features: a second, in windows of 25 ms that are
# 10 ms apart.
_NUM_NAN_FRAMES = 1 + (16000 - 400) // 160


def _make_one_nan(features, lengths, seed):
  """In place of SpecAugment."""
  del seed
  is_nan = tf.equal(lengths, _NUM_NAN_FRAMES)[:, tf.newaxis, tf.newaxis]
  return tf.where(is_nan, np.nan, features)


class OddClientsTest(cases.TestCase):

  def train(self, root: str, waveforms: dict[str, np.ndarray]):
    """Rows of the metrics of a round of everyone, and the ledger's rounds."""
    data = client_data_lib.load(fakes.write_examples(
        os.path.join(root, 'shards'),
        [
            fakes.utterance(name, 0) | {'waveform': waveform}
            for name, waveform in waveforms.items()
        ],
    ))
    self.assertCountEqual(data.client_ids, waveforms)
    arguments = runs.federated(
        data,
        build_query=functools.partial(
            queries.PerLayerClipSumQuery,
            l2_norm_clip=0.01,
            noise_multiplier=1.0,
        ),
        cohort_size=len(waveforms),
        model=tiny.recognizer(),
        augment=_make_one_nan,
    )
    run = os.path.join(root, 'run')
    runs.train(
        federated.FederatedTraining,
        output_dir=run,
        num_rounds=1,
        max_failed_share=0.5,
        exact_metrics=True,
        **arguments | dict(build_cohorts=cohorts.full),
    )
    (row,) = runs.metrics(run)
    row = {name: float(value) for name, value in row.items()}
    return row, runs.charged(run)

  def test_odd_clients_are_counted_and_the_round_continues(self):
    speech = {
        name: fakes.utterance(name, 0)['waveform'] for name in _GOOD
    }
    odd = {
        'nan': np.arange(16000).astype(np.int16),
        'two': np.arange(2).astype(np.int16),
    }
    with self.assertLogs('absl', 'WARNING') as logs:
      row, charged = self.train(self.root, speech | odd)
    self.assertIn(
        '1 of 4 clients of round 1 failed (1 with an update that is not '
        'finite) and were left out.',
        ''.join(logs.output),
    )
    self.assertEqual(charged, 1)
    self.assertEqual(row['not_private/num_non_finite'], 1)
    # The client of two samples has nothing to train on.
    self.assertEqual(row['not_private/num_clients'], 4)
    self.assertEqual(row['not_private/num_utterances'], 2)
    self.assertTrue(np.isfinite(row['not_private/train_loss']))
    self.assertTrue(np.isfinite(row['finalizer/update_norm']))

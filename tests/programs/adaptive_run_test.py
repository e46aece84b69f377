"""A federated run whose clips adapt: charged, saved, resumed and stated."""

import csv
import functools
import os
import tempfile
from unittest import mock

from absl.testing import absltest
import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tests import fakes
from tests.programs import runs
from tff_asr.aggregators import dp_mean
from tff_asr.data import client_data as client_data_lib
from tff_asr.data import cohorts
from tff_asr.execution import multi_device
from tff_asr.learning import client_update
from tff_asr.learning import fed_avg
from tff_asr.privacy import adaptive_query
from tff_asr.privacy import clipping as clipping_lib
from tff_asr.privacy import ledger as ledger_lib
from tff_asr.programs import federated
from tff_asr.storage import run_dir
from tff_asr.storage import state_file

_NOISE = 3.0
_CONFIGURATION = 'SEED = 1\n'


def _train(output_dir: str, *, parts, num_rounds: int) -> dict:
  model, pipeline, data, process, context = parts
  results, _ = runs.train(
      federated.FederatedTraining,
      output_dir=output_dir,
      configuration=_CONFIGURATION,
      model=model,
      pipeline=pipeline,
      client_data=data,
      learning_process=process,
      build_cohorts=functools.partial(cohorts.poisson, cohort_size=2),
      context=context,
      num_rounds=num_rounds,
      save_every=1,
      delta=1e-5,
      noise_seed=1,
      sampler_seed=2,
  )
  return results


def _tags(folder: str) -> set[str]:
  """Names of what TensorBoard was given."""
  tags = set()
  for name in os.listdir(folder):
    for record in tf.data.TFRecordDataset(os.path.join(folder, name)):
      event = tf.compat.v1.Event.FromString(record.numpy())
      tags |= {value.tag for value in event.summary.value}
  return tags


class AdaptiveRunTest(absltest.TestCase):

  @pytest.mark.slow
  def test_is_charged_as_one_gaussian_and_resumes_exactly(self):
    root = self.enterContext(tempfile.TemporaryDirectory())
    model = fakes.tiny_model(num_blocks=1)
    pipeline = fakes.tiny_pipeline(model)
    data = client_data_lib.load(
        fakes.write_split(
            os.path.join(root, 'private'), {'ann': 1, 'bob': 1, 'cai': 1}
        )
    )
    process = fed_avg.build(
        model=model,
        pipeline=pipeline,
        client_data=data,
        aggregator=dp_mean.build(
            build_query=functools.partial(
                adaptive_query.AdaptiveClipSumQuery,
                cohort_size=2,
                l2_norm_clip=0.1,
                noise_multiplier=_NOISE,
                clipping=clipping_lib.Clipping(split='dim', layers='modules'),
            ),
            cohort_size=2,
        ),
        server_optimizer=tff.learning.optimizers.build_sgdm(0.1),
        local=client_update.LocalTraining(learning_rate=0.01, num_steps=1),
        seed=5,
    )
    context = multi_device.build_async_context()
    parts = model, pipeline, data, process, context
    whole, stopped = os.path.join(root, 'whole'), os.path.join(root, 'stopped')
    results = _train(whole, parts=parts, num_rounds=3)
    judge = federated.FederatedTraining.judge

    def kill(training, record, done, *, number):
      if number == 2:
        raise KeyboardInterrupt
      return judge(training, record, done, number=number)

    with mock.patch.object(federated.FederatedTraining, 'judge', kill):
      with self.assertRaises(KeyboardInterrupt):
        _train(stopped, parts=parts, num_rounds=3)
    _train(stopped, parts=parts, num_rounds=3)

    states = [
        state_file.read_leaves(run_dir.newest_state(run), prefix='process')
        for run in (whole, stopped)
    ]
    self.assertEqual(list(states[0]), list(states[1]))
    for name, value in states[0].items():
      np.testing.assert_array_equal(value, states[1][name], name)
    (layer_clips,) = [
        value for name, value in states[0].items() if 'layer_clips' in name
    ]
    # Six modules in the block, the front end, the norm and the head.
    self.assertEqual(layer_clips.shape, (9,))

    (rounds,) = ledger_lib.read(os.path.join(whole, run_dir.LEDGER)).rounds
    self.assertEqual((rounds.count, rounds.noise_multiplier), (3, _NOISE))
    self.assertEqual(results['privacy']['adaptive_layers'], 9)
    with open(os.path.join(whole, 'privacy.txt'), encoding='utf-8') as f:
      self.assertIn('9 clips follow a quantile', ' '.join(f.read().split()))

    with open(os.path.join(whole, 'metrics.csv'), encoding='utf-8') as f:
      rows = list(csv.DictReader(f))
    clip = 'aggregator/dp_query_metrics/l2_norm_clip'
    # Of each round: the first one's is the setting.
    self.assertAlmostEqual(float(rows[0][clip]), 0.1, places=6)
    self.assertNotEqual(rows[1][clip], rows[0][clip])
    self.assertNotIn('layer_', ''.join(rows[0]))
    tags = _tags(os.path.join(whole, 'tensorboard'))
    self.assertContainsSubset(
        {
            'aggregator/dp_query_metrics/layer_clip/block_00/ln1',
            'not_private/layer_norm/block_00/ln1',
            'not_private/clipped_layer_norm/block_00/ln1',
            'not_private/layer_clipped/head',
            clip,
        },
        tags,
    )

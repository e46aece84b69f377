"""A federated run with adaptive clips: charged, saved, resumed and reported."""

import functools
import os
from unittest import mock

from absl.testing import parameterized
import numpy as np
import pytest
import tensorflow_federated as tff

from tests import cases
from tests import fakes
from tests import seen
from tests.programs import runs
from tff_asr.data import client_data as client_data_lib
from tff_asr.data import cohorts
from tff_asr.privacy import adaptive_query
from tff_asr.privacy import clipping as clipping_lib
from tff_asr.privacy import correlated_noise
from tff_asr.privacy import ledger as ledger_lib
from tff_asr.privacy import strategies
from tff_asr.programs import federated
from tff_asr.storage import run_dir
from tff_asr.storage import state_file

_NOISE = 3.0
_CORRELATED = correlated_noise.CorrelatedNoise(
    strategy=strategies.optimize(num_rounds=6, min_sep=3),
    min_sep=3,
)


def _state(run: str) -> dict[str, np.ndarray]:
  """The process's part of a run's last state."""
  leaves = state_file.read_leaves(run_dir.newest_state_path(run))
  return {
      name: leaf for name, leaf in leaves.items() if name.startswith('process')
  }


def _layer_clips(run: str) -> np.ndarray:
  (clips,) = (v for name, v in _state(run).items() if 'layer_clips' in name)
  return clips


class AdaptiveRunTest(cases.TestCase):

  @parameterized.named_parameters(('independent', False), ('correlated', True))
  @pytest.mark.slow
  def test_is_charged_as_one_gaussian_and_resumes_exactly(self, is_correlated):
    settings, cohort_size = {}, 2
    if is_correlated:
      settings, cohort_size = dict(noise=_CORRELATED), 1
    arguments = runs.federated(
        client_data_lib.load(
            fakes.write_split(
                self.path('private'), {'ann': 1, 'bob': 1, 'cai': 1}
            )
        ),
        build_query=functools.partial(
            adaptive_query.AdaptiveClipSumQuery,
            cohort_size=2,
            l2_norm_clip=0.1,
            noise_multiplier=_NOISE,
            clipping=clipping_lib.Clipping(split='dim', layers='modules'),
            **settings,
        ),
        cohort_size=cohort_size,
        optimizer=tff.learning.optimizers.build_sgdm(0.1),
    )
    if is_correlated:
      arguments['build_cohorts'] = functools.partial(
          cohorts.min_sep, cohort_size=1, min_sep=3
      )
    train = lambda run: runs.train(
        federated.FederatedTraining,
        output_dir=run,
        num_rounds=3,
        save_every=1,
        delta=1e-5,
        noise_seed=1,
        sampler_seed=2,
        **arguments,
    )[0]
    whole, stopped, lost = map(self.path, ('whole', 'stopped', 'lost'))
    results = train(whole)
    process_round = federated.FederatedTraining.process_round

    def kill(training, *arguments, round_num, shows_exact):
      if round_num == 2:
        raise KeyboardInterrupt
      return process_round(
          training, *arguments, round_num=round_num, shows_exact=shows_exact
      )

    for run in (stopped, lost):
      with mock.patch.object(
          federated.FederatedTraining, 'process_round', kill
      ):
        with self.assertRaises(KeyboardInterrupt):
          train(run)
    train(stopped)
    os.remove(os.path.join(lost, run_dir.SECRETS))
    train(lost)

    first, second = map(_state, (whole, stopped))
    self.assertEqual(list(first), list(second))
    for name, value in first.items():
      np.testing.assert_array_equal(value, second[name], name)
    layer_clips = _layer_clips(whole)
    # Six modules in the block, the front end, the norm and the head.
    self.assertEqual(layer_clips.shape, (9,))

    (rounds,) = ledger_lib.read(os.path.join(whole, run_dir.LEDGER)).rounds
    self.assertEqual(rounds.count, 3)
    if is_correlated:
      self.assertEqual(rounds.strategy, _CORRELATED.strategy)
      self.assertBetween(rounds.noise_multiplier, 0.999 * _NOISE, _NOISE)
      self.assertLess(rounds.noise_multiplier, _NOISE)
    else:
      self.assertEqual(rounds.noise_multiplier, _NOISE)
    # Without its secrets a run resumes: where noise is correlated, in another
    # sequence of rounds, from empty buffers.
    charged = ledger_lib.read(os.path.join(lost, run_dir.LEDGER)).rounds
    self.assertEqual(
        [group.count for group in charged], [2, 2] if is_correlated else [4]
    )
    self.assertTrue(np.any(layer_clips != _layer_clips(lost)))
    self.assertEqual(results['privacy']['adaptive_layers'], 9)
    with open(os.path.join(whole, 'privacy_report.txt'), encoding='utf-8') as f:
      self.assertIn('9 clips follow a quantile', ' '.join(f.read().split()))

    rows = runs.metrics(whole)
    clip = 'aggregator/dp_query_metrics/l2_norm_clip'
    # Of each round: the first one's is the setting.
    self.assertAlmostEqual(float(rows[0][clip]), 0.1, places=6)
    self.assertNotEqual(rows[1][clip], rows[0][clip])
    self.assertNotIn('layer_', ''.join(rows[0]))
    shown = seen.text(whole).splitlines()  # Names in TensorBoard, among others.
    self.assertContainsSubset(
        {
            'aggregator/dp_query_metrics/layer_clip/block_00/ln1',
            'not_private/layer_norm/block_00/ln1',
            'not_private/clipped_layer_norm/block_00/ln1',
            'not_private/layer_clipped/head',
            clip,
        },
        shown,
    )

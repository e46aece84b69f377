"""Tests of tff_asr.programs.round_metrics; federated_test has a run's."""

import collections
import math

from absl.testing import absltest

from tff_asr.learning import fed_avg
from tff_asr.programs import round_metrics

_TRAFFIC = fed_avg.Traffic(down=100, up=40)


def _flatten(**work: float) -> dict[str, float]:
  names = (
      'audio_sec', 'delta_norm_sum', 'first_loss_sum', 'last_loss_sum',
      'loss_sum',
      'num_clients', 'num_left_out', 'num_non_finite', 'num_steps',
      'num_trained', 'num_utterances',
  )
  metrics = collections.OrderedDict(
      distributor=(),
      client_work={name: work.get(name, 0.0) for name in names},
      aggregator=collections.OrderedDict(
          dp_query_metrics={'l2_norm_clip': 0.5, 'layer_clip': {'a/b': 0.25}},
          noise_norm=3.0,
          not_private=collections.OrderedDict(
              signal_norm=0.1, layer_norm={'a/b': 7.0},
              clipped_layer_norm={'a/b': 3.0},
          ),
      ),
      finalizer={'update_norm': 2.0},
  )
  del metrics['distributor']
  return round_metrics.flatten(metrics, traffic=_TRAFFIC)


class RoundMetricsTest(absltest.TestCase):

  def test_means_and_bytes_by_hand(self):
    metrics = _flatten(
        delta_norm_sum=6.0, first_loss_sum=20.0, last_loss_sum=10.0,
        loss_sum=90.0, num_clients=5.0, num_non_finite=2.0, num_trained=2.0,
        num_utterances=30.0,
    )
    expected = dict(
        # Of three clients whose delta is finite, one of them without data.
        delta_norm=2.0,
        loss_before=10.0,
        loss_after=5.0,
        train_loss=3.0,
        bytes_down=500.0,
        bytes_up=200.0,
    )
    for name, value in expected.items():
      self.assertEqual(metrics[f'not_private/{name}'], value, name)
    for name in metrics:
      self.assertNotIn('_sum', name)

  def test_a_round_of_nobody_has_no_means(self):
    metrics = _flatten()
    for name in ('delta_norm', 'loss_before', 'loss_after', 'train_loss'):
      self.assertTrue(math.isnan(metrics[f'not_private/{name}']))
    self.assertEqual(metrics['not_private/bytes_down'], 0)

  def test_what_comes_from_clients_without_noise_is_named_so(self):
    metrics = _flatten(num_clients=1.0)
    released = {
        name for name in metrics if not name.startswith('not_private/')
    }
    self.assertEqual(
        released,
        {
            'aggregator/dp_query_metrics/l2_norm_clip',
            'aggregator/dp_query_metrics/layer_clip/a/b',
            'aggregator/noise_norm',
            'finalizer/update_norm',
        },
    )
    self.assertEqual(metrics['not_private/signal_norm'], 0.1)
    self.assertEqual(metrics['not_private/layer_norm/a/b'], 7.0)

  def test_layers_are_not_of_the_whole(self):
    metrics = _flatten(num_clients=1.0)
    of_layers = {
        name for name in metrics if not round_metrics.is_of_the_whole(name)
    }
    self.assertEqual(
        of_layers,
        {
            'aggregator/dp_query_metrics/layer_clip/a/b',
            'not_private/clipped_layer_norm/a/b',
            'not_private/layer_norm/a/b',
        },
    )


if __name__ == '__main__':
  absltest.main()

"""Tests of tff_asr.aggregators.adaptive_mean; the query has its own."""

import collections
import math

from absl.testing import absltest
import dp_accounting
import numpy as np
import tensorflow_federated as tff

from tests import reference
from tff_asr.aggregators import adaptive_mean
from tff_asr.aggregators import dp_mean
from tff_asr.execution import multi_device
from tff_asr.privacy import adaptive_query
from tff_asr.privacy import clipping as clipping_lib

_KEY = np.array([1, 2, 3, 4], np.int32)
_VALUE_TYPE = tff.to_type(
    collections.OrderedDict(
        a=tff.TensorType(np.float32, [2]), b=tff.TensorType(np.float32)
    )
)


def _create(**changes) -> tff.templates.AggregationProcess:
  arguments = dict(
      cohort_size=4,
      l2_norm_clip=math.sqrt(2),  # C_h = 1.
      noise_multiplier=0.0,
      clipping=clipping_lib.Clipping(split='uniform'),
      adaptation=adaptive_query.Adaptation(learning_rate=0.5),
  )
  factory = adaptive_mean.build(**arguments | changes)
  return factory.create(_VALUE_TYPE, tff.TensorType(np.float32))


def _value(*numbers: float):
  return collections.OrderedDict(
      a=np.float32(numbers[:2]), b=np.float32(numbers[2])
  )


class AdaptiveMeanTest(absltest.TestCase):

  def setUp(self):
    super().setUp()
    self.enterContext(
        tff.framework.get_context_stack().install(
            multi_device.build_sync_context(
                devices=['CPU:0'], clients_per_device=2
            )
        )
    )

  def test_rounds_equal_a_numpy_simulation(self):
    process = _create()
    state = process.initialize()
    values = [_value(3, 4, 0.1), _value(6, 8, 2), _value(0, 2, 0.2)]
    norms = [[5, 0.1], [10, 2], [2, 0.2]]
    expected = [1.0, 1.0]
    for _ in range(3):
      output = process.next(state, values, [1.0] * 3)
      a = sum(
          np.array(value['a']) * min(1, expected[0] / norm[0])
          for value, norm in zip(values, norms)
      )
      b = sum(
          value['b'] * min(1, expected[1] / norm[1])
          for value, norm in zip(values, norms)
      )
      np.testing.assert_allclose(output.result['a'], a / 4, rtol=1e-5)
      np.testing.assert_allclose(output.result['b'], b / 4, rtol=1e-5)
      # The measurements are of this round's clips, not of the next one's.
      metrics = output.measurements['dp_query_metrics']
      np.testing.assert_allclose(
          list(metrics['layer_clip'].values()), expected, rtol=1e-5
      )
      np.testing.assert_allclose(
          metrics['l2_norm_clip'], np.linalg.norm(expected), rtol=1e-5
      )
      np.testing.assert_allclose(
          output.measurements['not_private']['signal_norm'],
          math.hypot(*a, b) / 4,
          rtol=1e-5,
      )
      expected = reference.adapt_clips(
          expected, norms, cohort_size=4, target_quantile=0.5,
          learning_rate=0.5,
      )
      state = output.state
    self.assertGreater(expected[0], 1.1)
    self.assertLess(expected[1], 0.95)

  def test_a_round_is_one_gaussian_and_the_clips_are_in_the_state(self):
    process = _create(noise_multiplier=1.5, cohort_size=100)
    state = dp_mean.set_noise_key(process.initialize(), _KEY)
    self.assertIn(
        'layer_clips=float32[2]', str(process.initialize.type_signature)
    )
    first = process.next(state, [_value(3, 4, 0.1)], [1.0])
    event = dp_accounting.DpEvent.from_named_tuple(first.state.dp_event)
    self.assertEqual(event, dp_accounting.GaussianDpEvent(1.5))
    clips_of = lambda state: np.asarray(
        state.query_state.numerator_state.layer_clips
    )
    self.assertFalse(np.array_equal(clips_of(first.state), clips_of(state)))
    # A run that goes on from the saved state has the same bits.
    second, again = (
        process.next(first.state, [_value(1, 1, 1)], [1.0]) for _ in range(2)
    )
    np.testing.assert_array_equal(second.result['a'], again.result['a'])
    np.testing.assert_array_equal(
        clips_of(second.state), clips_of(again.state)
    )

  def test_settings_reach_the_query(self):
    # The rate and the divisor do in the simulation above.
    process = _create(
        l2_norm_clip=5.0,
        noise_multiplier=0.3,
        clipping=clipping_lib.Clipping(split='uniform', weights={'a': 4 / 3}),
    )
    state = process.initialize().query_state.numerator_state
    np.testing.assert_allclose(state.layer_clips, [4, 3], rtol=1e-6)
    np.testing.assert_allclose(state.noise_multiplier, 0.3)

  def test_bad_arguments_are_named(self):
    with self.assertRaisesRegex(ValueError, 'cohort_size must be positive'):
      _create(cohort_size=0)
    with self.assertRaisesRegex(ValueError, 'finite number, found inf'):
      _create(l2_norm_clip=math.inf)


if __name__ == '__main__':
  absltest.main()

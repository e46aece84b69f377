"""Tests of tff_asr.optimizers.param_groups."""

import collections

from absl.testing import parameterized
import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_asr.optimizers import adam
from tff_asr.optimizers import param_groups
from tff_asr.optimizers import schedules

_SPECS = collections.OrderedDict(a=tf.TensorSpec([2]), b=tf.TensorSpec([]))


def _values(a, b):
  to_tensor = lambda value: None if value is None else tf.constant(value)
  return collections.OrderedDict(a=to_tensor(a), b=to_tensor(b))


class GroupedTest(parameterized.TestCase):

  def test_the_group_steps_at_its_rate(self):
    optimizer = param_groups.build_param_groups(
        tff.learning.optimizers.build_sgdm(0.5), group=['a'], rate=0.1
    )
    _, weights = optimizer.next(
        optimizer.initialize(_SPECS),
        _values([1.0, 2.0], 3.0),
        _values([4.0, -2.0], 2.0),
    )
    # 1 - .1 * .5 * 4, 2 + .1 * .5 * 2; 3 - .5 * 2.
    np.testing.assert_allclose(weights['a'], [0.8, 2.1], rtol=1e-6)
    np.testing.assert_allclose(weights['b'], 2.0)
    self.assertEqual(list(weights), ['a', 'b'])

  def test_without_gradients_the_group_waits_and_then_begins(self):
    inner = schedules.scheduled(
        adam.build_adam(1.0),
        schedule=schedules.warmup(schedules.constant(0.1), rounds=4),
    )
    optimizer = param_groups.build_param_groups(inner, group=['a'], rate=1.0)
    state = optimizer.initialize(_SPECS)
    weights = _values([1.0, 2.0], 3.0)
    for _ in range(3):
      state, weights = optimizer.next(state, weights, _values(None, 2.0))
    np.testing.assert_array_equal(weights['a'], [1.0, 2.0])
    self.assertLess(float(weights['b']), 3.0)
    # As if it were the first step: moments, bias and warm-up are.
    alone = inner.initialize(_SPECS['a'])
    expected = tf.constant([1.0, 2.0])
    for gradient in ([1.0, -2.0], [0.5, 1.0]):
      state, weights = optimizer.next(state, weights, _values(gradient, 2.0))
      alone, expected = inner.next(alone, expected, tf.constant(gradient))
    np.testing.assert_allclose(weights['a'], expected, rtol=1e-6)

  def test_the_group_may_have_another_warm_up(self):
    sgd = tff.learning.optimizers.build_sgdm(1.0)
    over = lambda rounds: schedules.scheduled(
        sgd, schedule=schedules.warmup(schedules.constant(0.4), rounds=rounds)
    )
    optimizer = param_groups.build_param_groups(
        over(2), group=['a'], rate=0.5, group_optimizer=over(4)
    )
    state, weights = optimizer.initialize(_SPECS), _values([0.0, 0.0], 0.0)
    found = []
    for _ in range(3):
      state, weights = optimizer.next(
          state, weights, _values([1.0, 1.0], 1.0)
      )
      found.append((float(weights['a'][0]), float(weights['b'])))
    # The group: .5 x .4 x (1, 2, 3) / 4, added up. The others: .4 x 1 / 2, .4.
    np.testing.assert_allclose(
        found, [(-0.05, -0.2), (-0.15, -0.6), (-0.3, -1.0)], rtol=1e-5
    )

  def test_hparams_are_those_of_both(self):
    optimizer = param_groups.build_param_groups(
        tff.learning.optimizers.build_sgdm(0.5), group=['a'], rate=1.0
    )
    state = optimizer.initialize(_SPECS)
    hparams = dict(optimizer.get_hparams(state), learning_rate=0.25)
    state = optimizer.set_hparams(state, hparams)
    _, weights = optimizer.next(
        state, _values([1.0, 1.0], 1.0), _values([1.0, 1.0], 1.0)
    )
    np.testing.assert_allclose(weights['a'], [0.75, 0.75])
    np.testing.assert_allclose(weights['b'], 0.75)

  @parameterized.parameters(
      (dict(group=['c'], rate=1.0), 'group names c'),
      (dict(group=['a', 'b'], rate=1.0), 'names all weights'),
      (dict(group=['a'], rate=0.0), 'rate'),
      (dict(group=['a'], rate=np.inf), 'rate'),
  )
  def test_bad_arguments_are_named(self, options, message):
    with self.assertRaisesRegex(ValueError, message):
      param_groups.build_param_groups(
          tff.learning.optimizers.build_sgdm(0.5), **options
      ).initialize(_SPECS)

"""Tests of tff_asr.optimizers.schedules."""

import functools

from absl.testing import parameterized
import numpy as np
import tensorflow as tf

from tff_asr.optimizers import lamb
from tff_asr.optimizers import schedules


_decay = functools.partial(
    schedules.exponential_decay,
    learning_rate=0.4,
    start=1000,
    decay_rate=0.6,
    transition_rounds=500,
)
_step_decay = functools.partial(
    schedules.step_decay,
    learning_rate=0.5,
    start=250,
    decay_rate=0.5,
    transition_rounds=50,
)
_constant = schedules.constant(0.2)


class SchedulesTest(parameterized.TestCase):

  @parameterized.named_parameters(
      ('constant', _constant, {0: 0.2, 1: 0.2, 10**6: 0.2}),
      # The paper's: .4 until 1000, then times .6 every 500 rounds.
      (
          'decay',
          _decay(),
          {
              0: 0.4, 999: 0.4, 1000: 0.4, 1001: 0.4 * 0.6 ** (1 / 500),
              1250: 0.4 * 0.6**0.5, 1500: 0.24, 2000: 0.144, 10**6: 0,
          },
      ),
      ('decay_floor', _decay(floor=0.1), {1500: 0.24, 100_000: 0.1}),
      ('decay_rate_1', _decay(decay_rate=1.0), {5000: 0.4}),
      ('decay_rate_0', _decay(decay_rate=0.0), {1000: 0.4, 1001: 0}),
      # The paper's, in thousands of steps: .5, halved at 250 and then every 50.
      (
          'steps',
          _step_decay(),
          {
              0: 0.5, 249: 0.5, 250: 0.25, 299: 0.25, 300: 0.125, 349: 0.125,
              350: 0.0625, 600: 0.5 / 2**8,
          },
      ),
      ('steps_start', _step_decay(start=200), {240: 0.25}),
      ('steps_start_0', _step_decay(start=0), {0: 0.25}),
      ('steps_rate', _step_decay(decay_rate=0.1), {300: 0.005}),
      ('steps_rate_0', _step_decay(decay_rate=0.0), {250: 0}),
      ('steps_rate_1', _step_decay(decay_rate=1.0), {1000: 0.5}),
      ('steps_rounds', _step_decay(transition_rounds=25), {275: 0.125}),
      ('steps_learning_rate', _step_decay(learning_rate=1.0), {250: 0.5}),
      ('steps_floor', _step_decay(floor=0.2), {299: 0.25, 300: 0.2}),
      # The second decay comes two rounds early, and with it those after it.
      (
          'steps_first',
          _step_decay(first_transition=48),
          {
              0: 0.5, 249: 0.5, 250: 0.25, 297: 0.25, 298: 0.125, 347: 0.125,
              348: 0.0625,
          },
      ),
      # 2^24 + 1 rounds are 2^24 in float32.
      (
          'steps_beyond_float32',
          _step_decay(start=2**24 + 1),
          {2**24: 0.5, 2**24 + 1: 0.25},
      ),
      # .2 times the root of 100 / (t + 1).
      (
          'inverse_root',
          schedules.inverse_root_decay(0.2, start=100),
          {0: 0.2, 99: 0.2, 199: 0.2 / 2**0.5, 399: 0.1, 9999: 0.02},
      ),
      (
          'inverse_root_floor',
          schedules.inverse_root_decay(0.2, start=100, floor=0.15),
          {0: 0.2, 9999: 0.15},
      ),
      # 1 / 4, 2 / 4, ... of .2, reached in the fourth round.
      (
          'warmup',
          schedules.warmup(_constant, rounds=4),
          {0: 0.05, 1: 0.1, 2: 0.15, 3: 0.2, 4: 0.2},
      ),
      (
          'warmup_from_0',
          schedules.warmup(_constant, rounds=4, first=0),
          {0: 0.0, 1: 0.05, 3: 0.15, 4: 0.2, 9: 0.2},
      ),
      # Round 1 of 4: half of .4 / 2.
      (
          'warmup_of_decay',
          schedules.warmup(
              _decay(start=0, decay_rate=0.5, transition_rounds=1), rounds=4
          ),
          {1: 0.1, 9: 0.4 / 2**9},
      ),
      ('warmup_0', schedules.warmup(_constant, rounds=0), {0: 0.2, 1: 0.2}),
  )
  def test_at_corner_points(self, schedule, expected):
    traced = tf.function(schedule)
    for round_num, rate in expected.items():
      np.testing.assert_allclose(
          schedule(round_num), rate, rtol=1e-5, atol=1e-30
      )
      for dtype in (tf.int32, tf.int64):
        found = traced(tf.constant(round_num, dtype))
        self.assertEqual((found.dtype, found.shape), (tf.float32, []))
        np.testing.assert_allclose(found, rate, rtol=1e-5, atol=1e-30)

  def test_scheduled_lamb_equals_lamb_with_each_rate(self):
    schedule = schedules.warmup(
        _decay(start=2, decay_rate=0.5, transition_rounds=1), rounds=3
    )
    plain = lamb.build_lamb(1.0)
    scheduled = schedules.scheduled(plain, schedule=schedule)
    weights, gradient = tf.constant([1.0, 2.0, 3.0]), tf.constant([0.1, -2, 3])
    specs = tf.TensorSpec([3])
    ours = scheduled.initialize(specs), weights
    theirs = plain.initialize(specs), weights
    for round_num in range(5):
      # The rate and the round are in the state.
      np.testing.assert_allclose(
          ours[0]['optimizer']['learning_rate'], schedule(round_num)
      )
      ours = scheduled.next(*ours, gradient)
      hparams = plain.get_hparams(theirs[0])
      hparams['learning_rate'] = schedule(round_num)
      theirs = plain.next(
          plain.set_hparams(theirs[0], hparams), theirs[1], gradient
      )
      np.testing.assert_allclose(ours[1], theirs[1], rtol=1e-6)

  @parameterized.parameters(
      *(
          (build, name, value)
          for build in (_decay, _step_decay)
          for name, value in (
              ('learning_rate', -0.1), ('learning_rate', np.inf),
              ('start', -1), ('start', 1.5), ('decay_rate', -0.1),
              ('decay_rate', 1.1), ('transition_rounds', 0), ('floor', -0.1),
          )
      ),
      (_step_decay, 'transition_rounds', 2.5),
      *((_step_decay, 'first_transition', value) for value in (0, 2.5, 51)),
      (schedules.constant, 'learning_rate', -1.0),
      (functools.partial(schedules.warmup, _constant), 'rounds', -1),
      (functools.partial(schedules.warmup, _constant), 'rounds', 2.5),
      (
          functools.partial(schedules.warmup, _constant, rounds=3),
          'first', 2,
      ),
  )
  def test_bad_arguments_are_named(self, build, name, value):
    with self.assertRaisesRegex(ValueError, f'{name} must be'):
      build(**{name: value})

from absl.testing import absltest
from absl.testing import parameterized
import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_asr.optimizers import lamb
from tff_asr.optimizers import schedules


def _decay(**options) -> schedules.Schedule:
  defaults = dict(
      learning_rate=0.4, start=1000, decay_rate=0.6, transition_rounds=500
  )
  return schedules.exponential_decay(**(defaults | options))


def _step_decay(**options) -> schedules.Schedule:
  defaults = dict(
      learning_rate=0.5, start=250, decay_rate=0.5, transition_rounds=50
  )
  return schedules.step_decay(**(defaults | options))


class SchedulesTest(parameterized.TestCase):

  @parameterized.parameters(0, 1, 10**6)
  def test_constant_is_constant(self, round_num):
    self.assertAlmostEqual(float(schedules.constant(0.2)(round_num)), 0.2)

  # The paper's: .4 until 1000, then times .6 every 500 rounds.
  @parameterized.parameters(
      (0, 0.4),
      (999, 0.4),
      (1000, 0.4),
      (1001, 0.4 * 0.6 ** (1 / 500)),
      (1250, 0.4 * 0.6**0.5),
      (1500, 0.24),
      (2000, 0.144),
  )
  def test_exponential_decay_at_corner_points(self, round_num, expected):
    np.testing.assert_allclose(_decay()(round_num), expected, rtol=1e-5)

  def test_exponential_decay_stays_above_its_floor(self):
    schedule = _decay(floor=0.1)
    np.testing.assert_allclose(schedule(1500), 0.24, rtol=1e-5)
    np.testing.assert_allclose(schedule(100_000), 0.1)
    np.testing.assert_allclose(_decay()(10**6), 0.0, atol=1e-30)

  def test_decay_rates_0_and_1(self):
    self.assertAlmostEqual(float(_decay(decay_rate=1.0)(5000)), 0.4)
    self.assertAlmostEqual(float(_decay(decay_rate=0.0)(1000)), 0.4)
    self.assertEqual(float(_decay(decay_rate=0.0)(1001)), 0.0)

  # The paper's, in thousands of steps: .5, halved at 250 and then every 50.
  @parameterized.parameters(
      (0, 0.5),
      (249, 0.5),
      (250, 0.25),
      (299, 0.25),
      (300, 0.125),
      (349, 0.125),
      (350, 0.0625),
      (600, 0.5 / 2**8),
  )
  def test_step_decay_at_corner_points(self, round_num, expected):
    np.testing.assert_allclose(_step_decay()(round_num), expected, rtol=1e-6)

  @parameterized.named_parameters(
      ('start', dict(start=200), 240, 0.25),
      ('start_0', dict(start=0), 0, 0.25),
      ('decay_rate', dict(decay_rate=0.1), 300, 0.005),
      ('decay_rate_0', dict(decay_rate=0.0), 250, 0.0),
      ('decay_rate_1', dict(decay_rate=1.0), 1000, 0.5),
      ('transition_rounds', dict(transition_rounds=25), 275, 0.125),
      ('learning_rate', dict(learning_rate=1.0), 250, 0.5),
      ('floor', dict(floor=0.2), 300, 0.2),
      ('floor_before', dict(floor=0.2), 299, 0.25),
  )
  def test_step_decay_by_its_options(self, options, round_num, expected):
    np.testing.assert_allclose(
        _step_decay(**options)(round_num), expected, rtol=1e-6
    )

  def test_step_decay_counts_rounds_beyond_float32(self):
    # 2^24 + 1 rounds are 2^24 in float32.
    schedule = _step_decay(start=2**24 + 1)
    np.testing.assert_allclose(schedule(2**24), 0.5)
    np.testing.assert_allclose(schedule(2**24 + 1), 0.25)

  # 1 / 4, 2 / 4, ... of .2, reached in the fourth round.
  @parameterized.parameters((0, 0.05), (1, 0.1), (2, 0.15), (3, 0.2), (4, 0.2))
  def test_warmup_at_corner_points(self, round_num, expected):
    schedule = schedules.warmup(schedules.constant(0.2), rounds=4)
    np.testing.assert_allclose(schedule(round_num), expected, rtol=1e-6)

  def test_warmup_multiplies_the_schedule_inside(self):
    inner = _decay(start=0, decay_rate=0.5, transition_rounds=1)
    # Round 1 of 4: half of .4 / 2.
    schedule = schedules.warmup(inner, rounds=4)
    np.testing.assert_allclose(schedule(1), 0.1, rtol=1e-6)
    np.testing.assert_allclose(schedule(9), inner(9), rtol=1e-6)

  @parameterized.named_parameters(
      ('constant', schedules.constant(0.2)),
      ('exponential_decay', _decay()),
      ('step_decay', _step_decay()),
      ('warmup', schedules.warmup(_decay(), rounds=7)),
  )
  def test_tensors_of_rounds_give_float32_scalars(self, schedule):
    for round_num in (0, 3, 1700):
      for dtype in (tf.int32, tf.int64):
        rate = tf.function(schedule)(tf.constant(round_num, dtype))
        self.assertEqual((rate.dtype, rate.shape), (tf.float32, []))
        np.testing.assert_allclose(rate, schedule(round_num), rtol=1e-6)

  def test_scheduled_puts_the_rate_and_the_round_in_the_state(self):
    optimizer = schedules.scheduled(
        tff.learning.optimizers.build_sgdm(1.0),
        schedule=schedules.exponential_decay(
            0.8, start=1, decay_rate=0.5, transition_rounds=1
        ),
    )
    state = optimizer.initialize(tf.TensorSpec([]))
    weights, rates = tf.constant(0.0), []
    for _ in range(4):
      rates.append(float(state['optimizer']['learning_rate']))
      state, weights = optimizer.next(state, weights, tf.constant(1.0))
    np.testing.assert_allclose(rates, [0.8, 0.8, 0.4, 0.2], rtol=1e-6)
    # SGD by those rates: the state's rate is the one that was used.
    np.testing.assert_allclose(weights, -sum(rates), rtol=1e-6)

  def test_scheduled_lamb_equals_lamb_with_each_rate(self):
    specs = [tf.TensorSpec([3])]
    weights = [tf.constant([1.0, 2.0, 3.0])]
    gradients = [tf.constant([0.1, -0.2, 0.3])]
    schedule = schedules.warmup(schedules.constant(0.3), rounds=3)
    scheduled = schedules.scheduled(lamb.build_lamb(1.0), schedule=schedule)
    plain = lamb.build_lamb(1.0)
    ours, theirs = (scheduled.initialize(specs), weights), (
        plain.initialize(specs), weights,
    )
    for round_num in range(5):
      ours = scheduled.next(*ours, gradients)
      state = plain.set_hparams(
          theirs[0],
          plain.get_hparams(theirs[0])
          | {'learning_rate': schedule(round_num)},
      )
      theirs = plain.next(state, theirs[1], gradients)
      np.testing.assert_allclose(ours[1][0], theirs[1][0], rtol=1e-6)

  def test_a_warmup_of_0_rounds_is_none(self):
    schedule = _decay()
    self.assertIs(schedules.warmup(schedule, rounds=0), schedule)

  @parameterized.named_parameters(
      ('learning_rate', 'learning_rate', -0.1),
      ('start', 'start', -1),
      ('fractional_start', 'start', 1.5),
      ('low_decay_rate', 'decay_rate', -0.1),
      ('high_decay_rate', 'decay_rate', 1.1),
      ('transition_rounds', 'transition_rounds', 0),
      ('floor', 'floor', -0.1),
  )
  def test_bad_arguments_are_named(self, name, value):
    for build in (_decay, _step_decay):
      with self.assertRaisesRegex(ValueError, f'{name} must be'):
        build(**{name: value})

  def test_steps_of_decay_are_whole(self):
    with self.assertRaisesRegex(ValueError, 'transition_rounds must be'):
      _step_decay(transition_rounds=2.5)

  def test_bad_rates_and_rounds_are_named(self):
    with self.assertRaisesRegex(ValueError, 'learning_rate must be'):
      schedules.constant(-1.0)
    for rounds in (-1, 2.5):
      with self.assertRaisesRegex(ValueError, 'rounds must be'):
        schedules.warmup(schedules.constant(1.0), rounds=rounds)


if __name__ == '__main__':
  absltest.main()

"""Learning-rate schedules: round or step number to learning rate.

Each builder returns a function of an integer (Python's or a tensor), 0 for the
first round, to a float32 scalar. `scheduled` puts one into an optimizer, and
the optimizer's state then carries the round number.
"""

from collections.abc import Callable
from typing import Optional

import tensorflow as tf
import tensorflow_federated as tff

from tff_asr import checks

Schedule = Callable[[int | tf.Tensor], tf.Tensor]


def constant(learning_rate: float) -> Schedule:
  """The same learning rate always."""
  checks.non_negative(learning_rate=learning_rate)
  checks.finite(learning_rate=learning_rate)

  def schedule(round_num):
    del round_num
    return tf.constant(learning_rate, tf.float32)

  return schedule


def exponential_decay(
    learning_rate: float,
    *,
    start: int,
    decay_rate: float,
    transition_rounds: float,
    floor: float = 0.0,
) -> Schedule:
  """Constant until `start`, then learning_rate decay_rate^((t - start) / n).

  The decay is continuous, not a staircase, as in the published code of
  https://arxiv.org/abs/2310.00098.

  Args:
    learning_rate: Before decay; at least 0 and finite.
    start: The last round at the full rate.
    decay_rate: In [0, 1]; the factor over `transition_rounds`.
    transition_rounds: n, positive.
    floor: The rate never falls under this.
  """
  _check_decay(learning_rate, start, decay_rate, floor)
  checks.positive(transition_rounds=transition_rounds)

  def schedule(round_num):
    # 0 until `start`, so that the factor is 1 there.
    past = tf.maximum(tf.cast(round_num, tf.float32) - start, 0.0)
    # Also for a decay_rate of 0: tf.pow(0, 0) is 1.
    decayed = learning_rate * tf.pow(
        tf.constant(decay_rate, tf.float32), past / transition_rounds
    )
    return tf.maximum(decayed, floor)

  return schedule


def step_decay(
    learning_rate: float,
    *,
    start: int,
    decay_rate: float,
    transition_rounds: int,
    first_transition: Optional[int] = None,
    floor: float = 0.0,
) -> Schedule:
  """Constant before `start`, then times decay_rate there and every n rounds.

  learning_rate decay_rate^(1 + (t - start) // n) from round `start` on: the
  central recipe of https://arxiv.org/abs/2310.00098 halves every 50,000 steps.

  Args:
    learning_rate: Before decay; at least 0 and finite.
    start: The first round at a lower rate.
    decay_rate: In [0, 1]; the factor at each decay.
    transition_rounds: n, a positive integer.
    first_transition: Rounds from the first decay to the second, in [1, n];
      None: n. The recipe's published code counts n - 1.
    floor: The rate never falls under this.
  """
  _check_decay(learning_rate, start, decay_rate, floor)
  checks.positive_int(transition_rounds=transition_rounds)
  if first_transition is None:
    first_transition = transition_rounds
  checks.positive_int(first_transition=first_transition)
  checks.in_range(1, transition_rounds, first_transition=first_transition)
  # The first period is shorter by this.
  ahead = transition_rounds - first_transition

  def schedule(round_num):
    past = tf.cast(round_num, tf.int64) - start
    # Integer division: a quotient of floats may fall short of a whole number.
    decays = tf.where(past >= 0, 1 + (past + ahead) // transition_rounds, 0)
    decayed = learning_rate * tf.pow(
        tf.constant(decay_rate, tf.float32), tf.cast(decays, tf.float32)
    )
    return tf.maximum(decayed, floor)

  return schedule


def inverse_root_decay(
    learning_rate: float, *, start: int, floor: float = 0.0
) -> Schedule:
  """Constant until `start`, then learning_rate sqrt(start / (t + 1)).

  With a warm-up of `start` rounds it is the schedule of Vaswani et al. 2017,
  https://arxiv.org/abs/1706.03762, with its peak at learning_rate.

  Args:
    learning_rate: Before decay; at least 0 and finite.
    start: Rounds at the full rate, a positive integer.
    floor: The rate never falls under this.
  """
  _check_decay(learning_rate, start, 1.0, floor)
  checks.positive_int(start=start)

  def schedule(round_num):
    # Rounds count from 0; the formula's steps count from 1.
    past = tf.maximum(tf.cast(round_num, tf.float32) + 1, start)
    return tf.maximum(learning_rate * tf.sqrt(start / past), floor)

  return schedule


def warmup(schedule: Schedule, *, rounds: int, first: int = 1) -> Schedule:
  """Multiplies a schedule by min(1, (t + first) / rounds).

  Args:
    schedule: What is multiplied.
    rounds: Until the full rate; 0 leaves the schedule as it is.
    first: 1, or 0 for a first round at rate 0, as optax's linear schedule has
      it.
  """
  checks.non_negative_int(rounds=rounds)
  checks.one_of((0, 1), first=first)
  # Without this the share would be a division by 0.
  if rounds == 0:
    return schedule

  def warmed(round_num):
    share = (tf.cast(round_num, tf.float32) + first) / rounds
    # A product: a decay that begins during the warm-up acts in it, too.
    return tf.minimum(share, 1.0) * schedule(round_num)

  return warmed


def _check_decay(
    learning_rate: float, start: int, decay_rate: float, floor: float
) -> None:
  """Raises ValueError for what decays cannot have."""
  checks.non_negative(learning_rate=learning_rate, floor=floor)
  checks.finite(learning_rate=learning_rate, floor=floor)
  checks.non_negative_int(start=start)
  checks.in_range(0, 1, decay_rate=decay_rate)


def scheduled(
    optimizer: tff.learning.optimizers.Optimizer, *, schedule: Schedule
) -> tff.learning.optimizers.Optimizer:
  """Returns the optimizer with its learning rate taken from the schedule."""
  return tff.learning.optimizers.schedule_learning_rate(optimizer, schedule)

"""Correlated noise: sums whose noise is taken back, in part, in later rounds.

Matrix factorisation with a buffered linear Toeplitz strategy C (BLT;
`strategies`) needs no assumption about how cohorts are sampled, but that a
client takes part in rounds that are at least b apart
(`cohorts.min_sep`). With a banded C, cyclic Poisson sampling amplifies
(`cohorts.cyclic`). With w_t new Gaussian noise of each round, and y =
C^-1 w, round t releases x_t + y_t:

    y_t = w_t - sum over j of scale_j S_t^j,   S_(t+1)^j = decay_j S_t^j + y_t

for d buffers S^j of the model's size, zeros before the first round. Of a banded
C, S_t^j is y_(t-j).

Here this is in integers. A unit is the query's grid g; `adaptive_query` says
why clips, and g with them, may change from round to round. w is drawn in steps
of 1/32, and buffers are kept in steps of 2^-16. Let R(S) be the sum of scale_j
S^j, rounded to steps of 1/32, so that all of the following is exact:

    y_t = round(w_t - R(S_t)),   S_(t+1)^j = round(decay_j S_t^j) + y_t

Why that is private. Given what was released before, r_s = x_s + y_s for s < t,
the noise y_s is r_s - x_s, and S_t is a function of these. So round t computes
q_t + w_t, q_t = x_t - R(S_t(r - x)), a whole number of steps of 1/32, and
releases it rounded to a whole number, which is post-processing. q_t + w_t is
q_t plus a Gaussian, rounded to steps: post-processing of a Gaussian mechanism
with adaptive queries q_t. For two neighbours with sums x and x', and the same
releases, q - q' is C (x - x') but for what R and the buffers round. C (x - x')
has the norm s C at most, s the strategy's sensitivity. Rounding R errs by up to
1/64, each of the d products in it by 2^-17, and each of the T - 1 steps of a
buffer by 2^-17, which comes into later rounds by coefficients c_i of C:

    E = 2^-6 + 2^-17 (d + c_1 + ... + c_(T-1))

an element and a round at most, for x as for x'; D elements and T rounds:

    norm of q - q' <= s C + 2 E sqrt(D T) g.

Queries that move by at most that in all, whatever was released before, cost
one Gaussian, adaptive or not (https://arxiv.org/abs/2202.08312, Theorem 2.1;
https://arxiv.org/abs/2210.17520). As g <= 2^-24 C and s >= 1, the second part
is charged as noise that is smaller by the factor 1 / (1 + 2 E sqrt(D T) 2^-24)
(`charged_noise_multiplier`), T the most rounds that there may be: .38 % at
255.8M elements, .004 % at 30,000.

If C is banded, what R rounds depends only on the sums of as many rounds before
as C has bands. Where a client does not join, it is the same with and without
that client. So each participation is still one Gaussian by itself, sampled
by its coin (`accounting`), whose norm is charged in the same way.

Buffers hold noise that later rounds take back. With what was released they give
sums of earlier rounds without noise, so they are as sensitive as the updates.
They are kept where keys are (`programs.run_state`).
"""

import collections
import dataclasses
import math
from typing import Any, NamedTuple

from absl import logging
import numpy as np
import tensorflow as tf

from tff_asr import checks
from tff_asr import sequential
from tff_asr.privacy import clipping as clipping_lib
from tff_asr.privacy import noise as noise_lib
from tff_asr.privacy import queries
from tff_asr.privacy import strategies

# Steps of a unit: of w, and of buffers.
_NOISE_BITS = 5
_BUFFER_BITS = 16


def largest_min_sep(*, client_data: Any, cohort_size: int) -> int:
  """Returns how many rounds apart all clients can be kept: N // cohort_size.

  Args:
    client_data: The N private clients; only the number of its `client_ids` is
      used.
    cohort_size: Clients in each round, at most N.

  Raises:
    ValueError: The cohort is not positive, or larger than the population.
  """
  checks.positive_int(cohort_size=cohort_size)
  found = len(client_data.client_ids) // cohort_size
  if not found:
    raise ValueError(
        f'COHORT_SIZE is {cohort_size}, but there are only '
        f'{len(client_data.client_ids)} private clients: lower it.'
    )
  return found


@dataclasses.dataclass(frozen=True, kw_only=True)
class Correlation:
  """How the noise of rounds is correlated.

  Attributes:
    strategy: C of the factorisation.
    min_sep: Rounds from one participation of a client to the next, at
      least.
  """

  strategy: strategies.Toeplitz
  min_sep: int

  def __post_init__(self):
    checks.positive_int(min_sep=self.min_sep)

  def drawn(self, noise_multiplier: float) -> dict[str, float]:
    """What is drawn in steps, and its weight in buffers, at most.

    Args:
      noise_multiplier: z, above 0.
    """
    checks.positive(noise_multiplier=noise_multiplier)
    logging.info(
        'Correlated noise: the state holds %d more copies of the model, in '
        'int64, for its buffers.', self.strategy.num_buffers,
    )
    return dict(
        multiplier=2**_NOISE_BITS * noise_multiplier,
        weight=2.0 ** (_BUFFER_BITS - _NOISE_BITS)
        * self.strategy.largest_buffer(),
    )

  def initial_fields(self, specs: Any) -> dict[str, Any]:
    """Fields of a query's first state: scales, decays, and empty buffers.

    Args:
      specs: Nest of `tf.TensorSpec`, of sums.
    """
    num_buffers = self.strategy.num_buffers
    return dict(
        output_scale=tf.constant(self.strategy.output_scale, tf.int64),
        buf_decay=tf.constant(self.strategy.buf_decay, tf.int64),
        buffers=tf.nest.map_structure(
            lambda spec: tf.zeros([num_buffers, *spec.shape], tf.int64), specs
        ),
    )

  def release(
      self,
      sums: Any,
      *,
      global_state: Any,
      stddev: tf.Tensor,
      unit: tf.Tensor,
      kernel: str,
  ) -> tuple[Any, Any, strategies.CorrelatedGaussianDpEvent]:
    """Adds a round's noise to sums, with the strategy of the state.

    Args:
      sums: Nest of int64, like the state's buffers.
      global_state: A query's, with these and those of the base class.
      stddev: Standard deviation of w in whole numbers, float64 [].
      unit: What the result is multiplied by, float64 [].
      kernel: See `noise.gaussian`.

    Returns:
      The noised sums, float64, the next state, and the event of the round.
    """
    drawn = noise_lib.gaussian(
        [total.shape for total in tf.nest.flatten(sums)],
        key=global_state.noise_key,
        release=global_state.counter,
        stddev=2**_NOISE_BITS * stddev,
        kernel=kernel,
    )
    scales = tf.unstack(global_state.output_scale)
    decays = tf.unstack(global_state.buf_decay)
    unit = queries.keyed(unit, global_state)

    def release_layer(
        total: tf.Tensor, stacked: tf.Tensor, new: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor]:
      buffers = tf.unstack(stacked)
      taken = tf.add_n([
          _multiply(buffer, scale)
          for buffer, scale in zip(buffers, scales, strict=True)
      ])
      noise = _shift(
          new - _shift(taken, _BUFFER_BITS - _NOISE_BITS), _NOISE_BITS
      )
      newest = 2**_BUFFER_BITS * noise
      if decays:
        buffers = [
            _multiply(buffer, decay) + newest
            for buffer, decay in zip(buffers, decays, strict=True)
        ]
      else:  # Banded.
        buffers = [newest, *buffers[:-1]]
      return unit * tf.cast(total + noise, tf.float64), tf.stack(buffers)

    noised, buffers = zip(*sequential.sequential_map(
        release_layer,
        tf.nest.flatten(sums),
        tf.nest.flatten(global_state.buffers),
        drawn,
    ))
    new_state = global_state._replace(
        counter=global_state.counter + 1,
        buffers=tf.nest.pack_sequence_as(global_state.buffers, buffers),
    )
    event = strategies.CorrelatedGaussianDpEvent(
        global_state.noise_multiplier,
        tf.constant(self.min_sep),
        global_state.output_scale,
        global_state.buf_decay,
    )
    return tf.nest.pack_sequence_as(sums, noised), new_state, event


class CorrelatedSumQuery(queries.PerLayerClipSumQuery):
  """Sums clipped records with correlated noise.

  Clipping, the sensitivity C of a sum to one record, NaN, infinity and the
  noise key are those of the base class. w has the standard deviation z C on
  each element. Event: a `strategies.CorrelatedGaussianDpEvent`; T rounds cost
  GaussianDpEvent(z / sensitivity) in all, or less by sampling (`accounting`),
  stated for a client whose records are replaced by zeros (REPLACE_SPECIAL), and
  who takes part in rounds at least `min_sep` apart.

  The strategy is part of the state: a run that goes on keeps it, whatever the
  settings say by then.
  """

  class GlobalState(NamedTuple):
    """The query's state.

    d: buffers.

    Attributes:
      l2_norm_clip: C, float32.
      noise_multiplier: z, float32.
      noise_key: int32 [8]; zeros: not set.
      counter: int64, noised results so far.
      output_scale: Scales of the strategy, int64 [d].
      buf_decay: Decays of the strategy, int64 [d]; [0] if it is banded.
      buffers: S^j in steps of 2^-16 of the grid, int64 [d, ...] a layer.
        Secret.
    """

    l2_norm_clip: Any
    noise_multiplier: Any
    noise_key: Any
    counter: Any
    output_scale: Any
    buf_decay: Any
    buffers: Any

  def __init__(
      self,
      record_specs: Any,
      *,
      l2_norm_clip: float,
      noise_multiplier: float,
      correlation: Correlation,
      clipping: clipping_lib.Clipping = clipping_lib.Clipping(),
      noise_kernel: str = 'host',
  ):
    """Creates the query.

    Args:
      record_specs: See the base class.
      l2_norm_clip: C, finite; see the base class.
      noise_multiplier: z, the standard deviation of w over C, above 0.
      correlation: Correlation of the rounds' noise.
      clipping: See the base class.
      noise_kernel: See the base class.

    Raises:
      ValueError: An argument is out of its range.
    """
    super().__init__(
        record_specs,
        l2_norm_clip=l2_norm_clip,
        noise_multiplier=noise_multiplier,
        clipping=clipping,
        noise_kernel=noise_kernel,
    )
    self._correlation = correlation
    self._check_noise(**correlation.drawn(noise_multiplier))

  def initial_global_state(self):
    return self.GlobalState(
        *super().initial_global_state(),
        **self._correlation.initial_fields(self._specs),
    )

  def get_noised_result(self, sample_state, global_state):
    return self._correlation.release(
        sample_state,
        global_state=global_state,
        stddev=self._stddev(global_state),
        unit=self.grid(global_state),
        kernel=self._noise_kernel,
    )

  def derive_metrics(self, global_state):
    return collections.OrderedDict(
        l2_norm_clip=global_state.l2_norm_clip,
        noise_stddev_before_correlation=(
            global_state.noise_multiplier * global_state.l2_norm_clip
        ),
    )


def charged_noise_multiplier(
    event: strategies.CorrelatedGaussianDpEvent, *, num_elements: int
) -> float:
  """Returns z less what rounding in integers costs; see the module.

  Args:
    event: Event of a round.
    num_elements: D, that get noise, or more.
  """
  rounds = strategies.MAX_ROUNDS
  strategy = event.strategy
  following = float(strategy.coefficients(rounds)[1:].sum())
  error = 2.0 ** -(_NOISE_BITS + 1) + 2.0 ** -(_BUFFER_BITS + 1) * (
      strategy.num_buffers + following
  )
  moved = 2 * error * math.sqrt(num_elements * rounds)
  # As float32's z is what noise is drawn by.
  return float(np.float32(event.noise_multiplier)) / (
      1 + moved * queries.STEP_OVER_CLIP
  )


def noise_resolution(event: strategies.CorrelatedGaussianDpEvent) -> float:
  """Returns z in the steps of w: what `queries.sampler_epsilon` takes."""
  return 2**_NOISE_BITS * float(event.noise_multiplier)


def _shift(value: tf.Tensor, bits: int) -> tf.Tensor:
  """The integer nearest to value / 2^bits, ties upwards."""
  return tf.bitwise.right_shift(value + 2 ** (bits - 1), bits)


def _multiply(value: tf.Tensor, factor: tf.Tensor) -> tf.Tensor:
  """The integer nearest to value factor / 2^30, for factors in [0, 2^30].

  In two parts, so that no product exceeds 62 bits.
  """
  bits = strategies.FRACTION_BITS
  high = tf.bitwise.right_shift(value, bits)
  low = tf.bitwise.bitwise_and(value, 2**bits - 1)
  return high * factor + _shift(low * factor, bits)

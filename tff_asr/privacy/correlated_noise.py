"""Correlated noise: later rounds cancel a part of the noise of earlier ones.

Matrix factorisation with a Toeplitz strategy C (`strategies`). A buffered
linear strategy (BLT) needs no assumption about how cohorts are sampled, except
that a client's participations are at least b rounds apart (`cohorts.min_sep`).
With a banded C, cyclic Poisson sampling amplifies (`cohorts.cyclic`). With w_t
fresh Gaussian noise in each round and y = C^-1 w, round t releases x_t + y_t:

    y_t = w_t - sum over j of output_scale_j S_t^j
    S_(t+1)^j = buf_decay_j S_t^j + y_t

for d buffers S^j of the model's size, zeros before the first round. With a
banded C, S_t^j is y_(t-j). All of this is computed in integers; what rounding
costs is charged (`charged_noise_multiplier`). Proof: docs/proofs.md
("Correlated noise in integers").

Together with what was released, buffers give sums of earlier rounds without
noise, so they are as sensitive as the updates. They are kept where keys are
(`programs.run_state`).
"""

import dataclasses
import math

from absl import logging
import numpy as np
import tensorflow as tf

from tff_asr import checks
from tff_asr.privacy import clipping as clipping_lib
from tff_asr.privacy import grid_clipper
from tff_asr.privacy import queries
from tff_asr.privacy import strategies

# Bits below a grid step: of fresh noise w, and of buffers.
_NOISE_BITS = 5
_BUFFER_BITS = 16


@dataclasses.dataclass(frozen=True, kw_only=True)
class CorrelatedNoise:
  """A noise process y = C^-1 w; see `queries.NoiseProcess`.

  Event: a `strategies.CorrelatedGaussianDpEvent`; T rounds cost
  GaussianDpEvent(z / sensitivity) in all, or less by sampling (`accounting`),
  stated for replacing a client's records by zeros (REPLACE_SPECIAL), if the
  client takes part in rounds at least `min_sep` apart.

  Attributes:
    strategy: C. It is part of the state: a resumed run keeps the strategy it
      began with, whatever the settings say by then.
    min_sep: Rounds from one participation of a client to the next, at least.
  """

  strategy: strategies.Toeplitz
  min_sep: int

  def __post_init__(self):
    checks.positive_int(min_sep=self.min_sep)
    logging.info(
        'Correlated noise: the state holds %d more copies of the model, in '
        'int64, for its buffers.', self.num_buffers,
    )

  resolution = 2**_NOISE_BITS

  @property
  def num_buffers(self) -> int:
    return self.strategy.num_buffers

  @property
  def largest_weight(self) -> float:
    steps = 2.0 ** (_BUFFER_BITS - _NOISE_BITS)
    return steps * self.strategy.largest_buffer()

  def initial_state(
      self, specs: clipping_lib.Nest
  ) -> dict[str, clipping_lib.Nest]:
    return dict(
        output_scale=tf.constant(self.strategy.output_scale, tf.int64),
        buf_decay=tf.constant(self.strategy.buf_decay, tf.int64),
        buffers=tf.nest.map_structure(
            lambda spec: tf.zeros([self.num_buffers, *spec.shape], tf.int64),
            specs,
        ),
    )

  def next(
      self,
      drawn: tf.Tensor,
      buffers: tf.Tensor,
      global_state: queries.QueryState,
  ) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns a layer's noise and its next buffers; see `NoiseProcess`."""
    # Of the state and not of `strategy`: a resumed run keeps the strategy that
    # it began with.
    scales = tf.unstack(global_state.output_scale)
    decays = tf.unstack(global_state.buf_decay)
    buffers = tf.unstack(buffers)
    cancelled = tf.add_n([
        _multiply(buffer, scale)
        for buffer, scale in zip(buffers, scales, strict=True)
    ])
    noise = _shift(
        drawn - _shift(cancelled, _BUFFER_BITS - _NOISE_BITS), _NOISE_BITS
    )
    # The rounded noise, as it is released.
    newest = 2**_BUFFER_BITS * noise
    if decays:
      buffers = [
          _multiply(buffer, decay) + newest
          for buffer, decay in zip(buffers, decays, strict=True)
      ]
    else:  # Banded.
      buffers = [newest, *buffers[:-1]]
    return noise, tf.stack(buffers)

  def event(
      self, global_state: queries.QueryState
  ) -> strategies.CorrelatedGaussianDpEvent:
    return strategies.CorrelatedGaussianDpEvent(
        global_state.noise_multiplier,
        tf.constant(self.min_sep),
        global_state.output_scale,
        global_state.buf_decay,
    )


def charged_noise_multiplier(
    event: strategies.CorrelatedGaussianDpEvent, *, num_elements: int
) -> float:
  """Returns z less what rounding in integers costs.

  Args:
    event: Event of a round.
    num_elements: D, that get noise, or more.
  """
  # For the most rounds that a sequence may have, so that the charge does not
  # depend on when a run ends.
  rounds = strategies.MAX_ROUNDS
  strategy = event.strategy
  following = float(strategy.coefficients(rounds)[1:].sum())
  # E of docs/proofs.md: an element's error in a round, in grid steps.
  error = 2.0 ** -(_NOISE_BITS + 1) + 2.0 ** -(_BUFFER_BITS + 1) * (
      strategy.num_buffers + following
  )
  moved = 2 * error * math.sqrt(num_elements * rounds)
  # Noise is drawn with a float32 z.
  return float(np.float32(event.noise_multiplier)) / (
      1 + moved * grid_clipper.STEP_OVER_CLIP
  )


def noise_resolution(event: strategies.CorrelatedGaussianDpEvent) -> float:
  """Returns z in the steps of w: what `queries.sampler_epsilon` takes."""
  return 2**_NOISE_BITS * float(event.noise_multiplier)


def _shift(value: tf.Tensor, bits: int) -> tf.Tensor:
  """The integer nearest to value / 2^bits, ties upwards."""
  # Half is added before the shift, which rounds down.
  return tf.bitwise.right_shift(value + 2 ** (bits - 1), bits)


def _multiply(value: tf.Tensor, factor: tf.Tensor) -> tf.Tensor:
  """The integer nearest to value factor / 2^30, for factors in [0, 2^30]."""
  # In two parts, so that no product exceeds 62 bits.
  bits = strategies.FRACTION_BITS
  high = tf.bitwise.right_shift(value, bits)
  low = tf.bitwise.bitwise_and(value, 2**bits - 1)
  return high * factor + _shift(low * factor, bits)

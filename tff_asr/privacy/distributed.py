"""Distributed differential privacy: clients add the noise, servers see sums.

Kairouz, Liu and Steinke 2021, https://arxiv.org/abs/2102.06387, Algorithms 1
and 2, with clips by layer. C is the clip of a whole update of D elements; a
round has n clients, and at least m of them do not drop out. A client

  1. clips by layer (`grid_clipper`), so to a norm of C;
  2. multiplies by t / C: the norm is now at most t;
  3. may rotate, so that each element is nearly Gaussian for every update;
  4. rounds each element at random to integers, of squared norm at most S^2;
  5. adds a discrete Gaussian of standard deviation s to each element;
  6. sends the result modulo 2^b to a secure sum.

The server takes the sum of b bits as a number from -2^(b-1) on, and undoes 3
and 2. docs/proofs.md ("How a device noises its update") has t, s, S and why
this costs a Gaussian of noise multiplier z, plus `sampler_epsilon`.

This is a simulation. A device would draw 4 and 5 from its own entropy. Here
noise is a function of the round's noise key and the client's number (so a
repeated round has the same bits), and the key goes to where clients are
simulated. No two clients of a round may have the same number: n equal noises
vanish modulo n.
"""

import collections
from collections.abc import Callable
import functools
import math
from typing import NamedTuple

from absl import logging
import attrs
import dp_accounting
import numpy as np
import tensorflow as tf

from tff_asr import checks
from tff_asr import rounding
from tff_asr.privacy import clipping as clipping_lib
from tff_asr.privacy import discrete_gaussian
from tff_asr.privacy import grid_clipper
from tff_asr.privacy import queries

ROTATIONS = ('dft', 'none')
MAX_BITS = 30
# After this many tries, an update that still does not fit is rounded toward
# zero.
_MAX_TRIES = 64
# Complex numbers, a power of two: TensorFlow is slow at other sizes.
_LARGEST_BLOCK = 4096
# Above this multiple of a trusted server's noise, a warning is logged.
_MUCH_NOISE = 1.1


@attrs.frozen(slots=False)  # TensorFlow traces its __init__.
class DistributedGaussianDpEvent(dp_accounting.DpEvent):
  """A sum with discrete Gaussian noise of the clients that took part.

  No accountant takes it: it costs GaussianDpEvent(noise_multiplier) and
  `sampler_epsilon`, for cohorts of num_clients.

  Attributes:
    noise_multiplier: z, of the noise of min_clients clients.
    num_clients: n, of each round.
    min_clients: m.
    bits: b.
    local_stddev: s, in steps.
    num_elements: Number of elements of the sum.
  """

  noise_multiplier: float
  num_clients: int
  min_clients: int
  bits: int
  local_stddev: float
  num_elements: int


def sampler_epsilon(event: DistributedGaussianDpEvent) -> float:
  """Returns what a round adds to the epsilon of its Gaussian."""
  num_elements = int(event.num_elements)
  return discrete_gaussian.sampler_error_epsilon(
      num_draws=num_elements * int(event.num_clients),
      num_elements=num_elements,
      stddev=float(event.local_stddev),
      num_clients=int(event.num_clients),
  )


class SampleParams(NamedTuple):
  """What clients get of the state; the key in a simulation only.

  Attributes:
    l2_norm_clip: C, float32.
    noise_key: int32 [8].
    counter: int64.
  """

  l2_norm_clip: tf.Tensor
  noise_key: tf.Tensor
  counter: tf.Tensor


class Plan(NamedTuple):
  """Numbers that follow from a query's settings.

  Attributes:
    clip_in_steps: t.
    squared_sensitivity: S^2, a whole number.
    local_stddev: s.
    min_clients: m.
  """

  clip_in_steps: float
  squared_sensitivity: int
  local_stddev: float
  min_clients: int


def choose_plan(
    *,
    num_elements: int,
    noise_multiplier: float,
    num_clients: int,
    max_failed_share: float,
    bits: int,
    modulus_stddevs: float,
) -> Plan:
  """Chooses the scale and the noise of clients.

  The scale t is the largest for which k standard deviations of an element of
  the sum stay within 2^(b-1).

  Args:
    num_elements: D, after the rotation.
    noise_multiplier: z, above 0.
    num_clients: n.
    max_failed_share: Largest share of the n that may drop out, in [0, 1).
    bits: b, in [2, 30].
    modulus_stddevs: k, above 0.

  Raises:
    ValueError: An argument is out of its range, or bits do not suffice.
  """
  checks.positive_int(num_clients=num_clients)
  checks.positive(
      noise_multiplier=noise_multiplier, modulus_stddevs=modulus_stddevs
  )
  checks.finite(noise_multiplier=noise_multiplier)
  checks.in_range(2, MAX_BITS, bits=bits)
  checks.in_range(0, 0.99, max_failed_share=max_failed_share)
  # rounding.whole, since in float64 0.29 * 100 is below 29.
  min_clients = num_clients - rounding.whole(max_failed_share * num_clients)

  plan_of = functools.partial(
      _plan_of,
      num_elements=num_elements,
      noise_multiplier=noise_multiplier,
      min_clients=min_clients,
  )
  fits = functools.partial(
      _fits,
      num_elements=num_elements,
      num_clients=num_clients,
      bits=bits,
      modulus_stddevs=modulus_stddevs,
  )
  found = _largest_plan(plan_of, fits)
  if found is None:
    raise ValueError(
        f'BITS = {bits} do not hold the sum of {num_clients} clients with '
        f'{num_elements} elements and noise_multiplier {noise_multiplier:g}: '
        'raise BITS.'
    )
  if found.local_stddev < discrete_gaussian.MIN_STDDEV:
    raise ValueError(
        f'Each client would add noise of {found.local_stddev:.2g} steps, and '
        f'below {discrete_gaussian.MIN_STDDEV:g} a sum of it is not Gaussian '
        'enough: raise BITS or NOISE_MULTIPLIER.'
    )
  return found


def _plan_of(
    clip_in_steps: float,
    *,
    num_elements: int,
    noise_multiplier: float,
    min_clients: int,
) -> Plan:
  """The sensitivity and the noise that follow from t."""
  # S^2: rounding at random adds D / 4 at most, on average. `_round` draws again
  # where it adds more than this allows.
  square = math.floor(
      clip_in_steps**2
      + num_elements / 4
      + (clip_in_steps + math.sqrt(num_elements) / 2)
  )
  variance = (
      noise_multiplier**2 * square + discrete_gaussian.VARIANCE_OF_ROUNDING
  ) / min_clients
  # Rounded up, so that float64 takes nothing off the noise.
  stddev = math.sqrt(variance) * (1 + 2.0**-50)
  return Plan(clip_in_steps, square, stddev, min_clients)


def _largest_plan(
    plan_of: Callable[[float], Plan], fits: Callable[[Plan], bool]
) -> Plan | None:
  """The plan of the largest t that fits; None if none does."""
  low, high = 1.0, 2.0**30
  if not fits(plan_of(low)):
    return None
  # Bisected in ratios: t covers many orders of magnitude.
  while high / low > 1 + 1e-12:
    middle = math.sqrt(low * high)
    low, high = (middle, high) if fits(plan_of(middle)) else (low, middle)
  return plan_of(low)


def _fits(
    found: Plan,
    *,
    num_elements: int,
    num_clients: int,
    bits: int,
    modulus_stddevs: float,
) -> bool:
  """Whether k standard deviations of an element stay within the modulus."""
  # The first term is that of n equal updates, the worst case.
  variance = num_clients * (
      num_clients * found.clip_in_steps**2 / num_elements
      + 0.25
      + found.local_stddev**2
  )
  return (
      modulus_stddevs * math.sqrt(variance) <= 2.0 ** (bits - 1)
      and found.local_stddev <= discrete_gaussian.MAX_STDDEV
  )


class DistributedSumQuery:
  """Clients' and the server's part of distributed noise.

  Sensitivity of the integer sum (one client's update replaced by zeros): S.
  Event: DistributedGaussianDpEvent(z) for each round. Its state is that of
  `queries.PerLayerClipSumQuery`. A sum of fewer than m clients fails. A record
  with a NaN or an infinity counts as zeros.

  D: elements of a record; up to 8,191 more if it is rotated.

  Attributes:
    layer_names: Names of the layers.
    num_noised: Elements of a record.
    num_clients: n.
    modulus: 2^b.
    plan: See `Plan`.
  """

  def __init__(
      self,
      record_specs: clipping_lib.Nest,
      *,
      l2_norm_clip: float,
      noise_multiplier: float,
      num_clients: int,
      max_failed_share: float,
      bits: int,
      clipping: clipping_lib.Clipping = clipping_lib.Clipping(),
      rotation: str = 'dft',
      modulus_stddevs: float = 4.0,
  ):
    """Creates the query; see `choose_plan` for what is not here.

    Args:
      record_specs: Nest of float32 `tf.TensorSpec`, like a record.
      l2_norm_clip: C, finite.
      noise_multiplier: z of the noise of m clients over S.
      num_clients: n.
      max_failed_share: The round ends if a larger share drops out.
      bits: b.
      clipping: How C is divided over layers.
      rotation: One of `ROTATIONS`.
      modulus_stddevs: k.

    Raises:
      ValueError: An argument is out of its range, or bits do not suffice.
    """
    checks.finite(l2_norm_clip=l2_norm_clip)
    checks.one_of(ROTATIONS, rotation=rotation)
    self._clipper = grid_clipper.GridClipper(
        record_specs, l2_norm_clip=l2_norm_clip, clipping=clipping
    )
    self._l2_norm_clip = l2_norm_clip
    self._specs = record_specs
    self._rotation = rotation
    self._bits = bits
    # TFF keeps the event's in float32.
    self._noise_multiplier = float(np.float32(noise_multiplier))
    self.num_noised = self._clipper.num_elements
    self._size = self.num_noised
    if rotation == 'dft':
      num_blocks, length = _padded(self._size)
      # The padding gets noise and is charged, too.
      self._size = 2 * num_blocks * length
    self.plan = choose_plan(
        num_elements=self._size,
        noise_multiplier=self._noise_multiplier,
        num_clients=num_clients,
        max_failed_share=max_failed_share,
        bits=bits,
        modulus_stddevs=modulus_stddevs,
    )
    self.modulus = 2**bits
    self.num_clients = num_clients
    ratio = self._stddev_over_clip / self._noise_multiplier
    logging.log(
        logging.WARNING if ratio > _MUCH_NOISE else logging.INFO,
        'Distributed noise of all %d clients (%d suffice) is %.4g times that '
        'of a trusted server; sums have %d bits.',
        num_clients, self.plan.min_clients, ratio, bits,
    )

  @property
  def _stddev_over_clip(self) -> float:
    """Standard deviation of the noise of all n clients, over C."""
    stddev = self.plan.local_stddev * math.sqrt(self.num_clients)
    return stddev / self.plan.clip_in_steps

  @property
  def layer_names(self) -> list[str]:
    return self._clipper.layer_names

  def initial_global_state(self) -> queries.QueryState:
    """Returns the state before the first round, without a noise key."""
    return queries.QueryState.initial(
        l2_norm_clip=self._l2_norm_clip,
        noise_multiplier=self._noise_multiplier,
        **queries.layer_fields(
            self._clipper.layers,
            num_noised=[
                math.prod(spec.shape) for spec in tf.nest.flatten(self._specs)
            ],
            # If no client drops out.
            noise_scale=self._stddev_over_clip / self._noise_multiplier,
        ),
    )

  def event(
      self, global_state: queries.QueryState
  ) -> DistributedGaussianDpEvent:
    """Returns the event of each round, whatever its state."""
    del global_state  # It may come from other settings.
    return DistributedGaussianDpEvent(
        noise_multiplier=self._noise_multiplier,
        num_clients=self.num_clients,
        min_clients=self.plan.min_clients,
        bits=self._bits,
        local_stddev=self.plan.local_stddev,
        num_elements=self._size,
    )

  def derive_sample_params(
      self, global_state: queries.QueryState
  ) -> SampleParams:
    """Returns what clients get of the state: call it once a round."""
    return SampleParams(
        global_state.l2_norm_clip,
        queries.noise_key(global_state),
        global_state.counter,
    )

  def encode(
      self,
      params: SampleParams,
      record: clipping_lib.Nest,
      *,
      client: tf.Tensor,
  ) -> tuple[tf.Tensor, grid_clipper.ClippingStats]:
    """Returns what a client sends, int64 [D] in [0, 2^b), and clipping.

    Args:
      params: Parameters that `derive_sample_params` returned.
      record: Nest of float32 tensors.
      client: int64 [], another one for each client of the round.
    """
    rounded, stats = self.round(params, record, client=client)
    # After the rounding, so that the memory of both is not needed at once.
    with tf.control_dependencies([rounded]):
      noise = discrete_gaussian.draw(
          self._size,
          key=params.noise_key,
          client=client,
          release=params.counter,
          stddev=self.plan.local_stddev,
      )
    # A secure sum takes and returns integers modulo 2^b.
    return (rounded + noise) % self.modulus, stats

  def round(
      self,
      params: SampleParams,
      record: clipping_lib.Nest,
      *,
      client: tf.Tensor,
  ) -> tuple[tf.Tensor, grid_clipper.ClippingStats]:
    """Steps 1 to 4: int64 [D] of norm S at most. Args as `encode`."""
    clipped, stats = self._clipper.clip(
        record, l2_norm_clip=params.l2_norm_clip
    )
    steps = self._clip_in_steps(params.l2_norm_clip)
    flat = tf.concat(
        [tf.reshape(part, [-1]) for part in tf.nest.flatten(clipped)], axis=0
    )
    grid_step = self._clipper.grid_step(params.l2_norm_clip)
    exact = tf.cast(flat, tf.float64) * (grid_step * steps)
    if self._rotation == 'dft':
      padded = tf.pad(exact, [[0, self._size - self.num_noised]])
      exact = _rotate(padded, _seed(params.counter, 0))
    return self._round(exact, params=params, client=client), stats

  def decode(
      self,
      total: tf.Tensor,
      *,
      num_clients: tf.Tensor,
      global_state: queries.QueryState,
  ) -> tuple[clipping_lib.Nest, queries.QueryState]:
    """Returns the noised sum of records, float64, and the next state.

    Args:
      total: The modular sum, int64 [D] in [0, 2^b).
      num_clients: Number of clients in the sum, integer [].
      global_state: The state of the round.
    """
    # Fewer clients' noise is less than was charged.
    check = tf.debugging.assert_greater_equal(
        num_clients,
        self.plan.min_clients,
        'Too few clients are left to noise the sum: raise MAX_FAILED_SHARE.',
    )
    with tf.control_dependencies([check]):
      total = tf.identity(total)
    # From [0, 2^b) to [-2^(b-1), 2^(b-1)).
    half = self.modulus // 2
    exact = tf.cast((total + half) % self.modulus - half, tf.float64)
    if self._rotation == 'dft':
      exact = _rotate_back(exact, _seed(global_state.counter, 0))
    step = 1 / self._clip_in_steps(global_state.l2_norm_clip)
    # Without the padding of the rotation.
    parts = tf.split(
        exact[: self.num_noised] * step,
        [math.prod(spec.shape) for spec in tf.nest.flatten(self._specs)],
    )
    noised = tf.nest.pack_sequence_as(self._specs, [
        tf.reshape(part, spec.shape)
        for part, spec in zip(parts, tf.nest.flatten(self._specs))
    ])
    return noised, global_state._replace(counter=global_state.counter + 1)

  def derive_metrics(
      self, global_state: queries.QueryState
  ) -> dict[str, tf.Tensor]:
    """Settings of the coming round; the noise is that of all n clients."""
    return collections.OrderedDict(
        l2_norm_clip=global_state.l2_norm_clip,
        noise_stddev_on_sum=(
            tf.cast(self._stddev_over_clip, tf.float32)
            * global_state.l2_norm_clip
        ),
    )

  def _clip_in_steps(self, clip: tf.Tensor) -> tf.Tensor:
    """t / C, float64 []."""
    return self.plan.clip_in_steps / tf.cast(clip, tf.float64)

  def _round(
      self, exact: tf.Tensor, *, params: SampleParams, client: tf.Tensor
  ) -> tf.Tensor:
    """Rounds at random, int64 [D], to a squared norm of S^2 at most."""
    most = self.plan.squared_sensitivity
    seed = _seed(params.counter, 1)
    # Two words of the client's number, so that clients round independently.
    for word in tf.unstack(tf.bitcast(client, tf.int32)):
      seed = tf.random.fold_in(seed, word)

    def fits(rounded: tf.Tensor) -> tf.Tensor:
      return tf.reduce_sum(tf.square(rounded)) <= most

    def again(tries: tf.Tensor, _) -> tuple[tf.Tensor, tf.Tensor]:
      uniform = tf.random.stateless_uniform(
          [self._size], tf.random.fold_in(seed, tries), dtype=tf.float64
      )
      # Computed in each try: a second try is rare, and memory is short.
      below = tf.floor(exact)
      up = tf.cast(uniform < exact - below, tf.float64)
      return tries + 1, tf.cast(below + up, tf.int64)

    _, rounded = tf.while_loop(
        lambda tries, rounded: (tries < _MAX_TRIES) & ~fits(rounded),
        again,
        again(tf.constant(0), None),
    )
    # A clipped vector fits if rounded toward zero. If it does not, nothing is
    # sent, so that S holds in any case.
    def toward_zero() -> tf.Tensor:
      truncated = tf.cast(exact, tf.int64)
      return tf.where(fits(truncated), truncated, 0)

    return tf.cond(fits(rounded), lambda: rounded, toward_zero)


def _seed(counter: tf.Tensor, purpose: int) -> tf.Tensor:
  """Public randomness of a round, int32 [2]."""
  # Without the noise key: the server, too, must know the rotation.
  return tf.random.fold_in(tf.bitcast(counter, tf.int32), purpose)


def _padded(size: int) -> tuple[int, int]:
  """Blocks of a rotated vector, and complex numbers in each of them."""
  length = 2
  while length < _LARGEST_BLOCK and 2 * length < size:
    length *= 2
  return -(-size // (2 * length)), length


def _signs(vector: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
  """The vector with random signs."""
  # Otherwise an update could be such that its transform is one large element.
  bits = tf.random.stateless_uniform(
      vector.shape, seed, minval=None, maxval=None, dtype=tf.int32
  )
  return tf.where(bits < 0, -vector, vector)


def _rotate(vector: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
  """A random rotation of float64 [D], D as `_padded` has it."""
  num_blocks, length = _padded(vector.shape[0])
  # Column by column, so that each block has elements of all layers.
  rows = tf.transpose(tf.reshape(_signs(vector, seed), [-1, num_blocks]))
  values = tf.signal.fft(tf.complex(rows[:, :length], rows[:, length:]))
  parts = tf.concat([tf.math.real(values), tf.math.imag(values)], axis=1)
  # The transform is not normalised: this makes it keep norms.
  return tf.reshape(parts, [-1]) / math.sqrt(length)


def _rotate_back(vector: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
  """The inverse of `_rotate`."""
  num_blocks, length = _padded(vector.shape[0])
  rows = tf.reshape(vector, [num_blocks, -1])
  values = tf.signal.ifft(tf.complex(rows[:, :length], rows[:, length:]))
  parts = tf.concat([tf.math.real(values), tf.math.imag(values)], axis=1)
  return _signs(tf.reshape(tf.transpose(parts), [-1]), seed) * math.sqrt(length)

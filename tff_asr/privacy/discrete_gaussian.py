"""Discrete Gaussian noise N_Z(s^2): P(k) proportional to exp(-k^2 / (2 s^2)).

Canonne, Kamath and Steinke 2020, https://arxiv.org/abs/2004.00010. Clients add
it to integers before a secure sum. A sum of m of them is not exactly a discrete
Gaussian; `log_ratio_bound` compares it with the Gaussian mechanism itself, so
that all its accountants hold: docs/proofs.md ("Sums of discrete Gaussians").

A draw compares 512 random bits with the exact borders of the distribution. The
first 64 decide, except for at most 1 draw in 2^46. Noise ends at 22 standard
deviations, as P is below 2^-340 there.
"""

import bisect
import decimal
import functools
import math

import numpy as np
import tensorflow as tf

from tff_asr import checks
from tff_asr.privacy import chacha20
from tff_asr.privacy import host_op
from tff_asr.privacy import keys
from tff_asr.privacy import noise as noise_lib

# Below, sums are too far from a Gaussian; above, tables are large without any
# benefit.
MIN_STDDEV, MAX_STDDEV = 2.0, 4096.0
# What rounding a Gaussian to integers takes off the variance.
VARIANCE_OF_ROUNDING = 4.0
# Bits of a draw, of the index of the lookup table, and of the integers that
# weights are computed with.
_BITS = 512
_GUIDE_BITS = 16
_WORKING_BITS = 704
# Elements at a time, 512 KiB of bits.
_BLOCK = 2**16
# No other noise uses this stream: those of `noise` are not a multiple of 4
# less 1.
_CLIENT_KEYS = 2**32 - 1
# A client's streams, under its own key.
_FIRST, _FURTHER = range(2)


def draw(
    size: int,
    *,
    key: tf.Tensor,
    client: tf.Tensor,
    release: tf.Tensor,
    stddev: float,
) -> tf.Tensor:
  """Returns the noise of a client, int64 [size], a function of its arguments.

  Drawn on the host, in programs that imported this module.

  Args:
    size: Elements, in [1, 2^32].
    key: int32 [8], not zeros; see `keys`. A client has a key derived from it.
    client: int64 [], a different one for each client of a release.
    release: int64 [], at least 0, number of the release under this key. It must
      not be asked for with two values of stddev or size, nor be added to two
      updates.
    stddev: s, in [2, 4096].

  Raises:
    ValueError: An argument is out of its range.
  """
  checks.in_range(1, 2**32, size=size)
  checks.in_range(MIN_STDDEV, MAX_STDDEV, stddev=stddev)
  with tf.control_dependencies([noise_lib.check_key_is_set(key)]):
    (drawn,) = _draw_on_host(
        key,
        client,
        release,
        tf.constant(stddev, tf.float64),
        tf.constant(size, tf.int64),
        num_outputs=1,
    )
  return tf.reshape(drawn, [size])


def log_ratio_bound(*, stddev: float, num_clients: int) -> float:
  """Returns a bound on |ln(P / P')| for an element of a sum of noise.

  P is its probability of a value, P' that of a post-processed Gaussian.

  Args:
    stddev: s of each client, at least 2.
    num_clients: m, at least 1.
  """
  checks.positive_int(num_clients=num_clients)
  checks.in_range(MIN_STDDEV, MAX_STDDEV, stddev=stddev)
  # From k = 64 on a bound on all: k / (k + 1) grows.
  ones = range(1, min(num_clients, 64))
  rest = max(0, num_clients - 64)
  total = sum(_log_factor(stddev**2 * k / (k + 1)) for k in ones)
  total += rest * _log_factor(stddev**2 * 64 / 65)
  return total + _log_factor(VARIANCE_OF_ROUNDING)


def sampler_error_epsilon(
    *, num_draws: float, num_elements: float, stddev: float, num_clients: int
) -> float:
  """Returns what sums of such noise add to epsilon, beyond their Gaussian.

  Twice the error of all probabilities' logarithms, as in
  `noise.sampler_error_epsilon`.

  Args:
    num_draws: Elements with noise, of all clients.
    num_elements: Elements of their sum.
    stddev: s of each client.
    num_clients: m.
  """
  checks.positive(num_draws=num_draws, num_elements=num_elements)
  of_sums = 2 * num_elements * log_ratio_bound(
      stddev=stddev, num_clients=num_clients
  )
  # A draw's own error is below 2^-170, up to 21 standard deviations. It is
  # charged as 2^-88 because `accounting` covers the delta of noise that ends
  # there by an addition to epsilon of at least num_draws 2^-86.5.
  return of_sums + num_draws * 2.0**-86


def _log_factor(variance: float) -> float:
  """ln((1 + t_s) / (1 - t_s)) of s^2."""
  return 2 * math.atanh(2.1 * math.exp(-2 * math.pi**2 * variance))


class _Table:
  """Borders of the distribution function, in units of 2^-512.

  Attributes:
    borders: P(K <= k), for k below the largest, Python integers.
    first: Their first 64 bits, uint64.
    most: The largest k.
  """

  def __init__(self, stddev: float):
    self.most = math.ceil(22 * stddev)
    one = 1 << _WORKING_BITS
    # 704 bits are 212 digits; the rest absorbs rounding errors.
    with decimal.localcontext(prec=260):
      variance = decimal.Decimal(stddev) ** 2
      ratio = int((-1 / (2 * variance)).exp() * one)
      falls = int((-1 / variance).exp() * one)
    # exp(-k^2 / 2 s^2), each by the ratio to the one before.
    weights = [one]
    for _ in range(self.most):
      weights.append(weights[-1] * ratio >> _WORKING_BITS)
      ratio = ratio * falls >> _WORKING_BITS
    # Symmetric: k from -most to most.
    both = weights[:0:-1] + weights
    total, sums = 0, []
    for weight in both:
      total += weight
      sums.append(total)
    self.borders = [(value << _BITS) // total for value in sums[:-1]]
    self.first = np.array(
        [border >> (_BITS - 64) for border in self.borders], np.uint64
    )
    # What the first bits decide alone; the rest is -1.
    shift = np.uint64(64 - _GUIDE_BITS)
    starts = np.arange(2**_GUIDE_BITS, dtype=np.uint64) << shift
    low = np.searchsorted(self.first, starts, side='left')
    high = np.searchsorted(
        self.first, starts + (np.uint64(1) << shift) - np.uint64(1),
        side='right',
    )
    self._guide = np.where(low == high, low, -1)

  def find(self, words: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns k + most of each first word, and where more bits decide."""
    found = self._guide[
        (words >> np.uint64(64 - _GUIDE_BITS)).astype(np.int64)
    ]
    open_places = np.flatnonzero(found < 0)
    some = words[open_places]
    places = np.searchsorted(self.first, some, side='right')
    found[open_places] = places
    before = self.first[np.maximum(places - 1, 0)]
    # Further bits can matter only where the first 64 equal those of a border.
    return found, open_places[(before == some) & (places > 0)]

  def find_exactly(self, word: int, further: np.ndarray) -> int:
    """k + most of all 512 bits."""
    value = int(word)
    for part in further:
      value = value << 64 | int(part)
    return bisect.bisect_right(self.borders, value)


# Cached: a table is slow to build, and each draw needs one.
_table = functools.lru_cache(maxsize=4)(_Table)


def _client_key(key: np.ndarray, client: int) -> np.ndarray:
  """The key of a client, int32 [8]: a block of ChaCha20 under the key."""
  words = chacha20.words64(
      key, release=client % 2**64, stream=_CLIENT_KEYS, count=4
  )
  return keys.from_bytes(words.tobytes())


def _draw(
    key: np.ndarray,
    client: np.ndarray,
    release: np.ndarray,
    stddev: np.ndarray,
    size: np.ndarray,
) -> list[np.ndarray]:
  """Draws the noise of a client by NumPy. Args as `draw`'s tensors."""
  table = _table(float(stddev))
  # A key for each client: release and stream use up the nonce.
  own = _client_key(key, int(client))
  release, size = int(release) % 2**64, int(size)
  stream = chacha20.Stream(own, release=release, stream=_FIRST)
  drawn = np.empty(size, np.int64)
  zeros = np.zeros(8 * _BLOCK, np.uint8)
  for start in range(0, size, _BLOCK):
    words = np.empty(min(_BLOCK, size - start), '<u8')
    stream.next(zeros[: words.nbytes], words)
    found, needs_refinement = table.find(words)
    for place in needs_refinement:
      # One block a draw at its position, so that the result does not depend on
      # which other draws need one.
      further = chacha20.Stream(
          own,
          release=release,
          stream=_FURTHER,
          start=chacha20.WORDS_PER_BLOCK * (start + int(place)),
      )
      more = np.empty(_BITS // 64 - 1, '<u8')
      further.next(zeros[: more.nbytes], more)
      found[place] = table.find_exactly(words[place], more)
    drawn[start : start + len(words)] = found
  drawn -= table.most
  return [drawn]


_draw_on_host = host_op.register_numpy_op(
    'tff_asr.privacy.discrete_gaussian', _draw
)

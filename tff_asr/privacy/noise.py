"""Gaussian noise on an integer grid, drawn from a cryptographic generator.

`gaussian` returns integers distributed as round(N), N ~ N(0, stddev^2), which
`queries.PerLayerClipSumQuery.get_noised_result` adds to the sum. The same key
and release give the same bits in every context, and no two tensors share a
random stream.

    >>> from tff_asr.privacy import keys
    >>> key = tf.constant(keys.draw())
    >>> (noise,) = gaussian(
    ...     [tf.TensorShape([2, 3])],
    ...     key=key,
    ...     release=tf.constant(0, tf.int64),
    ...     stddev=tf.constant(2.0**20, tf.float64),
    ... )
    >>> print(noise.dtype.name, noise.shape)
    int64 (2, 3)

Why not `tf.random.normal`: its float32 values reveal which sum they were added
to. Here, for an integer sum S, S + round(N) is round(S + N): post-processing of
the Gaussian mechanism. N is one of a pair R cos(A), R sin(A) with
R = sqrt(-2 ln U) (Box and Muller 1958). A fast path in float64 decides nearly
all draws; where its error could change the rounding, an exact path draws more
bits of U and A. docs/proofs.md ("How noise is drawn") bounds the error.
"""

import concurrent.futures
from collections.abc import Callable, Iterator, Sequence
import decimal
import functools
import math
import os
import types
from typing import NamedTuple, Optional

import numpy as np
import tensorflow as tf

from tff_asr import checks
from tff_asr.privacy import chacha20
from tff_asr.privacy import host_op
from tff_asr.privacy import numpy_ops
from tff_asr.privacy import tensorflow_ops

# At this standard deviation, 6 % of pairs need the exact path.
MAX_STDDEV = 2.0**36
# ChaCha20 counts blocks in 32 bits.
_MAX_ELEMENTS = 2**32
# Random streams of a tensor: radii, angles, further bits of both.
_RADIUS, _ANGLE, _FURTHER = range(3)
_STREAMS_PER_TENSOR = 4
# Errors of the fast and the exact path over stddev. The fast path's holds for
# uniforms in [_LEAST_WORD / 2^64, 1 - _LEAST_WORD / 2^64].
_MAX_ERROR = 2.0**-43
# Nearer to the border between two integers, draws are refined. It is twice the
# error: XLA may compute a draw twice, once to round it and once to compare it,
# and fuse other products with sums, which leaves out their roundings.
_MARGIN = 2 * _MAX_ERROR
_MAX_EXACT_ERROR = 2.0**-93
_LEAST_WORD = 2**44
# Pairs that the fast path takes at once: arrays of 64 KiB by NumPy, and more if
# it is compiled, as a call takes as long as some 2^15 pairs.
_BLOCK = 8192
_CHUNK = 2**17
# With fewer, compiling would take the time of dozens of draws.
_MIN_COMPILED_CHUNKS = 8
# Elements that the host draws at once: 64 MiB.
_GROUP = 2**23
_NUM_FURTHER_OF_RADIUS = 6

_Array = np.ndarray | tf.Tensor
_Pair = tuple[_Array, _Array]  # float64; see `_add`.
# From words, uint64 [2, _CHUNK], and stddev to what `_fast_path` returns.
_Compiled = Callable[[np.ndarray, np.float64], Sequence[np.ndarray]]
# Pairs of float64 have 32 digits; the rest absorbs rounding errors.
_CONTEXT = decimal.Context(prec=60)
_D = decimal.Decimal
_PI = _D('3.14159265358979323846264338327950288419716939937510582097494459')
_LN_2 = _CONTEXT.ln(_D(2))
# float64's bits of sqrt(1/2), and where its exponent begins.
_ROOT_HALF = int(np.float64(math.sqrt(0.5)).view(np.int64))
_EXPONENT = 52
_MANTISSA = 2**_EXPONENT - 1
_MAX_THREADS = 8


def gaussian(
    shapes: Sequence[tf.TensorShape],
    *,
    key: tf.Tensor,
    release: tf.Tensor,
    stddev: tf.Tensor,
    kernel: str = 'host',
) -> Iterator[tf.Tensor]:
  """Returns Gaussian noise, rounded to integers, of each shape in turn.

  Each tensor is drawn when the iterator reaches it, so that
  `sequential.sequential_map` needs little memory.

  A function of shapes, key, release and stddev only. Different releases under a
  key, and different tensors of a release, have separate streams. Do not draw a
  release with two values of stddev or shapes, nor add it to two sums: their
  difference would have no noise.

  Args:
    shapes: Fully defined.
    key: int32 [8], not zeros; see `keys`.
    release: int64 [], at least 0, number of the release under this key.
    stddev: float64 [], in grid steps, in [0, 2^36]. With another one, or a key
      of zeros, no noise is drawn: the op fails.
    kernel: 'host' (OpenSSL's ChaCha20, with NumPy or XLA, called from the
      graph; for programs that imported this module) or 'tensorflow'
      (TensorFlow's ops, for TFF's native worker and for GPUs). Both give the
      same bits.

  Returns:
    An iterator of int64 tensors of the shapes.

  Raises:
    ValueError: kernel is unknown, or a shape is not fully defined or has more
      than 2^32 elements.
  """
  checks.one_of(('host', 'tensorflow'), kernel=kernel)
  sizes = [_num_elements(shape) for shape in shapes]
  check = tf.group(
      check_key_is_set(key),
      tf.debugging.Assert(
          (stddev >= 0) & (stddev <= MAX_STDDEV),
          ['stddev of the noise is not in [0, 2^36] grid steps:', stddev],
      ),
  )
  # Not constants: the graph optimizer would copy the kernel for each of them,
  # which takes a second a tensor.
  zero = tf.cast(key[0] ^ key[0], tf.int64)
  most = _GROUP if kernel == 'host' else 0

  def in_turn() -> Iterator[tf.Tensor]:
    count, last = 0, []
    for group in _groups(sizes, most=most):
      # One group after the other, or TensorFlow would hold them all at once.
      with tf.control_dependencies([*last, check]):
        arguments = (
            key, release, zero + count, stddev, *(zero + n for n in group)
        )
        if kernel == 'host':
          noise = _draw_on_host(*arguments, num_outputs=len(group))
        else:
          noise = _draw_in_graph(*arguments)
      for drawn in noise:
        yield tf.reshape(drawn, shapes[count])
        count += 1
      last = noise[-1:]

  return in_turn()


def check_key_is_set(key: tf.Tensor) -> Optional[tf.Operation]:
  """Returns an op that fails if the key (int32 [8]) is all zeros."""
  return tf.debugging.Assert(
      tf.reduce_any(tf.not_equal(key, 0)),
      ['The key of the noise is all zeros, so anyone can compute the noise: '
       'take queries.noise_key(state).'],
  )


def sampler_error_epsilon(*, num_draws: float, stddev: float) -> float:
  """Returns what inexact rounding of draws adds to epsilon, at most.

  docs/proofs.md ("How noise is drawn") has the proof.

  Args:
    num_draws: Elements with noise, in all releases.
    stddev: Standard deviation of the noise, in grid steps; the smallest, if it
      changes, above 0.

  Returns:
    The addition to epsilon. Delta grows by less than num_draws 2^-300
    exp(epsilon), which `accounting.epsilon` charges.
  """
  checks.positive(num_draws=num_draws, stddev=stddev)
  # Error of the border between two integers.
  border = _MAX_EXACT_ERROR * stddev
  return 4 * num_draws * border * (1 + 21 / stddev + 1 / stddev**2)


def _num_elements(shape: tf.TensorShape) -> int:
  """Number of elements of a shape."""
  size = tf.TensorShape(shape).num_elements()
  if size is None or size > _MAX_ELEMENTS:
    raise ValueError(f'Noise needs a shape of at most 2^32, found {shape}.')
  return size


def _groups(sizes: Sequence[int], *, most: int) -> list[list[int]]:
  """Groups of neighbours with up to `most` elements in all, or single ones."""
  groups, room = [], 0
  for size in sizes:
    room -= size
    if room < 0 or not groups:
      groups.append([])
      room = most - size
    groups[-1].append(size)
  return groups


class _Stretch(NamedTuple):
  """Neighbouring pairs of a tensor, as a part of a chunk.

  Attributes:
    tensor: Number of the tensor.
    start, stop: The first pair, and that after the last one.
    points: int64 [2, pairs of the tensor], to be filled.
    place: Of the first pair in the chunk.
  """

  tensor: int
  start: int
  stop: int
  points: np.ndarray
  place: int

  @property
  def pairs(self) -> slice:
    """Places in the chunk."""
    return slice(self.place, self.place + self.stop - self.start)

  @property
  def words(self) -> slice:
    """The same, up to the end of a block of the cipher."""
    count = -(-(self.stop - self.start) // chacha20.WORDS_PER_BLOCK)
    return slice(self.place, self.place + count * chacha20.WORDS_PER_BLOCK)


def _draw(
    key: np.ndarray,
    release: np.ndarray,
    first: np.ndarray,
    stddev: np.ndarray,
    *sizes: np.ndarray,
) -> list[np.ndarray]:
  """Draws tensors at the host: int64 of each size.

  Args as `gaussian`'s tensors. `first` is the number of the first tensor.
  """
  release = int(release) % 2**64
  stddev = np.float64(stddev)
  # Noise comes in pairs; an odd size drops the last draw.
  drawn = [_aligned(2 * -(-int(size) // 2)) for size in sizes]
  chunks = _chunks([points.reshape([2, -1]) for points in drawn], int(first))
  compiled = None
  if len(chunks) >= _MIN_COMPILED_CHUNKS:
    compiled = _compiled_fast_path()
  fill = functools.partial(
      _fill,
      key=key,
      release=release,
      stddev=stddev,
      # Encrypting zeros gives the keystream.
      zeros=np.zeros(8 * _CHUNK, np.uint8),
      compiled=compiled,
  )
  # Cores that this process may use, not all of the machine.
  num_threads = min(len(os.sched_getaffinity(0)), _MAX_THREADS, len(chunks))
  if num_threads > 1:
    with concurrent.futures.ThreadPoolExecutor(num_threads) as pool:
      found = list(pool.map(fill, chunks))
  else:
    found = list(map(fill, chunks))
  needs_refinement = [np.concatenate(parts) for parts in zip(*found)]
  if needs_refinement and needs_refinement[0].size:
    # For all tensors at once: the exact path takes hundreds of steps, each of
    # few elements.
    numbers, places, *words = needs_refinement
    further = chacha20.blocks(
        key.view(np.uint32),
        places.astype(np.uint32),
        [
            np.uint32(release % 2**32),
            np.uint32(release >> 32),
            _stream(numbers, _FURTHER).astype(np.uint32),
        ],
        ops=numpy_ops,
    )
    exact = np.stack(_exact_path(*words, further, stddev, numpy_ops))
    for number, points in enumerate(drawn, int(first)):
      of_tensor = numbers == number
      points.reshape([2, -1])[:, places[of_tensor]] = exact[:, of_tensor]
  return [points[: int(size)] for points, size in zip(drawn, sizes)]


_draw_on_host = host_op.register_numpy_op('tff_asr.privacy.noise', _draw)


def _chunks(
    tensors: Sequence[np.ndarray], first: int
) -> list[list[_Stretch]]:
  """Cuts tensors into chunks of `_CHUNK` pairs; the last one may be smaller."""
  chunks, place = [], _CHUNK
  for number, points in enumerate(tensors, first):
    start, half = 0, points.shape[1]
    while start < half:
      if place == _CHUNK:
        chunks.append([])
        place = 0
      stop = min(start + _CHUNK - place, half)
      stretch = _Stretch(number, start, stop, points, place)
      chunks[-1].append(stretch)
      # The next stretch begins with a block of the cipher, too.
      start, place = stop, stretch.words.stop
  return chunks


def _fill(
    chunk: Sequence[_Stretch],
    key: np.ndarray,
    release: int,
    stddev: np.float64,
    zeros: np.ndarray,
    compiled: Optional[_Compiled],
) -> tuple[np.ndarray, ...]:
  """Draws pairs; returns tensor, place and words of those to be refined."""
  size = chunk[-1].words.stop
  words = _aligned(2 * size).view('<u8').reshape([2, size])
  for stretch in chunk:
    for kind, row in ((_RADIUS, words[0]), (_ANGLE, words[1])):
      stream = chacha20.Stream(
          key,
          release=release,
          stream=_stream(stretch.tensor, kind),
          start=stretch.start,
      )
      own = row[stretch.words]
      stream.next(zeros[: own.nbytes], own)
  if compiled is not None and size == _CHUNK:
    *values, needs_refinement = compiled(words, stddev)
  else:
    *values, needs_refinement = _in_blocks(words, stddev)
  found = []
  for stretch in chunk:
    for row, value in zip(stretch.points, values):
      row[stretch.start : stretch.stop] = value[stretch.pairs]
    places = np.flatnonzero(needs_refinement[stretch.pairs])
    found.append((
        np.full_like(places, stretch.tensor),
        stretch.start + places,
        *words[:, stretch.place + places],
    ))
  return tuple(map(np.concatenate, zip(*found)))


def _in_blocks(words: np.ndarray, stddev: np.float64) -> list[np.ndarray]:
  """`_fast_path` of uint64 [2, n] by NumPy, in blocks that fit the cache."""
  blocks = (
      _fast_path(*words[:, start : start + _BLOCK], stddev, numpy_ops)
      for start in range(0, words.shape[1], _BLOCK)
  )
  return list(map(np.concatenate, zip(*blocks)))


def _pair_constant(value: decimal.Decimal) -> tuple[float, float]:
  """Returns the pair nearest to a number."""
  hi = float(value)
  return hi, float(_CONTEXT.subtract(value, decimal.Decimal(hi)))


def _chebyshev(coefficients: dict[int, decimal.Decimal]) -> list[float]:
  """Powers' coefficients of a sum of c_n T_n, of all-even or all-odd n.

  Those of x^0, x^2, x^4 .. or of x^1, x^3, x^5 .., rounded to float64.
  """
  powers = [_D(0)] * (max(coefficients) + 1)
  before, this = [_D(1)], [_D(0), _D(1)]
  for degree in range(len(powers)):
    for power, value in enumerate(before):
      powers[power] += coefficients.get(degree, 0) * value
    after = [_D(0), *(2 * value for value in this)]
    for power, value in enumerate(before):
      after[power] -= value
    before, this = this, after
  return [float(value) for value in powers[min(coefficients) % 2 :: 2]]


def _bessel(order: int) -> decimal.Decimal:
  """J_order(pi), by its power series."""
  return sum(
      (-1) ** i
      * (_PI / 2) ** (2 * i + order)
      / (math.factorial(i) * math.factorial(i + order))
      for i in range(40)
  )


with decimal.localcontext(_CONTEXT):
  # cos(pi x) = J_0(pi) + 2 sum of (-1)^n J_2n(pi) T_2n(x), and
  # sin(pi x) = 2 sum of (-1)^n J_2n+1(pi) T_2n+1(x): what is left out is below
  # 2^-50 in [-1, 1].
  _COSINE = _chebyshev({
      2 * n: (-1) ** n * _bessel(2 * n) * (2 if n else 1) for n in range(11)
  })
  _SINE = _chebyshev(
      {2 * n + 1: 2 * (-1) ** n * _bessel(2 * n + 1) for n in range(10)}
  )
  # ln((1 + s) / (1 - s)) = 4 sum of p^(2n+1) / (2n+1) T_2n+1(s / a) for
  # a = 2p / (1 + p^2), here above (sqrt(2) - 1) / (sqrt(2) + 1).
  _P = _D('0.0865')
  _A = 2 * _P / (1 + _P**2)
  _LOGARITHM = [
      float(-2 * _D(value) / _A ** (2 * n + 1))
      for n, value in enumerate(_chebyshev(
          {2 * n + 1: 4 * _P ** (2 * n + 1) / (2 * n + 1) for n in range(7)}
      ))
  ]
  # Taylor's, with every partial sum's rest below 2^-105.
  _LOGARITHM_2 = [_D(2) / (2 * n + 1) for n in range(21)]
  _COSINE_2 = [_D((-1) ** n) / math.factorial(2 * n) for n in range(15)]
  _SINE_2 = [_D((-1) ** n) / math.factorial(2 * n + 1) for n in range(15)]
  _QUARTER_TURN_2 = _pair_constant(_PI / 2)
_LN_2_2 = _pair_constant(_LN_2)
_MINUS_TWO_LN_2 = -2 * float(_LN_2)


def _polynomial(x: _Array, coefficients: Sequence[float]) -> _Array:
  """Sum of coefficients[i] x^i."""
  *rest, next_to_last, last = coefficients
  value = x * last
  value += next_to_last
  for coefficient in reversed(rest):
    value *= x
    value += coefficient
  return value


def _fast_path(
    u: _Array, v: _Array, stddev: _Array, ops: types.ModuleType
) -> tuple[_Array, _Array, _Array]:
  """Rounded draws of a pair from 64 bits each of radius and angle.

  Args:
    u: uint64 [n].
    v: uint64 [n].
    stddev: float64 [].
    ops: `numpy_ops` or `tensorflow_ops`.

  Returns:
    Two int64 [n], and bool [n]: true where further bits, or more digits, could
    change them.
  """
  # u / 2^64 = 2^scale ratio, with ratio in [sqrt(1/2), sqrt(2)): float64's
  # exponent and mantissa give both without a logarithm.
  bits = ops.bitcast(ops.cast(u, ops.FLOAT64), ops.INT64)
  bits = bits - (_ROOT_HALF + (64 << _EXPONENT))
  scale = ops.cast(ops.right_shift(bits, _EXPONENT), ops.FLOAT64)
  bits &= _MANTISSA
  bits += _ROOT_HALF
  ratio = ops.bitcast(bits, ops.FLOAT64)
  # -2 ln(ratio) is an odd function of (ratio - 1) / (ratio + 1).
  below = ratio - 1.0
  ratio += 1.0
  below /= ratio
  scale *= _MINUS_TWO_LN_2
  square = _polynomial(below * below, _LOGARITHM)
  square *= below
  square += scale
  radius = ops.sqrt(square)
  radius *= stddev
  # In half turns, [-1, 1): cosine and sine are even and odd in it.
  angle = ops.cast(ops.bitcast(v, ops.INT64), ops.FLOAT64)
  angle *= 2.0**-63
  angle_square = angle * angle
  first = _polynomial(angle_square, _COSINE)
  second = _polynomial(angle_square, _SINE)
  second *= angle
  first *= radius
  second *= radius
  limit = 0.5 - _MARGIN * stddev
  # Small for u near 0 and, by the complement, near 2^64; there the error bound
  # does not hold.
  signed = ops.bitcast(u, ops.INT64)
  needs_refinement = (signed ^ ops.right_shift(signed, 63)) < _LEAST_WORD
  points = []
  for value in (first, second):
    nearest = ops.rint(value)
    value -= nearest
    needs_refinement = needs_refinement | (abs(value) > limit)
    points.append(ops.cast(nearest, ops.INT64))
  return *points, needs_refinement


@functools.cache
def _compiled_fast_path() -> _Compiled:
  """Compiles `_fast_path` by XLA, for one pass over memory.

  Raises:
    ValueError: XLA is told to change the arithmetic.
  """
  checks.xla_is_exact()
  function = tf.function(
      lambda words, stddev: _fast_path(
          words[0], words[1], stddev, tensorflow_ops
      ),
      input_signature=[
          tf.TensorSpec([2, _CHUNK], tf.uint64),
          tf.TensorSpec([], tf.float64),
      ],
      autograph=False,
      jit_compile=True,
  )
  # Found once: to look for it takes .1 ms a call.
  concrete = function.get_concrete_function()

  def compiled(words: np.ndarray, stddev: np.float64) -> list[np.ndarray]:
    # Not on a GPU, where TensorFlow would put it.
    with tf.device('/device:CPU:0'):
      outputs = concrete(*map(tf.convert_to_tensor, (words, stddev)))
    return list(map(np.asarray, outputs))

  return compiled


def _exact_path(
    u: _Array, v: _Array, further: _Array, stddev: _Array, ops: types.ModuleType
) -> tuple[_Array, _Array]:
  """Rounded draws of a pair from 448 bits of radius and 192 of angle.

  Args:
    u: uint64 [n].
    v: uint64 [n].
    further: uint64 [n, 8], six words that continue u and two that continue v.
    stddev: float64 [].
    ops: `numpy_ops` or `tensorflow_ops`.

  Returns:
    Two int64 [n].
  """
  words = [u, *(further[:, i] for i in range(_NUM_FURTHER_OF_RADIUS))]
  radius = _radius(words, ops)
  words = [further[:, i] for i in range(_NUM_FURTHER_OF_RADIUS, 8)]
  scaled = _multiply(radius, (stddev, 0.0 * stddev))
  return tuple(
      _nearest(_multiply(scaled, part), ops)
      for part in _direction(v, words, ops)
  )


def _fraction(words: Sequence[_Array], ops: types.ModuleType) -> _Pair:
  """Words of 64 bits, most significant first, as a number in [0, 1).

  Half a unit of the last bit is added, so that it is never 0.
  """
  halves = []
  for place, word in enumerate(words):
    for shift in (32, 0):
      # float64 holds 32 bits exactly, 64 it does not.
      half = ops.right_shift(word, shift) & 0xFFFFFFFF
      value = ops.cast(half, ops.FLOAT64)
      halves.append(value[None] * 2.0 ** (-64 * place - 64 + shift))
  # Zeros of the draws' shape, in either library.
  zero = 0.0 * halves[0][0]
  return ops.fold(
      lambda total, half: _add(total, (half, zero)),
      (zero + 2.0 ** (-64 * len(words) - 1), zero),
      ops.concat(halves[::-1]),
  )


def _radius(words: Sequence[_Array], ops: types.ModuleType) -> _Pair:
  """sqrt(-2 ln U) of the U with these bits."""
  # Near 1, what counts is 1 - U: the complement of the bits.
  top = ops.bitcast(words[0], ops.INT64)
  is_near_one = ops.equal(ops.right_shift(top, 62), -1)
  # Ones or zeros, in the shape and type of `top`.
  mask = ops.bitcast(ops.where(is_near_one, top ^ ~top, top ^ top), ops.UINT64)
  hi, lo = _fraction([word ^ mask for word in words], ops)
  # U = 2^exponent ratio, with ratio in [sqrt(1/2), sqrt(2)).
  exponent = ops.right_shift(ops.bitcast(hi, ops.INT64) - _ROOT_HALF, _EXPONENT)
  exponent = ops.where(is_near_one, exponent ^ exponent, exponent)
  power = ops.bitcast(
      ops.left_shift(1023 - exponent, _EXPONENT), ops.FLOAT64
  )
  minus_one = _add((hi * power, lo * power), (-1.0, 0.0))
  plus_one = _add((hi * power, lo * power), (1.0, 0.0))
  # For U = 1 - x: (U - 1) / (U + 1) = -x / (2 - x).
  two_minus = _add((-hi, -lo), (2.0, 0.0))
  below = _divide(
      tuple(ops.where(is_near_one, *x) for x in zip((-hi, -lo), minus_one)),
      tuple(ops.where(is_near_one, *x) for x in zip(two_minus, plus_one)),
  )
  logarithm = _multiply(
      below,
      _pair_polynomial(
          _multiply(below, below), _LOGARITHM_2, ops
      ),
  )
  exponent = ops.cast(exponent, ops.FLOAT64)
  logarithm = _add(
      logarithm,
      _multiply((exponent, 0.0 * exponent), _LN_2_2),
  )
  return _root((-2.0 * logarithm[0], -2.0 * logarithm[1]), ops)


def _direction(
    word: _Array, words: Sequence[_Array], ops: types.ModuleType
) -> tuple[_Pair, _Pair]:
  """Cosine and sine of the angle with these bits, word / 2^64 of a turn."""
  signed = ops.bitcast(word, ops.INT64)
  # Quarter turns, and the rest in [-1/2, 1/2) of one.
  quarters = ops.right_shift(ops.right_shift(signed, 61) + 1, 1) & 3
  rest = ops.right_shift(ops.left_shift(signed, 2), 2)
  hi = ops.cast(ops.right_shift(rest, 32), ops.FLOAT64) * 2.0**-30
  lo = ops.cast(rest & 0xFFFFFFFF, ops.FLOAT64) * 2.0**-62
  tail = _fraction(words, ops)
  turn = _add(
      (tail[0] * 2.0**-62, tail[1] * 2.0**-62), _two_sum(hi, lo)
  )
  angle = _multiply(turn, _QUARTER_TURN_2)
  square = _multiply(angle, angle)
  cosine = _pair_polynomial(square, _COSINE_2, ops)
  sine = _multiply(
      angle, _pair_polynomial(square, _SINE_2, ops)
  )
  is_odd = ops.equal(quarters & 1, 1)
  # 1 in quarters 0 and 3 for the cosine, in 0 and 1 for the sine, else -1.
  x_sign = 1.0 - ops.cast((quarters + 1) & 2, ops.FLOAT64)
  y_sign = 1.0 - ops.cast(quarters & 2, ops.FLOAT64)
  return (
      tuple(x_sign * ops.where(is_odd, s, c) for s, c in zip(sine, cosine)),
      tuple(y_sign * ops.where(is_odd, c, s) for s, c in zip(sine, cosine)),
  )


def _nearest(value: _Pair, ops: types.ModuleType) -> _Array:
  """The integer nearest to a pair, int64."""
  nearest = ops.rint(value[0])
  # The difference is exact, so only the sum rounds.
  rest = (value[0] - nearest) + value[1]
  return (
      ops.cast(nearest, ops.INT64)
      + ops.cast(rest > 0.5, ops.INT64)
      - ops.cast(rest < -0.5, ops.INT64)
  )


# Double-double arithmetic: pairs of float64 that stand for their sum, by NumPy
# and TensorFlow alike. A pair (hi, lo) has |lo| at most half a unit in the last
# place of hi, so some 106 bits. Operations are those that IEEE 754 rounds
# correctly, without fused multiply-add. No sum here has three terms in a row,
# nor is a constant added twice: TensorFlow's graph optimizer takes such sums to
# be associative and would lose what was rounded; it leaves differences alone.
# Relative errors for u = 2^-53 (Joldes, Muller and Popescu 2017,
# https://doi.org/10.1145/3121432): _add 3 u^2 + 13 u^3 for numbers of any sign,
# _multiply 7 u^2, _divide 16 u^2.

_SPLITTER = 2.0**27 + 1


def _two_sum(x: _Array, y: _Array) -> _Pair:
  """x + y of float64, exactly."""
  total = x + y
  part = total - x
  return total, (x - (total - part)) - (part - y)


def _sorted_sum(x: _Array, y: _Array) -> _Pair:
  """x + y of float64, exactly, if x is 0 or its exponent is not below y's."""
  total = x + y
  return total, y - (total - x)


def _halves(x: _Array) -> _Pair:
  """x of float64 as a sum of two of 26 bits (Veltkamp)."""
  shifted = x * _SPLITTER
  hi = shifted - (shifted - x)
  return hi, x - hi


def _two_product(x: _Array, y: _Array) -> _Pair:
  """x y of float64, exactly (Dekker)."""
  product = x * y
  x_hi, x_lo = _halves(x)
  y_hi, y_lo = _halves(y)
  rest = ((product - x_hi * y_hi) - x_hi * y_lo) - x_lo * y_hi
  return product, x_lo * y_lo - rest


def _add(x: _Pair, y: _Pair) -> _Pair:
  """x + y."""
  hi, hi_error = _two_sum(x[0], y[0])
  lo, lo_error = _two_sum(x[1], y[1])
  hi, error = _sorted_sum(hi, hi_error + lo)
  return _sorted_sum(hi, error + lo_error)


def _multiply(x: _Pair, y: _Pair) -> _Pair:
  """x y."""
  hi, lo = _two_product(x[0], y[0])
  return _sorted_sum(hi, lo - (x[0] * -y[1] - x[1] * y[0]))


def _divide(x: _Pair, y: _Pair) -> _Pair:
  """x / y."""
  ratio = x[0] / y[0]
  product = _multiply((ratio, 0 * ratio), y)
  rest = (x[0] - product[0]) - (product[1] - x[1])
  return _sorted_sum(ratio, rest / y[0])


def _root(x: _Pair, ops: types.ModuleType) -> _Pair:
  """Square root of x > 0, by one step of Newton's."""
  first = ops.sqrt(x[0])
  hi, lo = _two_product(first, first)
  return _sorted_sum(first, ((x[0] - hi) - (lo - x[1])) / (2.0 * first))


def _pair_polynomial(
    x: _Pair, coefficients: list[decimal.Decimal], ops: types.ModuleType
) -> _Pair:
  """Sum of coefficients[i] x^i, by Horner's rule.

  The caller ensures that each partial sum is larger than the next one times x
  by some power of two or more: then errors add up to a few u^2.
  """
  return ops.fold(
      lambda value, pair: _add(_multiply(value, x), (pair[0], pair[1])),
      (0.0 * x[0], 0.0 * x[0]),
      np.array([_pair_constant(value) for value in reversed(coefficients)]),
  )


def _stream(tensor: _Array, kind: int) -> _Array:
  """Number of a tensor's stream."""
  return _STREAMS_PER_TENSOR * tensor + kind


@tf.function(
    input_signature=[
        tf.TensorSpec([8], tf.int32),
        *[tf.TensorSpec([], tf.int64)] * 2,
        tf.TensorSpec([], tf.float64),
        tf.TensorSpec([], tf.int64),
    ],
    # Without this attribute each tensor would get a copy of the kernel.
    experimental_attributes={'_noinline': True},
    autograph=False,
)
def _draw_in_graph(
    key: tf.Tensor,
    release: tf.Tensor,
    tensor: tf.Tensor,
    stddev: tf.Tensor,
    size: tf.Tensor,
) -> list[tf.Tensor]:
  """What `_draw` does for one tensor, by TensorFlow's ops."""
  ops = tensorflow_ops
  key = tf.bitcast(key, tf.uint32)
  half = (size + 1) // 2
  # Low word first, as in `_draw`.
  release = tf.bitcast(release, tf.uint32)

  def nonce(kind: int) -> list[tf.Tensor]:
    stream = tf.cast(_stream(tensor, kind), tf.uint32)
    return [release[0], release[1], stream]

  last = chacha20.WORDS_PER_BLOCK - 1
  counters = tf.cast(
      tf.range((half + last) // chacha20.WORDS_PER_BLOCK), tf.uint32
  )
  radius, angle = (
      tf.reshape(
          chacha20.blocks(key, counters, nonce(kind), ops=ops), [-1]
      )[:half]
      for kind in (_RADIUS, _ANGLE)
  )
  first, second, needs_refinement = _fast_path(radius, angle, stddev, ops)
  places = tf.where(needs_refinement)
  further = chacha20.blocks(
      key, tf.cast(places[:, 0], tf.uint32), nonce(_FURTHER), ops=ops
  )
  # As int64, since GPUs gather no uint64.
  radius, angle = (
      tf.bitcast(
          tf.gather_nd(tf.bitcast(words, tf.int64), places), tf.uint64
      )
      for words in (radius, angle)
  )
  exact = _exact_path(radius, angle, further, stddev, ops)
  points = tf.concat(
      [
          tf.tensor_scatter_nd_update(fast, places, better)
          for fast, better in zip((first, second), exact)
      ],
      axis=0,
  )
  return [points[:size]]


def _aligned(size: int) -> np.ndarray:
  """An int64 array [size] that TensorFlow takes over without a copy."""
  # int64s in 64 bytes, to which TensorFlow aligns its tensors.
  words_per_line = 8
  room = np.empty(size + words_per_line, np.int64)
  start = -room.ctypes.data // 8 % words_per_line
  return room[start : start + size]



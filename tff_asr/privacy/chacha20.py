"""ChaCha20 (RFC 8439): random bits from a 256-bit key, at any position.

A key has 2^64 releases of 2^32 streams, each of 2^38 bytes. The nonce is the
release's number (8 bytes) and the stream's (4 bytes), little-endian; the block
counter starts at 0. Without the key the bits cannot be told from random ones,
as far as is publicly known about ChaCha20.

    >>> words64(keys.from_seed(0), release=0, stream=0, count=2).dtype
    dtype('uint64')

There are two implementations of the same bits. `words64` uses OpenSSL. `blocks`
uses integer operations of NumPy or TensorFlow (`numpy_ops`, `tensorflow_ops`):
for graphs on GPUs, and for single blocks at scattered places.
"""

from collections.abc import Sequence
import types
from typing import TypeVar

from cryptography.hazmat.primitives import ciphers
from cryptography.hazmat.primitives.ciphers import algorithms
import numpy as np

from tff_asr.privacy import keys

_Array = TypeVar('_Array')  # Of NumPy or of TensorFlow.

WORDS_PER_BLOCK = 8  # of 64 bits
MAX_WORDS = WORDS_PER_BLOCK * 2**32
_CONSTANTS = np.frombuffer(b'expand 32-byte k', '<u4').astype(np.uint32)
# The 20 rounds of RFC 8439.
_NUM_DOUBLE_ROUNDS = 10


class Stream:
  """The bits of a stream from some word on, read one stretch at a time."""

  def __init__(
      self, key: np.ndarray, *, release: int, stream: int, start: int = 0
  ):
    """Opens the stream.

    Args:
      key: int32 [8].
      release: In [0, 2^64).
      stream: In [0, 2^32).
      start: First word of 64 bits, a multiple of `WORDS_PER_BLOCK`.
    """
    block, rest = divmod(start, WORDS_PER_BLOCK)
    if rest or not 0 <= block < 2**32:
      raise ValueError(f'start must be a multiple of 8 below 2^35, is {start}.')
    # The library takes block counter and nonce as one value.
    nonce = b''.join((
        block.to_bytes(4, 'little'),
        release.to_bytes(8, 'little'),
        stream.to_bytes(4, 'little'),
    ))
    # A stream cipher: modes are for block ciphers.
    cipher = ciphers.Cipher(
        algorithms.ChaCha20(keys.to_bytes(key), nonce), mode=None
    )
    self._encryptor = cipher.encryptor()
    self._left = MAX_WORDS - start

  def next(self, zeros: np.ndarray, words: np.ndarray) -> None:
    """Fills uint64 `words64` [n], given as many zeros.

    Raises:
      ValueError: The stream has fewer words left.
    """
    # Beyond the last block the counter would wrap and repeat the stream.
    self._left -= len(words)
    if self._left < 0:
      raise ValueError('A stream has 2^35 words: draw fewer at once.')
    self._encryptor.update_into(zeros, words.view(np.uint8))


def words64(
    key: np.ndarray, *, release: int, stream: int, count: int
) -> np.ndarray:
  """Returns the first words of a stream, uint64 [count]. Args as `Stream`."""
  found = np.empty(count, '<u8')
  zeros = np.zeros(count, '<u8').view(np.uint8)
  Stream(key, release=release, stream=stream).next(zeros, found)
  return found


def blocks(
    key: _Array,
    counters: _Array,
    nonce: Sequence[_Array],
    *,
    ops: types.ModuleType,
) -> _Array:
  """Returns the blocks with these counters.

  Args:
    key: uint32 [8].
    counters: uint32 [n].
    nonce: uint32 [3].
    ops: `numpy_ops` or `tensorflow_ops`, matching the other arguments.

  Returns:
    uint64 [n, 8].
  """
  row = counters[None]
  # Zeros of the counters' shape and type, in either library.
  empty = row ^ row
  # RFC 8439's matrix by rows: constants, key, key, counter and nonce.
  start = [
      ops.concat([empty ^ word for word in words])
      for words in (
          [_CONSTANTS[i] for i in range(4)],
          [key[i] for i in range(4)],
          [key[i] for i in range(4, 8)],
          [counters, *(nonce[i] for i in range(3))],
      )
  ]

  def double_round(
      rows: tuple[_Array, ...], _: _Array
  ) -> tuple[_Array, ...]:
    a, b, c, d = _quarter_rounds(*rows, ops)
    # Diagonals become columns, and go back after the second half.
    b, c, d = _roll(b, 1, ops), _roll(c, 2, ops), _roll(d, 3, ops)
    a, b, c, d = _quarter_rounds(a, b, c, d, ops)
    return a, _roll(b, 3, ops), _roll(c, 2, ops), _roll(d, 1, ops)

  end = ops.fold(double_round, tuple(start), np.zeros(_NUM_DOUBLE_ROUNDS))
  # The start is added, or the rounds could be inverted without the key.
  return ops.join_words(ops.concat([x + y for x, y in zip(end, start)]))


def _quarter_rounds(
    a: _Array, b: _Array, c: _Array, d: _Array, ops: types.ModuleType
) -> tuple[_Array, _Array, _Array, _Array]:
  """Four quarter rounds at once, one for each column of uint32 [4, n]."""
  for first, second in ((16, 12), (8, 7)):
    a = a + b
    d = _rotate(d ^ a, first, ops)
    c = c + d
    b = _rotate(b ^ c, second, ops)
  return a, b, c, d


def _rotate(x: _Array, bits: int, ops: types.ModuleType) -> _Array:
  """Rotates uint32 words to the left."""
  return ops.left_shift(x, bits) | ops.right_shift(x, 32 - bits)


def _roll(rows: _Array, by: int, ops: types.ModuleType) -> _Array:
  """Rotates rows: row i of the result is row i + by."""
  return ops.concat([rows[by:], rows[:by]])

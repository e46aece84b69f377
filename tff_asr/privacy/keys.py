"""256-bit random keys, and the two forms they take.

A key is 32 bytes from the operating system's entropy. In program state and in
graphs it is an int32 array of shape [8] that holds the same bits, read as
little-endian words. Noise and cohorts are functions of a key and a counter, so
a key reveals them: files that hold one are readable by their owner only.
"""

import hashlib
import hmac
import secrets
from typing import Optional

import numpy as np

from tff_asr import checks

NUM_BYTES = 32
NUM_WORDS = 8
# Fixed byte order, so that keys are the same on every machine.
_WORD = np.dtype('<i4')


def draw() -> np.ndarray:
  """Returns a new key (int32 [8]) from the operating system's entropy."""
  return from_bytes(secrets.token_bytes(NUM_BYTES))


def draw_or_fix(seed: Optional[int]) -> np.ndarray:
  """A key from the operating system, or `from_seed` for tests."""
  return draw() if seed is None else from_seed(seed)


def from_seed(seed: int) -> np.ndarray:
  """Returns the key that belongs to a seed. NOT PRIVATE: for tests only.

  Anyone can compute this key, subtract the noise and list the cohorts, so the
  privacy report of a run that uses it must say NOT PRIVATE. The same seed gives
  the same key on every machine; different seeds give unrelated keys.

  Args:
    seed: An integer of at least 0, of any size.

  Returns:
    A key, int32 [8].

  Raises:
    ValueError: If `seed` is not an integer of at least 0.
  """
  checks.non_negative_int(seed=seed)
  # The prefix keeps these keys apart from other hashes of small numbers.
  text = f'tff_asr.privacy.keys.from_seed:{seed}'
  return from_bytes(hashlib.sha256(text.encode()).digest())


def from_bytes(data: bytes) -> np.ndarray:
  """Returns the key (int32 [8]) with these 32 bytes."""
  if not isinstance(data, bytes) or len(data) != NUM_BYTES:
    length = len(data) if isinstance(data, bytes) else type(data).__name__
    raise ValueError(f'A key is {NUM_BYTES} bytes, found {length}.')
  return np.frombuffer(data, _WORD).astype(np.int32)


def to_bytes(key: np.ndarray) -> bytes:
  """Returns the 32 bytes of a key (int32 [8])."""
  return check(key).astype(_WORD).tobytes()


def derive(key: np.ndarray, *, purpose: str) -> np.ndarray:
  """Returns the key (int32 [8]) that belongs to a key and a purpose.

  HMAC-SHA-256: without `key`, keys of different purposes look unrelated.
  """
  return from_bytes(hmac.digest(to_bytes(key), purpose.encode(), 'sha256'))


def check(key: np.ndarray) -> np.ndarray:
  """Returns the key as a NumPy array; ValueError unless it is int32 [8]."""
  array = np.asarray(key)
  if array.dtype != np.int32 or array.shape != (NUM_WORDS,):
    # The value is left out on purpose: messages end up in logs.
    raise ValueError(
        f'A key is an int32 array of shape ({NUM_WORDS},), found '
        f'{array.dtype} of shape {array.shape}.'
    )
  return array

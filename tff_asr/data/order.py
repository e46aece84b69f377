"""Random order of records: any stretch of any pass, by a key, in O(1) memory.

A pass visits each of n records once, and each pass has an order of its own, a
function of the key and the number of the pass: an order is resumed at any place
without what lies before.

- Up to `_MAX_SORTED` records a pass is sorted by 64-bit words of Philox
  (https://doi.org/10.1145/2063384.2063405): each order is as likely as another.
- With more, a balanced Feistel network over the smallest even number of bits
  that hold n, walked on until it falls below n (Black and Rogaway 2002,
  https://doi.org/10.1007/3-540-45760-7_9), gives each place by itself: 8
  rounds, a 64-bit mixer (MurmurHash3's) of Philox words as round function. Not
  used for few records: of 16 places or so the network does not reach each order
  as often as another.

Not secret: a pseudo-random order for training, no cipher, and no draw that
privacy rests on.
"""

import numpy as np

from tff_asr import checks
from tff_asr.privacy import keys

_MAX_SORTED = 2**16
_NUM_ROUNDS = 8
_MIXER = (np.uint64(0xFF51AFD7ED558CCD), np.uint64(0xC4CEB9FE1A85EC53))
_SHIFT = np.uint64(33)


class Order:
  """Passes over `num_records` records, each in an order of its own."""

  def __init__(self, num_records: int, *, key: np.ndarray):
    """Creates the order.

    Args:
      num_records: At least 1.
      key: 256-bit key, int32 [8], of this order alone; Philox takes half.
    """
    checks.positive_int(num_records=num_records)
    self._num_records = num_records
    self._key = np.frombuffer(keys.to_bytes(key)[:16], '<u8')

  def positions(self, pass_num: int, start: int, count: int) -> np.ndarray:
    """Returns which records stand at places [start, start + count) of a pass.

    Args:
      pass_num: At least 0.
      start: At least 0.
      count: Fewer are returned where the pass ends.

    Returns:
      int64 [at most count], distinct numbers below num_records.
    """
    checks.non_negative_int(pass_num=pass_num, start=start, count=count)
    end = min(start + count, self._num_records)
    # Philox counts 256-bit blocks in the first word: passes share none.
    words = np.random.Philox(
        key=self._key, counter=np.array([0, pass_num, 0, 0], np.uint64)
    )
    if self._num_records <= _MAX_SORTED:
      order = np.argsort(words.random_raw(self._num_records), kind='stable')
      return order[start:end].astype(np.int64)
    return self._walk(
        np.arange(start, end, dtype=np.uint64), words.random_raw(_NUM_ROUNDS)
    )

  def _walk(self, places: np.ndarray, round_keys: np.ndarray) -> np.ndarray:
    """The network, repeated on what it does not bring below num_records."""
    half = np.uint64(((self._num_records - 1).bit_length() + 1) // 2)
    mask = (np.uint64(1) << half) - np.uint64(1)
    rest = np.arange(len(places))
    while rest.size:
      left, right = places[rest] >> half, places[rest] & mask
      for round_key in round_keys:
        mixed = right + round_key
        for factor in _MIXER:
          mixed = (mixed ^ (mixed >> _SHIFT)) * factor
        mixed ^= mixed >> _SHIFT
        left, right = right, left ^ (mixed & mask)
      places[rest] = (left << half) | right
      rest = rest[places[rest] >= self._num_records]
    return places.astype(np.int64)

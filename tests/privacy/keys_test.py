"""Tests for keys."""

import hashlib
import secrets
from unittest import mock

from absl.testing import parameterized
import numpy as np

from tff_asr.privacy import keys


class KeysTest(parameterized.TestCase):

  def test_drawn_keys_have_the_form_of_keys_and_vary_in_each_bit(self):
    drawn = [keys.draw() for _ in range(64)]
    for key in drawn:
      self.assertEqual((key.dtype, key.shape), (np.int32, (8,)))
    data = [keys.to_bytes(key) for key in drawn]
    # Flake rates: 2016 pairs / 2^256, and 256 bits * 2 * 2^-64.
    self.assertLen(set(data), 64)
    bits = np.unpackbits(
        np.stack([np.frombuffer(each, np.uint8) for each in data]), axis=1
    )
    self.assertTrue((bits.any(axis=0) & ~bits.all(axis=0)).all())

  def test_a_drawn_key_is_32_bytes_of_the_operating_system_s_generator(self):
    with mock.patch.object(
        secrets, 'token_bytes', side_effect=[bytes(range(32))]
    ) as drawn:
      self.assertEqual(keys.to_bytes(keys.draw()), bytes(range(32)))
    drawn.assert_called_once_with(32)

  def test_words_are_little_endian(self):
    data = bytes(
        [1, 0, 0, 0, 255, 255, 255, 255, 0, 0, 0, 128, 0, 1, 0, 0, *range(16)]
    )
    key = keys.from_bytes(data)
    np.testing.assert_array_equal(key[:4], [1, -1, -(2**31), 256])
    self.assertEqual(keys.to_bytes(key), data)

  def test_seeds_give_fixed_distinct_keys(self):
    np.testing.assert_array_equal(keys.from_seed(3), keys.from_seed(3))
    seeds = [0, 1, 2, 2**32, 2**64, 2**256, 2**256 + 1]
    self.assertLen({keys.to_bytes(keys.from_seed(s)) for s in seeds}, 7)
    # Frozen: a change would change the noise of recorded test runs.
    self.assertEqual(
        keys.to_bytes(keys.from_seed(0)).hex(),
        '3287449e71a34651e39899e7cb5df4b1'
        'b1063418cfdf5ca16918bf243b8846f5',
    )

  def test_derived_keys_depend_on_key_and_purpose_only(self):
    first, second = keys.from_seed(0), keys.from_seed(1)
    derived = {
        keys.to_bytes(keys.derive(key, purpose=purpose))
        for key in (first, second)
        for purpose in ('a', 'b', 80 * 'a' + 'b', 80 * 'a' + 'c')
    }
    self.assertLen(derived, 8)
    self.assertNotIn(keys.to_bytes(first), derived)
    np.testing.assert_array_equal(
        keys.derive(first, purpose='a'), keys.derive(first, purpose='a')
    )
    # HMAC-SHA-256 of the key's bytes, by the standard's two hashes.
    block = keys.to_bytes(first).ljust(64, b'\0')
    inner = hashlib.sha256(bytes(b ^ 0x36 for b in block) + b'a').digest()
    outer = hashlib.sha256(bytes(b ^ 0x5C for b in block) + inner).digest()
    self.assertEqual(
        keys.to_bytes(keys.derive(first, purpose='a')), outer
    )

  @parameterized.parameters(
      *((keys.from_seed, seed, 'seed') for seed in (-1, 1.0, '1', True)),
      (keys.from_bytes, b'abc', '32 bytes, found 3'),
      (keys.from_bytes, 'a' * 32, '32 bytes, found str'),
      # Without showing it.
      *(
          (keys.to_bytes, key, r'found int\d+ of shape \(\d?,?\)\.')
          for key in (np.zeros(8, np.int64), np.zeros(4, np.int32), 5)
      ),
  )
  def test_bad_arguments_are_named(self, function, argument, message):
    with self.assertRaisesRegex(ValueError, message):
      function(argument)

"""Tests for chacha20."""

from absl.testing import parameterized
import numpy as np
import tensorflow as tf

from tests import reference
from tff_asr.privacy import chacha20
from tff_asr.privacy import keys
from tff_asr.privacy import numpy_ops
from tff_asr.privacy import tensorflow_ops

_OPS = (('numpy', numpy_ops), ('tensorflow', tensorflow_ops))
# RFC 8439, appendix A.1: key, nonce, block counter, key stream.
_VECTORS = (
    (
        '00' * 32, '00' * 12, 0,
        '76b8e0ada0f13d90405d6ae55386bd28bdd219b8a08ded1aa836efcc8b770dc7'
        'da41597c5157488d7724e03fb8d84a376a43b8f41518a11cc387b669b2ee6586',
    ),
    (
        '00' * 32, '00' * 12, 1,
        '9f07e7be5551387a98ba977c732d080dcb0f29a048e3656912c6533e32ee7aed'
        '29b721769ce64e43d57133b074d839d531ed1f28510afb45ace10a1f4b794d6f',
    ),
    (
        '00' * 31 + '01', '00' * 12, 1,
        '3aeb5224ecf849929b9d828db1ced4dd832025e8018b8160b82284f3c949aa5a'
        '8eca00bbb4a73bdad192b5c42f73f2fd4e273644c8b36125a64addeb006c13a0',
    ),
    (
        '00ff' + '00' * 30, '00' * 12, 2,
        '72d54dfbf12ec44b362692df94137f328fea8da73990265ec1bbbea1ae9af0ca'
        '13b25aa26cb4a648cb9b9d1be65b2c0924a66c54d545ec1b7374f4872e99f096',
    ),
    (
        '00' * 32, '00' * 11 + '02', 0,
        'c2c64d378cd536374ae204b9ef933fcd1a8b2288b3dfa49672ab765b54ee27c7'
        '8a970e0e955c14f3a88e741b97c286f75f8fc299e8148362fa198a39531bed6d',
    ),
    # Section 2.3.2.
    (
        bytes(range(32)).hex(), '000000090000004a00000000', 1,
        '10f1e7e4d13b5915500fdd1fa32071c4c7d1f4c733c068030422aa9ac3d46c4e'
        'd2826446079faa0914c2d705d98b02a2b5129cd1de164eb9cbd083e8a2503c4e',
    ),
)


def _blocks(key, counters, nonce, ops):
  arrays = [
      np.frombuffer(key, '<u4'), np.array(counters, np.uint32),
      np.frombuffer(nonce, '<u4'),
  ]
  if ops is tensorflow_ops:
    return chacha20.blocks(*map(tf.constant, arrays), ops=ops).numpy()
  return chacha20.blocks(*arrays, ops=ops)


class ChaCha20Test(parameterized.TestCase):

  @parameterized.named_parameters(*_OPS)
  def test_blocks_match_the_standard(self, ops):
    for key, nonce, counter, expected in _VECTORS:
      block = _blocks(
          bytes.fromhex(key), [counter], bytes.fromhex(nonce), ops
      )
      self.assertEqual((block.dtype, block.shape), (np.uint64, (1, 8)))
      self.assertEqual(block.tobytes().hex(), expected)
      twin = reference.chacha20_words(
          np.frombuffer(bytes.fromhex(key), '<u4'), counter,
          np.frombuffer(bytes.fromhex(nonce), '<u4').tolist(),
      )
      self.assertEqual(block[0].tolist(), twin)

  def test_words_match_the_standard(self):
    for key, nonce, counter, expected in _VECTORS:
      nonce = bytes.fromhex(nonce)
      words = chacha20.words64(
          keys.from_bytes(bytes.fromhex(key)),
          release=int.from_bytes(nonce[:8], 'little'),
          stream=int.from_bytes(nonce[8:], 'little'),
          count=8 * counter + 8,
      )
      self.assertEqual(words[-8:].tobytes().hex(), expected)

  @parameterized.named_parameters(*_OPS)
  def test_blocks_at_any_counter_match_the_stream(self, ops):
    key = keys.from_seed(3)
    release, stream = 2**63 + 5, 2**32 - 2
    nonce = release.to_bytes(8, 'little') + stream.to_bytes(4, 'little')
    expected = chacha20.words64(key, release=release, stream=stream, count=801)
    counters = np.array([99, 0, 57, 58])
    found = _blocks(keys.to_bytes(key), counters, nonce, ops)
    np.testing.assert_array_equal(
        found, expected[:800].reshape([100, 8])[counters]
    )
    # The last one there is.
    last = np.empty(8, '<u8')
    chacha20.Stream(
        key, release=release, stream=stream, start=chacha20.MAX_WORDS - 8
    ).next(np.zeros(64, np.uint8), last)
    found = _blocks(keys.to_bytes(key), [2**32 - 1], nonce, ops)
    np.testing.assert_array_equal(found[0], last)

  @parameterized.parameters(1, 8, 9, 24)
  def test_streams_of_any_length_match_the_standard(self, count):
    key = keys.from_seed(3)
    expected = np.concatenate([
        reference.chacha20_words(
            np.frombuffer(keys.to_bytes(key), '<u4'), counter, [5, 0, 7]
        )
        for counter in range(3)
    ])
    np.testing.assert_array_equal(
        chacha20.words64(key, release=5, stream=7, count=count),
        expected[:count],
    )

  def test_a_stream_resumes_at_its_position(self):
    settings = dict(release=1, stream=2)
    expected = chacha20.words64(keys.from_seed(0), count=100, **settings)
    stream = chacha20.Stream(keys.from_seed(0), start=16, **settings)
    zeros = np.zeros(8 * 50, np.uint8)
    first, second = np.empty(13, '<u8'), np.empty(50, '<u8')
    stream.next(zeros[: 8 * 13], first)
    stream.next(zeros, second)
    np.testing.assert_array_equal(
        np.concatenate([first, second]), expected[16 : 16 + 63]
    )

  def test_positions_outside_the_stream_are_refused(self):
    for start in (4, -8, chacha20.MAX_WORDS):
      with self.assertRaisesRegex(ValueError, f'is {start}'):
        chacha20.Stream(keys.from_seed(0), release=0, stream=0, start=start)
    stream = chacha20.Stream(
        keys.from_seed(0), release=0, stream=0, start=chacha20.MAX_WORDS - 8
    )
    with self.assertRaisesRegex(ValueError, '2.35 words'):
      stream.next(np.zeros(72, np.uint8), np.empty(9, '<u8'))

"""Tests of tff_asr.programs.digests."""

import collections

from absl.testing import absltest
import numpy as np
import tensorflow as tf

from tff_asr.programs import digests


class DigestTest(absltest.TestCase):

  def test_covers_names_types_shapes_and_every_bit(self):
    values = [
        {'a': np.float32([1, 2])},
        {'b': np.float32([1, 2])},
        {'a': np.float32([[1, 2]])},
        {'a': np.float32([1, np.nextafter(np.float32(2), np.float32(3))])},
        {'a': np.float32([1, 2]).view(np.int32)},
        {'a': np.float32([0.0, 2])},
        {'a': np.float32([-0.0, 2])},
        {'a': np.float32(1)},
        {'a': np.float64(1)},
        {'a': np.zeros([0], np.float32)},
        {'a': 'text'},
        {'a': b'text'},
        {},
    ]
    self.assertLen({digests.digest(value) for value in values}, len(values))

  def test_is_the_same_for_the_same_content(self):
    value = collections.OrderedDict(
        a=np.arange(6, dtype=np.float32).reshape(2, 3), b=(np.int64(3), 'x')
    )
    tensors = collections.OrderedDict(
        a=tf.constant(value['a']), b=(np.int64(3), 'x')
    )
    turned = collections.OrderedDict(
        a=np.asfortranarray(value['a']), b=(np.int64(3), 'x')
    )
    self.assertEqual(digests.digest(value), digests.digest(tensors))
    self.assertEqual(digests.digest(value), digests.digest(turned))


if __name__ == '__main__':
  absltest.main()

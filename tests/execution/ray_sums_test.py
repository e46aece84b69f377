"""Tests of tff_asr.execution.ray_sums."""

from absl.testing import parameterized
import numpy as np

from tff_asr.execution import ray_sums


class RaySumsTest(parameterized.TestCase):

  @parameterized.named_parameters(
      ('largest_and_smallest_int32', [2**31 - 1, -(2**31)], 8),
      ('one_element_is_too_large', [1, 2**31, -7], 24),
      ('one_element_is_too_small', [-(2**31) - 1, 0], 16),
      ('no_elements', [], 0),
  )
  def test_int64_travels_as_int32_if_all_elements_fit(self, values, num_bytes):
    packed = ray_sums.pack([np.array(values, np.int64)])
    self.assertEqual(packed.num_bytes, num_bytes)
    (total,) = ray_sums.add([packed, packed])
    self.assertEqual(total.dtype, np.int64)
    self.assertEqual(total.tolist(), [2 * value for value in values])

  def test_sums_that_outgrow_int32_on_the_way_keep_all_bits(self):
    leaves = [
        np.array([2**31 - 1, -(2**30)]),
        np.array([[-(2**31) - 1]]),
        np.array([5, 6, 7]),
        np.array(9, np.int32)[()],  # A scalar, of another dtype.
    ]
    one = ray_sums.pack(leaves)
    three = ray_sums.add_packed(one, one, one)
    # Of what fitted into int32, the first leaf does not any more.
    self.assertEqual(
        [leaf.itemsize for leaf in three.leaves], [8, 8, 4, 4]
    )
    for total, leaf in zip(ray_sums.add([three, one]), leaves, strict=True):
      self.assertEqual(total.dtype, leaf.dtype)
      self.assertEqual(total.tolist(), (4 * leaf).tolist())

  def test_adding_sums_does_not_change_the_inputs(self):
    one = ray_sums.pack([np.array([1, 2])])
    one.leaves[0].flags.writeable = False  # As in the object store.
    self.assertEqual(ray_sums.add([one, one])[0].tolist(), [2, 4])
    self.assertEqual(one.leaves[0].tolist(), [1, 2])

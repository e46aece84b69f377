"""Tests that a record moves a sum by C at most, where floats moved it further.

Sums are computed by the queries' own code, in one graph. Attacks through the
executed aggregation: aggregators/sensitivity_test.
"""

import fractions

from absl.testing import parameterized
import numpy as np
import pytest
import tensorflow as tf

from tff_asr.privacy import queries

# ulp of float32 from 4096 on; below, it is half of this.
_ULP = 2.0**-11


def _drifting_sum(num_records: int) -> list[float]:
  """Numbers of at most 1 whose float32 sum depends on the one in the middle.

  4,096 ones and an ulp end just above 4,096. From there, -.3 ulp is rounded
  away, record after record. From below 4,096 it is rounded to -.5 ulp. So who
  adds the -1 that leads there moves the sum by more with each record.
  """
  rest = num_records - 4098
  return [1.0] * 4096 + [_ULP] + [-1.0] + [-0.3 * _ULP] * rest


def _query(size: int, clip: float = 1.0):
  return queries.PerLayerClipSumQuery(
      [tf.TensorSpec([size])], l2_norm_clip=clip, noise_multiplier=1.0
  )


def _sum(query, records: np.ndarray) -> np.ndarray:
  """The sum of the rows, one after another, without noise."""
  state = query.initial_global_state()
  params = query.derive_sample_params(state)

  @tf.function(autograph=False)
  def add_all(records):
    start = query.initial_sample_state([records[0]])
    _, total = tf.while_loop(
        lambda number, _: number < tf.shape(records)[0],
        lambda number, total: (
            number + 1,
            query.accumulate_record(params, total, [records[number]]),
        ),
        (tf.constant(0), start),
        parallel_iterations=1,
    )
    return total

  return add_all(tf.constant(records, tf.float32))[0].numpy()


class ExactSumsTest(parameterized.TestCase):

  @parameterized.parameters((8194, 2.0), (28_658, 7.0))
  def test_sums_that_drift_in_floats_move_by_the_clip(self, count, in_floats):
    with_it = np.float32(_drifting_sum(count))
    without = np.delete(with_it, 4097)
    moved = np.cumsum(without)[-1] - np.cumsum(with_it)[-1]
    self.assertAlmostEqual(moved, in_floats, delta=0.02)
    query = _query(1)
    sums = [_sum(query, values[:, None]) for values in (without, with_it)]
    # C is 2^24 steps. The record at C is shrunk by a step: see the query.
    self.assertEqual(int(sums[0][0] - sums[1][0]), 2**24 - 1)

  def test_norms_of_random_records_are_at_most_the_clip(self):
    self.check_norms(3_000)

  @pytest.mark.slow
  def test_norms_of_many_records_are_at_most_the_clip(self):
    self.check_norms(100_000)

  def check_norms(self, count):
    """Records about the clip and far from it; any sum moves by their norms."""
    rng = np.random.default_rng(5)
    clip = 0.7
    records = rng.normal(size=(count, 8))
    records[::3] *= 10.0 ** rng.uniform(-40, 30, size=records[::3].shape)
    norms = np.linalg.norm(records, axis=1)
    near = clip * (1 + rng.integers(-3, 4, size=count) * 2.0**-24)
    far = 10.0 ** rng.uniform(-30, 37, size=count)
    norm = np.where(rng.random(count) < 0.7, near, far)
    records = np.float32(records * (norm / norms)[:, None])
    query = _query(8, clip)
    state = query.initial_global_state()
    params = query.derive_sample_params(state)
    clipped = tf.function(
        lambda rows: tf.map_fn(
            lambda row: query.preprocess_record(params, [row])[0],
            rows,
            fn_output_signature=tf.int64,
        )
    )(records).numpy()
    bound = (
        fractions.Fraction(float(np.float32(clip)))
        / fractions.Fraction(float(query.grid(state)))
    ) ** 2
    squares = [sum(int(step) ** 2 for step in row) for row in clipped]
    self.assertLessEqual(max(squares), bound)
    self.assertGreater(max(squares), bound * (1 - 1e-6))
    # Whatever the order and the tree, the sum is the same.
    parts = np.array_split(clipped[rng.permutation(count)], 7)
    np.testing.assert_array_equal(
        sum(part.sum(axis=0) for part in parts), _sum(query, records)
    )

"""Tests that released weights do not tell which floats noise can be.

An adversary who knows every update except one, and the server's optimizer, can
compute the noise from a right guess of that update: from the mean, or from the
weights before and after a step. `lattice.mean_distance` detects noise made of
23 bits.
"""

from absl.testing import absltest
from absl.testing import parameterized
import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tests import lattice
from tff_asr.optimizers import adam
from tff_asr.optimizers import lamb
from tff_asr.privacy import keys
from tff_asr.privacy import noise as noise_lib
from tff_asr.privacy import queries

_SIZE = 1_000_000
# Weights begin at 0, where a step keeps most bits. Epsilon 1: the first step of
# Adam is g / (|g| + 1), and LAMB's trust ratio is 1.
_OPTIMIZERS = dict(
    sgd=tff.learning.optimizers.build_sgdm(1.0),
    adam=adam.build_adam(1.0, epsilon=1.0),
    lamb=lamb.build_lamb(1.0, epsilon=1.0),
)
# The standard error of the mean of these draws is .0006.
_TOLERANCE = 0.003


def _of_23_bits(shapes, *, stddev, **unused):
  """TensorFlow's float32 normal, on the same grid."""
  (shape,) = shapes
  drawn = tf.random.stateless_normal(shape, [1, 2])
  return [tf.cast(tf.round(stddev * tf.cast(drawn, tf.float64)), tf.int64)]


def _residuals(name: str) -> np.ndarray:
  """What the adversary computes, in standard deviations of the noise.

  A right guess gives the clipped update, here a vector of ones.
  """
  clip = 2.0  # As is z C / n, with n = 2.
  specs = [tf.TensorSpec([_SIZE])]
  query = queries.PerLayerClipSumQuery(
      specs, l2_norm_clip=clip, noise_multiplier=1.0
  )
  state = queries.set_noise_key(
      query.initial_global_state(), keys.from_seed(3)
  )
  record = query.preprocess_record(
      query.derive_sample_params(state), [tf.ones([_SIZE])]
  )
  noised, _, _ = query.get_noised_result(record, state)
  mean = queries.divide_by_cohort_size(noised, 2.0)
  if name == 'mean':
    found = np.asarray(mean[0], np.float64)
  else:
    optimizer = _OPTIMIZERS[name]
    _, (moved,) = optimizer.next(
        optimizer.initialize(specs), [tf.zeros([_SIZE])], mean
    )
    step = -np.asarray(moved, np.float64)
    found = step if name == 'sgd' else step / (1 - np.abs(step))
  return found - clip / np.sqrt(_SIZE) / 2


class ReleasedBitsTest(parameterized.TestCase):

  @parameterized.parameters('mean', 'sgd', 'adam', 'lamb')
  def test_residuals_are_on_no_lattice(self, name):
    residuals = _residuals(name)
    self.assertAlmostEqual(np.std(residuals), 1, delta=0.005)
    distance = lattice.mean_distance(residuals)
    self.assertAlmostEqual(distance, 0.25, delta=_TOLERANCE)

  @parameterized.parameters('mean', 'sgd', 'adam', 'lamb')
  def test_a_normal_of_23_bits_puts_them_on_a_lattice(self, name):
    with absltest.mock.patch.object(noise_lib, 'gaussian', _of_23_bits):
      distance = lattice.mean_distance(_residuals(name))
    self.assertLess(distance, 0.25 - 2 * _TOLERANCE)

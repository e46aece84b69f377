"""Tests of tff_asr.models.wav2vec2; tests/pretrained compares it with others."""

from absl.testing import absltest
from absl.testing import parameterized
import numpy as np
import tensorflow as tf

from tests.models import calls
from tests.models import public_encoders
from tff_asr.models import wav2vec2


class _Contract(public_encoders.Contract):

  # Windows of 13 samples every 6; the last utterance is shorter than one.
  lengths = (61, 60, 30, 13, 12)
  input_shape = ()
  style = {}

  def build(self, **options):
    settings = dict(
        num_blocks=1, dim=8, mlp_dim=12, num_heads=2, conv_dims=(6, 5, 7),
        conv_kernels=(5, 3, 2), conv_strides=(3, 2, 1), position_groups=2,
    )
    return wav2vec2.build(**(settings | self.style | options))


class BaseTest(_Contract, parameterized.TestCase):

  style = dict(position_kernel=4)

  def test_the_group_norm_takes_away_loudness(self):
    encoder = self.build(conv_dims=(6,), conv_kernels=(5,), conv_strides=(3,))
    quiet, _ = calls.apply(encoder, self.inputs(40)[np.newaxis], [40])
    loud, _ = calls.apply(encoder, 100 * self.inputs(40)[np.newaxis], [40])
    np.testing.assert_allclose(quiet, loud, rtol=1e-3, atol=1e-3)


class LargeTest(_Contract, parameterized.TestCase):

  style = dict(
      position_kernel=5, conv_bias=True, conv_norm='layer', norm='pre'
  )


class OptionsTest(_Contract, parameterized.TestCase):
  """Neither of the published styles."""

  style = dict(
      position_kernel=1, input_norm=False, norm='pre', conv_norm='layer'
  )

  # By hand: windows of 5 samples every 3, of 3 of these every 2, of 2 of those:
  # 5 + 2 * 3 + 1 * 6 = 17 samples, every 6.
  @parameterized.parameters(
      (0, 0), (1, 0), (16, 0), (17, 1), (22, 1), (23, 2), (29, 3), (61, 8)
  )
  def test_frame_counts(self, num_samples, expected):
    encoder = self.build()
    self.assertEqual(encoder.output_lengths(num_samples), expected)
    np.testing.assert_array_equal(
        encoder.output_lengths(tf.constant([num_samples])), [expected]
    )
    outputs, lengths = calls.apply(
        encoder, self.inputs(num_samples)[np.newaxis], [num_samples]
    )
    self.assertEqual(outputs.shape, (1, expected, 8))
    self.assertEqual(list(lengths), [expected])

  @parameterized.parameters(
      dict(conv_dims=(6, 5, 8)), dict(conv_kernels=(5, 3, 3)),
      dict(conv_strides=(3, 2, 2)), dict(conv_bias=True),
      dict(conv_norm='group'), dict(input_norm=True), dict(position_kernel=2),
      dict(position_groups=4), dict(norm='post'),
  )
  def test_each_option_changes_the_result(self, **options):
    run = lambda encoder: calls.apply(
        encoder, self.inputs(61)[np.newaxis], [61]
    )[0]
    before, after = run(self.build()), run(self.build(**options))
    self.assertTrue(
        before.shape != after.shape or np.abs(before - after).max() > 1e-3
    )

  @parameterized.parameters(
      (dict(conv_norm='batch'), 'conv_norm must be one of'),
      (dict(norm='middle'), 'norm must be one of'),
      (dict(conv_dims=(6, 5)), r'one entry .* found \(6, 5\), \(5, 3, 2\)'),
      (dict(conv_dims=(), conv_kernels=(), conv_strides=()), 'one entry'),
      (dict(conv_dims=(6, 0, 7)), 'conv_dims must be a positive integer'),
      (dict(conv_kernels=(5, 0, 7)), 'conv_kernels must be a positive'),
      (dict(conv_strides=(5, 0, 7)), 'conv_strides must be a positive'),
      (dict(position_kernel=0), 'position_kernel'),
      (dict(position_groups=0), 'position_groups'),
      (dict(position_groups=3), 'dim 8 and position_groups 3'),
  )
  def test_bad_options_are_named(self, options, message):
    with self.assertRaisesRegex(ValueError, message):
      self.build(**options)


if __name__ == '__main__':
  absltest.main()

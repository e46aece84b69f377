"""Tests that hold for every encoder of `gelu_block`."""

import functools

import numpy as np
import tensorflow as tf

from tests.models import calls
from tff_asr.models import encoder as encoder_lib
from tff_asr.models import layers

_SEED = (3, 4)


class Contract:
  """Mixin of a TestCase.

  Attributes:
    lengths: Input lengths of a batch, the longest first.
    input_shape: Shape of an input after its length.
  """

  lengths: tuple[int, ...]
  input_shape: tuple[int, ...]

  def build(self, **options) -> encoder_lib.Encoder:
    """The encoder with some options changed."""
    raise NotImplementedError

  def inputs(self, length: int) -> np.ndarray:
    return calls.features(length, *self.input_shape)

  def batch(self, padding: float) -> np.ndarray:
    """All lengths in one batch."""
    shape = [len(self.lengths), self.lengths[0], *self.input_shape]
    batch = np.full(shape, padding, np.float32)
    for row, length in zip(batch, self.lengths):
      row[:length] = self.inputs(length)
    return batch

  def layer_outputs(self, encoder, batch, lengths, seed=None):
    outputs, output_lengths = encoder.layer_outputs(
        calls.perturbed(encoder.specs), tf.constant(batch),
        tf.constant(lengths), seed,
    )
    return [each.numpy() for each in outputs], output_lengths.numpy()

  def test_padding_and_other_utterances_do_not_change_any_layer(self):
    encoder = self.build()
    alone = [
        self.layer_outputs(encoder, self.inputs(n)[np.newaxis], [n])[0]
        for n in self.lengths
    ]
    for padding in (0.0, 1e3, np.nan):
      outputs, lengths = self.layer_outputs(
          encoder, self.batch(padding), self.lengths
      )
      self.assertEqual(
          list(lengths), [encoder.output_lengths(n) for n in self.lengths]
      )
      for layer, hidden in enumerate(outputs):
        self.assertTrue(np.all(np.isfinite(hidden)))
        for found, length, expected in zip(hidden, lengths, alone):
          self.assertEqual(expected[layer].shape[1], length)
          np.testing.assert_allclose(
              found[:length], expected[layer][0], rtol=1e-4, atol=1e-5
          )

  def test_the_last_layer_is_the_output(self):
    encoder = self.build(num_blocks=3)
    outputs, lengths = self.layer_outputs(
        encoder, self.batch(0.0), self.lengths
    )
    self.assertLen(outputs, 4)
    last, output_lengths = calls.apply(encoder, self.batch(0.0), self.lengths)
    np.testing.assert_array_equal(outputs[-1], last)
    np.testing.assert_array_equal(lengths, output_lengths)

  def test_gradients_reach_every_weight_and_ignore_padding(self):
    encoder = self.build()
    weights = calls.perturbed(encoder.specs)

    def gradients(padding):
      with tf.GradientTape() as tape:
        tape.watch(weights)
        outputs, lengths = encoder.apply(
            weights, self.batch(padding), tf.constant(self.lengths), None
        )
        outputs *= layers.length_mask(lengths, tf.shape(outputs)[1])
        factors = calls.features(*outputs.shape) + 0.1 * outputs
        total = tf.reduce_sum(outputs * factors)
      return tape.gradient(total, weights)

    others = gradients(np.nan)
    for name, gradient in gradients(0.0).items():
      size = float(tf.norm(gradient))
      self.assertGreater(size, 1e-6, msg=name)
      np.testing.assert_allclose(
          others[name], gradient, rtol=1e-3, atol=1e-3 * size, err_msg=name
      )

  def test_runs_in_a_graph_of_unknown_sizes(self):
    encoder = self.build(dropout=0.1)
    run = tf.function(
        functools.partial(encoder.apply, calls.perturbed(encoder.specs)),
        input_signature=[
            tf.TensorSpec([None, None, *self.input_shape]),
            tf.TensorSpec([None], tf.int32),
            tf.TensorSpec([2], tf.int32),
        ],
        autograph=False,
    )
    batch = self.batch(0.0)
    expected, lengths = calls.apply(
        encoder, batch, self.lengths, tf.constant(_SEED)
    )
    outputs, output_lengths = run(batch, list(self.lengths), list(_SEED))
    np.testing.assert_array_equal(output_lengths, lengths)
    np.testing.assert_allclose(outputs, expected, rtol=1e-4, atol=1e-4)

  def test_dropout_depends_on_the_seed_alone(self):
    encoder, batch = self.build(dropout=0.3), self.batch(0.0)
    run = lambda seed: calls.apply(
        encoder, batch, self.lengths, seed and tf.constant(seed)
    )[0]
    first = run([3, 4])
    np.testing.assert_array_equal(first, run([3, 4]))
    for other in ([3, 5], [4, 3]):
      self.assertFalse(np.allclose(first, run(other)))
    np.testing.assert_array_equal(
        run(None), calls.apply(self.build(), batch, self.lengths)[0]
    )

  def test_draws_are_from_independent_streams(self):
    encoder = self.build(dropout=0.1, layer_drop=1e-6, num_blocks=3)
    with calls.recorded_seeds() as seeds:
      calls.apply(encoder, self.batch(0.0), self.lengths, tf.constant(_SEED))
    # Of a block: dropout in four places, and layer drop.
    self.assertGreaterEqual(len(seeds), 3 * 5)
    self.assertLen(set(seeds), len(seeds))

  def test_layer_drop_1_leaves_the_front_end(self):
    # Of two: a final norm changes the last one's outputs.
    encoder = self.build(layer_drop=1.0, num_blocks=2)
    outputs, _ = self.layer_outputs(
        encoder, self.batch(0.0), self.lengths, tf.constant(_SEED)
    )
    np.testing.assert_array_equal(outputs[0], outputs[1])
    evaluated, _ = self.layer_outputs(encoder, self.batch(0.0), self.lengths)
    self.assertFalse(np.allclose(evaluated[0], evaluated[1]))

  def test_bfloat16_changes_rounding_alone(self):
    batch = self.batch(0.0)
    one, lengths = calls.apply(self.build(), batch, self.lengths)
    other, _ = calls.apply(
        self.build(activation_dtype='bfloat16'), batch, self.lengths
    )
    self.assertEqual(other.dtype, np.float32)
    valid = layers.length_mask(lengths, one.shape[1]).numpy()
    error = np.linalg.norm((other - one) * valid) / np.linalg.norm(one * valid)
    self.assertBetween(error, 1e-4, 0.03)

  def test_bad_options_of_the_blocks_are_named(self):
    for options, message in (
        (dict(dropout=1.0), 'dropout must be .* below 1'),
        (dict(layer_drop=1.1), 'layer_drop'),
        (dict(activation_dtype='float16'), 'activation_dtype.*float16'),
        (dict(num_heads=5), 'divisible by num_heads, found dim 8 and .* 5'),
        *(
            ({name: value}, name)
            for name in ('num_blocks', 'dim', 'mlp_dim', 'num_heads')
            for value in (0, -1, 2.0)
        ),
    ):
      with self.assertRaisesRegex(ValueError, message):
        self.build(**options)

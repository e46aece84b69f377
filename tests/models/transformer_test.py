from absl.testing import absltest
from absl.testing import parameterized
import numpy as np
import tensorflow as tf

from tests import reference
from tests.models import calls
from tff_asr.models import encoder as encoder_lib
from tff_asr.models import transformer
from tff_asr.models import weights as weights_lib

_SEED = tf.constant([3, 4])
_SIZES = dict(
    num_blocks=2, dim=8, mlp_dim=12, num_heads=2, feature_dim=5
)


def _build(**options) -> encoder_lib.Encoder:
  return transformer.build(**(_SIZES | options))


_features = calls.features
_apply = calls.apply


def _weights(encoder: encoder_lib.Encoder) -> weights_lib.Weights:
  return calls.perturbed(encoder.specs)


def _draws(encoder, *, num_draws: int) -> tuple[np.ndarray, np.ndarray]:
  """Features of an utterance, and its outputs under `num_draws` seeds."""
  weights, features = _weights(encoder), _features(1, 9, 5)
  lengths = tf.constant([9])

  @tf.function
  def run(seeds):
    return tf.map_fn(
        lambda seed: encoder.apply(weights, features, lengths, seed)[0],
        seeds,
        fn_output_signature=tf.float32,
    )

  seeds = np.stack([np.arange(num_draws), np.zeros(num_draws, int)], axis=1)
  return features, run(seeds.astype(np.int32)).numpy()


class TransformerTest(parameterized.TestCase):

  @parameterized.product(
      padding=(0.0, 1e3, np.nan),
      options=({}, dict(norm='post'), dict(position='sinusoidal')),
  )
  def test_padding_does_not_change_outputs(self, padding, options):
    encoder = _build(**options)
    lengths = [16, 3, 30, 7]
    batch = np.full([4, 30, 5], padding, np.float32)
    for row, length in zip(batch, lengths):
      row[:length] = _features(length, 5)
    outputs, output_lengths = _apply(encoder, batch, lengths)
    np.testing.assert_array_equal(output_lengths, [5, 1, 10, 2])
    for i, length in enumerate(lengths):
      alone, _ = _apply(encoder, batch[i : i + 1, :length], [length])
      self.assertEqual(alone.shape, (1, output_lengths[i], 8))
      np.testing.assert_allclose(
          outputs[i, : output_lengths[i]], alone[0], rtol=1e-4, atol=1e-5
      )

  @parameterized.parameters(
      dict(num_blocks=1, num_heads=1),
      dict(num_blocks=2, num_heads=2),
      dict(num_blocks=3, num_heads=4),
      dict(num_blocks=2, num_heads=2, norm='post'),
      dict(num_blocks=2, num_heads=2, position='sinusoidal'),
      dict(num_blocks=2, num_heads=4, norm='post', position='sinusoidal'),
  )
  def test_agrees_with_the_numpy_twin(self, **options):
    encoder = _build(**options)
    weights = _weights(encoder)
    arrays = {name: value.numpy() for name, value in weights.items()}
    for num_frames in (3, 20, 31):
      features = _features(num_frames, 5)
      outputs, _ = _apply(
          encoder, features[np.newaxis], [num_frames], None, weights
      )
      expected = reference.transformer_encoder(arrays, features, **options)
      np.testing.assert_allclose(outputs[0], expected, rtol=1e-5, atol=1e-5)

  @parameterized.parameters(*transformer.NORMS)
  def test_a_block_agrees_with_the_numpy_twin(self, norm):
    weights = weights_lib.select('block_00', _weights(_build()))
    inputs = _features(7, 8)
    outputs = transformer._block(
        weights,
        tf.constant(inputs[np.newaxis]),
        tf.ones([1, 7, 1]),
        num_heads=2,
        dropout=0.5,
        layer_drop=0.5,
        norm=norm,
        seed=None,
    )
    expected = reference.transformer_block(
        {name: value.numpy() for name, value in weights.items()},
        inputs,
        num_heads=2,
        norm=norm,
    )
    np.testing.assert_allclose(outputs[0], expected, rtol=1e-5, atol=1e-5)

  def test_an_utterance_too_short_for_a_frame_gives_finite_outputs(self):
    outputs, lengths = _apply(_build(), _features(2, 9, 5), [2, 9])
    np.testing.assert_array_equal(lengths, [0, 3])
    self.assertTrue(np.all(np.isfinite(outputs)))

  @parameterized.parameters(*range(2, 10))
  def test_output_lengths_are_those_of_real_outputs(self, num_frames):
    encoder = _build()
    features = _features(1, num_frames, 5)
    outputs, lengths = _apply(encoder, features, [num_frames])
    expected = encoder.output_lengths(num_frames)
    self.assertEqual(outputs.shape, (1, expected, encoder.output_dim))
    np.testing.assert_array_equal(lengths, [expected])

  @parameterized.parameters(*transformer.NORMS)
  def test_layer_drop_1_leaves_no_block_in_training(self, norm):
    features, lengths = _features(2, 15, 5), [15, 12]
    kept = _build(norm=norm)
    dropped = _build(norm=norm, layer_drop=1.0, max_shift_sec=0.0)
    weights = _weights(dropped)
    training, _ = _apply(dropped, features, lengths, _SEED, weights)
    # Blocks of zero matrices add nothing either, and leave norm 'post' its
    # layer norms.
    matrices = ('wqkv', 'wf', 'w1', 'w2')
    without = weights_lib.Weights(
        (name, 0 * value if name.endswith(matrices) else value)
        for name, value in weights.items()
    )
    expected, _ = _apply(kept, features, lengths, None, without)
    np.testing.assert_allclose(training, expected, rtol=1e-5, atol=1e-5)
    # Evaluation drops none.
    evaluated, _ = _apply(dropped, features, lengths, None, weights)
    np.testing.assert_array_equal(
        evaluated, _apply(kept, features, lengths, None, weights)[0]
    )
    self.assertFalse(np.allclose(evaluated, training))

  def test_layer_drop_skips_whole_blocks_at_its_rate(self):
    # With one block an output is that of all blocks or that of none.
    encoder = _build(num_blocks=1, layer_drop=0.3, max_shift_sec=0.0)
    features, outputs = _draws(encoder, num_draws=400)
    with_block, _ = _apply(encoder, features, [9])
    is_kept = np.isclose(outputs, with_block, atol=1e-5).all(axis=(1, 2, 3))
    dropped = outputs[~is_kept]
    np.testing.assert_allclose(
        dropped, np.broadcast_to(dropped[:1], dropped.shape), atol=1e-6
    )
    # Binomial, stddev .023; seeded, a new seed would fail 1 time in 10,000.
    self.assertAlmostEqual(np.mean(~is_kept), 0.3, delta=0.09)

  def test_each_block_is_dropped_on_its_own(self):
    encoder = _build(num_blocks=2, layer_drop=0.5, max_shift_sec=0.0)
    _, outputs = _draws(encoder, num_draws=60)
    outputs = np.round(outputs.reshape([60, -1]), 3)
    # Both, the first, the second, none: each in a quarter of the draws. Seeded;
    # a new seed would miss one of them 1 time in 10^7.
    self.assertLen(np.unique(outputs, axis=0), 4)

  @parameterized.named_parameters(
      ('dropout', dict(dropout=0.3, max_shift_sec=0.0)),
      ('layer_drop', dict(layer_drop=0.5, max_shift_sec=0.0)),
      ('max_shift_sec', dict(max_shift_sec=5.0)),
  )
  def test_the_seed_makes_what_training_draws(self, options):
    encoder = _build(**options)
    features = _features(2, 15, 5)
    run = lambda seed: _apply(encoder, features, [15, 12], seed)[0]
    first = run(_SEED)
    np.testing.assert_array_equal(first, run(tf.constant([3, 4])))
    others = [run(tf.constant([3, seed])) for seed in range(5, 12)]
    self.assertTrue(any(not np.allclose(first, other) for other in others))
    # Without a seed nothing is drawn.
    plain = _apply(_build(), features, [15, 12])[0]
    np.testing.assert_array_equal(run(None), plain)

  def test_training_without_any_draw_equals_evaluation(self):
    encoder = _build(max_shift_sec=0.0)
    features = _features(2, 15, 5)
    np.testing.assert_allclose(
        _apply(encoder, features, [15, 12], _SEED)[0],
        _apply(encoder, features, [15, 12])[0],
        atol=1e-6,
    )

  @parameterized.parameters(*transformer.NORMS)
  def test_every_weight_has_a_part_in_the_output(self, norm):
    encoder = _build(norm=norm)
    weights = _weights(encoder)
    with tf.GradientTape() as tape:
      tape.watch(weights)
      outputs, _ = encoder.apply(
          weights, tf.constant(_features(1, 30, 5)), tf.constant([30]), None
      )
      total = tf.reduce_sum(outputs * _features(1, 10, 8))
    for name, gradient in tape.gradient(total, weights).items():
      self.assertGreater(float(tf.norm(gradient)), 0, msg=name)

  @parameterized.parameters(
      dict(num_blocks=3),
      dict(dim=10),
      dict(mlp_dim=13),
      dict(num_heads=4),
      dict(dropout=0.3),
      dict(layer_drop=1.0),
      dict(max_shift_sec=1.0),
      dict(norm='post'),
      dict(position='sinusoidal'),
      dict(feature_dim=6),
      dict(activation_dtype='bfloat16'),
  )
  def test_each_option_changes_the_result(self, **options):
    def train(**options):
      encoder = _build(**options)
      num_bins = options.get('feature_dim', _SIZES['feature_dim'])
      return _apply(encoder, _features(1, 15, num_bins), [15], _SEED)[0]

    before, after = train(), train(**options)
    is_other_shape = before.shape != after.shape
    self.assertTrue(
        is_other_shape or np.abs(before - after).max() > 1e-3, options
    )

  def test_runs_in_a_graph_of_unknown_sizes(self):
    encoder = _build(dropout=0.1, layer_drop=0.1)
    weights = _weights(encoder)

    @tf.function(
        input_signature=[
            tf.TensorSpec([None, None, 5]),
            tf.TensorSpec([None], tf.int32),
            tf.TensorSpec([2], tf.int32),
        ]
    )
    def train(features, lengths, seed):
      return encoder.apply(weights, features, lengths, seed)

    features = _features(2, 15, 5)
    outputs, lengths = train(features, [15, 12], _SEED)
    np.testing.assert_array_equal(lengths, [5, 4])
    np.testing.assert_allclose(
        outputs,
        _apply(encoder, features, [15, 12], _SEED, weights)[0],
        rtol=1e-5,
        atol=1e-5,
    )

  def test_names_sort_in_the_order_of_the_blocks(self):
    for num_blocks in (3, 12, 120):
      specs = _build(num_blocks=num_blocks).specs
      blocks = list(
          dict.fromkeys(
              name.split('/')[0] for name in specs if name.startswith('block')
          )
      )
      self.assertLen(blocks, num_blocks)
      self.assertEqual(blocks, sorted(blocks))

  def test_block_weights_have_no_biases(self):
    # wqkv 8 * 24, wf 8 * 8, two norms of 2 * 8, w1 8 * 12, w2 12 * 8.
    block = {
        name: spec.shape
        for name, spec in _build().specs.items()
        if name.startswith('block_01/')
    }
    self.assertEqual(
        {name.removeprefix('block_01/') for name in block},
        {'wqkv', 'wf', 'w1', 'w2', 'ln1/bias', 'ln1/scale', 'ln2/bias',
         'ln2/scale'},
    )
    per_block = weights_lib.count(_build(num_blocks=2).specs) - (
        weights_lib.count(_build(num_blocks=1).specs)
    )
    self.assertEqual(per_block, 192 + 64 + 32 + 96 + 96)

  @parameterized.parameters(
      'num_blocks', 'dim', 'mlp_dim', 'num_heads', 'feature_dim'
  )
  def test_bad_sizes_are_named(self, name):
    for value in (0, -1, 2.0):
      with self.assertRaisesRegex(ValueError, name):
        _build(**{name: value})

  @parameterized.parameters(
      ('dropout', -0.1), ('dropout', 1.0), ('dropout', 1.1),
      ('layer_drop', -0.1), ('layer_drop', 1.1), ('max_shift_sec', -1.0),
  )
  def test_bad_rates_are_named(self, name, value):
    with self.assertRaisesRegex(ValueError, name):
      _build(**{name: value})

  @parameterized.parameters('norm', 'position')
  def test_unknown_names_are_refused(self, name):
    with self.assertRaisesRegex(ValueError, f"{name} must be one of '"):
      _build(**{name: 'middle'})

  def test_norm_post_has_no_norm_at_the_end(self):
    pre, post = _build().specs, _build(norm='post').specs
    self.assertEqual(pre.keys() - post.keys(), {'norm/bias', 'norm/scale'})
    self.assertContainsSubset(post, pre)
    # So the last thing is LN2 of the last block: mean 0, variance 1 a frame
    # where its scale is 1 and its bias 0, as they start.
    encoder = _build(norm='post')
    weights = weights_lib.initialize(encoder.specs, _SEED)
    outputs, _ = _apply(encoder, _features(1, 15, 5), [15], None, weights)
    np.testing.assert_allclose(outputs.mean(axis=-1), 0, atol=1e-6)
    np.testing.assert_allclose(outputs.var(axis=-1), 1, atol=1e-3)

  def test_sinusoidal_positions_draw_nothing(self):
    encoder = _build(position='sinusoidal')
    features = _features(1, 15, 5)
    np.testing.assert_array_equal(
        _apply(encoder, features, [15], _SEED)[0],
        _apply(encoder, features, [15])[0],
    )

  @parameterized.parameters((8, 3), (9, 3))
  def test_a_dim_that_does_not_divide_is_refused(self, dim, num_heads):
    with self.assertRaisesRegex(ValueError, f'found dim {dim} and num_heads'):
      _build(dim=dim, num_heads=num_heads)


def _dtypes_of_ops(graph: tf.Graph, op: str) -> set[tf.DType]:
  """The dtypes of a graph's ops of one kind, functions within included."""
  graph_def = graph.as_graph_def()
  bodies = [graph_def.node, *(f.node_def for f in graph_def.library.function)]
  return {
      tf.as_dtype(node.attr['T'].type)
      for body in bodies
      for node in body
      if node.op == op
  }


def _flat(tensors: weights_lib.Weights) -> np.ndarray:
  return np.concatenate([tensor.numpy().ravel() for tensor in tensors.values()])


class Bfloat16Test(parameterized.TestCase):

  def _outputs_and_gradients(self, activation_dtype, seed):
    encoder = _build(
        dropout=0.2, layer_drop=0.3, activation_dtype=activation_dtype
    )
    weights = _weights(encoder)
    with tf.GradientTape() as tape:
      tape.watch(weights)
      lengths = tf.constant([60, 45, 9])
      outputs, lengths = encoder.apply(
          weights, tf.constant(_features(3, 60, 5)), lengths, seed
      )
      valid = encoder_lib.mask(lengths, tf.shape(outputs)[1])
      loss = tf.reduce_sum(valid * outputs * outputs * tf.range(8, dtype=tf.float32))
    return outputs * valid, tape.gradient(loss, weights)

  @parameterized.named_parameters(('evaluation', None), ('training', _SEED))
  def test_it_rounds_and_no_more(self, seed):
    # With a seed also the draws of dropout and layer drop are float32's. Eight
    # bits round by up to 2^-9 = .2 % at each of some 20 ops of the way.
    expected, expected_gradients = self._outputs_and_gradients('float32', seed)
    outputs, gradients = self._outputs_and_gradients('bfloat16', seed)
    self.assertEqual(outputs.dtype, tf.float32)
    error = tf.norm(outputs - expected) / tf.norm(expected)
    self.assertBetween(error, 1e-4, 0.03)
    self.assertEqual({g.dtype for g in gradients.values()}, {tf.float32})
    expected_gradients = _flat(expected_gradients)
    error = np.linalg.norm(_flat(gradients) - expected_gradients)
    # From .01 to .09 over seeds: some gradients nearly cancel.
    self.assertBetween(error / np.linalg.norm(expected_gradients), 1e-4, 0.15)

  def test_products_are_bfloat16_and_statistics_float32(self):
    encoder = _build(
        dropout=0.2, layer_drop=0.3, activation_dtype='bfloat16'
    )

    @tf.function
    def run(weights, features):
      return encoder.apply(weights, features, tf.constant([30, 30]), _SEED)

    graph = run.get_concrete_function(
        _weights(encoder), tf.constant(_features(2, 30, 5))
    ).graph
    for op in ('BatchMatMulV2', 'Conv2D', 'Relu', 'Sigmoid'):
      self.assertEqual(_dtypes_of_ops(graph, op), {tf.bfloat16}, op)
    for op in ('Softmax', 'Rsqrt', 'SquaredDifference', 'Sin'):
      self.assertEqual(_dtypes_of_ops(graph, op), {tf.float32}, op)

  def test_other_dtypes_are_refused(self):
    with self.assertRaisesRegex(ValueError, 'activation_dtype.*float16'):
      _build(activation_dtype='float16')


if __name__ == '__main__':
  absltest.main()

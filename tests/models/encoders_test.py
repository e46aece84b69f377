"""Contract of every encoder, a row each; then tests of single encoders."""

import functools
from unittest import mock

from absl.testing import parameterized
import numpy as np
import tensorflow as tf

from tests import fakes
from tests import reference
from tests import reference_ssl
from tests.models import calls
from tff_asr.models import attention
from tff_asr.models import conformer
from tff_asr.models import conv
from tff_asr.models import encoder as encoder_lib
from tff_asr.models import layers
from tff_asr.models import transformer
from tff_asr.models import weights as weights_lib

_SEED = tf.constant([3, 4])
_BINS = 9
_BASE = dict(num_blocks=2, dim=8, feature_dim=_BINS)
_ATTENTION = dict(_BASE, mlp_dim=12, num_heads=2)
_CONFORMER = dict(_ATTENTION, kernel_size=3, num_groups=4, front_channels=3)
_POST = dict(norm='post', position='sinusoidal')
# Name: builder, settings, twin and its settings, feature frames of an output.
_ROWS = {
    'transformer': (
        transformer.build,
        _ATTENTION,
        functools.partial(reference.transformer_encoder, num_heads=2),
        3,
    ),
    'transformer_post': (
        transformer.build,
        _ATTENTION | _POST,
        functools.partial(reference.transformer_encoder, num_heads=2, **_POST),
        3,
    ),
    'conv': (
        conv.build, dict(_BASE, kernel_size=3), reference.conv_encoder, 3
    ),
    **{
        name: (
            conformer.build,
            _CONFORMER | options,
            functools.partial(
                reference_ssl.conformer_encoder, num_heads=2, num_groups=4
            ),
            4,
        )
        for name, options in (
            ('conformer', {}),
            ('conformer_plain', dict(relative_attention=False)),
        )
    },
}
_NAMES = tuple((name, name) for name in _ROWS)
# Another value of each option, and bad ones; 0, -1 and 2.0 for every size.
_OTHER = {
    'transformer': dict(
        num_blocks=3, dim=10, mlp_dim=13, num_heads=4, dropout=0.3,
        layer_drop=1.0, max_shift_sec=1.0, norm='post', position='sinusoidal',
        feature_dim=6, activation_dtype='bfloat16',
    ),
    'conv': dict(
        num_blocks=3, dim=9, kernel_size=5, dropout=0.3, feature_dim=6,
        activation_dtype='bfloat16',
    ),
    'conformer': dict(
        num_blocks=3, dim=16, mlp_dim=13, num_heads=4, kernel_size=5,
        num_groups=2, front_channels=4, dropout=0.3,
        feature_dim=10, relative_attention=False, activation_dtype='bfloat16',
    ),
}
_BAD = {
    'transformer': (
        (dict(dropout=-0.1), 'dropout'),
        (dict(dropout=1.0), 'dropout must be .* below 1'),
        (dict(layer_drop=1.1), 'layer_drop'),
        (dict(max_shift_sec=-1.0), 'max_shift_sec'),
        (dict(norm='middle'), "norm must be one of '"),
        (dict(position='middle'), "position must be one of '"),
        (dict(activation_dtype='float16'), 'activation_dtype.*float16'),
        (dict(rounding='all'), "rounding must be one of .*'all'"),
        (dict(dim=8, num_heads=3), 'found dim 8 and num_heads 3'),
        (dict(dim=9, num_heads=3), 'found dim 9 and num_heads 3'),
    ),
    'conv': (
        (dict(dropout=1.0), 'dropout must be .* below 1'),
        (dict(kernel_size=4), 'kernel_size must be odd, found 4'),
        (dict(activation_dtype='float16'), 'activation_dtype.*float16'),
    ),
    'conformer': (
        (dict(dropout=-0.1), 'dropout'),
        (dict(kernel_size=4), 'kernel_size must be odd, found 4'),
        (dict(feature_dim=3), 'feature_dim must be at least 4, found 3'),
        (dict(dim=9), 'found dim 9, num_heads 2 and num_groups 4'),
        (dict(num_groups=3), 'num_groups 3'),
        (dict(activation_dtype='float16'), 'activation_dtype.*float16'),
    ),
}
_SIZES = ('num_blocks', 'dim', 'mlp_dim', 'num_heads', 'kernel_size',
          'num_groups', 'front_channels', 'feature_dim')

_features = calls.features
_apply = calls.apply


def _build(name: str, **options) -> encoder_lib.Encoder:
  build, settings, _, _ = _ROWS[name]
  return build(**(settings | options))


@functools.lru_cache(maxsize=None)
def _weights(name: str, num_blocks: int = 2) -> weights_lib.Weights:
  """Perturbed weights of a row's encoder, drawn once."""
  return calls.perturbed(_build(name, num_blocks=num_blocks).specs)


def tearDownModule():
  _train.cache_clear()
  _weights.cache_clear()


def _gradients(encoder, weights, features, lengths, seed=None):
  """Valid outputs, and gradients of a sum of them by every weight."""
  with tf.GradientTape() as tape:
    tape.watch(weights)
    outputs, lengths = encoder.apply(
        weights, tf.constant(features), tf.constant(lengths), seed
    )
    outputs *= layers.length_mask(lengths, tf.shape(outputs)[1])
    factors = _features(8) + 0.1 * outputs
    total = tf.reduce_sum(tf.where(outputs != 0, outputs * factors, 0.0))
  return outputs.numpy(), tape.gradient(total, weights)


@functools.lru_cache(maxsize=None)
def _train(row: str, **options) -> np.ndarray:
  """What an encoder gives in training."""
  num_bins = options.get('feature_dim', _BINS)
  features = _features(1, 16, num_bins)
  return _apply(_build(row, **options), features, [16], _SEED)[0]


class ContractTest(parameterized.TestCase):

  @parameterized.named_parameters(*_NAMES)
  def test_padding_and_other_utterances_do_not_change_outputs(self, row):
    encoder, stride, weights = _build(row), _ROWS[row][3], _weights(row)
    lengths = [16, 4, 30, 7, 2]
    each = [_features(length, _BINS) for length in lengths]
    alone = [
        _apply(encoder, features[np.newaxis], [len(features)], weights=weights)
        for features in each
    ]
    for padding in (1e3, np.nan):
      batch = np.full([5, 30, _BINS], padding, np.float32)
      for line, features in zip(batch, each):
        line[: len(features)] = features
      outputs, output_lengths = _apply(
          encoder, batch, lengths, weights=weights
      )
      self.assertEqual(list(output_lengths), [n // stride for n in lengths])
      self.assertTrue(np.all(np.isfinite(outputs)))
      for found, length, (expected, _) in zip(outputs, output_lengths, alone):
        self.assertEqual(expected.shape, (1, length, 8))
        np.testing.assert_allclose(
            found[:length], expected[0], rtol=1e-4, atol=1e-5
        )

  @parameterized.product(row=tuple(_ROWS), num_blocks=(1, 3))
  def test_agrees_with_the_numpy_twin(self, row, num_blocks):
    encoder = _build(row, num_blocks=num_blocks)
    weights = _weights(row, num_blocks)
    arrays = calls.arrays(weights)
    # Blocks leave the number of frames as it is.
    for num_frames in range(2, 14) if num_blocks == 1 else (4, 13):
      features = _features(num_frames, _BINS)
      outputs, lengths = _apply(
          encoder, features[np.newaxis], [num_frames], weights=weights
      )
      self.assertEqual(
          outputs.shape,
          (1, encoder.output_lengths(num_frames), encoder.output_dim),
      )
      self.assertEqual(list(lengths), [outputs.shape[1]])
      if num_frames in (4, 13):
        expected = _ROWS[row][2](arrays, features, num_blocks=num_blocks)
        np.testing.assert_allclose(outputs[0], expected, rtol=1e-4, atol=1e-4)

  @parameterized.named_parameters(*_NAMES)
  def test_gradients_reach_every_weight_and_ignore_padding(self, row):
    features = _features(1, 24, _BINS)
    padded = np.pad(features, [[0, 0], [0, 9], [0, 0]], constant_values=np.nan)
    encoder, weights = _build(row), _weights(row)
    _, expected = _gradients(encoder, weights, features, [24])
    _, gradients = _gradients(encoder, weights, padded, [24])
    for name, gradient in gradients.items():
      self.assertGreater(float(tf.norm(gradient)), 1e-6, msg=name)
      scale = float(tf.norm(expected[name]))
      np.testing.assert_allclose(
          gradient, expected[name], rtol=1e-3, atol=1e-3 * scale, err_msg=name
      )

  @parameterized.named_parameters(*_NAMES)
  def test_training_draws_depend_on_the_seed_alone(self, row):
    encoder = _build(row, num_blocks=1, dropout=0.3)
    weights, features = _weights(row, 1), _features(2, 16, _BINS)
    run = lambda seed: _apply(encoder, features, [16, 12], seed, weights)[0]
    first = run(_SEED)
    np.testing.assert_array_equal(first, run(tf.constant([3, 4])))
    for other in ([3, 5], [4, 3], [2, 4]):
      self.assertFalse(np.allclose(first, run(tf.constant(other))))
    # Without a seed nothing is drawn.
    plain, _ = _apply(
        _build(row, num_blocks=1), features, [16, 12], weights=weights
    )
    np.testing.assert_array_equal(run(None), plain)

  @parameterized.named_parameters(*_NAMES)
  def test_runs_in_a_graph_of_unknown_sizes(self, row):
    encoder, weights = _build(row, num_blocks=1, dropout=0.1), _weights(row, 1)
    train = tf.function(
        functools.partial(encoder.apply, weights),
        input_signature=[
            tf.TensorSpec([None, None, _BINS]),
            tf.TensorSpec([None], tf.int32),
            tf.TensorSpec([2], tf.int32),
        ],
        autograph=False,
    )
    features = _features(2, 17, _BINS)
    expected, lengths = _apply(encoder, features, [17, 12], _SEED, weights)
    outputs, output_lengths = train(features, [17, 12], _SEED)
    np.testing.assert_array_equal(output_lengths, lengths)
    np.testing.assert_allclose(outputs, expected, rtol=1e-5, atol=1e-5)

  @parameterized.product(
      setting=(
          *((row, {}) for row in _ROWS),
          ('transformer', dict(rounding='published')),
      ),
      seed=(None, (3, 4)),
  )
  def test_bfloat16_changes_rounding_alone(self, setting, seed):
    # With a seed also the draws are float32's, and there are gradients, which
    # only training takes. Eight bits round by up to 2^-9 = .2 % at each of some
    # 30 ops of the way; some gradients nearly cancel, and processors differ
    # there: post-norm's by 6.4 % without AVX-512.
    row, options = setting
    weights, features = _weights(row), _features(3, 60, _BINS)
    lengths = [60, 45, 9]

    def run(dtype):
      encoder = _build(row, dropout=0.2, activation_dtype=dtype, **options)
      if seed is not None:
        outputs, gradients = _gradients(
            encoder, weights, features, lengths, tf.constant(seed)
        )
        self.assertEqual({g.dtype for g in gradients.values()}, {tf.float32})
        return outputs, fakes.flat(list(gradients.values()))
      outputs, output_lengths = _apply(
          encoder, features, lengths, weights=weights
      )
      return (outputs * layers.length_mask(
          output_lengths, outputs.shape[1]
      ).numpy(),)

    for one, other, most in zip(run('float32'), run('bfloat16'), (0.02, 0.1)):
      self.assertEqual(other.dtype, np.float32)
      error = np.linalg.norm(other - one) / np.linalg.norm(one)
      self.assertBetween(error, 1e-4, most)

  @parameterized.parameters(
      *((row, name) for row, options in _OTHER.items() for name in options)
  )
  def test_each_option_changes_the_result(self, row, name):
    before = _train(row)
    after = _train(row, **{name: _OTHER[row][name]})
    is_other_shape = before.shape != after.shape
    self.assertTrue(is_other_shape or np.abs(before - after).max() > 1e-3)

  @parameterized.named_parameters(*((name, name) for name in _BAD))
  def test_bad_options_are_named(self, row):
    sizes = [
        (dict({name: value}), name)
        for name in _SIZES
        if name in _ROWS[row][1]
        for value in (0, -1, 2.0)
    ]
    for options, message in (*_BAD[row], *sizes):
      with self.assertRaisesRegex(ValueError, message):
        _build(row, **options)

  @parameterized.named_parameters(*_NAMES)
  def test_names_sort_in_the_order_of_the_blocks(self, row):
    for num_blocks in (3, 120):
      specs = _build(row, num_blocks=num_blocks).specs
      blocks = list(dict.fromkeys(
          name.split('/')[0] for name in specs if name.startswith('block')
      ))
      self.assertLen(blocks, num_blocks)
      self.assertEqual(blocks, sorted(blocks))


class StreamsTest(parameterized.TestCase):
  """No two draws share a random stream."""

  def record(self, run) -> list[tuple[int, ...]]:
    """The seeds that reach stateless ops in `run`."""
    with mock.patch.object(
        tf.random,
        'stateless_uniform',
        side_effect=tf.random.stateless_uniform,
    ) as draw:
      run()
    return [tuple(np.asarray(call.args[1])) for call in draw.mock_calls]

  # Transformer: front end, shift, and of a block attention, MLP and layer drop;
  # Conformer: front end, and of a block two of each FFN and of attention, one
  # of the convolution. Two runs, of two seeds.
  @parameterized.parameters(
      ('transformer', dict(layer_drop=1e-6), 2 + 3 * 3),
      ('transformer_post', dict(layer_drop=1e-6), 1 + 3 * 3),
      ('conv', {}, 1 + 3),
      ('conformer', {}, 1 + 3 * 7),
  )
  def test_layers_draw_from_independent_streams(self, row, options, num_draws):
    encoder = _build(row, num_blocks=3, dropout=0.1, **options)
    weights = _weights(row, 3)
    features = _features(2, 16, _BINS)
    seeds = []
    for seed in ([3, 4], [3, 5], [4, 4]):
      seeds += self.record(
          lambda: _apply(encoder, features, [16, 12], seed, weights)
      )
    self.assertLen(seeds, 3 * num_draws)
    self.assertLen(set(seeds), 3 * num_draws)

  @parameterized.named_parameters(*_NAMES)
  def test_initial_weights_are_drawn_from_a_stream_each(self, row):
    specs = _build(row, num_blocks=12).specs
    drawn = [name for name, spec in specs.items() if spec.limit]
    self.assertNotEmpty(drawn)
    seeds = []
    for seed in ([1, 2], [1, 3], [2, 2]):
      seeds += self.record(
          lambda: weights_lib.initialize(specs, tf.constant(seed))
      )
    self.assertLen(seeds, 3 * len(drawn))
    self.assertLen(set(seeds), 3 * len(drawn))


class TransformerTest(parameterized.TestCase):

  @parameterized.parameters(*transformer.NORMS)
  def test_layer_drop_1_leaves_no_block_in_training(self, norm):
    features, lengths = _features(2, 15, _BINS), [15, 12]
    kept = _build('transformer', norm=norm)
    dropped = _build(
        'transformer', norm=norm, layer_drop=1.0, max_shift_sec=0.0
    )
    weights = calls.perturbed(dropped.specs)
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

  def test_each_block_is_dropped_as_a_whole_on_its_own_at_its_rate(self):
    encoder = _build(
        'transformer', num_blocks=2, layer_drop=0.3, max_shift_sec=0.0
    )
    weights, features = calls.perturbed(encoder.specs), _features(1, 9, _BINS)

    @tf.function(autograph=False)
    def run(seeds):
      return tf.map_fn(
          lambda seed: encoder.apply(
              weights, features, tf.constant([9]), seed
          )[0],
          seeds,
          fn_output_signature=tf.float32,
      )

    seeds = np.stack([np.arange(400), np.zeros(400, int)], axis=1)
    outputs = run(seeds.astype(np.int32)).numpy().reshape([400, -1])
    _, counts = np.unique(np.round(outputs, 3), axis=0, return_counts=True)
    # Both, one of them, none: .49, .21 twice, .09 of the draws. Binomial,
    # stddev up to .025; seeded, a new seed would fail 1 time in 1,000.
    np.testing.assert_allclose(
        sorted(counts / 400), [0.09, 0.21, 0.21, 0.49], atol=0.09
    )

  @parameterized.parameters('products', 'published')
  def test_dtypes_with_bfloat16_activations(self, rounding):
    encoder = _build(
        'transformer', dropout=0.2, layer_drop=0.3, activation_dtype='bfloat16',
        rounding=rounding,
    )
    graph_def = tf.function(
        encoder.apply, autograph=False
    ).get_concrete_function(
        calls.perturbed(encoder.specs),
        tf.constant(_features(2, 30, _BINS)),
        tf.constant([30, 30]),
        _SEED,
    ).graph.as_graph_def()
    functions = graph_def.library.function
    nodes = [*graph_def.node, *(n for f in functions for n in f.node_def)]
    types = lambda op: {tf.DType(n.attr['T'].type) for n in nodes if n.op == op}
    for dtype, ops in (
        (tf.bfloat16, ('MatMul', 'BatchMatMulV2', 'Relu')),
        (tf.float32, ('Conv2D', 'Sigmoid', 'Rsqrt', 'SquaredDifference',
                      'Sin')),
    ):
      for op in ops:
        self.assertEqual(types(op) - {tf.int32}, {dtype}, op)
    # AddV2 is the residual stream, and adds the mask to what softmax takes.
    rounded = {tf.bfloat16} if rounding == 'published' else {tf.float32}
    self.assertEqual(types('Softmax'), rounded)
    self.assertEqual(types('AddV2') - {tf.int32}, rounded | {tf.float32})
    # The front end's input, positions, and what the blocks round anyway.
    sources = {n.name: n.op for n in nodes}
    widened = {
        sources.get(n.input[0].partition(':')[0])
        for n in nodes
        if n.op == 'Cast'
        and n.attr['SrcT'].type == tf.bfloat16.as_datatype_enum
    }
    self.assertEqual('Cast' in widened, rounding == 'published')


class AttentionTest(parameterized.TestCase):

  @parameterized.product(
      parts=(
          (attention.specs, attention.apply, reference.self_attention),
          (
              attention.relative_specs,
              attention.apply_relative,
              reference_ssl.relative_attention,
          ),
      ),
      size=(1, 2, 5, 9),
  )
  def test_agrees_with_the_numpy_twin(self, parts, size):
    specs, apply, twin = parts
    weights = calls.perturbed(specs(dim=8))
    inputs = 3 * _features(size, 8)
    for num_heads in (1, 2, 4):
      outputs = apply(
          weights,
          tf.constant(inputs[np.newaxis]),
          tf.ones([1, size, 1]),
          num_heads=num_heads,
          dropout=0.5,
          seed=None,
      )
      expected = twin(calls.arrays(weights), inputs, num_heads=num_heads)
      np.testing.assert_allclose(outputs[0], expected, rtol=1e-4, atol=1e-4)

  def test_relative_scores_are_shifted_to_frames_by_hand(self):
    # Scores 1 to 7 stand for distances 3 to -3; i - j = 0 is 4.
    scores = attention._shift(
        tf.reshape(tf.range(1.0, 8), [1, 1, 1, 7]) * tf.ones([1, 1, 4, 1])
    )
    np.testing.assert_array_equal(
        scores[0, 0],
        [[4, 5, 6, 7], [3, 4, 5, 6], [2, 3, 4, 5], [1, 2, 3, 4]],
    )

"""Tests of tff_asr.pretrained.adapted and of what it takes from models."""

import os
from unittest import mock

from absl.testing import absltest
from absl.testing import parameterized
import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tests import cases
from tests import fakes
from tests import reference_ssl
from tff_asr.data import pipeline as pipeline_lib
from tff_asr.execution import multi_device
from tff_asr.features import front_end as front_end_lib
from tff_asr.features import log_mel
from tff_asr.learning import client_update
from tff_asr.learning import fed_avg
from tff_asr.models import best_rq
from tff_asr.models import ctc
from tff_asr.models import encoder as encoder_lib
from tff_asr.models import layer_mix
from tff_asr.models import quantizer as quantizer_lib
from tff_asr.models import weights as weights_lib
from tff_asr.pretrained import adapted
from tff_asr.pretrained import features
from tff_asr.pretrained import sources
from tff_asr.recognition import export
from tff_asr.recognition import recognizer as recognizer_lib
from tools.pretrained_parity import random_folders

_FAMILIES = ('whisper', 'wav2vec2_base', 'hubert_large')
_MASKED_FAMILIES = ('whisper', 'wav2vec2_20_ms')
# Longer utterances than those of other tests of this model.
_CONFIGS = random_folders.TINY | {
    'whisper': random_folders.TINY['whisper'] | dict(max_source_positions=200),
    'wav2vec2_20_ms': random_folders.TINY_20_MS,
}
_SEED = (3, 4)


class _TestCase(cases.TestCase):
  """Models of random weights in folders, and a cache of this test."""

  def setUp(self):
    super().setUp()
    self.enterContext(
        mock.patch.dict(
            os.environ, {features.CACHE_VARIABLE: self.path('cache')}
        )
    )

  def write(self, family: str = 'whisper') -> str:
    folder = self.path(family)
    random_folders.write(folder, _CONFIGS[family])
    return folder

  def inputs(self, folder: str) -> tuple[tf.Tensor, tf.Tensor]:
    """Inputs of a model for two utterances, one of them padded."""
    waveforms = np.random.default_rng(1).integers(-9999, 9999, [2, 4000])
    return _front_end(folder).features(
        tf.constant(waveforms, tf.int16), tf.constant([4000, 2500])
    )


def _outputs(encoder, weights, inputs) -> np.ndarray:
  outputs, _ = encoder.apply(weights, *inputs, None)
  return outputs.numpy()


def _initial(encoder: encoder_lib.Encoder) -> weights_lib.Weights:
  return weights_lib.initialize(encoder.specs, tf.constant(_SEED))


def _gradients(encoder, weights, inputs) -> dict[str, np.ndarray]:
  """Gradients of a function of the outputs."""
  with tf.GradientTape() as tape:
    tape.watch(weights)
    outputs, lengths = encoder.apply(weights, *inputs, None)
    valid = tf.sequence_mask(lengths, tf.shape(outputs)[1])
    total = tf.reduce_sum(tf.boolean_mask(outputs, valid)[:, ::2] ** 2)
  return {
      name: gradient.numpy()
      for name, gradient in tape.gradient(total, weights).items()
  }


def _adapter(weights: weights_lib.Weights, inputs: np.ndarray) -> np.ndarray:
  """NumPy twin of `models.adapter.apply`."""
  down, up, bias_down, bias_up = (
      weights[name].numpy() for name in ('down', 'up', 'bias_down', 'bias_up')
  )
  mean = inputs.mean(-1, keepdims=True)
  normed = (inputs - mean) / np.sqrt(inputs.var(-1, keepdims=True) + 1e-5)
  return inputs + np.maximum(normed @ down + bias_down, 0) @ up + bias_up


def _build(
    kind: str, folder: str, public: dict[str, object] | None = None, **options
) -> encoder_lib.Encoder:
  own = {
      'adapters': dict(adapter_dim=3),
      'last_blocks': dict(num_blocks=1),
      'lora': dict(rank=2),
      'whole': {},
  }
  return getattr(adapted, kind)(
      adapted.load(name=folder, **public or {}), **own[kind] | options
  )


def _front_end(folder: str) -> front_end_lib.FrontEnd:
  return adapted.front_end(adapted.load(name=folder))


class PretrainingTest(_TestCase):
  """Masked prediction over the encoders of public models."""

  def model(self, family: str, **options) -> best_rq.BestRqModel:
    folder = self.write(family)
    self.front_end = _front_end(folder)
    inputs = 'features' if family == 'whisper' else 'waveforms'
    return best_rq.build(
        encoder=adapted.whole(adapted.load(name=folder)),
        quantizer=quantizer_lib.RandomProjectionQuantizer(
            num_codes=31,
            code_dim=4,
            num_stacked=2,
            feature_dim=self.front_end.feature_dim if inputs == 'features'
            else log_mel.NUM_MEL_BINS,
        ),
        inputs=inputs,
        **dict(start_prob=0.2, span_sec=0.06) | options,
    )

  def mask(self, model, waveforms, num_samples, seeds) -> best_rq.Masked:
    features, lengths = self.front_end.features(
        tf.constant(waveforms, tf.int16), tf.constant(num_samples)
    )
    return model.mask(features, lengths, tf.constant(seeds))

  def waveforms(self) -> np.ndarray:
    return np.random.default_rng(1).integers(-9999, 9999, [2, 8000])

  @parameterized.parameters(*_MASKED_FAMILIES)
  def test_padding_changes_no_draw_label_or_loss(self, family):
    model = self.model(family)
    weights = model.initialize(tf.constant(_SEED))
    waveforms, lengths, seeds = self.waveforms(), [8000, 5000], [[3, 7], [4, 7]]
    whole = self.mask(model, waveforms, lengths, seeds)
    losses = model.masked_loss(weights, whole).numpy()
    self.assertTrue((losses > 0).all())
    for row, length in enumerate(lengths):
      alone = self.mask(
          model, waveforms[row : row + 1, :length], [length], [seeds[row]]
      )
      np.testing.assert_allclose(
          model.masked_loss(weights, alone)[0], losses[row], rtol=1e-4
      )
      size = alone.labels.shape[1]
      for name in ('labels', 'is_masked'):
        np.testing.assert_array_equal(
            getattr(alone, name)[0], getattr(whole, name)[row, :size]
        )

  def test_labels_of_waveforms_are_those_of_their_log_mel_features(self):
    model = self.model('wav2vec2_20_ms')
    waveforms = self.waveforms()
    masked = self.mask(model, waveforms, [8000, 8000], [[3, 7], [4, 7]])
    for waveform, labels in zip(waveforms, masked.labels):
      expected = reference_ssl.labels(
          log_mel.log_mel_numpy(waveform.astype(np.int16)),
          model.quantizer.projection.numpy(),
          model.quantizer.codes.numpy(),
          num_stacked=2,
      )
      # Scaling rounds, so an equal pair of products may turn.
      self.assertGreater(np.mean(labels.numpy() == expected), 0.95)

  def test_a_label_of_a_waveform_is_masked_if_all_its_samples_are(self):
    model = self.model('wav2vec2_20_ms', noise_stddev=0.0)
    masked = self.mask(
        model, self.waveforms(), [8000, 8000], [[3, 7], [4, 7]]
    )
    hidden = masked.features.numpy()[:, :, 0] == 0
    # Two windows of 400 samples, 160 apart.
    expected = [
        [row[first : first + 560].all() for first in range(0, 7441, 320)]
        for row in hidden
    ]
    np.testing.assert_array_equal(masked.is_masked, expected)
    self.assertTrue(np.any(expected) and not np.all(expected))
    # A tenth of a second has 10 chances of .2.
    self.assertBetween(hidden.mean(), 0.3, 0.95)

  def test_gradients_reach_every_weight(self):
    model = self.model('wav2vec2_20_ms')
    weights = model.initialize(tf.constant(_SEED))
    masked = self.mask(
        model, self.waveforms(), [8000, 5000], [[3, 7], [4, 7]]
    )
    with tf.GradientTape() as tape:
      tape.watch(weights)
      loss = tf.reduce_sum(model.masked_loss(weights, masked))
    for name, gradient in tape.gradient(loss, weights).items():
      self.assertGreater(np.abs(gradient).max(), 0, name)

  def test_the_encoder_must_have_the_frames_of_the_labels(self):
    with self.assertRaisesRegex(ValueError, 'num_stacked must be'):
      folder = self.write('wav2vec2_20_ms')
      best_rq.build(
          encoder=adapted.whole(adapted.load(name=folder)),
          quantizer=quantizer_lib.RandomProjectionQuantizer(num_stacked=4),
          inputs='waveforms',
      )


class EncoderTest(_TestCase):

  @parameterized.product(
      family=_FAMILIES, kind=('adapters', 'lora', 'last_blocks', 'whole')
  )
  def test_starts_as_the_public_encoder(self, family, kind):
    folder = self.write(family)
    public = sources.load(folder)
    inputs, lengths = self.inputs(folder)
    own = inputs if family == 'whisper' else inputs[:, :, 0]
    expected = _outputs(
        public.encoder, weights_lib.to_tensors(public.weights), (own, lengths)
    )
    encoder = _build(kind, folder)
    weights = _initial(encoder)
    np.testing.assert_array_equal(
        _outputs(encoder, weights, (inputs, lengths)), expected
    )
    self.assertEqual(
        encoder.output_lengths(4000), public.encoder.output_lengths(4000)
    )

  def test_trains_the_last_blocks_and_the_norm(self):
    encoder = _build('last_blocks', self.write())
    firsts = {name.partition('/')[0] for name in encoder.specs}
    self.assertEqual(firsts, {'block_01', 'norm'})
    self.assertNoCommonElements(encoder.specs, encoder.frozen)
    everything = weights_lib.num_parameters(
        {**encoder.specs, **encoder.frozen}
    )
    self.assertEqual(
        everything, weights_lib.num_parameters(sources.load(
            self.path('whisper')
        ).encoder.specs)
    )

  def test_of_the_whole_encoder_positions_alone_are_frozen(self):
    encoder = _build('whole', self.write())
    self.assertEqual(list(encoder.frozen), ['front/positions'])
    self.assertEmpty(_build('whole', self.write('wav2vec2_base')).frozen)

  @parameterized.parameters('last_blocks', 'whole')
  def test_gradients_are_those_of_the_public_encoder(self, kind):
    folder = self.write()
    public, inputs = sources.load(folder), self.inputs(folder)
    expected = _gradients(
        public.encoder, weights_lib.to_tensors(public.weights), inputs
    )
    encoder = _build(kind, folder)
    found = _gradients(encoder, _initial(encoder), inputs)
    self.assertEqual(found.keys(), encoder.specs.keys())
    for name, gradient in found.items():
      np.testing.assert_allclose(
          gradient, expected[name], rtol=1e-4, atol=1e-5, err_msg=name
      )

  def test_lora_is_a_sum_of_two_matrices(self):
    folder = self.write()
    public, inputs = sources.load(folder), self.inputs(folder)
    encoder = _build('lora', folder, scale=0.5, matrices='block_.*/(wqkv|w2)$')
    self.assertLen(encoder.specs, 8)
    generator = np.random.default_rng(2)
    weights = weights_lib.Weights(
        (name, tf.constant(generator.normal(size=spec.shape), tf.float32))
        for name, spec in sorted(encoder.specs.items())
    )
    changed = dict(public.weights)
    for block in ('block_00', 'block_01'):
      for matrix in ('wqkv', 'w2'):
        a, b = (
            weights[f'{block}/{matrix}/lora_{each}'].numpy() for each in 'ab'
        )
        changed[f'{block}/{matrix}'] = changed[f'{block}/{matrix}'] + a @ b / 2
    expected = _outputs(
        public.encoder, weights_lib.to_tensors(changed), inputs
    )
    found = _outputs(encoder, weights, inputs)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
    before = _outputs(encoder, _initial(encoder), inputs)
    self.assertFalse(np.allclose(found, before, atol=0.01))
    gradients = _gradients(encoder, weights, inputs)
    self.assertEqual(gradients.keys(), encoder.specs.keys())
    for name, gradient in gradients.items():
      self.assertGreater(np.linalg.norm(gradient), 1e-3, name)

  def test_an_adapter_follows_each_block(self):
    folder = self.write()
    public, inputs = sources.load(folder), self.inputs(folder)
    encoder = _build('adapters', folder)
    # Two blocks of width 12, adapters of width 3.
    self.assertEqual(
        weights_lib.num_parameters(encoder.specs), 2 * (2 * 12 * 3 + 12 + 3)
    )
    generator = np.random.default_rng(2)
    weights = weights_lib.Weights(
        (name, tf.constant(generator.normal(size=spec.shape), tf.float32))
        for name, spec in sorted(encoder.specs.items())
    )
    outputs, _ = encoder.layer_outputs(weights, *inputs, None)
    public_outputs, _ = public.encoder.layer_outputs(
        weights_lib.to_tensors(public.weights), *inputs, None
    )
    own = weights_lib.subtree('block_00/adapter', weights)
    expected = _adapter(own, public_outputs[1].numpy())
    np.testing.assert_allclose(outputs[1], expected, rtol=1e-4, atol=1e-4)
    self.assertFalse(np.allclose(expected, public_outputs[1], atol=0.1))
    gradients = _gradients(encoder, weights, inputs)
    for name, gradient in gradients.items():
      self.assertGreater(np.linalg.norm(gradient), 1e-3, name)

  def test_adapters_of_no_width_are_refused(self):
    folder = self.write()
    with self.assertRaisesRegex(ValueError, 'adapter_dim'):
      _build('adapters', folder, adapter_dim=0)

  def test_frozen_tensors_that_are_given_are_used(self):
    encoder = _build('lora', folder := self.write())
    inputs, weights = self.inputs(folder), _initial(encoder)
    expected = _outputs(encoder, weights, inputs)
    given = {
        name: tf.constant(tensor.numpy())
        for name, tensor in encoder.frozen.items()
    }
    for tensor in encoder.frozen.values():
      os.remove(tensor.path)
    np.testing.assert_array_equal(
        _outputs(encoder, {**weights, **given}, inputs), expected
    )
    with self.assertRaisesRegex(ValueError, 'is missing'):
      _outputs(encoder, weights, inputs)

  def test_the_files_of_the_weights_stay_as_they_are(self):
    # Read-only pages: an op that reused their buffer would end the process.
    encoder = _build('whole', folder := self.write())
    (folder_of_files,) = os.listdir(self.path('cache', 'pretrained'))
    files = lambda: cases.digests(
        self.path('cache', 'pretrained', folder_of_files)
    )
    before = files()
    weights = _initial(encoder)
    inputs = self.inputs(folder)

    @tf.function
    def train(weights):
      with tf.GradientTape() as tape:
        tape.watch(weights)
        loss = tf.reduce_sum(encoder.apply(weights, *inputs, None)[0] ** 2)
      gradients = tape.gradient(loss, weights)
      return {
          name: value - 0.1 * gradients[name]
          for name, value in weights.items()
      }

    train(weights)
    self.assertEqual(files(), before)

  def test_lora_does_not_write_to_the_files_of_large_matrices(self):
    # Those of over 10 MiB are read where they lie: constant folding copies the
    # rest. A write to their pages would end the process.
    config = _CONFIGS['whisper'] | dict(d_model=48, encoder_ffn_dim=60_000)
    random_folders.write(folder := self.path('wide'), config)
    encoder = _build('lora', folder, matrices='/(w1|w2)$')
    inputs, weights = self.inputs(folder), _initial(encoder)
    apply = lambda weights: encoder.apply(weights, *inputs, None)[0]
    np.testing.assert_allclose(
        tf.function(apply, autograph=False)(weights),
        apply(weights),
        rtol=1e-4,
        atol=1e-5,
    )

  def test_the_front_end_knows_the_longest_utterance(self):
    front_end = _front_end(self.write())
    self.assertAlmostEqual(front_end.max_duration_sec, 200 * 0.02)
    self.assertEqual(front_end.feature_dim, 6)
    self.assertLen(front_end.public_model.sha256, 64)
    front_end = _front_end(self.write('wav2vec2_base'))
    self.assertEqual((front_end.feature_dim, front_end.frame_shift), (1, 1))
    self.assertEqual(front_end.public_model.source, 'a folder')
    # Kernels of 5, 3 and 2 with strides of 3, 2 and 1.
    self.assertEqual(front_end.placeholder_frames, 5 + 3 * (3 - 1 + 2))

  def test_dropout_is_the_encoders(self):
    encoder = _build('lora', folder := self.write(), dict(dropout=0.3))
    inputs, weights = self.inputs(folder), _initial(encoder)
    run = lambda seed: encoder.apply(weights, *inputs, seed)[0].numpy()
    first = run(tf.constant(_SEED))
    np.testing.assert_array_equal(run(tf.constant(_SEED)), first)
    self.assertFalse(np.allclose(run(tf.constant([3, 5])), first))

  @parameterized.parameters(
      (dict(rank=0), 'rank'),
      (dict(rank=12), 'rank must be between 1 and 11'),
      (dict(scale=0.0), 'scale'),
      (dict(matrices='wqk$'), "matrices 'wqk\\$' is in no name"),
      (dict(matrices='bqkv'), 'block_00/bqkv, which is no matrix'),
      (dict(matrices='positions'), 'front/positions, which is no matrix'),
      (dict(public=dict(sha256='0' * 64)), 'has the SHA-256 .*, not 0000'),
      (dict(public=dict(dropout=1.0)), 'dropout'),
  )
  def test_bad_settings_of_lora_are_named(self, options, message):
    folder = self.write()
    with self.assertRaisesRegex(ValueError, message):
      _build('lora', folder, **options)

  @parameterized.parameters(0, 3, 1.5)
  def test_bad_numbers_of_blocks_are_named(self, num_blocks):
    folder = self.write()
    with self.assertRaisesRegex(ValueError, 'num_blocks'):
      _build('last_blocks', folder, num_blocks=num_blocks)


def _model(folder: str, kind: str = 'lora') -> ctc.CtcModel:
  return ctc.build(
      encoder=layer_mix.build_on(encoder=_build(kind, folder), dim=8),
      tokenizer=fakes.tiny_tokenizer(),
  )


def _pipeline(model: ctc.CtcModel, folder: str) -> pipeline_lib.Pipeline:
  return fakes.tiny_pipeline(model, front_end=_front_end(folder))


def _process(
    model: ctc.CtcModel, folder: str, **local
) -> tff.learning.templates.LearningProcess:
  return fed_avg.build(
      model=model,
      pipeline=_pipeline(model, folder),
      client_data=fakes.client_data({'ann': 2, 'bob': 3}),
      aggregator=fakes.clipped_mean(cohort_size=2, clip=1.0),
      server_optimizer=tff.learning.optimizers.build_sgdm(1.0),
      seed=7,
      local=client_update.LocalTraining(
          learning_rate=0.1, num_steps=2, **local
      ),
  )


class HeadTest(_TestCase):

  @parameterized.parameters(0, 2)
  def test_is_the_head_of_stored_features_on_the_same_layers(self, num_blocks):
    folder = self.write()
    public = sources.load(folder)
    encoder = layer_mix.build_on(
        encoder=_build('lora', folder),
        layers=[0, 2],
        dim=8,
        num_blocks=num_blocks,
    )
    front_end = features.build(public=public, layers=[0, 2])
    head = layer_mix.build(
        front_end=front_end, dim=8, num_blocks=num_blocks
    )
    inputs, weights = self.inputs(folder), _initial(encoder)
    outputs, lengths = public.encoder.layer_outputs(
        weights_lib.to_tensors(public.weights), *inputs, None
    )
    expected, _ = head.apply(
        weights, tf.concat([outputs[0], outputs[2]], axis=2), lengths, None
    )
    np.testing.assert_allclose(
        _outputs(encoder, weights, inputs), expected, rtol=1e-5, atol=1e-5
    )
    self.assertContainsSubset(head.specs, encoder.specs)

  @parameterized.parameters(([],), ([1, 1],), ([3],), ([-1],))
  def test_bad_layers_are_named(self, layers):
    encoder = _build('lora', self.write())
    with self.assertRaisesRegex(ValueError, 'layers'):
      layer_mix.build_on(encoder=encoder, layers=layers)


class TrainingTest(_TestCase):

  @parameterized.parameters(
      ('whisper', 'last_blocks'),
      ('wav2vec2_base', 'lora'),
      ('hubert_large', 'adapters'),
  )
  def test_a_round_sends_and_changes_trained_tensors_alone(self, family, kind):
    folder = self.write(family)
    model = _model(folder, kind)
    process = _process(model, folder)
    with tff.framework.get_context_stack().install(
        multi_device.build_sync_context()
    ):
      state = process.initialize()
      after = process.next(state, ['ann', 'bob'])
    num_trained = weights_lib.num_parameters(model.specs)
    self.assertEqual(fed_avg.traffic(state), (4 * num_trained,) * 2)
    # Without momentum the server's optimizer keeps nothing, and the rest of the
    # state are single numbers: no frozen tensor is in it.
    leaves = tf.nest.flatten(after.state)
    self.assertLess(sum(map(np.size, leaves)), num_trained + 60)
    self.assertGreater(weights_lib.num_parameters(model.encoder.frozen), 500)
    before = state.global_model_weights
    self.assertEqual(list(before), sorted(model.specs))
    for name, value in after.state.global_model_weights.items():
      # Both kinds have matrices that are multiplied by 0 in the first step, and
      # are trained in the second.
      self.assertFalse(np.array_equal(value, before[name]), name)
      self.assertTrue(np.all(np.isfinite(value)), name)

  def test_xla_is_refused(self):
    model = _model(folder := self.write())
    with self.assertRaisesRegex(ValueError, '^JIT must be False: .*[^\n]*$'):
      _process(model, folder, jit_compile=True)

  def test_graphs_do_not_contain_frozen_tensors(self):
    folder = self.write()
    model = _model(folder)
    pipeline = _pipeline(model, folder)
    graph = tf.function(
        lambda weights, batch: model.logits(
            weights, batch['features'], batch['feature_lengths']
        ),
        input_signature=[
            weights_lib.tensor_specs(model.specs), pipeline.batch_spec
        ],
        autograph=False,
    ).get_concrete_function()
    sizes = [
        tf.make_ndarray(node.attr['value'].tensor).size
        for node in graph.graph.as_graph_def().node
        if node.op == 'Const'
    ]
    self.assertLess(max(sizes), 100)


class ExportTest(_TestCase):

  @parameterized.parameters('whisper', 'wav2vec2_base')
  def test_exports_hold_the_frozen_tensors(self, family):
    folder = self.write(family)
    model = _model(folder)
    pipeline = _pipeline(model, folder)
    weights = model.initialize(tf.constant([1, 2]))
    recognizer = recognizer_lib.Recognizer(
        model=model, pipeline=pipeline, weights=weights
    )
    utterances = [
        export.Utterance(str(n), '', example['waveform'])
        for n, example in enumerate(fakes.examples('ann', 3))
    ]
    expected = [
        each.text
        for each in recognizer((u.name, u.waveform) for u in utterances)
    ]
    self.assertNotEmpty(''.join(expected))
    exported = export.ExportedRecognizer(
        model=model,
        weights=weights,
        tokens=pipeline.tokenizer.tokens,
        front_end=pipeline.front_end,
    )
    saved, lite = self.path('saved_model'), self.path('model.tflite')
    tf.saved_model.save(
        exported, saved, signatures={'serving_default': exported.transcribe}
    )
    with open(lite, 'wb') as f:
      f.write(export._convert(exported))  # pylint: disable=protected-access
    for tensor in model.encoder.frozen.values():
      os.remove(tensor.path)
    self.assertEqual(export.saved_model_texts(saved, utterances), expected)
    found = [
        pipeline.tokenizer.decode(ids).strip()
        for ids in export.tflite_tokens(lite, utterances)
    ]
    # Weights are float16 there, and random ones are near ties.
    self.assertLen(found, 3)


if __name__ == '__main__':
  absltest.main()

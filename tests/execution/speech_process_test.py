"""The whole federated process in both contexts, on one to four devices."""

import functools
import itertools
import tempfile

from absl.testing import absltest
from absl.testing import parameterized
import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tests.execution import logical_devices
from tests.execution import speech_process
from tff_asr.execution import multi_device
from tff_asr.execution import native

_NUM_ROUNDS = 3
_NOISE_MULTIPLIER = 0.5


@functools.lru_cache
def _data():
  """The corpus that all tests share."""
  root = tempfile.TemporaryDirectory()
  _data.root = root  # Until the module ends.
  return speech_process.load_data(root.name)


@functools.lru_cache
def _process():
  return speech_process.build(_data())


@functools.lru_cache
def _context(num_devices: int):
  """A context on the first devices: to trace a process takes seconds."""
  return multi_device.build_sync_context(
      devices=logical_devices.CPUS[:num_devices]
  )


def tearDownModule():
  native.stop()
  if _data.cache_info().currsize:
    _data.root.cleanup()


def _run(context, *, noise_multiplier: float, cohorts=None) -> list:
  """The states after each round."""
  if cohorts is None:
    cohorts = speech_process.draw_cohorts(_data(), _NUM_ROUNDS)
  with tff.framework.get_context_stack().install(context):
    state = speech_process.initial_state(
        _process(), noise_multiplier=noise_multiplier
    )
    states = []
    for cohort in cohorts:
      state = _process().next(state, cohort).state
      states.append(state)
  return states


@functools.lru_cache
def _run_devices(num_devices: int, noise_multiplier: float) -> list:
  """`_run` in the context of so many devices, once."""
  return _run(_context(num_devices), noise_multiplier=noise_multiplier)


def _leaves(state) -> list[tuple[str, np.ndarray]]:
  """The parts of a learning process's state that change, by name."""
  aggregator = state.aggregator.query_state.numerator_state
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

  @parameterized.parameters(1, 2, 4)
  def test_state_equals_native(self, num_devices):
    # Native sums in another order and runs graphs as they were written. That
    # moves weights by less than 1e-5 of their tensor's norm. LAMB's moments are
    # of deltas of some 1e-3, which float32 takes from weights of 1 with an
    # error of up to 6e-8: 1e-4 for them.
    ours = _run_devices(num_devices, 0.0)
    for mine, other in zip(ours, _run_native(), strict=True):
      for (name, a), (_, b) in zip(_leaves(mine), _leaves(other), strict=True):
        self.assertEqual(a.dtype, b.dtype, name)
        tolerance = 1e-5 if name.startswith('weights') else 1e-4
        distance = np.linalg.norm(np.float64(a) - np.float64(b))
        self.assertLessEqual(
            distance, tolerance * np.linalg.norm(np.float64(b)), name
        )

  @parameterized.parameters(0.0, _NOISE_MULTIPLIER)
  def test_bits_do_not_depend_on_the_number_of_devices(self, noise_multiplier):
    one = _run_devices(1, noise_multiplier)
    self.assert_same_bits(one, _run_devices(2, noise_multiplier))
    self.assert_same_bits(one, _run_devices(4, noise_multiplier))

  @parameterized.product(
      num_devices=(1, 2, 4), noise_multiplier=(0.0, _NOISE_MULTIPLIER)
  )
  def test_repeats_have_the_same_bits(self, num_devices, noise_multiplier):
    self.assert_same_bits(
        _run_devices(num_devices, noise_multiplier),
        _run(_context(num_devices), noise_multiplier=noise_multiplier),
    )

  @parameterized.parameters(1, 2, 4)
  def test_noise_is_added_once_and_is_that_of_the_key(self, num_devices):
    cohorts = speech_process.draw_cohorts(_data(), 1)
    self.assertGreater(len(cohorts[0]), 1)
    plain = _aggregate(_run_devices(num_devices, 0.0)[0])
    noised = _aggregate(_run_devices(num_devices, _NOISE_MULTIPLIER)[0])
    (alone,) = _run(
        _context(1), noise_multiplier=_NOISE_MULTIPLIER, cohorts=[[]]
    )
    # The noise of a round without clients: the same values, not only their
    # scale. Float32 rounds sums of some 1e-3 by 1e-10.
    np.testing.assert_allclose(noised - plain, _aggregate(alone), atol=1e-8)
    self.assertGreater(np.std(noised - plain), 1e-4)


@functools.lru_cache
def _run_native() -> list:
  return _run(native.build_sync_context(), noise_multiplier=0.0)


if __name__ == '__main__':
  absltest.main()

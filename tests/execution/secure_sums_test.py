"""Tests of tff_asr.execution.secure_sums, in the in-process context."""

import collections
import json
import os
import subprocess
import sys

from absl.testing import parameterized
import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tests.execution import toys
from tff_asr.execution import client_round
from tff_asr.execution import compiler

_CLIENT = collections.OrderedDict(
    a=np.int32, b=tff.TensorType(np.int64, [2])
)
_CLIENTS = tff.FederatedType(_CLIENT, tff.CLIENTS)
_invoke = toys.invoke


@tff.federated_computation(_CLIENTS)
def _by_bits(values):
  # One width for all, and one for each.
  each = collections.OrderedDict(a=3, b=10)
  return (
      tff.federated_secure_sum_bitwidth(values, 10),
      tff.federated_secure_sum_bitwidth(values, each),
  )


@tff.federated_computation(_CLIENTS)
def _by_largest(values):
  return (
      tff.federated_secure_sum(values, 7),
      tff.federated_secure_sum_bitwidth(values['a'], 4),
      tff.federated_sum(values['a']),
  )


@tff.federated_computation(_CLIENTS)
def _modular(values):
  return tff.backends.mapreduce.federated_secure_modular_sum(values, 100)


def _client(a, *b):
  return collections.OrderedDict(a=np.int32(a), b=np.int64(b))


def _train(aggregator, *, is_weighted=True):
  """The weights after two rounds with an aggregator."""
  algorithms = tff.learning.algorithms
  build = algorithms.build_unweighted_fed_avg
  if is_weighted:
    build = algorithms.build_weighted_fed_avg
  process = build(
      toys.build_model,
      client_optimizer_fn=tff.learning.optimizers.build_sgdm(0.1),
      model_aggregator=aggregator,
  )
  clients = [toys.build_dataset(number) for number in range(5)]
  state = _invoke(process.initialize)
  for _ in range(2):
    state = _invoke(process.next, state, clients).state
  weights = state.global_model_weights.trainable
  return np.concatenate([np.ravel(part) for part in weights])


def print_ddp() -> None:
  """Prints weights with distributed noise, and those without clips."""
  noisy = tff.learning.ddp_secure_aggregator(
      noise_multiplier=1e-3, expected_clients_per_round=5, bits=20,
      rotation_type='hd',
  )
  plain = tff.learning.robust_aggregator(
      zeroing=False, clipping=False, weighted=False
  )
  print(json.dumps([
      _train(each, is_weighted=False).tolist() for each in (noisy, plain)
  ]))


class SecureSumsTest(parameterized.TestCase):

  def check(self, found, a, *b):
    self.assertEqual(found['a'], a)
    self.assertEqual(found['b'].numpy().tolist(), list(b))

  def test_sums_are_exact_and_others_stay(self):
    clients = [_client(7, 1000, 2), _client(6, 1, 3)]
    for found in _invoke(_by_bits, clients):
      self.check(found, 13, 1001, 5)
    structs, bits, plain = _invoke(
        _by_largest, [_client(7, 1, 2), _client(6, 1, 3)]
    )
    self.check(structs, 13, 2, 5)
    self.assertEqual((bits, plain), (13, 13))
    # Beyond int32 on the way: 2 * (2**31 - 1) = 4294967294.
    self.check(
        _invoke(_modular, [_client(2**31 - 1, 99, -1)] * 2), 94, 98, 98
    )

  def test_all_are_sums_of_integers_in_any_order(self):
    for comp in (_by_bits, _by_largest, _modular):
      programs = compiler.compile_computation(comp).clients
      self.assertTrue(all(programs.is_exact))

  @parameterized.named_parameters(
      ('bits', _by_bits, 8, 0, 0),  # 3 bits.
      ('vector', _by_bits, 0, 0, 1024),
      ('largest', _by_largest, 8, 0, 0),
      ('negative', _by_largest, 0, 0, -1),
  )
  def test_a_client_out_of_range_fails(self, comp, *values):
    with self.assertRaisesRegex(
        client_round.ClientError, 'Client 1 of 2 .*not from 0 to'
    ):
      _invoke(comp, [_client(1, 1, 1), _client(*values)])

  def test_a_sum_that_does_not_fit_fails(self):
    comp = tff.federated_computation(
        lambda values: tff.federated_secure_sum_bitwidth(values, 31),
        tff.FederatedType(np.int32, tff.CLIENTS),
    )
    largest = 2**31 - 1
    self.assertEqual(_invoke(comp, [largest, 0]), largest)
    with self.assertRaisesRegex(tf.errors.OpError, 'does not fit'):
      _invoke(comp, [largest, 1])

  def test_a_sum_of_which_one_element_does_not_fit_fails(self):
    comp = tff.federated_computation(
        lambda values: tff.federated_secure_sum_bitwidth(values, 31),
        tff.FederatedType(tff.TensorType(np.int32, [2]), tff.CLIENTS),
    )
    largest = 2**31 - 1
    clients = [np.array([1, largest], np.int32), np.array([1, 0], np.int32)]
    self.assertEqual(_invoke(comp, clients).numpy().tolist(), [2, largest])
    with self.assertRaisesRegex(tf.errors.OpError, 'does not fit'):
      _invoke(comp, [clients[0], np.array([1, 1], np.int32)])

  def test_secure_aggregator_is_a_mean_within_its_quantisation(self):
    update_type = tff.types.to_type(
        collections.OrderedDict(w=(np.float32, [30, 2]), b=(np.float32, [3]))
    )
    rng = np.random.default_rng(1)
    updates = [
        collections.OrderedDict(
            w=rng.normal(size=[30, 2]).astype(np.float32),
            b=rng.normal(size=[3]).astype(np.float32),
        )
        for _ in range(5)
    ]
    weights = [np.float32(weight) for weight in (8, 1, 3, 8, 2)]
    expected = np.average(
        [np.concatenate([np.ravel(each[name]) for name in 'wb'])
         for each in updates],
        axis=0,
        weights=weights,
    )
    found = []
    for build in (
        tff.learning.robust_aggregator, tff.learning.secure_aggregator
    ):
      process = build(clipping=False, zeroing=False).create(
          update_type, tff.TensorType(np.float32)
      )
      state = _invoke(process.initialize)
      for _ in range(2):
        output = _invoke(process.next, state, updates, weights)
        state = output.state
        found.append(np.concatenate(
            [np.ravel(output.result[name]) for name in 'wb']
        ))
        np.testing.assert_allclose(found[-1], expected, rtol=0, atol=1e-4)
    self.assertGreater(np.linalg.norm(expected), 0.1)
    self.assertTrue(np.any(found[1] != found[3]))  # It was quantised.

  @pytest.mark.slow
  def test_training_with_the_secure_aggregator_is_that_without(self):
    plain, secure = (
        _train(build(clipping=False, zeroing=False))
        for build in (
            tff.learning.robust_aggregator, tff.learning.secure_aggregator
        )
    )
    self.assertGreater(np.linalg.norm(plain), 0.1)
    np.testing.assert_allclose(plain, secure, rtol=0, atol=1e-4)
    self.assertTrue(np.any(plain != secure))  # It was quantised.

  @pytest.mark.slow
  def test_ddp_secure_aggregator_runs_with_protobuf_in_python(self):
    # With protobuf's C parser TFF's building blocks do not parse: its own
    # process has Python's.
    found = subprocess.run(
        [
            sys.executable,
            '-c',
            'from tests.execution import secure_sums_test;'
            ' secure_sums_test.print_ddp()',
        ],
        env={**os.environ, 'PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION': 'python'},
        capture_output=True,
        text=True,
        check=False,
    )
    self.assertEqual(found.returncode, 0, found.stderr[-2000:])
    noisy, plain = json.loads(found.stdout.splitlines()[-1])
    # Its clips are .1 in the first round: two steps of about that, along the
    # mean without clips.
    norm = np.linalg.norm(noisy)
    self.assertBetween(norm, 0.1, 0.25)
    cosine = np.dot(noisy, plain) / (norm * np.linalg.norm(plain))
    self.assertGreater(cosine, 0.95)

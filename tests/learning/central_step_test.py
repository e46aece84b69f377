"""Tests of tff_asr.learning.central_step, on one device and on several."""

import collections
import functools

from absl.testing import parameterized
import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tests import fakes
from tests import graphs
from tests import logical_devices
from tests.learning import tiny
from tff_asr.learning import central_step
from tff_asr.learning import client_update
from tff_asr.optimizers import lars


@logical_devices.absent
class OwnProcessTest(logical_devices.OwnProcessTestCase):
  MODULE = 'tests.learning.central_step_test'


_MODEL = tiny.recognizer()


@functools.lru_cache
def _batch():
  """A batch of 5 utterances."""
  return next(
      iter(
          fakes.tiny_pipeline(_MODEL, max_batch_sec=15.0).training_batches(
              fakes.client_data().create_tf_dataset_for_client('bob'),
              seed=tf.constant([1, 2]),
              num_epochs=1,
          )
      )
  )


def _batches_of(*counts):
  """Batches of these numbers of utterances, from 6 in turn."""
  rows = {
      name: tf.concat([value, value[:1]], axis=0)
      for name, value in _batch().items()
      if name != 'seed'
  }
  batches, start = [], 0
  for count in counts:
    batch = {name: value[start : start + count] for name, value in rows.items()}
    batches.append(
        collections.OrderedDict(sorted(batch.items()), seed=_batch()['seed'])
    )
    start += count
  return batches


@functools.lru_cache
def _step(devices, dropout):
  """A step for tests of its gradients."""
  return central_step.CentralStep(
      model=tiny.recognizer(dropout=dropout),
      optimizer=tff.learning.optimizers.build_sgdm(0.1),
      devices=devices,
  )


def _gradients(devices=None, *, batches=None, max_grad_norm=1e9, dropout=0.0):
  """Clipped gradients of a step, and its loss sum."""
  step = _step(devices if devices is None else tuple(devices), dropout)
  weights = step._model.initialize(tf.constant([1, 2]))
  parts = step._parts([_batch()] if batches is None else batches)
  gradients, loss_sum = step._gradients(frozenset())(weights, parts)
  return client_update.clip_by_global_norm(
      gradients, max_norm=max_grad_norm
  ), loss_sum


@logical_devices.needed
class DevicesTest(parameterized.TestCase):

  def assert_near(self, found, expected):
    norm = float(tf.linalg.global_norm(list(expected.values())))
    for name, value in expected.items():
      np.testing.assert_allclose(
          found[name], value, atol=1e-5 * norm, err_msg=name
      )

  # 5 utterances: 3 and 2, 2 and 2 and 1, 2 and 2 and 1 and none.
  @parameterized.parameters(1, 2, 3, 4)
  def test_the_gradient_is_that_of_one_device(self, num_devices):
    self.assertLen(_batch()['example_weights'], 5)
    devices = logical_devices.CPUS[:num_devices]
    expected, expected_sum = _gradients()
    found, loss_sum = _gradients(devices)
    np.testing.assert_allclose(loss_sum, expected_sum, rtol=1e-5)
    self.assert_near(found, expected)
    # Clipped as a whole, not by part.
    norm = float(tf.linalg.global_norm(list(expected.values())))
    clipped, _ = _gradients(devices, max_grad_norm=norm / 4)
    self.assert_near(
        clipped, {name: value / 4 for name, value in expected.items()}
    )

  # On one device, on a device each, and one device with two of them.
  @parameterized.parameters(
      (None,), (('CPU:0', 'CPU:1', 'CPU:2'),), (('CPU:0', 'CPU:1'),)
  )
  def test_the_gradient_of_several_batches_is_the_mean_of_their_means(
      self, devices
  ):
    batches = _batches_of(1, 3, 2)
    means = [
        {name: value.numpy() for name, value in gradients.items()}
        for gradients, _ in (_gradients(batches=[each]) for each in batches)
    ]
    expected = {
        name: np.mean([each[name] for each in means], axis=0)
        for name in means[0]
    }
    pooled, total = _gradients(batches=_batches_of(6))
    self.assertLen(means, 3)
    found, loss_sum = _gradients(devices, batches=batches)
    np.testing.assert_allclose(loss_sum, total, rtol=1e-5)
    self.assert_near(found, expected)
    # Utterances do not weigh alike.
    with self.assertRaises(AssertionError):
      self.assert_near(found, pooled)

  def test_a_batch_of_placeholders_counts_in_the_mean(self):
    one, two = _batches_of(1, 3)
    two = collections.OrderedDict(two, example_weights=tf.zeros([3]))
    expected, _ = _gradients(batches=[one])
    found, _ = _gradients(batches=[one, two])
    self.assert_near(
        found, {name: value / 2 for name, value in expected.items()}
    )

  def test_placeholders_count_nowhere(self):
    batch = collections.OrderedDict(_batch())
    batch['example_weights'] = tf.constant([1.0, 0.0, 0.0, 0.0, 1.0])
    expected, expected_sum = _gradients(batches=[batch])
    found, loss_sum = _gradients(logical_devices.CPUS, batches=[batch])
    np.testing.assert_allclose(loss_sum, expected_sum, rtol=1e-5)
    self.assert_near(found, expected)

  def test_the_same_parts_give_the_same_bits_on_any_devices(self):
    run = lambda *devices: _gradients(devices, dropout=0.3)[0]
    first = run('CPU:0', 'CPU:1', 'CPU:2')
    for devices in (('CPU:0', 'CPU:1', 'CPU:2'), ('CPU:3', 'CPU:2', 'CPU:0')):
      for name, value in run(*devices).items():
        np.testing.assert_array_equal(value, first[name], err_msg=name)

  def test_parts_have_independent_dropout(self):
    # Two utterances alike, a part each, would else have the same draws.
    batch = collections.OrderedDict(
        (name, value if name == 'seed' else tf.repeat(value[:1], 2, axis=0))
        for name, value in _batch().items()
    )
    two = central_step._divide(batch, num_parts=2)
    np.testing.assert_array_equal(two[0]['features'], two[1]['features'])
    self.assertFalse(np.array_equal(two[0]['seed'], two[1]['seed']))

  def test_two_devices_step_as_one(self):
    process, alone = (
        central_step.CentralStep(
            model=_MODEL, optimizer=lars.build_lars(0.5), devices=devices
        )
        for devices in (logical_devices.CPUS[:2], None)
    )
    start = state = expected = process.initialize()
    for _ in range(2):
      state, metrics = process.next(state, [_batch()])
      self.assertEqual(float(metrics['num_utterances']), 5)
      expected, _ = alone.next(expected, [_batch()])
    for name, value in expected.global_model_weights.items():
      np.testing.assert_allclose(
          state.global_model_weights[name], value, atol=1e-5, err_msg=name
      )
      moved = np.abs(value - start.global_model_weights[name]).max()
      self.assertGreater(moved, 1e-4, name)

  @parameterized.parameters(
      ([], 'at least one device name'),
      ('CPU:0', 'at least one device name'),
      (['CPU:0', 'GPU:9'], "'GPU:9', which is not on this machine"),
      (['first'], "names such as 'CPU:1', found 'first'"),
  )
  def test_bad_devices_are_named(self, devices, message):
    with self.assertRaisesRegex(ValueError, message):
      central_step.CentralStep(
          model=_MODEL,
          optimizer=tff.learning.optimizers.build_sgdm(0.1),
          devices=devices,
      )


class CentralStepTest(parameterized.TestCase):

  def test_is_the_optimizers_step_along_the_clipped_gradient(self):
    model = tiny.recognizer(dropout=0.1)
    batches = list(
        fakes.tiny_pipeline(model, max_batch_sec=3.0).training_batches(
            fakes.client_data().create_tf_dataset_for_client('bob'),
            seed=tf.constant([1, 2]),
            num_epochs=1,
        )
    )
    self.assertGreater(len(batches), 1)
    process = central_step.CentralStep(
        model=model,
        optimizer=tff.learning.optimizers.build_sgdm(0.1, momentum=0.5),
        seed=2**31 + 7,
        max_grad_norm=3.0,
    )
    state = process.initialize()
    weights = model.initialize(tf.constant([7, 1]))
    momentum = {name: np.zeros(value.shape) for name, value in weights.items()}
    for number, batch in enumerate(batches):
      gradients, expected_sum = client_update.loss_gradients(
          model, weights, batch, num_utterances=tf.constant(
              float(len(batch['example_weights']))
          ),
      )
      gradients = client_update.clip_by_global_norm(gradients, max_norm=3.0)
      for name, gradient in gradients.items():
        momentum[name] = 0.5 * momentum[name] + gradient.numpy()
        weights[name] = weights[name] - 0.1 * momentum[name]
      state, metrics = process.next(state, [batch])
      self.assertEqual(state.distributor.round_num, number + 1)
      np.testing.assert_allclose(metrics['loss_sum'], expected_sum, rtol=1e-5)
      self.assertEqual(
          metrics['num_utterances'], len(batch['example_weights'])
      )
      for name, value in state.global_model_weights.items():
        np.testing.assert_allclose(value, weights[name], atol=1e-5)

  def test_a_batch_of_placeholders_changes_no_weight(self):
    placeholders = collections.OrderedDict(
        _batch(), example_weights=tf.zeros([5])
    )
    process = central_step.CentralStep(
        model=_MODEL,
        optimizer=tff.learning.optimizers.build_sgdm(0.1),
    )
    state = process.initialize()
    output = process.next(state, [placeholders])
    metrics = dict(output.metrics)
    norms = metrics.pop('gradient_norms')
    self.assertEqual(set(norms.values()), {0})
    self.assertEqual([float(x) for x in metrics.values()], [0, 0])
    tf.nest.map_structure(
        np.testing.assert_array_equal,
        output.state.global_model_weights,
        state.global_model_weights,
    )

  def test_the_encoder_starts_late_and_with_smaller_steps(self):
    build = lambda **options: central_step.CentralStep(
        model=_MODEL,
        optimizer=tff.learning.optimizers.build_sgdm(0.1),
        max_grad_norm=1e9,
        **options,
    )
    plain, late = build(), build(encoder_rate=0.5, encoder_frozen_steps=2)
    state = late.initialize()
    for step in range(3):
      begin = state.global_model_weights
      full = plain.next(
          plain.initialize()._replace(global_model_weights=begin), [_batch()]
      ).state.global_model_weights
      # As if resumed: nothing but the state says how far training is.
      late = build(encoder_rate=0.5, encoder_frozen_steps=2)
      state = late.next(state, [_batch()]).state
      for name, value in state.global_model_weights.items():
        share = (0, 0, 0.5)[step] if name in _MODEL.encoder.specs else 1
        np.testing.assert_allclose(
            value - begin[name],
            share * (full[name] - begin[name]),
            atol=1e-6,
            err_msg=name,
        )

  @parameterized.parameters(
      ('encoder_frozen_steps', -1), ('encoder_rate', 0), ('max_grad_norm', 0)
  )
  def test_bad_arguments_are_named(self, name, value):
    with self.assertRaisesRegex(ValueError, name.removeprefix('encoder_')):
      central_step.CentralStep(
          model=_MODEL,
          optimizer=tff.learning.optimizers.build_sgdm(0.1),
          **{name: value},
      )

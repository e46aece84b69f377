"""Tests of tff_asr.learning.data_parallel and of steps that use it."""

import collections
import functools

from absl.testing import absltest
from absl.testing import parameterized
import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tests import fakes
from tests import logical_devices
from tff_asr.learning import central_step
from tff_asr.learning import client_update
from tff_asr.learning import data_parallel
from tff_asr.optimizers import lars


@logical_devices.absent
class OwnProcessTest(logical_devices.OwnProcessTestCase):
  MODULE = 'tests.learning.data_parallel_test'


@functools.lru_cache
def _batch():
  """A batch of 5 utterances."""
  model = fakes.tiny_model(num_blocks=1)
  return next(
      iter(
          fakes.tiny_pipeline(model, max_batch_sec=15.0).training_batches(
              fakes.client_data().create_tf_dataset_for_client('bob'),
              seed=tf.constant([1, 2]),
              num_epochs=1,
          )
      )
  )


def _gradients(devices=None, *, batch=None, max_grad_norm=1e9, dropout=0.0):
  model = fakes.tiny_model(num_blocks=1, dropout=dropout)
  if not dropout:
    # Nor shifts of positions, which the parts draw apart.
    model = _without_draws(model)
  weights = model.initialize(tf.constant([1, 2]))
  batch = _batch() if batch is None else batch
  if devices is None:
    return client_update.clipped_gradients(
        model, weights, batch, max_grad_norm=max_grad_norm
    )
  run = tf.function(
      lambda: data_parallel.clipped_gradients(
          model,
          weights,
          batch,
          max_grad_norm=max_grad_norm,
          devices=data_parallel.find(devices),
      )
  )
  return run()


def _without_draws(model):
  """The model, which evaluates in training, too."""
  apply = model.encoder.apply
  encoder = type(model.encoder)(
      model.encoder.specs,
      lambda weights, features, lengths, seed: apply(
          weights, features, lengths, None
      ),
      model.encoder.output_lengths,
      model.encoder.output_dim,
  )
  return type(model)(
      encoder, model.vocab_size, model.loss_kernel, model.specs
  )


@logical_devices.needed
class DataParallelTest(parameterized.TestCase):

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

  def test_stubs_count_nowhere(self):
    batch = collections.OrderedDict(_batch())
    batch['example_weights'] = tf.constant([1.0, 0.0, 0.0, 0.0, 1.0])
    expected, expected_sum = _gradients(batch=batch)
    found, loss_sum = _gradients(logical_devices.CPUS, batch=batch)
    np.testing.assert_allclose(loss_sum, expected_sum, rtol=1e-5)
    self.assert_near(found, expected)
    batch['example_weights'] = tf.zeros([5])
    found, loss_sum = _gradients(logical_devices.CPUS, batch=batch)
    self.assertEqual(float(loss_sum), 0)
    for gradient in found.values():
      np.testing.assert_array_equal(gradient, np.zeros(gradient.shape))

  def test_the_same_parts_give_the_same_bits_on_any_devices(self):
    run = lambda *devices: _gradients(devices, dropout=0.3)[0]
    first = run('CPU:0', 'CPU:1', 'CPU:2')
    for devices in (('CPU:0', 'CPU:1', 'CPU:2'), ('CPU:3',) * 3):
      for name, value in run(*devices).items():
        np.testing.assert_array_equal(value, first[name], err_msg=name)

  def test_parts_draw_apart(self):
    # Two utterances alike, a part each, would else have the same draws.
    batch = collections.OrderedDict(
        (name, value if name == 'seed' else tf.repeat(value[:1], 2, axis=0))
        for name, value in _batch().items()
    )
    two = data_parallel._parts(batch, 2)
    np.testing.assert_array_equal(two[0]['features'], two[1]['features'])
    self.assertFalse(np.array_equal(two[0]['seed'], two[1]['seed']))

  def test_work_is_placed_on_every_device(self):
    model = _without_draws(fakes.tiny_model(num_blocks=1))
    weights = model.initialize(tf.constant([1, 2]))
    devices = data_parallel.find(logical_devices.CPUS)
    graph = tf.function(
        lambda: data_parallel.clipped_gradients(
            model, weights, _batch(), max_grad_norm=1.0, devices=devices
        )
    ).get_concrete_function().graph
    products = [
        op.device for op in graph.get_operations() if op.type == 'Conv2D'
    ]
    self.assertCountEqual(products, devices)

  def test_steps_of_an_optimizer_are_those_of_one_device(self):
    model = _without_draws(fakes.tiny_model(num_blocks=1))
    ends = []
    for devices in (None, logical_devices.CPUS[:2]):
      weights = model.initialize(tf.constant([1, 2]))
      optimizer = lars.build_lars(0.5)
      step = central_step.build(
          model=model, optimizer=optimizer, devices=devices
      )
      state = tf.nest.map_structure(
          tf.convert_to_tensor,
          optimizer.initialize(
              tf.nest.map_structure(tf.TensorSpec.from_tensor, weights)
          ),
      )
      for _ in range(5):
        state, weights, _, num_utterances = step(state, weights, _batch())
        self.assertEqual(float(num_utterances), 5)
      ends.append(weights)
    start = model.initialize(tf.constant([1, 2]))
    for name, value in ends[0].items():
      np.testing.assert_allclose(value, ends[1][name], atol=1e-5, err_msg=name)
      self.assertGreater(np.abs(value - start[name]).max(), 1e-4, name)

  @parameterized.parameters(
      ([], 'at least one device name'),
      ('CPU:0', 'at least one device name'),
      (['CPU:0', 'GPU:9'], "'GPU:9', which this machine has not"),
      (['first'], "names such as 'CPU:1', found 'first'"),
  )
  def test_bad_devices_are_named(self, devices, message):
    with self.assertRaisesRegex(ValueError, message):
      central_step.build(
          model=fakes.tiny_model(num_blocks=1),
          optimizer=tff.learning.optimizers.build_sgdm(0.1),
          devices=devices,
      )


if __name__ == '__main__':
  absltest.main()

"""Tests of tff_asr.learning.client_update."""

import collections
import functools

from absl.testing import absltest
from absl.testing import parameterized
import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tests import fakes
from tests import reference
from tff_asr.execution import multi_device
from tff_asr.features import log_mel
from tff_asr.learning import client_update
from tff_asr.optimizers import lamb
from tff_asr.optimizers import lars

_SEED = (3, 4)


def _client_work(model, **limits):
  """Client work over the fake clients' examples."""
  data = fakes.client_data()
  weights_type = collections.OrderedDict(
      (name, tff.TensorType(np.float32, spec.shape))
      for name, spec in sorted(model.specs.items())
  )
  return client_update.build(
      model=model,
      pipeline=fakes.tiny_pipeline(model),
      broadcast_type=tff.to_type(
          collections.OrderedDict(
              seed=tff.TensorType(np.int32, [2]), weights=weights_type
          )
      ),
      examples_type=data.dataset_computation.type_signature.result,
      local=client_update.LocalTraining(
          **dict(learning_rate=0.01, max_grad_norm=5.0) | limits
      ),
  )


@functools.lru_cache
def _batches():
  """A model, its weights, and one batch of three utterances."""
  model = fakes.tiny_model(num_blocks=1)
  batch = next(
      iter(
          fakes.tiny_pipeline(model).training_batches(
              fakes.client_data().create_tf_dataset_for_client('ann'),
              seed=tf.constant(_SEED),
              num_epochs=1,
          )
      )
  )
  return model, model.initialize(tf.constant([1, 2])), batch


def _num_frames(client_id: str) -> int:
  """Feature frames of all utterances of a fake client."""
  count = {'ann': 3, 'cai': 1}[client_id]
  return sum(
      log_mel.num_frames(len(example['waveform']))
      for example in fakes.examples(client_id, count)
  )


def _global_norm(gradients) -> float:
  return float(tf.linalg.global_norm(list(gradients.values())))


class ClippedGradientsTest(parameterized.TestCase):

  def gradients(self, batch, max_grad_norm):
    model, weights, _ = _batches()
    # Nothing random: draws depend on a batch's shape.
    batch = collections.OrderedDict(batch, seed=None)
    return client_update.clipped_gradients(
        model, weights, batch, max_grad_norm=max_grad_norm
    )

  def test_clips_by_global_norm_and_leaves_what_is_below(self):
    _, _, batch = _batches()
    whole, loss_sum = self.gradients(batch, 1e9)
    norm = _global_norm(whole)
    clipped, same_loss_sum = self.gradients(batch, norm / 4)
    self.assertEqual(float(loss_sum), float(same_loss_sum))
    np.testing.assert_allclose(_global_norm(clipped), norm / 4, rtol=1e-6)
    below, _ = self.gradients(batch, norm * 1.01)
    for name, gradient in whole.items():
      np.testing.assert_array_equal(below[name], gradient)
      # One factor for all layers.
      np.testing.assert_allclose(
          clipped[name], gradient / 4, rtol=1e-4, atol=1e-6
      )

  def test_the_proximal_term_by_hand_within_the_clip(self):
    model, weights, batch = _batches()
    batch = collections.OrderedDict(batch, seed=None)
    anchor = collections.OrderedDict(
        (name, value - 0.5) for name, value in weights.items()
    )
    plain, loss_sum = self.gradients(batch, 1e9)

    def proximal(max_grad_norm):
      return client_update.clipped_gradients(
          model, weights, batch, max_grad_norm=max_grad_norm,
          proximal_weight=40.0, anchor=anchor,
      )

    # mu (w - w0) = 40 * .5 = 20 on each weight; the loss is the batch's alone.
    whole, same_loss_sum = proximal(1e9)
    self.assertEqual(float(loss_sum), float(same_loss_sum))
    for name, gradient in plain.items():
      np.testing.assert_allclose(whole[name], gradient + 20, rtol=1e-4)
    # Clipped as a whole: the direction is the sum's.
    clipped, _ = proximal(1.0)
    np.testing.assert_allclose(_global_norm(clipped), 1, rtol=1e-5)
    norm = _global_norm(whole)
    for name, gradient in whole.items():
      np.testing.assert_allclose(clipped[name] * norm, gradient, rtol=1e-4)

  def test_stubs_change_nothing(self):
    _, _, batch = _batches()
    whole, loss_sum = self.gradients(batch, 1e9)
    with_stub = collections.OrderedDict(batch)
    with_stub['features'] = tf.pad(
        batch['features'], [[0, 1], [0, 0], [0, 0]]
    )
    with_stub['labels'] = tf.pad(batch['labels'], [[0, 1], [0, 0]])
    with_stub['feature_lengths'] = tf.concat(
        [batch['feature_lengths'], [8]], axis=0
    )
    for key in ('label_lengths', 'example_weights'):
      with_stub[key] = tf.pad(batch[key], [[0, 1]])
    other, other_loss_sum = self.gradients(with_stub, 1e9)
    # The same to the rounding of another order of summation.
    np.testing.assert_allclose(loss_sum, other_loss_sum, rtol=1e-6)
    for name, gradient in whole.items():
      np.testing.assert_allclose(
          other[name], gradient, atol=3e-6 * _global_norm(whole)
      )

  def test_a_batch_of_stubs_has_gradients_of_zero(self):
    _, _, batch = _batches()
    stubs = collections.OrderedDict(
        batch, example_weights=tf.zeros_like(batch['example_weights'])
    )
    gradients, loss_sum = self.gradients(stubs, 1.0)
    self.assertEqual(float(loss_sum), 0.0)
    for gradient in gradients.values():
      np.testing.assert_array_equal(gradient, np.zeros(gradient.shape))

  def test_the_loss_is_a_mean_over_utterances(self):
    _, _, batch = _batches()
    whole, _ = self.gradients(batch, 1e9)
    twice = collections.OrderedDict(
        (key, tf.concat([value, value], axis=0)) for key, value in batch.items()
    )
    other, _ = self.gradients(twice, 1e9)
    for name, gradient in whole.items():
      np.testing.assert_allclose(
          other[name], gradient, atol=3e-6 * _global_norm(whole)
      )

  def test_step_goes_down_the_gradient(self):
    model, weights, batch = _batches()
    gradients, _ = self.gradients(batch, 5.0)
    _, stepped, _ = client_update.step(
        model,
        tff.learning.optimizers.build_sgdm(0.3),
        collections.OrderedDict(learning_rate=0.3),
        weights,
        collections.OrderedDict(batch, seed=None),
        max_grad_norm=5.0,
    )
    for name, gradient in gradients.items():
      np.testing.assert_array_equal(
          stepped[name], weights[name] - 0.3 * gradient
      )


_NUM_STEPS = 7


@functools.lru_cache
def _round(**limits):
  """A computation: the sum of the clients' deltas, and the measurements."""
  model, _, _ = _batches()
  work = _client_work(model, **limits)
  result_type = work.next.type_signature.result.result.member

  @tff.tensorflow.computation(result_type)
  def update(result):
    return result.update

  @tff.federated_computation(
      work.next.type_signature.parameter[1],
      work.next.type_signature.parameter[2],
  )
  def run(broadcasts, examples):
    output = work.next(work.initialize(), broadcasts, examples)
    updates = tff.federated_map(update, output.result)
    return tff.federated_sum(updates), output.measurements

  return run


class ClientWorkTest(absltest.TestCase):
  """Through TFF; `fed_avg_test` compares with NumPy."""

  def run_clients(self, weights, clients, **limits):
    """Summed deltas, {measurement: value}."""
    limits = limits or dict(num_steps=_NUM_STEPS)
    broadcast = collections.OrderedDict(
        seed=np.array(_SEED, np.int32), weights=weights
    )
    data = fakes.client_data()
    context = multi_device.build_sync_context()
    with tff.framework.get_context_stack().install(context):
      total, measurements = _round(**limits)(
          [broadcast] * len(clients),
          [data.serializable_dataset_fn(client_id) for client_id in clients],
      )
    return total, {name: float(value) for name, value in measurements.items()}

  def test_steps_pass_over_the_data_again_and_counts_add_up(self):
    _, weights, _ = _batches()
    # cai has one utterance, so one batch; ann has three, all in one batch.
    # 'nobody' has none.
    _, counts = self.run_clients(weights, ['cai', 'nobody', 'ann'])
    self.assertEqual(counts['num_clients'], 3)
    self.assertEqual(counts['num_trained'], 2)
    self.assertEqual(counts['num_steps'], 7 + 0 + 7)
    self.assertEqual(counts['num_utterances'], 7 * 1 + 7 * 3)
    self.assertEqual(counts['num_left_out'], 0)
    self.assertEqual(counts['num_non_finite'], 0)
    self.assertAlmostEqual(
        counts['audio_sec'],
        0.01 * 7 * (_num_frames('cai') + _num_frames('ann')),
        places=3,
    )

  def test_a_client_may_stop_where_its_data_end(self):
    _, weights, _ = _batches()
    # ann has one batch, bob three: of two steps at most, ann takes one.
    _, counts = self.run_clients(
        weights, ['ann', 'bob'], num_steps=2, num_epochs=1
    )
    self.assertEqual(counts['num_steps'], 1 + 2)

  def test_steps_may_end_within_a_pass(self):
    model, weights, _ = _batches()
    a_pass = fakes.tiny_pipeline(model).training_batches(
        fakes.client_data().create_tf_dataset_for_client('bob'),
        seed=tf.constant(_SEED),
        num_epochs=1,
    )
    self.assertNotEqual(_NUM_STEPS % len(list(a_pass)), 0)
    _, counts = self.run_clients(weights, ['bob'])
    self.assertEqual(counts['num_steps'], _NUM_STEPS)

  def test_an_empty_client_returns_zero(self):
    _, weights, _ = _batches()
    deltas, counts = self.run_clients(weights, ['nobody'])
    self.assertEqual(counts['num_steps'], 0)
    self.assertEqual(counts['delta_norm_sum'], 0)
    for delta in deltas.values():
      np.testing.assert_array_equal(delta, np.zeros(delta.shape))

  def test_a_client_that_is_not_finite_is_counted_and_nothing_else(self):
    _, weights, _ = _batches()
    broken = collections.OrderedDict(weights)
    broken['head/bias'] = tf.fill(weights['head/bias'].shape, np.nan)
    _, counts = self.run_clients(broken, ['cai'])
    self.assertEqual(
        counts,
        dict(
            # Seven steps on its one utterance, in whole frames.
            audio_sec=np.float32(7 * _num_frames('cai')) * np.float32(0.01),
            delta_norm_sum=0,
            first_loss_sum=0,
            last_loss_sum=0,
            loss_sum=0,
            num_clients=1,
            num_left_out=0,
            num_non_finite=1,
            num_steps=7,
            num_trained=0,
            num_utterances=0,
        ),
    )

  def test_delta_is_old_minus_new(self):
    model, weights, _ = _batches()
    delta, counts = self.run_clients(weights, ['cai'])
    batches = fakes.tiny_pipeline(model).training_batches(
        fakes.client_data().create_tf_dataset_for_client('cai'),
        seed=tf.constant(_SEED),
    )
    local, loss_sum = weights, 0.0
    sgd = tff.learning.optimizers.build_sgdm(0.01)
    state = collections.OrderedDict(learning_rate=0.01)
    for batch in batches.take(_NUM_STEPS):
      state, local, loss = client_update.step(
          model, sgd, state, local, batch, max_grad_norm=5.0
      )
      loss_sum += loss
    np.testing.assert_allclose(counts['loss_sum'], loss_sum, rtol=1e-4)
    norm = _global_norm(delta)
    self.assertGreater(norm, 0.1)  # At most 7 * .01 * 5.
    np.testing.assert_allclose(counts['delta_norm_sum'], norm, rtol=1e-5)
    for name, value in delta.items():
      np.testing.assert_allclose(
          value, weights[name] - local[name], atol=1e-5, err_msg=name
      )

  def test_deltas_are_weighed_by_what_a_client_trained_on(self):
    _, weights, _ = _batches()
    parts = {
        client: self.run_clients(weights, [client], num_steps=2)[0]
        for client in ('ann', 'cai')
    }
    # Two steps of ann are 2 x 3 utterances, of cai 2 x 1; 3 weigh 1.
    # A frame is 10 ms; 2 seconds weigh 1.
    for weigh_by, mean_weight, weight_of in (
        ('utterances', 3.0, {'ann': 6 / 3, 'cai': 2 / 3}),
        (
            'seconds',
            2.0,
            {name: 2 * 0.01 * _num_frames(name) / 2 for name in parts},
        ),
    ):
      total, counts = self.run_clients(
          weights, ['ann', 'cai', 'nobody'], num_steps=2,
          weigh_by=weigh_by, mean_weight=mean_weight,
      )
      for name, value in total.items():
        expected = sum(
            weight * parts[client][name] for client, weight in weight_of.items()
        )
        np.testing.assert_allclose(
            value, expected, rtol=1e-5, atol=1e-7, err_msg=name
        )
      norms = [
          weight * _global_norm(parts[client])
          for client, weight in weight_of.items()
      ]
      np.testing.assert_allclose(
          counts['delta_norm_sum'], sum(norms), rtol=1e-5
      )

  def check_steps(self, build, twin):
    # cai, twice: the second one's state is not what the first one left.
    model, weights, _ = _batches()
    batches = fakes.tiny_pipeline(model).training_batches(
        fakes.client_data().create_tf_dataset_for_client('cai'),
        seed=tf.constant(_SEED),
    )
    total, _ = self.run_clients(
        weights, ['cai', 'cai'], num_steps=3, learning_rate=0.02,
        build_optimizer=build,
    )
    twin, local = twin(0.02), [value.numpy() for value in weights.values()]
    for batch in batches.take(3):
      gradients, _ = client_update.clipped_gradients(
          model,
          collections.OrderedDict(
              (name, tf.constant(value, tf.float32))
              for name, value in zip(weights, local)
          ),
          batch,
          max_grad_norm=5.0,
      )
      local = twin.step(local, [g.numpy() for g in gradients.values()])
    for (name, delta), value in zip(total.items(), local):
      np.testing.assert_allclose(
          delta / 2, weights[name] - value, rtol=0.01, atol=2e-5, err_msg=name
      )

  def test_lamb_steps_as_its_twin_and_starts_anew_at_each_client(self):
    self.check_steps(lamb.build_lamb, reference.Lamb)

  @pytest.mark.slow
  def test_lars_steps_as_its_twin_and_starts_anew_at_each_client(self):
    self.check_steps(lars.build_lars, reference.Lars)


if __name__ == '__main__':
  absltest.main()

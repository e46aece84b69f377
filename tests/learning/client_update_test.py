"""Tests of tff_asr.learning.client_update."""

import collections
import functools

from absl.testing import absltest
from absl.testing import parameterized
import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tests import fakes
from tests import reference
from tests.learning import tiny
from tff_asr.data import buckets as buckets_lib
from tff_asr.execution import multi_device
from tff_asr.features import log_mel
from tff_asr.learning import client_update
from tff_asr.models import weights as weights_lib
from tff_asr.optimizers import lamb
from tff_asr.optimizers import gradient_tracing

_SEED = (3, 4)
# Of utterances of 48 to 148 frames, 300 at most.
_BUCKETS = buckets_lib.LengthBuckets([0.6, 1.1, 1.6, 3.0])


def _client_work(model, *, buckets=None, **limits):
  """Client work over the fake clients' examples."""
  data = fakes.client_data()
  weights_type = tff.types.tensorflow_to_type(
      weights_lib.tensor_specs(model.specs)
  )
  return client_update.build(
      model=model,
      pipeline=fakes.tiny_pipeline(model, buckets=buckets),
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
  model = tiny.recognizer()
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


def _clipped_gradients(model, weights, batch, **options):
  """What a step gives its optimizer, and the batch's loss sum."""
  optimizer = gradient_tracing.build_gradient_tracing(
      tff.learning.optimizers.build_sgdm(0.1)
  )
  state = optimizer.initialize(weights_lib.tensor_specs(model.specs))
  state, _, loss_sum = client_update.step(
      model, optimizer, state, weights, batch, **options
  )
  return state['last'], loss_sum


def _global_norm(gradients) -> float:
  return float(tf.linalg.global_norm(list(gradients.values())))


class ClippedGradientsTest(parameterized.TestCase):

  def gradients(self, batch, max_grad_norm, **options):
    model, weights, _ = _batches()
    # Nothing random: draws depend on a batch's shape.
    batch = collections.OrderedDict(batch, seed=None)
    return _clipped_gradients(
        model, weights, batch, max_grad_norm=max_grad_norm, **options
    )

  def test_norms_by_layer_are_of_the_gradient_before_the_clip(self):
    model, weights, batch = _batches()
    batch = collections.OrderedDict(batch, seed=None)
    whole, _ = self.gradients(batch, 1e9)
    for max_grad_norm in (1e9, 0.1):
      optimizer = tff.learning.optimizers.build_sgdm(0.1)
      *_, norms = client_update.step_and_measure(
          model,
          optimizer,
          optimizer.initialize(weights_lib.tensor_specs(model.specs)),
          weights,
          batch,
          max_grad_norm=max_grad_norm,
      )
      np.testing.assert_allclose(
          norms,
          [np.linalg.norm(whole[name]) for name in sorted(whole)],
          rtol=1e-5,
      )

  def test_a_padded_batch_has_the_gradient_of_the_batch(self):
    _, _, batch = _batches()
    for num_left_out in (0, 1):
      weights = tf.constant([1.0] * (3 - num_left_out) + [0.0] * num_left_out)
      batch = collections.OrderedDict(batch, example_weights=weights)
      whole, loss_sum = self.gradients(batch, 1e9)
      padded = _BUCKETS.pad(
          batch, max_batch_frames=2000, output_lengths=lambda frames: frames
      )
      self.assertEqual(padded['features'].shape[:2], (4, 160))
      found, same_loss_sum = self.gradients(padded, 1e9)
      np.testing.assert_allclose(loss_sum, same_loss_sum, rtol=1e-5)
      for name, gradient in whole.items():
        np.testing.assert_allclose(
            found[name], gradient, atol=1e-5 * _global_norm(whole)
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
    _, weights, batch = _batches()
    anchor = collections.OrderedDict(
        (name, value - 0.5) for name, value in weights.items()
    )
    plain, loss_sum = self.gradients(batch, 1e9)

    def proximal(max_grad_norm):
      return self.gradients(
          batch, max_grad_norm, proximal_weight=40.0, anchor=anchor
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

  def test_placeholders_do_not_change_the_mean_over_utterances(self):
    _, _, batch = _batches()
    whole, loss_sum = self.gradients(batch, 1e9)
    with_stub = collections.OrderedDict(
        (key, tf.concat([value, tf.zeros_like(value[:1])], axis=0))
        for key, value in batch.items()
    )
    with_stub['feature_lengths'] = tf.concat(
        [batch['feature_lengths'], [8]], axis=0
    )
    twice = collections.OrderedDict(
        (key, tf.concat([value, value], axis=0)) for key, value in batch.items()
    )
    for changed, times in ((with_stub, 1), (twice, 2)):
      other, other_loss_sum = self.gradients(changed, 1e9)
      # The same to the rounding of another order of summation.
      np.testing.assert_allclose(times * loss_sum, other_loss_sum, rtol=1e-6)
      for name, gradient in whole.items():
        np.testing.assert_allclose(
            other[name], gradient, atol=3e-6 * _global_norm(whole)
        )
    placeholders = collections.OrderedDict(
        batch, example_weights=tf.zeros_like(batch['example_weights'])
    )
    gradients, loss_sum = self.gradients(placeholders, 1.0)
    self.assertEqual((_global_norm(gradients), float(loss_sum)), (0, 0))


_NUM_STEPS = 7
_LIMITS = dict(num_steps=2, num_epochs=1)


def tearDownModule():
  for each in (_batches, _context, _round):
    each.cache_clear()


@functools.lru_cache
def _context():
  """Shared, so that a computation is compiled and traced once."""
  return multi_device.build_sync_context()


@functools.lru_cache
def _round(**limits):
  """A computation: the sum of the clients' deltas, and the measurements."""
  model, _, _ = _batches()
  if limits.get('buckets'):
    model = fakes.model_of_buckets(model, limits['buckets'])
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


class TotalsTest(absltest.TestCase):

  def test_batches_of_placeholders_are_neither_the_first_nor_the_last(self):
    totals = client_update._no_totals(2)
    for weights, loss_sum in (
        ([0.0], 0.0), ([1.0, 0.0, 1.0], 6.0), ([1.0, 0.0], 5.0), ([0.0], 0.0)
    ):
      batch = dict(
          example_weights=tf.constant(weights),
          feature_lengths=tf.fill([len(weights)], 100),
      )
      totals = client_update._add_batch(
          totals, batch, tf.constant(loss_sum), tf.constant([3.0, 0.5])
      )
    # All steps count.
    np.testing.assert_array_equal(totals.pop('gradient_norms'), [12.0, 2.0])
    self.assertEqual(
        {name: float(value) for name, value in totals.items()},
        dict(
            first_loss=6.0 / 2,
            last_loss=5.0,
            loss_sum=11.0,
            num_frames=300.0,
            num_left_out=4.0,
            num_utterances=3.0,
            num_steps=4.0,
        ),
    )


class ClientWorkTest(absltest.TestCase):
  """Through TFF; `fed_avg_test` compares with NumPy."""

  def run_clients(self, weights, clients, *, data=None, **limits):
    """Summed deltas, {measurement: value}."""
    limits = limits or dict(num_steps=_NUM_STEPS)
    broadcast = collections.OrderedDict(
        seed=np.array(_SEED, np.int32), weights=weights
    )
    data = data or fakes.client_data()
    with tff.framework.get_context_stack().install(_context()):
      total, measurements = _round(**limits)(
          [broadcast] * len(clients),
          [data.serializable_dataset_fn(client_id) for client_id in clients],
      )
    return total, {
        name: np.array(value) if np.ndim(value) else float(value)
        for name, value in measurements.items()
    }

  def test_steps_repeat_the_data_and_counts_add_up(self):
    _, weights, _ = _batches()
    # cai has one utterance, so one batch; ann has three, all in one batch; bob
    # has three batches, so that his steps end within a pass. 'nobody' has none.
    _, counts = self.run_clients(weights, ['cai', 'nobody', 'ann'])
    expected = dict(
        num_clients=3, num_trained=2, num_steps=7 + 0 + 7,
        num_utterances=7 * 1 + 7 * 3, num_left_out=0, num_non_finite=0,
    )
    self.assertEqual(counts, counts | expected)
    self.assertAlmostEqual(
        counts['audio_sec'],
        0.01 * 7 * (_num_frames('cai') + _num_frames('ann')),
        places=3,
    )
    _, counts = self.run_clients(weights, ['bob'])
    self.assertEqual(counts['num_steps'], _NUM_STEPS)
    # Of two steps at most in one pass, ann takes one.
    _, counts = self.run_clients(weights, ['ann', 'bob'], **_LIMITS)
    self.assertEqual(counts['num_steps'], 1 + 2)

  def test_buckets_change_rounding_alone(self):
    _, weights, _ = _batches()
    limits = dict(num_epochs=2)
    whole, expected = self.run_clients(weights, ['ann', 'bob'], **limits)
    # The model would raise at any other size.
    limits['buckets'] = _BUCKETS
    delta, counts = self.run_clients(weights, ['ann', 'bob'], **limits)
    self.assertEqual(counts['num_steps'], 2 * (1 + 2))
    # Padding rows are not counted as utterances that were left out.
    for name, value in expected.items():
      np.testing.assert_allclose(counts[name], value, rtol=1e-5)
    for name, value in delta.items():
      np.testing.assert_allclose(
          value, whole[name], atol=1e-5 * _global_norm(whole)
      )

  def test_xla_needs_buckets(self):
    with self.assertRaisesRegex(ValueError, 'jit_compile needs .*buckets'):
      _client_work(tiny.recognizer(), num_steps=1, jit_compile=True)

  def test_a_non_finite_client_is_counted_and_adds_nothing(self):
    _, weights, _ = _batches()
    broken = collections.OrderedDict(weights)
    broken['head/bias'] = tf.fill(weights['head/bias'].shape, np.nan)
    _, counts = self.run_clients(broken, ['cai'])
    self.assertFalse(np.any(counts.pop('gradient_norm_sum')))
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

  def test_deltas_are_weighed_and_summed_in_any_order(self):
    _, weights, _ = _batches()
    parts, seconds, utterances = {}, {}, {}
    for client in ('ann', 'bob', 'cai'):
      parts[client], counts = self.run_clients(weights, [client], **_LIMITS)
      seconds[client] = counts['audio_sec']
      utterances[client] = counts['num_utterances']
    # ann's one step is on 3 utterances, cai's on 1. A frame is 10 ms.
    self.assertEqual((utterances['ann'], utterances['cai']), (3, 1))
    for client in ('ann', 'cai'):
      self.assertAlmostEqual(
          seconds[client], 0.01 * _num_frames(client), places=4
      )
    for limits, weight_of in (
        ({}, dict.fromkeys(parts, 1)),
        (dict(weigh_by='utterances', mean_weight=3.0),
         {name: count / 3 for name, count in utterances.items()}),
        (dict(weigh_by='seconds', mean_weight=2.0),
         {name: duration / 2 for name, duration in seconds.items()}),
    ):
      norms = [weight_of[name] * _global_norm(parts[name]) for name in parts]
      for order in (['ann', 'nobody', 'bob', 'cai'], ['cai', 'bob', 'ann']):
        total, counts = self.run_clients(weights, order, **_LIMITS, **limits)
        for name, value in total.items():
          expected = sum(
              weight * parts[client][name]
              for client, weight in weight_of.items()
          )
          np.testing.assert_allclose(
              value, expected, rtol=1e-5, atol=1e-6, err_msg=name
          )
        np.testing.assert_allclose(
            counts['delta_norm_sum'], sum(norms), rtol=1e-5
        )

  def test_utterances_left_out_do_not_count_in_weights(self):
    # ann's second utterance has no transcript: a placeholder in her only batch.
    _, weights, _ = _batches()
    data = fakes.client_data().preprocess(
        lambda examples: examples.map(
            lambda element: element | {
                'transcript': tf.where(
                    tf.equal(element['utterance_id'], 'ann-1'),
                    '',
                    element['transcript'],
                )
            }
        )
    )
    frames = [
        log_mel.num_frames(len(example['waveform']))
        for example in fakes.examples('ann', 3)
    ]
    seconds = 0.01 * (frames[0] + frames[2])
    plain, counts = self.run_clients(weights, ['ann'], data=data, **_LIMITS)
    self.assertEqual((counts['num_utterances'], counts['num_left_out']), (2, 1))
    self.assertAlmostEqual(counts['audio_sec'], seconds, places=5)
    for limits, weight in (
        (dict(weigh_by='utterances', mean_weight=3.0), 2 / 3),
        (dict(weigh_by='seconds', mean_weight=2.0), seconds / 2),
    ):
      weighed, _ = self.run_clients(
          weights, ['ann'], data=data, **_LIMITS, **limits
      )
      for name, value in plain.items():
        np.testing.assert_allclose(
            weighed[name], weight * value, rtol=1e-6, err_msg=name
        )

  def test_lamb_matches_its_numpy_twin_and_restarts_at_each_client(self):
    # cai, twice: the second one's state is not what the first one left.
    model, weights, _ = _batches()
    batches = fakes.tiny_pipeline(model).training_batches(
        fakes.client_data().create_tf_dataset_for_client('cai'),
        seed=tf.constant(_SEED),
    )
    total, _ = self.run_clients(
        weights, ['cai', 'cai'], num_steps=3, learning_rate=0.02,
        build_optimizer=lamb.build_lamb,
    )
    twin = reference.Lamb(0.02)
    local = [value.numpy() for value in weights.values()]
    for batch in batches.take(3):
      gradients, _ = _clipped_gradients(
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

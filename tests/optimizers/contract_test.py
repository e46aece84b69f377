"""What every optimizer of ours must do; a new one is a new row."""

import collections

from absl.testing import absltest
from absl.testing import parameterized
import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_asr.optimizers import adam
from tff_asr.optimizers import lamb
from tff_asr.optimizers import lars
from tff_asr.optimizers import schedules
from tff_asr.optimizers import summing


def _build_scheduled():
  return schedules.scheduled(
      lamb.build_lamb(1.0),
      schedule=schedules.exponential_decay(
          0.1, start=5, decay_rate=0.5, transition_rounds=20
      ),
  )


_ROWS = (
    ('lamb', lambda: lamb.build_lamb(0.05)),
    (
        'lamb_with_options',
        lambda: lamb.build_lamb(
            0.05, beta_1=0.8, beta_2=0.9, epsilon=1e-4, weight_decay=0.01
        ),
    ),
    ('adam', lambda: adam.build_adam(0.05)),
    ('adamw', lambda: adam.build_adam(0.05, weight_decay=1e-4)),
    (
        'lars',
        lambda: lars.build_lars(
            1.0, trust_coefficient=0.02, momentum=0.5, epsilon=1e-3
        ),
    ),
    ('scheduled_lamb', _build_scheduled),
    ('summing_lamb', lambda: summing.build_summing(lamb.build_lamb(0.05))),
)

_STRUCTURES = {
    'scalar': tf.TensorSpec([]),
    'vector': tf.TensorSpec([3]),
    'list': [tf.TensorSpec([2]), tf.TensorSpec([])],
    'tuple': (tf.TensorSpec([2, 2]),),
    'nested': collections.OrderedDict(
        a=[tf.TensorSpec([2]), (tf.TensorSpec([]), tf.TensorSpec([1, 1]))],
        b=collections.OrderedDict(c=tf.TensorSpec([3])),
    ),
    'no_weights': [],
    'empty_weight': [tf.TensorSpec([0]), tf.TensorSpec([2])],
    'float64': [tf.TensorSpec([2], tf.float64)],
}


def _draw(specs, *key: int):
  rng = np.random.default_rng(key)
  return tf.nest.map_structure(
      lambda spec: tf.constant(rng.normal(size=spec.shape), spec.dtype), specs
  )


def _run(optimizer, state, weights, specs, steps):
  for step in steps:
    state, weights = optimizer.next(state, weights, _draw(specs, 1, step))
  return state, weights


def _assert_equal(found, expected):
  tf.nest.assert_same_structure(found, expected)
  for a, b in zip(tf.nest.flatten(found), tf.nest.flatten(expected)):
    np.testing.assert_array_equal(a, b)


class ContractTest(parameterized.TestCase):

  @parameterized.named_parameters(*_ROWS)
  def test_converges_on_a_quadratic(self, build):
    # 0.5 (w - 1) A (w - 1) with condition number 10, from (4, -3).
    optimizer = build()
    curvature = tf.constant([1.0, 10.0])
    weights = tf.constant([4.0, -3.0])
    state = optimizer.initialize(tf.TensorSpec([2]))
    loss = lambda w: 0.5 * float(tf.reduce_sum(curvature * (w - 1) ** 2))
    before = loss(weights)
    next_fn = tf.function(optimizer.next)
    for _ in range(300):
      state, weights = next_fn(state, weights, curvature * (weights - 1))
    self.assertLess(loss(weights), before / 1000)

  @parameterized.named_parameters(*_ROWS)
  def test_any_structure_keeps_its_form(self, build):
    for name, specs in _STRUCTURES.items():
      with self.subTest(name):
        optimizer = build()
        weights = _draw(specs, 0)
        state = optimizer.initialize(specs)
        new_state, new_weights = _run(optimizer, state, weights, specs, [0, 1])
        tf.nest.assert_same_structure(new_weights, weights)
        tf.nest.assert_same_structure(new_state, state)
        for new, old in zip(
            tf.nest.flatten(new_weights), tf.nest.flatten(weights)
        ):
          self.assertEqual((new.shape, new.dtype), (old.shape, old.dtype))
          self.assertTrue(np.all(np.isfinite(new)))
          if old.shape.num_elements():
            self.assertFalse(np.array_equal(new, old))

  @parameterized.named_parameters(*_ROWS)
  def test_stopped_and_restored_equals_uninterrupted(self, build):
    specs = _STRUCTURES['nested']
    weights = _draw(specs, 0)
    whole = _run(
        build(), build().initialize(specs), weights, specs, range(8)
    )
    state, half = _run(
        build(), build().initialize(specs), weights, specs, range(4)
    )
    # Through arrays, as in a checkpoint.
    stored = tf.nest.map_structure(np.asarray, (state, half))
    state, half = tf.nest.map_structure(tf.constant, stored)
    resumed = _run(build(), state, half, specs, range(4, 8))
    _assert_equal(resumed, whole)

  # TFF's `schedule_learning_rate` shows no hyperparameters.
  @parameterized.named_parameters(
      *(row for row in _ROWS if not row[0].startswith('scheduled'))
  )
  def test_hparams_round_trip(self, build):
    optimizer, specs = build(), _STRUCTURES['list']
    state = optimizer.initialize(specs)
    hparams = optimizer.get_hparams(state)
    self.assertNotEmpty(hparams)
    _assert_equal(optimizer.set_hparams(state, hparams), state)
    changed = collections.OrderedDict(
        (name, 0.5 * value) for name, value in hparams.items()
    )
    new_state = optimizer.set_hparams(state, changed)
    self.assertEqual(optimizer.get_hparams(new_state), changed)
    tf.nest.assert_same_structure(new_state, state)
    # They act: the state's values count, not the builder's.
    weights = _draw(specs, 0)
    before = _run(optimizer, state, weights, specs, range(3))[1]
    after = _run(optimizer, new_state, weights, specs, range(3))[1]
    self.assertFalse(np.array_equal(before[0], after[0]))

  @parameterized.named_parameters(*_ROWS)
  def test_next_changes_neither_its_state_nor_its_weights(self, build):
    specs = _STRUCTURES['nested']
    weights = _draw(specs, 0)
    state = build().initialize(specs)
    copies = tf.nest.map_structure(np.array, (state, weights))
    _run(build(), state, weights, specs, [0])
    _assert_equal((state, weights), copies)

  @parameterized.named_parameters(*_ROWS)
  def test_gradients_of_another_form_are_refused(self, build):
    optimizer = build()
    state = optimizer.initialize([tf.TensorSpec([2])])
    weights = [tf.ones([2])]
    for gradients in ([tf.ones([3])], [tf.ones([2])] * 2, tf.ones([2])):
      with self.assertRaises((ValueError, TypeError)):
        optimizer.next(state, weights, gradients)

  @parameterized.named_parameters(*_ROWS)
  def test_traces_as_a_tff_computation_with_a_stable_state_type(self, build):
    specs = _STRUCTURES['nested']
    init = tff.tensorflow.computation(lambda: build().initialize(specs))
    state_type = init.type_signature.result
    weights_type = tff.types.to_type(
        tf.nest.map_structure(
            lambda spec: tff.TensorType(spec.dtype.as_numpy_dtype, spec.shape),
            specs,
        )
    )
    step = tff.tensorflow.computation(
        build().next, [state_type, weights_type, weights_type]
    )
    result = step.type_signature.result
    self.assertTrue(state_type.is_assignable_from(result[0]))
    self.assertTrue(weights_type.is_assignable_from(result[1]))


if __name__ == '__main__':
  absltest.main()

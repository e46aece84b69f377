"""The contract of all our optimizers; a new one is a new row."""

import collections
import functools

from absl.testing import parameterized
import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tests import reference
from tff_asr.optimizers import adagrad
from tff_asr.optimizers import adam
from tff_asr.optimizers import lamb
from tff_asr.optimizers import lars
from tff_asr.optimizers import per_tensor
from tff_asr.optimizers import gradient_tracing
from tff_asr.optimizers import schedules


def _build_scheduled():
  return schedules.scheduled(
      lamb.build_lamb(1.0),
      schedule=schedules.exponential_decay(
          0.1, start=5, decay_rate=0.5, transition_rounds=20
      ),
  )


_ROWS = (
    ('lamb', lambda: lamb.build_lamb(0.05)),
    ('adamw', lambda: adam.build_adam(0.05, weight_decay=1e-4)),
    (
        'lars',
        lambda: lars.build_lars(
            1.0, trust_coefficient=0.02, momentum=0.5, epsilon=1e-3
        ),
    ),
    ('adagrad', lambda: adagrad.build_adagrad(1.0)),
    ('scheduled_lamb', _build_scheduled),
    (
        'recording_lamb',
        lambda: gradient_tracing.build_gradient_tracing(lamb.build_lamb(0.05)),
    ),
)

_DECAYS = (-0.1, 1.0, 1, 1.5)
_ADAM_BAD = dict(
    learning_rate=(-0.1, np.nan), beta_1=_DECAYS, beta_2=_DECAYS,
    epsilon=(-1e-9,), weight_decay=(-0.1,),
)
_ADAM_OTHER = (
    dict(weight_decay=0.1), dict(epsilon=0.1), dict(beta_1=0.5),
    dict(beta_2=0.5), dict(beta_1=0.0, beta_2=0.0), dict(learning_rate=0.1),
)
# Name: builder, twin, other options, bad values.
_RULES = {
    'lamb': (lamb.build_lamb, reference.Lamb, _ADAM_OTHER, _ADAM_BAD),
    'adam': (adam.build_adam, reference.Adam, _ADAM_OTHER, _ADAM_BAD),
    'adagrad': (
        adagrad.build_adagrad,
        reference.Adagrad,
        (dict(epsilon=0.1), dict(learning_rate=0.1)),
        dict(learning_rate=(-0.1, np.inf), epsilon=(-1e-9,)),
    ),
    'lars': (
        lars.build_lars,
        reference.Lars,
        (
            dict(momentum=0.0), dict(trust_coefficient=0.1), dict(epsilon=0.1),
            dict(weight_decay=0.1), dict(learning_rate=0.1),
        ),
        dict(
            learning_rate=(-0.1, np.inf), momentum=(-0.1, 1.0),
            trust_coefficient=(0.0, -1.0), epsilon=(-1e-9,),
            weight_decay=(-0.1,),
        ),
    ),
}

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


def _arrays(*key: int) -> list[np.ndarray]:
  """A random matrix, vector and scalar, a function of the key."""
  rng = np.random.default_rng(key)
  return [
      rng.normal(size=shape).astype(np.float32) for shape in ((4, 3), (5,), ())
  ]


def _run(optimizer, state, weights, specs, steps):
  for step in steps:
    state, weights = optimizer.next(state, weights, _draw(specs, 1, step))
  return state, weights


def _begin(optimizer, specs, steps):
  return _run(
      optimizer, optimizer.initialize(specs), _draw(specs, 0), specs, steps
  )


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
    half = _begin(build(), specs, range(3))
    # Through arrays, as in a checkpoint.
    stored = tf.nest.map_structure(np.array, half)
    state, weights = tf.nest.map_structure(tf.constant, stored)
    resumed = _run(build(), state, weights, specs, range(3, 6))
    _assert_equal(resumed, _begin(build(), specs, range(6)))
    # No step changed the state and weights that it was given.
    _run(build(), *half, specs, [3])
    _assert_equal(half, stored)

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
  def test_gradients_of_another_structure_are_rejected(self, build):
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

  def test_gradient_tracing_keeps_the_gradient_and_changes_nothing_else(self):
    inner, specs = lamb.build_lamb(0.05), _STRUCTURES['nested']
    _, expected = _begin(inner, specs, range(3))
    state, found = _begin(
        gradient_tracing.build_gradient_tracing(inner), specs, range(3)
    )
    _assert_equal(found, expected)
    _assert_equal(state['last'], _draw(specs, 1, 2))


def _gradients():
  # Like client updates under DP in some steps: far below epsilon.
  return [
      [10.0 ** -(step % 9) * g for g in _arrays(2, step)] for step in range(12)
  ]


def _run_steps(optimizer):
  """The weights after a step with each of the gradients."""
  weights = [tf.constant(w, tf.float32) for w in _arrays(1)]
  state = optimizer.initialize(
      [tf.TensorSpec(w.shape, w.dtype) for w in weights]
  )
  for each in _gradients():
    each = [tf.constant(g, tf.float32) for g in each]
    state, weights = optimizer.next(state, weights, each)
  return [w.numpy() for w in weights]


@functools.lru_cache(maxsize=None)
def _run_plain(name):
  """The weights by a rule without other options."""
  return _run_steps(_RULES[name][0](0.03))


def tearDownModule():  # pylint: disable=invalid-name
  _run_plain.cache_clear()


class PerTensorTest(parameterized.TestCase):

  @parameterized.parameters(
      *((name, options) for name, rule in _RULES.items()
        for options in ({}, *rule[2]))
  )
  def test_agrees_with_the_numpy_twin_over_steps(self, name, options):
    build, twin, _, _ = _RULES[name]
    settings = dict(learning_rate=0.03) | options
    found = _run_steps(build(**settings)) if options else _run_plain(name)
    reference_twin, expected = twin(**settings), _arrays(1)
    for each in _gradients():
      expected = reference_twin.step(expected, each)
    for one, other in zip(found, expected):
      np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-6)
    if options:
      plain = _run_plain(name)
      self.assertGreater(np.abs(plain[0] - found[0]).max(), 1e-5)

  @parameterized.parameters(*_RULES)
  def test_a_gradient_may_be_missing_or_sparse(self, name):
    optimizer = _RULES[name][0](0.1)
    weights = [tf.constant([[1.0], [2.0]]), tf.constant([[3.0], [4.0]])]
    state = optimizer.initialize([tf.TensorSpec([2, 1])] * 2)
    sparse = tf.IndexedSlices(
        tf.constant([[0.5]]), tf.constant([1]), tf.constant([2, 1])
    )
    new_state, new_weights = optimizer.next(state, weights, [None, sparse])
    np.testing.assert_array_equal(new_weights[0], weights[0])
    for slot in new_state.keys() - optimizer.get_hparams(state) - {'step'}:
      np.testing.assert_array_equal(new_state[slot][0], state[slot][0])
      self.assertNotEqual(
          float(new_state[slot][1][1, 0]), float(state[slot][1][1, 0])
      )
    # A sparse gradient is the dense one.
    dense = [None, tf.convert_to_tensor(sparse)]
    _assert_equal(
        optimizer.next(state, weights, dense), (new_state, new_weights)
    )
    self.assertNotEqual(float(new_weights[1][1, 0]), 4)

  @parameterized.parameters(*_RULES)
  def test_bad_arguments_are_named(self, name):
    build, _, _, bad = _RULES[name]
    for argument, values in bad.items():
      for value in values:
        with self.assertRaisesRegex(ValueError, f'{argument} must be'):
          build(**(dict(learning_rate=0.1) | {argument: value}))

  def test_tensors_are_updated_one_after_the_other(self):
    updates = []

    def update(weight, gradient, slots, scalars):
      # Where an executor could begin with all tensors at once.
      direction = gradient * gradient
      new_weight = weight - scalars['learning_rate'] * direction
      updates.append((direction, new_weight))
      return new_weight, slots

    optimizer = per_tensor.build(
        update, hparams={'learning_rate': 0.1}, slots=()
    )
    weights = {name: tf.ones([3]) for name in 'abc'}
    state = optimizer.initialize(
        tf.nest.map_structure(tf.TensorSpec.from_tensor, weights)
    )
    tf.function(
        lambda *arguments: optimizer.next(state, *arguments), autograph=False
    ).get_concrete_function(weights, weights)
    self.assertLen(updates, 3)
    for (_, done), (begun, _) in zip(updates, updates[1:]):
      self.assertIn(done.op, begun.op.control_inputs)

"""TFF's tutorials in miniature, in `multi_device` and in TFF's own runtime.

Each class except the last is named after a tutorial (or an example) of TFF and
follows its steps with our own programs: the same kinds of computations, and
small numbers. Both contexts must return the same values. Steps that
`multi_device` refuses are called, too; the last class covers all kinds of
these.
"""

import collections
from collections.abc import Callable
import functools
import pathlib
import re
from typing import Any, NamedTuple

from absl.testing import parameterized
import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tests.execution import toys
from tff_asr.execution import compiler
from tff_asr.execution import native


def tearDownModule():
  native.stop()
  _build_native.cache_clear()


@functools.lru_cache
def _build_native():
  return native.build_sync_context(trust_network=True)


class _TutorialTest(parameterized.TestCase):

  def run_in_both(self, steps: Callable[[], Any]) -> Any:
    """What `steps` return in multi_device, after a comparison with native."""
    install = tff.framework.get_context_stack().install
    with install(toys.build_context()):
      ours = steps()
    with install(_build_native()):
      theirs = steps()
    tf.nest.assert_same_structure(ours, theirs)
    for mine, other in zip(*map(tf.nest.flatten, (ours, theirs)), strict=True):
      if np.asarray(mine).dtype.kind == 'f':
        np.testing.assert_allclose(mine, other, rtol=1e-5, atol=1e-6)
      else:
        np.testing.assert_array_equal(mine, other)
    return ours

  def check_refused(self, message: str, comp: tff.Computation, *args: Any):
    with self.assertRaisesRegex(compiler.UncompilableError, message):
      toys.invoke(comp, *args)


_TEMPERATURES = tff.SequenceType(np.float32)


@tff.tensorflow.computation(np.float32)
def _to_celsius(fahrenheit):
  return (fahrenheit - 32.0) / 1.8


@tff.tensorflow.computation(_TEMPERATURES)
def _local_mean(temperatures):
  total, count = temperatures.reduce(
      (0.0, 0.0), lambda state, value: (state[0] + value, state[1] + 1.0)
  )
  return total / count


class CustomFederatedAlgorithms1Test(_TutorialTest):

  def test_values_sequences_and_means(self):
    @tff.federated_computation
    def greet():
      return 'Good morning', 7

    @tff.federated_computation(toys.CLIENT_FLOAT)
    def mean(readings):
      return tff.federated_mean(readings)

    @tff.federated_computation(tff.FederatedType(_TEMPERATURES, tff.CLIENTS))
    def mean_of_means(readings):
      return tff.federated_mean(tff.federated_map(_local_mean, readings))

    @tff.tensorflow.computation(
        tff.SequenceType(collections.OrderedDict(w=np.int32, a=np.int32))
    )
    def dot(pairs):
      return pairs.reduce(0, lambda total, pair: total + pair['w'] * pair['a'])

    found = self.run_in_both(lambda: (
        greet(),
        mean([20.0, 21.0, 25.0]),
        _to_celsius(50.0),
        _local_mean([1.0, 2.0, 6.0]),
        dot([dict(w=2, a=3), dict(a=5, w=4)]),
        mean_of_means([[1.0, 2.0], [4.0], [1.0, 3.0, 8.0]]),
    ))
    # 2 * 3 + 4 * 5 = 26; (1.5 + 4 + 4) / 3 = 19 / 6.
    greeting, *numbers = found
    self.assertEqual(greeting, (b'Good morning', 7))
    np.testing.assert_allclose(numbers, [22.0, 10.0, 3.0, 26, 19 / 6])

  def test_values_at_clients_do_not_come_back(self):
    convert = tff.federated_computation(
        lambda readings: tff.federated_map(_to_celsius, readings),
        toys.CLIENT_FLOAT,
    )
    self.check_refused(
        'a result is placed at the clients: aggregate it', convert, [32.0]
    )


_BATCH = collections.OrderedDict(
    x=tff.TensorType(np.float32, [None, 2]), y=tff.TensorType(np.int32, [None])
)
_MODEL = collections.OrderedDict(
    w=tff.TensorType(np.float32, [2, 2]), b=tff.TensorType(np.float32, [2])
)
_BATCHES = tff.SequenceType(_BATCH)


def _zeros():
  return collections.OrderedDict(
      w=np.zeros([2, 2], np.float32), b=np.zeros([2], np.float32)
  )


def _build_batches(label: int) -> list[dict[str, np.ndarray]]:
  """A full batch of a digit's client, and a smaller one."""
  return [
      dict(
          x=np.full([size, 2], [label, 1], np.float32),
          y=np.full([size], label, np.int32),
      )
      for size in (3, 1)
  ]


@tf.function
def _logistic_loss(model, batch):
  logits = tf.matmul(batch['x'], model['w']) + model['b']
  return tf.reduce_mean(
      tf.nn.sparse_softmax_cross_entropy_with_logits(batch['y'], logits)
  )


@tff.tensorflow.computation(_MODEL, _BATCH)
def _batch_loss(model, batch):
  return _logistic_loss(model, batch)


@tff.tensorflow.computation(_MODEL, _BATCH, np.float32)
def _batch_train(model, batch, learning_rate):
  """A step of SGD on variables that start as the model."""
  variables = collections.OrderedDict(
      (name, tf.Variable(value, name=name)) for name, value in model.items()
  )
  optimizer = tf.keras.optimizers.SGD(learning_rate)

  @tf.function
  def step(batch):
    with tf.GradientTape() as tape:
      loss = _logistic_loss(variables, batch)
    optimizer.apply_gradients(
        zip(tape.gradient(loss, list(variables.values())), variables.values())
    )
    return collections.OrderedDict(
        (name, variable.read_value()) for name, variable in variables.items()
    )

  return step(batch)


@tff.tensorflow.computation(_MODEL, np.float32, _BATCHES)
def _local_train(model, learning_rate, batches):
  """Steps of SGD over a dataset, in place of a tff.sequence_reduce."""

  def step(model, batch):
    with tf.GradientTape() as tape:
      tape.watch(model)
      loss = _logistic_loss(model, batch)
    return tf.nest.map_structure(
        lambda weight, slope: weight - learning_rate * slope,
        model,
        tape.gradient(loss, model),
    )

  return batches.reduce(model, step)


@tff.tensorflow.computation(_MODEL, _BATCHES)
def _local_loss(model, batches):
  return batches.reduce(
      0.0, lambda total, batch: total + _logistic_loss(model, batch)
  )


_SERVER_MODEL = tff.FederatedType(_MODEL, tff.SERVER)
_CLIENT_BATCHES = tff.FederatedType(_BATCHES, tff.CLIENTS)


@tff.federated_computation(_SERVER_MODEL, toys.SERVER_FLOAT, _CLIENT_BATCHES)
def _federated_train(model, learning_rate, data):
  return tff.federated_mean(tff.federated_map(_local_train, (
      tff.federated_broadcast(model),
      tff.federated_broadcast(learning_rate),
      data,
  )))


@tff.federated_computation(_SERVER_MODEL, _CLIENT_BATCHES)
def _federated_loss(model, data):
  return tff.federated_mean(
      tff.federated_map(_local_loss, (tff.federated_broadcast(model), data))
  )


class CustomFederatedAlgorithms2Test(_TutorialTest):

  def test_a_batch_trains_variables_that_start_as_the_argument(self):
    batch = _build_batches(1)[0]

    def steps():
      model, losses = _zeros(), []
      for _ in range(3):
        model = _batch_train(model, batch, 0.5)
        losses.append(_batch_loss(model, batch))
      return losses

    losses = self.run_in_both(steps)
    self.assertEqual(losses, sorted(losses, reverse=True))
    # Zero logits of two classes, the first step not yet taken: ln 2.
    self.assertLess(losses[0], np.log(2.0))

  def test_rounds_over_lists_of_batches_lower_the_loss(self):
    data = [_build_batches(label) for label in (0, 1)]

    def steps():
      model, rate, losses = _zeros(), 0.5, [_federated_loss(_zeros(), data)]
      for _ in range(3):
        model = _federated_train(model, rate, data)
        rate *= 0.9
        losses.append(_federated_loss(model, data))
      return model, losses

    _, losses = self.run_in_both(steps)
    np.testing.assert_allclose(losses[0], 2 * np.log(2.0), rtol=1e-6)
    self.assertEqual(losses, sorted(losses, reverse=True))

  def test_sequence_reduce_names_dataset_reduce(self):
    @tff.federated_computation(_MODEL, _BATCHES)
    def local_loss(model, batches):
      @tff.tensorflow.computation((_MODEL, np.float32), _BATCH)
      def add(state, batch):
        model, total = state
        return model, total + _logistic_loss(model, batch)

      _, total = tff.sequence_reduce(batches, (model, 0.0), add)
      return total

    self.check_refused(
        r'sequence_reduce: call dataset\.reduce in a tff\.tensorflow',
        local_loss,
        _zeros(),
        _build_batches(1),
    )
    with tff.framework.get_context_stack().install(_build_native()):
      theirs = local_loss(_zeros(), _build_batches(1))
    ours = toys.invoke(_local_loss, _zeros(), _build_batches(1))
    np.testing.assert_allclose(ours, theirs)


@tff.tensorflow.computation
def _multiply(value, factor):
  return tf.nest.map_structure(lambda leaf: leaf * factor, value)


@tff.tensorflow.computation
def _divide(value, factor):
  return tf.nest.map_structure(lambda leaf: leaf / factor, value)


class _RoundScaledFactory(tff.aggregators.UnweightedAggregationFactory):
  """Scales values by the round's number around an inner aggregation."""

  def __init__(self, inner=None):
    self._inner = inner or tff.aggregators.SumFactory()

  def create(self, value_type):
    inner = self._inner.create(value_type)
    add_one = tff.tensorflow.computation(lambda x: x + 1.0, np.float32)

    @tff.federated_computation
    def initialize():
      return tff.federated_zip(
          (tff.federated_value(0.0, tff.SERVER), inner.initialize())
      )

    @tff.federated_computation(
        initialize.type_signature.result,
        tff.FederatedType(value_type, tff.CLIENTS),
    )
    def next_fn(state, value):
      number = tff.federated_map(add_one, state[0])
      scaled = tff.federated_map(
          _multiply, (value, tff.federated_broadcast(number))
      )
      output = inner.next(state[1], scaled)
      return tff.templates.MeasuredProcessOutput(
          state=tff.federated_zip((number, output.state)),
          result=tff.federated_map(_divide, (output.result, number)),
          measurements=tff.federated_zip(collections.OrderedDict(
              scaled=output.result, inner=output.measurements
          )),
      )

    return tff.templates.AggregationProcess(initialize, next_fn)


class CustomAggregatorsTest(_TutorialTest):

  @parameterized.named_parameters(
      ('scalar', np.float32, [1.0, 2.0, 5.0], [8.0]),
      (
          'tensors',
          [(np.float32, [2]), (np.float32, [3])],
          [[[1.0, 2.0], [3.0, 4.0, 5.0]], [[1.0, 1.0], [3.0, 0.0, -5.0]]],
          [[2.0, 3.0], [6.0, 4.0, 0.0]],
      ),
  )
  def test_a_factory_within_itself_keeps_its_state(
      self, value_type, clients, expected
  ):
    process = _RoundScaledFactory(_RoundScaledFactory()).create(
        tff.to_type(value_type)
    )

    def steps():
      state, outputs = process.initialize(), []
      for _ in range(2):
        output = process.next(state, clients)
        state = output.state
        outputs.append((output.result, output.measurements))
      return outputs

    # The inner one is given what the outer one scaled, and scales it again.
    for (result, measured), factor in zip(self.run_in_both(steps), (1, 4)):
      results = tf.nest.flatten(result)
      innermost = tf.nest.flatten(measured['inner']['scaled'])
      for leaf, scaled, value in zip(results, innermost, expected, strict=True):
        np.testing.assert_allclose(leaf, value)
        np.testing.assert_allclose(scaled, factor * np.asarray(value))


def _build_clipping_client_work(model_fn, optimizer, weights_type):
  """Client work that trains by gradients of norm 1 at most."""
  dataset_type = tff.SequenceType(
      tff.types.tensorflow_to_type(model_fn().input_spec)
  )

  @tff.tensorflow.computation(weights_type, dataset_type)
  def train(weights, dataset):
    model = model_fn()
    variables = tff.learning.models.ModelWeights.from_model(model)

    @tf.function
    def body():
      tf.nest.map_structure(
          lambda variable, value: variable.assign(value), variables, weights
      )
      memory = optimizer.initialize(
          tf.nest.map_structure(
              lambda leaf: tf.TensorSpec(leaf.shape, leaf.dtype),
              variables.trainable,
          )
      )
      num_examples = 0.0
      for batch in iter(dataset):
        with tf.GradientTape() as tape:
          output = model.forward_pass(batch)
        gradients, _ = tf.clip_by_global_norm(
            tape.gradient(output.loss, variables.trainable), 1.0
        )
        memory, trained = optimizer.next(
            memory,
            [leaf.read_value() for leaf in variables.trainable],
            list(gradients),
        )
        for variable, value in zip(variables.trainable, trained):
          variable.assign(value)
        num_examples += tf.cast(output.num_examples, tf.float32)
      return tff.learning.templates.ClientResult(
          update=[
              before - after.read_value()
              for before, after in zip(weights.trainable, variables.trainable)
          ],
          update_weight=num_examples,
      )

    return body()

  @tff.federated_computation
  def initialize():
    return tff.federated_value((), tff.SERVER)

  @tff.federated_computation(
      initialize.type_signature.result,
      tff.FederatedType(weights_type, tff.CLIENTS),
      tff.FederatedType(dataset_type, tff.CLIENTS),
  )
  def next_fn(state, weights, data):
    return tff.templates.MeasuredProcessOutput(
        state=state,
        result=tff.federated_map(train, (weights, data)),
        measurements=tff.federated_value((), tff.SERVER),
    )

  return tff.learning.templates.ClientWorkProcess(initialize, next_fn)


class ComposingLearningAlgorithmsTest(_TutorialTest):

  def test_a_process_of_four_parts_trains(self):
    templates = tff.learning.templates

    @tff.tensorflow.computation
    def initial_weights():
      return tff.learning.models.ModelWeights.from_model(toys.build_model())

    weights_type = initial_weights.type_signature.result
    process = templates.compose_learning_process(
        initial_weights,
        templates.build_broadcast_process(weights_type),
        _build_clipping_client_work(
            toys.build_model,
            tff.learning.optimizers.build_sgdm(0.1, 0.9),
            weights_type,
        ),
        tff.aggregators.MeanFactory().create(
            weights_type.trainable, tff.TensorType(np.float32)
        ),
        templates.build_apply_optimizer_finalizer(
            tff.learning.optimizers.build_sgdm(1.0), weights_type
        ),
    )

    def steps():
      state = process.initialize()
      for _ in range(2):
        clients = [toys.build_dataset(i) for i in (1, 2)]
        state = process.next(state, clients).state
      return process.get_model_weights(state).trainable

    # A client's second step has 1.9 times the norm of its first by momentum:
    # two rounds of at most 0.1 + 0.19.
    norm = tf.linalg.global_norm(self.run_in_both(steps))
    self.assertBetween(norm, 0.3, 0.58)


class _ServerState(NamedTuple):
  weights: Any
  memory: Any
  round_num: Any


def _build_simple_fed_avg() -> tff.templates.IterativeProcess:
  """Federated averaging of Keras models by Keras optimizers' variables."""
  model_fn = toys.build_model
  get_weights = tff.learning.models.ModelWeights.from_model

  def build_server(weights):
    """A server's optimizer, and its variables once it has a step behind it."""
    optimizer = tf.keras.optimizers.legacy.SGD(1.0, momentum=0.5)
    optimizer.apply_gradients(
        [(tf.zeros_like(leaf), leaf) for leaf in weights.trainable]
    )
    return optimizer

  @tff.tensorflow.computation
  def initialize():
    weights = get_weights(model_fn())
    return _ServerState(weights, build_server(weights).variables(), 0)

  state_type = initialize.type_signature.result
  dataset_type = tff.SequenceType(
      tff.types.tensorflow_to_type(toys.ELEMENT_SPEC)
  )

  @tff.tensorflow.computation(state_type.weights, dataset_type)
  def train(initial, dataset):
    model = model_fn()
    weights = get_weights(model)
    optimizer = tf.keras.optimizers.legacy.SGD(0.1)

    @tf.function
    def body():
      tf.nest.map_structure(lambda v, t: v.assign(t), weights, initial)
      num_examples = 0
      for batch in iter(dataset):
        with tf.GradientTape() as tape:
          output = model.forward_pass(batch)
        optimizer.apply_gradients(zip(
            tape.gradient(output.loss, weights.trainable), weights.trainable
        ))
        num_examples += output.num_examples
      return (
          [a - b for a, b in zip(weights.trainable, initial.trainable)],
          tf.cast(num_examples, tf.float32),
          model.report_local_unfinalized_metrics(),
      )

    return body()

  @tff.tensorflow.computation(state_type, train.type_signature.result[0])
  def update(state, delta):
    weights = get_weights(model_fn())
    optimizer = build_server(weights)

    @tf.function
    def body():
      tf.nest.map_structure(lambda v, t: v.assign(t), weights, state.weights)
      tf.nest.map_structure(
          lambda v, t: v.assign(t), optimizer.variables(), list(state.memory)
      )
      optimizer.apply_gradients(
          (-change, leaf) for change, leaf in zip(delta, weights.trainable)
      )
      return _ServerState(
          weights, optimizer.variables(), state.round_num + 1
      )

    return body()

  aggregate_metrics = tff.learning.metrics.sum_then_finalize(
      model_fn().metric_finalizers()
  )

  @tff.federated_computation(
      tff.FederatedType(state_type, tff.SERVER),
      tff.FederatedType(dataset_type, tff.CLIENTS),
  )
  def next_fn(state, data):
    delta, weight, metrics = tff.federated_map(
        train, (tff.federated_broadcast(state.weights), data)
    )
    mean = tff.federated_mean(delta, weight)
    return tff.federated_map(update, (state, mean)), aggregate_metrics(metrics)

  return tff.templates.IterativeProcess(
      tff.federated_computation(
          lambda: tff.federated_eval(initialize, tff.SERVER)
      ),
      next_fn,
  )


class SimpleFedAvgTest(_TutorialTest):

  def test_rounds_lower_the_loss(self):
    process = _build_simple_fed_avg()

    def steps():
      state, losses = process.initialize(), []
      for _ in range(3):
        state, metrics = process.next(
            state, [toys.build_dataset(i) for i in (1, 2)]
        )
        losses.append(metrics['loss'])
      return state, losses

    state, losses = self.run_in_both(steps)
    self.assertEqual(state.round_num, 3)
    self.assertEqual(losses, sorted(losses, reverse=True))


@tf.function
def _evaluate(model, dataset):
  """The mean absolute error over a client's examples."""
  total, count = 0.0, 0.0
  for batch in iter(dataset.batch(4)):
    predicted = model.predict_on_batch(batch['x'], training=False)
    total += tf.reduce_sum(tf.abs(predicted - batch['y']))
    count += tf.cast(tf.shape(predicted)[0], tf.float32)
  return collections.OrderedDict(error=total / count)


def _build_finetuning():
  """A personalisation strategy: an epoch of SGD, then evaluation."""
  optimizer = tf.keras.optimizers.legacy.SGD(0.1)

  @tf.function
  def personalize(model, train_data, test_data):
    for batch in iter(train_data.batch(4)):
      with tf.GradientTape() as tape:
        loss = model.forward_pass(batch).loss
      variables = model.trainable_variables
      optimizer.apply_gradients(
          zip(tape.gradient(loss, variables), variables)
      )
    return _evaluate(model, test_data)

  return personalize


class PersonalizationEvaluationTest(_TutorialTest):

  def test_finetuned_models_are_evaluated_at_their_clients(self):
    evaluate = tff.learning.algorithms.build_personalization_eval_computation(
        toys.build_model,
        collections.OrderedDict(finetuned=_build_finetuning),
        _evaluate,
        max_num_clients=5,
    )
    weights = tff.learning.models.ModelWeights.from_model(toys.build_model())
    weights = tf.nest.map_structure(lambda leaf: leaf.numpy(), weights)
    clients = [
        collections.OrderedDict(
            train_data=toys.build_dataset(i).unbatch(),
            test_data=toys.build_dataset(i).unbatch(),
        )
        for i in (1, 2, 3)
    ]

    def steps():
      found = evaluate(weights, clients)
      # Clients come in the order of a sample without a seed.
      return tf.nest.map_structure(np.sort, found)

    found = self.run_in_both(steps)
    before, after = (
        found[name]['error'] for name in ('baseline_metrics', 'finetuned')
    )
    self.assertLen(before, 3)
    self.assertLess(np.mean(after), np.mean(before))


class DifferentialPrivacyTest(_TutorialTest):

  def test_the_adaptive_aggregator_clips_sums_and_adapts(self):
    # Without noise, of which two contexts draw other numbers.
    process = tff.learning.dp_aggregator(0.0, clients_per_round=4).create(
        tff.to_type([(np.float32, [2]), (np.float32, [1])])
    )

    def steps():
      state, results, measurements = process.initialize(), [], []
      for num_clients in (2, 4):
        output = process.next(state, [[[0.06, 0.0], [0.08]]] * num_clients)
        state = output.state
        results.append(output.result)
        measurements.append(output.measurements)
      return results, measurements

    results, measurements = self.run_in_both(steps)
    # Over the expected number of clients, 4. The clip starts at 0.1.
    np.testing.assert_allclose(results[0][0], [0.06 * 2 / 4, 0.0], rtol=1e-5)
    first, second = (
        each['zeroing']['dp_query_metrics']['clip'] for each in measurements
    )
    self.assertNotEqual(first, second)
    np.testing.assert_allclose(
        tf.linalg.global_norm(results[1]), min(0.1, first), rtol=1e-5
    )


_SEED = tff.TensorType(np.int64, [2])


@tff.tensorflow.computation(_SEED)
def _noise_from_seed(seed):
  return tf.random.stateless_normal([], seed)


class RandomNoiseGenerationTest(_TutorialTest):

  def test_seeded_noise_is_one_number_everywhere(self):
    @tff.federated_computation(
        tff.FederatedType(_SEED, tff.SERVER),
        tff.FederatedType(np.int32, tff.CLIENTS),
    )
    def extremes(seed, unused_clients):
      noise = tff.federated_map(
          _noise_from_seed, tff.federated_broadcast(seed)
      )
      return tff.federated_min(noise), tff.federated_max(noise)

    seeds = [np.int64([1, 1]), np.int64([1, 2])]
    found = self.run_in_both(
        lambda: [extremes(seed, list(range(5))) for seed in seeds]
    )
    for seed, (low, high) in zip(seeds, found):
      self.assertEqual(low, high)
      np.testing.assert_allclose(low, tf.random.stateless_normal([], seed))
    self.assertNotEqual(*found)

  def test_noise_without_a_seed_differs_between_clients_and_rounds(self):
    @tff.tensorflow.computation(np.int32)
    def draw(unused_client):
      return tf.random.Generator.from_non_deterministic_state().normal([])

    extremes = tff.federated_computation(
        lambda clients: [
            aggregate(tff.federated_map(draw, clients))
            for aggregate in (tff.federated_min, tff.federated_max)
        ],
        tff.FederatedType(np.int32, tff.CLIENTS),
    )
    found = [toys.invoke(extremes, [0, 1, 2]) for _ in range(2)]
    self.assertLen(set(np.ravel(found)), 4)

  def test_a_generator_starts_from_a_seed_that_is_an_argument(self):
    @tff.tensorflow.computation(np.int32)
    def draw(seed):
      return tf.random.Generator.from_seed(seed).normal([])

    two = tff.federated_computation(lambda: (draw(1), draw(2)))
    self.assertNotEqual(*self.run_in_both(two))

  def test_without_an_argument_the_number_of_clients_is_unknown(self):
    @tff.federated_computation
    def largest():
      return tff.federated_max(tff.federated_value(1.0, tff.CLIENTS))

    for context in (toys.build_context(), _build_native()):
      with tff.framework.get_context_stack().install(context):
        with self.assertRaisesRegex(ValueError, 'their number is unknown'):
          largest()


_INTS = tff.FederatedType(tff.TensorType(np.int32, [2]), tff.CLIENTS)
_FLOATS = tff.SequenceType(np.float32)
_add = tff.tensorflow.computation(lambda a, b: a + b, np.float32, np.float32)


@tff.federated_computation(toys.CLIENT_FLOAT)
def _result_at_clients(values):
  return tff.federated_map(_add, (values, values))


@tff.federated_computation(toys.SERVER_FLOAT, toys.CLIENT_FLOAT)
def _broadcast_result(value, values):
  return tff.federated_broadcast(value), tff.federated_sum(values)


@tff.federated_computation(toys.CLIENT_FLOAT)
def _two_aggregations(values):
  total = tff.federated_broadcast(tff.federated_sum(values))
  return tff.federated_sum(tff.federated_map(_add, (values, total)))


def _select(select):
  @tff.federated_computation(_INTS, toys.SERVER_FLOAT)
  def comp(keys, value):
    gather = tff.tensorflow.computation(
        lambda value, key: value + tf.cast(key, tf.float32),
        np.float32,
        np.int32,
    )
    slices = select(keys, tff.federated_value(9, tff.SERVER), value, gather)
    add_all = tff.tensorflow.computation(
        lambda numbers: numbers.reduce(0.0, lambda a, b: a + b), _FLOATS
    )
    return tff.federated_sum(tff.federated_map(add_all, slices))

  return comp


def _of_sequence(body):
  return tff.federated_computation(body, _FLOATS)


@tff.federated_computation(np.float32, toys.CLIENT_FLOAT)
def _argument_without_placement(factor, values):
  return tff.federated_sum(values), factor


class _Refused(NamedTuple):
  """A row of the table in docs/execution.md.

  Attributes:
    cause: what the error says, by a pattern.
    calls: computations, each with arguments and, if native runs it, a result.
  """

  cause: str
  calls: tuple[tuple[tff.Computation, tuple[Any, ...], Any], ...]


@tff.tensorflow.computation(np.float32)
def _count_in_queue(value):
  queue = tf.queue.FIFOQueue(10, [tf.float32], [[]])
  with tf.control_dependencies([queue.enqueue(value)]):
    return queue.size()


_REFUSED = {
    'a result at the clients': _Refused(
        'a result is placed at the clients: aggregate it at the server',
        (
            (_result_at_clients, ([1.0, 2.0],), [2.0, 4.0]),
            (_broadcast_result, (5.0, [1.0, 2.0]), (5.0, 3.0)),
        ),
    ),
    'a broadcast of an aggregated value': _Refused(
        'into two computations, the second with that as a server argument',
        ((_two_aggregations, ([1.0, 2.0],), 9.0),),
    ),
    '`federated_select`, `federated_secure_select`': _Refused(
        'select: broadcast the whole value and look up in it at clients',
        (
            # 4 * 5 + (0 + 1) + (1 + 2).
            (_select(tff.federated_select), ([[0, 1], [1, 2]], 5.0), 24.0),
            (_select(tff.federated_secure_select), ([[0, 1]], 5.0), None),
        ),
    ),
    '`sequence_map`, `sequence_reduce`, `sequence_sum`': _Refused(
        r'call dataset\.(map|reduce) in a tff\.tensorflow\.computation',
        (
            (
                _of_sequence(lambda numbers: tff.sequence_map(
                    tff.tensorflow.computation(lambda x: 2 * x, np.float32),
                    numbers,
                )),
                ([1.0, 2.0],),
                None,
            ),
            (
                _of_sequence(lambda numbers: tff.sequence_reduce(
                    numbers, 0.0, _add
                )),
                ([1.0, 2.0],),
                3.0,
            ),
            (_of_sequence(tff.sequence_sum), ([1.0, 2.0],), None),
        ),
    ),
    'at clients, a queue or another op that would pass its state from one '
    'client to the next': _Refused(
        'client work has FIFOQueueV2, whose state would pass from client',
        ((toys.sum_of(_count_in_queue), ([5.0, 6.0],), 2),),
    ),
    'an argument without placement next to one at clients': _Refused(
        'float32 has no placement: place it at the server, and broadcast it',
        ((_argument_without_placement, (4.0, [1.0, 2.0]), (3.0, 4.0)),),
    ),
}


class RefusedTest(_TutorialTest):

  @parameterized.parameters(*_REFUSED)
  def test_each_names_what_to_write_and_native_where_that_runs_it(self, row):
    for comp, args, result in _REFUSED[row].calls:
      with self.assertRaises(compiler.UncompilableError) as raised:
        toys.invoke(comp, *args)
      message = str(raised.exception)
      self.assertNotIn('\n', message)
      self.assertRegex(
          message,
          rf'cannot run in this process \(.*{_REFUSED[row].cause}.*\); write '
          'it as the table in docs/execution.md says',
      )
      with tff.framework.get_context_stack().install(_build_native()):
        if result is not None:
          self.assertIn('build_sync_context(trust_network=True)', message)
          self.assertEqual(comp(*args), result)
        else:
          self.assertNotIn('native', message)
          with self.assertRaisesRegex(ValueError, 'native runtime has no'):
            comp(*args)

  def test_native_sends_secure_sums_to_multi_device(self):
    comp = tff.federated_computation(
        lambda values: tff.federated_secure_sum(values, 10),
        tff.FederatedType(np.int32, tff.CLIENTS),
    )
    self.assertEqual(toys.invoke(comp, [1, 2]), 3)
    with tff.framework.get_context_stack().install(_build_native()):
      with self.assertRaisesRegex(
          ValueError, 'no federated_secure_sum: use multi_device'
      ):
        comp([1, 2])

  def test_a_dict_goes_by_names_and_in_native_by_order(self):
    difference = tff.tensorflow.computation(
        lambda pair: pair['a'] - pair['b'],
        collections.OrderedDict(a=np.float32, b=np.float32),
    )
    pair = dict(b=1.0, a=3.0)
    self.assertEqual(toys.invoke(difference, pair), 2.0)
    with tff.framework.get_context_stack().install(_build_native()):
      self.assertEqual(difference(pair), -2.0)

  def test_the_page_lists_them(self):
    page = pathlib.Path(__file__).parents[2] / 'docs' / 'execution.md'
    _, table = page.read_text(encoding='utf-8').split(
        '| refused | what to do instead |\n|---|---|\n'
    )
    rows = re.findall(
        r'^\| (.*?) \|', table.split('\n\n')[0], flags=re.MULTILINE
    )
    self.assertEqual(rows, list(_REFUSED))


"""Small learning processes and computations for the tests of execution."""

import collections
import functools
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff
import tensorflow_privacy as tfp

from tff_asr.execution import context as context_lib
from tff_asr.execution import multi_device

ELEMENT_SPEC = collections.OrderedDict(
    x=tf.TensorSpec([None, 3], tf.float32),
    y=tf.TensorSpec([None, 1], tf.float32),
)


def build_model() -> tff.learning.models.VariableModel:
  """A linear model, with TensorFlow variables."""
  model = tf.keras.Sequential([
      tf.keras.layers.Input((3,)),
      tf.keras.layers.Dense(1, kernel_initializer='zeros'),
  ])
  return tff.learning.models.from_keras_model(
      model,
      input_spec=ELEMENT_SPEC,
      loss=tf.keras.losses.MeanSquaredError(),
      metrics=[tf.keras.metrics.MeanAbsoluteError()],
  )


@functools.lru_cache  # What was compiled of it is kept with it.
def build_fed_avg() -> tff.learning.templates.LearningProcess:
  """Weighted fed-avg with momentum at the clients and Adam at the server."""
  return tff.learning.algorithms.build_weighted_fed_avg(
      build_model,
      client_optimizer_fn=tff.learning.optimizers.build_sgdm(0.1, 0.9),
      server_optimizer_fn=tff.learning.optimizers.build_adam(0.1),
      loop_implementation=tff.learning.LoopImplementation.DATASET_ITERATOR,
  )


@functools.lru_cache
def build_dp_fed_avg(
    noise_multiplier: float,
) -> tff.learning.templates.LearningProcess:
  """Unweighted fed-avg that clips, sums and noises client updates."""
  query = tfp.GaussianSumQuery(
      l2_norm_clip=0.5, stddev=0.5 * noise_multiplier
  )
  return tff.learning.algorithms.build_unweighted_fed_avg(
      build_model,
      client_optimizer_fn=tff.learning.optimizers.build_sgdm(0.1),
      server_optimizer_fn=tff.learning.optimizers.build_sgdm(1.0),
      model_aggregator=tff.aggregators.DifferentiallyPrivateFactory(
          tfp.NormalizedQuery(query, denominator=4.0)
      ),
      loop_implementation=tff.learning.LoopImplementation.DATASET_ITERATOR,
  )


def build_dataset(seed: int) -> tf.data.Dataset:
  """Two batches of four examples of one client."""
  x = np.random.RandomState(seed).randn(8, 3).astype(np.float32)
  y = x.sum(axis=1, keepdims=True) + np.float32(seed)
  return tf.data.Dataset.from_tensor_slices(
      collections.OrderedDict(x=x, y=y)
  ).batch(4)


@tff.tensorflow.computation(np.str_)
def build_dataset_from_id(client_id):
  """A dataset made of an id such as '3' by graph ops, through a table."""
  table = tf.lookup.StaticHashTable(
      tf.lookup.KeyValueTensorInitializer(
          [str(index) for index in range(8)],
          [float(index) for index in range(8)],
      ),
      default_value=-1.0,
  )
  level = table.lookup(client_id)
  x = tf.random.stateless_normal([8, 3], [tf.cast(level, tf.int32), 0])
  return tf.data.Dataset.from_tensor_slices(collections.OrderedDict(
      x=x, y=tf.reduce_sum(x, axis=1, keepdims=True) + level
  )).batch(4)


@functools.lru_cache
def build_fed_avg_over_ids() -> tff.learning.templates.LearningProcess:
  """`build_fed_avg` with string ids as clients."""
  return tff.simulation.compose_dataset_computation_with_learning_process(
      build_dataset_from_id, build_fed_avg()
  )


def sum_of(work: tff.Computation) -> tff.Computation:
  """The computation that sums `work` over clients, one argument each."""
  return tff.federated_computation(
      lambda clients: tff.federated_sum(tff.federated_map(work, clients)),
      tff.FederatedType(work.type_signature.parameter, tff.CLIENTS),
  )


@functools.lru_cache
def build_context(**settings: Any) -> context_lib.SyncContext:
  """A context that tests share: each traces a computation once."""
  return multi_device.build_sync_context(multi_device.Settings(**settings))


def invoke(comp: tff.Computation, *args: Any, **settings: Any) -> Any:
  """The result of `comp(*args)` in the context of these settings."""
  with tff.framework.get_context_stack().install(build_context(**settings)):
    return comp(*args)


SERVER_FLOAT = tff.FederatedType(np.float32, tff.SERVER)
CLIENT_FLOAT = tff.FederatedType(np.float32, tff.CLIENTS)


@tff.tensorflow.computation(np.float32, np.float32)
def scale(value, factor):
  """The product; a value of 13 fails."""
  check = tf.debugging.assert_none_equal(
      value, 13.0, message='An unlucky client.'
  )
  with tf.control_dependencies([check]):
    return value * factor


@tff.federated_computation(SERVER_FLOAT, CLIENT_FLOAT)
def scaled_sum(factor, values):
  factors = tff.federated_broadcast(factor)
  return tff.federated_sum(tff.federated_map(scale, (values, factors)))

"""A federated process in NumPy, to compare `fed_avg` with.

Local SGD in float64, with the documented seeds; TensorFlow gives batches and
gradients only. The tests apply the server's part to the deltas.
"""

import collections
from collections.abc import Mapping, Sequence
import math
from typing import Any, NamedTuple, Optional

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tests import fakes
from tff_asr.execution import multi_device
from tff_asr.models import ctc

Arrays = dict[str, np.ndarray]

_SHAPES = {'features': [None, None, 80], 'labels': [None, None], 'seed': [2]}


class Trained(NamedTuple):
  """What a client does in a round.

  Attributes:
    delta: Weights before minus weights after.
    losses: Losses of every utterance in every step.
    batch_losses: Their mean in every step.
    grad_norms: Gradient norms of every step, before the clip.
  """

  delta: Arrays
  losses: list[float]
  batch_losses: list[float]
  grad_norms: list[float]


class Twin:
  """Clients of `fakes.client_data` that train on `fakes.tiny_pipeline`."""

  def __init__(
      self,
      *,
      model: ctc.CtcModel,
      cohorts: Sequence[Sequence[str]],
      seed: int,
      learning_rate: float,
      max_grad_norm: float,
      proximal_weight: float = 0.0,
      num_steps: Optional[int] = None,
      num_epochs: Optional[int] = None,
  ):
    """Reads the batches of all rounds.

    Args:
      model: The model.
      cohorts: Clients of each round; a round may have none, the first has one.
      seed: The process's, below 2^31.
      learning_rate: Learning rate of local SGD.
      max_grad_norm: Clip of each step's gradient.
      proximal_weight: Weight of half the squared distance from the round's
        start.
      num_steps: Local steps, or
      num_epochs: Local epochs.
    """
    self._model = model
    self._cohorts = cohorts
    self._seed = seed
    self._learning_rate = learning_rate
    self._max_grad_norm = max_grad_norm
    self._proximal_weight = proximal_weight
    self.batches = self._read_batches(num_steps, num_epochs)
    batch = self.batches[0, cohorts[0][0]][0]
    self._gradients = tf.function(
        self._gradients_of_batch,
        input_signature=[
            collections.OrderedDict(
                (name, tf.TensorSpec(spec.shape, tf.float32))
                for name, spec in sorted(self._model.specs.items())
            ),
            collections.OrderedDict(
                (name, tf.TensorSpec(_SHAPES.get(name, [None]), tensor.dtype))
                for name, tensor in batch.items()
            ),
        ],
        autograph=False,
    )

  def _read_batches(self, num_steps, num_epochs):
    """{(round, client): batches}, with the documented seeds."""
    data = fakes.client_data()
    pipeline = fakes.tiny_pipeline(self._model)
    keys, seeds = [], []
    for round_num, cohort in enumerate(self._cohorts):
      for client_id in cohort:
        seeds.append(tf.random.fold_in((self._seed, 0), round_num))
        keys.append((round_num, client_id))

    def open_client(place, client_id, seed):
      batches = pipeline.training_batches(
          data.serializable_dataset_fn(client_id),
          seed=seed,
          num_epochs=num_epochs,
      )
      if num_steps is not None:
        batches = batches.take(num_steps)
      return batches.map(lambda batch: (place, batch))

    # One dataset over all: to trace it takes longer than to run it.
    everything = tf.data.Dataset.from_tensor_slices(
        (list(range(len(keys))), [key[1] for key in keys], seeds)
    ).flat_map(open_client)
    batches = collections.defaultdict(list)
    for place, batch in everything:
      batches[keys[int(place)]].append(batch)
    return batches

  def _gradients_of_batch(self, weights, batch):
    """Every utterance's loss, and the gradients of their mean."""
    with tf.GradientTape() as tape:
      tape.watch(weights)
      logits, lengths = self._model.logits(
          weights, batch['features'], batch['feature_lengths'], batch['seed']
      )
      losses = tf.nn.ctc_loss(
          batch['labels'],
          logits,
          batch['label_lengths'],
          lengths,
          logits_time_major=False,
          blank_index=-1,
      )
      loss = tf.reduce_mean(losses)
    return losses, tape.gradient(loss, weights)

  def train(
      self, weights: Mapping[str, np.ndarray], *, client_id: str, round_num: int
  ) -> Trained:
    """Trains a client from the weights of a round's start."""
    local = {name: value.astype(np.float64) for name, value in weights.items()}
    losses, batch_losses, grad_norms = [], [], []
    for batch in self.batches[round_num, client_id]:
      assert np.all(batch['example_weights'] == 1)  # No placeholders.
      step_losses, gradients = self._gradients(
          collections.OrderedDict(
              (name, tf.constant(value, tf.float32))
              for name, value in sorted(local.items())
          ),
          batch,
      )
      losses.extend(step_losses.numpy())
      batch_losses.append(np.mean(step_losses))
      arrays = {k: v.numpy().astype(np.float64) for k, v in gradients.items()}
      for name, array in arrays.items():
        array += self._proximal_weight * (local[name] - weights[name])
      grad_norms.append(norm(arrays))
      factor = min(1.0, self._max_grad_norm / grad_norms[-1])
      for name, array in arrays.items():
        local[name] = local[name] - self._learning_rate * factor * array
    delta = {name: weights[name] - local[name] for name in weights}
    return Trained(delta, losses, batch_losses, grad_norms)


def norm(arrays: Mapping[str, np.ndarray]) -> float:
  """Norm over all arrays together."""
  return math.sqrt(sum(np.sum(array**2) for array in arrays.values()))


def run(
    process: tff.learning.templates.LearningProcess,
    cohorts: Sequence[Sequence[str]],
    *,
    context: Optional[tff.framework.SyncContext] = None,
) -> tuple[list[Arrays], list[Any]]:
  """Initial weights and those after each round; and each round's metrics."""
  context = context or multi_device.build_sync_context()
  with tff.framework.get_context_stack().install(context):
    state = process.initialize()
    weights, metrics = [state.global_model_weights], []
    for cohort in cohorts:
      output = process.next(state, list(cohort))
      state = output.state
      weights.append(state.global_model_weights)
      metrics.append(output.metrics)
  to_numpy = lambda tensors: {k: np.asarray(v) for k, v in tensors.items()}
  return [to_numpy(each) for each in weights], metrics

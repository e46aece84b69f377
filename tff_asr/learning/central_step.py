"""Central training as a learning process: one minibatch step a round.

A step takes one batch or several. The gradient of several batches is the mean
of the gradients of their mean losses, with equal weights, as in the published
code of https://arxiv.org/abs/2310.00098 (`train_step`), where each process has
a batch.

Several devices share a step (`data_parallel`). They divide its only batch:

    gradient = sum over parts of (gradient of the part's summed losses) / n,

for n utterances in the whole batch. Up to rounding, this is the gradient of the
batch's mean loss. Each part has its own random draws (dropout, layer drop,
shifts), from the batch's seed and the part's number. Several batches go to the
devices in turn, each with its own seed.
"""

from collections.abc import Iterator, Sequence
import functools
from typing import Optional

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_asr import checks
from tff_asr.data import pipeline as pipeline_lib
from tff_asr.execution import devices as devices_lib
from tff_asr.features import front_end as front_end_lib
from tff_asr.learning import client_update
from tff_asr.learning import data_parallel
from tff_asr.learning import process
from tff_asr.models import ctc
from tff_asr.models import weights as weights_lib
from tff_asr.optimizers import param_groups


class CentralStep:
  """Steps of one run, each traced once; see `process.Process`."""

  def __init__(
      self,
      *,
      model: ctc.CtcModel,
      optimizer: tff.learning.optimizers.Optimizer,
      seed: int = 0,
      max_grad_norm: float = 1.0,
      devices: Optional[Sequence[str]] = None,
      encoder_rate: float = 1.0,
      encoder_frozen_steps: int = 0,
      encoder_optimizer: Optional[tff.learning.optimizers.Optimizer] = None,
      jit_compile: bool = False,
      front_end: front_end_lib.FrontEnd = front_end_lib.build_log_mel(),
  ):
    """Creates the process.

    Args:
      model: The model.
      optimizer: Steps along the gradient of a batch's mean loss.
      seed: Seed of initial weights.
      max_grad_norm: A gradient is clipped to this global norm.
      devices: They share a step; each once, such as ['GPU:0', 'GPU:1']. None:
        TensorFlow's default device takes whole batches.
      encoder_rate: Factor of the encoder's steps, relative to the head's.
      encoder_frozen_steps: Number of first steps in which the encoder is
        frozen. Then its gradients are computed, and its optimizer and schedule
        begin (`optimizers.param_groups`).
      encoder_optimizer: Optimizer of the encoder, with another schedule; None:
        as the head's.
      jit_compile: Whether XLA compiles gradient and update, once for each size
        of a batch: pad them to `buckets.LengthBuckets`. It rounds differently.
      front_end: Computed the features of the batches.

    Raises:
      ValueError: An argument is out of range, or this machine lacks a device.
    """
    checks.positive(max_grad_norm=max_grad_norm)
    checks.non_negative_int(encoder_frozen_steps=encoder_frozen_steps)
    encoder = frozenset(model.encoder.specs)
    if encoder_rate != 1 or encoder_frozen_steps or encoder_optimizer:
      optimizer = param_groups.build_param_groups(
          optimizer,
          group=encoder,
          rate=encoder_rate,
          group_optimizer=encoder_optimizer,
      )
    self._model = model
    self._batch_spec = pipeline_lib.batch_spec(front_end.feature_dim)
    self._optimizer = optimizer
    self._seed = weights_lib.seed_pair(seed)
    self._max_grad_norm = max_grad_norm
    self._devices = None
    if devices is not None:
      self._devices = devices_lib.logical_devices(devices)
    self._jit_compile = jit_compile
    self._encoder = encoder
    self._encoder_frozen_steps = encoder_frozen_steps
    # One entry: a run freezes the encoder first, and then no longer.
    self._gradients = functools.lru_cache(maxsize=1)(self._build_gradients)
    self._update = tf.function(
        self._update_graph, autograph=False, jit_compile=jit_compile or None
    )
    self._divide = tf.function(
        functools.partial(_divide, num_parts=len(self._devices or [None])),
        input_signature=[self._batch_spec],
        autograph=False,
    )

  def initialize(self) -> process.State:
    """The state before the first step, with weights drawn from the seed."""
    specs = weights_lib.tensor_specs(self._model.specs)
    return process.State(
        global_model_weights=self._model.initialize(tf.constant(self._seed)),
        distributor=process.SeedState(tf.constant(self._seed), np.int32(0)),
        client_work=(),
        aggregator=(),
        # Tensors, because Python numbers would be traced as constants.
        finalizer=tf.nest.map_structure(
            tf.convert_to_tensor, self._optimizer.initialize(specs)
        ),
    )

  def next(
      self, state: process.State, batches: Sequence[pipeline_lib.Batch]
  ) -> process.Output:
    """Takes a step.

    Args:
      state: State that `initialize` or the last step returned.
      batches: At least one. One of placeholders only has a gradient of zero,
        and counts in the mean.

    Returns:
      The new state, and metrics: `loss_sum` of the utterances' losses, float32
      [], in nats, `num_utterances` trained on, float32 [], and
      `gradient_norms`, those of layers that are not frozen before the clip, by
      name, float32 [].
    """
    step = int(state.distributor.round_num)
    frozen = self._encoder if step < self._encoder_frozen_steps else frozenset()
    finalizer, weights = tf.nest.map_structure(
        tf.convert_to_tensor, (state.finalizer, state.global_model_weights)
    )
    gradients, loss_sum = self._gradients(frozen)(weights, self._parts(batches))
    with data_parallel.device_scope(self._devices and self._devices[0]):
      finalizer, weights, norms = self._update(finalizer, weights, gradients)
    metrics = dict(
        gradient_norms=dict(
            # As `tf.nest` flattens them.
            zip(sorted(gradients), norms.numpy(), strict=True)
        ),
        loss_sum=loss_sum,
        num_utterances=tf.add_n(
            [tf.reduce_sum(batch['example_weights']) for batch in batches]
        ),
    )
    return process.Output(
        state._replace(
            global_model_weights=weights,
            distributor=process.SeedState(
                state.distributor.seed, np.int32(step + 1)
            ),
            finalizer=finalizer,
        ),
        metrics,
    )

  def _parts(
      self, batches: Sequence[pipeline_lib.Batch]
  ) -> Iterator[tuple[pipeline_lib.Batch, tf.Tensor]]:
    """Yields each part for the devices, with the divisor of its loss."""
    counts = [tf.reduce_sum(batch['example_weights']) for batch in batches]
    # Divided by the whole batch's count, so that parts add up to its mean.
    if len(batches) == 1 and self._devices is not None:
      return ((part, counts[0]) for part in self._divide(batches[0]))
    # The mean of the batches' means.
    return ((each, len(batches) * n) for each, n in zip(batches, counts))

  def _build_gradients(
      self, frozen: frozenset[str]
  ) -> data_parallel.DataParallelSum:
    """The sum of gradients in which these weights have none, and the losses."""
    loss_gradients = functools.partial(
        client_update.loss_gradients, self._model, frozen=frozen
    )
    if self._jit_compile:
      loss_gradients = tf.function(
          loss_gradients, autograph=False, jit_compile=True
      )

    def compute(weights, part):
      batch, divisor = part
      return loss_gradients(
          weights,
          client_update.drop_strings(batch),
          num_utterances=divisor,
      )

    return data_parallel.DataParallelSum(
        compute,
        merge=functools.partial(tf.nest.map_structure, tf.add),
        shared_spec=weights_lib.tensor_specs(self._model.specs),
        # One graph for all batches: a resumed run then has the same bits.
        batch_spec=(self._batch_spec, tf.TensorSpec([])),
        devices=self._devices,
    )

  def _update_graph(self, optimizer_state, weights, live):
    """The clip and the optimizer's step; frozen weights have no gradient."""
    # The whole gradient: parts of devices are summed before.
    live, norms = client_update.clip_and_measure(
        live, max_norm=self._max_grad_norm
    )
    gradients = weights_lib.Weights(
        # None for frozen weights: the optimizer then leaves them and their
        # state alone.
        (name, live.get(name)) for name in weights
    )
    return *self._optimizer.next(optimizer_state, weights, gradients), norms


def _divide(
    batch: pipeline_lib.Batch, *, num_parts: int
) -> list[pipeline_lib.Batch]:
  """Divides a batch into parts of equal size, filled up by padding rows."""
  size = tf.shape(batch['example_weights'])[0]
  part_size = (size + num_parts - 1) // num_parts
  indices = tf.range(part_size * num_parts)
  # A padding row is a copy of the last example with weight 0, so every kernel
  # takes it, and parts stay sorted.
  is_copy = indices >= size
  indices = tf.minimum(indices, size - 1)
  parts = []
  for number in range(num_parts):
    rows = slice(number * part_size, (number + 1) * part_size)
    part = type(batch)(
        (name, tf.gather(value, indices[rows]))
        for name, value in batch.items()
        if name != 'seed'
    )
    part['example_weights'] = tf.where(
        is_copy[rows], 0.0, part['example_weights']
    )
    # Otherwise the rows of all parts would have the same dropout.
    part['seed'] = tf.random.fold_in(batch['seed'], number)
    parts.append(part)
  return parts

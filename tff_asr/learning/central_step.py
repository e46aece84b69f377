"""Central training as a learning process: one minibatch step a round.

A step takes one batch, or several: then its gradient is the mean of their
gradients, each of its own batch's mean loss, whatever the batches' sizes, as
where each of several processes has a batch of its own (the published code of
https://arxiv.org/abs/2310.00098, `train_step`).

Several devices share a step's only batch; each keeps a copy of weights and
optimizer state, and computes the gradient of one part:

    gradient = sum over parts of (gradient of the part's summed losses) / n,

for n utterances in the whole batch. Up to rounding, this is the gradient of the
batch's mean loss. Parts are added tensor by tensor, in the order of the
devices, each tensor on another device; then every device takes the step. So
nothing but that sum and the batch travels between devices, none of which is in
the way, and the same devices give the same bits. Each part has its own random
draws (dropout, layer drop, shifts), from the batch's seed and the part's
number. A device that is named twice gets two parts, and draws as two would.
Several batches are dealt to the devices in turn, each with its own seed. A
device computes what it has one after the other, in the memory of one.
"""

from collections.abc import Callable, Collection, Sequence
import contextlib
import functools
import itertools
from typing import Any, NamedTuple, Optional

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_asr import checks
from tff_asr.data import pipeline as pipeline_lib
from tff_asr.execution import devices as devices_lib
from tff_asr.learning import client_update
from tff_asr.learning import process
from tff_asr.learning import running_statistics
from tff_asr.models import ctc
from tff_asr.models import weights as weights_lib
from tff_asr.optimizers import grouped


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
      num_batches: int = 1,
  ):
    """Creates the process.

    Args:
      model: The model.
      optimizer: Steps along the gradient of a batch's mean loss.
      seed: Seed of initial weights.
      max_grad_norm: A gradient is clipped to this global norm.
      devices: Each batch is divided among these; see `find_devices`. None:
        TensorFlow's default device takes whole batches.
      encoder_rate: Factor of the encoder's steps, relative to the head's.
      encoder_frozen_steps: The encoder is frozen for so many steps. Then its
        gradients are computed, and its optimizer and schedule begin
        (`optimizers.grouped`).
      encoder_optimizer: Optimizer of the encoder, with another schedule; None:
        as the head's.
      jit_compile: Whether XLA compiles gradient and update, once for each size
        of a batch: pad them to `buckets.LengthBuckets`. It rounds differently.
      num_batches: Number of batches of a step.

    Raises:
      ValueError: An argument is out of range, or as `find_devices`; or the
        model has batch norm, and `shapes` or a batch divided among devices
        would add rows to its statistics.
    """
    checks.positive(max_grad_norm=max_grad_norm)
    checks.non_negative_int(encoder_frozen_steps=encoder_frozen_steps)
    checks.positive_int(num_batches=num_batches)
    encoder = frozenset(model.encoder.specs)
    if encoder_rate != 1 or encoder_frozen_steps or encoder_optimizer:
      optimizer = grouped.build_grouped(
          optimizer,
          group=encoder - weights_lib.statistics(model.specs),
          rate=encoder_rate,
          group_optimizer=encoder_optimizer,
      )
    if num_batches == 1 and len(devices or ()) > 1:
      running_statistics.refuse(
          model.specs, 'rows that fill a shape or a part up would count'
      )
    self._model = model
    self._statistics = weights_lib.statistics(model.specs)
    self._optimizer = running_statistics.with_statistics(
        optimizer, model.specs
    )
    self._seed = weights_lib.seed_pair(seed)
    self._max_grad_norm = max_grad_norm
    self._devices = None if devices is None else find_devices(devices)
    self._jit_compile = jit_compile
    self._num_batches = num_batches
    self._replicas: Optional[_Replicas] = None
    self._encoder = encoder
    self._encoder_frozen_steps = encoder_frozen_steps
    self._traced = {}

  def initialize(self) -> process.State:
    """The state before the first step, with weights drawn from the seed."""
    specs = weights_lib.tensor_specs(self._model.specs)
    return process.State(
        global_model_weights=self._model.initialize(tf.constant(self._seed)),
        distributor=process.RandomState(tf.constant(self._seed), np.int32(0)),
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
      batches: `num_batches` of them. One of placeholders only has a gradient of
        zero, and counts in the mean.

    Returns:
      The new state, and metrics: `loss_sum` of the utterances' losses, float32
      [], in nats, and `num_utterances` trained on, float32 [].
    """
    step = int(state.distributor.round_num)
    frozen = self._encoder if step < self._encoder_frozen_steps else frozenset()
    if frozen not in self._traced:
      # The graph before is not needed again.
      self._traced = {frozen: self._build(frozen)}
    # The step's results go to the same devices.
    copies = self._copies(state)
    self._replicas = None
    copies, metrics = self._traced[frozen](copies, list(batches))
    finalizer, weights = copies[0]
    self._replicas = _Replicas(finalizer, weights, copies)
    return process.Output(
        state._replace(
            global_model_weights=weights,
            distributor=process.RandomState(
                state.distributor.seed, np.int32(step + 1)
            ),
            finalizer=finalizer,
        ),
        metrics,
    )

  def _copies(self, state: process.State) -> list[tuple[Any, Any]]:
    """Optimizer state and weights, on each device.

    Those of the last step, if it returned the state.
    """
    kept = self._replicas
    weights = state.global_model_weights
    if (
        kept is not None
        and kept.weights is weights
        and kept.finalizer is state.finalizer
    ):
      return kept.copies
    copies = []
    for device in _distinct(self._devices):
      with _on(device):
        copies.append(
            tf.nest.map_structure(tf.identity, (state.finalizer, weights))
        )
    return copies

  def _build(self, frozen: Collection[str]) -> Callable[..., Any]:
    """The graph of a step in which these weights get no gradient."""
    weights_specs = weights_lib.tensor_specs(self._model.specs)
    # Traced but never run, because the state is larger than the weights.
    initialize = tf.function(
        lambda: self._optimizer.initialize(weights_specs), autograph=False
    )
    state_specs = tf.nest.map_structure(
        lambda value: tf.TensorSpec(value.shape, value.dtype),
        initialize.get_concrete_function().structured_outputs,
    )

    # One graph for all batches: a resumed run then has the same bits.
    @tf.function(
        input_signature=[
            [(state_specs, weights_specs)] * len(_distinct(self._devices)),
            [pipeline_lib.batch_spec()] * self._num_batches,
        ],
        autograph=False,
    )
    def step(copies, batches):
      sums = summed_gradients(
          self._model,
          [weights for _, weights in copies],
          batches,
          devices=self._devices,
          frozen=frozen,
          jit_compile=self._jit_compile,
      )

      num_heard = tf.add_n([
          tf.math.count_nonzero(batch['feature_lengths'], dtype=tf.float32)
          for batch in batches
      ])

      def update(optimizer_state, weights, live, num_heard):
        # Sums over utterances, and no gradients: not to be clipped.
        statistics = {
            name: live[name] / tf.maximum(num_heard, 1.0)
            for name in self._statistics
            if name in live
        }
        live = client_update.clip(
            weights_lib.without(statistics, live),
            max_norm=self._max_grad_norm,
        )
        live |= statistics
        gradients = weights_lib.Weights(
            (name, live.get(name)) for name in weights
        )
        return self._optimizer.next(optimizer_state, weights, gradients)

      if self._jit_compile:
        update = tf.function(update, autograph=False, jit_compile=True)
      updated = []
      for device, copy, (live, _) in zip(
          _distinct(self._devices), copies, sums
      ):
        with _on(device):
          updated.append(update(*copy, live, num_heard))
      num_utterances = tf.add_n(
          [tf.reduce_sum(batch['example_weights']) for batch in batches]
      )
      metrics = dict(loss_sum=sums[0][1], num_utterances=num_utterances)
      return updated, metrics

    return step


class _Replicas(NamedTuple):
  """What the last step returned, and the copies of it on all devices."""

  finalizer: Any
  weights: weights_lib.Weights
  copies: list[tuple[Any, weights_lib.Weights]]


def find_devices(devices: Sequence[str]) -> tuple[str, ...]:
  """The devices' full names.

  Args:
    devices: Such as ['GPU:0', 'GPU:1']; one may be named several times.

  Raises:
    ValueError: There is none, or one is not of this machine.
  """
  if isinstance(devices, str) or not devices:
    return devices_lib.find(devices)  # Raises.
  return tuple(devices_lib.find([device])[0] for device in devices)


def summed_gradients(
    model: ctc.CtcModel,
    copies: Sequence[weights_lib.Weights],
    batches: Sequence[pipeline_lib.Batch],
    *,
    devices: Optional[Sequence[str]] = None,
    frozen: Collection[str] = (),
    jit_compile: bool = False,
) -> list[tuple[weights_lib.Weights, tf.Tensor]]:
  """`client_update.loss_gradients` of a step, of its devices together.

  Args:
    model: The model.
    copies: Its weights on each device, on those named twice once.
    batches: See `pipeline.Batch`; each of at least one utterance or
      placeholder. One is divided among the devices, several are dealt to them.
    devices: Names as `find_devices` returns them; None: whole batches, with
      their own seeds.
    frozen: Names of weights without a gradient.
    jit_compile: Whether XLA compiles them.

  Returns:
    For each copy, on its device, gradients of the mean over batches of their
    mean losses, and the loss sum.
  """
  num_trained = [tf.reduce_sum(batch['example_weights']) for batch in batches]
  if len(batches) == 1 and devices is not None:
    parts = _parts(batches[0], len(devices))
    divisors = num_trained * len(devices)
  else:
    parts = batches
    divisors = [len(batches) * count for count in num_trained]
  loss_gradients = functools.partial(
      client_update.loss_gradients, model, frozen=frozen
  )
  if jit_compile:
    loss_gradients = tf.function(
        loss_gradients, autograph=False, jit_compile=True
    )
  places = _distinct(devices)
  sums = {}
  for device, part, divisor in zip(
      itertools.cycle(devices or [None]), parts, divisors
  ):
    with _on(device):
      before = sums.get(device)
      done = [] if before is None else [tf.group(*tf.nest.flatten(before))]
      with tf.control_dependencies(done):
        found = loss_gradients(
            copies[places.index(device)],
            client_update.without_texts(part),
            num_utterances=divisor,
        )
      if before is not None:
        found = tf.nest.map_structure(tf.add, before, found)
      sums[device] = found
  return _all_reduce(list(sums.values()), places)


def _all_reduce(
    sums: Sequence[Any], devices: Sequence[Optional[str]]
) -> list[Any]:
  """The sum of some structures of tensors, on each device.

  Every tensor is summed on one of the devices, in the order given, and sent to
  the others. Each device has its share of the bytes, so none is in the way:
  with n of them, it sends and receives twice (n - 1) / n of a structure.
  """
  parts = list(zip(*map(tf.nest.flatten, sums)))
  sizes = [part[0].shape.num_elements() for part in parts]
  load = [0] * len(devices)
  totals = {}
  # The largest first, each to the device with the least so far.
  for index in sorted(range(len(parts)), key=lambda index: -sizes[index]):
    owner = load.index(min(load))
    load[owner] += sizes[index]
    with _on(devices[owner]):
      totals[index] = functools.reduce(tf.add, parts[index])
  copies = []
  for device in devices:
    with _on(device):
      flat = [tf.identity(totals[index]) for index in range(len(parts))]
    copies.append(tf.nest.pack_sequence_as(sums[0], flat))
  return copies


def _distinct(devices: Optional[Sequence[str]]) -> list[Optional[str]]:
  """The devices, each once; None for TensorFlow's default one."""
  return [None] if devices is None else list(dict.fromkeys(devices))


def _on(device: Optional[str]) -> contextlib.AbstractContextManager[None]:
  """The device's scope."""
  return contextlib.nullcontext() if device is None else tf.device(device)


def _parts(
    batch: pipeline_lib.Batch, num_parts: int
) -> list[pipeline_lib.Batch]:
  """Splits a batch into parts of equal size, filled up by placeholders."""
  size = tf.shape(batch['example_weights'])[0]
  part_size = (size + num_parts - 1) // num_parts
  indices = tf.range(part_size * num_parts)
  # A placeholder is a copy of the last example with weight 0: no kernel refuses
  # it, and parts stay sorted.
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
    part['seed'] = tf.random.fold_in(batch['seed'], number)
    parts.append(part)
  return parts

"""One step of DP-SGD on masked prediction: the example is the unit of privacy.

Abadi et al. 2016, https://arxiv.org/abs/1607.00133, as in
https://arxiv.org/abs/2409.13953. The batch is Poisson-sampled. The query that
serves clients' updates (`queries.PerLayerClipSumQuery`) clips each example's
gradient and adds noise to the sum, once a step. The sum is divided by the
expected batch size, never by the realised one, and an optimizer steps along it.
Frozen weights have no gradients, no part of the clip, no noise and no optimizer
state.

A batch arrives as physical batches, which devices share (`data_parallel`). Sums
are integers, exact in any order: neither packing nor devices change them.

Without a query, for public data, nothing is clipped or noised, and a step also
returns the squared norm of each layer's gradient (`layer_freeze`). With
`per_batch` each physical batch has one draw of dropout, which is faster.

Memory besides the weights: the gradient, 4 bytes a trained parameter; the sum
and the record that is being clipped (int64), up to 24 bytes a trained
parameter; and the activations of an example.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
import functools
from typing import Any, NamedTuple, Optional

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff
import tensorflow_privacy as tfp

from tff_asr import checks
from tff_asr.aggregators import aggregation
from tff_asr.data import buckets as buckets_lib
from tff_asr.data import pipeline as pipeline_lib
from tff_asr.learning import data_parallel
from tff_asr.learning import layer_freeze
from tff_asr.learning import process
from tff_asr.models import best_rq
from tff_asr.models import weights as weights_lib
from tff_asr.privacy import queries


GRADIENT_MODES = ('per_example', 'per_batch')


def check_gradient_mode(gradient_mode: str, *, is_private: bool) -> None:
  """Raises ValueError for an unknown mode, or one that cannot be clipped."""
  checks.one_of(GRADIENT_MODES, gradient_mode=gradient_mode)
  if is_private and gradient_mode != 'per_example':
    raise ValueError(
        f'gradient_mode = {gradient_mode!r} cannot be clipped by example: '
        "take 'per_example' for private data."
    )


class DpSgd:
  """Steps of one run, traced once; see `process.Process`."""

  def __init__(
      self,
      *,
      model: best_rq.BestRqModel,
      optimizer: tff.learning.optimizers.Optimizer,
      batch_size: int,
      seed: int,
      build_query: Optional[queries.BuildQuery] = None,
      frozen: Collection[str] = (),
      devices: Sequence[str] = ('/device:CPU:0',),
      gradient_mode: str = 'per_example',
      buckets: Optional[buckets_lib.LengthBuckets] = None,
      jit_compile: bool = False,
  ):
    """Creates the step.

    Args:
      model: The model.
      optimizer: Steps along the mean gradient.
      batch_size: Examples expected in a batch; the divisor.
      seed: Seed of initial weights, masks and dropout (not of noise).
      build_query: Builds, from the specs of the trained weights, the query that
        clips and noises; None for public data.
      frozen: Layers that are not trained; see `layer_freeze.match`.
      devices: Logical devices that share a batch, at least one. Each holds the
        weights and a sum.
      gradient_mode: One of `GRADIENT_MODES`; 'per_batch' for public data only.
      buckets: By example, each is padded to the first boundary that holds it.
        None: each is computed in its own length.
      jit_compile: Whether XLA compiles gradients by example, once for each
        boundary. It rounds differently.

    Raises:
      ValueError: An argument is out of range, frozen names no layer or all of
        them, gradients by batch are to be clipped, or the query is for clients.
    """
    check_gradient_mode(gradient_mode, is_private=build_query is not None)
    checks.positive_int(batch_size=batch_size)
    checks.non_negative_int(seed=seed)
    # Gradients by batch are not compiled, so they need no buckets.
    buckets_lib.check_jit(
        jit_compile and gradient_mode == 'per_example',
        buckets,
        frozen=model.encoder.frozen,
    )
    self._model = model
    self._optimizer = optimizer
    # Sorted, because the names are part of the state and of its identity.
    self._frozen = layer_freeze.match(frozen, model.specs)
    self._live_specs = weights_lib.tensor_specs(self._live(model.specs))
    self._seed = weights_lib.seed_pair(seed)
    self._is_private = build_query is not None
    # Public data: a plain sum, without clip and noise.
    self._query = tfp.NoPrivacySumQuery()
    if build_query is not None:
      self._query = build_query(self._live_specs)
      if not isinstance(self._query, queries.PerLayerClipSumQuery):
        raise ValueError(
            f'{type(self._query).__name__} is not for examples, which no '
            'device could noise: take another file of gin/privacy.'
        )
    self._sum = self._build_sum(
        _build_compute(
            model,
            query=self._query,
            live=tuple(self._live_specs),
            gradient_mode=gradient_mode,
            buckets=buckets,
            jit_compile=jit_compile,
        ),
        devices,
    )
    self._batch_size = batch_size
    # Traced once: the noise and the optimizer run in one graph for all steps.
    self._update = tf.function(self._update_graph, autograph=False)

  def initialize(self) -> process.State:
    """The state before the first step, with weights drawn from the seed."""
    weights = self._model.initialize(tf.constant(self._seed))
    query_state, event = self._query.initial_global_state(), ()
    if self._is_private:
      event = _to_arrays(self._query.event(query_state).to_named_tuple())
    # Tensors, because Python numbers would be traced as constants.
    finalizer = tf.nest.map_structure(
        tf.convert_to_tensor, self._optimizer.initialize(self._live_specs)
    )
    return process.State(
        global_model_weights=weights,
        distributor=process.SeedState(
            tf.constant(self._seed), tf.constant(0)
        ),
        # In the state: freezing other weights then changes a step's identity.
        client_work='\n'.join(self._frozen),
        # An event also before the first step, so that the state's type stays
        # the same.
        aggregator=aggregation.State(query_state, event),
        finalizer=finalizer,
    )

  def next(
      self,
      state: process.State,
      batches: Iterable[pipeline_lib.Batch],
  ) -> process.Output:
    """Takes a step.

    Args:
      state: State that `initialize` or the last step returned.
      batches: The physical batches of this step's batch, of features and
        names. An empty batch has none, and is still a step.

    Returns:
      The new state, and metrics, exact and therefore not private: `loss_sum`,
      `gradient_norm_sum` (before clipping; 0 by batch) and
      `num_examples`; without a query also `layer_squares`, by layer the squared
      norm of the mean gradient.
    """
    # From the step's number alone, so that a resumed run draws the same masks.
    seed = tf.random.fold_in(
        tf.constant(state.distributor.seed), state.distributor.round_num
    )
    # Restored states hold arrays, which each device would copy again.
    weights = weights_lib.to_tensors(state.global_model_weights)
    params = self._clipping_params(state.aggregator.query_state)
    # With a query, gradients are clipped before the sums of devices are merged.
    sums = self._sum((weights, params, seed), batches)
    # A Poisson-sampled batch may be empty. Its step is noise, and is charged.
    if sums is None:
      sums = _zeros(self._live(weights), self._query)
    query_state, finalizer = tf.nest.map_structure(
        tf.convert_to_tensor, (state.aggregator.query_state, state.finalizer)
    )
    query_state, event, finalizer, live, squares = self._update(
        query_state, finalizer, self._live(weights), sums.records
    )
    metrics = {
        'loss_sum': sums.loss,
        'gradient_norm_sum': sums.norm,
        'num_examples': sums.count,
    }
    if not self._is_private:
      metrics['layer_squares'] = squares
    step = process.SeedState(
        state.distributor.seed, np.int32(state.distributor.round_num + 1)
    )
    new_state = process.State(
        global_model_weights=weights_lib.updated(weights, live),
        distributor=step,
        client_work=state.client_work,
        aggregator=aggregation.State(query_state, _to_arrays(event)),
        finalizer=finalizer,
    )
    return process.Output(new_state, metrics)

  def _live(self, weights: weights_lib.Weights) -> weights_lib.Weights:
    """The weights that are trained."""
    return weights_lib.without(self._frozen, weights)

  def _clipping_params(self, query_state: Any) -> Any:
    """What the query needs to clip, as tensors."""
    return tf.nest.map_structure(
        tf.convert_to_tensor, self._query.derive_sample_params(query_state)
    )

  def _build_sum(
      self, compute: Callable[..., '_Sums'], devices: Sequence[str]
  ) -> data_parallel.DataParallelSum:
    """The sum over physical batches, shared by the devices."""
    params = self._clipping_params(self._query.initial_global_state())
    return data_parallel.DataParallelSum(
        compute,
        # All queries here have sums that add up element by element.
        merge=functools.partial(tf.nest.map_structure, tf.add),
        shared_spec=(
            weights_lib.tensor_specs(self._model.specs),
            tf.nest.map_structure(tf.type_spec_from_value, params),
            tf.TensorSpec([2], tf.int32),
        ),
        batch_spec=pipeline_lib.batch_spec(self._model.input_dim),
        devices=devices,
    )

  def _update_graph(self, query_state, finalizer, live, records):
    """The noised mean, and the optimizer's step along it."""
    noised, query_state, event = self._query.get_noised_result(
        records, query_state
    )
    # By the expected size; the realised one depends on who was sampled.
    mean = queries.divide_by_cohort_size(noised, self._batch_size)
    squares = ()
    if self._is_private:
      event = event.to_named_tuple()
    else:
      event = ()
      squares = tf.nest.map_structure(
          lambda part: tf.reduce_sum(tf.square(part)), mean
      )
    finalizer, live = self._optimizer.next(finalizer, live, mean)
    return query_state, event, finalizer, live, squares


class _Sums(NamedTuple):
  """Sums over examples, the exact ones not private.

  Attributes:
    records: The query's sample state.
    loss: float32 [], of the losses.
    norm: float32 [], of the gradients' norms before clipping.
    count: float32 [], examples.
  """

  records: Any
  loss: tf.Tensor
  norm: tf.Tensor
  count: tf.Tensor


def _zeros(
    live: weights_lib.Weights, query: tfp.SumAggregationDPQuery
) -> _Sums:
  """Sums over no example."""
  return _Sums(
      query.initial_sample_state(live),
      tf.zeros([]),
      tf.zeros([]),
      tf.zeros([]),
  )


def _build_compute(
    model: best_rq.BestRqModel,
    *,
    query: tfp.SumAggregationDPQuery,
    live: tuple[str, ...],
    gradient_mode: str,
    buckets: Optional[buckets_lib.LengthBuckets],
    jit_compile: bool,
) -> Callable[..., _Sums]:
  """The graph function from weights and a physical batch to its sums."""

  def compute(shared, batch):
    weights, params, seed = shared
    trained = weights_lib.Weights((name, weights[name]) for name in live)
    examples = _examples(batch, seed)
    gradient_of = _build_gradient(model, weights)
    # One gradient of the summed loss: none of an example that could be clipped.
    if gradient_mode == 'per_batch':
      return _Sums(
          *gradient_of(trained, _masked(model, examples)),
          norm=tf.zeros([]),
          count=tf.cast(tf.size(batch['feature_lengths']), tf.float32),
      )
    if jit_compile:
      gradient_of = tf.function(
          gradient_of, autograph=False, jit_compile=True
      )
    return _sum_by_example(
        trained,
        examples,
        query=query,
        params=params,
        prepare=functools.partial(_masked_alone, model, buckets=buckets),
        gradient_of=gradient_of,
    )

  return compute


def build_example_gradients(
    model: best_rq.BestRqModel, *, seed: int
) -> Callable[
    [weights_lib.Weights, pipeline_lib.Batch],
    Iterator[dict[str, tf.Tensor]],
]:
  """Returns gradients of a batch's examples one by one, to look at.

  They are exact, and so for public data or experiments.

  Args:
    model: The model.
    seed: Seed of masks and dropout, which are those of a first step.

  Returns:
    From weights, float32 by name, and a batch to gradients like the weights.
  """
  step_seed = tf.random.fold_in(tf.constant(weights_lib.seed_pair(seed)), 0)
  spec = weights_lib.tensor_specs(model.specs)

  # In the example's own length, whatever the batch's is.
  one = tf.TensorSpec([1, None, model.input_dim], tf.float32)
  seeds = tf.TensorSpec([1, 2, 2], tf.int32)

  @tf.function(
      input_signature=[
          spec, _Examples(one, tf.TensorSpec([1], tf.int32), seeds)
      ],
      autograph=False,
  )
  def gradient_of(weights, example):
    gradient, _ = _build_gradient(model, weights)(
        weights, _masked_alone(model, example)
    )
    return gradient

  def gradients(weights, batch):
    weights = weights_lib.to_tensors(weights)
    parts = _examples(batch, step_seed)
    for number in range(len(batch['feature_lengths'])):
      yield gradient_of(
          weights, _Examples(*(part[number : number + 1] for part in parts))
      )

  return gradients


class _Examples(NamedTuple):
  """Examples to be masked.

  Attributes:
    features: float32 [B, T, F].
    lengths: int32 [B].
    seeds: int32 [B, 2, 2], of masks and of dropout.
  """

  features: tf.Tensor
  lengths: tf.Tensor
  seeds: tf.Tensor


# Examples that are masked, and seeds of their dropout, int32 [B, 2].
_MaskedExamples = tuple[best_rq.Masked, tf.Tensor]
_GradientOf = Callable[
    [weights_lib.Weights, _MaskedExamples],
    tuple[weights_lib.Weights, tf.Tensor],
]


def _examples(batch: pipeline_lib.Batch, seed: tf.Tensor) -> _Examples:
  """The examples of a batch, with seeds by step and by name."""
  # By name, not by row: packing does not change an example's draws.
  names = tf.strings.join(
      [batch['client_id'], batch['utterance_id']], separator='\n'
  )
  numbers = tf.cast(
      tf.strings.to_hash_bucket_fast(names, 2**31 - 1), tf.int32
  )
  seeds = tf.map_fn(
      lambda number: tf.random.split(tf.random.fold_in(seed, number), 2),
      numbers,
      fn_output_signature=tf.TensorSpec([2, 2], tf.int32),
  )
  return _Examples(batch['features'], batch['feature_lengths'], seeds)


def _masked(
    model: best_rq.BestRqModel, examples: _Examples
) -> _MaskedExamples:
  """Examples masked, and their seeds of dropout."""
  features, lengths, seeds = examples
  return model.mask(features, lengths, seeds[:, 0]), seeds[:, 1]


def _masked_alone(
    model: best_rq.BestRqModel,
    example: _Examples,
    *,
    buckets: Optional[buckets_lib.LengthBuckets] = None,
) -> _MaskedExamples:
  """One example masked, padded, if at all, by its length alone.

  The batch's padding would change its rounding.
  """
  features, lengths, seeds = example
  features = features[:, : lengths[0]]
  if buckets is not None:
    features = buckets.pad_frames(features)
  return _masked(model, _Examples(features, lengths, seeds))


def _build_gradient(
    model: best_rq.BestRqModel, weights: weights_lib.Weights
) -> _GradientOf:
  """Returns a function to the gradient of the summed loss, and that loss.

  The function takes trained weights, which stand in place of some of these, and
  the examples and seeds that `_masked` returns.
  """

  def gradient_of(trained, examples):
    masked, seeds = examples
    with tf.GradientTape() as tape:
      tape.watch(trained)
      # The sum, not the mean: of one example they are equal, and by batch the
      # divisor is the batch size that all devices share.
      loss = tf.reduce_sum(
          model.masked_loss({**weights, **trained}, masked, seeds[0])
      )
    # Zeros and not None for a weight that the loss does not use: a record has
    # all of them.
    gradient = tape.gradient(
        loss, trained, unconnected_gradients=tf.UnconnectedGradients.ZERO
    )
    return gradient, loss

  return gradient_of


def _sum_by_example(
    weights: weights_lib.Weights,
    examples: _Examples,
    *,
    query: tfp.SumAggregationDPQuery,
    params: Any,
    prepare: Callable[[_Examples], _MaskedExamples],
    gradient_of: _GradientOf,
) -> _Sums:
  """Sums the gradients of a batch's examples, as the query clips them.

  Args:
    weights: What is trained: gradients are by these alone.
    examples: Nest of tensors [B, ...], B at least 1.
    query: Clips; its records are gradients like the weights.
    params: Parameters that the query's `derive_sample_params` returned.
    prepare: Turns one of the examples into what `gradient_of` takes.
    gradient_of: As `_build_gradient` returns it.
  """

  # One after the other, each in its own length. Computed together, an example
  # would change the dropout and the rounding of others, which no clip bounds.
  def add(number, sums: _Sums) -> tuple[tf.Tensor, _Sums]:
    example = tf.nest.map_structure(
        lambda part: part[number : number + 1], examples
    )
    gradient, loss = gradient_of(weights, prepare(example))
    return number + 1, _Sums(
        query.accumulate_record(params, sums.records, gradient),
        sums.loss + loss,
        # Before the clip: the metric shows how much is clipped.
        sums.norm + tf.linalg.global_norm(tf.nest.flatten(gradient)),
        sums.count + 1,
    )

  batch_size = tf.shape(tf.nest.flatten(examples)[0])[0]
  _, sums = tf.while_loop(
      lambda number, _: number < batch_size,
      add,
      (tf.constant(0), _zeros(weights, query)),
      # In the memory of one example.
      parallel_iterations=1,
  )
  return sums


def _to_arrays(event: Any) -> Any:
  """The event as TFF keeps it in a state: its names as bytes."""
  return tf.nest.map_structure(
      lambda value: tf.convert_to_tensor(value).numpy(), event
  )

"""Gradients by example, clipped by a DP query and summed.

What a batch's gradient hides, each example's own gradient, is computed for n
examples at a time: by `tf.vectorized_map` for n of 2 and more, one after the
other for 1. Each becomes a record of the query, which clips it; the sum is over
the records. The result depends on n by rounding only.

Memory beside the weights: n gradients, 4 n bytes a trained parameter; one
record that is being clipped, in float64, and the sum, up to 20 bytes a trained
parameter; and the activations of n examples.

  B: batch size.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import tensorflow as tf
import tensorflow_privacy as tfp

from tff_asr.models import weights as weights_lib

LossFn = Callable[[weights_lib.Weights, Any], tf.Tensor]


class Sums(NamedTuple):
  """Sums over examples.

  Attributes:
    records: The query's sample state.
    loss: float32 [], of the losses, exact: not private.
    norm: float32 [], of the gradients' norms before clipping: not private.
  """

  records: Any
  loss: tf.Tensor
  norm: tf.Tensor


def zeros(weights: weights_lib.Weights, *, query: tfp.DPQuery) -> Sums:
  """Sums over no example."""
  return Sums(query.initial_sample_state(weights), tf.zeros([]), tf.zeros([]))


def clipped_sum(
    loss_fn: LossFn,
    weights: weights_lib.Weights,
    examples: Any,
    *,
    query: tfp.DPQuery,
    params: Any,
    num_vectorized: int,
    trim: Callable[[Any], Any] = lambda examples: examples,
) -> Sums:
  """Sums the clipped gradients of a batch's examples.

  Args:
    loss_fn: Of weights and a batch of one example, as in `examples`, to its
      loss float32 [].
    weights: What is trained: gradients are by these alone.
    examples: Nest of tensors [B, ...], B at least 1.
    query: Clips; its records are gradients like the weights.
    params: Of the query's `derive_sample_params`.
    num_vectorized: n, examples at a time.
    trim: Cuts padding off some of the examples.
  """

  def gradient_of(example):
    with tf.GradientTape() as tape:
      tape.watch(weights)
      loss = loss_fn(weights, example)
    gradient = tape.gradient(
        loss, weights, unconnected_gradients=tf.UnconnectedGradients.ZERO
    )
    return gradient, loss

  def add(sums: Sums, gradient, loss) -> Sums:
    record = query.preprocess_record(params, gradient)
    return Sums(
        query.accumulate_preprocessed_record(sums.records, record),
        sums.loss + loss,
        sums.norm + tf.linalg.global_norm(tf.nest.flatten(gradient)),
    )

  def group_sum(start, sums):
    group = trim(_rows(examples, start, start + num_vectorized))
    if num_vectorized == 1:
      return add(sums, *gradient_of(group))
    gradients, losses = tf.vectorized_map(
        lambda row: gradient_of(
            tf.nest.map_structure(lambda part: part[tf.newaxis], row)
        ),
        group,
    )
    # Records one after the other: what clipping needs, float64, it needs once.
    row = lambda number: tf.nest.map_structure(
        lambda part: part[number], gradients
    )
    _, sums = tf.while_loop(
        lambda number, _: number < tf.size(losses),
        lambda number, sums: (
            number + 1, add(sums, row(number), losses[number])
        ),
        (tf.constant(0), sums),
        parallel_iterations=1,
    )
    return sums

  batch_size = tf.shape(tf.nest.flatten(examples)[0])[0]
  _, sums = tf.while_loop(
      lambda start, _: start < batch_size,
      lambda start, sums: (start + num_vectorized, group_sum(start, sums)),
      (tf.constant(0), zeros(weights, query=query)),
      parallel_iterations=1,
  )
  return sums


def _rows(examples: Any, start: tf.Tensor, end: tf.Tensor) -> Any:
  """Rows of each tensor of a nest; fewer at its end."""
  return tf.nest.map_structure(lambda part: part[start:end], examples)

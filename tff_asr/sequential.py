"""A map over the tensors of a model, one at a time to save memory."""

from collections.abc import Callable, Iterable
from typing import TypeVar

import tensorflow as tf

_Result = TypeVar('_Result')


def sequential_map(
    function: Callable[..., _Result], *tensors: Iterable[object]
) -> list[_Result]:
  """`[function(*each) for each in zip(*tensors)]`, in a graph in that order.

  TensorFlow would start all elements at once, and their temporary tensors would
  need memory at the same time. Here they need that of the largest element.

  Args:
    function: Maps one element of each; returns a nest of tensors.
    *tensors: Sequences of equal length. What an iterator computes for an
      element waits for the results of the previous element, too.
  """
  results = []
  done = []
  rows = zip(*tensors, strict=True)
  while True:
    with tf.control_dependencies(done):
      # In here, so that what an iterator computes waits, too.
      each = next(rows, None)
      if each is None:
        return results
      results.append(function(*each))
    done = [x for x in tf.nest.flatten(results[-1]) if tf.is_tensor(x)]

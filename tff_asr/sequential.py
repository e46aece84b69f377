"""What a graph does with all tensors of a model, in little memory."""

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import tensorflow as tf

_Result = TypeVar('_Result')


def sequential_map(
    function: Callable[..., _Result], *tensors: Iterable[Any]
) -> list[_Result]:
  """`[function(*each) for each in zip(*tensors)]`, in a graph in that order.

  An executor begins with all tensors at once, and what is computed on the way
  takes the memory of all of them; so it takes that of the largest.

  Args:
    function: Of one element of each; returns a nest of tensors.
    *tensors: Of one length.
  """
  results = []
  done = []
  for each in zip(*tensors, strict=True):
    with tf.control_dependencies(done):
      results.append(function(*each))
    done = [x for x in tf.nest.flatten(results[-1]) if tf.is_tensor(x)]
  return results

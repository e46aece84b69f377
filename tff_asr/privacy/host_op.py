"""NumPy functions as TensorFlow ops that work in stored graphs, too."""

from collections.abc import Callable, Sequence

import numpy as np
import tensorflow as tf
from tensorflow.python.ops import script_ops


def register_numpy_op(
    name: str, function: Callable[..., Sequence[np.ndarray]]
) -> Callable[..., list[tf.Tensor]]:
  """Returns a function as an op, which calls it when the graph runs.

  Args:
    name: Name of the op's function. A graph that was traced in one program runs
      in every other that registered the name.
    function: From arrays to int64 arrays. Its result depends on them alone.

  Returns:
    A function from tensors, and `num_outputs`, to int64 tensors.
  """
  # `tf.numpy_function` numbers its functions by process, and drops them with
  # the graph that they were traced in; TFF stores graphs and loads them later.
  # pylint: disable-next=protected-access
  script_ops._py_funcs._funcs[name] = function

  def call(*inputs: tf.Tensor, num_outputs: int) -> list[tf.Tensor]:
    # Stateless: TensorFlow may run it out of order or drop an unused result.
    return tf.raw_ops.PyFuncStateless(
        input=inputs, token=name, Tout=[tf.int64] * num_outputs
    )

  return call

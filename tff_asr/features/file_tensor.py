"""Tensors that stay in files: mapped into memory, never in a graph.

The weights of a public model are the same in all rounds and for all clients.
In a graph they would be constants, copied into each program and limited to 2
GB. Here an op maps the file: a graph holds the path only, and all processes of
a machine share the file's pages. TensorFlow's constant folding copies tensors
of up to 10 MiB into each program when it is loaded; larger ones stay mapped.

    >>> import numpy as np
    >>> tensor = write('weights.bin', np.ones([2, 3], np.float32))
    >>> tensor.read().shape
    TensorShape([2, 3])
"""

import math
import os
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from tff_asr import files


class FileTensor(NamedTuple):
  """A float32 tensor whose bytes, little-endian, are a file.

  Attributes:
    path: The file, absolute.
    shape: The tensor's shape.
  """

  path: str
  shape: tuple[int, ...]

  def read(self, *, is_overwritten: bool = False) -> tf.Tensor:
    """Returns the tensor, float32; traceable.

    Args:
      is_overwritten: Whether to copy it to memory that ops may write to. An op
        such as an addition reuses the memory of an operand of its result's
        shape, and writing to a mapped file ends the process.

    Raises:
      ValueError: The file is missing or of another size. Where a graph runs
        on another machine, its op fails there instead.
    """
    size = 4 * math.prod(self.shape)
    if not os.path.isfile(self.path) or os.path.getsize(self.path) != size:
      raise ValueError(
          f'{self.path} is missing or has not {size} bytes: load the model '
          'again, which writes it.'
      )
    # There is no kernel for GPUs: TensorFlow copies the tensor to them.
    with tf.device('/device:CPU:0'):
      mapped = tf.raw_ops.ImmutableConst(
          dtype=tf.float32, shape=self.shape, memory_region_name=self.path
      )
      return tf.raw_ops.DeepCopy(x=mapped) if is_overwritten else mapped

  def numpy(self) -> np.ndarray:
    """Returns the values, mapped and read-only."""
    if not math.prod(self.shape):
      return np.zeros(self.shape, np.float32)
    return np.memmap(self.path, '<f4', 'r', shape=self.shape)


def write(path: str, values: np.ndarray) -> FileTensor:
  """Writes a tensor's file.

  Args:
    path: The file; replaced as a whole, so that readers of an older one of the
      same values are not disturbed.
    values: Of any shape, converted to float32.
  """
  files.write(path, np.ascontiguousarray(values, '<f4').tobytes())
  return FileTensor(os.path.abspath(path), tuple(values.shape))

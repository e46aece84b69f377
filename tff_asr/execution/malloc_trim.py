"""Returns freed memory to the system between the parts of a round.

glibc's allocator keeps freed blocks under 32 MB for reuse. Clients' work and
the server's step need blocks of different sizes, so with a large model
gigabytes lie idle. A round of 255.8M parameters peaked at 12.8 GiB without this
module and `sequential`, and at 9.2 GiB with them, when tensors came from glibc.
With oneDNN they come from a pool of TensorFlow's, which returns nothing, unless
`TF_ONEDNN_USE_SYSTEM_ALLOCATOR` is 1; what NumPy frees is returned.
"""

from collections.abc import Iterable
import ctypes

import tensorflow as tf

# The allocator keeps little of smaller models, and a trim takes milliseconds.
MIN_BYTES = 2**26

_trim = getattr(ctypes.CDLL(None), 'malloc_trim', None)  # glibc's alone.


def give_back(tensors: Iterable[tf.Tensor]) -> None:
  """Returns free memory to the system if these tensors are large together."""
  if _trim is None:
    return
  num_bytes = sum(
      tensor.dtype.size * (tensor.shape.num_elements() or 0)
      for tensor in tensors
  )
  if num_bytes >= MIN_BYTES:
    _trim(0)

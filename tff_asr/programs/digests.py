"""Digests of what runs hold, to tell whether two of them are the same bits."""

import concurrent.futures
import hashlib
import os
from typing import Any

import numpy as np
import tree


def digest(values: Any) -> str:
  """Returns SHA-256, in hex, over a nest of arrays, tensors and strings.

  It covers paths, types, shapes and every byte. Leaves are hashed side by side,
  so that a large model takes the time of its bytes over the cores.
  """
  leaves = tree.flatten_with_path(values)
  with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
    digests = list(pool.map(_leaf, [value for _, value in leaves]))
  whole = hashlib.sha256()
  for (path, _), leaf_digest in zip(leaves, digests):
    whole.update(repr(path).encode() + b'\0' + leaf_digest)
  return whole.hexdigest()


def _leaf(value: Any) -> bytes:
  """SHA-256 of a leaf."""
  if isinstance(value, (str, bytes)):
    return hashlib.sha256(repr(value).encode()).digest()
  array = np.asarray(value.numpy() if hasattr(value, 'numpy') else value)
  if array.dtype.hasobject:  # strings of TensorFlow
    return hashlib.sha256(repr(array.tolist()).encode()).digest()
  header = f'{array.dtype.str}{array.shape}'.encode()
  hashed = hashlib.sha256(header)
  hashed.update(np.ascontiguousarray(array).view(np.uint8).data
                if array.size and array.ndim else array.tobytes())
  return hashed.digest()

"""Model files: trained weights by name, as safetensors (`tensor_file`).

The file also stores the identity of the tokens, and the head of the privacy
ledger of the run that trained the weights.
"""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from tff_asr.storage import tensor_file

_TOKENS = 'tokens'


class Header(NamedTuple):
  """Describes the weights of a model file.

  Attributes:
    shapes: Shapes of the weights, by name.
    tokens: Identity of the model's vocabulary; '' for a pre-trained encoder.
    content: All that was stored with the weights.
  """

  shapes: dict[str, tuple[int, ...]]
  tokens: str
  content: dict[str, tensor_file.Json]


def write(
    path: str,
    weights: Mapping[str, np.ndarray | tf.Tensor],
    *,
    tokens: str,
    **content: tensor_file.Json,
) -> None:
  """Writes weights to a file, atomically, in place of an older one.

  Args:
    path: The file; its folder exists.
    weights: Weights by name.
    tokens: See `Header`.
    **content: Further values to store.
  """
  arrays = {
      name: np.asarray(value, order='C') for name, value in weights.items()
  }
  tensor_file.write(path, arrays, content={_TOKENS: tokens, **content})


def read_header(path: str) -> Header:
  """Reads the description of a model file, but not its weights.

  Raises:
    DamagedFileError: The file is damaged, or is not a model of this project.
  """
  found = tensor_file.read_header(path)
  tokens = found.content.get(_TOKENS)
  if not isinstance(tokens, str):
    raise tensor_file.DamagedFileError(
        f'The file {path} is not a model of this project: it has no tokens.'
    )
  return Header(found.shapes, tokens, found.content)


def read(path: str) -> dict[str, np.ndarray]:
  """Reads the weights of a file, sorted by name.

  Raises:
    DamagedFileError: As `read_header`, or the weights are damaged.
  """
  # Checks that it is a model, and not another file of tensors.
  read_header(path)
  return tensor_file.read(path)

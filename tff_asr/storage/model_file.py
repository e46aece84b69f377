"""Model files: trained weights by name, as safetensors (`tensor_file`).

The file also stores the identity of the tokens, and the head of the privacy
ledger of the run that trained the weights.
"""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from tff_asr.storage import tensor_file

# Also what distinguishes a model from other tensor files.
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
  tensor_file.write(path, weights, content={_TOKENS: tokens, **content})


def read_header(path: str) -> Header:
  """Reads the description of a model file, but not its weights.

  Raises:
    DamagedFileError: The file is damaged, or is not a model of this project.
  """
  found = tensor_file.read_header(path)
  return Header(found.shapes, _tokens(path, found.content), found.content)


def read(path: str) -> dict[str, np.ndarray]:
  """Reads the weights of a file, sorted by name.

  Raises:
    DamagedFileError: As `read_header`, or the weights are damaged.
  """
  weights, content = tensor_file.read_with_header(path)
  # A state has arrays, too.
  _tokens(path, content)
  return weights


def _tokens(path: str, content: tensor_file.Content) -> str:
  """Returns the tokens; raises DamagedFileError if there are none."""
  if _TOKENS not in content:
    raise tensor_file.DamagedFileError(
        f'The file {path} is not a model of this project: it has no tokens.'
    )
  return content[_TOKENS]

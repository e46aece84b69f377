"""Model files: trained weights by name, as safetensors.

The format and its reader are those of the package `safetensors`: a header in
JSON, and the tensors' bytes. Nothing is pickled: reading runs no code from the
file. The header's metadata have one entry, `tff_asr`, so that equal weights
give equal files: JSON with texts. They are what the weights are for (`tokens`),
the head of their privacy ledger (`ledger`), and two checksums: `header` of
names, shapes and texts, `data` of the tensors. CRC-32 finds damage, not
forgery.

A file is written atomically, for its owner only (`files`).
"""

from collections.abc import Mapping
import json
from typing import Any, NamedTuple
import zlib

import numpy as np
import safetensors
from safetensors import numpy as safetensors_numpy

from tff_asr import files

_TEXTS = 'tff_asr'
_TOKENS = 'tokens'
_DATA = 'data'
_HEADER = 'header'


class DamagedModelError(ValueError):
  """A model file is not what was written."""


class Header(NamedTuple):
  """What a model file says of its weights.

  Attributes:
    shapes: Shapes of the weights, by name.
    texts: What was stored with them.
  """

  shapes: dict[str, tuple[int, ...]]
  texts: dict[str, str]

  @property
  def tokens(self) -> str:
    """Identity of the tokens that the model writes; '' for none."""
    return self.texts[_TOKENS]


def write(
    path: str, weights: Mapping[str, Any], *, tokens: str, **texts: str
) -> None:
  """Writes weights to a file, atomically, in place of any older one.

  Args:
    path: The file; its folder exists.
    weights: Arrays or tensors by name.
    tokens: See `Header`.
    **texts: Further ones to store.
  """
  arrays = {
      name: np.asarray(weights[name], order='C') for name in sorted(weights)
  }
  shapes = {name: array.shape for name, array in arrays.items()}
  texts = {_TOKENS: tokens, _DATA: _data_checksum(arrays), **texts}
  texts[_HEADER] = _header_checksum(shapes, texts)
  data = safetensors_numpy.save(
      arrays, metadata={_TEXTS: json.dumps(texts, sort_keys=True)}
  )
  files.write(path, data, mode=0o600)


def read_header(path: str) -> Header:
  """Reads what a file says of its weights, and not the weights.

  Raises:
    DamagedModelError: It is no whole model file of this project.
  """
  try:
    with safetensors.safe_open(path, framework='numpy') as file:
      stored = (file.metadata() or {}).get(_TEXTS, '{}')
      shapes = {
          name: tuple(file.get_slice(name).get_shape()) for name in file.keys()
      }
    texts = files.parse_json(stored)
  except (safetensors.SafetensorError, ValueError) as e:
    raise DamagedModelError(f'The model file {path} is damaged: {e}.') from None
  if (
      not isinstance(texts, dict)
      or not texts.keys() >= {_TOKENS, _DATA, _HEADER}
      or {type(text) for text in texts.values()} != {str}
  ):
    raise DamagedModelError(
        f'The model file {path} is not of this project: its metadata have no '
        f'{_TEXTS} with {_TOKENS} and checksums.'
    )
  if texts.pop(_HEADER) != _header_checksum(shapes, texts):
    raise DamagedModelError(
        f'The model file {path} is damaged: its header does not have its '
        'checksum.'
    )
  return Header(shapes, texts)


def read(path: str) -> dict[str, np.ndarray]:
  """Reads the weights of a file, sorted by name.

  Raises:
    DamagedModelError: As `read_header`; or the weights do not have their
      checksum.
  """
  header = read_header(path)
  try:
    with safetensors.safe_open(path, framework='numpy') as file:
      arrays = {name: file.get_tensor(name) for name in sorted(header.shapes)}
  except (safetensors.SafetensorError, AttributeError, TypeError) as e:
    # NumPy lacks some of its types.
    raise DamagedModelError(f'The model file {path} is damaged: {e}.') from None
  if _data_checksum(arrays) != header.texts[_DATA]:
    raise DamagedModelError(
        f'The model file {path} is damaged: its weights do not have their '
        'checksum.'
    )
  return arrays


def _data_checksum(arrays: Mapping[str, np.ndarray]) -> str:
  """CRC-32 of all bytes, array by array."""
  crc = 0
  for array in arrays.values():
    crc = zlib.crc32(np.asarray(array, order='C').reshape(-1), crc)
  return f'{crc:08x}'


def _header_checksum(
    shapes: Mapping[str, tuple[int, ...]], texts: Mapping[str, str]
) -> str:
  """CRC-32 of names, shapes and texts."""
  said = [sorted(shapes.items()), sorted(texts.items())]
  return f'{zlib.crc32(json.dumps(said).encode()):08x}'

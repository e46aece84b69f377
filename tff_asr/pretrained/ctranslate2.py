"""Whisper's encoder from a folder of CTranslate2 (`model.bin`).

The format (https://github.com/OpenNMT/CTranslate2) is little endian: uint32
version; the model's kind and uint32 revision; uint32 count, and for each
variable its name, uint8 rank, uint32 sizes, uint8 type, uint32 bytes and the
data; uint32 count of aliases, and pairs of names. A string is its uint16 length
and its bytes, the last of which is 0. Queries, keys and values are one matrix
(`self_attention/linear_0`), as in `models.attention`.

Only the encoder is read. Reading runs no code from the file.
"""

import math
import os
import re
import struct
from typing import BinaryIO, NamedTuple

import numpy as np

from tff_asr import files
from tff_asr.models import whisper
from tff_asr.pretrained import public_model
from tff_asr.pretrained import tensor_rules

FILE = 'model.bin'

_VERSIONS = (4, 5, 6)
_KIND = 'WhisperSpec'
# Names of types in order of their numbers.
_TYPES = ('float32', 'int8', 'int16', 'int32', 'float16', 'bfloat16')
_ITEM_BYTES = (4, 1, 2, 4, 2, 2)
_FLOATS = ('float32', 'float16', 'bfloat16')
_NUM_HEADS = 'encoder/num_heads'
_IGNORED = re.compile(r'decoder/.*|encoder/num_heads')
_LAYER = re.compile(r'encoder/layer_(\d+)/.*')
_POSITION_SEC = 0.02


class _Variable(NamedTuple):
  """Where the data of a variable lie in the file."""

  shape: tuple[int, ...]
  dtype: str
  offset: int
  num_bytes: int


class Variables:
  """The variables of a model.bin; `tensor_rules.Tensors`.

  Attributes:
    path: The file.
    kind: What the model is, such as 'WhisperSpec'.
    shapes: Shapes by name, of aliases, too.
  """

  def __init__(self, path: str):
    """Reads what the file holds, but no data.

    Raises:
      ValueError: The file is truncated, or not of CTranslate2 or of a version
        that is not known.
    """
    self.path = path
    # Data are read one variable at a time, when they are asked for: decoders,
    # which may be larger than the encoder, never are.
    with files.open_regular(path) as f:
      self.kind, self._variables = _read_table(_Cursor(path, f))
    self.shapes = {name: each.shape for name, each in self._variables.items()}

  def read(self, name: str) -> np.ndarray:
    """Reads a variable of floats as float32.

    Raises:
      ValueError: It is of another type, as in a quantised model.
    """
    variable = self._variables[name]
    if variable.dtype not in _FLOATS:
      raise ValueError(
          f'{self.path}: {name!r} is {variable.dtype}: the model is quantised. '
          'Convert it with --quantization float16 or float32.'
      )
    data = self._bytes(variable)
    if variable.dtype == 'bfloat16':
      # The upper half of a float32.
      values = (np.frombuffer(data, '<u2').astype('<u4') << 16).view('<f4')
    else:
      values = np.frombuffer(data, np.dtype(variable.dtype).newbyteorder('<'))
    return values.reshape(variable.shape).astype(np.float32)

  def read_int(self, name: str) -> int:
    """Reads an integer.

    Raises:
      ValueError: There is none of this name.
    """
    variable = self._variables.get(name)
    if variable is None or variable.shape or variable.dtype in _FLOATS:
      raise ValueError(
          f'{self.path} has no integer {name!r}. Convert the model with a '
          'present version of CTranslate2.'
      )
    return int.from_bytes(self._bytes(variable), 'little', signed=True)

  def _bytes(self, variable: _Variable) -> bytes:
    with files.open_regular(self.path) as f:
      f.seek(variable.offset)
      return f.read(variable.num_bytes)


def load(folder: str) -> public_model.PublicModel:
  """Loads Whisper's encoder.

  Args:
    folder: A folder with model.bin. Its config.json has nothing that the
      encoder needs and is not read.

  Raises:
    ValueError: A bad file; see `Variables` and `tensor_rules.convert`.
    OSError: The file cannot be read.
  """
  path = os.path.join(folder, FILE)
  variables = Variables(path)
  if variables.kind != _KIND:
    raise ValueError(
        f'{path} is of the kind {variables.kind!r}; take a Whisper model '
        f'({_KIND!r}).'
    )
  settings = _settings(variables)
  encoder = whisper.build(**settings)
  return public_model.PublicModel(
      name=os.path.basename(os.path.abspath(folder)),
      family='whisper',
      licence=public_model.licence_of(folder),
      source='a folder',
      sha256=public_model.sha256_of([path]),
      front_end=public_model.WHISPER_LOG_MEL,
      front_end_settings={'num_mel_bins': settings['feature_dim']},
      settings=settings,
      encoder=encoder,
      weights=tensor_rules.convert(
          variables,
          tensor_rules.of_blocks(encoder.specs, fixed=_FIXED, block=_BLOCK),
          encoder.specs,
          ignored=_IGNORED,
      ),
      files=(path,),
      max_duration_sec=settings['max_positions'] * _POSITION_SEC,
  )


def _settings(variables: Variables) -> dict[str, int]:
  """Arguments of `whisper.build`, from the variables' shapes."""

  def sizes(name: str, rank: int) -> tuple[int, ...]:
    found = variables.shapes.get(name, ())
    if len(found) != rank or not all(found):
      raise ValueError(
          f'{variables.path} has no encoder of Whisper: {name!r} is '
          f'{list(found) if found else "missing"}. Fetch the file again.'
      )
    return found

  dim, feature_dim, _ = sizes('encoder/conv1/weight', 3)
  mlp_dim, _ = sizes('encoder/layer_0/ffn/linear_0/weight', 2)
  max_positions, _ = sizes('encoder/position_encodings/encodings', 2)
  # Only their number: `tensor_rules.convert` finds those that are incomplete.
  layers = {
      match.group(1) for match in map(_LAYER.fullmatch, variables.shapes)
      if match
  }
  num_heads = variables.read_int(_NUM_HEADS)
  if num_heads < 1 or dim % num_heads or dim % 2:
    raise ValueError(
        f'{variables.path} has {num_heads} heads at width {dim}, which they do '
        'not divide. Fetch the file again.'
    )
  return dict(
      num_blocks=len(layers),
      dim=dim,
      mlp_dim=mlp_dim,
      num_heads=num_heads,
      max_positions=max_positions,
      feature_dim=feature_dim,
  )


class _Cursor:
  """A file that is read from its start to its end.

  Attributes:
    path: The file.
    size: Its bytes.
  """

  def __init__(self, path: str, file: BinaryIO):
    self.path = path
    self._file = file
    self.size = os.fstat(file.fileno()).st_size

  @property
  def offset(self) -> int:
    return self._file.tell()

  def skip(self, num_bytes: int) -> None:
    """Skips data.

    Raises:
      ValueError: The file ends before.
    """
    if self.offset + num_bytes > self.size:
      raise ValueError(
          f'{self.path} ends at byte {self.size} in the middle of a variable: '
          'it is truncated or not of CTranslate2. Fetch it again.'
      )
    self._file.seek(num_bytes, os.SEEK_CUR)

  def number(self, code: str) -> int:
    """Reads a number of a type of `struct`."""
    return self._unpack(code)[0]

  def numbers(self, code: str, count: int) -> tuple[int, ...]:
    """Reads several numbers."""
    return self._unpack(code * count)

  def string(self) -> str:
    """Reads a string."""
    num_bytes = self.number('H')
    data = self._unpack(f'{num_bytes}s')[0]
    if not data.endswith(b'\0') or not data[:-1].isascii():
      raise ValueError(
          f'{self.path} has no name at byte {self.offset - num_bytes}: it is '
          'damaged or not of CTranslate2. Fetch it again.'
      )
    return data[:-1].decode()

  def _unpack(self, codes: str) -> tuple:
    layout = struct.Struct(f'<{codes}')
    start = self.offset
    self.skip(layout.size)
    # `skip` has moved on, after it found that the file has as many bytes.
    self._file.seek(start)
    return layout.unpack(self._file.read(layout.size))


def _read_table(cursor: _Cursor) -> tuple[str, dict[str, _Variable]]:
  """Reads the kind of model, and its variables without their data."""
  version = cursor.number('I')
  if version not in _VERSIONS:
    raise ValueError(
        f'{cursor.path} has the format {version} where CTranslate2 has one of '
        f'{_VERSIONS}. Convert the model with a present version of it.'
    )
  kind = cursor.string()
  cursor.number('I')  # Its revision; names and shapes are checked instead.
  variables = {}
  for _ in range(cursor.number('I')):
    name = cursor.string()
    if name in variables:
      raise ValueError(
          f'{cursor.path} has {name!r} twice: it is damaged. Fetch it again.'
      )
    variables[name] = _read_variable(cursor, name)
  for _ in range(cursor.number('I')):
    alias, name = cursor.string(), cursor.string()
    if name not in variables:
      raise ValueError(
          f'{cursor.path} has {alias!r} for {name!r}, which it lacks. Fetch it '
          'again.'
      )
    # Weights that are tied lie in the file once.
    variables[alias] = variables[name]
  # A table that was misread seldom ends where the file does.
  if cursor.offset != cursor.size:
    raise ValueError(
        f'{cursor.path} goes on for {cursor.size - cursor.offset} bytes after '
        'its end: it is damaged. Fetch it again.'
    )
  return kind, variables


def _read_variable(cursor: _Cursor, name: str) -> _Variable:
  """Reads where a variable lies, and skips its data."""
  shape = cursor.numbers('I', cursor.number('B'))
  type_number, num_bytes = cursor.number('B'), cursor.number('I')
  if type_number >= len(_TYPES):
    raise ValueError(
        f'{cursor.path}: {name!r} is of a type {type_number} that is not '
        'known. Convert the model with --quantization float16.'
    )
  # Both are stored. If they differ, the next variable is not where it should
  # be.
  expected = math.prod(shape) * _ITEM_BYTES[type_number]
  if num_bytes != expected:
    raise ValueError(
        f'{cursor.path}: {name!r} has {num_bytes} bytes, its shape '
        f'{list(shape)} needs {expected}: the file is damaged. Fetch it again.'
    )
  variable = _Variable(shape, _TYPES[type_number], cursor.offset, num_bytes)
  cursor.skip(num_bytes)
  return variable


def _layer_norm(prefix: str, name: str) -> dict[str, tensor_rules.Rule]:
  """Rules of a layer norm."""
  return {
      f'{name}/bias': tensor_rules.Rule((f'{prefix}/layer_norm/beta',)),
      f'{name}/scale': tensor_rules.Rule((f'{prefix}/layer_norm/gamma',)),
  }


def _linear(
    prefix: str, bias: str, weight: str
) -> dict[str, tensor_rules.Rule]:
  """Rules of a bias and a matrix or kernel."""
  return {
      bias: tensor_rules.Rule((f'{prefix}/bias',)),
      weight: tensor_rules.Rule((f'{prefix}/weight',)),
  }


_FIXED = {
    **_linear('encoder/conv1', 'front/bias_1', 'front/kernel_1'),
    **_linear('encoder/conv2', 'front/bias_2', 'front/kernel_2'),
    **_layer_norm('encoder', 'norm'),
    # A table with a row for each position, here as there.
    'front/positions': tensor_rules.Rule(
        ('encoder/position_encodings/encodings',), is_reversed=False
    ),
}
_BLOCK = {
    **_layer_norm('encoder/layer_{}/self_attention', 'ln1'),
    **_linear('encoder/layer_{}/self_attention/linear_0', 'bqkv', 'wqkv'),
    **_linear('encoder/layer_{}/self_attention/linear_1', 'bf', 'wf'),
    **_layer_norm('encoder/layer_{}/ffn', 'ln2'),
    **_linear('encoder/layer_{}/ffn/linear_0', 'b1', 'w1'),
    **_linear('encoder/layer_{}/ffn/linear_1', 'b2', 'w2'),
}

"""A writer of CTranslate2's model.bin, for tests."""

from collections.abc import Mapping, Sequence
import os
import struct

import ml_dtypes
import numpy as np

from tools.pretrained_parity import random_folders

_TYPES = ('float32', 'int8', 'int16', 'int32', 'float16', 'bfloat16')


def encode(
    variables: Sequence[tuple[str, np.ndarray]],
    *,
    version: int = 6,
    kind: str = 'WhisperSpec',
    aliases: Sequence[tuple[str, str]] = (),
) -> bytes:
  """Returns a file's bytes; a name may come several times."""
  parts = [struct.pack('<I', version), _string(kind), struct.pack('<I', 3)]
  parts.append(struct.pack('<I', len(variables)))
  for name, value in variables:
    data = value.tobytes()
    parts += [
        _string(name),
        struct.pack(f'<B{value.ndim}I', value.ndim, *value.shape),
        struct.pack('<BI', _TYPES.index(value.dtype.name), len(data)),
        data,
    ]
  parts.append(struct.pack('<I', len(aliases)))
  parts += [_string(each) for pair in aliases for each in pair]
  return b''.join(parts)


def variables(
    config: random_folders.Config, *, dtype: str = 'float32'
) -> dict[str, np.ndarray]:
  """Variables of the encoder that `random_folders` makes of a configuration."""
  tensors = random_folders.tensors(config)
  found = {
      'encoder/num_heads': np.array(
          config['encoder_attention_heads'], np.int16
      ),
      'encoder/position_encodings/encodings': (
          tensors['encoder.embed_positions.weight']
      ),
      **_norm(tensors, 'encoder.layer_norm', 'encoder'),
      **_linear(tensors, ['encoder.conv1'], 'encoder/conv1'),
      **_linear(tensors, ['encoder.conv2'], 'encoder/conv2'),
  }
  for index in range(config['encoder_layers']):
    old, new = f'encoder.layers.{index}', f'encoder/layer_{index}'
    attention, mlp = f'{new}/self_attention', f'{new}/ffn'
    joined = [f'{old}.self_attn.{letter}_proj' for letter in 'qkv']
    found |= _linear(tensors, joined, f'{attention}/linear_0')
    found |= _linear(
        tensors, [f'{old}.self_attn.out_proj'], f'{attention}/linear_1'
    )
    found |= _norm(tensors, f'{old}.self_attn_layer_norm', attention)
    found |= _linear(tensors, [f'{old}.fc1'], f'{mlp}/linear_0')
    found |= _linear(tensors, [f'{old}.fc2'], f'{mlp}/linear_1')
    found |= _norm(tensors, f'{old}.final_layer_norm', mlp)
  # bfloat16 is no type of NumPy itself.
  target = ml_dtypes.bfloat16 if dtype == 'bfloat16' else dtype
  return {
      name: value if value.dtype == np.int16 else value.astype(target)
      for name, value in sorted(found.items())
  }


def write(
    folder: str, config: random_folders.Config,
    changes: Mapping[str, np.ndarray | None] | None = None, **options
) -> str:
  """Writes a folder; returns its model.bin."""
  found = variables(config, **options) | dict(changes or {})
  os.makedirs(folder, exist_ok=True)
  path = os.path.join(folder, 'model.bin')
  with open(path, 'wb') as f:
    f.write(encode([
        (name, value) for name, value in found.items() if value is not None
    ]))
  return path


def _string(text: str) -> bytes:
  data = text.encode() + b'\0'
  return struct.pack('<H', len(data)) + data


def _norm(tensors, old: str, new: str) -> dict[str, np.ndarray]:
  return {
      f'{new}/layer_norm/beta': tensors[f'{old}.bias'],
      f'{new}/layer_norm/gamma': tensors[f'{old}.weight'],
  }


def _linear(tensors, old: list[str], new: str) -> dict[str, np.ndarray]:
  weights = [tensors[f'{each}.weight'] for each in old]
  # Keys have no bias.
  biases = [
      tensors.get(f'{each}.bias', np.zeros(len(weight), np.float32))
      for each, weight in zip(old, weights)
  ]
  return {
      f'{new}/bias': np.concatenate(biases),
      f'{new}/weight': np.concatenate(weights),
  }

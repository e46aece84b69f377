"""Folders of Hugging Face's layout with models of random weights.

Names and sizes are stated here from the layout of `transformers`, which loads
the folders in the parity script and complains of what is missing or unknown;
the importer has its own statement of them. Weights are drawn by NumPy from
their names, so that a folder is the same everywhere.
"""

from collections.abc import Mapping
import json
import os
import zlib

import numpy as np
from safetensors import numpy as safetensors_numpy

Config = dict[str, int | float | bool | str | list[int]]
Shapes = dict[str, tuple[int, ...]]

# Where the weight norm of the positions is stored, by age of PyTorch.
OLD_NORM = ('weight_g', 'weight_v')
NEW_NORM = (
    'parametrizations.weight.original0', 'parametrizations.weight.original1'
)


def _whisper(
    layers: int, dim: int, heads: int, *, positions: int, mels: int = 80
) -> Config:
  return dict(
      model_type='whisper',
      d_model=dim,
      encoder_layers=layers,
      encoder_attention_heads=heads,
      encoder_ffn_dim=4 * dim,
      max_source_positions=positions,
      num_mel_bins=mels,
      # A decoder that is as small as it may be.
      decoder_layers=1,
      decoder_attention_heads=1,
      decoder_ffn_dim=4,
      max_target_positions=4,
      vocab_size=8,
      pad_token_id=0,
      bos_token_id=1,
      eos_token_id=2,
      decoder_start_token_id=1,
      suppress_tokens=[],
      begin_suppress_tokens=[],
      activation_function='gelu',
  )


def _wav2vec2(
    model_type: str,
    layers: int,
    dim: int,
    heads: int,
    *,
    is_large: bool,
    is_tiny: bool = False,
) -> Config:
  tiny = dict(
      conv_dim=[6, 5, 7],
      conv_kernel=[5, 3, 2],
      conv_stride=[3, 2, 1],
      num_conv_pos_embeddings=5 if is_large else 4,  # Odd and even.
      num_conv_pos_embedding_groups=2,
  )
  published = dict(
      conv_dim=[512] * 7,
      conv_kernel=[10, 3, 3, 3, 3, 2, 2],
      conv_stride=[5, 2, 2, 2, 2, 2, 2],
      num_conv_pos_embeddings=128,
      num_conv_pos_embedding_groups=16,
  )
  return dict(
      model_type=model_type,
      hidden_size=dim,
      num_hidden_layers=layers,
      num_attention_heads=heads,
      intermediate_size=4 * dim,
      hidden_act='gelu',
      feat_extract_activation='gelu',
      layer_norm_eps=1e-5,
      feat_extract_norm='layer' if is_large else 'group',
      conv_bias=is_large,
      do_stable_layer_norm=is_large,
      num_feat_extract_layers=len((tiny if is_tiny else published)['conv_dim']),
      vocab_size=8,
      **(tiny if is_tiny else published),
  )


# Models that CI compares with numbers of `transformers`.
TINY: Mapping[str, Config] = {
    'whisper': _whisper(2, 12, 3, positions=8, mels=6),
    'wav2vec2_base': _wav2vec2(
        'wav2vec2', 2, 12, 3, is_large=False, is_tiny=True
    ),
    'wav2vec2_large': _wav2vec2(
        'wav2vec2', 2, 12, 3, is_large=True, is_tiny=True
    ),
    # Also without the norm that one of its options takes away.
    'hubert_base': _wav2vec2('hubert', 2, 8, 2, is_large=False, is_tiny=True)
    | dict(feat_proj_layer_norm=False),
    'hubert_large': _wav2vec2('hubert', 2, 8, 2, is_large=True, is_tiny=True),
}
# Tiny, with the published frames of 20 ms.
TINY_20_MS: Config = TINY['wav2vec2_base'] | dict(
    conv_dim=[4] * 7,
    conv_kernel=[10, 3, 3, 3, 3, 2, 2],
    conv_stride=[5, 2, 2, 2, 2, 2, 2],
    num_feat_extract_layers=7,
)
# With a CTC head: the blank is in the middle, and special tokens around it.
VOCABULARY: Mapping[str, int] = {
    '<s>': 0, 'A': 1, 'B': 2, '<pad>': 3, '|': 4, 'C': 5, '</s>': 6, '<unk>': 7
}
# The sizes that were published, on short utterances.
PUBLISHED: Mapping[str, Config] = {
    'whisper_tiny': _whisper(4, 384, 6, positions=100),
    'whisper_base': _whisper(6, 512, 8, positions=100),
    'whisper_small': _whisper(12, 768, 12, positions=100),
    'whisper_medium': _whisper(24, 1024, 16, positions=100),
    'whisper_large_v3': _whisper(32, 1280, 20, positions=100, mels=128),
    # The same width in a quarter of the memory, which is over 12 GB.
    'whisper_large_v3_8_blocks': _whisper(
        8, 1280, 20, positions=100, mels=128
    ),
    'wav2vec2_base': _wav2vec2('wav2vec2', 12, 768, 12, is_large=False),
    'wav2vec2_large': _wav2vec2('wav2vec2', 24, 1024, 16, is_large=True),
    'hubert_base': _wav2vec2('hubert', 12, 768, 12, is_large=False),
    'hubert_large': _wav2vec2('hubert', 24, 1024, 16, is_large=True),
    'hubert_xlarge': _wav2vec2('hubert', 48, 1280, 16, is_large=True),
}


def with_heads(models: Mapping[str, Config]) -> dict[str, Config]:
  """The models of waveforms with a CTC head, by names of their own."""
  return {
      f'{name}_ctc': config | dict(pad_token_id=VOCABULARY['<pad>'])
      for name, config in models.items() if config['model_type'] != 'whisper'
  }


def tensors(
    config: Config, *, weight_norm: tuple[str, str] = OLD_NORM
) -> dict[str, np.ndarray]:
  """The encoder's tensors of a model.

  Args:
    config: As in its config.json.
    weight_norm: Names of the norms and directions of the positions' kernel.

  Returns:
    float32 arrays by name, without a prefix.
  """
  if config['model_type'] == 'whisper':
    shapes = _whisper_shapes(config)
  else:
    shapes = _wav2vec2_shapes(config)
  names = dict(zip(OLD_NORM, weight_norm))
  arrays = {}
  for name, shape in shapes.items():
    stem, _, last = name.rpartition('.')
    stored = f'{stem}.{names[last]}' if last in names else name
    arrays[stored] = _draw(name, shape)
  return arrays


def write(
    folder: str,
    config: Config,
    *,
    prefix: str = '',
    changes: Mapping[str, np.ndarray | None] | None = None,
    dtype: np.dtype | str = 'float32',
    weight_norm: tuple[str, str] = OLD_NORM,
) -> None:
  """Writes config.json and model.safetensors.

  Args:
    folder: A new folder, or one in which both are replaced.
    config: As in config.json.
    prefix: What the tensors' names begin with.
    changes: Tensors to add or replace, by full name; None takes one away.
    dtype: Type of the tensors.
    weight_norm: See `tensors`.
  """
  os.makedirs(folder, exist_ok=True)
  arrays = {
      f'{prefix}{name}': array
      for name, array in tensors(config, weight_norm=weight_norm).items()
  } | dict(changes or {})
  arrays = {
      name: np.ascontiguousarray(array.astype(dtype))
      for name, array in arrays.items() if array is not None
  }
  with open(os.path.join(folder, 'config.json'), 'w', encoding='utf-8') as f:
    json.dump(config, f, indent=1)
  # As `transformers` marks its files.
  safetensors_numpy.save_file(
      arrays, os.path.join(folder, 'model.safetensors'), {'format': 'pt'}
  )


def write_ctc(
    folder: str,
    config: Config,
    *,
    vocabulary: Mapping[str, object] | None = VOCABULARY,
    changes: Mapping[str, np.ndarray | None] | None = None,
    **settings: object,
) -> None:
  """Writes a model with a CTC head of 8 outputs.

  Args:
    folder: As for `write`.
    config: As in config.json, such as `with_heads` has.
    vocabulary: What vocab.json holds; None for no such file.
    changes: As for `write`.
    **settings: What other files of the tokenizer hold, by their names without
      .json.
  """
  shapes = _linear('lm_head', 8, config['hidden_size'])
  write(
      folder,
      config,
      prefix=f"{config['model_type']}.",
      changes={name: _draw(name, shape) for name, shape in shapes.items()}
      | dict(changes or {}),
  )
  for name, values in dict(vocab=vocabulary, **settings).items():
    if values is not None:
      path = os.path.join(folder, f'{name}.json')
      with open(path, 'w', encoding='utf-8') as f:
        json.dump(values, f)


def _draw(name: str, shape: tuple[int, ...]) -> np.ndarray:
  """Values of a tensor, of a size that keeps activations near 1."""
  rng = np.random.default_rng(zlib.crc32(name.encode()))
  values = rng.standard_normal(shape, np.float32)
  if name.endswith('weight_g'):
    return 0.2 + 0.1 * np.abs(values)
  if name.endswith('bias'):
    return 0.1 * values
  if 'norm' in name:
    return 1 + 0.2 * values
  return values / np.sqrt(np.prod(shape[1:], dtype=np.float32))


def _linear(name: str, *shape: int) -> Shapes:
  return {f'{name}.weight': shape, f'{name}.bias': shape[:1]}


def _whisper_shapes(config: Config) -> Shapes:
  dim, mlp_dim = config['d_model'], config['encoder_ffn_dim']
  shapes = {
      **_linear('encoder.conv1', dim, config['num_mel_bins'], 3),
      **_linear('encoder.conv2', dim, dim, 3),
      'encoder.embed_positions.weight': (config['max_source_positions'], dim),
      **_linear('encoder.layer_norm', dim),
  }
  for index in range(config['encoder_layers']):
    layer = f'encoder.layers.{index}'
    for name in ('q_proj', 'v_proj', 'out_proj'):
      shapes |= _linear(f'{layer}.self_attn.{name}', dim, dim)
    shapes[f'{layer}.self_attn.k_proj.weight'] = (dim, dim)
    shapes |= _linear(f'{layer}.self_attn_layer_norm', dim)
    shapes |= _linear(f'{layer}.fc1', mlp_dim, dim)
    shapes |= _linear(f'{layer}.fc2', dim, mlp_dim)
    shapes |= _linear(f'{layer}.final_layer_norm', dim)
  return shapes


def _wav2vec2_shapes(config: Config) -> Shapes:
  dim, mlp_dim = config['hidden_size'], config['intermediate_size']
  size = config['num_conv_pos_embeddings']
  group_dim = dim // config['num_conv_pos_embedding_groups']
  position = 'encoder.pos_conv_embed.conv'
  shapes = {
      'masked_spec_embed': (dim,),
      **_linear('feature_projection.projection', dim, config['conv_dim'][-1]),
      f'{position}.bias': (dim,),
      f'{position}.weight_g': (1, 1, size),
      f'{position}.weight_v': (dim, group_dim, size),
      **_linear('encoder.layer_norm', dim),
  }
  if config.get('feat_proj_layer_norm', True):
    shapes |= _linear('feature_projection.layer_norm', config['conv_dim'][-1])
  fan_in = 1
  for index, fan_out in enumerate(config['conv_dim']):
    layer = f'feature_extractor.conv_layers.{index}'
    kernel = (fan_out, fan_in, config['conv_kernel'][index])
    if config['conv_bias']:
      shapes |= _linear(f'{layer}.conv', *kernel)
    else:
      shapes[f'{layer}.conv.weight'] = kernel
    if config['feat_extract_norm'] == 'layer' or index == 0:
      shapes |= _linear(f'{layer}.layer_norm', fan_out)
    fan_in = fan_out
  for index in range(config['num_hidden_layers']):
    layer = f'encoder.layers.{index}'
    for name in ('q_proj', 'k_proj', 'v_proj', 'out_proj'):
      shapes |= _linear(f'{layer}.attention.{name}', dim, dim)
    shapes |= _linear(f'{layer}.layer_norm', dim)
    shapes |= _linear(
        f'{layer}.feed_forward.intermediate_dense', mlp_dim, dim
    )
    shapes |= _linear(f'{layer}.feed_forward.output_dense', dim, mlp_dim)
    shapes |= _linear(f'{layer}.final_layer_norm', dim)
  return shapes

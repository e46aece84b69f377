"""Encoders from folders of Hugging Face's `transformers`.

A folder has `config.json` and either `model.safetensors` or, of a large model,
`model.safetensors.index.json` with the files that it names. Families: Whisper,
wav2vec 2.0 and HuBERT, whatever their heads are; no decoder is read, and heads
of CTC are read by `ctc_head`. Waveform models also have a
`preprocessor_config.json`, which says whether they expect normalized waveforms.

Weights stored as float16 or bfloat16 become float32. A `pytorch_model.bin` is a
pickle, which can run any code when it is read: it is never opened.
"""

from collections.abc import Callable
import math
import os
import re
from typing import Any, NamedTuple

import numpy as np
import safetensors

from tff_asr import files
from tff_asr.models import encoder as encoder_lib
from tff_asr.models import wav2vec2
from tff_asr.models import weights as weights_lib
from tff_asr.models import whisper
from tff_asr.pretrained import public_model
from tff_asr.pretrained import tensor_rules

CONFIG = 'config.json'
FILE = 'model.safetensors'
INDEX = 'model.safetensors.index.json'
PREPROCESSOR = 'preprocessor_config.json'
# The vocabulary of a CTC head (`ctc_head`).
VOCABULARY = 'vocab.json'
ADDED_TOKENS = 'added_tokens.json'
SPECIAL_TOKENS = 'special_tokens_map.json'
TOKENIZER = 'tokenizer_config.json'

Settings = dict[str, int | str | bool | tuple[int, ...]]
Rule = tensor_rules.Rule
_Value = None | bool | int | float | str | list

_PICKLES = ('.bin', '.pt', '.pth', '.ckpt', '.pkl')
_FLOATS = ('F64', 'F32', 'F16', 'BF16')
_NORM_EPSILON = 1e-5  # That of `models.layers`.
# Far above any model's; blocks are counted up to this before tensors are.
_MAX_SIZE = 2**16
_SAMPLE_RATE_HZ = 16000
_POSITION_SEC = 0.02
# What an export also needs of a folder, where it is there.
_COPIED = (
    PREPROCESSOR, VOCABULARY, ADDED_TOKENS, SPECIAL_TOKENS, TOKENIZER
)
# The kernel of the positions is one tensor, or a direction and a norm for each
# of its frames, under PyTorch's older or newer names.
_POSITIONS = 'encoder.pos_conv_embed.conv'
_WEIGHT_NORMS = (
    ('weight_g', 'weight_v'),
    ('parametrizations.weight.original0', 'parametrizations.weight.original1'),
)


class FolderTensors:
  """The tensors of a folder; `tensor_rules.Tensors`.

  Attributes:
    path: The file, or the index of several.
    paths: The files.
    shapes: Shapes by name, without the prefix.
  """

  def __init__(self, folder: str, *, prefix: str):
    """Reads what the files hold, but no tensors.

    Args:
      folder: The folder.
      prefix: Prefix of the encoder's tensors in models with a head.

    Raises:
      ValueError: There is no such file, or it is damaged.
    """
    self.path, self.paths = _find_files(folder)
    self._places, self.shapes = {}, {}
    for path in self.paths:
      for full_name, shape in _read_shapes(path).items():
        # A model without a head has the same names without the prefix.
        name = full_name.removeprefix(prefix)
        if name in self.shapes:
          raise ValueError(
              f'{path} has {name!r} twice. Take one model a folder.'
          )
        self._places[name], self.shapes[name] = (path, full_name), shape
    for norm, direction in _WEIGHT_NORMS:
      names = f'{_POSITIONS}.{norm}', f'{_POSITIONS}.{direction}'
      if all(name in self.shapes for name in names):
        self._folded = names
        self.shapes[f'{_POSITIONS}.weight'] = self.shapes[names[1]]
        self._check_norms(*names)
        for name in names:
          # What is left in `shapes` is matched with the rules one by one.
          del self.shapes[name]

  def _check_norms(self, norm: str, direction: str) -> None:
    """Raises ValueError unless there is a norm for each frame of a kernel."""
    shape = self.shapes[direction]
    if len(shape) != 3 or self.shapes[norm] != (1, 1, shape[2]):
      raise ValueError(
          f'{self.path}: {norm!r} is {list(self.shapes[norm])} and '
          f'{direction!r} is {list(shape)}, which is no weight norm by frame. '
          'Take a model that was published unchanged.'
      )

  def read(self, name: str) -> np.ndarray:
    """Reads a tensor as float32.

    Raises:
      ValueError: It is not of floats, or the file is damaged.
    """
    if name not in self._places:  # Only the folded kernel.
      norm, direction = map(self.read, self._folded)
      size = np.sqrt(np.sum(np.square(direction), axis=(0, 1), keepdims=True))
      # A direction of zeros stays one.
      return norm * direction / np.maximum(size, np.finfo(np.float32).tiny)
    path, full_name = self._places[name]
    try:
      with safetensors.safe_open(path, framework='numpy') as file:
        dtype = file.get_slice(full_name).get_dtype()
        # Integers of a quantised model mean nothing without their scales.
        if dtype not in _FLOATS:
          raise ValueError(
              f'{path}: {full_name!r} is of the type {dtype}, as in a '
              f'quantised model. Take one of {", ".join(_FLOATS)}.'
          )
        return file.get_tensor(full_name).astype(np.float32)
    except safetensors.SafetensorError as e:
      raise _damaged(path, e) from None


class _Config:
  """Values of a JSON file, checked as they are read."""

  def __init__(self, path: str):
    self.path = path
    self._values = read_json(path)

  def size(self, name: str) -> int:
    """A size."""
    return self._get(name, _is_size, f'an integer from 1 to {_MAX_SIZE}')

  def sizes(self, name: str) -> tuple[int, ...]:
    """Several sizes."""
    is_list = lambda v: isinstance(v, list) and v and all(map(_is_size, v))
    return tuple(self._get(name, is_list, f'integers from 1 to {_MAX_SIZE}'))

  def flag(self, name: str, default: bool) -> bool:
    """A truth value; older files lack those of newer options."""
    if name not in self._values:
      return default
    return self._get(name, lambda v: isinstance(v, bool), 'true or false')

  def text(self, name: str, *allowed: str) -> str:
    """One of some strings."""
    return self._get(name, lambda v: v in allowed, f'one of {allowed}')

  def require(self, name: str, *values: object) -> None:
    """Raises ValueError unless an option is absent or of these values."""
    if name in self._values:
      self._get(name, lambda v: v in values, f'one of {values}')

  def _get(
      self, name: str, is_good: Callable[[_Value], bool], wanted: str
  ) -> _Value:
    value = self._values.get(name)
    if not is_good(value):
      raise ValueError(
          f'{self.path}: {name} must be {wanted}, found {value!r}. Take '
          'another model.'
      )
    return value


class _Family(NamedTuple):
  """How a family of models is configured and stored.

  Attributes:
    prefix: Prefix of the encoder's tensors in models with a head.
    build: Builds the encoder.
    settings: Reads arguments of `build`.
    fixed: Rules of the weights outside the blocks.
    block: Rules of a block.
    ignored: Tensors that the encoder does not need.
  """

  prefix: str
  build: Callable[..., encoder_lib.Encoder]
  settings: Callable[[_Config], Settings]
  fixed: Callable[[weights_lib.Specs], tensor_rules.Rules]
  block: tensor_rules.Rules
  ignored: re.Pattern[str]


def load(folder: str) -> public_model.PublicModel:
  """Loads an encoder.

  Args:
    folder: A folder as described above.

  Raises:
    ValueError: An unknown family or option, a bad file (see `FolderTensors` and
      `tensor_rules.convert`), or only pickles.
    OSError: A file is missing or cannot be read.
  """
  config = _Config(os.path.join(folder, CONFIG))
  family = config.text('model_type', *_FAMILIES)
  row = _FAMILIES[family]
  settings = row.settings(config)
  try:
    encoder = row.build(**settings)
  except ValueError as e:
    raise ValueError(f'{config.path}: {e} Take another model.') from None
  checkpoint = FolderTensors(folder, prefix=row.prefix)
  if family == 'whisper':
    front_end = public_model.WHISPER_LOG_MEL
    front_end_settings = {'num_mel_bins': settings['feature_dim']}
    # Later frames would have no position.
    max_duration_sec = settings['max_positions'] * _POSITION_SEC
  else:
    front_end = public_model.WAVEFORM
    front_end_settings = {'normalize': _normalizes(folder)}
    max_duration_sec = math.inf
  return public_model.PublicModel(
      name=os.path.basename(os.path.abspath(folder)),
      family=family,
      licence=public_model.licence_of(folder),
      source='a folder',
      sha256=public_model.sha256_of(checkpoint.paths),
      front_end=front_end,
      front_end_settings=front_end_settings,
      settings=settings,
      encoder=encoder,
      weights=tensor_rules.convert(
          checkpoint,
          rules(family, encoder.specs),
          encoder.specs,
          ignored=row.ignored,
      ),
      files=tuple(
          path
          for path in sorted({
              config.path,
              *(os.path.join(folder, name) for name in _COPIED),
              checkpoint.path,
              *checkpoint.paths,
          })
          if os.path.exists(path)
      ),
      max_duration_sec=max_duration_sec,
  )


def rules(family: str, specs: weights_lib.Specs) -> tensor_rules.Rules:
  """Rules of all weights of an encoder, from tensors without the prefix."""
  row = _FAMILIES[family]
  return tensor_rules.of_blocks(specs, fixed=row.fixed(specs), block=row.block)


def read_json(path: str) -> dict[str, Any]:
  """Reads a JSON object; raises as `files.read_json`."""
  # A list has no items.
  return files.read_json(
      path, lambda values: dict(values.items()), remedy='fetch it again'
  )


def _find_files(folder: str) -> tuple[str, list[str]]:
  """The file or the index of weights, and the files."""
  path = os.path.join(folder, FILE)
  if os.path.exists(path):
    return path, [path]
  index = os.path.join(folder, INDEX)
  if not os.path.exists(index):
    raise ValueError(_without_safetensors(folder))
  try:
    names = set(files.parse_json(files.read(index))['weight_map'].values())
    # The index may come from a stranger, and must not name files elsewhere.
    is_plain = all(os.path.basename(name) == name for name in names)
  except (ValueError, KeyError, TypeError, AttributeError):
    names, is_plain = set(), False
  if not names or not is_plain:
    raise ValueError(
        f'{index} does not name files of this folder. Fetch it again.'
    )
  paths = [os.path.join(folder, name) for name in sorted(names)]
  for path in paths:
    if not os.path.exists(path):
      raise ValueError(f'{index} names {path}, which is missing. Fetch it.')
  return index, paths


def _without_safetensors(folder: str) -> str:
  """What to do with a folder that has no safetensors."""
  pickles = sorted(
      name for name in os.listdir(folder) if name.endswith(_PICKLES)
  )
  if not pickles:
    return f'{folder} has no {FILE}. Fetch it.'
  return (
      f'{folder} has no {FILE}, only {pickles[0]}: a pickle, which can run any '
      'code and is not opened. Take a revision with safetensors, or convert it '
      'in an environment without secrets: transformers.AutoModel'
      '.from_pretrained(FOLDER).save_pretrained(NEW_FOLDER).'
  )


def _read_shapes(path: str) -> dict[str, tuple[int, ...]]:
  """Shapes of a file's tensors."""
  try:
    with files.open_regular(path):
      pass  # Raises for a pipe or device, of which safetensors would wait.
    with safetensors.safe_open(path, framework='numpy') as file:
      return {
          name: tuple(file.get_slice(name).get_shape()) for name in file.keys()
      }
  except safetensors.SafetensorError as e:
    raise _damaged(path, e) from None


def _damaged(path: str, error: Exception) -> ValueError:
  return ValueError(
      f'{path} is truncated or not of safetensors: {error}. Fetch it again.'
  )


def _is_size(value: object) -> bool:
  # A bool is an int in Python.
  is_int = isinstance(value, int) and not isinstance(value, bool)
  return is_int and 0 < value <= _MAX_SIZE


def _normalizes(folder: str) -> bool:
  """Whether a waveform model expects normalized waveforms."""
  path = os.path.join(folder, PREPROCESSOR)
  if not os.path.exists(path):
    return True  # The default of `transformers`.
  config = _Config(path)
  config.require('sampling_rate', _SAMPLE_RATE_HZ)
  return config.flag('do_normalize', True)


def _whisper_settings(config: _Config) -> Settings:
  config.require('activation_function', 'gelu')
  return dict(
      num_blocks=config.size('encoder_layers'),
      dim=config.size('d_model'),
      mlp_dim=config.size('encoder_ffn_dim'),
      num_heads=config.size('encoder_attention_heads'),
      max_positions=config.size('max_source_positions'),
      feature_dim=config.size('num_mel_bins'),
  )


def _wav2vec2_settings(config: _Config) -> Settings:
  # What would make another function of the same tensors, or of more.
  config.require('hidden_act', 'gelu')
  config.require('feat_extract_activation', 'gelu')
  config.require('layer_norm_eps', _NORM_EPSILON)
  config.require('conv_pos_batch_norm', False)
  config.require('add_adapter', False)
  config.require('adapter_attn_dim', None)
  is_stable = config.flag('do_stable_layer_norm', False)
  return dict(
      num_blocks=config.size('num_hidden_layers'),
      dim=config.size('hidden_size'),
      mlp_dim=config.size('intermediate_size'),
      num_heads=config.size('num_attention_heads'),
      conv_dims=config.sizes('conv_dim'),
      conv_kernels=config.sizes('conv_kernel'),
      conv_strides=config.sizes('conv_stride'),
      conv_bias=config.flag('conv_bias', False),
      conv_norm=config.text('feat_extract_norm', *wav2vec2.CONV_NORMS),
      input_norm=config.flag('feat_proj_layer_norm', True),
      position_kernel=config.size('num_conv_pos_embeddings'),
      position_groups=config.size('num_conv_pos_embedding_groups'),
      norm='pre' if is_stable else 'post',
  )


def _linear(tensor: str, *, bias: str, weight: str) -> dict[str, Rule]:
  """Rules of a bias and a matrix or kernel."""
  return {bias: Rule((f'{tensor}.bias',)), weight: Rule((f'{tensor}.weight',))}


def _norm(tensor: str, name: str) -> dict[str, Rule]:
  """Rules of a norm."""
  return _linear(tensor, bias=f'{name}/bias', weight=f'{name}/scale')


def _attention(tensor: str, *, key_bias: bool) -> dict[str, Rule]:
  """Rules of attention."""
  query, key, value = (f'{tensor}.{letter}_proj' for letter in 'qkv')
  # A bias of the keys adds the same to all scores of a query: softmax ignores
  # it, and Whisper has none.
  biases = f'{query}.bias', f'{key}.bias' if key_bias else None, f'{value}.bias'
  return {
      'bqkv': Rule(biases),
      'wqkv': Rule((f'{query}.weight', f'{key}.weight', f'{value}.weight')),
      **_linear(f'{tensor}.out_proj', bias='bf', weight='wf'),
  }


def _whisper_fixed(unused_specs: weights_lib.Specs) -> tensor_rules.Rules:
  return {
      **_linear('encoder.conv1', bias='front/bias_1', weight='front/kernel_1'),
      **_linear('encoder.conv2', bias='front/bias_2', weight='front/kernel_2'),
      'front/positions': Rule(
          ('encoder.embed_positions.weight',), is_reversed=False
      ),
      **_norm('encoder.layer_norm', 'norm'),
  }


def _wav2vec2_fixed(specs: weights_lib.Specs) -> tensor_rules.Rules:
  fixed = {
      **_norm('feature_projection.layer_norm', 'front/input_norm'),
      **_linear(
          'feature_projection.projection',
          bias='front/projection_bias',
          weight='front/projection',
      ),
      **_linear(
          _POSITIONS,
          bias='front/position_bias',
          weight='front/position_kernel',
      ),
      # The one after the positions of post-norm, or the final one of pre-norm.
      **_norm('encoder.layer_norm', 'front/output_norm'),
      **_norm('encoder.layer_norm', 'norm'),
  }
  for name in specs:
    if match := re.fullmatch(r'(front/conv_(\d+))/kernel', name):
      own, tensor = match[1], f'feature_extractor.conv_layers.{match[2]}'
      fixed |= _norm(f'{tensor}.layer_norm', f'{own}/norm')
      fixed |= _linear(
          f'{tensor}.conv', bias=f'{own}/bias', weight=f'{own}/kernel'
      )
  return fixed


_WHISPER_BLOCK = {
    **_attention('encoder.layers.{}.self_attn', key_bias=False),
    **_norm('encoder.layers.{}.self_attn_layer_norm', 'ln1'),
    **_norm('encoder.layers.{}.final_layer_norm', 'ln2'),
    **_linear('encoder.layers.{}.fc1', bias='b1', weight='w1'),
    **_linear('encoder.layers.{}.fc2', bias='b2', weight='w2'),
}
_WAV2VEC2_BLOCK = {
    **_attention('encoder.layers.{}.attention', key_bias=True),
    **_norm('encoder.layers.{}.layer_norm', 'ln1'),
    **_norm('encoder.layers.{}.final_layer_norm', 'ln2'),
    **_linear(
        'encoder.layers.{}.feed_forward.intermediate_dense',
        bias='b1',
        weight='w1',
    ),
    **_linear(
        'encoder.layers.{}.feed_forward.output_dense', bias='b2', weight='w2'
    ),
}
_WAV2VEC2 = _Family(
    prefix='wav2vec2.',
    build=wav2vec2.build,
    settings=_wav2vec2_settings,
    fixed=_wav2vec2_fixed,
    block=_WAV2VEC2_BLOCK,
    # The mask of training, and heads for pre-training, CTC, classes and
    # speakers.
    ignored=re.compile(
        r'masked_spec_embed|quantizer\..*|project_(q|hid)\..*|lm_head\..*|'
        r'(projector|classifier|tdnn|objective)\..*|layer_weights|'
        r'feature_extractor\.(weight|bias)'
    ),
)
_FAMILIES = {
    'whisper': _Family(
        prefix='model.',
        build=whisper.build,
        settings=_whisper_settings,
        fixed=_whisper_fixed,
        block=_WHISPER_BLOCK,
        # The decoder and its output, and a head for classes.
        ignored=re.compile(
            r'decoder\..*|proj_out\.weight|(projector|classifier)\..*|'
            r'layer_weights'
        ),
    ),
    'wav2vec2': _WAV2VEC2,
    'hubert': _WAV2VEC2._replace(prefix='hubert.'),
}

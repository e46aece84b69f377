"""Converter between the authors' weights and ours, both ways.

The authors' model (https://github.com/apple-aiml-research/ml-pfl4asr) is a Flax
module. Its parameters are named here by their path, joined by `/`. Layouts are
the same as ours, so that only names change:

    conv/kernel, conv/bias               front/kernel, front/bias
    ln/scale, ln/bias                    front/input_scale, front/input_bias
    tf_blocks_0/ln1/scale, ...           block_00/ln1/scale, ...
    tf_blocks_0/wqkv/kernel, ...         block_00/wqkv, ...
    ln_final/scale, ln_final/bias        norm/scale, norm/bias
    linear/kernel, linear/bias           head/kernel, head/bias

Outputs are the characters in the order of the tokens, then the blank, on both
sides: " '", a to z, then `additional_chars` of their configuration, for
LibriSpeech and English Common Voice `-`, which is our English set.
"""

from collections.abc import Mapping
import re
import string
from typing import Any

import numpy as np

from tff_asr.storage import run_dir

_OURS_BY_THEIRS = {
    'conv/kernel': 'front/kernel',
    'conv/bias': 'front/bias',
    'ln/scale': 'front/input_scale',
    'ln/bias': 'front/input_bias',
    'ln_final/scale': 'norm/scale',
    'ln_final/bias': 'norm/bias',
    'linear/kernel': 'head/kernel',
    'linear/bias': 'head/bias',
}
_THEIRS_BY_OURS = {ours: theirs for theirs, ours in _OURS_BY_THEIRS.items()}
_BLOCK_OF_THEIRS = re.compile(r'tf_blocks_(\d+)/(\w+)/(\w+)')
_BLOCK_OF_OURS = re.compile(r'block_(\d+)/(\w+)(?:/(\w+))?')
_MATRICES = ('wqkv', 'wf', 'w1', 'w2')
_NORMS = ('ln1', 'ln2')
_NORM_PARTS = ('scale', 'bias')


def from_flax(tree: Mapping[str, Any]) -> dict[str, np.ndarray]:
  """Our weights of the authors' parameters.

  Args:
    tree: Their parameters, nested as in Flax or flat with names joined by `/`;
      as given to `model.apply` under 'params'.

  Returns:
    Arrays by our names, sorted.

  Raises:
    ValueError: A parameter is none of their transformer's, or blocks are
      missing. It names the first.
  """
  flat = flatten(tree)
  blocks = {
      int(found.group(1)) for found in map(_BLOCK_OF_THEIRS.fullmatch, flat)
      if found
  }
  missing = sorted(set(range(len(blocks))) - blocks)
  if missing:
    raise ValueError(f'there is no tf_blocks_{missing[0]}, but later ones.')
  digits = max(2, len(str(len(blocks) - 1)))
  weights = {
      _ours(name, digits): np.asarray(value) for name, value in flat.items()
  }
  return dict(sorted(weights.items()))


def to_flax(weights: Mapping[str, Any]) -> dict[str, Any]:
  """The authors' parameters of our weights, nested; the reverse.

  Args:
    weights: Arrays or tensors by our names.

  Raises:
    ValueError: A weight is none of our transformer's with a CTC head.
  """
  tree: dict[str, Any] = {}
  for name, value in weights.items():
    *path, leaf = _theirs(name).split('/')
    branch = tree
    for key in path:
      branch = branch.setdefault(key, {})
    branch[leaf] = np.asarray(value)
  return tree


def flatten(tree: Mapping[str, Any]) -> dict[str, Any]:
  """A nest of mappings as one, names joined by `/`; a flat one as it is."""
  flat = {}
  for name, value in tree.items():
    if isinstance(value, Mapping):
      for below, leaf in flatten(value).items():
        flat[f'{name}/{below}'] = leaf
    else:
      flat[name] = value
  return flat


def _ours(name: str, digits: int) -> str:
  """Our name of their parameter; block numbers have `digits` digits."""
  if name in _OURS_BY_THEIRS:
    return _OURS_BY_THEIRS[name]
  found = _BLOCK_OF_THEIRS.fullmatch(name)
  if found:
    number, module, part = found.groups()
    block = f'block_{int(number):0{digits}}/{module}'
    if module in _MATRICES and part == 'kernel':
      return block
    if module in _NORMS and part in _NORM_PARTS:
      return f'{block}/{part}'
  raise ValueError(f"{name} is not a parameter of the authors' transformer.")


def _theirs(name: str) -> str:
  """Their name of our weight."""
  if name in _THEIRS_BY_OURS:
    return _THEIRS_BY_OURS[name]
  found = _BLOCK_OF_OURS.fullmatch(name)
  if found:
    number, module, part = found.groups()
    block = f'tf_blocks_{int(number)}/{module}'
    if module in _MATRICES and part is None:
      return f'{block}/kernel'
    if module in _NORMS and part in _NORM_PARTS:
      return f'{block}/{part}'
  raise ValueError(f'{name} is not a weight of a transformer with a CTC head.')


def write_run(
    tree: Mapping[str, Any], *, output_dir: str, additional_chars: str = '-'
) -> None:
  """Writes the authors' parameters as a finished run's model.

  Args:
    tree: As in `from_flax`.
    output_dir: A new folder.
    additional_chars: Their tokens after space, apostrophe and a to z.

  Raises:
    ValueError: The head has another number of outputs than tokens and blank.
  """
  weights = from_flax(tree)
  tokens = f" '{string.ascii_lowercase}{additional_chars}"
  num_outputs = weights['head/kernel'].shape[1]
  if num_outputs != len(tokens) + 1:
    raise ValueError(
        f'the checkpoint has {num_outputs} outputs, not {len(tokens) + 1}: set '
        '--additional_chars.'
    )
  folder = run_dir.RunDir(output_dir, configuration='')
  folder.write_model(weights, tokens=tokens)

"""Rules from tensors of a file to weights of an encoder.

PyTorch and CTranslate2 keep a matrix as [outputs, inputs] and a kernel as
[outputs, inputs, frames], an encoder of this project the other way round. So a
weight is one or several tensors with reversed axes, joined along the last one.

    >>> class Tensors:
    ...   path, shapes = 'model.safetensors', {'fc.weight': (3, 2)}
    ...   def read(self, name):
    ...     return np.ones(self.shapes[name], np.float32)
    >>> specs = {'w1': weights_lib.matrix_spec(2, 3)}
    >>> convert(Tensors(), {'w1': Rule(('fc.weight',))}, specs)['w1'].shape
    (2, 3)
"""

from collections.abc import Mapping
import re
from typing import NamedTuple, Optional, Protocol

import numpy as np

from tff_asr.models import weights as weights_lib


class Tensors(Protocol):
  """Tensors of a file.

  Attributes:
    path: The file, for messages.
    shapes: Shapes by name.
  """

  path: str
  shapes: Mapping[str, tuple[int, ...]]

  def read(self, name: str) -> np.ndarray:
    """Reads a tensor as float32."""


class Rule(NamedTuple):
  """The tensors of a weight.

  Attributes:
    names: Names of tensors of equal sizes; None stands for zeros.
    is_reversed: False for a tensor whose axes are those of the weight.
  """

  names: tuple[Optional[str], ...]
  is_reversed: bool = True


Rules = Mapping[str, Rule]

_BLOCK = re.compile(r'block_(\d+)/(.*)')


def of_blocks(
    specs: weights_lib.Specs, *, fixed: Rules, block: Rules
) -> dict[str, Rule]:
  """Rules of all weights of an encoder.

  Args:
    specs: The weights; those of blocks are `block_NN/...`.
    fixed: Rules of weights outside the blocks.
    block: Rules of a block's weights, without their prefix; `{}` in names of
      tensors stands for the number of the block.

  Returns:
    A rule for each weight of specs.
  """
  rules = {}
  for name in specs:
    if match := _BLOCK.fullmatch(name):
      rule = block[match.group(2)]
      number = int(match.group(1))
      names = tuple(each and each.format(number) for each in rule.names)
      rules[name] = rule._replace(names=names)
    else:
      rules[name] = fixed[name]
  return rules


def convert(
    tensors: Tensors,
    rules: Rules,
    specs: weights_lib.Specs,
    *,
    ignored: Optional[re.Pattern[str]] = None,
) -> dict[str, np.ndarray]:
  """Reads the weights of an encoder.

  Args:
    tensors: The file.
    rules: A rule for each weight.
    specs: The weights, as the configuration of the file describes them.
    ignored: Names of tensors that no weight needs; None for none.

  Returns:
    float32 arrays by name, sorted.

  Raises:
    ValueError: A tensor is missing, of another shape, not finite, or neither
      needed nor ignored.
  """
  taken = {name for rule in rules.values() for name in rule.names if name}
  _check_names(tensors, taken, ignored)
  return {
      name: _read(tensors, rules[name], specs[name].shape)
      for name in sorted(specs)
  }


def _check_names(
    tensors: Tensors, taken: set[str], ignored: Optional[re.Pattern[str]]
) -> None:
  """Raises ValueError for tensors that are missing or unknown."""
  if missing := sorted(taken - tensors.shapes.keys()):
    raise ValueError(
        f'{tensors.path} has no tensor {missing[0]!r}{_others(missing)}. Its '
        'configuration is of another model, or it holds a part of one: fetch '
        'the whole folder again.'
    )
  unknown = sorted(
      name
      for name in tensors.shapes.keys() - taken
      if not (ignored and ignored.fullmatch(name))
  )
  if unknown:
    raise ValueError(
        f'{tensors.path} has a tensor {unknown[0]!r}{_others(unknown)} that no '
        'known encoder has. Without it outputs would differ: take a model '
        'that was published unchanged.'
    )


def _read(
    tensors: Tensors, rule: Rule, shape: tuple[int, ...]
) -> np.ndarray:
  """Reads a weight of a shape."""
  # Parts are joined along the last axis, which a reversed tensor has first.
  expected = shape[::-1] if rule.is_reversed else shape
  expected = (expected[0] // len(rule.names), *expected[1:])
  parts = []
  for name in rule.names:
    if name is None:
      # Such as the bias of Whisper's keys.
      parts.append(np.zeros(expected, np.float32))
      continue
    if tuple(tensors.shapes[name]) != expected:
      raise ValueError(
          f'{tensors.path}: {name!r} is {list(tensors.shapes[name])}, its '
          f'configuration asks for {list(expected)}. Take both files from one '
          'model.'
      )
    part = tensors.read(name)
    # Found here, it is named; in training it would look like divergence.
    if not np.all(np.isfinite(part)):
      raise ValueError(
          f'{tensors.path}: {name!r} holds NaN or infinity. Fetch the file '
          'again, or take another model.'
      )
    parts.append(part.T if rule.is_reversed else part)
  # One contiguous array each, which does not keep its file's buffer alive.
  return np.concatenate(parts, axis=-1, dtype=np.float32)


def _others(names: list[str]) -> str:
  return f' (and {len(names) - 1} others)' if len(names) > 1 else ''

"""Model weights: names, shapes and initial values.

A model's weights are an `OrderedDict` from name to tensor, sorted by name, so
that TensorFlow Federated, `tf.nest` and a checkpoint see them in one order.
Initial values come from stateless random ops, so a seed gives the same values
anywhere, or from a file of a public model.
"""

import collections
from collections.abc import Collection, Mapping
import math
from typing import NamedTuple, Optional, TypeVar
import zlib

import tensorflow as tf

from tff_asr.features import file_tensor

Weights = collections.OrderedDict  # of str to tf.Tensor, sorted by name.


class WeightSpec(NamedTuple):
  """One weight: its shape, and how its initial value is drawn.

  Attributes:
    shape: The tensor's shape.
    limit: The initial value is uniform in [-limit, limit).
    offset: Added to it; with limit 0 the initial value is this constant.
    source: Holds the initial value, which is then not drawn; of this shape.
  """

  shape: tuple[int, ...]
  limit: float = 0.0
  offset: float = 0.0
  source: Optional[file_tensor.FileTensor] = None


Specs = Mapping[str, WeightSpec]
_Value = TypeVar('_Value')


def seed_pair(seed: int) -> tuple[int, int]:
  """An integer seed in [0, 2^62) as the seed of stateless ops, int32 [2]."""
  # 31 bits each, so that both are non-negative int32.
  return seed & 0x7FFFFFFF, seed >> 31 & 0x7FFFFFFF


def matrix_spec(fan_in: int, fan_out: int) -> WeightSpec:
  """A [fan_in, fan_out] matrix, uniform with variance 1 / (3 fan_in)."""
  return WeightSpec((fan_in, fan_out), limit=1 / math.sqrt(fan_in))


def zeros_spec(size: int) -> WeightSpec:
  """A vector of zeros."""
  return WeightSpec((size,))


def ones_spec(size: int) -> WeightSpec:
  """A vector of ones."""
  return WeightSpec((size,), offset=1.0)


def prefix(name: str, specs: Mapping[str, _Value]) -> dict[str, _Value]:
  """Puts `name/` before every name of specs or of other values."""
  return {f'{name}/{key}': spec for key, spec in specs.items()}


def subtree(name: str, weights: Mapping[str, tf.Tensor]) -> Weights:
  """The weights under `name/`, without that prefix: the reverse of `prefix`."""
  start = f'{name}/'
  # The order stays sorted: all names lose the same prefix.
  return Weights(
      (key[len(start) :], value)
      for key, value in weights.items()
      if key.startswith(start)
  )


def initialize(specs: Specs, seed: tf.Tensor) -> Weights:
  """Draws initial weights.

  Args:
    specs: The model's weights.
    seed: int32 [2]. A weight's value depends on this and on its name only.

  Returns:
    float32 tensors by name, sorted by name.
  """
  initial = Weights()
  for name in sorted(specs):
    spec = specs[name]
    if spec.source is not None:
      initial[name] = spec.source.read()
    elif spec.limit:
      # By name, so that the values do not depend on which other weights there
      # are; 31 bits, because fold_in takes an int32.
      own_seed = tf.random.fold_in(seed, zlib.crc32(name.encode()) >> 1)
      value = tf.random.stateless_uniform(
          spec.shape, own_seed, -spec.limit, spec.limit
      )
      initial[name] = value + spec.offset
    else:
      initial[name] = tf.fill(spec.shape, spec.offset)
  return initial


def tensor_specs(specs: Specs) -> Weights:
  """The tensor specs of weights, sorted by name."""
  # In the order of `initialize`, which TFF compares.
  return Weights(
      (name, tf.TensorSpec(specs[name].shape, tf.float32))
      for name in sorted(specs)
  )


def without(names: Collection[str], weights: Mapping[str, _Value]) -> Weights:
  """The weights, or specs of weights, without those of these names."""
  return Weights(
      (name, value) for name, value in weights.items() if name not in names
  )


def updated(
    weights: Mapping[str, tf.Tensor], changes: Mapping[str, tf.Tensor]
) -> Weights:
  """The weights with some of them replaced, in the same order."""
  # Not a union of dicts: the order of names is part of TFF's type.
  return Weights(
      (name, changes.get(name, value)) for name, value in weights.items()
  )


def to_tensors(
    weights: Mapping[str, tf.types.experimental.TensorLike]
) -> Weights:
  """Converts arrays to tensors, so that steps need not copy them again."""
  return Weights(
      (name, tf.convert_to_tensor(value)) for name, value in weights.items()
  )


def shape_mismatches(
    shapes: Mapping[str, tuple[int, ...]], specs: Specs
) -> list[str]:
  """Differences of some weights' shapes from `specs`, in words."""
  problems = []
  # Both: a weight may be missing on either side.
  for name in sorted(shapes.keys() | specs.keys()):
    if name not in shapes:
      problems.append(f'it has no {name}')
    elif name not in specs:
      problems.append(f'{name} is unknown here')
    elif tuple(shapes[name]) != tuple(specs[name].shape):
      problems.append(
          f'{name} is {list(shapes[name])} there and '
          f'{list(specs[name].shape)} here'
      )
  return problems


def num_parameters(specs: Specs) -> int:
  """Number of parameters."""
  return sum(math.prod(spec.shape) for spec in specs.values())

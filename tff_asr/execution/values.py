"""Flat tensors to the nested values that TFF computations take and return.

A `Layout` is built once from a TFF type and then flattens an argument to one
tensor a leaf, in the order of the type, and packs such tensors back into the
Python containers that the type declares (NamedTuples, OrderedDicts, attrs
classes), as TFF's own runtime does.

Differences from TFF's own runtime: tensors of rank one and more are returned
as eager tensors on the device that computed them, so that a large state stays
where it is between rounds; scalars and strings are returned as NumPy values.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import attrs
import numpy as np
import tensorflow as tf
import tensorflow_federated as tff


class Layout:
  """The leaves of a TFF type: flattens values to tensors, and packs them.

  Placements are looked through: a server-placed struct has the leaves of its
  member. A leaf is a tensor, or the variant tensor of a dataset.

  Attributes:
    specs: one `tf.TensorSpec` a leaf, in order; a dataset is a scalar variant.
  """

  def __init__(self, type_spec: tff.Type | None):
    """Reads the leaves of `type_spec`; None has none.

    Args:
      type_spec: structs, tensors, sequences, and placements of these.

    Raises:
      ValueError: `type_spec` holds a function or another type without values.
    """
    self._type = type_spec
    self._root = _Node(()) if type_spec is None else _build_node(type_spec)
    self.specs = tuple(_node_specs(self._root))

  def flatten(self, value: Any, *, name: str = 'argument') -> list[tf.Tensor]:
    """Returns the leaves of `value` as eager tensors, in the type's order.

    Args:
      value: nested as the type: structs, tuples, lists, dicts, attrs objects;
        at the leaves tensors, arrays, Python scalars or `tf.data.Dataset`s.
      name: what errors call the value.

    Raises:
      TypeError: a leaf or a container that does not fit the type, by its name.
    """
    tensors = []
    if self._type is not None:
      _flatten_into(tensors, value, self._root, name)
    return tensors

  def pack(self, tensors: Sequence[tf.Tensor]) -> Any:
    """Returns the tensors, one a leaf, in the containers of the type."""
    leaves = iter(tensors)
    value = _pack(self._root, leaves)
    return tff.types.type_to_py_container(
        value, _without_placements(self._type)
    )


@attrs.frozen(eq=False)
class _Node:
  """A struct of the type: its fields' names (None if unnamed) and nodes."""

  fields: tuple[tuple[str | None, Any], ...]


@attrs.frozen(eq=False)
class _Dataset:
  """A sequence of the type, and the leaves of its elements."""

  element_spec: Any
  element_leaves: tuple[tf.TensorSpec, ...]


def _build_node(type_spec: tff.Type) -> Any:
  """The node of a type: a `_Node`, a `_Dataset` or a `tf.TensorSpec`."""
  if isinstance(type_spec, tff.FederatedType):
    return _build_node(type_spec.member)
  if isinstance(type_spec, tff.StructType):
    return _Node(tuple(
        (name, _build_node(field))
        for name, field in tff.structure.iter_elements(type_spec)
    ))
  if isinstance(type_spec, tff.SequenceType):
    spec = tff.types.structure_from_tensor_type_tree(
        _tensor_spec, type_spec.element
    )
    return _Dataset(spec, tuple(tf.nest.flatten(spec)))
  if isinstance(type_spec, tff.TensorType):
    return _tensor_spec(type_spec)
  raise ValueError(
      f'Values are tensors, structs and sequences; found type {type_spec}.'
  )


def _tensor_spec(type_spec: tff.TensorType) -> tf.TensorSpec:
  return tf.TensorSpec(type_spec.shape, tf.as_dtype(type_spec.dtype))


def _node_specs(node: Any) -> list[tf.TensorSpec]:
  if isinstance(node, _Node):
    return [spec for _, field in node.fields for spec in _node_specs(field)]
  if isinstance(node, _Dataset):
    return [tf.TensorSpec([], tf.variant)]
  return [node]


def _without_placements(type_spec: tff.Type | None) -> tff.Type:
  """The same structure, containers included, with each placement removed."""
  if type_spec is None:
    return tff.StructType([])
  if isinstance(type_spec, tff.FederatedType):
    return type_spec.member
  if not isinstance(type_spec, tff.StructType):
    return type_spec
  fields = [
      (name, _without_placements(field)) if name else _without_placements(field)
      for name, field in tff.structure.iter_elements(type_spec)
  ]
  container = type_spec.python_container
  if container is None:
    return tff.StructType(fields)
  return tff.StructWithPythonType(fields, container)


def _flatten_into(
    tensors: list[tf.Tensor], value: Any, node: Any, name: str
) -> None:
  if isinstance(node, tf.TensorSpec):
    tensors.append(_to_tensor(value, node, name))
  elif isinstance(node, _Dataset):
    tensors.append(_to_variant(value, node, name))
  else:
    fields = get_fields(value, [field for field, _ in node.fields], name=name)
    for index, ((field, child), element) in enumerate(
        zip(node.fields, fields)
    ):
      label = f'.{field}' if field else f'[{index}]'
      _flatten_into(tensors, element, child, name + label)


def get_fields(
    value: Any, names: Sequence[str | None], *, name: str
) -> list[Any]:
  """Returns the fields of a container in the order of `names`.

  Args:
    value: a `tff.structure.Struct`, mapping, NamedTuple, attrs object or plain
      sequence. Named fields are found by name, unnamed ones by position.
    names: the name of each field, None where the type gives none.
    name: what errors call the value.

  Raises:
    TypeError: `value` is no container, or its fields are not `names`.
  """
  if isinstance(value, tff.structure.Struct):
    found = tff.structure.to_elements(value)
  elif isinstance(value, Mapping):
    found = list(value.items())
  elif hasattr(value, '_asdict'):
    found = list(value._asdict().items())
  elif attrs.has(type(value)):
    found = list(attrs.asdict(value, recurse=False).items())
  elif isinstance(value, (tuple, list)):
    found = [(None, element) for element in value]
  else:
    raise TypeError(
        f'{name} must be a container with fields {list(names)}, found a value '
        f'of {type(value).__name__}.'
    )
  found_names = [field for field, _ in found]
  if len(found) == len(names) and all(
      a is None or b is None or a == b for a, b in zip(found_names, names)
  ):
    return [element for _, element in found]
  if None not in found_names and sorted(found_names) == sorted(map(str, names)):
    by_name = dict(found)
    return [by_name[field] for field in names]
  raise TypeError(
      f'{name} must have the fields {list(names)}, found {found_names}.'
  )


def _to_tensor(value: Any, spec: tf.TensorSpec, name: str) -> tf.Tensor:
  """The leaf as an eager tensor of exactly the dtype and shape of `spec`."""
  try:
    if isinstance(value, (tf.Tensor, tf.Variable, np.ndarray, np.generic)):
      tensor = tf.convert_to_tensor(value)
    else:
      tensor = tf.convert_to_tensor(value, spec.dtype)
  except (TypeError, ValueError) as error:
    raise TypeError(
        f'{name} must be {_describe(spec)}, found a value of '
        f'{type(value).__name__} that does not convert: {error}'
    ) from error
  if tensor.dtype != spec.dtype or not spec.shape.is_compatible_with(
      tensor.shape
  ):
    raise TypeError(
        f'{name} must be {_describe(spec)}, found {_describe(tensor)}; cast or '
        'reshape it.'
    )
  return tensor


def _to_variant(value: Any, node: _Dataset, name: str) -> tf.Tensor:
  """The dataset as the variant tensor that stands for it in a graph."""
  if not isinstance(value, tf.data.Dataset):
    raise TypeError(
        f'{name} must be a tf.data.Dataset, found {type(value).__name__}; '
        'build one with tf.data.Dataset.from_tensor_slices.'
    )
  found = tf.nest.flatten(value.element_spec)
  if len(found) != len(node.element_leaves) or not all(
      leaf.is_compatible_with(other)
      for leaf, other in zip(node.element_leaves, found)
  ):
    raise TypeError(
        f'{name} must be a dataset of {node.element_spec}, found one of '
        f'{value.element_spec}.'
    )
  return tf.data.experimental.to_variant(value)


def _describe(tensor: Any) -> str:
  return f'{tensor.dtype.name} of shape {tensor.shape}'


def _pack(node: Any, leaves: Any) -> Any:
  if isinstance(node, _Node):
    return tff.structure.Struct(
        [(name, _pack(field, leaves)) for name, field in node.fields]
    )
  leaf = next(leaves)
  if isinstance(node, _Dataset):
    return tf.data.experimental.from_variant(leaf, node.element_spec)
  if leaf.shape.rank == 0 or leaf.dtype == tf.string:
    return leaf.numpy()
  return leaf

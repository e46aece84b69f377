"""Converts between TFF's nested values and flat lists of tensors.

A `TypeFlattener` is built once from a TFF type. It flattens an argument to one
tensor for each leaf, in the order of the type. It packs such tensors back into
the Python containers that the type declares (NamedTuples, OrderedDicts, attrs
classes), as TFF's own runtime does.

Unlike in TFF's own runtime, tensors of rank one and more come back as eager
tensors on the device that computed them, so a large state stays there between
rounds. Scalars and strings come back as NumPy values.
"""

from collections.abc import Iterator, Sequence
import functools
import itertools
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff


class TypeFlattener:
  """Flattens values of a TFF type to tensors, and packs such tensors.

    >>> pair = TypeFlattener(tff.to_type([('a', np.int32), ('b', np.int32)]))
    >>> [int(leaf) for leaf in pair.flatten({'b': 2, 'a': 1})]
    [1, 2]

  A placed value has the leaves of its member. A leaf is a tensor, or the
  variant tensor of a dataset.

  Attributes:
    specs: a `tf.TensorSpec` for each leaf, in order; a dataset is a scalar
      variant.
  """

  def __init__(self, type_spec: tff.Type | None):
    """Reads the leaves of `type_spec`; None means no value.

    Args:
      type_spec: structs, tensors, sequences, and placements of these.

    Raises:
      ValueError: `type_spec` holds a function or another type without values.
    """
    self._type = _without_placements(type_spec)
    self._leaf_types = tff.structure.flatten(self._type)
    self.specs = tuple(map(_leaf_spec, self._leaf_types))

  def flatten(
      self, value: object, *, name: str = 'argument'
  ) -> list[tf.Tensor]:
    """Returns the leaves of `value` as eager tensors, in the type's order.

    Args:
      value: nested as the type: structs, tuples, lists, dicts, attrs objects;
        at the leaves tensors, arrays or Python scalars; a sequence is a
        `tf.data.Dataset` or a list of its elements.
      name: the value's name in error messages.

    Raises:
      TypeError: a leaf or a container does not fit the type; names it.
    """
    # TFF passes None where there is no argument.
    if not self.specs:
      return []
    return [_to_leaf(*leaf) for leaf in iter_leaves(value, self._type, name)]

  def flatten_to_host(
      self, value: object, *, name: str = 'argument'
  ) -> list[tf.Tensor | np.ndarray | np.generic | bytes]:
    """The same, with NumPy's values and texts as they are if they fit.

    For values that are sent elsewhere: to make a tensor takes ten times as long
    as to check a value.
    """
    if not self.specs:
      return []
    return [_to_host(*leaf) for leaf in iter_leaves(value, self._type, name)]

  def pack(self, tensors: Sequence[tf.Tensor]) -> Any:
    """Returns the tensors, one a leaf, in the containers of the type."""
    leaves = list(map(_from_leaf, tensors, self._leaf_types))
    value = tff.structure.pack_sequence_as(self._type, leaves)
    # Containers, such as a NamedTuple of the program, are part of the type.
    return tff.types.type_to_py_container(value, self._type)


def _leaf_spec(type_spec: tff.Type) -> tf.TensorSpec:
  if isinstance(type_spec, tff.SequenceType):
    return tf.TensorSpec([], tf.variant)  # A dataset's handle in graphs.
  if isinstance(type_spec, tff.TensorType):
    return _tensor_spec(type_spec)
  raise ValueError(
      f'Values are tensors, structs and sequences; found type {type_spec}.'
  )


@functools.lru_cache(maxsize=1024)
def _tensor_spec(type_spec: tff.TensorType) -> tf.TensorSpec:
  return tf.TensorSpec(type_spec.shape, tf.as_dtype(type_spec.dtype))


def _element_spec(type_spec: tff.SequenceType) -> Any:
  """Returns the structure of specs of a dataset's elements."""
  return tff.types.structure_from_tensor_type_tree(
      _tensor_spec, type_spec.element
  )


def _without_placements(type_spec: tff.Type | None) -> tff.Type:
  """Returns the same type, containers included, without placements."""
  if type_spec is None:
    return tff.StructType([])
  if isinstance(type_spec, tff.FederatedType):
    return type_spec.member
  if not isinstance(type_spec, tff.StructType):
    return type_spec
  fields = [
      # A field without a name is given to TFF as its type alone.
      (name, _without_placements(field)) if name else _without_placements(field)
      for name, field in tff.structure.iter_elements(type_spec)
  ]
  container = type_spec.python_container
  if container is None:
    return tff.StructType(fields)
  return tff.StructWithPythonType(fields, container)


def iter_leaves(
    value: object, type_spec: tff.Type, name: str
) -> Iterator[tuple[object, tff.Type, str]]:
  """Yields each leaf of a value with its type and its name in messages.

  Args:
    value: nested as `type_spec`, in containers that TFF accepts. Named fields
      are found by name, unnamed ones by position.
    type_spec: gives the order. All types but structs are leaves.
    name: the value's name in error messages.

  Raises:
    TypeError: a struct's value is not a container, or has other fields.
  """
  if not isinstance(type_spec, tff.StructType):
    yield value, type_spec, name
    return
  names = tff.structure.name_list_with_nones(type_spec)
  # Most values are NamedTuples and tuples as the type has them. TFF would take
  # half of the time that a client costs a driver to look at each.
  if isinstance(value, tuple) and names == list(
      getattr(value, '_fields', len(value) * [None])
  ):
    yield from _iter_members(value, type_spec, names, name)
    return
  try:
    found = tff.structure.to_elements(tff.structure.from_container(value))
  except TypeError as error:
    raise TypeError(
        f'{name} must be a container with fields {names}, found a value '
        f'of {type(value).__name__}.'
    ) from error
  found_names = [field for field, _ in found]
  # By name, whatever the order of a dict; TFF's own runtime takes the order.
  if None not in found_names and sorted(found_names) == sorted(map(str, names)):
    by_name = dict(found)
    found = [(field, by_name[field]) for field in names]
  elif len(found) != len(names) or any(
      a != b for a, b in zip(found_names, names) if a and b
  ):
    raise TypeError(
        f'{name} must have the fields {names}, found {found_names}.'
    )
  yield from _iter_members(
      [element for _, element in found], type_spec, names, name
  )


def _iter_members(
    members: Sequence[object],
    type_spec: tff.StructType,
    names: Sequence[str | None],
    name: str,
) -> Iterator[tuple[object, tff.Type, str]]:
  """Yields each leaf of a struct's members, as `iter_leaves`."""
  for index, element in enumerate(members):
    label = f'.{names[index]}' if names[index] else f'[{index}]'
    yield from iter_leaves(element, type_spec[index], name + label)


def _to_leaf(value: object, type_spec: tff.Type, name: str) -> tf.Tensor:
  if isinstance(type_spec, tff.SequenceType):
    return _to_variant(value, type_spec, name)
  return _to_tensor(value, _tensor_spec(type_spec), name)


def _to_host(
    value: object, type_spec: tff.Type, name: str
) -> tf.Tensor | np.ndarray | np.generic | bytes:
  """Returns the leaf as it is if it fits, else as a tensor."""
  if isinstance(type_spec, tff.TensorType):
    spec = _tensor_spec(type_spec)
    is_text = isinstance(value, str) and spec.shape.rank == 0
    if is_text and spec.dtype == tf.string:
      return value.encode()
    if (
        isinstance(value, (np.ndarray, np.generic))
        and spec.dtype.is_numeric
        and value.dtype == spec.dtype.as_numpy_dtype
        and spec.shape.is_compatible_with(value.shape)
    ):
      return value
  return _to_leaf(value, type_spec, name)


def _to_tensor(value: object, spec: tf.TensorSpec, name: str) -> tf.Tensor:
  """Returns the leaf as an eager tensor that fits `spec`."""
  try:
    # Values with a dtype keep it, so that a wrong one is found below.
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


def _to_variant(
    value: object, type_spec: tff.SequenceType, name: str
) -> tf.Tensor:
  """Returns the dataset as the variant tensor that represents it in a graph."""
  element_spec = _element_spec(type_spec)
  if isinstance(value, (list, tuple)):
    # TFF accepts lists of elements for sequences, too.
    value = _to_dataset(value, type_spec, name)
  if not isinstance(value, tf.data.Dataset):
    raise TypeError(
        f'{name} must be a tf.data.Dataset or a list of its elements, found '
        f'{type(value).__name__}.'
    )
  # Containers may differ: a list fits a tuple, a dict an OrderedDict.
  specs, found = map(tf.nest.flatten, (element_spec, value.element_spec))
  if len(specs) != len(found) or not all(
      spec.is_compatible_with(other) for spec, other in zip(specs, found)
  ):
    raise TypeError(
        f'{name} must be a dataset of {element_spec}, found one of '
        f'{value.element_spec}.'
    )
  return tf.data.experimental.to_variant(_without_autotuning(value))


def _without_autotuning(dataset: tf.data.Dataset) -> tf.data.Dataset:
  """Returns the dataset with autotuning off, unless its options set it."""
  # A client's data are read once, in too short a time to learn from. To start
  # autotuning takes 10 ms of CPU time for a dataset that maps and shuffles.
  if dataset.options().autotune.enabled is not None:
    return dataset
  options = tf.data.Options()
  options.autotune.enabled = False
  with tf.device('/device:CPU:0'):  # No other device has kernels for datasets.
    return dataset.with_options(options)


def _to_dataset(
    elements: Sequence[object], type_spec: tff.SequenceType, name: str
) -> tf.data.Dataset:
  """Returns a dataset of the elements' flat components."""
  element_type = TypeFlattener(type_spec.element)
  # Only the CPU has kernels for datasets.
  with tf.device('/device:CPU:0'):
    # Packed and flattened again: a dataset's components have the order of
    # tf.nest, which sorts the keys of a dict.
    components = [
        [
            tf.convert_to_tensor(leaf)
            for leaf in tf.nest.flatten(element_type.pack(
                element_type.flatten(element, name=f'{name}[{index}]')
            ))
        ]
        for index, element in enumerate(elements)
    ]
    # A group has elements of one shape: full batches, then a smaller last one.
    groups = [
        tf.data.Dataset.from_tensor_slices(tuple(map(tf.stack, zip(*group))))
        for _, group in itertools.groupby(
            components, key=lambda leaves: [leaf.shape for leaf in leaves]
        )
    ]
    if not groups:  # No elements: an empty dataset of the right specs.
      return tf.data.Dataset.from_tensors(tuple(
          tf.zeros([size or 0 for size in spec.shape or ()], spec.dtype)
          for spec in tf.nest.flatten(_element_spec(type_spec))
      )).take(0)
    return functools.reduce(tf.data.Dataset.concatenate, groups)


def _describe(tensor: tf.Tensor | tf.TensorSpec) -> str:
  return f'{tensor.dtype.name} of shape {tensor.shape}'


def _from_leaf(leaf: tf.Tensor, type_spec: tff.Type) -> Any:
  if isinstance(type_spec, tff.SequenceType):
    return tf.data.experimental.from_variant(leaf, _element_spec(type_spec))
  # As TFF's own runtime returns them: users compare and print such values.
  if leaf.shape.rank == 0 or leaf.dtype == tf.string:
    return leaf.numpy()
  return leaf

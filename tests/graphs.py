"""Operations of a TensorFlow graph, and their dependencies."""

import tensorflow as tf


def before(op: tf.Operation) -> set[tf.Operation]:
  """All that an operation waits for."""
  found, left = set(), [op]
  while left:
    op = left.pop()
    inputs = [*op.control_inputs, *(each.op for each in op.inputs)]
    left += [each for each in inputs if each not in found]
    found.update(inputs)
  return found


def of_type(graph: tf.Graph, name: str) -> list[tf.Operation]:
  """The operations of a type, in the order of their creation."""
  return [op for op in graph.get_operations() if op.type == name]

"""Looks into serialized TensorFlow graphs: what depends on what, and how."""

from collections.abc import Callable, Iterable, Sequence

import tensorflow as tf

_VARIABLE_OPS = frozenset(['VarHandleOp', 'VariableV2', 'Variable'])


def find_needed(
    graph_def: tf.compat.v1.GraphDef,
    targets: Sequence[str],
    *,
    is_leaf: Callable[[tf.compat.v1.NodeDef], bool] = lambda node: False,
) -> set[str]:
  """Names of the nodes that the target tensors or ops depend on.

  Args:
    graph_def: a graph.
    targets: names of tensors or ops in it.
    is_leaf: nodes whose own inputs do not count.
  """
  nodes = {node.name: node for node in graph_def.node}
  needed = set()
  pending = [node_name(target) for target in targets]
  while pending:
    name = pending.pop()
    if name not in needed:
      needed.add(name)
      if not is_leaf(nodes[name]):
        pending.extend(node_name(source) for source in nodes[name].input)
  return needed


def find_ops(
    graph_def: tf.compat.v1.GraphDef, names: Iterable[str]
) -> set[str]:
  """Ops of these nodes and of all functions that they call or hand on."""
  functions = {
      function.signature.name: function
      for function in graph_def.library.function
  }
  names = set(names)
  pending = [node for node in graph_def.node if node.name in names]
  seen, ops = set(), set()
  while pending:
    node = pending.pop()
    ops.add(node.op)
    called = {node.op, *_find_function_names(node)} & functions.keys() - seen
    seen |= called
    for name in called:
      pending.extend(functions[name].node_def)
  return ops


def _find_function_names(node: tf.compat.v1.NodeDef) -> set[str]:
  """Names of the functions that a node's attributes hold."""
  names = set()
  for attribute in node.attr.values():
    names.add(attribute.func.name)
    names.update(function.name for function in attribute.list.func)
  return names


def has_variables(graph_def: tf.compat.v1.GraphDef) -> bool:
  """Whether a graph, or a function in it, has variables."""
  return any(
      node.op in _VARIABLE_OPS for nodes in bodies(graph_def) for node in nodes
  )


def bodies(graph_def: tf.compat.v1.GraphDef) -> list:
  """The nodes of a graph and those of each function in it."""
  functions = graph_def.library.function
  return [graph_def.node, *(function.node_def for function in functions)]


def node_name(name: str) -> str:
  """The node of a tensor name or of an input such as '^node'."""
  return name.removeprefix('^').split(':')[0]

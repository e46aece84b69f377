"""Loops that run on the device, in place of reductions of datasets.

`tf.data.Dataset.reduce`, by which TFF's own algorithms train and evaluate
(`tff.learning.LoopImplementation.DATASET_REDUCE`, the default), becomes
`ReduceDataset`. That op has a kernel for CPUs alone: its function, all of a
client's training, would stay on the host of a GPU, and Grappler leaves it as it
is. A loop over an iterator runs where the rest of the client's work runs.

The dataset's own functions (of `map`, `filter`, `scan` and so on) remain on the
host. Where they multiply, as a model does, `warn` says so.
"""

from collections.abc import Callable
import dataclasses
import itertools

from absl import logging
import tensorflow as tf

from tff_asr.execution import graph

_numbers = itertools.count()
# What a model spends its time on, and what reading and parsing has not.
_HEAVY = frozenset([
    'BatchMatMulV2', 'Conv1D', 'Conv2D', 'Conv2DBackpropFilter', 'Conv3D',
    'DepthwiseConv2dNative', 'Einsum', 'MatMul', 'SparseMatMul',
])


def warn(work: graph.Graph) -> None:
  """Logs a line that names the datasets whose functions keep a model's work.

  Args:
    work: of clients, as `convert` returns it.
  """
  graph_def = tf.compat.v1.GraphDef.FromString(work.graph_def)
  functions = {f.signature.name: f for f in graph_def.library.function}
  found = {}
  for nodes in graph.bodies(graph_def):
    for node in nodes:
      called = node.attr['f'].func.name if 'f' in node.attr else ''
      if 'Dataset' in node.op and called in functions:
        ops = graph.find_ops(
            tf.compat.v1.GraphDef(
                node=functions[called].node_def, library=graph_def.library
            ),
            [each.name for each in functions[called].node_def],
        )
        if heavy := _HEAVY & ops:
          found.setdefault(node.op, set()).update(heavy)
  for op, heavy in sorted(found.items()):
    logging.warning(
        'A function of clients\' datasets (%s) computes %s. It runs on the '
        'host, also where there are GPUs: do this after the dataset, or by '
        'Dataset.reduce, which becomes a loop on the device.',
        op, ', '.join(sorted(heavy)),
    )


def convert(work: graph.Graph) -> graph.Graph:
  """Returns the graph with loops in place of its reductions of datasets."""
  graph_def = tf.compat.v1.GraphDef.FromString(work.graph_def)
  functions = {f.signature.name: f for f in graph_def.library.function}
  reductions = [
      node
      for nodes in graph.bodies(graph_def)
      for node in nodes
      if node.op == 'ReduceDataset'
  ]
  if not reductions:
    return work
  for node in reductions:
    loop = _build_loop(node, functions[node.attr['f'].func.name].signature)
    graph_def.library.MergeFrom(loop.library)
    _call(node, loop.name, loop.input_types)
  for function in graph_def.library.function:
    # There an output is named by the op's argument.
    names = {f'{node.name}:components:' for node in reductions}
    for node in function.node_def:
      node.input[:] = [_rename(name, names) for name in node.input]
    for output, name in function.ret.items():
      function.ret[output] = _rename(name, names)
  return dataclasses.replace(work, graph_def=graph_def.SerializeToString())


@dataclasses.dataclass(frozen=True)
class _Loop:
  """A function as protocol buffers.

  Attributes:
    name: of the function in the library.
    library: it and what it calls, but for the body of the reduction.
    input_types: dtypes of its inputs.
  """

  name: str
  library: tf.compat.v1.GraphDef
  input_types: list[tf.DType]


def _build_loop(node: tf.compat.v1.NodeDef, body) -> _Loop:
  """A loop for a reduction.

  Args:
    node: the reduction.
    body: the signature of its function <state, element, other> -> state.
  """
  types = lambda name: list(map(tf.as_dtype, node.attr[name].list.type))
  states, others = types('Tstate'), types('Targuments')
  shapes = list(map(tf.TensorShape, node.attr['output_shapes'].list.shape))
  arguments = [tf.as_dtype(each.type) for each in body.input_arg]
  elements = arguments[len(states) : len(arguments) - len(others)]
  stub = _build_stub(arguments, states)

  def loop(dataset, *rest):
    values, captured = rest[: len(states)], rest[len(states) :]
    iterator = iter(tf.data.experimental.from_variant(
        dataset, tuple(tf.TensorSpec(None, dtype) for dtype in elements)
    ))

    def step(following, *values):
      found = tf.nest.flatten(following.get_value())
      values = tf.raw_ops.StatefulPartitionedCall(
          args=[*values, *found, *captured], Tout=states, f=stub
      )
      for value, shape in zip(values, shapes):
        value.set_shape(shape)
      return iterator.get_next_as_optional(), *values

    following = iterator.get_next_as_optional()
    _, *values = tf.while_loop(
        lambda following, *unused: following.has_value(),
        step,
        (following, *values),
        shape_invariants=(tf.type_spec_from_value(following), *shapes),
        # More would read more elements ahead than the next one.
        parallel_iterations=1,
    )
    return values

  input_types = [tf.variant, *states, *others]
  traced = tf.function(loop, autograph=False).get_concrete_function(*[
      tf.TensorSpec(shape, dtype)
      for shape, dtype in zip(
          [tf.TensorShape([]), *shapes, *[None] * len(others)], input_types
      )
  ])
  own = traced.function_def.signature.name
  library = traced.graph.as_graph_def().library
  library.function.add().CopyFrom(traced.function_def)
  kept = [
      function
      for function in library.function
      if function.signature.name != stub.function_def.signature.name
  ]
  prefix = f'reduction{next(_numbers)}_'
  names = {f.signature.name: prefix + f.signature.name for f in kept}
  names[stub.function_def.signature.name] = body.name
  loop_def = tf.compat.v1.GraphDef()
  loop_def.library.function.extend(kept)
  graph.rename_functions(loop_def, names)
  return _Loop(prefix + own, loop_def.library, input_types)


def _build_stub(
    arguments: list[tf.DType], results: list[tf.DType]
) -> Callable[..., list[tf.Tensor]]:
  """A function of some types, to be replaced by name."""

  def stub(*unused_arguments):
    return [tf.raw_ops.Placeholder(dtype=dtype) for dtype in results]

  return tf.function(stub, autograph=False).get_concrete_function(
      *[tf.TensorSpec(None, dtype) for dtype in arguments]
  )


def _call(
    node: tf.compat.v1.NodeDef, name: str, input_types: list[tf.DType]
) -> None:
  """Makes a reduction a call of a function."""
  outputs = list(node.attr['output_types'].list.type)
  node.op = 'StatefulPartitionedCall'
  node.attr.clear()
  node.attr['f'].func.name = name
  node.attr['Tin'].list.type.extend(t.as_datatype_enum for t in input_types)
  node.attr['Tout'].list.type.extend(outputs)


def _rename(name: str, reductions: set[str]) -> str:
  base, mark, index = name.rpartition(':')
  if f'{base}:' in reductions:
    return base.removesuffix('components') + 'output' + mark + index
  return name

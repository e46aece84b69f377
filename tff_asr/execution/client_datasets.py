"""Splits the reading of a client's datasets off its work.

TFF composes two functions into one graph: from a client id to the client's
dataset, and the work on that dataset. There, reading starts with the work. This
module cuts the graph at the dataset:

    read: D -> V                 client value to datasets
    work: <A, D, C, V> -> A      what remains

So one client's dataset can be read while another client trains (`prefetch`).

The functions of datasets run on the host: `tf.data` has kernels for CPUs alone.
`warn_on_gpus` names those that would keep a model's work there.
"""

from collections.abc import Iterable, Sequence
import dataclasses
import itertools
import re

from absl import logging
import tensorflow as tf

from tff_asr.execution import graph

_DATASET_OP = re.compile(r'Dataset(V\d+)?$')
# Ops that may return something else each time. Python may do anything.
_VARYING_OP = re.compile(
    r'^(?!Stateless).*'
    r'(Shuffle|Random|Multinomial|TruncatedNormal|Sampler|Sampling'
    r'|SampleDistorted|Snapshot|Fractional|NonDeterministic|RecordInput'
    r'|CudnnRNN)'
    r'|^((Eager)?PyFunc|Timestamp)$'
)
# Ops that match this name but return no dataset.
_CONSUMERS = frozenset(['ReduceDataset'])
# What a model spends its time on, and what reading and parsing has not.
_HEAVY_OPS = frozenset([
    'BatchMatMulV2', 'Conv1D', 'Conv2D', 'Conv2DBackpropFilter', 'Conv3D',
    'DepthwiseConv2dNative', 'Einsum', 'MatMul', 'SparseMatMul',
])


@dataclasses.dataclass(frozen=True)
class Read:
  """A program from a client's values to its datasets.

  Attributes:
    program: `D -> V`, variants.
    elements: for each dataset, the flat specs of its elements.
  """

  program: graph.Program
  elements: tuple[tuple[tf.TensorSpec, ...], ...]


def split(
    work: graph.Graph, *, client_inputs: Sequence[str]
) -> tuple[graph.Graph, Read | None]:
  """Cuts the graph of client work at the datasets that it consumes.

  Args:
    work: the graph.
    client_inputs: those of its inputs that are the client's values.

  Returns:
    The remaining graph, with the datasets as further inputs, and the program
    that makes the datasets. The graph is left as it is, with None, if
      - it makes no dataset from the client's values alone, or only from
        datasets among them, each pass over which may differ,
      - a dataset uses a variable or a mutable table, or
      - a dataset shuffles or draws without a fixed seed, or calls Python that
        is not declared stateless: each pass over it may differ, but passes over
        a dataset kept in memory do not.
  """
  graph_def = tf.compat.v1.GraphDef.FromString(work.graph_def)
  nodes = {node.name: node for node in graph_def.node}
  reached = graph.find_needed(
      graph_def, work.outputs, is_leaf=_is_dataset
  )
  others = {graph.node_name(name) for name in work.inputs}
  specs = dict(zip(work.inputs, work.specs))
  others.difference_update(
      graph.node_name(name)
      for name in client_inputs
      if specs[name].dtype != tf.variant
  )
  if work.session_token:
    others.add(graph.node_name(work.session_token))
  names = sorted(
      name
      for name in reached
      if _is_dataset(nodes[name])
      and _is_separable(graph_def, name, others, work.initialize_op)
  )
  if not names:
    return work, None
  read = dataclasses.replace(
      work,
      inputs=tuple(client_inputs),
      outputs=tuple(f'{name}:0' for name in names),
      specs=tuple(specs[name] for name in client_inputs),
      session_token='',
  )
  elements = tuple(_get_element_specs(nodes[name]) for name in names)
  for name in names:
    _make_placeholder(nodes[name])
  rest = dataclasses.replace(
      work,
      graph_def=graph_def.SerializeToString(),
      inputs=work.inputs + read.outputs,
      specs=work.specs + (tf.TensorSpec([], tf.variant),) * len(names),
  )
  return rest, Read(graph.Program((read,)), elements)


def warn_on_gpus(
    graphs: Iterable[graph.Graph], devices: Iterable[str]
) -> None:
  """Warns, where clients train on GPUs, of a model in a dataset's function.

  Such is TFF's own training by `Dataset.reduce`, the default of its builders
  (`tff.learning.LoopImplementation`).

  Args:
    graphs: what clients do.
    devices: names of the devices that they do it on.
  """
  if not any(':GPU:' in device for device in devices):
    return
  found = {}
  for each in graphs:
    graph_def = tf.compat.v1.GraphDef.FromString(each.graph_def)
    for node in itertools.chain(*graph.bodies(graph_def)):
      if 'Dataset' in node.op:
        ops = graph.find_ops([node], graph_def.library)
        found.setdefault(node.op, set()).update(_HEAVY_OPS & ops)
  for op, heavy in sorted(found.items()):
    if heavy:
      logging.warning(
          'A function of clients\' datasets (%s) computes %s. It runs on the '
          'host, not on the GPU. If it is a builder of TFF that trains there, '
          'give it loop_implementation='
          'tff.learning.LoopImplementation.DATASET_ITERATOR (build_fed_recon '
          'and its evaluation have none, and stay there); else compute this '
          'after the dataset.',
          op, ', '.join(sorted(heavy)),
      )


def _is_separable(
    graph_def: tf.compat.v1.GraphDef,
    name: str,
    others: set[str],
    initialize_op: str,
) -> bool:
  """True if a dataset needs no other input and repeats itself in each pass."""
  needed = graph.find_needed_with_state(graph_def, [name], initialize_op)
  if graph.has_mutable_state(graph_def, needed):
    return False
  ops = graph.find_ops(
      [node for node in graph_def.node if node.name in needed],
      graph_def.library,
  )
  return needed.isdisjoint(others) and not any(map(_VARYING_OP.search, ops))


def _is_dataset(node: tf.compat.v1.NodeDef) -> bool:
  """True for a node that returns a dataset and declares its elements."""
  return (
      _DATASET_OP.search(node.op) is not None
      and node.op not in _CONSUMERS
      and 'output_types' in node.attr
      and 'output_shapes' in node.attr
  )


def _get_element_specs(
    node: tf.compat.v1.NodeDef,
) -> tuple[tf.TensorSpec, ...]:
  """The flat specs of the elements of a dataset node."""
  return tuple(
      tf.TensorSpec(tf.TensorShape(shape), tf.as_dtype(dtype))
      for shape, dtype in zip(
          node.attr['output_shapes'].list.shape,
          node.attr['output_types'].list.type,
      )
  )


def _make_placeholder(node: tf.compat.v1.NodeDef) -> None:
  """Makes a dataset node an input of its graph."""
  node.op = 'Placeholder'
  del node.input[:]
  node.attr.clear()
  node.attr['dtype'].type = tf.variant.as_datatype_enum
  node.attr['shape'].shape.SetInParent()

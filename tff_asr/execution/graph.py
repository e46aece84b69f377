"""TFF's serialized TensorFlow graphs to functions of this process.

`Graph` is one serialized computation. `Program` is a chain of graphs, such as
client work followed by accumulation; `Program.load` compiles it to one function
in this process. Both pickle, so another process can load a program.

TFF runs each call in a new session, so that no state outlives a call.
Here each call makes its own variables and tables, without names, which are
freed after it (`_FRESH`), and initializes those that it uses. A program with an
op that can only share its state, such as a queue, is imported for each call;
the compiler refuses it at clients.
"""

import collections
from collections.abc import Callable, Iterator, Sequence
import contextlib
import dataclasses
import functools
import graphlib
import itertools

import tensorflow as tf
import tensorflow_federated as tff

# TensorFlow's public API has neither the option set below nor op definitions.
from tensorflow.core.protobuf import rewriter_config_pb2
from tensorflow.python.eager import context as eager_context
from tensorflow.python.framework import op_def_registry

from tff_asr import checks
from tff_asr.execution import dataset_loops
from tff_asr.execution import values

# Makes names unique in the process; `next` of a count is thread-safe.
_load_counter = itertools.count()

# TensorFlow makes a new variable each time a VarHandleOp of this name runs, and
# frees it with its last handle (`ResourceHandle::ANONYMOUS_NAME`).
_ANONYMOUS = 'cd2c89b7-88b7-44c8-ad83-06c2a9158347'

# Ops that make a named resource, and the op that makes the same one without a
# name, at each execution.
_FRESH = {
    'VarHandleOp': 'VarHandleOp',
    'HashTableV2': 'AnonymousHashTable',
    'MutableHashTableV2': 'AnonymousMutableHashTable',
    'MutableHashTableOfTensorsV2': 'AnonymousMutableHashTableOfTensors',
    'MutableDenseHashTableV2': 'AnonymousMutableDenseHashTable',
}
_FRESH_OPS = frozenset(_FRESH.values())

# Ops that read a dataset when they run.
_READERS = ('DatasetToSingleElement', 'MakeIterator', 'ReduceDataset')

# Ops with a resource that depends on their attributes only and never changes.
_CONSTANT = frozenset(['SentencepieceOp'])


@dataclasses.dataclass(frozen=True)
class Graph:
  """A serialized TensorFlow computation with flat inputs and outputs.

  Attributes:
    graph_def: serialized `tf.compat.v1.GraphDef`.
    inputs: tensor names of the parameter's leaves, in the type's order.
    outputs: tensor names of the result's leaves, in the type's order.
    specs: a `tf.TensorSpec` for each input.
    initialize_op: name of the op that sets tables and variables, or ''.
    shared_state: the ops with a state that outlives a call.
  """

  graph_def: bytes
  inputs: tuple[str, ...]
  outputs: tuple[str, ...]
  specs: tuple[tf.TensorSpec, ...]
  initialize_op: str
  shared_state: tuple[str, ...]


def from_computation(comp: tff.Computation) -> Graph:
  """Returns the graph of a TFF computation that is plain TensorFlow.

  Args:
    comp: a computation that serializes to a TensorFlow graph.

  Raises:
    ValueError: `comp` is not plain TensorFlow.
  """
  proto = tff.framework.serialize_computation(comp)
  kind = proto.WhichOneof('computation')
  if kind != 'tensorflow':
    raise ValueError(f'comp must be a TensorFlow graph, found {kind}.')
  section = proto.tensorflow
  graph_def = tf.compat.v1.GraphDef.FromString(section.graph_def.value)
  dataset_loops.unroll_reductions(graph_def)
  _make_state_fresh(graph_def)
  return Graph(
      graph_def=graph_def.SerializeToString(),
      inputs=tuple(_binding_names(section.parameter)),
      outputs=tuple(_binding_names(section.result)),
      specs=values.TypeFlattener(comp.type_signature.parameter).specs,
      initialize_op=section.initialize_op,
      shared_state=find_shared_state(graph_def),
  )


def _make_state_fresh(graph_def: tf.compat.v1.GraphDef) -> None:
  """Makes each call of a graph create its own variables and tables."""
  # Not those within functions: each call of the function would create others.
  for node in graph_def.node:
    if node.op in _FRESH:
      node.op = _FRESH[node.op]
      for name in ('container', 'shared_name', 'use_node_name_sharing'):
        # Anonymous tables have no such attributes, and importing them would
        # fail.
        node.attr.pop(name, None)
      if node.op == 'VarHandleOp':
        node.attr['shared_name'].s = _ANONYMOUS.encode()


def find_shared_state(graph_def: tf.compat.v1.GraphDef) -> tuple[str, ...]:
  """Returns the ops with a state that outlives a call, sorted.

  These are all ops with an attribute `container` or `shared_name`, by which
  kernels share state between calls, threads and graphs of a process.
  """
  # Sorted: the names are part of a message, and of the pickled graph.
  return tuple(sorted({
      node.op
      for nodes in node_lists(graph_def)
      for node in nodes
      if node.op not in _CONSTANT
      and (
          'shared_name' not in node.attr
          or node.attr['shared_name'].s.decode() != _ANONYMOUS
      )
      and (definition := op_def_registry.get(node.op)) is not None
      and any(
          attribute.name in ('container', 'shared_name')
          for attribute in definition.attr
      )
  }))


@dataclasses.dataclass(frozen=True)
class Program:
  """Graphs chained to one function of flat tensors.

  Each graph after the first takes the program's leading arguments (which the
  first graph does not get), then the outputs of the graph before it.

  Attributes:
    graphs: the graphs in order.
    num_kept: how many leading arguments skip the first graph.
    first_output: index of the last graph's first output to return.
    in_place: for each kept argument, whether it is a variable to which the last
      graph's addend is added in place, so that there is one copy of a large
      sum. The last graph must only add to it. Empty: none.
    donated: for each argument of the first graph, whether it is a variable
      that is emptied when it is read, so that a large value does not outlive
      its last use. Empty: none.
  """

  graphs: tuple[Graph, ...]
  num_kept: int = 0
  first_output: int = 0
  in_place: tuple[bool, ...] = ()
  donated: tuple[bool, ...] = ()

  def load(self) -> 'LoadedProgram':
    """Imports the program into this process."""
    return LoadedProgram(self)


def make_variable(value: tf.Tensor) -> tf.Tensor:
  """Returns the handle of a new variable, which lives as long as the handle."""
  # Not a `tf.Variable`: TensorFlow 2.14 leaks half a kilobyte for each.
  handle = tf.raw_ops.VarHandleOp(
      dtype=value.dtype, shape=value.shape, shared_name=_ANONYMOUS
  )
  tf.raw_ops.AssignVariableOp(resource=handle, value=value)
  return handle


def read_variable(handle: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
  """Returns the value of a variable, without a copy."""
  return tf.raw_ops.ReadVariableOp(resource=handle, dtype=dtype)


class PartlyAddedError(RuntimeError):
  """A call failed after it had begun to add to variables."""


class LoadedProgram:
  """A program in this process: `loaded(*tensors)` returns a list of tensors.

  Donated arguments are passed as variables (`make_variable`); those
  that are added to in place are passed and returned as such. Checks, reading
  and training come before the first addition, so that a call in which they fail
  has added nothing. If other arithmetic fails (a division of integers by zero),
  it raises `PartlyAddedError`, or the error of memory that is short.

  It runs on the caller's `tf.device`, and in several threads at once.
  """

  def __init__(self, program: Program):
    """Imports the program."""
    self._in_place = program.in_place
    # Shared state lives as long as the import.
    is_for_one_call = any(each.shared_state for each in program.graphs)
    self._import = functools.partial(_import, program)
    self._function = None if is_for_one_call else self._import()

  def __call__(self, *tensors: tf.Tensor) -> list[tf.Tensor]:
    """Returns the program's outputs for its flat arguments."""
    function = self._function or self._import()
    with _optimized_for_threads():
      if any(self._in_place):
        return self._add_in_place(function, tensors)
      return list(function(*tensors))

  def _add_in_place(
      self,
      function: Callable[..., Sequence[tf.Tensor]],
      tensors: Sequence[tf.Tensor],
  ) -> list[tf.Tensor]:
    is_added = make_variable(tf.constant(False))
    try:
      outputs = iter(function(*tensors, is_added))
    # Not PartlyAddedError: running out of memory ends the round in any case
    # (`client_round.exhausted_resource`).
    except tf.errors.ResourceExhaustedError:
      raise
    except Exception as error:
      if read_variable(is_added, tf.bool):
        raise PartlyAddedError(f'Part of a sum was added: {error}') from error
      raise
    return [
        total if is_variable else next(outputs)
        for total, is_variable in zip(tensors, self._in_place)
    ]


def _import(program: Program) -> Callable[..., Sequence[tf.Tensor]]:
  """Returns one function of all graphs of a program."""
  prefix = f'load{next(_load_counter)}_'
  graph_defs = [
      _parse_renamed(graph, f'{prefix}{number}_')
      for number, graph in enumerate(program.graphs)
  ]
  signature = [
      tf.TensorSpec(spec.shape, spec.dtype)
      for spec in (
          *program.graphs[-1].specs[: program.num_kept],
          *program.graphs[0].specs,
      )
  ]
  handle = tf.TensorSpec([], tf.resource)
  for index in itertools.compress(itertools.count(), program.in_place):
    signature[index] = handle
  for index in itertools.compress(
      itertools.count(program.num_kept), program.donated
  ):
    signature[index] = handle
  if any(program.in_place):
    signature.append(handle)  # Whether adding has begun.
  return tf.compat.v1.wrap_function(
      _build_body(program, graph_defs), signature=signature
  )


@contextlib.contextmanager
def _optimized_for_threads() -> Iterator[None]:
  """Makes functions called in this thread safe to run in others, too."""
  # In graphs that seem large, TensorFlow's memory optimizer turns sums into
  # temporary variables, with the same names in all calls of a function. So it
  # is switched off.
  context = eager_context.context()
  options = context.function_call_options
  config = tf.compat.v1.ConfigProto.FromString(options.config_proto_serialized)
  config.graph_options.rewrite_options.memory_optimization = (
      rewriter_config_pb2.RewriterConfig.NO_MEM_OPT
  )
  context.function_call_options = eager_context.FunctionCallOptions(
      executor_type=options.executor_type, config_proto=config
  )
  try:
    yield
  finally:
    context.function_call_options = options


def _parse_renamed(graph: Graph, prefix: str) -> tf.compat.v1.GraphDef:
  """Parses a graph and gives its functions and resources unique names.

  The process that traced a graph has functions of the same names already, and
  two graphs may share names, so every function and every reference to it is
  renamed. Of resources only constant ones have names (`_CONSTANT`).
  """
  graph_def = tf.compat.v1.GraphDef.FromString(graph.graph_def)
  functions = {
      function.signature.name: prefix + function.signature.name
      for function in graph_def.library.function
  }
  for function in graph_def.library.function:
    function.signature.name = functions[function.signature.name]
    for attribute in function.attr.values():
      _rename_attribute(attribute, functions)
  for gradient in graph_def.library.gradient:
    gradient.function_name = functions[gradient.function_name]
    gradient.gradient_func = functions[gradient.gradient_func]
  for body, nodes in enumerate(node_lists(graph_def)):
    for node in nodes:
      node.op = functions.get(node.op, node.op)
      for key, attribute in node.attr.items():
        if key != 'shared_name':
          _rename_attribute(attribute, functions)
        elif (name := attribute.s.decode()) != _ANONYMOUS:
          # Nodes of two functions may have one name.
          attribute.s = (prefix + (name or f'{body}_{node.name}')).encode()
  return graph_def


def _rename_attribute(
    attribute: tf.compat.v1.AttrValue, functions: dict[str, str]
) -> None:
  """Renames the functions that one attribute refers to."""
  kind = attribute.WhichOneof('value')
  if kind == 'func':
    _rename_function(attribute.func, functions)
  elif kind == 's':
    attribute.s = _rename_bytes(attribute.s, functions)
  elif kind == 'list':
    for function in attribute.list.func:
      _rename_function(function, functions)
    for index, value in enumerate(attribute.list.s):
      attribute.list.s[index] = _rename_bytes(value, functions)


def _rename_function(
    function: tf.compat.v1.NameAttrList, functions: dict[str, str]
) -> None:
  function.name = functions.get(function.name, function.name)
  for attribute in function.attr.values():
    _rename_attribute(attribute, functions)


def _rename_bytes(value: bytes, functions: dict[str, str]) -> bytes:
  # Bytes that are not text (a serialized config) name no function.
  name = functions.get(value.decode('utf-8', errors='ignore'))
  return value if name is None else name.encode()


def _extract(
    graph_def: tf.compat.v1.GraphDef,
    targets: Sequence[str],
    *,
    initialize_op: str,
) -> tf.compat.v1.GraphDef:
  """Returns the part of a graph that the targets need, initialized.

  Args:
    graph_def: a graph.
    targets: names of tensors or ops in it.
    initialize_op: a name of an op in it, or ''.
  """
  setters = _find_setters(graph_def, initialize_op)
  needed = ancestors(graph_def, targets)
  # An initial value may need another variable, and so that one's setter.
  pending = dict(setters)
  while handles := needed & pending.keys():
    names = set().union(*(pending.pop(handle) for handle in handles))
    needed |= ancestors(graph_def, names)
  extracted = tf.compat.v1.GraphDef(
      versions=graph_def.versions,
      library=graph_def.library,
      node=[node for node in graph_def.node if node.name in needed],
  )
  # Nodes that take a variable or table run after the ops that initialize it.
  # TFF fuses computations that follow each other, so the initial value in one
  # may depend on variables of another: only data flow tells what comes first.
  inputs_of_setters = {
      handle: {name: ancestors(graph_def, [name]) for name in names}
      for handle, names in setters.items()
      if handle in needed
  }
  for node in extracted.node:
    node.input.extend(sorted({
        f'^{setter}'
        for source in node.input
        for setter, before in inputs_of_setters.get(
            node_name(source), {}
        ).items()
        # Not the nodes that the setter itself depends on: that would be a
        # cycle.
        if node.name not in before
    }))
    # Colocation with a node that was left out would make the import fail.
    if '_class' in node.attr:
      node.attr['_class'].list.s[:] = [
          group
          for group in node.attr['_class'].list.s
          if group.decode().removeprefix('loc:@') in needed
      ]
  _hide_shapes(extracted)
  return extracted


def _find_setters(
    graph_def: tf.compat.v1.GraphDef, initialize_op: str
) -> dict[str, set[str]]:
  """Returns the ops that the initialize op groups, by the handle they set."""
  nodes = {node.name: node for node in graph_def.node}
  setters = collections.defaultdict(set)
  pending, seen = [initialize_op] if initialize_op else [], set()
  while pending:
    name = node_name(pending.pop())
    if name in seen:
      continue
    seen.add(name)
    if nodes[name].op == 'NoOp':
      pending.extend(nodes[name].input)
      continue
    for source in map(node_name, nodes[name].input):
      if nodes[source].op in _FRESH_OPS:
        setters[source].add(name)
        break
  return setters


def _hide_shapes(graph_def: tf.compat.v1.GraphDef) -> None:
  """Hides the shapes of values assigned to variables without a fixed shape."""
  # TensorFlow's shape inference unifies the shapes of all values of a variable,
  # and its constant folding then computes with the shape of one of them.
  handles = {
      node.name: node.attr['shape'].shape
      for node in graph_def.node
      if node.op == 'VarHandleOp'
      and not tf.TensorShape(node.attr['shape'].shape).is_fully_defined()
  }
  for node in list(graph_def.node):
    if node.op != 'AssignVariableOp' or node_name(node.input[0]) not in handles:
      continue
    wrapped = graph_def.node.add(
        # An optional hides the shape: shape inference does not look into it, as
        # it does into a PlaceholderWithDefault.
        name=f'{node.name}/optional',
        op='OptionalFromValue',
        input=[node.input[1]],
    )
    dtype = node.attr['dtype'].type
    wrapped.attr['Toutput_types'].list.type.append(dtype)
    value = graph_def.node.add(
        name=f'{node.name}/value', op='OptionalGetValue', input=[wrapped.name]
    )
    value.attr['output_types'].list.type.append(dtype)
    value.attr['output_shapes'].list.shape.append(
        handles[node_name(node.input[0])]
    )
    node.input[1] = value.name


def _build_body(
    program: Program, graph_defs: Sequence[tf.compat.v1.GraphDef]
) -> Callable[..., list[tf.Tensor]]:
  """Returns the Python body that imports the graphs into one function."""
  last = program.graphs[-1].outputs[program.first_output :]
  if any(program.in_place):
    for graph_def in graph_defs[:-1]:
      _forget_order(graph_def)
    # The last graph's other outputs; those are added by `_add`.
    last = [
        name
        for name, is_added_to in zip(last, program.in_place, strict=True)
        if not is_added_to
    ]

  def body(*arguments):
    if any(program.in_place):
      *arguments, is_added = arguments
    kept = arguments[: program.num_kept]
    tensors = list(arguments[program.num_kept :])
    done = []
    for index in itertools.compress(itertools.count(), program.donated):
      spec = program.graphs[0].specs[index]
      tensors[index], emptied = _take(tensors[index], spec)
      done.append(emptied)
    for number, graph in enumerate(program.graphs):
      parts = tensors
      if number:
        tensors = (*kept, *tensors)
      is_last = number == len(program.graphs) - 1
      tensors = _import_graph(
          graph,
          graph_defs[number],
          tensors,
          outputs=last if is_last else graph.outputs,
          name=f'stage{number}',
      )
    if any(program.in_place):
      done += _add(
          kept,
          parts,
          program.in_place,
          after=[*tensors, *_find_checks()],
          mark=is_added,
      )
    # Through one op: edges from each of them to each output would grow with
    # the square of a model's tensors.
    with tf.control_dependencies([tf.group(*done)] if done else []):
      return list(map(tf.identity, tensors))

  return body


def _import_graph(
    graph: Graph,
    graph_def: tf.compat.v1.GraphDef,
    tensors: Sequence[tf.Tensor],
    *,
    outputs: Sequence[str],
    name: str,
) -> list[tf.Tensor]:
  """Imports what the outputs need into the current graph; returns these."""
  graph_def = _extract(graph_def, outputs, initialize_op=graph.initialize_op)
  _order_readers(graph_def)
  present = {node.name for node in graph_def.node}
  input_map = {
      source: tensor
      for source, tensor in zip(graph.inputs, tensors, strict=True)
      if node_name(source) in present
  }
  found = tf.graph_util.import_graph_def(
      graph_def, input_map=input_map, return_elements=outputs, name=name
  )
  # If an output is an input, the import returns the unfed placeholder.
  return list(map(input_map.get, outputs, found))


def _order_readers(graph_def: tf.compat.v1.GraphDef) -> None:
  """Lets what reads datasets in a graph, or in a function, run in one order.

  Datasets that shuffle may share a generator, such as those that are derived
  from a client's argument. If two readers ran at once, chance would decide what
  each draws from it.
  """
  functions = {each.signature.name: each for each in graph_def.library.function}

  @functools.cache
  def reads(name: str) -> bool:
    return name in functions and any(map(is_reader, functions[name].node_def))

  def is_reader(node: tf.compat.v1.NodeDef) -> bool:
    # Datasets call their functions later, when they are read.
    return node.op in _READERS or 'Dataset' not in node.op and any(
        reads(function.name)
        for value in node.attr.values()
        for function in (value.func, *value.list.func)
    )

  for body, nodes in zip((None, *functions.values()), node_lists(graph_def)):
    readers = {node.name: node for node in nodes if is_reader(node)}
    sources = {node.name: map(node_name, node.input) for node in nodes}
    order = graphlib.TopologicalSorter(sources if readers else {})
    last = None
    for name in filter(readers.get, order.static_order()):
      if last:
        readers[name].input.append(f'^{last}')
      if 'parallel_iterations' in readers[name].attr:
        readers[name].attr['parallel_iterations'].i = 1
      last = name
    # What comes after a call of the function waits for its readers.
    if body and last and last not in body.control_ret:
      body.signature.control_output.append(last)
      body.control_ret[last] = last


def _forget_order(graph_def: tf.compat.v1.GraphDef) -> None:
  """Lets no op wait for a function for XLA of which it takes no result.

  Otherwise the function would be computed for the op, and again where `_add`
  adds what it returns. It has no effect; `sequential` makes ops wait for it to
  save memory, which it does not take within `_add`. One that `_add` leaves
  alone loses its order, too: that may take memory, and changes no bit.
  """
  compiled = {f'^{node.name}' for node in graph_def.node if _is_compiled(node)}
  for node in graph_def.node:
    node.input[:] = [name for name in node.input if name not in compiled]


def _find_checks() -> list[tf.Operation]:
  """Returns the ops of the current graph that may fail, such as assertions."""
  # Those with a state. Not the parts of the sum as well: held at once, they
  # would take as much memory as their sum.
  return [
      operation
      for operation in tf.compat.v1.get_default_graph().get_operations()
      # pylint: disable-next=protected-access
      if operation.op_def.is_stateful
      and operation._get_control_flow_context() is None
  ]


def _take(
    handle: tf.Tensor, spec: tf.TensorSpec
) -> tuple[tf.Tensor, tf.Operation]:
  """Returns a variable's value, and the op that empties the variable."""
  value = read_variable(handle, spec.dtype)
  value.set_shape(spec.shape)
  # The read comes first, and shares the buffer: emptying the variable leaves
  # the value alone until its last use.
  with tf.control_dependencies([value]):
    emptied = tf.raw_ops.AssignVariableOp(
        resource=handle, value=tf.zeros([0], spec.dtype)
    )
  return value, emptied


def _add(
    totals: Sequence[tf.Tensor],
    parts: Sequence[tf.Tensor],
    in_place: Sequence[bool],
    *,
    after: Sequence[tf.Tensor | tf.Operation],
    mark: tf.Tensor,
) -> list[tf.Operation]:
  """Adds parts to the variables among the totals, in any order.

  Nothing is added before `after` and the first part are computed. Parts that
  functions for XLA return are computed as they are added.

  Args:
    totals: handles of variables, where `in_place`.
    parts: the addend of each total.
    in_place: for each total, whether it is a variable.
    after: tensors and ops.
    mark: handle of a variable that is set before the first addition.
  """
  pairs = list(itertools.compress(zip(totals, parts), in_place))
  calls = [_find_compiled_call(part) for _, part in pairs]
  if any(calls):
    # In this process, which need not be the one that traced them.
    checks.xla_is_exact()
  first = calls[0].inputs if calls[0] else [pairs[0][1]]
  with tf.control_dependencies([*after, *first]):
    begun = tf.raw_ops.AssignVariableOp(resource=mark, value=tf.constant(True))
  # Functions that are equal are compiled once.
  build = functools.cache(_build_compiled_add)
  with tf.control_dependencies([begun]):
    return [
        build(call.get_attr('f').name, part.dtype)(total, call.inputs).op
        if call
        else tf.raw_ops.AssignAddVariableOp(resource=total, value=part)
        for (total, part), call in zip(pairs, calls)
    ]


def _find_compiled_call(part: tf.Tensor) -> tf.Operation | None:
  """Returns the call of a function for XLA that computes a part and no more.

  None if something else takes its result, which would be computed twice.
  """
  call, num_uses = part.op, 0
  while len(call.outputs) == 1:
    if len(call.outputs[0].consumers()) > num_uses:
      return None
    if call.type != 'Identity' or call.control_inputs:
      return call if _is_compiled(call.node_def) else None
    call, num_uses = call.inputs[0].op, 1
  return None


def _is_compiled(node: tf.compat.v1.NodeDef) -> bool:
  """Whether a node calls a function without state that XLA compiles."""
  # The test for the key comes first: reading a missing one would add it.
  return (
      node.op == 'PartitionedCall'
      and '_XlaMustCompile' in node.attr
      and node.attr['_XlaMustCompile'].b
  )


def _build_compiled_add(
    name: str, dtype: tf.DType
) -> Callable[[tf.Tensor, Sequence[tf.Tensor]], tf.Tensor]:
  """Returns a function that adds to a variable what a function returns.

  XLA compiles both to one pass: what is added is never in memory, which took
  half of the time of a large model's clip and sum.

  Args:
    name: the function, of the current graph.
    dtype: of what it returns.
  """

  @tf.function(autograph=False, jit_compile=True)
  def add(total, arguments):
    (part,) = tf.raw_ops.PartitionedCall(args=arguments, Tout=[dtype], f=name)
    tf.raw_ops.AssignAddVariableOp(resource=total, value=part)
    return tf.constant(0)  # Its op can be waited for.

  return add


def _binding_names(binding) -> list[str]:
  """Returns the tensor names of a TFF binding, leaf by leaf."""
  kind = binding.WhichOneof('binding')
  if kind == 'tensor':
    return [binding.tensor.tensor_name]
  if kind == 'sequence':
    return [binding.sequence.variant_tensor_name]
  if kind == 'struct':
    return [
        name
        for element in binding.struct.element
        for name in _binding_names(element)
    ]
  return []


def ancestors(
    graph_def: tf.compat.v1.GraphDef, targets: Sequence[str]
) -> set[str]:
  """Returns the names of the nodes that the targets depend on.

  Args:
    graph_def: a graph.
    targets: names of tensors or ops in it.
  """
  nodes = {node.name: node for node in graph_def.node}
  needed = set()
  pending = [node_name(target) for target in targets]
  while pending:
    name = pending.pop()
    if name not in needed:
      needed.add(name)
      pending.extend(node_name(source) for source in nodes[name].input)
  return needed


def is_sum(
    graph_def: tf.compat.v1.GraphDef, output: str, left: str, right: str
) -> bool:
  """Returns whether a graph's output is its input `left` plus `right`.

  It is not if the addition waits for another op, such as a check.
  """
  nodes = {node.name: node for node in graph_def.node}

  def source(name: str) -> tf.compat.v1.NodeDef:
    node = nodes[node_name(name)]
    # A second input is a control dependency, such as a check: not skipped.
    while node.op == 'Identity' and len(node.input) == 1:
      node = nodes[node_name(node.input[0])]
    return node

  node = source(output)
  return node.op in ('Add', 'AddV2') and [
      source(name).name for name in node.input
  ] == [node_name(left), node_name(right)]


def node_lists(
    graph_def: tf.compat.v1.GraphDef,
) -> list[Sequence[tf.compat.v1.NodeDef]]:
  """Returns the nodes of a graph and those of each function in it."""
  functions = graph_def.library.function
  return [graph_def.node, *(function.node_def for function in functions)]


def node_name(name: str) -> str:
  """Returns the node of a tensor name or of an input such as '^node'."""
  return name.removeprefix('^').split(':')[0]

"""Reductions of datasets, rewritten as loops.

TFF's algorithms train in `dataset.reduce` by default. Its op, ReduceDataset,
instantiates its function again in each execution, which costs tens of
milliseconds a client, does not optimize it, and runs it on the host.
`unroll_reductions` replaces the op by what `for batch in iter(dataset)` is in a
`tf.function`:

    iterator = iter(a copy of dataset)  # see `_build_loop`
    element = next(iterator)            # an optional
    while element has a value:
      state = f(state, element, captured)
      element = next(iterator)

The loop is a part of its graph, which is instantiated and optimized once, and
runs on the graph's device.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
import itertools

import tensorflow as tf

# TensorFlow's public API has no function definitions.
from tensorflow.core.framework import function_pb2
from tensorflow.core.framework import tensor_shape_pb2

_BOOL = tf.bool.as_datatype_enum
_HANDLE = tf.resource.as_datatype_enum
_VARIANT = tf.variant.as_datatype_enum

# A value of an op's attribute: types are lists of their numbers, or `bytes`.
_Value = Sequence[int] | Sequence[tensor_shape_pb2.TensorShapeProto] | str


def unroll_reductions(graph_def: tf.compat.v1.GraphDef) -> None:
  """Replaces each ReduceDataset of a graph, in place, by a call of a loop."""
  functions = {
      function.signature.name: function
      for function in graph_def.library.function
  }
  names = (
      name
      for number in itertools.count()
      if (name := f'reduction_{number}') not in functions
  )
  for body in (graph_def, *functions.values()):
    is_graph = body is graph_def
    replaced = set()
    for node in body.node if is_graph else body.node_def:
      if node.op == 'ReduceDataset':
        name = next(names)
        graph_def.library.function.extend(
            _build_loop(name, node, functions[node.attr['f'].func.name])
        )
        _make_call(node, name)
        replaced.add(node.name)
    if not is_graph:
      _rename_outputs(body, replaced)


def _make_call(reduction: tf.compat.v1.NodeDef, name: str) -> None:
  """Makes a ReduceDataset a call of the function `name`."""
  state, captured = _types(reduction)
  call = _node(
      reduction.name,
      'StatefulPartitionedCall',
      reduction.input,
      f=name,
      Tin=[_VARIANT, *state, *captured],
      Tout=state,
  )
  # `CopyFrom` drops what the call does not have.
  call.device = reduction.device
  reduction.CopyFrom(call)


def _rename_outputs(
    function: function_pb2.FunctionDef, nodes: Collection[str]
) -> None:
  """Renames outputs of nodes that were a ReduceDataset and are now a call."""

  # In functions an output's name is its op's, in graphs it is a number alone.
  def rename(name: str) -> str:
    node, *output = name.split(':')
    return f'{node}:output:{output[1]}' if output and node in nodes else name

  for node in function.node_def:
    node.input[:] = map(rename, node.input)
  for key, name in function.ret.items():
    function.ret[key] = rename(name)


def _types(reduction: tf.compat.v1.NodeDef) -> list[list[int]]:
  """The types of a ReduceDataset's state, and of what its function captured."""
  return [
      list(reduction.attr[name].list.type) for name in ('Tstate', 'Targuments')
  ]


def _build_loop(
    name: str,
    reduction: tf.compat.v1.NodeDef,
    reduced: function_pb2.FunctionDef,
) -> list[function_pb2.FunctionDef]:
  """The functions of a loop, of its condition and of its body.

  Args:
    name: of the first of them.
    reduction: a ReduceDataset.
    reduced: the function that it calls with the state, an element of the
      dataset and what it has captured.
  """
  state, captured = (
      {f'{role}{index}': dtype for index, dtype in enumerate(types)}
      for role, types in zip(('state', 'captured'), _types(reduction))
  )
  variables = {'iterator': _HANDLE, 'element': _VARIANT, **state, **captured}
  count = len(reduced.signature.input_arg)
  parts = range(len(state), count - len(captured))
  element = dict(
      output_types=[reduced.signature.input_arg[part].type for part in parts],
      output_shapes=[_argument_shape(reduced, part) for part in parts],
  )
  condition = _build_function(
      f'{name}_condition',
      variables,
      [_node('has_value', 'OptionalHasValue', ['element'])],
      {'has_value:has_value:0': _BOOL},
      last='has_value',
  )
  values = [f'value:components:{index}' for index in range(len(parts))]
  step = _node(
      'step',
      'StatefulPartitionedCall',
      [*state, *values, *captured],
      Tin=[argument.type for argument in reduced.signature.input_arg],
      Tout=[*state.values()],
  )
  step.attr['f'].CopyFrom(reduction.attr['f'])
  body = _build_function(
      f'{name}_body',
      variables,
      [
          _node('value', 'OptionalGetValue', ['element'], **element),
          step,
          # After the step: there is one element at a time, and the loop ends
          # after all that its steps do.
          _next('next', 'iterator', after='step', element=element),
      ],
      {
          'iterator': _HANDLE,
          'next:optional:0': _VARIANT,
          **_outputs('step', state.values()),
          **captured,
      },
      last='next',
  )
  loop = _node(
      'loop',
      'While',
      ['iterator:handle:0', 'first:optional:0', *state, *captured],
      T=[*variables.values()],
      cond=condition.signature.name,
      body=body.signature.name,
  )
  # As ops of the caller's graph, which Grappler optimizes.
  loop.attr['_lower_using_switch_merge'].b = True
  whole = _build_function(
      name,
      {'dataset': _VARIANT, **state, **captured},
      [
          # MakeIterator finalizes a dataset once for all its iterators, which
          # then share generators. ReduceDataset does so for itself, and so
          # does each loop, for a dataset of its own.
          _node(
              'copy', 'OptionsDataset', ['dataset'],
              serialized_options=b'', **element,
          ),
          _node('iterator', 'AnonymousIteratorV3', [], **element),
          _node(
              'start', 'MakeIterator', ['copy:handle:0', 'iterator:handle:0']
          ),
          _next('first', 'iterator:handle:0', after='start', element=element),
          loop,
      ],
      _outputs('loop', state.values(), first=2),
      last='loop',
  )
  return [whole, condition, body]


def _argument_shape(
    function: function_pb2.FunctionDef, index: int
) -> tensor_shape_pb2.TensorShapeProto:
  """The static shape of a function's argument; unknown if it has none."""
  shapes = function.arg_attr[index].attr['_output_shapes'].list.shape
  return shapes[0] if shapes else tf.TensorShape(None).as_proto()


def _next(
    name: str, iterator: str, *, after: str, element: Mapping[str, _Value]
) -> tf.compat.v1.NodeDef:
  """A node that takes the next element, if there is one, after another node."""
  inputs = [iterator, f'^{after}']
  return _node(name, 'IteratorGetNextAsOptional', inputs, **element)


def _outputs(
    node: str, types: Iterable[int], *, first: int = 0
) -> dict[str, int]:
  """Names and types of a function's or a loop's outputs."""
  return {
      f'{node}:output:{index}': dtype
      for index, dtype in enumerate(types, first)
  }


def _node(
    name: str, op: str, inputs: Iterable[str], **attributes: _Value
) -> tf.compat.v1.NodeDef:
  """A node; an attribute of `str` names a function, one of `bytes` is text."""
  node = tf.compat.v1.NodeDef(name=name, op=op, input=inputs)
  for key, value in attributes.items():
    attribute = node.attr[key]
    if isinstance(value, bytes):
      attribute.s = value
      continue
    if isinstance(value, str):
      attribute.func.name = value
      continue
    attribute.list.SetInParent()  # Also for an empty list.
    if key == 'output_shapes':
      attribute.list.shape.extend(value)
    else:
      attribute.list.type.extend(value)
  return node


def _build_function(
    name: str,
    arguments: Mapping[str, int],
    nodes: Sequence[tf.compat.v1.NodeDef],
    outputs: Mapping[str, int],
    *,
    last: str,
) -> function_pb2.FunctionDef:
  """A function.

  Args:
    name: its name.
    arguments: names and types.
    nodes: its nodes.
    outputs: tensors of its nodes, and their types.
    last: the node that ends a call. What comes after a call in its graph waits
      for this node, even if it does not read an output.
  """
  function = function_pb2.FunctionDef(node_def=nodes)
  function.signature.name = name
  for argument, dtype in arguments.items():
    function.signature.input_arg.add(name=argument, type=dtype)
  for index, (tensor, dtype) in enumerate(outputs.items()):
    function.signature.output_arg.add(name=f'output{index}', type=dtype)
    function.ret[f'output{index}'] = tensor
  function.signature.control_output.append(last)
  function.control_ret[last] = last
  # Without it, calls whose outputs are unused or equal could be pruned or
  # merged.
  function.signature.is_stateful = True
  return function

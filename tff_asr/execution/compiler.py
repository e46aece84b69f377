"""TFF computations to TensorFlow programs, through TFF's MapReduceForm.

A federated computation becomes

    prepare: S -> C              server value to broadcast
    zero: -> A                   an empty accumulator
    read: D -> V                 one client's datasets
    work: <A, D, C, V> -> A      one client, added to an accumulator
    merge: <A, A> -> A           two disjoint accumulators
    finish: <S, A> -> X          the result at the server

with S all server-placed and D all client-placed arguments. `work` is TFF's
`work` followed by `accumulate` in one graph, and `finish` is `report` followed
by `update`, so that no client update or report leaves the function. `read` is
the part of TFF's `work` that makes datasets from the client's values (ids), if
it has one (`client_datasets`).
https://www.tensorflow.org/federated/api_docs/python/tff/backends/mapreduce

Other computations become one program: server-only federated ones (such as
`process.initialize`) and those without placements. A computation that returns
one client-placed value becomes `prepare` and a `work` without accumulation.

The computation is first wrapped to the shape that MapReduceForm asks for (one
server and one client argument, a state that passes through), so any number of
placed arguments and server-placed results will do.
"""

from collections.abc import Callable, Iterator
import dataclasses
from typing import Any, NamedTuple

import tensorflow as tf
import tensorflow_federated as tff

from tff_asr.execution import client_datasets
from tff_asr.execution import graph
from tff_asr.execution import values


class UncompilableError(ValueError):
  """A computation that cannot run in this process; names the way out."""


@dataclasses.dataclass(frozen=True)
class Local:
  """A computation without clients: one program from arguments to result.

  Attributes:
    argument: the layout of the argument.
    result: the layout of the result.
    run: `argument -> result`.
  """

  argument: values.Layout
  result: values.Layout
  run: graph.Program


class ClientPrograms(NamedTuple):
  """Programs of clients; they pickle, without the types of the computation.

  Attributes:
    read: `D -> V`, or None where the work makes no datasets.
    work: `<A, D, C, V> -> A`, or `<D, C, V> -> R` where nothing is summed.
    zero: `-> A`, or None where nothing is summed.
    merge: `<A, A> -> A`, or None where nothing is summed.
  """

  read: client_datasets.Read | None
  work: graph.Program
  zero: graph.Program | None = None
  merge: graph.Program | None = None


@dataclasses.dataclass(frozen=True)
class Round:
  """A computation over clients; see the module docstring.

  Attributes:
    arguments: where server and client values are in the argument.
    result: the layout of the result; without aggregation, of one client's.
    prepare: `S -> C`.
    clients: what runs at clients.
    finish: `<S, A> -> X`, or None where each client's result is returned.
  """

  arguments: 'PlacedArguments'
  result: values.Layout
  prepare: graph.Program
  clients: ClientPrograms
  finish: graph.Program | None = None


def compile_computation(comp: tff.Computation) -> Local | Round:
  """Returns `comp` as TensorFlow programs.

  Args:
    comp: any of
      - a federated computation whose arguments are server-placed or (not
        all-equal) client-placed and whose results are all server-placed, with
        one round of broadcast followed by aggregation;
      - the same without aggregation and with one client-placed result;
      - a federated computation with server-placed values only;
      - a computation without 

  Returns:
    A `Round`, or a `Local` where there are no clients. The programs pickle.

  Raises:
    UncompilableError: `comp` is none of these.
  """
  try:
    return _compile(comp)
  except Exception as error:
    reason = ' '.join(str(error).split())
    if len(reason) > 300:
      reason = reason[:300] + '...'
    signature = comp.type_signature.compact_representation()
    raise UncompilableError(
        f'The computation of type {_shorten(signature)} cannot run in this '
        f'process ({type(error).__name__}: {reason}); run it in the native '
        'context, tff_asr.execution.native.build_sync_context() or '
        'build_async_context().'
    ) from error


# TFF can run Grappler on each extracted graph; TensorFlow does so anyway when
# the program is first called, on the device it runs on.
_CONFIG = tf.compat.v1.ConfigProto()
_CONFIG.graph_options.rewrite_options.disable_meta_optimizer = True


def _compile(comp: tff.Computation) -> Local | Round:
  signature = comp.type_signature
  if not tff.types.contains(
      signature, lambda part: isinstance(part, tff.FederatedType)
  ):
    return _compile_unplaced(comp)
  arguments = PlacedArguments(signature.parameter)
  found = {leaf.placement for leaf in _get_placed_types(signature.result)}
  if found == {tff.CLIENTS, tff.SERVER}:
    raise ValueError('the results are placed at both server and clients')
  if found == {tff.CLIENTS}:
    return _compile_client_map(comp, arguments)
  if not len(arguments.client_type):
    return _compile_server_only(comp, arguments)
  return _compile_round(comp, arguments)


def _compile_unplaced(comp: tff.Computation) -> Local:
  block = comp.to_building_block()
  if isinstance(block, tff.framework.CompiledComputation):
    return _local(comp, graph.from_computation(comp))
  block, _ = tff.tensorflow.replace_intrinsics_with_bodies(block)
  block = tff.framework.to_call_dominant(block)
  block = tff.backends.mapreduce.parse_tff_to_tf(block, _CONFIG)
  return _local(comp, _graph_of_block(block))


def _compile_server_only(
    comp: tff.Computation, arguments: 'PlacedArguments'
) -> Local:
  """One program for a computation with server-placed values only."""
  if comp.type_signature.parameter is None:
    wrapped = tff.federated_computation(lambda: _zip(comp()))
  else:
    wrapped = tff.federated_computation(
        lambda server: _zip(comp(arguments.assemble(server, None))),
        tff.FederatedType(arguments.server_type, tff.SERVER),
    )
  block = tff.backends.mapreduce.consolidate_and_extract_local_processing(
      wrapped.to_building_block(), _CONFIG
  )
  return _local(comp, _graph_of_block(block))


def _local(comp: tff.Computation, comp_graph: graph.Graph) -> Local:
  return Local(
      argument=values.Layout(comp.type_signature.parameter),
      result=values.Layout(comp.type_signature.result),
      run=graph.single(comp_graph),
  )


def _compile_round(
    comp: tff.Computation, arguments: 'PlacedArguments'
) -> Round:
  """The programs of a computation that aggregates over clients."""
  wrapped = _wrap(
      arguments,
      lambda server, clients: (
          server, _zip(comp(arguments.assemble(server, clients)))
      ),
  )
  form = tff.backends.mapreduce.get_map_reduce_form_for_computation(
      wrapped, _CONFIG
  )
  update_type, *secure_types = form.work.type_signature.result
  if any(values.Layout(part).specs for part in secure_types):
    raise ValueError(
        'found a secure sum, which simulations do not run; use federated_sum'
    )
  work = graph.from_computation(form.work)
  num_clients = len(arguments.client.specs)
  work, read = client_datasets.split(
      work, client_inputs=work.inputs[:num_clients]
  )
  accumulate = graph.from_computation(form.accumulate)
  report = graph.from_computation(form.report)
  update = graph.from_computation(form.update)
  zero = graph.from_computation(form.zero)
  num_sums = len(zero.outputs)
  num_servers = len(values.Layout(arguments.server_type).specs)
  num_updates = len(values.Layout(update_type).specs)
  # Each program's arguments, and then the outputs of its first stage.
  num_given = num_sums + len(work.inputs)
  num_at_end = num_servers + num_sums
  return Round(
      arguments=arguments,
      result=values.Layout(comp.type_signature.result),
      prepare=graph.single(graph.from_computation(form.prepare)),
      clients=ClientPrograms(
          read=read,
          work=graph.Program(
              stages=(
                  graph.Stage(work, range(num_sums, num_given)),
                  graph.Stage(
                      accumulate,
                      (
                          *range(num_sums),
                          *range(num_given, num_given + num_updates),
                      ),
                  ),
              ),
              outputs=range(num_sums),
              num_arguments=num_given,
          ),
          zero=graph.single(zero),
          merge=graph.single(graph.from_computation(form.merge)),
      ),
      finish=graph.Program(
          stages=(
              graph.Stage(report, range(num_servers, num_at_end)),
              graph.Stage(
                  update,
                  (
                      *range(num_servers),
                      *range(num_at_end, num_at_end + len(report.outputs)),
                  ),
              ),
          ),
          # The first outputs of `update` are the state that passes through.
          outputs=range(num_servers, len(update.outputs)),
          num_arguments=num_at_end,
      ),
  )


def _compile_client_map(
    comp: tff.Computation, arguments: 'PlacedArguments'
) -> Round:
  """The programs of a computation that returns one value a client."""
  result = comp.type_signature.result
  if not isinstance(result, tff.FederatedType) or result.all_equal:
    raise ValueError(f'the client-placed result is {result}')
  if not len(arguments.client_type):
    raise ValueError('there is no client argument to count the clients by')
  wrapped = _wrap(
      arguments,
      lambda server, clients: comp(arguments.assemble(server, clients)),
  )
  form = tff.backends.mapreduce.get_broadcast_form_for_computation(
      wrapped, _CONFIG
  )
  prepare = graph.from_computation(form.compute_server_context)
  work = graph.from_computation(form.client_processing)
  # This form takes <C, D>; here all work takes the client's values first.
  num_clients = len(arguments.client.specs)
  num_broadcast = len(prepare.outputs)
  work, read = client_datasets.split(
      work, client_inputs=work.inputs[num_broadcast:]
  )
  num_inputs = len(work.inputs)
  num_placed = num_clients + num_broadcast
  return Round(
      arguments=arguments,
      result=values.Layout(result.member),
      prepare=graph.single(prepare),
      clients=ClientPrograms(
          read=read,
          work=graph.Program(
              stages=(
                  graph.Stage(
                      work,
                      (
                          *range(num_clients, num_placed),
                          *range(num_clients),
                          *range(num_placed, num_inputs),
                      ),
                  ),
              ),
              outputs=range(len(work.outputs)),
              num_arguments=num_inputs,
          ),
      ),
  )


def _wrap(
    arguments: 'PlacedArguments', body: Callable[[Any, Any], Any]
) -> tff.Computation:
  """A computation of one server and one client argument."""
  return tff.federated_computation(
      body,
      tff.FederatedType(arguments.server_type, tff.SERVER),
      tff.FederatedType(arguments.client_type, tff.CLIENTS),
  )


def _graph_of_block(
    block: tff.framework.ComputationBuildingBlock,
) -> graph.Graph:
  """The graph of a TensorFlow building block."""
  if not isinstance(block, tff.framework.CompiledComputation):
    raise ValueError('it is not TensorFlow throughout')
  return graph.from_computation(
      tff.framework.ConcreteComputation.from_building_block(block)
  )


def _zip(result: Any) -> Any:
  """One server-placed value out of a structure of them, while tracing."""
  if isinstance(result.type_signature, tff.FederatedType):
    return result
  return tff.federated_zip(result)


def _shorten(text: str) -> str:
  return text if len(text) <= 200 else text[:200] + '...'


class PlacedArguments:
  """Splits an argument into its server-placed and its client-placed values.

  Attributes:
    server_type: a struct of the members of all server-placed arguments.
    client_type: a struct of the members of all client-placed arguments; an
      empty struct if there is none.
    client: the layout of one client's values.
  """

  def __init__(self, type_spec: tff.Type | None):
    """Reads the placements of the parameter type `type_spec`.

    Raises:
      ValueError: an argument without placement, or an all-equal client value.
    """
    self._type = type_spec
    leaves = _get_placed_types(type_spec)
    for leaf in leaves:
      if leaf.placement is tff.CLIENTS and leaf.all_equal:
        raise ValueError(f'found the all-equal client argument {leaf}')
    self.server_type, self.client_type = (
        tff.StructType(
            [leaf.member for leaf in leaves if leaf.placement is placement]
        )
        for placement in (tff.SERVER, tff.CLIENTS)
    )
    self._server = values.Layout(self.server_type)
    self.client = values.Layout(self.client_type)

  def split(self, argument: Any) -> tuple[list[tf.Tensor], list[tuple]]:
    """Returns the server tensors, and a tuple of values for each client.

    Args:
      argument: as the computation was called with.

    Raises:
      TypeError: the argument does not fit the type.
      ValueError: client arguments of different lengths.
    """
    servers, clients = [], []
    _split(argument, self._type, servers, clients, 'argument')
    lengths = {len(members) for members in clients}
    if len(lengths) > 1:
      raise ValueError(
          'All client arguments must be lists of one length, found lengths '
          f'{[len(members) for members in clients]}.'
      )
    return self._server.flatten(servers, name='server argument'), list(
        zip(*clients)
    )

  def assemble(self, server: Any, clients: Any) -> Any:
    """The original parameter out of the two structs, while tracing."""
    return _assemble(
        self._type,
        (server[index] for index in range(len(self.server_type))),
        (clients[index] for index in range(len(self.client_type))),
    )


def _get_placed_types(type_spec: tff.Type | None) -> list[tff.FederatedType]:
  """Returns the federated types of a structure of them, in order.

  Raises:
    ValueError: a part of `type_spec` has no placement.
  """
  if type_spec is None:
    return []
  if isinstance(type_spec, tff.FederatedType):
    return [type_spec]
  if isinstance(type_spec, tff.StructType):
    return [
        leaf
        for _, field in tff.structure.iter_elements(type_spec)
        for leaf in _get_placed_types(field)
    ]
  raise ValueError(f'found {type_spec} without a placement')


def _split(
    value: Any, type_spec: tff.Type, servers: list, clients: list, name: str
) -> None:
  """Appends the placed values under `value` to `servers` and `clients`."""
  if isinstance(type_spec, tff.StructType):
    names = [field for field, _ in tff.structure.iter_elements(type_spec)]
    fields = values.get_fields(value, names, name=name)
    for index, (field, (label, part)) in enumerate(
        zip(fields, tff.structure.iter_elements(type_spec))
    ):
      suffix = f'.{label}' if label else f'[{index}]'
      _split(field, part, servers, clients, name + suffix)
  elif type_spec.placement is tff.SERVER:
    servers.append(value)
  elif isinstance(value, (list, tuple)):
    clients.append(value)
  else:
    raise TypeError(
        f'{name} must be a list with one value a client, found '
        f'{type(value).__name__}.'
    )


def _assemble(
    type_spec: tff.Type, servers: Iterator[Any], clients: Iterator[Any]
) -> Any:
  """The next placed values in the structure of the parameter."""
  if isinstance(type_spec, tff.StructType):
    return tff.structure.Struct([
        (name, _assemble(field, servers, clients))
        for name, field in tff.structure.iter_elements(type_spec)
    ])
  return next(servers if type_spec.placement is tff.SERVER else clients)

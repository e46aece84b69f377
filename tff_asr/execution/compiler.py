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

import dataclasses
from typing import Any

import tensorflow as tf
import tensorflow_federated as tff

from tff_asr.execution import client_datasets
from tff_asr.execution import graph
from tff_asr.execution import placements
from tff_asr.execution import values


class UncompilableError(ValueError):
  """A computation that cannot run in this process; names the way out."""


@dataclasses.dataclass(frozen=True)
class Compiled:
  """A computation as programs; the base of the three kinds below.

  Attributes:
    type_signature: the type of the computation, with its Python containers.
    result: the layout of the result.
  """

  type_signature: tff.FunctionType
  result: values.Layout


@dataclasses.dataclass(frozen=True)
class Local(Compiled):
  """A computation without clients: one program from arguments to result.

  Attributes:
    argument: the layout of the argument.
    run: `argument -> result`.
  """

  argument: values.Layout
  run: graph.Program


@dataclasses.dataclass(frozen=True)
class ClientMap(Compiled):
  """A computation with one result a client and no aggregation.

  Attributes:
    arguments: where server and client values are in the argument.
    prepare: `S -> C`.
    read: `D -> V`, or None where the work makes no datasets.
    work: `<D, C, V> -> R`, with R the member of the result.
  """

  arguments: placements.PlacedArguments
  prepare: graph.Program
  read: client_datasets.Read | None
  work: graph.Program


@dataclasses.dataclass(frozen=True)
class Round(Compiled):
  """A computation that aggregates over clients; see the module docstring."""

  arguments: placements.PlacedArguments
  prepare: graph.Program
  read: client_datasets.Read | None
  zero: graph.Program
  work: graph.Program
  merge: graph.Program
  finish: graph.Program


def compile_computation(comp: tff.Computation) -> Compiled:
  """Returns `comp` as TensorFlow programs.

  Args:
    comp: any of
      - a federated computation whose arguments are server-placed or (not
        all-equal) client-placed and whose results are all server-placed, with
        one round of broadcast followed by aggregation;
      - the same without aggregation and with one client-placed result;
      - a federated computation with server-placed values only;
      - a computation without placements.

  Returns:
    A `Round`, `ClientMap` or `Local`. The programs pickle.

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


def _compile(comp: tff.Computation) -> Compiled:
  signature = comp.type_signature
  if not tff.types.contains(
      signature, lambda part: isinstance(part, tff.FederatedType)
  ):
    return _compile_unplaced(comp)
  arguments = placements.PlacedArguments(signature.parameter)
  found = {leaf.placement for leaf in placements.get_types(signature.result)}
  if found == {tff.CLIENTS}:
    return _compile_client_map(comp, arguments)
  if found == {tff.CLIENTS, tff.SERVER}:
    raise ValueError('the results are placed at both server and clients')
  if not len(arguments.client_type):
    return _compile_server_only(comp, arguments)
  return _compile_round(comp, arguments)


def _compile_unplaced(comp: tff.Computation) -> Local:
  block = comp.to_building_block()
  if not isinstance(block, tff.framework.CompiledComputation):
    block, _ = tff.tensorflow.replace_intrinsics_with_bodies(block)
    block = tff.framework.to_call_dominant(block)
    block = tff.backends.mapreduce.parse_tff_to_tf(block, _CONFIG)
    comp_graph = _graph_of_block(block)
  else:
    comp_graph = graph.from_computation(comp)
  return Local(
      type_signature=comp.type_signature,
      result=values.Layout(comp.type_signature.result),
      argument=values.Layout(comp.type_signature.parameter),
      run=graph.single(comp_graph),
  )


def _compile_server_only(
    comp: tff.Computation, arguments: placements.PlacedArguments
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
  return Local(
      type_signature=comp.type_signature,
      result=values.Layout(comp.type_signature.result),
      argument=values.Layout(comp.type_signature.parameter),
      run=graph.single(_graph_of_block(block)),
  )


def _compile_round(
    comp: tff.Computation, arguments: placements.PlacedArguments
) -> Round:
  """The programs of a computation that aggregates over clients."""

  @tff.federated_computation(
      tff.FederatedType(arguments.server_type, tff.SERVER),
      tff.FederatedType(arguments.client_type, tff.CLIENTS),
  )
  def wrapped(server, clients):
    return server, _zip(comp(arguments.assemble(server, clients)))

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
  num_accumulators = len(zero.outputs)
  num_servers = len(values.Layout(arguments.server_type).specs)
  num_updates = len(values.Layout(update_type).specs)
  return Round(
      type_signature=comp.type_signature,
      result=values.Layout(comp.type_signature.result),
      arguments=arguments,
      prepare=graph.single(graph.from_computation(form.prepare)),
      read=read,
      zero=graph.single(zero),
      work=graph.Program(
          stages=(
              graph.Stage(work, tuple(
                  graph.Argument(num_accumulators + index)
                  for index in range(len(work.inputs))
              )),
              graph.Stage(accumulate, (
                  *map(graph.Argument, range(num_accumulators)),
                  *(graph.Output(0, index) for index in range(num_updates)),
              )),
          ),
          outputs=tuple(range(num_accumulators)),
          num_arguments=num_accumulators + len(work.inputs),
      ),
      merge=graph.single(graph.from_computation(form.merge)),
      finish=graph.Program(
          stages=(
              graph.Stage(report, tuple(
                  graph.Argument(num_servers + index)
                  for index in range(num_accumulators)
              )),
              graph.Stage(update, (
                  *map(graph.Argument, range(num_servers)),
                  *(
                      graph.Output(0, index)
                      for index in range(len(report.outputs))
                  ),
              )),
          ),
          # The first outputs of `update` are the state that passes through.
          outputs=tuple(range(num_servers, len(update.outputs))),
          num_arguments=num_servers + num_accumulators,
      ),
  )


def _compile_client_map(
    comp: tff.Computation, arguments: placements.PlacedArguments
) -> ClientMap:
  """The programs of a computation that returns one value a client."""
  result = comp.type_signature.result
  if not isinstance(result, tff.FederatedType) or result.all_equal:
    raise ValueError(f'the client-placed result is {result}')
  if not len(arguments.client_type):
    raise ValueError('there is no client argument to count the clients by')

  @tff.federated_computation(
      tff.FederatedType(arguments.server_type, tff.SERVER),
      tff.FederatedType(arguments.client_type, tff.CLIENTS),
  )
  def wrapped(server, clients):
    return comp(arguments.assemble(server, clients))

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
  num_datasets = len(work.inputs) - num_broadcast - num_clients
  return ClientMap(
      type_signature=comp.type_signature,
      result=values.Layout(result.member),
      arguments=arguments,
      prepare=graph.single(prepare),
      read=read,
      work=graph.Program(
          stages=(
              graph.Stage(work, (
                  *(
                      graph.Argument(num_clients + index)
                      for index in range(num_broadcast)
                  ),
                  *map(graph.Argument, range(num_clients)),
                  *(
                      graph.Argument(num_clients + num_broadcast + index)
                      for index in range(num_datasets)
                  ),
              )),
          ),
          outputs=tuple(range(len(work.outputs))),
          num_arguments=len(work.inputs),
      ),
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

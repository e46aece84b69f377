"""TFF computations to TensorFlow programs, through TFF's MapReduceForm.

    program = compile_computation(process.next)

A federated computation becomes a `FederatedProgram`:

    prepare: S -> C              server value to broadcast
    zero: -> A                   an empty accumulator
    work: <A, D, C> -> A         one client, added to an accumulator
    merge_ordered: <B, B> -> B   adds the leaves of two accumulators that are
                                 order-dependent sums
    finish: <S, A> -> X          the result at the server

S is all server-placed arguments, D all client-placed ones. `work` is TFF's
`work` followed by `accumulate` in one graph, and `finish` is `report` followed
by `update`, so no client update or report leaves the function.

A computation without clients (such as `process.initialize`) becomes a
`ServerProgram`. docs/execution.md lists computations that are refused.
https://www.tensorflow.org/federated/api_docs/python/tff/backends/mapreduce
"""

from collections.abc import Iterable, Iterator, Sequence
import dataclasses
import itertools
from typing import NamedTuple, TypeVar

import tensorflow as tf
import tensorflow_federated as tff

from tff_asr.execution import graph
from tff_asr.execution import intrinsics
from tff_asr.execution import secure_sums
from tff_asr.execution import values


_Leaf = TypeVar('_Leaf')


class UncompilableError(ValueError):
  """A computation cannot run in this process; the message says what to do."""


@dataclasses.dataclass(frozen=True)
class ServerProgram:
  """A computation without clients: one program from arguments to result.

  Attributes:
    argument: flattens the argument.
    result: packs the result.
    run: `argument -> result`.
  """

  argument: values.TypeFlattener
  result: values.TypeFlattener
  run: graph.Program


class ClientPrograms(NamedTuple):
  """Programs of clients; they pickle, without the types of the computation.

  Attributes:
    work: `<A, D, C> -> A`; adds exact leaves of int64 in place.
    zero: `-> A`.
    merge_ordered: `<B, B> -> B` of the leaves that are not exact; None if all
      are.
    is_exact: for each leaf of A, whether it is a plain sum of integers, which
      is exact in any order.
    only_adds: whether `merge_ordered` only adds numbers.
  """

  work: graph.Program
  zero: graph.Program
  merge_ordered: graph.Program | None
  is_exact: tuple[bool, ...]
  only_adds: bool

  @property
  def client_bytes(self) -> int:
    """Bytes of tensors like the model's that a client in training has.

    Its accumulator, and its weights, gradients and delta with two temporary
    copies: five times the broadcast.
    """
    kept = self.work.graphs[-1].specs[: self.work.num_kept]
    return _num_bytes(kept) + 5 * _num_bytes(self.work.graphs[0].specs)

  @property
  def ordered_bytes(self) -> int:
    """Bytes of the leaves that are not exact and have a static shape."""
    if self.merge_ordered is None:
      return 0
    # The inputs are the leaves of two accumulators; the first half is one.
    specs = self.merge_ordered.graphs[0].specs
    return _num_bytes(specs[: len(specs) // 2])

  def as_variables(
      self, accumulator: list[tf.Tensor]
  ) -> list[tf.Tensor]:
    """Returns the accumulator with variables where programs take them.

    Args:
      accumulator: emptied, so that each leaf can be freed.
    """
    leaves = []
    for is_variable in self.work.in_place:
      leaf = accumulator.pop(0)  # No other reference may keep it alive.
      leaves.append(graph.make_variable(leaf) if is_variable else leaf)
    return leaves

  def split(
      self, accumulator: Sequence[tf.Tensor]
  ) -> tuple[list[tf.Tensor], list[tf.Tensor]]:
    """Returns an accumulator's exact leaves and the others."""
    parts = [], []
    for leaf, is_exact in zip(accumulator, self.is_exact, strict=True):
      parts[not is_exact].append(leaf)
    return parts

  def join(
      self, exact: Sequence[tf.Tensor], ordered: Sequence[tf.Tensor]
  ) -> list[tf.Tensor]:
    """Returns the accumulator that `split` has split."""
    parts = iter(exact), iter(ordered)
    return [next(parts[not is_exact]) for is_exact in self.is_exact]


@dataclasses.dataclass(frozen=True)
class FederatedProgram:
  """A computation over clients; see the module docstring.

  Attributes:
    arguments: splits the argument into server and client values.
    result: packs the result.
    prepare: `S -> C`.
    clients: what runs at clients.
    finish: `<S, A> -> X`; large exact leaves of A are donated (`graph`).
  """

  arguments: 'PlacedArguments'
  result: values.TypeFlattener
  prepare: graph.Program
  clients: ClientPrograms
  finish: graph.Program


def compile_computation(
    comp: tff.Computation,
) -> ServerProgram | FederatedProgram:
  """Returns `comp` as TensorFlow programs.

  Args:
    comp: any of
      - a federated computation over clients with one broadcast followed by one
        aggregation; its arguments are placed, and its results are at the server
        or have no placement;
      - a computation without clients.

  Returns:
    A `FederatedProgram`, or a `ServerProgram` if there are no clients. The
    programs pickle.

  Raises:
    UncompilableError: `comp` is none of these.
    ValueError: no argument of `comp` tells how many clients it has.
  """
  # Before the try: it is an error of the caller, whatever runs the computation.
  intrinsics.check_clients(comp)
  found = intrinsics.called_intrinsics(comp)
  try:
    return _compile(comp, found)
  # TFF raises errors of many types for what its compiler does not support.
  except Exception as error:
    signature = comp.type_signature.compact_representation()
    # An error is one line: TFF's own has several, and types of large models
    # fill pages.
    reason = ' '.join(str(error).split())
    message = (
        f'The computation of type {signature[:200]} cannot run in this '
        f'process ({type(error).__name__}: {reason[:300]}); write it as the '
        'table in docs/execution.md says'
    )
    # Do not send the user to a runtime that does not support it either.
    if found.isdisjoint(intrinsics.NOT_NATIVE):
      message += (
          ', or run it in TFF\'s native context: tff_asr.execution.native.'
          'build_sync_context(trust_network=True), where no one else can reach '
          'this machine'
      )
    raise UncompilableError(f'{message}.') from error


# Keeps TFF from running Grappler on each extracted graph. TensorFlow does so
# anyway at the program's first call, on the device that runs it.
_CONFIG = tf.compat.v1.ConfigProto()
_CONFIG.graph_options.rewrite_options.disable_meta_optimizer = True


_LOOK_UP = 'broadcast the whole value and look up in it at clients'
_REDUCE = 'call dataset.reduce in a tff.tensorflow.computation'
# What TFF's MapReduceForm does not support, and what to write instead.
_INSTEAD = {
    'federated_secure_select': _LOOK_UP,
    'federated_select': _LOOK_UP,
    'sequence_map': 'call dataset.map in a tff.tensorflow.computation',
    'sequence_reduce': _REDUCE,
    'sequence_sum': _REDUCE,
}


def _compile(
    comp: tff.Computation, found: frozenset[str]
) -> ServerProgram | FederatedProgram:
  for name in sorted(found & _INSTEAD.keys()):
    raise ValueError(f'it has a {name}: {_INSTEAD[name]}')
  if tff.types.contains(comp.type_signature.result, intrinsics.is_at_clients):
    raise ValueError(
        'a result is placed at the clients: aggregate it at the server'
    )
  if not tff.types.contains(comp.type_signature, intrinsics.is_at_clients):
    return _compile_at_server(comp)
  return _compile_federated(comp)


def _compile_at_server(comp: tff.Computation) -> ServerProgram:
  """Compiles a computation without clients."""
  # Plain TensorFlow is compiled already.
  block = comp.to_building_block()
  if not isinstance(block, tff.framework.CompiledComputation):
    block = tff.backends.mapreduce.consolidate_and_extract_local_processing(
        block, _CONFIG
    )
  return ServerProgram(
      argument=values.TypeFlattener(comp.type_signature.parameter),
      result=values.TypeFlattener(comp.type_signature.result),
      run=graph.Program((
          graph.from_computation(
              tff.framework.ConcreteComputation.from_building_block(block)
          ),
      )),
  )


def _get_form(
    comp: tff.Computation, arguments: 'PlacedArguments'
) -> tff.backends.mapreduce.MapReduceForm:
  """Returns the form of a computation that aggregates over clients."""
  # MapReduceForm needs one server argument, one client argument and a state
  # that passes through. The wrapper has this shape for any number of arguments
  # and results.
  wrapped = tff.federated_computation(
      lambda server, clients: (
          server, _at_server(comp(arguments.assemble(server, clients)))
      ),
      tff.FederatedType(arguments.server_type, tff.SERVER),
      tff.FederatedType(arguments.client_type, tff.CLIENTS),
  )
  try:
    form = tff.backends.mapreduce.get_map_reduce_form_for_computation(
        wrapped, _CONFIG
    )
  except ValueError as error:
    if 'broadcast dependent on aggregate' not in str(error):
      raise
    raise ValueError(
        'it broadcasts what it has aggregated: split it there into two '
        'computations, the second with that as a server argument'
    ) from error
  # Twice, because only the form shows which values are summed securely.
  if secure_sums.has_any(form):
    form = tff.backends.mapreduce.get_map_reduce_form_for_computation(
        secure_sums.as_plain_sums(form), _CONFIG
    )
  return form


def _compile_federated(comp: tff.Computation) -> FederatedProgram:
  """Compiles a computation that aggregates over clients."""
  arguments = PlacedArguments(comp.type_signature.parameter)
  form = _get_form(comp, arguments)
  prepare, zero, work, accumulate, merge, report, update = map(
      graph.from_computation,
      (
          form.prepare,
          form.zero,
          form.work,
          form.accumulate,
          form.merge,
          form.report,
          form.update,
      ),
  )
  # Server programs may have such state: each call imports them again.
  shared = {*work.shared_state, *accumulate.shared_state}
  if shared:
    raise ValueError(
        f'client work has {", ".join(sorted(shared))}, whose state would pass '
        'from client to client; use tf.Variable, tf.lookup or tf.TensorArray, '
        'outside of tf.function'
    )
  num_servers = len(arguments.server.specs)
  is_exact = _find_exact(accumulate, merge)
  in_place = _find_in_place(merge, is_exact)
  return FederatedProgram(
      arguments=arguments,
      result=values.TypeFlattener(comp.type_signature.result),
      prepare=graph.Program((prepare,)),
      clients=ClientPrograms(
          work=graph.Program(
              (work, accumulate),
              # The accumulator skips `work`, which does not read it.
              num_kept=len(zero.outputs),
              in_place=in_place,
          ),
          zero=graph.Program((zero,)),
          merge_ordered=_without_exact(merge, is_exact),
          is_exact=is_exact,
          only_adds=_only_adds(merge, is_exact),
      ),
      finish=graph.Program(
          (report, update),
          num_kept=num_servers,
          # The first outputs are the state that passes through.
          first_output=num_servers,
          donated=in_place,
      ),
  )


def _num_bytes(specs: Sequence[tf.TensorSpec]) -> int:
  """Returns the size of tensors, without those of no static shape."""
  return sum(
      spec.dtype.size * (spec.shape.num_elements() or 0) for spec in specs
  )


def _find_exact(
    accumulate: graph.Graph, merge: graph.Graph
) -> tuple[bool, ...]:
  """Returns for each leaf of an accumulator whether it is a sum of integers.

  It is one if both graphs only add to it, and no other leaf depends on it.
  """
  count = len(merge.outputs)
  # An accumulator of other leaves than the update is not a sum of updates.
  if len(accumulate.inputs) != 2 * count:
    return (False,) * count
  graph_defs = [
      tf.compat.v1.GraphDef.FromString(each.graph_def)
      for each in (accumulate, merge)
  ]
  is_exact = [spec.dtype.is_integer for spec in merge.specs[:count]]
  for each, graph_def in zip((accumulate, merge), graph_defs):
    is_exact = [
        before and graph.is_sum(graph_def, *names)
        for before, *names in zip(
            is_exact, each.outputs, each.inputs, each.inputs[count:]
        )
    ]
  # If another leaf depends on a sum, adding in another order would change it.
  for each, graph_def in zip((accumulate, merge), graph_defs):
    needed = graph.ancestors(
        graph_def, list(_ordered(each.outputs, is_exact))
    )
    for name, is_sum in zip(each.inputs[:count], is_exact):
      if is_sum and graph.node_name(name) in needed:
        return (False,) * count
  return tuple(is_exact)


def _find_in_place(
    merge: graph.Graph, is_exact: Sequence[bool]
) -> tuple[bool, ...]:
  """Selects exact leaves that may be large and have kernels for variables."""
  return tuple(
      is_sum and spec.dtype == tf.int64 and spec.shape.rank != 0
      for is_sum, spec in zip(is_exact, merge.specs)
  )


def _without_exact(
    merge: graph.Graph, is_exact: Sequence[bool]
) -> graph.Program | None:
  """Returns the merge of the leaves that are not exact."""
  # Exact leaves need none: each thread adds to variables, and the totals are
  # added eagerly (`reduction`).
  if all(is_exact):
    return None
  return graph.Program((
      dataclasses.replace(
          merge,
          # Its inputs are the leaves of two accumulators.
          inputs=tuple(_ordered(merge.inputs, 2 * is_exact)),
          outputs=tuple(_ordered(merge.outputs, is_exact)),
          specs=tuple(_ordered(merge.specs, 2 * is_exact)),
      ),
  ))


def _only_adds(merge: graph.Graph, is_exact: Sequence[bool]) -> bool:
  """Whether the leaves that are not exact are sums, as NumPy adds them."""
  graph_def = tf.compat.v1.GraphDef.FromString(merge.graph_def)
  names = zip(merge.outputs, merge.inputs, merge.inputs[len(is_exact) :])
  return all(
      spec.dtype in (tf.float32, tf.float64, tf.int32, tf.int64)
      and graph.is_sum(graph_def, *leaf)
      for leaf, spec in _ordered(zip(names, merge.specs), is_exact)
  )


def _ordered(
    leaves: Iterable[_Leaf], is_exact: Sequence[bool]
) -> Iterator[_Leaf]:
  """Returns the leaves that are not exact."""
  return (leaf for leaf, is_sum in zip(leaves, is_exact) if not is_sum)


def _at_server(result: tff.Value) -> tff.Value:
  """Zips a structure of values into one at the server, while tracing."""
  type_spec = result.type_signature
  if isinstance(type_spec, tff.FederatedType):
    return result
  if not tff.types.contains(type_spec, _is_placed):
    # A result without a placement comes from the server.
    return tff.federated_value(result, tff.SERVER)
  names = [name for name, _ in tff.structure.iter_elements(type_spec)]
  return tff.federated_zip(tff.structure.Struct(
      # By index, because a field may have no name.
      (name, _at_server(result[index])) for index, name in enumerate(names)
  ))


def _is_placed(type_spec: tff.Type) -> bool:
  return isinstance(type_spec, tff.FederatedType)


class PlacedArguments:
  """Splits an argument into its server's and its clients' values.

  A value that is equal at all clients counts as one of the server: the
  computation broadcasts it.

  Attributes:
    server_type: a struct of the members of all server arguments.
    client_type: a struct of the members of all client arguments.
    server: flattens the server's values.
    client: flattens one client's values.
  """

  def __init__(self, type_spec: tff.Type):
    """Reads the placements of the parameter type `type_spec`.

    Raises:
      ValueError: an argument without placement.
    """
    self._type = type_spec
    self._leaves = tff.structure.flatten(type_spec)
    for leaf in self._leaves:
      if not isinstance(leaf, tff.FederatedType):
        raise ValueError(
            f'an argument of type {leaf} has no placement: place it at the '
            'server, and broadcast it where clients need it'
        )
    self.server_type, self.client_type = (
        tff.StructType([
            leaf.member
            for leaf in self._leaves
            if intrinsics.is_one_per_client(leaf) == at_clients
        ])
        for at_clients in (False, True)
    )
    self.server = values.TypeFlattener(self.server_type)
    self.client = values.TypeFlattener(self.client_type)

  def split(self, argument: object) -> tuple[list[tf.Tensor], list[tuple]]:
    """Returns the server tensors, and a tuple of values for each client.

    Args:
      argument: as the computation was called with.

    Raises:
      TypeError: the argument does not fit the type.
      ValueError: client arguments of different lengths.
    """
    servers, clients = [], []
    for value, leaf, name in values.iter_leaves(
        argument, self._type, 'argument'
    ):
      if not intrinsics.is_one_per_client(leaf):
        servers.append(value)
      elif isinstance(value, (list, tuple)):
        clients.append(value)
      else:
        raise TypeError(
            f'{name} must be a list with one value for each client, found '
            f'{type(value).__name__}.'
        )
    lengths = {len(members) for members in clients}
    if len(lengths) > 1:
      raise ValueError(
          'All client arguments must be lists of one length, found lengths '
          f'{[len(members) for members in clients]}.'
      )
    return self.server.flatten(servers, name='server argument'), list(
        zip(*clients)
    )

  def assemble(
      self, server: tff.Value, clients: tff.Value
  ) -> tff.structure.Struct | tff.Value:
    """Returns the original parameter, while tracing."""
    server_index, client_index = itertools.count(), itertools.count()
    leaves = []
    for leaf in self._leaves:
      if intrinsics.is_one_per_client(leaf):
        leaves.append(clients[next(client_index)])
        continue
      value = server[next(server_index)]
      # Equal at all clients: the server holds it once, and broadcasts it.
      is_at_clients = intrinsics.is_at_clients(leaf)
      leaves.append(tff.federated_broadcast(value) if is_at_clients else value)
    return tff.structure.pack_sequence_as(self._type, leaves)

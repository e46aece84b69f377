"""Server-placed and client-placed values in the arguments of a computation.

TFF's MapReduceForm takes one server value and one client value. Here any
structure of placed arguments, such as `<A@SERVER, {B}@CLIENTS, {C}@CLIENTS>`,
is taken apart into `<A>@SERVER` and `{<B, C>}@CLIENTS`, and put together again.
"""

from typing import Any

import tensorflow as tf
import tensorflow_federated as tff

from tff_asr.execution import values


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
    leaves = get_types(type_spec)
    for leaf in leaves:
      if leaf.placement is tff.CLIENTS and leaf.all_equal:
        raise ValueError(f'found the all-equal client argument {leaf}')
    self.server_type = tff.StructType(
        [leaf.member for leaf in leaves if leaf.placement is tff.SERVER]
    )
    self.client_type = tff.StructType(
        [leaf.member for leaf in leaves if leaf.placement is tff.CLIENTS]
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
        self._type, iter(range(len(self.server_type))),
        iter(range(len(self.client_type))), server, clients,
    )


def get_types(type_spec: tff.Type | None) -> list[tff.FederatedType]:
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
        for leaf in get_types(field)
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
    type_spec: tff.Type, servers: Any, clients: Any, server: Any, client: Any
) -> Any:
  """`server[i]` and `client[j]` in the structure of the parameter."""
  if isinstance(type_spec, tff.StructType):
    return tff.structure.Struct([
        (name, _assemble(field, servers, clients, server, client))
        for name, field in tff.structure.iter_elements(type_spec)
    ])
  if type_spec.placement is tff.SERVER:
    return server[next(servers)]
  return client[next(clients)]

"""Intrinsics that a TFF computation calls, and checks of its number of clients.

Our contexts refuse computations that have no meaningful result over zero
clients. A sum over zero clients is 0 and a mean NaN, as TFF defines them.
"""

import tensorflow_federated as tff

from tff_asr.execution import values

_AT_SERVER = frozenset([
    'federated_apply',
    'federated_eval_at_server',
    'federated_value_at_server',
    'federated_zip_at_server',
])
# TFF's own runtime supports none of these.
NOT_NATIVE = frozenset([
    'federated_secure_modular_sum',
    'federated_secure_select',
    'federated_secure_sum',
    'federated_secure_sum_bitwidth',
    'sequence_map',
    'sequence_sum',
])
# Over zero clients their value is the largest or smallest number of the dtype.
_EXTREMES = frozenset(['federated_max', 'federated_min'])


def called_intrinsics(comp: tff.Computation) -> frozenset[str]:
  """Returns the names of the intrinsics that a computation calls."""
  found = set()

  def note(block):
    if isinstance(block, tff.framework.Intrinsic):
      found.add(block.uri)
    return block, False

  # A traversal: nothing is transformed (False).
  tff.framework.transform_postorder(comp.to_building_block(), note)
  return frozenset(found)


def is_at_clients(type_spec: tff.Type) -> bool:
  """Returns whether this is the type of a value at clients."""
  return (
      isinstance(type_spec, tff.FederatedType)
      and type_spec.placement is tff.CLIENTS
  )


def is_one_per_client(type_spec: tff.Type) -> bool:
  """Returns whether this is the type of values at clients that may differ."""
  return is_at_clients(type_spec) and not type_spec.all_equal


def count_clients(
    argument: object, type_spec: tff.Type | None
) -> int | None:
  """Returns the number of clients in an argument; None if it has none."""
  if isinstance(type_spec, tff.StructType):
    fields = values.iter_fields(argument, type_spec, 'argument')
    counts = (count_clients(value, part) for value, part, _ in fields)
    # The first one decides; `PlacedArguments.split` compares all of them.
    return next((count for count in counts if count is not None), None)
  if is_one_per_client(type_spec) and isinstance(argument, (list, tuple)):
    return len(argument)
  return None


def check_clients(comp: tff.Computation, num_clients: int | None) -> None:
  """Raises ValueError if the result is meaningless without clients.

  Args:
    comp: a computation.
    num_clients: how many clients it is called with; None if that is unknown,
      as before a call.
  """
  if num_clients:
    return
  found = called_intrinsics(comp)
  if num_clients == 0:
    for name in sorted(found & _EXTREMES):
      raise ValueError(
          f'A {name} over zero clients has no value; it needs at least one.'
      )
  # TFF infers the number of clients from the arguments. Without an argument at
  # clients its runtime assumes zero clients, and returns the initial value of
  # the aggregation.
  elif any(
      name.startswith('federated_') and name not in _AT_SERVER for name in found
  ) and not _takes_clients(comp):
    raise ValueError(
        'The computation of type '
        f'{comp.type_signature.compact_representation()[:200]} works at '
        'clients, but has no argument with one value per client, so their '
        'number is unknown; give it one, such as a list of client ids.'
    )


def _takes_clients(comp: tff.Computation) -> bool:
  parameter = comp.type_signature.parameter
  return parameter is not None and tff.types.contains(
      parameter, is_one_per_client
  )

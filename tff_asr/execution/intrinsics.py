"""Intrinsics that a TFF computation calls, and whether it can count clients."""

import tensorflow_federated as tff

# These work without clients; all other federated intrinsics need some.
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


def check_clients(comp: tff.Computation) -> None:
  """Raises ValueError if no argument gives the number of clients.

  TFF infers it from the arguments. Without an argument at clients its runtime
  assumes zero clients, and returns the initial value of the aggregation.
  """
  parameter = comp.type_signature.parameter
  # Values that are equal at all clients do not tell how many there are.
  if parameter is not None and tff.types.contains(parameter, is_one_per_client):
    return
  if any(
      name.startswith('federated_') and name not in _AT_SERVER
      for name in called_intrinsics(comp)
  ):
    raise ValueError(
        'The computation of type '
        f'{comp.type_signature.compact_representation()[:200]} works at '
        'clients, but has no argument with one value per client, so their '
        'number is unknown; give it one, such as a list of client ids.'
    )

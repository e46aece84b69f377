"""Replaces secure sums by exact plain ones with the same result.

Secure aggregation reveals a sum of integers to the server and nothing else. A
simulation has all values anyway, so it adds them itself, in int64.
"""

from collections.abc import Callable
from typing import Any

import tensorflow as tf
import tensorflow_federated as tff

# The sum of two such values still fits into int64.
_MAX_BITWIDTH = 62


def has_any(form: tff.backends.mapreduce.MapReduceForm) -> bool:
  """Returns whether a form has secure sums."""
  _, *secure = form.work.type_signature.result
  return any(
      tff.types.contains(part, lambda each: isinstance(each, tff.TensorType))
      for part in secure
  )


def as_plain_sums(
    form: tff.backends.mapreduce.MapReduceForm,
) -> tff.Computation:
  """Returns the form's computation with plain sums in place of secure ones.

  Its type is (<S@SERVER, {D}@CLIENTS> -> <S@SERVER, X@SERVER>). In it a client
  fails with InvalidArgumentError if a value is out of range, and so does the
  server if a sum does not fit its dtype.
  """
  updates_type = form.work.type_signature.result
  secure_types = list(updates_type)[1:]

  # At each client, as the protocol requires: from 0 to the largest input of
  # `tff.federated_secure_sum` and `tff.federated_secure_sum_bitwidth`. Modular
  # sums take any input.
  @tff.tensorflow.computation(updates_type)
  def check(updates):
    bitwidths, largest = form.secure_sum_bitwidth(), form.secure_sum_max_input()
    return [
        _map(_in_bits, updates[1], bitwidths),
        _map(_in_range, updates[2], largest),
        _map(lambda value, _: tf.cast(value, tf.int64), updates[3], None),
    ]

  # At the server: modular sums are reduced, and all get their own dtypes.
  @tff.tensorflow.computation(check.type_signature.result)
  def restore(totals):
    totals = [
        *list(totals)[:2],
        _map(
            lambda total, modulus: total % tf.cast(modulus, tf.int64),
            totals[2],
            form.secure_modular_sum_modulus(),
        ),
    ]
    return [
        _map(_to_dtype, total, part)
        for total, part in zip(totals, secure_types)
    ]

  @tff.federated_computation(
      tff.FederatedType(form.prepare.type_signature.parameter, tff.SERVER),
      tff.FederatedType(form.work.type_signature.parameter[0], tff.CLIENTS),
  )
  def comp(server, clients):
    broadcast = tff.federated_broadcast(tff.federated_map(form.prepare, server))
    updates = tff.federated_map(form.work, (clients, broadcast))
    plain = tff.federated_aggregate(
        updates[0], form.zero(), form.accumulate, form.merge, form.report
    )
    totals = tff.federated_map(
        restore, tff.federated_sum(tff.federated_map(check, updates))
    )
    result = tff.federated_map(
        form.update, (server, (plain, totals[0], totals[1], totals[2]))
    )
    return result[0], result[1]

  return comp


def _map(fn: Callable[[Any, Any], Any], value: Any, setting: Any) -> Any:
  """Maps `fn(leaf, setting)`; one setting may apply to a whole structure."""
  if tf.is_tensor(value):
    return fn(value, setting)
  children = tff.structure.from_container(value)
  if setting is None or tf.is_tensor(setting):
    settings = [setting] * len(children)
  elif isinstance(setting, tff.StructType):
    settings = list(setting)
  else:
    settings = list(tff.structure.from_container(setting))
  return tff.structure.Struct([
      (name, _map(fn, child, own))
      for (name, child), own in zip(
          tff.structure.iter_elements(children), settings, strict=True
      )
  ])


def _in_bits(value: tf.Tensor, bitwidth: tf.Tensor) -> tf.Tensor:
  check = tf.debugging.assert_less_equal(
      bitwidth, _MAX_BITWIDTH, message='The bitwidth of a secure sum.'
  )
  with tf.control_dependencies([check]):
    # After the check, because a larger shift overflows int64.
    one = tf.constant(1, tf.int64)
    largest = tf.bitwise.left_shift(one, tf.cast(bitwidth, tf.int64)) - 1
  return _in_range(value, largest)


def _in_range(value: tf.Tensor, largest: tf.Tensor) -> tf.Tensor:
  """Returns the value as int64; fails unless it is from 0 to the largest."""
  # int64 for all dtypes: sums of int32 values could wrap.
  value = tf.cast(value, tf.int64)
  largest = tf.cast(largest, tf.int64)
  is_good = tf.reduce_all((value >= 0) & (value <= largest))
  check = tf.debugging.Assert(
      is_good, ['A value of a secure sum is not from 0 to', largest]
  )
  with tf.control_dependencies([check]):
    return tf.identity(value)


def _to_dtype(total: tf.Tensor, type_spec: tff.TensorType) -> tf.Tensor:
  dtype = tf.as_dtype(type_spec.dtype)
  check = tf.debugging.Assert(
      tf.reduce_all((total >= dtype.min) & (total <= dtype.max)),
      ['A secure sum does not fit', dtype.name],
  )
  with tf.control_dependencies([check]):
    return tf.cast(total, dtype)

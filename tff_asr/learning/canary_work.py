"""Client work in which canary clients send their random update.

Type: that of the client work which it wraps. For an audit only.
"""

import collections

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_asr.data import schema
from tff_asr.privacy import canaries as canaries_lib


def build(
    client_work: tff.learning.templates.ClientWorkProcess,
    *,
    canaries: canaries_lib.Canaries,
) -> tff.learning.templates.ClientWorkProcess:
  """Wraps client work.

  Args:
    client_work: What people's clients do.
    canaries: What canaries send; their data come from
      `data.canary_data.add_canaries`. They train on nothing.
  """
  state, broadcast, examples = client_work.next.type_signature.parameter
  result_type = client_work.next.type_signature.result.result.member

  @tff.tensorflow.computation(examples.member)
  def take_out_name(elements):
    name = elements.take(1).reduce(
        '', lambda _, element: element[schema.CLIENT_ID]
    )
    ones = tf.cast(canaries_lib.is_canary(name), tf.int64)
    return collections.OrderedDict(name=name, elements=elements.skip(ones))

  @tff.tensorflow.computation(result_type, np.str_)
  def replace(result, name):
    layers = tf.nest.flatten(result.update)
    update = tf.cond(
        canaries_lib.is_canary(name),
        lambda: canaries.update(name, [layer.shape for layer in layers]),
        lambda: layers,
    )
    return tff.learning.templates.ClientResult(
        update=tf.nest.pack_sequence_as(result.update, update),
        update_weight=result.update_weight,
    )

  @tff.federated_computation(state, broadcast, examples)
  def next_fn(state, broadcast, examples):
    taken = tff.federated_map(take_out_name, examples)
    output = client_work.next(state, broadcast, taken.elements)
    result = tff.federated_map(replace, (output.result, taken.name))
    return tff.templates.MeasuredProcessOutput(
        output.state, result, output.measurements
    )

  return tff.learning.templates.ClientWorkProcess(
      client_work.initialize, next_fn
  )

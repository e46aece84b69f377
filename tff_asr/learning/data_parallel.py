"""A batch's gradient computed in parts, one a device.

    gradient = sum over parts of (gradient of the part's summed losses) / n,

for n utterances of the whole batch, so that it is that of the batch's mean loss
to rounding. Parts are added in the order of the devices: the same devices give
the same bits. What training draws (dropout, layer drop, shifts) is drawn for
each part apart, from the batch's seed and the part's number; a device that is
named twice has two parts, with the draws of two devices.

  B: utterances of a batch.
"""

from collections.abc import Collection, Sequence

import tensorflow as tf

from tff_asr.data import pipeline as pipeline_lib
from tff_asr.execution import devices as devices_lib
from tff_asr.learning import client_update
from tff_asr.models import ctc
from tff_asr.models import weights as weights_lib


def find(devices: Sequence[str]) -> tuple[str, ...]:
  """The devices' full names.

  Args:
    devices: Such as ['GPU:0', 'GPU:1']; one may be named several times.

  Raises:
    ValueError: There is none, or one is not of this machine.
  """
  if isinstance(devices, str) or not devices:
    return devices_lib.find(devices)  # Which raises.
  return tuple(devices_lib.find([device])[0] for device in devices)


def clipped_gradients(
    model: ctc.CtcModel,
    weights: weights_lib.Weights,
    batch: pipeline_lib.Batch,
    *,
    max_grad_norm: float,
    devices: Sequence[str],
    frozen: Collection[str] = (),
) -> tuple[weights_lib.Weights, tf.Tensor]:
  """As `client_update.clipped_gradients`, in a part for each device.

  Args:
    model: The model.
    weights: Its weights.
    batch: See `pipeline.Batch`; at least one utterance or stub.
    max_grad_norm: Positive; clips the whole gradient.
    devices: Names as `find` returns them.
    frozen: Names of weights without a gradient.
  """
  num_trained = tf.reduce_sum(batch['example_weights'])
  gradients, losses = [], []
  for device, part in zip(devices, _parts(batch, len(devices))):
    with tf.device(device):
      part_gradients, loss_sum = client_update.loss_gradients(
          model, weights, part, num_utterances=num_trained, frozen=frozen
      )
    gradients.append(part_gradients)
    losses.append(loss_sum)
  total = tf.nest.map_structure(lambda *parts: _add(parts), *gradients)
  clipped = client_update.clip(total, max_norm=max_grad_norm)
  return clipped, _add(losses)


def _parts(
    batch: pipeline_lib.Batch, num_parts: int
) -> list[pipeline_lib.Batch]:
  """A batch in parts of as many utterances, with stubs where some are short."""
  size = tf.shape(batch['example_weights'])[0]
  part_size = (size + num_parts - 1) // num_parts
  places = tf.range(part_size * num_parts)
  # What fills up is a copy with a weight of 0, which no kernel refuses.
  is_copy = places >= size
  places %= size
  parts = []
  for number in range(num_parts):
    rows = slice(number * part_size, (number + 1) * part_size)
    part = type(batch)(
        (name, tf.gather(value, places[rows]))
        for name, value in batch.items()
        if name != 'seed'
    )
    part['example_weights'] = tf.where(is_copy[rows], 0.0, part['example_weights'])
    part['seed'] = tf.random.fold_in(batch['seed'], number)
    parts.append(part)
  return parts


def _add(values: Sequence[tf.Tensor]) -> tf.Tensor:
  """The sum, from the left."""
  total = values[0]
  for value in values[1:]:
    total += value
  return total

"""Memory: what a run needs of it, and what to change where it is too little."""

from collections.abc import Iterator
import contextlib
import errno
from typing import Any, Optional

import tensorflow as tf

from tff_asr.models import weights as weights_lib

_ADVICE = (
    'lower MAX_BATCH_SEC (seconds of audio a batch), CLIENTS_PER_DEVICE or '
    'NUM_VECTORIZED, or take a smaller model (NUM_BLOCKS, DIM, MLP_DIM)'
)


@contextlib.contextmanager
def explained() -> Iterator[None]:
  """Says which settings to change where memory does not suffice.

  Raises:
    OSError: TensorFlow or Python had too little memory, here or at a client.
  """
  try:
    yield
  except Exception as error:
    found = error
    while found is not None and not is_shortage(found):
      found = found.__cause__
    if found is None:
      raise
    what = ' '.join(str(found).split('\n')[0].split())[:200]
    raise OSError(
        errno.ENOMEM,
        f'out of memory ({what or type(found).__name__}): {_ADVICE}.',
    ) from error


def is_shortage(error: BaseException) -> bool:
  """Whether an error says that memory did not suffice."""
  return isinstance(error, (MemoryError, tf.errors.ResourceExhaustedError))


def weights_bytes(model: Any) -> int:
  """Bytes of a model's weights, float32."""
  return 4 * weights_lib.count(model.specs)


def estimate_rounds(*, state_bytes: int, weights_bytes: int) -> tuple[int, int]:
  """Bytes that federated rounds take, without the activations of its batches.

  Args:
    state_bytes: Of a program state.
    weights_bytes: Of the model's weights.

  Returns:
    Bytes of the server: the state before a round and after it, the one that is
    being written, what is sent to clients, the sum, and its noise. Bytes of a
    client at work: its weights, gradients, update and sum, and a sum that waits
    to be merged.
  """
  return 3 * state_bytes + 3 * weights_bytes, 5 * weights_bytes


def estimate_steps(
    *,
    state_bytes: int,
    weights_bytes: int,
    trained_bytes: int,
    num_vectorized: Optional[int] = None,
) -> tuple[int, int]:
  """Bytes that steps on batches take, without the activations of a batch.

  Args:
    state_bytes: Of a program state.
    weights_bytes: Of the model's weights.
    trained_bytes: Of those that are trained.
    num_vectorized: Of DP-SGD, see `example_gradients`; None: gradients are
      those of batches.

  Returns:
    Bytes of the whole: the state before a step and after it, the one that is
    being written, and the mean gradient. Bytes of a device at work: the
    weights, a sum and the next one, and the gradient; with gradients by example
    `num_vectorized` of these, and one being clipped in float64.
  """
  gradients = 1 if num_vectorized is None else num_vectorized + 2
  return (
      3 * state_bytes + trained_bytes,
      weights_bytes + (2 + gradients) * trained_bytes,
  )

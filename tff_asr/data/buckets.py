"""Length buckets: batches padded to few sizes, as XLA and GPUs need.

XLA compiles a program for each size of its arguments, and cuDNN tunes for each.
Nearly every batch has another size, so a batch is padded, as by
`tf.data.Dataset.bucket_by_sequence_length` with `pad_to_bucket_boundary`:

- to the frames of the first boundary that holds its longest utterance, and
- to a multiple of an eighth of the utterances that fill a batch there.

    >>> LengthBuckets([2.0, 4.0, 8.0]).padded_size(
    ...     10, 350, max_batch_frames=12000
    ... )
    (12, 400)

Padding rows have weight 0, so losses and gradients are those of the batch up to
rounding. Which utterances share a batch does not depend on buckets. The
boundaries are public settings: fitted to the clients of a private run, they
would make each client's update depend on all clients.

  B: rows of a batch. T: feature frames. F: mel bins. U: label length.
"""

import collections
from collections.abc import Callable, Collection, Sequence
import dataclasses
from typing import Optional

import tensorflow as tf

from tff_asr import checks
from tff_asr.features import front_end as front_end_lib

HOST = '/device:CPU:0'
"""Where indices are computed: a GPU would be waited for at each of them."""

# Eighths: at most an eighth of the rows of a full batch is padding.
_ROW_COUNTS = 8


@dataclasses.dataclass(frozen=True)
class LengthBuckets:
  """Sizes that batches are padded to.

  There are at most eleven sizes for each boundary if a boundary is at most 1.3
  times the one before.

  Attributes:
    boundaries_sec: Ascending. The last is at least the longest utterance.
    front_end: Its frames are counted. A pipeline sets its own.
  """

  boundaries_sec: Sequence[float]
  front_end: front_end_lib.FrontEnd = front_end_lib.build_log_mel()

  def __post_init__(self):
    # gin passes a list, which cannot be hashed.
    # The class is frozen.
    object.__setattr__(self, 'boundaries_sec', tuple(self.boundaries_sec))
    frames = self.boundaries
    # In frames, because two boundaries may round to the same frame.
    if not frames or frames[0] < 1 or list(frames) != sorted(set(frames)):
      raise ValueError(
          'boundaries_sec must be positive and ascend, found '
          f'{self.boundaries_sec}.'
      )

  @property
  def boundaries(self) -> tuple[int, ...]:
    """Feature frames of the boundaries."""
    return tuple(
        map(self.front_end.frames_of_seconds, self.boundaries_sec)
    )

  def padded_size(
      self,
      num_rows: int | tf.Tensor,
      num_frames: int | tf.Tensor,
      *,
      max_batch_frames: int,
  ) -> tuple[int | tf.Tensor, int | tf.Tensor]:
    """The rows and frames that a batch is padded to.

    Args:
      num_rows: int or int32 [], at least 1.
      num_frames: int or int32 [], at most the last boundary.
      max_batch_frames: Padded frames of the largest batch.

    Returns:
      As the arguments.
    """
    frames = self._boundary(num_frames)
    # Integer arithmetic that Python's numbers and tensors share.
    # Rounded up: rows that fill a batch whose frames are a little shorter.
    full_rows = (max_batch_frames - 1) // frames + 1
    step = (full_rows + _ROW_COUNTS - 1) // _ROW_COUNTS
    return (num_rows + step - 1) // step * step, frames

  @tf.autograph.experimental.do_not_convert
  def pad(
      self,
      batch: collections.OrderedDict[str, tf.Tensor],
      *,
      max_batch_frames: int,
      output_lengths: Callable[[tf.Tensor], tf.Tensor],
  ) -> collections.OrderedDict[str, tf.Tensor]:
    """Pads a batch by rows of weight 0, and by frames and labels of 0.

    Args:
      batch: A `pipeline.Batch`.
      max_batch_frames: As for `padded_size`.
      output_lengths: Feature frames to the model's output frames.
    """
    with tf.device(HOST):
      size = tf.shape(batch['features'])
      rows, frames = self.padded_size(
          size[0], size[1], max_batch_frames=max_batch_frames
      )
      # CTC needs an output frame for each label, so one width holds them all,
      # except where the published code's loss keeps labels that are too long.
      width = tf.maximum(
          output_lengths(frames), tf.shape(batch['labels'])[1]
      )
    sizes = dict(features=[rows, frames], labels=[rows, width], seed=None)
    values = dict(feature_lengths=self.front_end.placeholder_frames)
    return type(batch)(
        (name, _pad(value, sizes.get(name, [rows]), values.get(name)))
        for name, value in batch.items()
    )

  @tf.autograph.experimental.do_not_convert
  def pad_frames(self, features: tf.Tensor) -> tf.Tensor:
    """Pads float32 [B, T, F] to the frames of a boundary."""
    with tf.device(HOST):
      size = tf.shape(features)
      frames = self._boundary(size[1])
    return _pad(features, [size[0], frames])

  def _boundary(self, num_frames: int | tf.Tensor) -> int | tf.Tensor:
    """The first boundary that holds a number of frames."""
    if isinstance(num_frames, int):
      # Plain Python for plans and tests, where no graph is built.
      return min(each for each in self.boundaries if each >= num_frames)
    boundaries = tf.constant(self.boundaries)
    return boundaries[tf.searchsorted(boundaries, num_frames[tf.newaxis])[0]]


def check_jit(
    jit_compile: bool,
    buckets: Optional[LengthBuckets],
    *,
    frozen: Collection[str],
) -> None:
  """Raises ValueError if XLA cannot compile steps, or would compile each batch.

  Args:
    jit_compile: Whether XLA is to compile them.
    buckets: The pipeline's.
    frozen: Names of the tensors that the model reads from files.
  """
  if jit_compile and frozen:
    raise ValueError(
        'JIT must be False: XLA cannot read the tensors of a public encoder '
        'that are not trained from their files.'
    )
  if jit_compile and buckets is None:
    raise ValueError(
        'jit_compile needs length buckets, found none: XLA would compile each '
        "batch's size. Set BUCKETS = @buckets.LengthBuckets(), or JIT = False."
    )


def _pad(
    values: tf.Tensor,
    size: Optional[Sequence[tf.Tensor]],
    padding: Optional[int] = None,
) -> tf.Tensor:
  """Pads the first axes to a size; None leaves the values as they are."""
  if size is None:
    return values
  # Sizes are tensors: one graph serves all batches.
  missing = size - tf.shape(values)[: len(size)]
  paddings = [[0, missing[axis]] for axis in range(len(size))]
  paddings += [[0, 0]] * (values.shape.rank - len(size))
  if padding is None:
    padding = tf.zeros([], values.dtype)
  return tf.pad(values, paddings, constant_values=padding)

"""Few shapes for batches: fitted to lengths, and the cover of a batch by them.

Whatever tunes or compiles by the sizes of its arguments (cuDNN, XLA, an
allocator) wants few of them, and nearly every batch has a size of its own. So a
batch stays what it is, and is computed in pieces: its rows, sorted by length,
are cut into contiguous ones, and each is padded to one of a few shapes, by rows
of weight 0 and frames of zeros. Sums over the pieces are the batch's.

A cover costs its padded frames, and for each piece what it takes to launch it,
whatever its size, as so many frames:

    cost = sum over pieces of (utterances * frames of its shape + launch).

`cover` finds the least in the graph, `fit` the shapes for it, before training.
Covers of batches of many lengths may have fewer padded frames than the batches
padded to their own longest, since a piece of short rows is not.

Shapes are settings, as public as the rest. An update depends on them, by its
rounding and its draws of dropout; fitted to the clients of a private run, they
would make each client's update depend on all clients, and no clip bounds that.
For a run with differential privacy, fit them to public speech.

  n: rows of a batch. K: shapes.
"""

import collections
from collections.abc import Callable, Mapping, Sequence
import dataclasses
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tff_asr import checks

PLACEHOLDER_FRAMES = 8
"""Frames of what stands for no utterance.

One group of the front end's stride, rounded up: the least that a model takes.
"""

HOST = '/device:CPU:0'
"""Where indices are computed: a device with queues would wait for each."""

_ROUNDS = 4
_MAX_AREA = 1.14
_MAX_DISTINCT = 400
_UNREACHED = 2**60


class Cover(NamedTuple):
  """Pieces of a batch, by where they end: that of all rows ends at n.

  Attributes:
    first: int32 [n + 1], first row of the piece that ends before a row.
    shape: int32 [n + 1], its shape's number.
  """

  first: tf.Tensor
  shape: tf.Tensor


@dataclasses.dataclass(frozen=True)
class Shapes:
  """Shapes of pieces.

  Attributes:
    sizes: Utterances and frames of each; a sequence of pairs.
    launch: Frames that a piece costs beside its own.
  """

  sizes: Sequence[tuple[int, int]]
  launch: int

  def __post_init__(self):
    # Out of a configuration they come as lists.
    object.__setattr__(self, 'sizes', tuple(map(tuple, self.sizes)))
    checks.non_negative_int(launch=self.launch)
    if not self.sizes:
      raise ValueError('sizes must hold at least one shape, found none.')
    for count, frames in self.sizes:
      checks.positive_int(utterances=count, frames=frames)

  @property
  def max_frames(self) -> int:
    """Frames of the longest utterance that some shape holds."""
    return max(frames for _, frames in self.sizes)

  @property
  def costs(self) -> np.ndarray:
    """The cost of a piece of each shape, int64 [K]."""
    return np.prod(np.array(self.sizes, np.int64), axis=1) + self.launch


@tf.autograph.experimental.do_not_convert
def cover(lengths: tf.Tensor, shapes: Shapes) -> Cover:
  """The cheapest pieces of each of the batch's beginnings.

  From n, `end = first[end]` walks the pieces of the whole, the longest first.

  Args:
    lengths: int32 [n], frames of the rows, ascending, n at least 1, none above
      `shapes.max_frames`.
    shapes: What there is.
  """
  with tf.device(HOST):
    counts, frames = (
        tf.constant(column, tf.int64) for column in zip(*shapes.sizes)
    )
    size = tf.size(lengths)
    ends = tf.range(size + 1, dtype=tf.int64)
    longest = tf.concat([[0], tf.cast(lengths, tf.int64)], axis=0)
    # Indexed by end, first row and shape, [n + 1, n + 1, K].
    rows = (ends[:, tf.newaxis] - ends)[:, :, tf.newaxis]
    holds = (rows > 0) & (rows <= counts)
    holds &= longest[:, tf.newaxis, tf.newaxis] <= frames
    each = tf.where(holds, tf.constant(shapes.costs), _UNREACHED)
    one_piece = tf.reduce_min(each, axis=2)

    def add_a_piece(least, _):
      more = tf.reduce_min(least + one_piece, axis=1)
      return tf.minimum(least, more), least

    # Least costs with ever more pieces, until one more does not help.
    nothing = tf.where(ends > 0, tf.constant(_UNREACHED, tf.int64), 0)
    least, _ = tf.while_loop(
        lambda least, before: tf.reduce_any(least < before),
        add_a_piece,
        (nothing, nothing + 1),
        parallel_iterations=1,
    )
    first = tf.argmin(least + one_piece, axis=1, output_type=tf.int32)
    shape = tf.argmin(
        tf.gather(each, first, axis=1, batch_dims=1),
        axis=1,
        output_type=tf.int32,
    )
    return Cover(first, shape)


@tf.autograph.experimental.do_not_convert
def sum_over_pieces(
    add: Callable[[Any, Mapping[str, tf.Tensor]], Any],
    batch: Mapping[str, tf.Tensor],
    shapes: Shapes,
    *,
    output_lengths: Callable[[tf.Tensor], tf.Tensor],
    zeros: Any,
) -> Any:
  """The sum of something over the pieces of a batch.

  Each piece has a seed of its own, by the number of its first row. Its labels
  are as wide as the labels of an utterance of its shape's frames can be: CTC
  needs an output frame for each. So a shape has one width, whatever is said.

  Args:
    add: Takes the sum so far, and a piece as `pipeline.Batch` without texts;
      returns the sum with the piece.
    batch: As `pipeline.Batch`, sorted by `feature_lengths`; its seed may be
      None.
    shapes: As for `cover`.
    output_lengths: Feature frames to the model's output frames.
    zeros: The sum over no piece, a structure of tensors.
  """
  found = cover(batch['feature_lengths'], shapes)
  with tf.device(HOST):
    sizes = tf.constant(shapes.sizes, tf.int32)
    sizes = tf.concat([sizes, output_lengths(sizes[:, 1:])], axis=1)

  def add_piece(end, total):
    start = found.first[end]
    count, frames, width = tf.unstack(sizes[found.shape[end]])
    piece = {
        name: _pad(batch[name][start:end], [count])
        for name in ('example_weights', 'label_lengths')
    }
    piece['labels'] = _pad(batch['labels'][start:end, :width], [count, width])
    piece['features'] = _pad(
        batch['features'][start:end, :frames], [count, frames]
    )
    piece['feature_lengths'] = _pad(
        batch['feature_lengths'][start:end],
        [count],
        constant_values=PLACEHOLDER_FRAMES,
    )
    seed = batch['seed']
    piece['seed'] = None if seed is None else tf.random.fold_in(seed, start)
    return start, add(total, piece)

  # One piece after the other: several at once would need the memory of several.
  _, total = tf.while_loop(
      lambda end, total: end > 0,
      add_piece,
      (tf.size(batch['feature_lengths']), zeros),
      parallel_iterations=1,
  )
  return total


def pad_to_shape(features: tf.Tensor, shapes: Shapes) -> tf.Tensor:
  """Pads one utterance to the fewest frames of a shape that hold it.

  Args:
    features: float32 [1, T, F]; T is at most `shapes.max_frames`.
    shapes: What there is.
  """
  with tf.device(HOST):
    frames = tf.constant(sorted({frames for _, frames in shapes.sizes}))
    found = tf.searchsorted(frames, tf.shape(features)[1:2])[0]
    size = frames[found]
  return _pad(features, [1, size])


def _pad(
    values: tf.Tensor, size: Sequence[tf.Tensor], constant_values: int = 0
) -> tf.Tensor:
  """Fills up the first axes to a size."""
  rest = size - tf.shape(values)[: len(size)]
  paddings = [[0, rest[axis]] for axis in range(len(size))]
  paddings += [[0, 0]] * (values.shape.rank - len(size))
  return tf.pad(values, paddings, constant_values=constant_values)


def fit(
    batches: Sequence[np.ndarray], *, max_frames: int, num_shapes: int = 16
) -> Shapes:
  """Shapes in which a pass over such batches costs little; see the module.

  Merges the sizes of pieces, each time the two that add the fewest padded
  frames, covers the batches by what is left, and begins anew with the pieces of
  that. The first pieces are whole batches, or those of a fine grid.

  A launch costs a quarter of the largest batch, or two thirds of that, and so
  on, until the area is at most 1.14 (`area`).

  Args:
    batches: At least one: ascending frames of the rows of each, int [n]. A
      thousand take some seconds.
    max_frames: Frames of the longest utterance there may be. Some shape holds
      it.
    num_shapes: Most shapes, at least 2.
  """
  checks.positive_int(max_frames=max_frames)
  checks.in_range(2, 2**16, num_shapes=num_shapes)
  largest = max(len(rows) * int(rows[-1]) for rows in batches)
  whole = [(len(rows), int(rows[-1])) for rows in batches]
  launch = largest // 4
  while True:
    fine = Shapes(_grid(max_frames, largest), launch)
    cut, _ = _covers(batches, fine)
    best, least = None, np.inf
    for pieces in (whole, cut):
      for _ in range(_ROUNDS):
        sizes = _merge(pieces, num_shapes)
        if max(frames for _, frames in sizes) < max_frames:
          sizes = _merge(pieces, num_shapes - 1) + [(1, max_frames)]
        shapes = Shapes(tuple(sorted(sizes)), launch)
        pieces, cost = _covers(batches, shapes)
        if cost < least:
          best, least = shapes, cost
    if launch < PLACEHOLDER_FRAMES or area(batches, best)[0] <= _MAX_AREA:
      return best
    launch = launch * 2 // 3


def area(
    batches: Sequence[np.ndarray], shapes: Shapes
) -> tuple[float, float]:
  """Padded frames, and pieces a batch.

  Args:
    batches: As for `fit`.
    shapes: What they are covered by.

  Returns:
    Padded frames of the covers over those of batches padded to their own
    longest row, and the mean number of pieces of a batch.
  """
  pieces, cost = _covers(batches, shapes)
  own = sum(len(rows) * int(rows[-1]) for rows in batches)
  padded = cost - len(pieces) * shapes.launch
  return padded / own, len(pieces) / len(batches)


def _covers(
    batches: Sequence[np.ndarray], shapes: Shapes
) -> tuple[list[tuple[int, int]], int]:
  """The own sizes (rows, frames) of all pieces, and what they cost."""
  counts, frames = np.array(shapes.sizes).T
  every = np.arange(len(batches))
  sizes = np.array([len(rows) for rows in batches])
  lengths = np.zeros([len(batches), max(sizes)], np.int64)
  for row, batch in zip(lengths, batches):
    row[: len(batch)] = batch
  least = np.zeros([len(batches), max(sizes) + 1], np.int64)
  first = np.zeros_like(least)
  for end in range(1, max(sizes) + 1):
    starts = np.maximum(0, end - counts)
    found = np.where(
        frames >= lengths[:, end - 1 : end],
        least[:, starts] + shapes.costs,
        _UNREACHED,
    )
    shape = np.argmin(found, axis=1)
    least[:, end] = found[every, shape]
    first[:, end] = starts[shape]
  pieces = []
  for batch in every:
    end = sizes[batch]
    while end:
      start = first[batch, end]
      pieces.append((int(end - start), int(lengths[batch, end - 1])))
      end = start
  return pieces, int(np.sum(least[every, sizes]))


def _grid(max_frames: int, max_area: int) -> list[tuple[int, int]]:
  """Many shapes up to an area: doubled utterances, frames by a sixth less."""
  frames = max_frames
  sizes = []
  while frames >= PLACEHOLDER_FRAMES:
    counts = [2**k for k in range(10) if not k or 2**k * frames <= max_area]
    sizes += [(count, frames) for count in counts]
    frames = int(frames / 1.2)
  return sizes


def _merge(pieces: Sequence[tuple[int, int]], num_shapes: int) -> list[tuple]:
  """Merges sizes that add the least area, until so few are left."""
  sizes = collections.Counter(pieces)
  step = 1
  while len(sizes) > _MAX_DISTINCT:
    step *= 2
    sizes = collections.Counter(
        (count, -(-frames // step) * step) for count, frames in pieces
    )
  counts, frames = np.array(list(sizes), np.float64).T
  # How many pieces each one stands for; none once it is merged into another.
  uses = np.array(list(sizes.values()), np.float64)

  def added(row):
    """Area that merging this size with each other one adds."""
    together = np.maximum(counts[row], counts) * np.maximum(frames[row], frames)
    result = together * (uses[row] + uses) - counts * frames * uses
    result -= counts[row] * frames[row] * uses[row]
    result[uses == 0] = np.inf
    result[row] = np.inf
    return result

  cost = np.stack([added(row) for row in range(len(uses))])
  for _ in range(len(uses) - num_shapes):
    row, other = np.unravel_index(np.argmin(cost), cost.shape)
    counts[row] = max(counts[row], counts[other])
    frames[row] = max(frames[row], frames[other])
    uses[row] += uses[other]
    uses[other] = 0
    cost[other] = cost[:, other] = np.inf
    cost[row] = cost[:, row] = added(row)
  return [
      (int(count), int(most))
      for count, most, used in zip(counts, frames, uses)
      if used
  ]

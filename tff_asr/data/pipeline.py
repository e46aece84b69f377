"""Examples to padded batches: features, shuffling, SpecAugment, packing.

Plain tf.data in core ops, built inside the client's graph. Batches are bounded
by seconds of *padded* audio: examples are taken in chunks, sorted by length
within a chunk and packed greedily, so that little of a batch is padding.
Everything random comes from one stateless seed.

An utterance that cannot be trained on keeps its place in a batch as a stub: a
few frames of zeros, no labels, weight 0. So nothing is lost silently: weights
say how many utterances were left out. That happens when

  - it has fewer output frames than its labels and their repeats need,
  - it is longer than the limit, or
  - its transcript is empty.

  N: samples. B: batch size. T: feature frames. F: mel bins. U: label length.
"""

import collections
from collections.abc import Callable
import dataclasses
from typing import Optional

import tensorflow as tf

from tff_asr import checks
from tff_asr.features import log_mel
from tff_asr.text import alignment
from tff_asr.text import tokenizer as tokenizer_lib

Batch = collections.OrderedDict
"""A batch, sorted by name:

client_id: string [B].
feature_lengths: int32 [B].
features: float32 [B, T, F], 0 at and past each length.
label_lengths: int32 [B].
labels: int32 [B, U], 0 at and past each length.
seed: int64 [2], for the model's own randomness on this batch.
transcript: string [B].
utterance_id: string [B].
weights: float32 [B], 1 for utterances to train on, 0 for stubs.
"""

# More epochs than any run has; not infinite, so that a client without examples
# ends.
_FOREVER = 2**40


@dataclasses.dataclass(frozen=True)
class Pipeline:
  """Settings of the input pipeline; see the module's docstring.

  Attributes:
    tokenizer: Text to labels.
    output_lengths: Feature frames to the model's output frames.
    max_batch_sec: A batch's padded audio is at most this many seconds.
    max_utterance_sec: Longer utterances are left out.
    augment: SpecAugment (features [T, F], seed [2]) for training, or None.
    shuffle_buffer: Examples held to shuffle from in training.
    chunk_size: Examples that are sorted and packed together.
  """

  tokenizer: tokenizer_lib.CharTokenizer
  output_lengths: Callable[[tf.Tensor], tf.Tensor]
  max_batch_sec: float
  max_utterance_sec: float = 30.0
  augment: Optional[Callable[[tf.Tensor, tf.Tensor], tf.Tensor]] = None
  shuffle_buffer: int = 256
  chunk_size: int = 64

  def __post_init__(self):
    checks.positive(
        max_batch_sec=self.max_batch_sec,
        max_utterance_sec=self.max_utterance_sec,
    )
    checks.positive_int(
        shuffle_buffer=self.shuffle_buffer, chunk_size=self.chunk_size
    )
    if self.max_utterance_sec > self.max_batch_sec:
      raise ValueError(
          f'max_utterance_sec {self.max_utterance_sec} must be at most '
          f'max_batch_sec {self.max_batch_sec}: a batch holds whole utterances.'
      )

  def training_batches(
      self,
      examples: tf.data.Dataset,
      *,
      seed: tf.Tensor,
      num_epochs: Optional[int] = None,
  ) -> tf.data.Dataset:
    """Shuffled, augmented batches.

    Args:
      examples: Dataset of `schema` elements: waveform int16 [N], transcript,
        utterance_id and client_id.
      seed: int32 [2]. The same examples and seed give the same batches; the id
        of the first example's client is folded in, so that clients differ.
      num_epochs: Passes over the examples, each with its own order and masks;
        None for batches without end (none at all from no examples).

    Returns:
      Dataset of `Batch`.
    """
    client = _client_number(examples)
    seed = tf.random.fold_in(seed, tf.cast(client, tf.int32))
    num_passes = _FOREVER if num_epochs is None else num_epochs
    # Without this, an endless run over no examples would never return.
    is_empty = client < 0
    num_passes = tf.where(is_empty, tf.constant(0, tf.int64), num_passes)

    def one_pass(epoch: tf.Tensor) -> tf.data.Dataset:
      epoch_seed = tf.random.fold_in(seed, epoch)
      shuffle_seed, example_seed, batch_seed = tf.unstack(
          tf.random.split(epoch_seed, 3)
      )
      shuffled = examples.shuffle(
          self.shuffle_buffer,
          seed=tf.cast(shuffle_seed[0], tf.int64),
          reshuffle_each_iteration=False,
      )

      def prepare(index, example):
        utterance = self._utterance(example)
        if self.augment is not None:
          own_seed = tf.random.fold_in(example_seed, index)
          utterance['features'] = self.augment(utterance['features'], own_seed)
        return utterance

      utterances = shuffled.enumerate().map(
          prepare, num_parallel_calls=tf.data.AUTOTUNE
      )
      return self._pack(utterances, batch_seed, shuffle=True)

    batches = tf.data.Dataset.range(num_passes).flat_map(one_pass)
    return batches.prefetch(1).with_options(_options())

  def evaluation_batches(self, examples: tf.data.Dataset) -> tf.data.Dataset:
    """Batches of every example once, neither shuffled nor augmented.

    Utterances come out in another order than they went in (sorted within a
    chunk); `utterance_id` tells them apart. None is left out for its labels or
    its length: all keep their features, and `weights` say which had a usable
    loss.

    Args:
      examples: As in `training_batches`.

    Returns:
      Dataset of `Batch`.
    """
    utterances = examples.map(
        lambda example: self._utterance(example, keep_features=True),
        num_parallel_calls=tf.data.AUTOTUNE,
    )
    batches = self._pack(utterances, tf.zeros([2], tf.int32), shuffle=False)
    return batches.prefetch(1).with_options(_options())

  def _utterance(self, example, *, keep_features: bool = False) -> Batch:
    """Features and labels of one example, or a stub; see the module."""
    features = log_mel.log_mel(example['waveform'])
    labels = self.tokenizer.encode(example['transcript'])
    check = tf.debugging.assert_non_negative(
        labels,
        message='A transcript has a character that is not a token.',
    )
    with tf.control_dependencies([check]):
      labels = tf.identity(labels)
    num_frames = tf.shape(features)[0]
    max_frames = int(self.max_utterance_sec / log_mel.FRAME_SHIFT_SEC)
    is_usable = (
        (tf.size(labels) > 0)
        & (num_frames <= max_frames)
        & (self.output_lengths(num_frames) >= alignment.min_frames(labels))
    )
    stub = tf.zeros([_STUB_FRAMES, log_mel.NUM_MEL_BINS])
    is_kept = is_usable
    if keep_features:
      is_kept = self.output_lengths(num_frames) > 0
    features = tf.cond(is_kept, lambda: features, lambda: stub)
    features.set_shape([None, log_mel.NUM_MEL_BINS])
    labels = tf.cond(is_usable, lambda: labels, lambda: labels[:0])
    return Batch(
        client_id=example['client_id'],
        feature_lengths=tf.shape(features)[0],
        features=features,
        label_lengths=tf.size(labels),
        labels=labels,
        transcript=example['transcript'],
        utterance_id=example['utterance_id'],
        weights=tf.cast(is_usable, tf.float32),
    )

  def _pack(
      self, utterances: tf.data.Dataset, seed: tf.Tensor, *, shuffle: bool
  ) -> tf.data.Dataset:
    """Packs utterances into batches, chunk by chunk."""
    max_frames = int(self.max_batch_sec / log_mel.FRAME_SHIFT_SEC)

    def pack_chunk(chunk_index, chunk) -> tf.data.Dataset:
      order = tf.argsort(chunk['feature_lengths'], stable=True)
      chunk = Batch((key, tf.gather(chunk[key], order)) for key in chunk)
      starts = _batch_starts(chunk['feature_lengths'], max_frames)
      ends = tf.concat([starts[1:], [tf.size(order)]], axis=0)
      bounds = tf.stack([starts, ends], axis=1)
      order_seed, batch_seed = tf.unstack(
          tf.random.split(tf.random.fold_in(seed, chunk_index), 2)
      )
      if shuffle:
        bounds = tf.random.experimental.stateless_shuffle(bounds, order_seed)

      def cut(index, bound) -> Batch:
        batch = Batch((key, chunk[key][bound[0] : bound[1]]) for key in chunk)
        batch['features'] = batch['features'][
            :, : tf.reduce_max(batch['feature_lengths'])
        ]
        batch['labels'] = batch['labels'][
            :, : tf.reduce_max(batch['label_lengths'])
        ]
        batch['seed'] = tf.random.fold_in(batch_seed, index)
        return Batch(sorted(batch.items()))

      return tf.data.Dataset.from_tensor_slices(bounds).enumerate().map(cut)

    chunks = utterances.padded_batch(self.chunk_size)
    return chunks.enumerate().flat_map(pack_chunk)


# One group of the front end's stride, rounded up: the least that a model takes.
_STUB_FRAMES = 8


def _options() -> tf.data.Options:
  """Without tf.data's rewriting of its graph.

  A client's dataset is short, and opened anew in every round: the rewrite
  takes longer than what it saves.
  """
  options = tf.data.Options()
  options.experimental_optimization.apply_default_optimizations = False
  return options


def _client_number(examples: tf.data.Dataset) -> tf.Tensor:
  """int64: a number of the first example's client; -1 without examples."""
  return examples.take(1).reduce(
      tf.constant(-1, tf.int64),
      lambda _, example: tf.strings.to_hash_bucket_fast(
          example['client_id'], 2**31 - 1
      ),
  )


def _batch_starts(lengths: tf.Tensor, max_frames: int) -> tf.Tensor:
  """First positions of greedy batches over ascending lengths int32 [n].

  The padded size of a batch, its utterances times its longest (its last), is
  at most max_frames unless a single utterance exceeds that.
  """
  size = tf.size(lengths)

  def step(position, start, starts):
    padded = (position - start + 1) * lengths[position]
    is_new = (padded > max_frames) & (position > start)
    start = tf.where(is_new, position, start)
    starts = tf.cond(
        is_new, lambda: tf.concat([starts, [position]], axis=0), lambda: starts
    )
    return position + 1, start, starts

  _, _, starts = tf.while_loop(
      lambda position, *_: position < size,
      step,
      (tf.constant(0), tf.constant(0), tf.zeros([1], tf.int32)),
      shape_invariants=(
          tf.TensorShape([]),
          tf.TensorShape([]),
          tf.TensorShape([None]),
      ),
  )
  return starts

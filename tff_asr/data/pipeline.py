"""Input pipeline: utterances to padded batches, with features and SpecAugment.

Plain tf.data in core ops, built inside the client's graph. Three steps decide
which utterances share a batch:

  1. `Pipeline.read_chunk` takes `chunk_size` at a time of a random order of all
     of a client's utterances, each epoch another.
  2. `Pipeline.prepare` sorts a chunk by length.
  3. `batch_starts` packs the sorted chunk greedily: a batch ends where its
     padded audio would exceed `max_batch_sec`, or its padding the share
     `max_padding`. Audio is counted in samples.

Then `Pipeline.slice_batch` computes a batch's features and masks, when the
batch is due: a batch that is never asked for costs nothing, and the spectra of
a whole chunk, gigabytes for hundreds of utterances, are never there at once.

A client's rows are put in order: places of records (`records`), which are read
when their chunk is due, so that no client is too large; or utterances in
memory, as tests and TFF users' own data have them.

Evaluation does the same in the order of the data. Everything random comes from
one stateless seed: the order of utterances, masks, the order of a chunk's
batches and the batches' own seeds, by client, epoch and chunk.

An utterance that cannot be trained on keeps its place in a batch as a
placeholder: a few frames of zeros, no labels, weight 0. So nothing is lost
silently: weights say how many utterances were left out. That happens when

  - it has fewer output frames than its labels and their repeats need,
  - it is longer than the limit, or
  - its transcript is empty.

Without a tokenizer nothing is spelled: transcripts count for nothing, and all
labels are of length 0.

Nothing here has Python control flow on tensors, so AutoGraph is kept out of it:
converting code takes several times as long as tracing it.

  N: samples. B: batch size. T: feature frames. F: mel bins. U: label length.
"""

import collections
from collections.abc import Callable
import dataclasses
import functools
from typing import NamedTuple, Optional

import tensorflow as tf

from tff_asr import checks
from tff_asr.data import buckets as buckets_lib
from tff_asr.data import records
from tff_asr.data import schema
from tff_asr.features import log_mel
from tff_asr.text import tokenizer as tokenizer_lib

Batch = collections.OrderedDict
"""A batch, sorted by name:

client_id: string [B].
feature_lengths: int32 [B], ascending.
features: float32 [B, T, F], 0 at and past each length.
label_lengths: int32 [B].
labels: int32 [B, U], 0 at and past each length.
seed: int32 [2], for the model's own randomness on this batch.
transcript: string [B].
utterance_id: string [B].
example_weights: float32 [B], 1 for utterances to train on, 0 for placeholders.
"""


def batch_spec() -> Batch:
  """The tensor specs of a batch of any size.

  A function traced for this has one graph, and so one rounding, for all
  batches; one traced for the sizes that it meets rounds by what it met before.
  """
  spec = tf.TensorSpec
  return Batch(
      client_id=spec([None], tf.string),
      example_weights=spec([None], tf.float32),
      feature_lengths=spec([None], tf.int32),
      features=spec([None, None, log_mel.NUM_MEL_BINS], tf.float32),
      label_lengths=spec([None], tf.int32),
      labels=spec([None, None], tf.int32),
      seed=spec([2], tf.int32),
      transcript=spec([None], tf.string),
      utterance_id=spec([None], tf.string),
  )


FEATURES = 'features'
"""Key of an example's features, in place of its waveform: float32 [T, F]."""

_LABELS_TOO_LONG = ('left_out', 'kept')


@dataclasses.dataclass(frozen=True)
class Pipeline:
  """Settings of the input pipeline; see the module's docstring.

  Attributes:
    tokenizer: Text to labels; None to train without text.
    output_lengths: Feature frames to the model's output frames.
    max_batch_sec: A batch's padded audio is at most this many seconds.
    max_utterance_sec: Longer utterances are left out.
    max_padding: Largest share of padding in a batch, in [0, 1]; 1 fills batches
      whatever their padding.
    augment: SpecAugment (features [B, T, F], lengths [B], seed [2]) for
      training, or None.
    chunk_size: Examples that are sorted and packed together.
    copies: How often each utterance comes in a pass, in one order: 2 as the
      published code's loader has it (docs/recipe.md).
    labels_too_long: Utterances whose labels have no place in their frames are
      'left_out'; or 'kept', as in the published code, for a loss that has a
      value for them (`models.ctc`).
    buckets: Sizes that training batches are padded to; None: each batch keeps
      its own size.
  """

  tokenizer: Optional[tokenizer_lib.Tokenizer]
  output_lengths: Callable[[tf.Tensor], tf.Tensor]
  max_batch_sec: float
  max_utterance_sec: float = 30.0
  max_padding: float = 1.0
  augment: Optional[
      Callable[[tf.Tensor, tf.Tensor, tf.Tensor], tf.Tensor]
  ] = None
  chunk_size: int = 64
  copies: int = 1
  labels_too_long: str = 'left_out'
  buckets: Optional[buckets_lib.LengthBuckets] = None

  def __post_init__(self):
    checks.positive(
        max_batch_sec=self.max_batch_sec,
        max_utterance_sec=self.max_utterance_sec,
    )
    checks.in_range(0, 1, max_padding=self.max_padding)
    checks.positive_int(chunk_size=self.chunk_size, copies=self.copies)
    checks.one_of(_LABELS_TOO_LONG, labels_too_long=self.labels_too_long)
    if self.max_utterance_sec > self.max_batch_sec:
      raise ValueError(
          f'max_utterance_sec {self.max_utterance_sec} must be at most '
          f'max_batch_sec {self.max_batch_sec}: a batch holds whole utterances.'
      )
    if (
        self.buckets is not None
        and self.buckets.boundaries[-1] < self.max_frames
    ):
      raise ValueError(
          'the last of boundaries_sec must be at least max_utterance_sec '
          f'{self.max_utterance_sec}, found {self.buckets.boundaries_sec[-1]}.'
      )

  @property
  def max_frames(self) -> int:
    """Frames of the longest utterance that is trained on."""
    return log_mel.frames_of_seconds(self.max_utterance_sec)

  @property
  def longest(self) -> int:
    """Samples to keep of an utterance.

    More than the limit: still seen to be too long, but it does not blow up its
    chunk.
    """
    return log_mel.FRAME_LENGTH + (self.max_frames + 2) * log_mel.FRAME_SHIFT

  @tf.autograph.experimental.do_not_convert
  def training_batches(
      self,
      examples: tf.data.Dataset,
      *,
      seed: tf.Tensor,
      num_epochs: Optional[int] = None,
      read: Optional[records.Read] = None,
  ) -> tf.data.Dataset:
    """Shuffled, augmented batches.

    Args:
      examples: Dataset of `schema` elements: waveform int16 [N], transcript,
        utterance_id and client_id; or, with `read`, of places.
      seed: int32 [2]. The same examples and seed give the same batches; the id
        of the first example's client is folded in, so that clients differ.
      num_epochs: Passes over the examples, each with its own order and masks;
        None for batches without end (none at all from no examples).
      read: Reads records by their places.

    Returns:
      Dataset of `Batch`.
    """
    shuffled = self.open(
        self.with_lengths(examples), seed=seed, num_epochs=num_epochs
    )

    def prepare(chunk_number):
      # int32, as in a client's loop: fold_in depends on the type.
      number = tf.cast(chunk_number, tf.int32)
      prepared = self.prepare(
          self.read_chunk(shuffled, number, read=read),
          seed=tf.random.fold_in(shuffled.seed, number),
      )
      return chunk_number, prepared

    numbers = tf.data.Dataset.range(tf.cast(shuffled.num_chunks, tf.int64))
    batches = self.slice_all(
        numbers.map(prepare, num_parallel_calls=tf.data.AUTOTUNE)
    )
    return batches.map(_batch_alone).prefetch(1)

  @tf.autograph.experimental.do_not_convert
  def open(
      self,
      examples: tf.data.Dataset,
      *,
      seed: tf.Tensor,
      num_epochs: Optional[int] = None,
  ) -> 'Shuffled':
    """A client's rows in memory, to be read in random orders by chunks.

    Parts of `training_batches`, for loops that do the rest. A client's loop
    reads, prepares and slices chunks in its own graph: as functions of a
    dataset, which is opened anew in every round, they would be instantiated
    each time, and that takes longer than the work.

        shuffled = pipeline.open(pipeline.with_lengths(examples), seed=seed)
        for number in range(shuffled.num_chunks):
          chunk = pipeline.read_chunk(shuffled, number, read=read)
          prepared = pipeline.prepare(
              chunk, seed=fold_in(shuffled.seed, number)
          )
          for batch_num in range(num_batches(prepared)):
            batch = pipeline.slice_batch(prepared, batch_num)

    Args:
      examples: Those of `with_lengths`.
      seed: As in `training_batches`.
      num_epochs: As in `training_batches`; without end are 2^31 - 1 chunks.
    """
    # One more, so that there is one in any case.
    nobody = tf.data.Dataset.from_tensors(
        tf.nest.map_structure(
            lambda spec: tf.zeros(
                [size or 0 for size in spec.shape], spec.dtype
            ),
            examples.element_spec,
        )
    )
    everything = examples.concatenate(nobody)
    if records.OFFSET in examples.element_spec:
      everything = everything.batch(_ALL_ROWS)
    else:
      everything = everything.padded_batch(_MOST_PADDED_ROWS)
    rows = everything.with_options(_options()).get_single_element()
    count = tf.shape(rows[schema.CLIENT_ID])[0] - 1
    per_epoch = -(-count * self.copies // self.chunk_size)
    if num_epochs is None:
      num_chunks = tf.where(count > 0, tf.int32.max, 0)
    else:
      num_chunks = per_epoch * num_epochs
    client_id = rows[schema.CLIENT_ID][0]
    client_number = tf.cast(
        tf.strings.to_hash_bucket_fast(client_id, 2**31 - 1), tf.int32
    )
    # Of an empty dataset 0.
    client_number = tf.where(count > 0, client_number, 0)
    order_seed, seed = tf.unstack(
        tf.random.split(tf.random.fold_in(seed, client_number), 2)
    )
    return Shuffled(
        rows, count, per_epoch, num_chunks, order_seed, seed, client_id
    )

  @tf.autograph.experimental.do_not_convert
  def read_chunk(
      self,
      shuffled: 'Shuffled',
      number: tf.Tensor,
      *,
      read: Optional[records.Read] = None,
  ) -> dict[str, tf.Tensor]:
    """A raw chunk for `prepare`.

    Args:
      shuffled: Rows that `open` returned.
      number: int32 [], below `shuffled.num_chunks`: a chunk of the first epoch,
        then those of the second, and so on.
      read: Reads records by their places, if rows are places.
    """
    epoch = number // shuffled.per_epoch
    order = tf.random.experimental.stateless_shuffle(
        tf.range(shuffled.count * self.copies) % shuffled.count,
        tf.random.fold_in(shuffled.order_seed, epoch),
    )
    start = (number - epoch * shuffled.per_epoch) * self.chunk_size
    chosen = order[start : start + self.chunk_size]
    rows = {
        key: tf.gather(value, chosen) for key, value in shuffled.rows.items()
    }
    if records.OFFSET in rows:
      return read(rows, self.longest)
    most = tf.reduce_max(rows['length'])
    return dict(rows, waveform=rows[schema.WAVEFORM][:, :most])

  @tf.autograph.experimental.do_not_convert
  def evaluation_batches(self, examples: tf.data.Dataset) -> tf.data.Dataset:
    """Batches of every example once, neither shuffled nor augmented.

    Utterances come out in another order than they went in (sorted within a
    chunk); `utterance_id` tells them apart. None is left out for its labels or
    its length: all keep their features, and `example_weights` say which had a
    usable loss.

    Args:
      examples: As in `training_batches`; or with features, float32 [T, F], in
        place of waveforms.

    Returns:
      Dataset of `Batch`.
    """
    def prepare(number, chunk):
      seed = tf.zeros([2], tf.int32)
      return number, self.prepare(chunk, seed=seed, is_training=False)

    measured = self.with_lengths(examples, is_training=False)
    chunks = measured.padded_batch(self.chunk_size).enumerate()
    batches = self.slice_all(
        chunks.map(prepare, num_parallel_calls=tf.data.AUTOTUNE),
        is_training=False,
    )
    return batches.map(_batch_alone).prefetch(1)

  @tf.autograph.experimental.do_not_convert
  def with_lengths(
      self, examples: tf.data.Dataset, *, is_training: bool = True
  ) -> tf.data.Dataset:
    """Examples with their `length`, int32 [], of samples or of frames.

    Places are left as they are.

    Args:
      examples: As in `training_batches` or `evaluation_batches`.
      is_training: Whether to cut those that are too long to be trained on.
    """
    if records.OFFSET in examples.element_spec:
      return examples

    def cut_and_measure(example):
      if FEATURES in example:
        return dict(example, length=tf.shape(example[FEATURES])[0])
      waveform = example[schema.WAVEFORM]
      if is_training:
        waveform = waveform[: self.longest]
      return dict(example, waveform=waveform, length=tf.shape(waveform)[0])

    return examples.map(cut_and_measure)

  @tf.autograph.experimental.do_not_convert
  def prepare(
      self, chunk, *, seed: tf.Tensor, is_training: bool = True
  ) -> 'Prepared':
    """A raw chunk, sorted by length and packed, ready to be sliced.

    Args:
      chunk: As `read_chunk` gives it.
      seed: int32 [2], this chunk's.
      is_training: Whether to shuffle batches and leave utterances out.
    """
    augment_seed, order_seed, batch_seed = tf.unstack(tf.random.split(seed, 3))
    # A placeholder has frames, however short the utterance it stands for.
    if FEATURES in chunk:
      lengths = chunk['length']
      num_samples = log_mel.samples_of_frames(lengths)
      paddings = [[0, 0], [0, buckets_lib.PLACEHOLDER_FRAMES], [0, 0]]
      sounds = tf.pad(chunk[FEATURES], paddings)
    else:
      num_samples = chunk['length']
      lengths = log_mel.num_frames(num_samples)
      sounds = tf.pad(chunk['waveform'], [[0, 0], [0, _PLACEHOLDER_SAMPLES]])
    labels, label_lengths = self._labels(chunk['transcript'])
    output_lengths = self.output_lengths(lengths)
    needed = 1
    is_spelled = tf.fill(tf.shape(lengths), True)
    if self.tokenizer is not None:
      is_spelled = label_lengths > 0
      if self.labels_too_long == 'left_out':
        needed = min_frames(labels, label_lengths)
    is_usable = (
        is_spelled
        & (lengths <= self.max_frames)
        & (output_lengths >= needed)
    )
    has_features = is_usable if is_training else output_lengths > 0
    lengths = tf.where(has_features, lengths, buckets_lib.PLACEHOLDER_FRAMES)
    num_samples = tf.where(has_features, num_samples, _PLACEHOLDER_SAMPLES)
    order = tf.argsort(num_samples, stable=True)
    ordered = lambda value: tf.gather(value, order)
    num_samples = ordered(num_samples)
    starts = batch_starts(
        num_samples,
        log_mel.samples_of_seconds(self.max_batch_sec),
        max_padding=self.max_padding,
    )
    ends = tf.concat([starts[1:], [tf.size(order)]], axis=0)
    bounds = tf.stack([starts, ends], axis=1)
    if is_training:
      bounds = tf.random.experimental.stateless_shuffle(bounds, order_seed)
    utterances = dict(
        client_id=chunk['client_id'],
        example_weights=tf.cast(is_usable, tf.float32),
        feature_lengths=lengths,
        label_lengths=tf.where(is_usable, label_lengths, 0),
        labels=tf.where(is_usable[:, tf.newaxis], labels, 0),
        transcript=chunk['transcript'],
        utterance_id=chunk['utterance_id'],
    )
    return Prepared(
        {key: ordered(value) for key, value in utterances.items()},
        ordered(sounds),
        num_samples,
        ordered(has_features),
        bounds,
        batch_seed,
        augment_seed,
    )

  @tf.autograph.experimental.do_not_convert
  def slice_batch(
      self,
      prepared: 'Prepared',
      number: tf.Tensor,
      *,
      is_training: bool = True,
      is_augmented: Optional[tf.Tensor] = None,
  ) -> Batch:
    """The batch of this number, with features and masks.

    Args:
      prepared: Chunk that `prepare` returned.
      number: int32 [], below `num_batches`.
      is_training: Whether to augment.
      is_augmented: Whether to augment, bool []; None: yes. All else, and the
        masks of other batches, are the same either way.
    """
    start, end = tf.unstack(prepared.bounds[number])
    batch = {
        key: value[start:end] for key, value in prepared.utterances.items()
    }
    lengths = batch['feature_lengths']
    sounds = prepared.sounds[start:end]
    if sounds.shape.rank == 3:
      features = sounds[:, : tf.reduce_max(lengths)]
    else:
      num_samples = prepared.num_samples[start:end]
      features, _ = log_mel.log_mel(
          sounds[:, : tf.reduce_max(num_samples)], num_samples
      )
    if is_training and self.augment is not None:
      augment_seed = tf.random.fold_in(prepared.augment_seed, number)
      augmented = lambda: self.augment(features, lengths, augment_seed)
      if is_augmented is None:
        features = augmented()
      else:
        features = tf.cond(is_augmented, augmented, lambda: features)
    has_features = prepared.has_features[start:end, tf.newaxis, tf.newaxis]
    batch['features'] = tf.where(has_features, features, 0)
    most = tf.reduce_max(batch['label_lengths'])
    batch['labels'] = batch['labels'][:, :most]
    batch['seed'] = tf.random.fold_in(prepared.seed, number)
    return Batch(sorted(batch.items()))

  @tf.autograph.experimental.do_not_convert
  def pad_to_bucket(self, batch: Batch) -> Batch:
    """The batch padded to its bucket; as it is if there are no buckets."""
    if self.buckets is None:
      return batch
    return self.buckets.pad(
        batch,
        max_batch_frames=log_mel.frames_of_seconds(self.max_batch_sec),
        output_lengths=self.output_lengths,
    )

  @tf.autograph.experimental.do_not_convert
  def slice_all(
      self,
      chunks: tf.data.Dataset,
      *,
      is_training: bool = True,
      skip: int = 0,
      num_at_once: int = 2,
  ) -> tf.data.Dataset:
    """Chunks to their batches, in the order of `bounds`.

    Training batches are padded to their buckets.

    Args:
      chunks: Dataset of (chunk's number, `Prepared`).
      is_training: Whether to augment.
      skip: The first so many batches are left out, and are not computed.
      num_at_once: Batches that are computed at the same time.

    Returns:
      Dataset of (chunk's number, batch's number in it int64 [], `Batch`).
    """
    # The function given to flat_map has no function inside, which tf.data would
    # instantiate anew for each chunk.
    numbered = chunks.flat_map(
        lambda number, chunk: tf.data.Dataset.from_tensors((number, chunk))
        .repeat(tf.shape(chunk.bounds, tf.int64)[0])
        .enumerate()
    )
    slice_batch = self._slice_batch
    batches = numbered.skip(skip).map(
        lambda number, chunk: (
            chunk[0],
            number,
            slice_batch(chunk[1], tf.cast(number, tf.int32), is_training),
        ),
        num_parallel_calls=num_at_once,
    )
    return batches.with_options(_options())

  @functools.cached_property
  def _slice_batch(self) -> Callable[..., Batch]:
    """`slice_batch` for datasets: traced once for all of the same chunks.

    Several loaders, a dataset that is opened again for each evaluation, and one
    that goes on elsewhere share the trace.
    """

    def slice_batch(chunk, number, is_training):
      batch = self.slice_batch(chunk, number, is_training=is_training)
      return self.pad_to_bucket(batch) if is_training else batch

    return tf.function(slice_batch, autograph=False)

  def _labels(self, transcripts: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Labels int32 [B, U], padded with 0, and their lengths int32 [B]."""
    if self.tokenizer is None:
      lengths = tf.zeros_like(transcripts, tf.int32)
      return tf.zeros([tf.size(transcripts), 0], tf.int32), lengths
    ids = self.tokenizer.encode(transcripts)
    check = tf.debugging.assert_non_negative(
        ids.flat_values,
        message='A transcript has a character that is not a token.',
    )
    with tf.control_dependencies([check]):
      labels = ids.to_tensor()
    return labels, tf.cast(ids.row_lengths(), tf.int32)


_PLACEHOLDER_SAMPLES = log_mel.samples_of_frames(buckets_lib.PLACEHOLDER_FRAMES)
_ALL_ROWS = 2**62
# Most utterances of a dataset in memory; TensorFlow reserves space for all. One
# with more raises an error.
_MOST_PADDED_ROWS = 2**16


class Shuffled(NamedTuple):
  """A client's rows, and how they are put in order; see `Pipeline.open`.

  Attributes:
    rows: Rows by name, [count + 1, ...]; the last one is no row.
    count: int32 [].
    per_epoch: Chunks of an epoch, int32 []; the last one may be smaller.
    num_chunks: Number of chunks of all epochs, int32 [].
    order_seed: int32 [2], of the epochs' orders.
    seed: int32 [2], the client's for all else.
    client_id: string [], whose they are; of an empty dataset ''.
  """

  rows: dict[str, tf.Tensor]
  count: tf.Tensor
  per_epoch: tf.Tensor
  num_chunks: tf.Tensor
  order_seed: tf.Tensor
  seed: tf.Tensor
  client_id: tf.Tensor


class Prepared(NamedTuple):
  """A chunk, ready to be sliced into batches: rows sorted by length.

  Attributes:
    utterances: What `Batch` has, but for features and seed.
    sounds: Waveforms, int16 [n, N], or features, float32 [n, T, F].
    num_samples: int32 [n], ascending.
    has_features: bool [n]; false for placeholders.
    bounds: int32 [batches, 2], first and past-the-last row of each batch.
    seed: int32 [2], of the models' randomness.
    augment_seed: int32 [2].
  """

  utterances: dict[str, tf.Tensor]
  sounds: tf.Tensor
  num_samples: tf.Tensor
  has_features: tf.Tensor
  bounds: tf.Tensor
  seed: tf.Tensor
  augment_seed: tf.Tensor


@tf.autograph.experimental.do_not_convert
def num_batches(prepared: Prepared) -> tf.Tensor:
  """Number of batches of a chunk, int32 []."""
  return tf.shape(prepared.bounds)[0]


def _batch_alone(chunk, number, batch: Batch) -> Batch:
  del chunk, number
  return batch


def batch_starts(
    lengths: tf.Tensor, max_size: int, *, max_padding: float
) -> tf.Tensor:
  """First positions of greedy batches.

  The padded size of a batch, its utterances times its longest (its last), is
  at most max_size, and its padding at most a share max_padding of it, unless a
  single utterance exceeds max_size.

  Args:
    lengths: int32 [n], of utterances in samples, ascending.
    max_size: Padded samples of a batch.
    max_padding: Share of them, in [0, 1].

  Returns:
    int32 [number of batches], ascending from 0.
  """
  with tf.device(buckets_lib.HOST):
    size = tf.size(lengths)
    lengths = tf.cast(lengths, tf.int64)
    # What lies before each position.
    before = tf.cumsum(lengths, exclusive=True)

    def step(position, start, starts):
      count = tf.cast(position - start + 1, tf.int64)
      padded = count * lengths[position]
      used = before[position] + lengths[position] - before[start]
      used = tf.cast(used, tf.float32)
      is_padding = used < (1 - max_padding) * tf.cast(padded, tf.float32)
      is_new = ((padded > max_size) | is_padding) & (position > start)
      start = tf.where(is_new, position, start)
      starts = tf.cond(
          is_new,
          lambda: tf.concat([starts, [position]], axis=0),
          lambda: starts,
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


def min_frames(labels: tf.Tensor, label_lengths: tf.Tensor) -> tf.Tensor:
  """Fewest output frames that can spell each label sequence.

  Its length and its repeats: between two equal labels CTC needs a blank (Graves
  et al. 2006).

  Args:
    labels: int32 [B, U]; what stands at or past a length is ignored.
    label_lengths: int32 [B].

  Returns:
    int32 [B].
  """
  # Not `==`, which compares tensors by identity while TFF traces.
  is_repeat = tf.equal(labels[:, 1:], labels[:, :-1])
  is_repeat &= tf.sequence_mask(label_lengths, tf.shape(labels)[1])[:, 1:]
  repeats = tf.reduce_sum(tf.cast(is_repeat, tf.int32), axis=1)
  return label_lengths + repeats


def _options() -> tf.data.Options:
  """Without tf.data's rewriting of its graph.

  A client's dataset is short, and opened anew in every round: the rewrite
  takes longer than what it saves.
  """
  options = tf.data.Options()
  options.experimental_optimization.apply_default_optimizations = False
  return options

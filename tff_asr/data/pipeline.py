"""Input pipeline: utterances to padded batches of augmented features.

Plain tf.data in core ops, built inside the client's graph. Three steps decide
which utterances share a batch:

  1. `Pipeline.read_chunk` takes `chunk_size` utterances at a time from a random
     order of all of a client's utterances, another one in each epoch.
  2. `Pipeline.pack` sorts a chunk by length.
  3. `batch_starts` cuts the sorted chunk greedily: a batch ends where its
     padded audio would exceed `max_batch_sec`, or its padding the share
     `max_padding`. Audio is counted in samples.

Then `Pipeline.slice_batch` computes a batch's features and masks when its step
is due: the spectra of a whole chunk are gigabytes. Evaluation does the same in
the order of the data. All randomness comes from one stateless seed.

An utterance that cannot be trained on (its transcript is empty, it is too long,
or it has fewer output frames than its labels need) keeps its row, as a
placeholder of weight 0, so that metrics count what was left out.

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
from tff_asr.features import front_end as front_end_lib
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


def batch_spec(feature_dim: int = log_mel.NUM_MEL_BINS) -> Batch:
  """The tensor specs of a batch of any size.

  A function traced for this has one graph, and one rounding, for all batches. A
  function traced for the sizes that come would round by the sizes before.
  """
  spec = tf.TensorSpec
  return Batch(
      client_id=spec([None], tf.string),
      example_weights=spec([None], tf.float32),
      feature_lengths=spec([None], tf.int32),
      features=spec([None, None, feature_dim], tf.float32),
      label_lengths=spec([None], tf.int32),
      labels=spec([None, None], tf.int32),
      seed=spec([2], tf.int32),
      transcript=spec([None], tf.string),
      utterance_id=spec([None], tf.string),
  )


Transcribe = Callable[
    [tf.Tensor, tf.Tensor], tuple[tf.Tensor, tf.Tensor, tf.Tensor]
]
"""From features float32 [B, T, F] and their lengths int32 [B] to labels int32
[B, U], their lengths int32 [B], and whether to train on each, bool [B]."""

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
    augment_waveform: Augmentation (`features.waveform_augment`) of waveforms
      int16 [n, N], num_samples [n] and a seed [2] for training, or None. An
      utterance that it makes too long, or too short for its labels, stays as it
      is.
    chunk_size: Examples that are sorted and packed together.
    repeats: How often each utterance comes in a pass, in one order: 2 in the
      published code's loader (docs/recipe.md).
    labels_too_long: 'left_out' leaves out utterances with more labels than
      output frames; 'kept' keeps them, as in the published code, for a loss
      that has a value for them (`models.ctc`).
    buckets: Sizes that training batches are padded to; None: each batch keeps
      its own size.
    front_end: Computes features from waveforms. Examples may have its features
      in place of a waveform.
    read: Reads a client's records where its examples are record locations
      (`SpeechClientData.read`). None: examples are in memory.
  """

  tokenizer: Optional[tokenizer_lib.Tokenizer]
  output_lengths: Callable[[tf.Tensor], tf.Tensor]
  max_batch_sec: float
  max_utterance_sec: float = 30.0
  max_padding: float = 1.0
  augment: Optional[
      Callable[[tf.Tensor, tf.Tensor, tf.Tensor], tf.Tensor]
  ] = None
  augment_waveform: Optional[
      Callable[
          [tf.Tensor, tf.Tensor, tf.Tensor], tuple[tf.Tensor, tf.Tensor]
      ]
  ] = None
  chunk_size: int = 64
  repeats: int = 1
  labels_too_long: str = 'left_out'
  buckets: Optional[buckets_lib.LengthBuckets] = None
  front_end: front_end_lib.FrontEnd = front_end_lib.build_log_mel()
  read: Optional[records.Read] = None

  def __post_init__(self):
    checks.positive(
        max_batch_sec=self.max_batch_sec,
        max_utterance_sec=self.max_utterance_sec,
    )
    self.front_end.check_duration(
        self.max_utterance_sec, of='max_utterance_sec'
    )
    checks.in_range(0, 1, max_padding=self.max_padding)
    if self.buckets is not None:
      # The same boundaries, in frames of this pipeline's front end.
      buckets = dataclasses.replace(self.buckets, front_end=self.front_end)
      object.__setattr__(self, 'buckets', buckets)
    checks.positive_int(chunk_size=self.chunk_size, repeats=self.repeats)
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

  def check_features(
      self,
      stored: Optional[schema.StoredFeatures],
      *,
      of: str,
      is_training: bool,
  ) -> None:
    """Raises ValueError if stored features are not this front end's.

    Args:
      stored: What the records hold in place of audio; None: audio.
      of: Names the corpus in the message.
      is_training: Whether it is trained on. Then waveforms that are augmented
        must not be stored features.
    """
    if stored is None:
      return
    if is_training and self.augment_waveform is not None:
      raise ValueError(
          f'AUGMENT_WAVEFORM needs audio, but {of} holds features: name the '
          'corpus of audio, or set it to None.'
      )
    if stored.identity != self.front_end.identity:
      raise ValueError(
          f'{of} holds features of another front end ({stored.identity}) than '
          f'FRONT_END ({self.front_end.identity}): name the corpus of audio, '
          'or compute features again with data_tools.embed.'
      )

  @property
  def batch_spec(self) -> Batch:
    """Specs of this pipeline's batches; see `batch_spec`."""
    return batch_spec(self.front_end.feature_dim)

  @property
  def max_frames(self) -> int:
    """Frames of the longest utterance that is trained on."""
    return self.front_end.frames_of_seconds(self.max_utterance_sec)

  @property
  def max_samples(self) -> int:
    """Samples to keep of an utterance: enough to see that it is too long."""
    # More than max_frames, so that a cut utterance still counts as too long.
    front_end = self.front_end
    return front_end.window + (self.max_frames + 2) * front_end.frame_shift

  @tf.autograph.experimental.do_not_convert
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
        utterance_id and client_id; or record locations, if the pipeline reads.
      seed: int32 [2]. The same examples and seed give the same batches; the id
        of the first example's client is folded in, so that clients differ.
      num_epochs: Passes over the examples, each with its own order and masks;
        None for batches without end (none at all from no examples).

    Returns:
      Dataset of `Batch`.
    """
    client = self.open_client(
        self.with_lengths(examples), seed=seed, num_epochs=num_epochs
    )

    def pack(chunk_number):
      # int32, as in a client's loop: fold_in depends on the type.
      number = tf.cast(chunk_number, tf.int32)
      return chunk_number, self.pack(
          self.read_chunk(client, number),
          seed=tf.random.fold_in(client.seed, number),
      )

    # `range` takes int64 only.
    numbers = tf.data.Dataset.range(tf.cast(client.num_chunks, tf.int64))
    batches = self.slice_all(
        numbers.map(pack, num_parallel_calls=tf.data.AUTOTUNE)
    )
    return batches.map(_batch_alone).prefetch(1)

  @tf.autograph.experimental.do_not_convert
  def open_client(
      self,
      examples: tf.data.Dataset,
      *,
      seed: tf.Tensor,
      num_epochs: Optional[int] = None,
  ) -> 'ClientExamples':
    """A client's examples, to be read in random orders by chunks.

    `training_batches` without datasets, for loops over a client's batches: the
    functions of a dataset would be instantiated in every round, and that takes
    longer than the work.

        client = pipeline.open_client(
            pipeline.with_lengths(examples), seed=seed
        )
        for number in range(client.num_chunks):
          chunk = pipeline.pack(
              pipeline.read_chunk(client, number),
              seed=fold_in(client.seed, number),
          )
          for batch_num in range(num_batches(chunk)):
            batch = pipeline.slice_batch(chunk, batch_num)

    Args:
      examples: Returned by `with_lengths`.
      seed: As in `training_batches`.
      num_epochs: As in `training_batches`; None: 2^31 - 1 chunks.
    """
    rows = _all_rows(examples)
    count = tf.shape(rows[schema.CLIENT_ID])[0] - 1
    per_epoch, num_chunks = self._count_chunks(count, num_epochs)
    client_id = rows[schema.CLIENT_ID][0]
    # Clients of a round share its seed; their ids make their draws differ.
    client_number = tf.cast(
        tf.strings.to_hash_bucket_fast(client_id, 2**31 - 1), tf.int32
    )
    # The padding row's id does not count.
    client_number = tf.where(count > 0, client_number, 0)
    order_seed, seed = tf.unstack(
        tf.random.split(tf.random.fold_in(seed, client_number), 2)
    )
    return ClientExamples(
        rows, count, per_epoch, num_chunks, order_seed, seed, client_id
    )

  @tf.autograph.experimental.do_not_convert
  def select(
      self,
      client: 'ClientExamples',
      rows: tf.Tensor,
      *,
      num_epochs: Optional[int] = None,
  ) -> 'ClientExamples':
    """The client with some of its examples only.

    Args:
      client: Examples that `open_client` returned.
      rows: Numbers of examples, int32 [n], each below `client.count`.
      num_epochs: As in `open_client`.
    """
    count = tf.size(rows)
    # The padding row stays the last one.
    kept = tf.concat([rows, [client.count]], axis=0)
    per_epoch, num_chunks = self._count_chunks(count, num_epochs)
    return client._replace(
        rows={
            key: tf.gather(value, kept) for key, value in client.rows.items()
        },
        count=count,
        per_epoch=per_epoch,
        num_chunks=num_chunks,
    )

  def _count_chunks(
      self, count: tf.Tensor, num_epochs: Optional[int]
  ) -> tuple[tf.Tensor, tf.Tensor]:
    """Chunks of an epoch over so many examples, and of all epochs."""
    per_epoch = -(-count * self.repeats // self.chunk_size)
    if num_epochs is None:
      # The largest int32 stands for "without end": the caller stops reading.
      return per_epoch, tf.where(count > 0, tf.int32.max, 0)
    return per_epoch, per_epoch * num_epochs

  @tf.autograph.experimental.do_not_convert
  def read_chunk(
      self,
      client: 'ClientExamples',
      number: tf.Tensor,
      *,
      is_training: bool = True,
  ) -> dict[str, tf.Tensor]:
    """A raw chunk for `pack`.

    Args:
      client: Examples that `open_client` returned.
      number: int32 [], below `client.num_chunks`: first the chunks of the first
        epoch, then those of the second, and so on.
      is_training: Whether to shuffle, and to cut utterances that are too long
        to be trained on.
    """
    epoch = number // client.per_epoch
    order = tf.range(client.count * self.repeats) % client.count
    if is_training:
      # Drawn again for each chunk, so that any chunk can be read without those
      # before it. Repeats are shuffled together: copies of an utterance may be
      # in different chunks.
      order = tf.random.experimental.stateless_shuffle(
          order, tf.random.fold_in(client.order_seed, epoch)
      )
    start = (number - epoch * client.per_epoch) * self.chunk_size
    # The last chunk of an epoch may be smaller.
    chosen = order[start : start + self.chunk_size]
    rows = {
        key: tf.gather(value, chosen) for key, value in client.rows.items()
    }
    if records.OFFSET in rows:
      most = self.max_samples if is_training else tf.int32.max
      return self.read(rows, most)
    # Rows in memory are padded to the client's longest utterance.
    most = tf.reduce_max(rows['length'])
    if schema.FEATURES in rows:
      frames = self.front_end.num_frames(most)
      return dict(rows, features=rows[schema.FEATURES][:, :frames])
    return dict(rows, waveform=rows[schema.WAVEFORM][:, :most])

  @tf.autograph.experimental.do_not_convert
  def evaluation_batches(self, examples: tf.data.Dataset) -> tf.data.Dataset:
    """Batches of every example once, neither shuffled nor augmented.

    Utterances are sorted within a chunk; `utterance_id` tells them apart. None
    is left out because of its labels or its length: all keep their features,
    and `example_weights` say which have a usable loss.

    Args:
      examples: As in `training_batches`; or with features, float32 [T, F], in
        place of waveforms.

    Returns:
      Dataset of `Batch`.
    """
    def pack(number, chunk):
      # A fixed seed: evaluations of two models have the same batches.
      seed = tf.zeros([2], tf.int32)
      return number, self.pack(chunk, seed=seed, is_training=False)

    # Whole waveforms: a cut one would be transcribed in part.
    measured = self.with_lengths(examples, is_training=False)
    chunks = measured.padded_batch(self.chunk_size).enumerate()
    batches = self.slice_all(
        chunks.map(pack, num_parallel_calls=tf.data.AUTOTUNE),
        is_training=False,
    )
    return batches.map(_batch_alone).prefetch(1)

  @tf.autograph.experimental.do_not_convert
  def with_lengths(
      self, examples: tf.data.Dataset, *, is_training: bool = True
  ) -> tf.data.Dataset:
    """Examples with their `length` in samples, int32 [].

    Record locations are returned unchanged.

    Args:
      examples: As in `training_batches` or `evaluation_batches`.
      is_training: Whether to cut those that are too long to be trained on.
    """
    if records.OFFSET in examples.element_spec:
      return examples

    def cut_and_measure(example):
      if schema.FEATURES in example:
        frames = tf.shape(example[schema.FEATURES])[0]
        return dict(example, length=self.front_end.samples_of_frames(frames))
      waveform = example[schema.WAVEFORM]
      if is_training:
        waveform = waveform[: self.max_samples]
      return dict(example, waveform=waveform, length=tf.shape(waveform)[0])

    return examples.map(cut_and_measure)

  @tf.autograph.experimental.do_not_convert
  def pack(
      self,
      chunk: dict[str, tf.Tensor],
      *,
      seed: tf.Tensor,
      is_training: bool = True,
  ) -> 'PackedChunk':
    """A raw chunk, sorted by length and cut into batches.

    Args:
      chunk: Returned by `read_chunk`.
      seed: int32 [2], of this chunk.
      is_training: Whether to shuffle batches and leave utterances out.
    """
    # Three seeds, so that a run without SpecAugment has the same order of
    # batches and the same dropout.
    augment_seed, order_seed, batch_seed = tf.unstack(tf.random.split(seed, 3))
    labels, label_lengths = self._labels(chunk['transcript'])
    if is_training and self.augment_waveform is not None:
      # First: speed changes lengths, by which the chunk is sorted.
      chunk = self._with_augmented_waveforms(
          chunk, labels, label_lengths, seed=seed
      )
    lengths, num_samples, inputs = self._padded_inputs(chunk)
    is_usable = self._is_usable(lengths, labels, label_lengths)
    # Evaluation decodes utterances whatever their labels, so only those without
    # an output frame become placeholders.
    has_features = (
        is_usable if is_training else self.output_lengths(lengths) > 0
    )
    lengths = tf.where(
        has_features, lengths, self.front_end.placeholder_frames
    )
    num_samples = tf.where(
        has_features, num_samples, self._placeholder_samples
    )
    # Stable, so that the order does not depend on the sorting algorithm.
    order = tf.argsort(num_samples, stable=True)
    ordered = lambda value: tf.gather(value, order)
    num_samples = ordered(num_samples)
    # Cut after placeholders got their few frames: an utterance that is left out
    # takes little room in its batch.
    bounds = self._batch_bounds(num_samples)
    if is_training:
      # Otherwise each chunk would go from short to long utterances.
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
    return PackedChunk(
        {key: ordered(value) for key, value in utterances.items()},
        ordered(inputs),
        num_samples,
        ordered(has_features),
        bounds,
        batch_seed,
        augment_seed,
    )

  def _batch_bounds(self, num_samples: tf.Tensor) -> tf.Tensor:
    """Each batch's first utterance and the one after its last: int32 [N, 2]."""
    starts = batch_starts(
        num_samples,
        log_mel.samples_of_seconds(self.max_batch_sec),
        max_padding=self.max_padding,
    )
    ends = tf.concat([starts[1:], [tf.size(num_samples)]], axis=0)
    return tf.stack([starts, ends], axis=1)

  @tf.autograph.experimental.do_not_convert
  def slice_batch(
      self,
      chunk: 'PackedChunk',
      number: tf.Tensor,
      *,
      is_training: bool = True,
      is_augmented: Optional[tf.Tensor] = None,
      transcribe: Optional[Transcribe] = None,
  ) -> Batch:
    """The batch of this number, with features and masks.

    Args:
      chunk: Returned by `pack`.
      number: int32 [], below `num_batches`.
      is_training: Whether to augment.
      is_augmented: Whether to augment, bool []; None: yes. All else, and the
        masks of other batches, are the same either way.
      transcribe: Replaces the labels, and makes placeholders of the utterances
        that are not to be trained on. If None, the chunk's labels stay.
    """
    start, end = tf.unstack(chunk.bounds[number])
    batch = {
        key: value[start:end] for key, value in chunk.utterances.items()
    }
    lengths = batch['feature_lengths']
    inputs = chunk.inputs[start:end]
    # Features (rank 3) or waveforms, cut to this batch's longest: the chunk is
    # padded to its own longest.
    if inputs.shape.rank == 3:
      # Stored features are float16 until here: a chunk is large.
      features = tf.cast(inputs[:, : tf.reduce_max(lengths)], tf.float32)
    else:
      num_samples = chunk.num_samples[start:end]
      features, _ = self.front_end.features(
          inputs[:, : tf.reduce_max(num_samples)], num_samples
      )
    if transcribe is not None:
      # Before SpecAugment: labels come from all that was said.
      labels, label_lengths, is_usable = transcribe(features, lengths)
      is_usable &= batch['example_weights'] > 0
      batch |= dict(
          example_weights=tf.cast(is_usable, tf.float32),
          label_lengths=tf.where(is_usable, label_lengths, 0),
          labels=tf.where(is_usable[:, tf.newaxis], labels, 0),
      )
    if is_training and self.augment is not None:
      augment_seed = tf.random.fold_in(chunk.augment_seed, number)
      augmented = lambda: self.augment(features, lengths, augment_seed)
      if is_augmented is None:
        features = augmented()
      else:
        features = tf.cond(is_augmented, augmented, lambda: features)
    # SpecAugment and the front end may have written into placeholders.
    has_features = chunk.has_features[start:end, tf.newaxis, tf.newaxis]
    batch['features'] = tf.where(has_features, features, 0)
    # Labels are padded to the longest of the chunk.
    most = tf.reduce_max(batch['label_lengths'])
    batch['labels'] = batch['labels'][:, :most]
    # Dropout differs by batch and does not depend on SpecAugment.
    batch['seed'] = tf.random.fold_in(chunk.seed, number)
    return Batch(sorted(batch.items()))

  @tf.autograph.experimental.do_not_convert
  def pad_to_bucket(self, batch: Batch) -> Batch:
    """The batch padded to its bucket; as it is if there are no buckets."""
    if self.buckets is None:
      return batch
    return self.buckets.pad(
        batch,
        max_batch_frames=self.front_end.frames_of_seconds(self.max_batch_sec),
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
      chunks: Dataset of (chunk's number, `PackedChunk`).
      is_training: Whether to augment.
      skip: Number of first batches that are neither computed nor returned.
      num_at_once: Batches that are computed at the same time.

    Returns:
      Dataset of (chunk's number, batch's number in it int64 [], `Batch`).
    """
    # The function given to flat_map has no function inside, which tf.data would
    # instantiate again for each chunk.
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
    return batches.with_options(records.plain_options())

  @functools.cached_property
  def _slice_batch(self) -> Callable[..., Batch]:
    """`slice_batch` for datasets, traced once for chunks of equal specs.

    Loaders and datasets that evaluations open again share the trace.
    """

    def slice_batch(chunk, number, is_training):
      batch = self.slice_batch(chunk, number, is_training=is_training)
      return self.pad_to_bucket(batch) if is_training else batch

    # No autograph: the code has no Python loop over tensors.
    return tf.function(slice_batch, autograph=False)

  @property
  def _placeholder_samples(self) -> int:
    return self.front_end.samples_of_frames(self.front_end.placeholder_frames)

  def _with_augmented_waveforms(
      self,
      chunk: dict[str, tf.Tensor],
      labels: tf.Tensor,
      label_lengths: tf.Tensor,
      *,
      seed: tf.Tensor,
  ) -> dict[str, tf.Tensor]:
    """The chunk with augmented waveforms, where they can be trained on."""
    if schema.FEATURES in chunk:
      raise ValueError('waveforms can be augmented, but not stored features.')
    before, num_samples = chunk[schema.WAVEFORM], chunk['length']
    after, changed = self.augment_waveform(
        before, num_samples, tf.random.fold_in(seed, _WAVEFORM_STREAM)
    )
    is_usable = lambda samples: self._is_usable(
        self.front_end.num_frames(samples), labels, label_lengths
    )
    # A waveform that is too long was cut: it must stay too long.
    is_changed = is_usable(changed) & is_usable(num_samples)
    size = tf.maximum(tf.shape(before)[1], tf.shape(after)[1])
    pad = lambda waveforms: tf.pad(
        tf.cast(waveforms, before.dtype),
        [[0, 0], [0, size - tf.shape(waveforms)[1]]],
    )
    waveforms = tf.where(is_changed[:, tf.newaxis], pad(after), pad(before))
    lengths = tf.where(is_changed, changed, num_samples)
    return dict(chunk, waveform=waveforms, length=lengths)

  def _padded_inputs(
      self, chunk: dict[str, tf.Tensor]
  ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Lengths in frames and in samples, and the features or waveforms."""
    # A placeholder is padded to some frames even if its utterance has fewer.
    if schema.FEATURES in chunk:
      frames = self.front_end.placeholder_frames
      inputs = tf.pad(chunk[schema.FEATURES], [[0, 0], [0, frames], [0, 0]])
    else:
      inputs = tf.pad(
          chunk[schema.WAVEFORM], [[0, 0], [0, self._placeholder_samples]]
      )
    num_samples = chunk['length']
    return self.front_end.num_frames(num_samples), num_samples, inputs

  def _is_usable(
      self, lengths: tf.Tensor, labels: tf.Tensor, label_lengths: tf.Tensor
  ) -> tf.Tensor:
    """Whether utterances of these frames can be trained on, bool [n]."""
    # In frames: `max_samples` has cut what is longer.
    is_usable = lengths <= self.max_frames
    min_output_frames = 1
    # Without a tokenizer nothing is transcribed, and transcripts do not count.
    if self.tokenizer is not None:
      # From an empty transcript a model would learn to emit blanks only.
      is_usable &= label_lengths > 0
      if self.labels_too_long == 'left_out':
        min_output_frames = min_frames(labels, label_lengths)
    return is_usable & (self.output_lengths(lengths) >= min_output_frames)

  def _labels(self, transcripts: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Labels int32 [B, U], padded with 0, and their lengths int32 [B]."""
    if self.tokenizer is None:
      lengths = tf.zeros_like(transcripts, tf.int32)
      # Rank 2, so that all batches have one type.
      return tf.zeros([tf.size(transcripts), 0], tf.int32), lengths
    ids = self.tokenizer.encode(transcripts)
    # In the graph, since the transcripts are known only there.
    check = tf.debugging.assert_non_negative(
        ids.flat_values,
        message='A transcript has a character that is not a token.',
    )
    with tf.control_dependencies([check]):
      labels = ids.to_tensor()
    return labels, tf.cast(ids.row_lengths(), tf.int32)


# Folded into a chunk's seed, which is also split.
_WAVEFORM_STREAM = 1

# More than any client has; `batch` needs some number.
_ALL_ROWS = 2**62
# Maximum of utterances of a dataset in memory; more raise an error. TensorFlow
# reserves space for as many.
_MOST_PADDED_ROWS = 2**16


class ClientExamples(NamedTuple):
  """A client's examples and their orders; see `Pipeline.open_client`.

  Attributes:
    rows: Values by name, [count + 1, ...]; the last one is a padding row.
    count: int32 [].
    per_epoch: Chunks of an epoch, int32 []; the last one may be smaller.
    num_chunks: Number of chunks of all epochs, int32 [].
    order_seed: int32 [2], of the epochs' orders.
    seed: int32 [2], of the client, for all else.
    client_id: string []; '' if there are no examples.
  """

  rows: dict[str, tf.Tensor]
  count: tf.Tensor
  per_epoch: tf.Tensor
  num_chunks: tf.Tensor
  order_seed: tf.Tensor
  seed: tf.Tensor
  client_id: tf.Tensor


class PackedChunk(NamedTuple):
  """A chunk with rows sorted by length, and its cut into batches.

  Attributes:
    utterances: The values of `Batch` except features and seed.
    inputs: Waveforms, int16 [n, N], or features, float16 [n, T, F].
    num_samples: int32 [n], ascending.
    has_features: bool [n]; false for placeholders.
    bounds: int32 [batches, 2], first and past-the-last row of each batch.
    seed: int32 [2], of the models' randomness.
    augment_seed: int32 [2].
  """

  utterances: dict[str, tf.Tensor]
  inputs: tf.Tensor
  num_samples: tf.Tensor
  has_features: tf.Tensor
  bounds: tf.Tensor
  seed: tf.Tensor
  augment_seed: tf.Tensor


@tf.autograph.experimental.do_not_convert
def num_batches(chunk: PackedChunk) -> tf.Tensor:
  """Number of batches of a chunk, int32 []."""
  return tf.shape(chunk.bounds)[0]


def _all_rows(examples: tf.data.Dataset) -> dict[str, tf.Tensor]:
  """All examples as one batch, and a padding row after them."""
  # Without examples, the padding row alone is batched.
  padding_row = tf.data.Dataset.from_tensors(
      tf.nest.map_structure(
          lambda spec: tf.zeros([size or 0 for size in spec.shape], spec.dtype),
          examples.element_spec,
      )
  )
  everything = examples.concatenate(padding_row)
  if records.OFFSET in examples.element_spec:
    # Record locations are scalars: they need no padding, and so no limit.
    everything = everything.batch(_ALL_ROWS)
  else:
    everything = everything.padded_batch(_MOST_PADDED_ROWS)
  return everything.with_options(records.plain_options()).get_single_element()


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
    # The samples of a chunk of thousands of utterances exceed int32.
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
      # `concat` only where a batch begins: a chunk has few.
      starts = tf.cond(
          is_new,
          lambda: tf.concat([starts, [position]], axis=0),
          lambda: starts,
      )
      return position + 1, start, starts

    # Sequential, because each start depends on the one before.
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
  """Minimum of output frames that each label sequence needs.

  Its length and its repeats: between two equal labels CTC needs a blank (Graves
  et al. 2006).

  Args:
    labels: int32 [B, U]; ids at or past a length are ignored.
    label_lengths: int32 [B].

  Returns:
    int32 [B].
  """
  # Not `==`, which compares tensors by identity while TFF traces.
  is_repeat = tf.equal(labels[:, 1:], labels[:, :-1])
  is_repeat &= tf.sequence_mask(label_lengths, tf.shape(labels)[1])[:, 1:]
  # int32, as the lengths that they are added to.
  repeats = tf.reduce_sum(tf.cast(is_repeat, tf.int32), axis=1)
  return label_lengths + repeats

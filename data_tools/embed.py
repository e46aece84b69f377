"""Features of a public model's encoder, computed once: a corpus of features.

    python -m data_tools.embed --pretrained=whisper-tiny.en \\
        --audio_dir=data/an4/train.public \\
        --features_dir=data/an4_whisper/train.public

A run whose front end is that model's (gin/models/public_head.gin) reads the new
corpus in place of the old one, so that a round costs the head alone. The
utterances, transcripts, speakers and their ids are those of the corpus of
audio. Features are float16: 2 L D bytes a frame, which is several times the
audio (whisper-tiny.en, all layers: 150 kB a second of audio, PCM 32 kB).

Stored features cannot be augmented as waveforms are. With --speeds=0.9,1,1.1
the new corpus has each utterance at each of these speeds ("speed
perturbation"), so that it is three times as large.

Features are as personal as the recordings: voices can be told from them, and
words. Keep them like the recordings.
"""

from tff_asr import launch  # First: quiets TensorFlow before it is loaded.

launch.install_early_sigint(__name__)

from collections.abc import Iterator, Sequence
import fractions
import os
import shutil
from typing import Any

from absl import flags
import numpy as np
import tensorflow as tf

from data_tools import partial_split
from tff_asr import files
from tff_asr.data import index
from tff_asr.data import records
from tff_asr.data import schema
from tff_asr.data import speakers
from tff_asr.features import front_end as front_end_lib
from tff_asr.features import waveform_augment
from tff_asr.pretrained import features
from tff_asr.programs import progress as progress_lib

_PRETRAINED = flags.DEFINE_string(
    'pretrained', None, 'Name or folder of a public model. Required.'
)
_LAYERS = flags.DEFINE_list(
    'layers', None, 'Numbers of the encoder\'s layers, as 3,4; by default all.'
)
_AUDIO_DIR = flags.DEFINE_string(
    'audio_dir', None, 'The folder of a corpus of audio. Required.'
)
_FEATURES_DIR = flags.DEFINE_string(
    'features_dir',
    None,
    'The new corpus: a folder that is not there. Required.',
)
_SPEEDS = flags.DEFINE_list(
    'speeds',
    ['1'],
    'Speeds in [0.5, 2] at which each utterance is stored, as 0.9,1,1.1.',
)

_ONE = fractions.Fraction(1)


@files.for_owner_only()
def embed(
    input_dir: str,
    output_dir: str,
    *,
    front_end: front_end_lib.FrontEnd,
    speeds: Sequence[float] = (1.0,),
) -> index.Corpus:
  """Writes a corpus of features.

  It appears in output_dir when it is complete. After an interruption, the same
  call continues after the last finished shard (`partial_split`).

  Args:
    input_dir: A corpus of audio.
    output_dir: The new folder.
    front_end: Computes the features.
    speeds: Speeds at which each utterance is stored. The ids of those at
      another speed than 1 begin with it, as in sp0.9-ID.

  Returns:
    The new corpus.

  Raises:
    ValueError: input_dir is not a corpus of audio, output_dir exists, a speed
      is out of its range or given twice, or an utterance is longer than the
      model takes.
  """
  chosen = waveform_augment.speed_fractions(speeds)
  if len(set(chosen)) < len(chosen):
    raise ValueError(f'speeds must differ, found {speeds}.')
  source = index.read(input_dir)
  if source.corpus.features is not None:
    raise ValueError(
        f'{input_dir} holds features ({source.corpus.features.identity}): name '
        'the corpus of audio.'
    )
  if os.path.exists(output_dir):
    raise ValueError(f'{output_dir} exists: choose another folder.')
  identity = dict(
      shards=[shard.sha256 for shard in source.corpus.shards],
      front_end=front_end.identity,
      speeds=list(map(str, chosen)),
  )
  with partial_split.PartialSplit(
      os.path.abspath(output_dir), identity=identity
  ) as partial:
    _write_shards(source, partial, front_end, chosen)
    _write_index(source, partial, front_end, chosen)
    attributes = os.path.join(input_dir, speakers.SPEAKERS_FILE)
    if os.path.exists(attributes):
      shutil.copy(attributes, partial.folder)
    partial.move_into_place()
  return index.read(output_dir).corpus


def _write_shards(
    source: index.Index,
    partial: partial_split.PartialSplit,
    front_end: front_end_lib.FrontEnd,
    speeds: Sequence[fractions.Fraction],
) -> None:
  """Writes the shards that are not finished."""
  num_done = sum(len(entry['records']) for entry in partial.entries)
  with progress_lib.Progress(
      description=os.path.basename(partial.output_dir),
      total=len(source.offsets) * len(speeds),
      initial=num_done,
      unit='utterance',
  ) as progress:
    for number in range(len(partial.entries), len(source.corpus.shards)):
      path = os.path.join(partial.folder, index.shard_name(number))
      numbers, offsets, lengths, position = [], [], [], 0
      with tf.io.TFRecordWriter(path) as writer:
        for record, length, content in _records(
            source, number, front_end, speeds
        ):
          writer.write(content)
          numbers.append(record)
          offsets.append(position)
          lengths.append(length)
          position += len(content) + index.RECORD_OVERHEAD_BYTES
          progress.update()
      shard = index.Shard(
          os.path.basename(path), position, files.sha256(path)
      )
      partial.commit(
          {
              'files': [shard._asdict()],
              'records': numbers,
              'offsets': offsets,
              'num_samples': lengths,
          },
          files=[shard.name],
      )


def _write_index(
    source: index.Index,
    partial: partial_split.PartialSplit,
    front_end: front_end_lib.FrontEnd,
    speeds: Sequence[fractions.Fraction],
) -> None:
  """Writes the index of the finished shards."""
  offsets = np.zeros(len(source.offsets) * len(speeds), np.int64)
  num_samples = np.zeros_like(offsets)
  for entry in partial.entries:
    offsets[entry['records']] = entry['offsets']
    num_samples[entry['records']] = entry['num_samples']
  first = source.clients.first_records * len(speeds)
  count = source.clients.num_utterances * len(speeds)
  index.write(
      partial.folder,
      clients=source.clients._replace(
          first_records=first,
          num_utterances=count,
          num_samples=np.array([
              num_samples[start : start + size].sum()
              for start, size in zip(first, count)
          ]),
      ),
      offsets=offsets,
      shards=[index.Shard(**entry['files'][0]) for entry in partial.entries],
      encoding=source.corpus.encoding,
      characters=source.corpus.characters,
      origin=_origin(source, speeds),
      features=schema.StoredFeatures(
          front_end.identity,
          front_end.feature_dim,
          front_end.frame_shift,
          front_end.window,
      ),
  )


def _origin(
    source: index.Index, speeds: Sequence[fractions.Fraction]
) -> dict[str, Any]:
  """The origin of the audio, and the speeds if there are others than 1."""
  origin = dict(source.corpus.origin)
  if list(speeds) != [_ONE]:
    origin['speeds'] = list(map(float, speeds))
  return origin


def _records(
    source: index.Index,
    shard: int,
    front_end: front_end_lib.FrontEnd,
    speeds: Sequence[fractions.Fraction],
) -> Iterator[tuple[int, int, bytes]]:
  """Yields new records of a shard: number, samples and content."""
  clients = source.clients
  ids, numbers = [], []
  for row in np.flatnonzero(clients.shards == shard):
    first, count = clients.first_records[row], clients.num_utterances[row]
    ids += [clients.client_ids[row]] * int(count)
    numbers += range(first, first + count)
  numbers = np.array(numbers)
  rows = records.locations(
      np.array(ids, object),
      shard=np.full(len(numbers), shard, np.int64),
      offset=source.offsets[numbers],
  )
  reader = records.Reader(source.corpus)

  @tf.function(
      input_signature=[
          tf.TensorSpec([None, None], tf.int16), tf.TensorSpec([None], tf.int32)
      ],
      autograph=False,
  )
  def compute(waveforms, num_samples):
    # One at a time is slower, but a batch would be rounded by its longest.
    values, lengths = front_end.features(waveforms, num_samples)
    return tf.cast(values, tf.float16), lengths

  for number, example in zip(numbers, reader.read_dataset(rows), strict=True):
    for copy, speed in enumerate(speeds):
      waveform = waveform_augment.at_speed(example[schema.WAVEFORM], speed)
      name = example[schema.UTTERANCE_ID].numpy().decode()
      if speed != _ONE:
        name = f'sp{float(speed):g}-{name}'
      front_end.check_duration(
          len(waveform) / source.corpus.sample_rate_hz, of=name
      )
      values, lengths = compute(waveform[tf.newaxis], tf.shape(waveform))
      content = values[0, : lengths[0]].numpy()
      if not np.all(np.isfinite(content)):
        raise ValueError(
            f'features of {name} are not finite in float16: the model does not '
            'suit this recording.'
        )
      yield int(number) * len(speeds) + copy, len(waveform), schema.serialize(
          client_id=example[schema.CLIENT_ID].numpy().decode(),
          utterance_id=name,
          transcript=example[schema.TRANSCRIPT].numpy().decode(),
          audio=np.ascontiguousarray(content, '<f2').tobytes(),
          num_samples=len(waveform),
      )


def _main(argv: list[str]) -> None:
  del argv
  try:
    layers = None if _LAYERS.value is None else tuple(map(int, _LAYERS.value))
  except ValueError as e:
    raise ValueError(
        f'--layers takes numbers, as 3,4; found {",".join(_LAYERS.value)}.'
    ) from e
  try:
    speeds = list(map(float, _SPEEDS.value))
  except ValueError as e:
    raise ValueError(
        f'--speeds takes numbers, as 0.9,1; found {",".join(_SPEEDS.value)}.'
    ) from e
  front_end = features.of_model(name=_PRETRAINED.value, layers=layers)
  corpus = embed(
      _AUDIO_DIR.value,
      _FEATURES_DIR.value,
      front_end=front_end,
      speeds=speeds,
  )
  size = sum(shard.num_bytes for shard in corpus.shards)
  print(
      f'{corpus.num_utterances} utterances of {corpus.num_clients} speakers, '
      f'{size / 2**20:.0f} MiB of features ({front_end.identity}).'
  )


if __name__ == '__main__':
  flags.mark_flags_as_required(['pretrained', 'audio_dir', 'features_dir'])
  launch.run(_main, after_interrupt='the same command continues.')

"""Contents of folders of shards: table, one client's records, padding."""

from collections.abc import Callable, Sequence
import os

import numpy as np
import tensorflow as tf

from tff_asr.data import client_data
from tff_asr.data import index
from tff_asr.data import pipeline as pipeline_lib
from tff_asr.data import records
from tff_asr.data import speakers
from tff_asr.data import split_summary
from tff_asr.models import subsampling
from tff_asr.text import tokenizer as tokenizer_lib

# A sample: reading a whole corpus can take hours.
_MAX_PADDING_CLIENTS = 20
_CHECKED = 'every shard has its checksum.'


def find_folders(paths: Sequence[str]) -> list[str]:
  """Returns the corpus folders among the paths and in them, sorted.

  Raises:
    ValueError: Naming the first path that holds none.
  """
  found = []
  for path in paths:
    names = sorted(os.listdir(path)) if os.path.isdir(path) else []
    inside = [os.path.join(path, name) for name in names]
    if index.CORPUS_FILE in names:
      found.append(path)
      continue
    corpora = [
        folder
        for folder in inside
        if os.path.isfile(os.path.join(folder, index.CORPUS_FILE))
    ]
    if not corpora:
      raise ValueError(
          f'{path} is not a folder of shards and contains none; name a folder '
          'that data_tools wrote.'
      )
    found.extend(corpora)
  return found


def describe(folders: Sequence[str], *, is_verified: bool = False) -> str:
  """Returns the table of some corpora, and what was changed or left out.

  Args:
    folders: Corpus folders.
    is_verified: Whether to read all shards and check their checksums.

  Raises:
    ValueError: If an index is damaged or, with `is_verified`, a shard; it names
      the file and the clients.
  """
  read = {
      os.path.basename(f.rstrip('/')): split_summary.read(f) for f in folders
  }
  # Folders of the same name are told apart by their paths.
  if len(read) < len(folders):
    read = {folder: split_summary.read(folder) for folder in folders}
  lines = [split_summary.table(read)]
  for name, summary in read.items():
    lines.extend(split_summary.remarks(name, summary))
  if is_verified:
    for folder in folders:
      # The slow part: it reads every byte.
      client_data.verify(folder)
      speakers.read_attributes(index.read(folder).corpus)
      lines.append(f'{folder}: {_CHECKED}')
  return '\n'.join(lines)


def describe_client(folder: str, client_id: str) -> str:
  """Returns a line for each record of a client: id, seconds, transcript.

  Raises:
    ValueError: If the client is not in the corpus.
  """
  data = client_data.load(folder)
  rate_hz = data.corpus.sample_rate_hz
  lines = [
      f'{client_id}: {data.num_utterances(client_id)} utterances,'
      f' {data.duration_sec(client_id):.2f} s'
  ]
  for example in data.create_tf_dataset_for_client(client_id):
    if 'waveform' in example:
      seconds = f'{len(example["waveform"]) / rate_hz:.2f} s'
    else:
      seconds = f'{len(example["features"])} frames'
    name, text = (
        example[key].numpy().decode() for key in ('utterance_id', 'transcript')
    )
    lines.append(f'  {name}  {seconds}  {text}')
  return '\n'.join(lines)


def padding(
    folder: str, *, max_batch_sec: float, max_padding: float, seed: int = 1
) -> str:
  """Returns the share of padding in training batches, as the pipeline cuts it.

  Reads one pass over the data of at most 20 clients, drawn by the seed. A
  corpus without text has no such batches.

  Args:
    folder: A corpus folder.
    max_batch_sec: As `pipeline.Pipeline` takes it.
    max_padding: As `pipeline.Pipeline` takes it.
    seed: Which clients, and the order of their data.
  """
  data = client_data.load(folder)
  if not data.corpus.characters:
    return f'{folder}: no text, so no padding of batches to measure'
  # Drawn, because clients in order of their ids may be of one source.
  ids = np.random.default_rng(seed).permutation(data.client_ids)
  ids = ids[:_MAX_PADDING_CLIENTS]
  pipeline = pipeline_lib.Pipeline(
      tokenizer=tokenizer_lib.CharTokenizer(data.corpus.characters),
      output_lengths=subsampling.output_lengths_3x,
      max_batch_sec=max_batch_sec,
      # No utterance may be longer than a batch.
      max_utterance_sec=min(30.0, max_batch_sec),
      max_padding=max_padding,
      read=data.read,
  )

  count = _build_count(pipeline, seed=seed)
  frames, padded, num_batches, left_out = sum(
      count(records.locations_of(client)).numpy()
      for client in data.locate_clients(ids)
  )
  return (
      f'{folder}: {1 - frames / padded:.1%} of frames are padding, in'
      f' {num_batches} batches of at most {max_batch_sec:g} s of {len(ids)}'
      f' clients; {left_out} utterances not trained on (no labels, too long or'
      ' too short)'
  )


def _build_count(
    pipeline: pipeline_lib.Pipeline, *, seed: int
) -> Callable[[records.RecordLocations], tf.Tensor]:
  """Returns a count of frames, padded frames, batches, utterances left out."""

  # With a signature, so that it is traced once for all clients.
  @tf.function(input_signature=[records.LOCATION_SPECS], autograph=False)
  def count(rows):
    batches = pipeline.training_batches(
        tf.data.Dataset.from_tensor_slices(rows),
        seed=tf.constant([seed, 0]),
        num_epochs=1,
    )
    of_batch = lambda batch: tf.stack([
        tf.reduce_sum(batch['feature_lengths']),
        tf.reduce_prod(tf.shape(batch['features'])[:2]),
        1,
        # Utterances that cannot be trained on have weight 0.
        tf.reduce_sum(tf.cast(batch['example_weights'] <= 0, tf.int32)),
    ])
    # int64: frames of a large corpus exceed int32.
    return batches.reduce(
        tf.zeros([4], tf.int64),
        lambda total, batch: total + tf.cast(of_batch(batch), tf.int64),
    )

  return count

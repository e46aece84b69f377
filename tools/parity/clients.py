"""Clients whose batches are compared: their lists and audio, and our batches.

Which utterances share a batch depends on their order, which each side draws. So
batches are compared of clients with at most one chunk of utterances, where the
order does not matter, and of larger ones in an order that ours draws and both
take.
"""

from collections.abc import Iterable
import csv
import os
import tarfile
from typing import NamedTuple

import numpy as np
import soundfile
import tensorflow as tf

from data_tools import librispeech
from data_tools import utterances as utterances_lib
from tff_asr.data import audio
from tff_asr.data import pipeline as pipeline_lib
from tff_asr.data import schema
from tff_asr.features import log_mel
from tff_asr.models import subsampling
from tff_asr.text import tokenizer as tokenizer_lib

CHUNK_SIZE = 64
"""Utterances that are sorted and packed together, on both sides."""

MAX_BATCH_SEC = 120
_NUM_CLIENTS = 4
_SEED = (1, 2)


class Utterance(NamedTuple):
  """An utterance: its id, transcript and waveform, int16 [N]."""

  utterance_id: str
  transcript: str
  waveform: np.ndarray


def listen(speech: str) -> dict[str, list[Utterance]]:
  """Returns the utterances of four speakers, by speaker.

  Args:
    speech: Folder with LibriSpeech/dev-clean.
  """
  listing = librispeech.list_utterances(
      os.path.join(speech, 'LibriSpeech'), split='dev-clean'
  )
  by_client: dict[str, list[utterances_lib.Utterance]] = {}
  for each in listing.utterances:
    by_client.setdefault(each.client_id, []).append(each)
  utterances = {}
  for client in sorted(by_client)[:_NUM_CLIENTS]:
    read = [
        Utterance(each.utterance_id, each.transcript, audio.read(each.audio))
        for each in by_client[client]
    ]
    utterances[client] = [
        each for each in read
        if len(each.waveform) <= 30 * log_mel.SAMPLE_RATE_HZ
    ]
  return utterances


def of_distinct_lengths(utterances: Iterable[Utterance]) -> list[Utterance]:
  """Leaves one utterance of each length.

  Which one of two of a length comes first is chance, on both sides.
  """
  return list({len(each.waveform): each for each in utterances}.values())


def write_list(folder: str, name: str, utterances: Iterable[Utterance]) -> str:
  """Writes a client as the authors' code reads it.

  Args:
    folder: Gets the audio, NAME.tar and NAME.csv.
    name: The client.
    utterances: Any may come more than once.

  Returns:
    The path of NAME.csv.
  """
  path = os.path.join(folder, f'{name}.csv')
  with (
      open(path, 'w', encoding='utf-8', newline='') as f,
      tarfile.open(os.path.join(folder, f'{name}.tar'), 'w') as archive,
  ):
    writer = csv.writer(f, delimiter=' ')
    writer.writerow(['id', 'file', 'transcription', 'client_id'])
    for each in utterances:
      file = f'{each.utterance_id}.wav'
      path_of_audio = os.path.join(folder, file)
      soundfile.write(path_of_audio, each.waveform, log_mel.SAMPLE_RATE_HZ)
      archive.add(path_of_audio, file)
      writer.writerow([each.utterance_id, file, each.transcript, name])
  return path


def batches(
    path: str, *, repeats: int = 1, num_epochs: int = 1
) -> list[list[str]]:
  """Returns a client's batches in training, as sorted ids.

  Args:
    path: Returned by `write_list`.
    repeats: Copies of each utterance in an epoch.
    num_epochs: Passes.
  """
  found = _pipeline(repeats).training_batches(
      _examples(path), seed=tf.constant(_SEED), num_epochs=num_epochs
  )
  return sorted(
      sorted(each.decode() for each in batch['utterance_id'].numpy())
      for batch in found
  )


def order(path: str, *, repeats: int = 1) -> list[str]:
  """Returns the ids in the order in which `batches` reads an epoch."""
  pipeline = _pipeline(repeats)
  client = pipeline.open_client(
      pipeline.with_lengths(_examples(path)),
      seed=tf.constant(_SEED),
      num_epochs=1,
  )
  ids = []
  for number in range(int(client.num_chunks)):
    chunk = pipeline.read_chunk(client, tf.constant(number))
    ids += [each.decode() for each in chunk['utterance_id'].numpy()]
  return ids


def _pipeline(repeats: int) -> pipeline_lib.Pipeline:
  return pipeline_lib.Pipeline(
      tokenizer=tokenizer_lib.CharTokenizer(boundary=' '),
      output_lengths=subsampling.output_lengths_3x,
      max_batch_sec=MAX_BATCH_SEC,
      max_padding=1.0,
      chunk_size=CHUNK_SIZE,
      repeats=repeats,
  )


def _examples(path: str) -> tf.data.Dataset:
  """The utterances of a list."""
  with open(path, encoding='utf-8', newline='') as f:
    rows = list(csv.DictReader(f, delimiter=' '))
  folder = os.path.dirname(path)
  waveforms = [audio.read(os.path.join(folder, row['file'])) for row in rows]
  return tf.data.Dataset.from_generator(
      lambda: (
          {
              schema.WAVEFORM: waveform,
              schema.TRANSCRIPT: row['transcription'],
              schema.UTTERANCE_ID: row['id'],
              schema.CLIENT_ID: row['client_id'],
          }
          for row, waveform in zip(rows, waveforms)
      ),
      output_signature={
          schema.WAVEFORM: tf.TensorSpec([None], tf.int16),
          schema.TRANSCRIPT: tf.TensorSpec([], tf.string),
          schema.UTTERANCE_ID: tf.TensorSpec([], tf.string),
          schema.CLIENT_ID: tf.TensorSpec([], tf.string),
      },
  )

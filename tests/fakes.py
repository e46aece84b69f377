"""Fake speech and tiny models for tests, in memory or as tiny shards."""

import atexit
import collections
from collections.abc import Iterable, Iterator, Mapping
import contextlib
import dataclasses
import functools
import hashlib
import json
import os
import pathlib
import pickle
import tempfile
from typing import Any, Optional
from unittest import mock

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from data_tools import shards
from tff_asr.aggregators import aggregation
from tff_asr.aggregators import dp_mean
from tff_asr.data import buckets as buckets_lib
from tff_asr.data import pipeline as pipeline_lib
from tff_asr.models import ctc
from tff_asr.models import transformer
from tff_asr.privacy import accounting
from tff_asr.privacy import clipping as clipping_lib
from tff_asr.privacy import keys
from tff_asr.privacy import ledger as ledger_lib
from tff_asr.privacy import queries
from tff_asr.text import tokenizer as tokenizer_lib

WORDS = ('ab', 'ba', 'abba', 'cab', 'a')


def tiny_model(
    *,
    dropout: float = 0.0,
    layer_drop: float = 0.0,
    loss_kernel: str = 'op',
    activation_dtype: str = 'float32',
    num_blocks: int = 2,
) -> ctc.CtcModel:
  """A transformer of 10,000 weights or so over 4 + 1 tokens."""
  encoder = transformer.build(
      num_blocks=num_blocks,
      dim=8,
      mlp_dim=16,
      num_heads=2,
      dropout=dropout,
      layer_drop=layer_drop,
      activation_dtype=activation_dtype,
  )
  return ctc.build(
      encoder=encoder,
      tokenizer=tiny_tokenizer(),
      loss_kernel=loss_kernel,
  )


def model_of_buckets(
    model: ctc.CtcModel, buckets: buckets_lib.LengthBuckets
) -> ctc.CtcModel:
  """The model, which raises where frames are not those of a boundary."""

  def apply(weights, features, *rest):
    is_boundary = tf.equal(
        tf.shape(features)[1], tf.constant(buckets.boundaries)
    )
    assertion = tf.debugging.Assert(
        tf.reduce_any(is_boundary), ['features of another size']
    )
    # In eager mode it has run and is not an op.
    with tf.control_dependencies([assertion] if assertion else []):
      return model.encoder.apply(weights, tf.identity(features), *rest)

  encoder = dataclasses.replace(model.encoder, apply=apply)
  return dataclasses.replace(model, encoder=encoder)


def tiny_tokenizer() -> tokenizer_lib.CharTokenizer:
  """Tokens of the fake transcripts."""
  return tokenizer_lib.CharTokenizer(' abc')


def tiny_pipeline(
    model: ctc.CtcModel,
    *,
    max_batch_sec: float = 4.0,
    max_utterance_sec: float = 3.0,
    **kwargs,
) -> pipeline_lib.Pipeline:
  """Small batches without augmentation, unless asked for."""
  return pipeline_lib.Pipeline(
      output_lengths=model.encoder.output_lengths,
      max_batch_sec=max_batch_sec,
      max_utterance_sec=max_utterance_sec,
      **dict(tokenizer=tiny_tokenizer()) | kwargs,
  )


def clipped_mean(
    *,
    cohort_size: int,
    clip: float,
    noise: float = 0.0,
    split: str = 'dim',
) -> tff.aggregators.AggregationFactory:
  """Clips by layer, sums and noises, over the public cohort size."""
  return dp_mean.build(
      build_query=functools.partial(
          queries.PerLayerClipSumQuery,
          l2_norm_clip=clip,
          noise_multiplier=noise,
          clipping=clipping_lib.Clipping(split=split),
      ),
      cohort_size=cohort_size,
  )


def utterance(client_id: str, index: int) -> dict[str, object]:
  """One example: noise whose loudness follows its words; fixed by its name."""
  generator = np.random.default_rng(
      [len(client_id), *client_id.encode(), index]
  )
  words = generator.choice(WORDS, size=generator.integers(1, 4))
  samples = int(generator.integers(8000, 24000))
  envelope = 500.0 * (1 + np.arange(samples) % (1000 * len(words)) / 300)
  waveform = generator.normal(size=samples) * envelope
  return collections.OrderedDict(
      client_id=client_id,
      transcript=' '.join(words),
      utterance_id=f'{client_id}-{index}',
      waveform=np.clip(waveform, -32768, 32767).astype(np.int16),
  )


def examples(
    client_id: str, num_utterances: int
) -> list[dict[str, object]]:
  """A client's examples as NumPy values."""
  return [utterance(client_id, index) for index in range(num_utterances)]


def client_data(
    num_utterances: Optional[dict[str, int]] = None,
) -> tff.simulation.datasets.ClientData:
  """ClientData of fake speech: client ids to their numbers of utterances."""
  if num_utterances is None:
    num_utterances = {'ann': 3, 'bob': 5, 'cai': 1, 'dee': 4}
  stacked = [
      example
      for client_id, count in num_utterances.items()
      for example in examples(client_id, count)
  ]
  if not stacked:
    stacked = examples('nobody', 1)
  lengths = np.array([len(example['waveform']) for example in stacked])
  waveforms = np.zeros([len(stacked), lengths.max()], np.int16)
  for row, example in zip(waveforms, stacked):
    row[: len(example['waveform'])] = example['waveform']
  columns = {
      key: [example[key] for example in stacked]
      for key in ('client_id', 'transcript', 'utterance_id')
  }

  def dataset_fn(client_id):
    dataset = tf.data.Dataset.from_tensor_slices((columns, waveforms, lengths))
    dataset = dataset.filter(
        lambda text, *_: tf.equal(text['client_id'], client_id)
    )
    return dataset.map(
        lambda text, waveform, length: collections.OrderedDict(
            client_id=text['client_id'],
            transcript=text['transcript'],
            utterance_id=text['utterance_id'],
            waveform=waveform[:length],
        )
    )

  return tff.simulation.datasets.ClientData.from_clients_and_tf_fn(
      list(num_utterances), dataset_fn
  )


@contextlib.contextmanager
def counted(owner: type[Any], *names: str) -> Iterator[collections.Counter]:
  """Counts calls of a class's methods, such as those that are traced."""
  calls = collections.Counter()
  with contextlib.ExitStack() as stack:
    for name in names:

      def call(*args, _name=name, _method=getattr(owner, name), **kwargs):
        calls[_name] += 1
        return _method(*args, **kwargs)

      stack.enter_context(mock.patch.object(owner, name, call))
    yield calls


def pld_once() -> contextlib.AbstractContextManager[Any]:
  """A patch: epsilon by PLD is computed once for the same rounds and delta."""
  compute, found = accounting.epsilon_by_pld, {}

  def epsilon_by_pld(rounds, *, delta, **step):
    key = pickle.dumps((rounds, delta, step))
    if key not in found:
      found[key] = compute(rounds, delta=delta, **step)
    return found[key]

  return mock.patch.object(accounting, 'epsilon_by_pld', epsilon_by_pld)


def charged_round(
    round_num: int = 0,
    *,
    key: int = 0,
    configuration: str = '',
    result: str = '',
    **cost: Any,
) -> ledger_lib.Round:
  """A round as a ledger charges it; another one for each number and key."""
  return ledger_lib.Round(
      round_num=round_num,
      cost=accounting.RoundGroup(**{
          'sampling': accounting.Sampling(
              kind='poisson', cohort_size=10, population=1000
          ),
          'noise_multiplier': 1.0,
          **cost,
      }),
      configuration=configuration,
      identity=ledger_lib.round_identity(
          noise_key=keys.from_seed(key),
          noise_counter=round_num,
          sampler_key=keys.from_seed(1),
          round_num=round_num,
          configuration=configuration,
      ),
      result=result,
  )


def set_noise_key(
    state: aggregation.State, key: np.ndarray
) -> aggregation.State:
  """The state of an aggregation process with its noise key set."""
  return state._replace(
      query_state=queries.set_noise_key(state.query_state, key)
  )


def sealed_ledger(lines: Iterable[Mapping[str, Any]]) -> bytes:
  """A ledger's file with these lines' fields and the hashes that go with them.

  Raises:
    ValueError: JSON has no such value.
  """
  encode = lambda line: (
      json.dumps(line, sort_keys=True, allow_nan=False).encode() + b'\n'
  )
  sealed, previous = [], ''
  for line in lines:
    bare = {**line, 'previous': previous}
    bare.pop('hash', None)
    previous = hashlib.sha256(encode(bare)).hexdigest()
    sealed.append(encode({**bare, 'hash': previous}))
  return b''.join(sealed)


def flat(values: Any) -> np.ndarray:
  """All elements of a nest of arrays or tensors, as one vector."""
  return np.concatenate([np.ravel(part) for part in tf.nest.flatten(values)])


def write_split(
    folder: str,
    num_utterances: Mapping[str, int],
    *,
    transcript: Optional[str] = None,
) -> str:
  """Writes clients of fake speech as shards of PCM; returns the folder.

  Every utterance has the transcript given, or its own.
  """
  return write_examples(folder, [
      example | ({'transcript': transcript} if transcript else {})
      for client_id, count in num_utterances.items()
      for example in examples(client_id, count)
  ])


def write_examples(
    folder: str, spoken: Iterable[Mapping[str, Any]], **settings: Any
) -> str:
  """Writes examples, such as `utterance` gives, as shards; returns the folder.

  Settings are those of `shards.write_split`.
  """
  shards.write_split(
      [
          shards.Utterance(
              client_id=example['client_id'],
              utterance_id=example['utterance_id'],
              transcript=example['transcript'],
              audio=lambda waveform=example['waveform']: waveform,
          )
          for example in spoken
      ],
      folder,
      **dict(origin={'corpus': 'fake'}, num_workers=0) | settings,
  )
  return folder


@functools.lru_cache(maxsize=None)
def shared_split(**num_utterances: int) -> str:
  """As `write_split`; once in a process, so tests leave it as it is."""
  root = tempfile.TemporaryDirectory()
  atexit.register(root.cleanup)
  return write_split(os.path.join(root.name, 'shards'), num_utterances)


def damage(
    path: str | os.PathLike[str],
    place: float = 0.0,
    *,
    offset: Optional[int] = None,
) -> None:
  """Changes a byte of a file; done twice, the file is as it was.

  Args:
    path: The file.
    place: Place of the byte: the first is at 0, the last at 1.
    offset: Number of the byte, in place of its place.
  """
  data = bytearray(pathlib.Path(path).read_bytes())
  data[int(place * (len(data) - 1)) if offset is None else offset] ^= 0x55
  with open(path, 'r+b') as file:  # The same file, as a disk damages it.
    file.write(data)

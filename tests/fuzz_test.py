"""A damaged file is read, or reported in one line that names it.

Each trial changes bytes of a good file, cuts, doubles or replaces them, and
reads the file. Trials are seeded.
"""

import asyncio
from collections.abc import Callable, Iterator
import itertools
import json
import os
import pathlib
from typing import Any

from absl.testing import parameterized
import numpy as np
import tensorflow as tf

from data_tools import an4
from data_tools import common_voice
from data_tools import librispeech
from data_tools import manifest
from tests import cases
from tests import fakes
from tff_asr import launch
from tff_asr.data import client_data
from tff_asr.data import index
from tff_asr.data import speakers
from tff_asr.privacy import ledger
from tff_asr.storage import metrics_file
from tff_asr.storage import model_file
from tff_asr.storage import run_dir
from tff_asr.storage import state_file

_TRIALS = 40


def _damaged(good: bytes, seed: int) -> Iterator[bytes]:
  """Variants of a file's bytes."""
  random = np.random.default_rng(seed)
  for _ in range(_TRIALS):
    data = good
    for _ in range(random.integers(1, 4)):
      start, end = sorted(random.integers(0, len(data) + 1, 2))
      head, part, tail = data[:start], data[start:end], data[end:]
      bit = bytes([tail[0] ^ 1 << int(random.integers(8))]) if tail else b''
      data = (
          head,
          head + tail,
          head + part * 2 + tail,
          head + random.bytes(len(part)) + tail,
          head + random.bytes(8) + part + tail,
          head + part + bit + tail[1:],
      )[random.integers(6)]
    yield data


_CUT = {
    'id': 'c', 'type': 'MonoCut', 'start': 0.5, 'duration': 1.5, 'channel': 1,
    'recording': {
        'id': 'r', 'transforms': None,
        'sources': [{'type': 'file', 'channels': [0, 1], 'source': 'a.wav'}],
    },
    'supervisions': [
        {'id': 's', 'start': 0.25, 'duration': 1, 'speaker': 'ann',
         'text': 'ja', 'gender': 'female'},
    ],
}


class FuzzTest(cases.TestCase):

  def write(self, name: str, data: bytes) -> str:
    os.makedirs(os.path.dirname(self.path(name)), exist_ok=True)
    pathlib.Path(self.path(name)).write_bytes(data)
    return self.path(name)

  def read(self, name: str) -> bytes:
    return pathlib.Path(self.path(name)).read_bytes()

  def check(
      self, parse: Callable[[], Any], *, named: str, case: Any = ''
  ) -> bool:
    """True if it was refused; fails unless that was in one clear line."""
    try:
      parse()
    except Exception as error:  # pylint: disable=broad-exception-caught
      self.assertTrue(launch.is_user_error(error), f'{case!r} gave {error!r}')
      lines = launch.error_lines(error)
      self.assertLess(max(map(len, lines)), 600)
      self.assertNotIn('\n', ''.join(lines))
      self.assertIn(named, ' '.join(lines))
      return True
    return False

  def write_clients(self) -> str:
    return fakes.write_split(self.path('corpus'), {'ann': 2, 'bob': 1})

  def write_corpus(self) -> Callable[[], Any]:
    """Files of corpora as they come, and what reads all of them."""
    flac, text = 'libri/dev/84/1/84-1-000', 'libri/dev/84/1/84-1.trans.txt'
    self.write(text, b'84-1-0000 HE SAID SO\n84-1-0001 AND LEFT\n')
    self.write(f'{flac}0.flac', b'')
    self.write(f'{flac}1.flac', b'')
    an4_etc = 'an4/etc/an4_train'
    self.write(f'{an4_etc}.fileids', b'an4_clstk/fash/an251-fash-b\n')
    self.write(f'{an4_etc}.transcription', b'<s> YES </s> (an251-fash-b)\n')
    self.write('an4/wav/an4_clstk/fash/an251-fash-b.sph', b'')
    header, row = b'client_id\tpath\tsentence\n', b'ab\ta.mp3\tHallo Welt.\n'
    self.write('cv/train.tsv', header + row)
    self.write('cv/clips/a.mp3', b'')

    def parse():
      librispeech.list_utterances(self.path('libri'), split='dev')
      an4.list_utterances(self.path('an4'), split='train')
      common_voice.list_utterances(
          self.path('cv'), split='train', language='de'
      )

    return parse

  def write_manifests(self) -> Callable[[], Any]:
    """Manifests of each kind that is text, and what reads all of them."""
    header = b'audio,speaker,text,offset\n'
    self.write('own.csv', header + b'a.wav,ann,"Ja, ja",0.5\n')
    self.write('own.jsonl', json.dumps(_CUT).encode())
    self.write('kaldi/wav.scp', b'r1 a.wav\nr2 b.flac\n')
    self.write('kaldi/text', b'u1 guten tag\nu2 ja\n')
    self.write('kaldi/utt2spk', b'u1 ann\nu2 bob\n')
    self.write('kaldi/segments', b'u1 r1 0.5 1.25\nu2 r2 0 -1\n')

    def parse():
      for name in ('own.csv', 'own.jsonl', 'kaldi'):
        manifest.list_utterances(self.path(name))

    return parse

  def write_speakers(self) -> index.Corpus:
    speakers.write_attributes(self.write_clients(), {'age': {'ann': ['teens']}})
    return index.read(self.path('corpus')).corpus

  def write_ledger(self) -> str:
    path = self.path('ledger.jsonl')
    with ledger.create(path) as opened:
      for number in range(3):
        opened.append(fakes.charged_round(number))
    return path

  def write_run(self) -> Callable[[], Any]:
    """Files of a run, and what reads all of them."""
    with run_dir.RunDir(self.path('run'), configuration='A = 1\n') as run:
      asyncio.run(run.state_manager.save(_STATE, 0))
    metrics = b'round,a,b\n1,0.5,\n2,0.25,3.0\n'
    self.write('metrics.csv', metrics)
    state = self.path('state.safetensors')
    state_file.write(state, _STATE)
    path = self.write_ledger()
    model = self.path('model.safetensors')
    weights = {'w': np.ones([2, 3], np.float32), 'b': np.float32(1.0)}
    model_file.write(model, weights, tokens='ab', ledger=[1, 'x'])

    def parse():
      model_file.read(model)
      run_dir.check_folder(self.path('run'), configuration='A = 1\n')
      metrics_file.read(self.path('metrics.csv'))
      state_file.read(state, structure=_STATE)
      ledger.read(path)

    return parse

  def write_index(self) -> Callable[[], Any]:
    """Files of an index, and what reads all of them."""
    corpus = self.write_speakers()

    def parse():
      index.read(self.path('corpus'))
      speakers.read_attributes(corpus)

    return parse

  @parameterized.parameters(
      ('write_index', f'corpus/{index.CORPUS_FILE}', 'corpus'),
      ('write_index', f'corpus/{index.CLIENTS_FILE}', 'corpus'),
      ('write_index', f'corpus/{index.OFFSETS_FILE}', 'corpus'),
      ('write_index', f'corpus/{speakers.SPEAKERS_FILE}', 'corpus'),
      ('write_corpus', 'libri/dev/84/1/84-1.trans.txt', '84-1'),
      ('write_corpus', 'an4/etc/an4_train.fileids', 'an4'),
      ('write_corpus', 'an4/etc/an4_train.transcription', 'an4'),
      ('write_corpus', 'cv/train.tsv', 'train.tsv'),
      ('write_manifests', 'own.csv', 'own.csv'),
      ('write_manifests', 'own.jsonl', 'own.jsonl'),
      ('write_manifests', 'kaldi/wav.scp', 'kaldi'),
      ('write_manifests', 'kaldi/segments', 'kaldi'),
      ('write_run', 'run/config.gin', 'run'),
      ('write_run', 'metrics.csv', 'metrics.csv'),
      ('write_run', 'state.safetensors', 'state.safetensors'),
      ('write_run', 'ledger.jsonl', 'ledger.jsonl'),
  )
  def test_bytes(self, write, name, named):
    parse = getattr(self, write)()
    good = self.read(name)
    refused = 0
    for data in _damaged(good, seed=1):
      self.write(name, data)
      refused += self.check(parse, named=named, case=data[:200])
    self.assertGreater(refused, 0)
    self.write(name, good)
    parse()

  def test_shards(self):
    clients = client_data.load(self.write_clients())
    shard = index.shard_name(0)

    def reader(numbers):
      """Reads utterances as rounds do: their graph, without Python's lines."""
      rows = tf.nest.map_structure(
          tf.constant, clients.record_locations(list(numbers))
      )
      graph = tf.function(
          lambda: clients.read(rows, 10**6)['waveform'], autograph=False
      ).get_concrete_function().graph
      return tf.compat.v1.wrap_function(
          lambda: tf.graph_util.import_graph_def(
              graph.as_graph_def(), return_elements=[graph.outputs[0].name]
          ),
          signature=[],
      )

    readers = {numbers: reader(numbers) for numbers in ((0, 1), (2,))}

    @tf.function(autograph=False)  # Traced once for each client.
    def count(numbers):
      rows = clients.record_locations(list(numbers))
      return clients.read_dataset(rows).reduce(0, lambda total, _: total + 1)

    refused = 0
    damaged = _damaged(self.read(f'corpus/{shard}'), seed=4)
    for trial, data in enumerate(itertools.islice(damaged, 40)):
      self.write(f'corpus/{shard}', data)
      for numbers, read in readers.items():
        is_refused = self.check(read, named=shard)
        refused += is_refused
        if trial % 5 == 0:  # Beginning a dataset takes .1 s.
          self.assertEqual(
              self.check(lambda: count(numbers), named=shard), is_refused
          )
    self.assertGreater(refused, 0)
    self.assertLess(refused, 80)


_STATE = {'a': np.arange(6, dtype=np.float32), 'b': [1, 'x', None, 0.5]}

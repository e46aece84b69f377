"""Random bytes and structures in everything that parses files: clear errors.

Each trial damages a good file (bytes changed, cut, doubled, replaced by random
ones; in JSON also values of another kind) and reads it. It reads well, or ends
in an error that a program prints as one line that names the file. Seeded: a
trial fails or passes always.
"""

from collections.abc import Callable, Iterator
import copy
import dataclasses
import hashlib
import json
import os
import struct
import tempfile
from typing import Any
import zlib

from absl.testing import absltest
from absl.testing import parameterized
import numpy as np

from data_tools import an4
from data_tools import common_voice
from data_tools import librispeech
from tests import fakes
from tff_asr import config
from tff_asr.data import client_data
from tff_asr.data import index
from tff_asr.data import speakers
from tff_asr import errors
from tff_asr.privacy import accounting
from tff_asr.privacy import ledger
from tff_asr.programs import central
from tff_asr.storage import metrics_file
from tff_asr.storage import run_dir
from tff_asr.storage import state_file

_TRIALS = 150
_VALUES = (
    None, True, -1, 0, 2**70, 0.5, float('inf'), '', 'x', '\u0000', [], [1], {},
    {'a': 1}, [[]],
)


def _damaged(good: bytes, seed: int) -> Iterator[bytes]:
  """Variants of a file's bytes."""
  random = np.random.default_rng(seed)
  for _ in range(_TRIALS):
    data = bytearray(good)
    for _ in range(random.integers(1, 4)):
      start, end = sorted(random.integers(0, len(data) + 1, 2))
      match random.integers(6):
        case 0:
          data = data[:start]
        case 1:
          data = data[:start] + data[end:]
        case 2:
          data = data[:start] + data[start:end] * 2 + data[end:]
        case 3:
          data[start:end] = random.bytes(int(end - start))
        case 4:
          data = data[:start] + random.bytes(8) + data[start:]
        case _:
          if data:
            data[start % len(data)] ^= 1 << int(random.integers(8))
    yield bytes(data)


def _changed(value: Any, seed: int) -> Iterator[Any]:
  """Variants of a JSON value: one place of it holds something else."""
  random = np.random.default_rng(seed)
  for _ in range(_TRIALS):
    changed = [copy.deepcopy(value)]
    parent, key = changed, 0
    while isinstance(parent[key], (dict, list)) and parent[key] and (
        random.random() < 0.8
    ):
      parent = parent[key]
      keys = list(parent) if isinstance(parent, dict) else range(len(parent))
      key = keys[random.integers(len(keys))]
    if isinstance(parent, dict) and random.random() < 0.3:
      del parent[key]
    else:
      parent[key] = _VALUES[random.integers(len(_VALUES))]
    yield changed[0]


class FuzzTest(parameterized.TestCase):

  def setUp(self):
    super().setUp()
    self.root = self.enterContext(tempfile.TemporaryDirectory())

  def path(self, *names: str) -> str:
    return os.path.join(self.root, *names)

  def write(self, name: str, data: bytes) -> str:
    os.makedirs(os.path.dirname(self.path(name)), exist_ok=True)
    with open(self.path(name), 'wb') as f:
      f.write(data)
    return self.path(name)

  def read(self, name: str) -> bytes:
    with open(self.path(name), 'rb') as f:
      return f.read()

  def check(
      self, parse: Callable[[], Any], *, names: str, case: Any = ''
  ) -> bool:
    """Whether it was refused; fails unless that was in one clear line."""
    try:
      parse()
    except Exception as error:  # pylint: disable=broad-exception-caught
      if not errors.is_users(error):
        raise AssertionError(f'{case!r} gave {error!r}') from error
      for line in errors.lines(error):
        self.assertNotIn('\n', line)
        self.assertLess(len(line), 600)
      self.assertIn(names, ' '.join(errors.lines(error)), repr(error))
      return True
    return False

  def check_all(
      self, name: str, parse: Callable[[], Any], *, names: str, seed: int
  ) -> None:
    """Damages a file in all ways; some of them must be noticed."""
    good = self.read(name)
    refused = 0
    for data in _damaged(good, seed):
      self.write(name, data)
      refused += self.check(parse, names=names, case=data[:200])
    self.assertGreater(refused, 0)
    self.write(name, good)
    self.assertFalse(self.check(parse, names=''))

  def write_corpus(self) -> None:
    fakes.write_split(self.path('corpus'), {'ann': 2, 'bob': 1})

  @parameterized.parameters(
      index.CORPUS_FILE, index.CLIENTS_FILE, index.HASH_FILE
  )
  def test_index(self, name):
    self.write_corpus()
    self.check_all(
        f'corpus/{name}',
        lambda: index.read(self.path('corpus')),
        names=self.path('corpus'),
        seed=1,
    )

  def test_fields_of_the_index(self):
    self.write_corpus()
    name = f'corpus/{index.CORPUS_FILE}'
    for content in _changed(json.loads(self.read(name)), seed=2):
      self.write(name, json.dumps(content).encode())
      self.check(
          lambda: client_data.load(self.path('corpus')),
          names=self.path('corpus'),
          case=content,
      )

  def test_table_of_clients_behind_its_checksum(self):
    self.write_corpus()
    good = self.read(f'corpus/{index.CLIENTS_FILE}')
    for data in _damaged(good, seed=3):
      text = data.decode('utf-8', 'replace')
      self.check(
          lambda: index._parse_clients(self.path('corpus'), text),
          names=index.CLIENTS_FILE,
          case=text,
      )

  def test_attributes_of_speakers(self):
    self.write_corpus()
    speakers.write(
        self.path('corpus'),
        {'ann': {'age': 'teens'}},
        names=['age'],
        counts={'age': {'known': 1, 'contradictory': 0}},
    )
    corpus, _ = index.read(self.path('corpus'))
    self.check_all(
        f'corpus/{speakers.SPEAKERS_FILE}',
        lambda: speakers.read(corpus),
        names=speakers.SPEAKERS_FILE,
        seed=8,
    )
    # Behind its checksum.
    for data in _damaged(self.read(f'corpus/{speakers.SPEAKERS_FILE}'), seed=9):
      self.write(f'corpus/{speakers.SPEAKERS_FILE}', data)
      digest = hashlib.sha256(data).hexdigest()
      changed = dataclasses.replace(
          corpus, files=corpus.files | {speakers.SPEAKERS_FILE: digest}
      )
      self.check(
          lambda: speakers.read(changed),
          names=speakers.SPEAKERS_FILE,
          case=data,
      )

  def test_shards(self):
    self.write_corpus()
    name = f'corpus/{index.shard_name(0)}'
    good = self.read(name)
    clients = client_data.load(self.path('corpus'))
    refused = 0
    for data in _damaged(good, seed=4):
      self.write(name, data)
      for client_id in ('ann', 'bob'):
        # Opened anew: the first records are read when the dataset is made.
        refused += self.check(
            lambda: list(clients.create_tf_dataset_for_client(client_id)),
            names=index.shard_name(0),
        )
    self.assertGreater(refused, 0)

  def test_transcripts_of_librispeech(self):
    good = '84-1-0000 HE SAID SO\n84-1-0001 AND LEFT\n'.encode()
    name = 'libri/dev/84/1/84-1.trans.txt'
    self.write(name, good)
    for number in (0, 1):
      self.write(f'libri/dev/84/1/84-1-000{number}.flac', b'')
    self.check_all(
        name,
        lambda: librispeech.list_utterances(self.path('libri'), split='dev'),
        names='84-1',
        seed=5,
    )

  def test_transcripts_of_an4(self):
    self.write('an4/etc/an4_train.fileids', b'an4_clstk/fash/an251-fash-b\n')
    self.write(
        'an4/etc/an4_train.transcription', b'<s> YES </s> (an251-fash-b)\n'
    )
    self.write('an4/wav/an4_clstk/fash/an251-fash-b.sph', b'')
    for name in ('an4_train.fileids', 'an4_train.transcription'):
      self.check_all(
          f'an4/etc/{name}',
          lambda: an4.list_utterances(self.path('an4'), split='train'),
          names='an4',
          seed=6,
      )

  def test_tables_of_common_voice(self):
    self.write(
        'cv/train.tsv',
        'client_id\tpath\tsentence\nab\ta.mp3\tHallo Welt.\n'.encode(),
    )
    self.write('cv/clips/a.mp3', b'')
    self.check_all(
        'cv/train.tsv',
        lambda: common_voice.list_utterances(
            self.path('cv'), split='train', language='de'
        ),
        names='train.tsv',
        seed=7,
    )

  def write_ledger(self) -> str:
    path = self.path('ledger.jsonl')
    with ledger.create(path) as opened:
      for number in range(3):
        opened.append(ledger.Round(
            round_num=number,
            sampling=accounting.Sampling(
                kind='poisson', cohort_size=2, population=9
            ),
            noise_multipliers=(1.0,),
            configuration='c',
            identity=f'{number:064x}',
            result='',
        ))
    return path

  def test_ledger(self):
    path = self.write_ledger()
    self.check_all(
        'ledger.jsonl', lambda: ledger.read(path), names=path, seed=8
    )

  def test_fields_of_the_ledger_behind_its_hashes(self):
    path = self.write_ledger()
    lines = [json.loads(line) for line in self.read(path).splitlines()]
    for changed in _changed(lines, seed=9):
      try:
        self.write(path, fakes.sealed_ledger(changed))
      except (TypeError, ValueError):  # Not lines, or JSON has no infinity.
        continue
      self.check(lambda: ledger.read(path), names=path, case=changed)

  def write_state(self) -> str:
    path = self.path('state.bin')
    state_file.write_state(path, state=_STATE, metadata={'tokens': 'ab'})
    return path

  def test_checkpoints(self):
    path = self.write_state()
    self.check_all(
        'state.bin',
        lambda: state_file.read_state(path, structure=_STATE),
        names=path,
        seed=10,
    )

  def test_fields_of_checkpoints_behind_their_checksums(self):
    path = self.write_state()
    data = self.read(path)
    offset, length, _, end = state_file._TRAILER.unpack(data[-24:])
    manifest = json.loads(data[offset : offset + length])
    for changed in _changed(manifest, seed=11):
      text = json.dumps(changed).encode()
      self.write(path, data[:offset] + text + struct.pack(
          '<QQI4s', offset, len(text), zlib.crc32(text), end
      ))
      for parse in (
          lambda: state_file.read_state(path, structure=_STATE),
          lambda: state_file.read_leaves(path),
      ):
        self.check(parse, names=path, case=changed)

  def test_metrics(self):
    self.write('metrics.csv', b'round,a,b\n1,0.5,\n2,0.25,3.0\n')
    self.check_all(
        'metrics.csv',
        lambda: metrics_file.read(self.path('metrics.csv'), 'a'),
        names='metrics.csv',
        seed=12,
    )

  def test_configuration_of_a_run(self):
    with run_dir.RunDir(self.path('run'), configuration='A = 1\n') as run:
      run.state_manager.save_sync(_STATE, 0)
    self.check_all(
        'run/config.gin',
        lambda: run_dir.check_folder(
            self.path('run'), configuration='A = 1\n'
        ),
        names='run',
        seed=13,
    )

  def test_overrides_of_gin(self):
    refused = 0
    for good in ("DIM = 8", "TRAIN_DIR = 'x'", 'central.train.seed = 3',
                 'MODEL = @ctc.build()'):
      for data in _damaged(good.encode(), seed=14):
        text = data.decode('utf-8', 'replace')

        def bind():
          config.bind(
              central.train,
              gin_files=['gin/experiments/quickstart_seed.gin'],
              gin_params=[text],
          )

        refused += self.check(bind, names='', case=text)
    self.assertGreater(refused, 0)


_STATE = {'a': np.arange(6, dtype=np.float32), 'b': [1, 'x', b'y', None, 0.5]}


if __name__ == '__main__':
  absltest.main()

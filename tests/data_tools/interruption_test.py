"""A conversion that is killed, and one that is run again."""

import pathlib
import signal
import subprocess
import sys
import time

import numpy as np
import psutil
import pytest
import soundfile

from tests import cases

_ROOT = pathlib.Path(__file__).resolve().parents[2]
_NUM_UTTERANCES = 192


@pytest.mark.slow
class InterruptionTest(cases.TestCase):

  def setUp(self):
    super().setUp()
    self.folder = pathlib.Path(self.root)
    etc = self.folder / 'an4/etc'
    etc.mkdir(parents=True)
    generator = np.random.default_rng(1)
    ids = [f'{i % 16:02d}/u{i}' for i in range(_NUM_UTTERANCES)]
    texts = [f'YES (u{i})' for i in range(_NUM_UTTERANCES)]
    (etc / 'an4_train.fileids').write_text('\n'.join(ids))
    (etc / 'an4_train.transcription').write_text('\n'.join(texts))
    for name in ids:
      path = self.folder / f'an4/wav/{name}.wav'
      path.parent.mkdir(parents=True, exist_ok=True)
      noise = generator.integers(-9000, 9000, 40000).astype(np.int16)
      soundfile.write(path, noise, 16000)

  def start(self, output: str) -> subprocess.Popen:
    return subprocess.Popen(
        [
            sys.executable,
            '-m',
            'data_tools.an4',
            f'--source_dir={self.folder / "an4"}',
            f'--output_dir={self.folder / output}',
            '--encoding=flac',
            '--max_shard_mb=1',
        ],
        cwd=_ROOT,
        stdout=subprocess.DEVNULL,
    )

  def test_a_killed_conversion_resumes_and_gives_the_same_files(self):
    self.assertEqual(self.start('reference').wait(300), 0)
    killed = self.start('killed')
    journal = self.folder / 'killed/.train.partial/journal.jsonl'
    deadline = time.monotonic() + 300
    # The identity's line and those of three shards.
    while not journal.exists() or journal.read_text().count('\n') < 4:
      self.assertLess(time.monotonic(), deadline)
      self.assertIsNone(killed.poll(), 'It ended before it could be killed.')
      time.sleep(0.001)
    workers = psutil.Process(killed.pid).children()
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    self.assertNotEmpty(workers)
    # Workers end when their input does.
    _, alive = psutil.wait_procs(workers, timeout=60)
    self.assertEmpty(alive)
    self.assertFalse((self.folder / 'killed/train').exists())
    first = 'shard-00000.tfrecord'
    written = (journal.parent / first).stat().st_mtime_ns
    self.assertEqual(self.start('killed').wait(300), 0)
    self.assertFalse(journal.parent.exists())
    done = self.folder / 'killed/train'
    self.assertEqual(
        cases.digests(done), cases.digests(self.folder / 'reference/train')
    )
    self.assertEqual((done / first).stat().st_mtime_ns, written)

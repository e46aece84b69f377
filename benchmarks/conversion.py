r"""Speed of converting corpora to shards: hours of audio per minute.

    python -m benchmarks.conversion --speech=SPEECH_FOLDER

SPEECH_FOLDER holds an4/, LibriSpeech/dev-clean, common_voice/en and
untranscribed/SPEAKER/*.flac; what is missing is left out. Each corpus is
converted in a process of its own, as a user would, and again to the other
encodings. Wall time counts from the first utterance on: a program's start (it
loads TensorFlow) is told apart. CPU time is that of all its processes; it tells
what a machine with other work beside it hides.
"""

from tff_asr import launch  # First: quiets TensorFlow before it is loaded.

launch.begin(__name__)

import json
import os
import resource
import subprocess
import sys
import tempfile
import time

from absl import flags

from benchmarks import report

_SPEECH = flags.DEFINE_string('speech', None, 'Folder with the corpora.')

# Kind of source, program, where it lies, split, encoding.
_CORPORA = (
    ('AN4, sphere', 'an4', 'an4', 'train', 'pcm'),
    ('LibriSpeech, MP3', 'librispeech', 'LibriSpeech', 'dev-clean', 'pcm'),
    ('LibriSpeech, MP3', 'librispeech', 'LibriSpeech', 'dev-clean', 'flac'),
    ('Common Voice, MP3 48 kHz', 'common_voice', 'common_voice/en',
     'validated', 'pcm'),
    ('Libri-Light, FLAC', 'libri_light', '', 'untranscribed', 'pcm'),
)


def main(_) -> None:
  if not _SPEECH.value:
    raise ValueError('--speech is needed: a folder of corpora; see --help.')
  rows = [['source', 'encoding', 'hours', 'h a minute', 'h a CPU minute']]
  figures = {}
  start = _seconds('data_tools.an4', '--help')
  for kind, program, source, split, encoding in _CORPORA:
    folder = os.path.join(_SPEECH.value, source)
    if not os.path.isdir(os.path.join(folder, split)) and program in (
        'librispeech', 'libri_light'
    ) or not os.path.isdir(folder):
      continue
    with tempfile.TemporaryDirectory() as output:
      wall, cpu = _seconds(
          f'data_tools.{program}',
          f'--source_dir={folder}',
          f'--output_dir={output}',
          f'--splits={split}',
          f'--encoding={encoding}',
      )
      with open(os.path.join(output, 'summary.json'), encoding='utf-8') as f:
        hours = json.load(f)[split]['hours']
    wall, cpu = (max(a - b, 0.01) for a, b in zip((wall, cpu), start))
    rows.append([
        kind,
        encoding,
        f'{hours:.2f}',
        f'{60 * hours / wall:.1f}',
        f'{60 * hours / cpu:.1f}',
    ])
    figures[f'{kind}, {encoding}'] = {
        'hours': hours, 'wall_sec': wall, 'cpu_sec': cpu,
    }
  report.write('Conversion', rows, figures)


def _seconds(module: str, *arguments: str) -> tuple[float, float]:
  """Wall and CPU seconds of a program and its processes."""
  before = resource.getrusage(resource.RUSAGE_CHILDREN)
  started = time.perf_counter()
  done = subprocess.run(
      [sys.executable, '-m', module, *arguments],
      check=False,
      stdout=subprocess.DEVNULL,
  )
  if done.returncode not in (0, 1) or (done.returncode and arguments[1:]):
    raise RuntimeError(f'{module} ended with {done.returncode}.')
  wall = time.perf_counter() - started
  after = resource.getrusage(resource.RUSAGE_CHILDREN)
  cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
  return wall, cpu


if __name__ == '__main__':
  launch.run(main)

"""Parity of imported public models with `transformers`, as a table.

    python -m venv torch_env
    torch_env/bin/pip install -r requirements-pretrained-parity.txt
    python -m tools.pretrained_parity --python=torch_env/bin/python

makes models of random weights, loads them on both sides in separate processes
and prints how far outputs of all layers, gradients, and logits and transcripts
of models with a CTC head are apart. Theirs are of one utterance at a time, ours
of a padded batch. With the package of
requirements-whisper-tiny.txt on this side, Whisper tiny.en is compared with
CTranslate2, too. Exits with 1 if a line is beyond its tolerance.

`--models=published` takes models of the published sizes. `--write_expected`
writes the numbers of `transformers` for the tests.
"""

from tff_asr import launch  # First: quiets TensorFlow before it is loaded.

launch.install_early_sigint(__name__)

import json
import os
import subprocess
import sys
import tempfile

from absl import app
from absl import flags

from tools.parity import comparison
from tools.pretrained_parity import random_folders
from tools.pretrained_parity import tf_side
from tff_asr.pretrained import sources

Row = comparison.Row

_PYTHON = flags.DEFINE_string(
    'python',
    None,
    'Python with the packages of requirements-pretrained-parity.txt.',
)
_MODELS = flags.DEFINE_string(
    'models',
    'tiny',
    '`tiny`, `published`, or names of published ones, with commas.',
)
_WRITE_EXPECTED = flags.DEFINE_string(
    'write_expected',
    None,
    'File for the numbers of the tiny models: tests/pretrained/expected.json.',
)


def main(unused_argv) -> None:
  """Runs both sides and prints the table."""
  if not _PYTHON.value:
    raise app.UsageError('--python is needed.')
  if _MODELS.value == 'tiny':
    models = random_folders.TINY
  else:
    names = _MODELS.value.split(',')
    if names == ['published']:
      names = list(random_folders.PUBLISHED)
    models = {name: random_folders.PUBLISHED[name] for name in names}
  tiny_en = sources.package_folder('whisper-tiny.en')
  rows = [
      row
      for name in models
      for row in (
          Row(f'{name}/outputs', f'{name}: outputs of all layers', 'relative',
              1e-5),
          Row(f'{name}/gradient', 'gradients by weights', 'relative', 1e-5),
          Row(f'{name}/input_gradient', 'gradients by inputs', 'relative',
              1e-5),
          Row(f'{name}/saved', 'weights as `transformers` saves them',
              'relative', 1e-7),
      )
  ]
  rows += [
      row
      for name in random_folders.with_heads(models)
      for row in (
          Row(f'{name}/logits', f'{name}: logits', 'relative', 1e-5),
          Row(f'{name}/padded_logits', 'theirs padded, too, if they have masks',
              'relative', 1e-5),
          Row(f'{name}/text', 'greedy transcripts', 'largest', 0),
      )
  ]
  rows += [
      Row('log_mel', "Whisper's log mel, 80 and 128 bands", 'rms', 1e-5),
      Row('waveform', 'normalized waveform', 'rms', 1e-6),
  ]
  if tiny_en:
    # Of 30 s, float32 itself is up to 2e-5 of the largest output off, theirs
    # up to 9e-5, both by a float64 twin.
    rows += [
        Row('encode', 'whisper-tiny.en: outputs, theirs by CTranslate2',
            'relative', 1e-5),
        Row('encode', 'the same', 'largest', 1e-4),
    ]
  with tempfile.TemporaryDirectory() as folder:
    tf_side.prepare(folder, models, ctranslate2=tiny_en)
    script = os.path.join(os.path.dirname(__file__), 'torch_side.py')
    subprocess.run(
        [_PYTHON.value, script, folder], check=True, stdout=sys.stderr
    )
    theirs = tf_side.read_theirs(folder)
    lines = comparison.compare(tf_side.run(folder), theirs, rows)
  print(comparison.markdown(lines))
  if _WRITE_EXPECTED.value:
    numbers = tf_side.expected(
        {key: theirs[key] for key in theirs if not key.startswith('encode')}
    )
    with open(_WRITE_EXPECTED.value, 'w', encoding='utf-8') as f:
      f.write(json.dumps(numbers, indent=0, sort_keys=True) + '\n')
  if any(line.verdict == 'BEYOND' for line in lines):
    sys.exit(1)


if __name__ == '__main__':
  app.run(main)

"""A model card in Markdown, filled in from a run and the checks of its exports.

After Mitchell et al. 2019, "Model cards for model reporting"
(https://arxiv.org/abs/1810.03993). Every figure is read from the run, its data
folders or the checks; what is not there is said to be missing.
"""

import ast
from collections.abc import Sequence
import math
import os
import re
import statistics
from typing import Optional

from tff_asr.data import client_data
from tff_asr.data import summaries
from tff_asr.models import weights as weights_lib
from tff_asr.programs import public_data
from tff_asr.recognition import export
from tff_asr.recognition import recognizer as recognizer_lib
from tff_asr.reports import runs as runs_lib
from tff_asr.reports import speakers as speakers_lib
from tff_asr.reports import tables

CARD = 'model_card.md'

# The setting that names the folder which programs of a unit train on; they
# leave those of other programs unread.
_TRAINING = {
    'round': ('PRIVATE_DIR', 'trained on federatedly (private)'),
    'step': ('TRAIN_DIR', 'trained on'),
}
_DEV = ('DEV_DIR', 'watched during training')
_USE = '''\
```python
import numpy as np
import tensorflow as tf

server = tf.saved_model.load('saved_model').signatures['serving_default']
waveforms = np.zeros([1, 16000], np.int16)  # 16 kHz mono, of one length
heard = server(waveforms=tf.constant(waveforms),
               num_samples=tf.constant([16000]))
heard['text']         # string [B], UTF-8
heard['token_ids']    # int32 [B, U], -1 past an utterance's tokens

lite = tf.lite.Interpreter('model.float16.tflite').get_signature_runner()
lite(waveform=waveforms[:1])['token_ids']   # int32 [U]; see tokens.json
```

`tff-asr transcribe --run=FOLDER recording.wav` takes this folder: the weights
(`model.safetensors`, which `safetensors.numpy.load_file` reads, too) and the
model as JSON (`model_spec.json`).'''


def build(
    run: runs_lib.Run,
    *,
    recognizer: recognizer_lib.Recognizer,
    exports: Sequence[export.Check],
    data_dir: str,
) -> str:
  """Returns the card.

  Args:
    run: The run.
    recognizer: Its model.
    exports: What the checks of the exports found.
    data_dir: The folder of shards that they were checked on.
  """
  parts = [
      f'# Model card: {tables.plain(run.name)}',
      _model(run, recognizer),
      '## Use',
      f'For speech of 16 kHz, recordings of up to '
      f'{recognizer.pipeline.max_utterance_sec:g} s at once, the longest that '
      'training took (`bin/transcribe.py` cuts longer ones). It is not fit for '
      'decisions about people, and this card has no figure of other '
      'languages, microphones or rooms than those of the data that it names.',
      _USE,
      '## Data',
      _data(run),
      '## Word errors',
      _errors(run),
      '## Exports',
      _exports(run, exports, data_dir),
      '## Privacy',
      _privacy(run),
  ]
  return '\n\n'.join(parts) + '\n'


def _model(run: runs_lib.Run, recognizer: recognizer_lib.Recognizer) -> str:
  """The model, its size and its training."""
  model = recognizer.model
  how = 'federated training' if run.unit == 'round' else 'central training'
  seed = _literal(run, 'INIT_FROM_RUN')
  start = f', from the model of the run {_code(_base(seed))}' if seed else ''
  tokens = recognizer.pipeline.tokenizer.tokens
  characters = recognizer.pipeline.tokenizer.characters
  writes = f'the characters {_code(characters.replace(" ", "␣"))}'
  if len(tokens) > len(characters):
    writes = f'{len(tokens):,} sentence pieces of {writes}'
  return (
      f'A CTC speech recogniser of {weights_lib.count(model.specs):,} '
      f'parameters: {run.num_done:,} {run.unit}s of {how}{start}. Log-mel '
      f'features are computed inside. It writes {writes}, decoded greedily, '
      'without a language model.'
  )


def _data(run: runs_lib.Run) -> str:
  """The data folders that it used."""
  cells = [['data', 'what for', 'speakers', 'utterances', 'hours']]
  training = _TRAINING[run.unit]
  is_watched = any(name.startswith('dev_') for name in run.metrics)
  for name, purpose in (training, *([_DEV] if is_watched else [])):
    folder = _literal(run, name)
    if not folder:
      continue
    figures = ['not there when this card was made', '', '']
    if os.path.isdir(folder):
      summary = summaries.read(folder)
      figures = [
          f'{summary["num_clients"]:,}',
          f'{summary["num_utterances"]:,}',
          f'{summary["hours"]:.2f}',
      ]
      if name == training[0]:
        figures = [
            figure if told else 'not told'
            for figure, told in zip(figures, _told(run), strict=True)
        ]
    cells.append([_base(folder), purpose, *figures])
  if len(cells) == 1:
    return 'The configuration names no folder of data that the run used.'
  return tables.markdown(cells)


def _told(run: runs_lib.Run) -> tuple[bool, bool, bool]:
  """Whether the training data's speakers, utterances and hours may be told.

  An epsilon takes the number of its units to be public, and nothing else.
  """
  if run.unit == 'step':
    stated = run.privacy or {'rounds': 0, 'inherited_rounds': 0}
    if stated['rounds'] == stated['inherited_rounds']:
      return True, True, True  # The data are not those that are protected.
  if run.epsilon == math.inf:
    return True, True, True
  return (run.unit == 'round', run.unit == 'step', False)


def _errors(run: runs_lib.Run) -> str:
  """Word error rates of the evaluation, by speaker and group of speakers."""
  dev = run.metric('dev_word_error_rate')
  parts = []
  if dev:
    parts.append(
        f'Dev set, which training was watched on: {100 * dev[max(dev)]:.1f} % '
        'of words wrong at the last evaluation.'
    )
  if not run.speakers:
    parts.append('No test set: the run was not evaluated (`bin/evaluate.py`).')
    return '\n\n'.join(parts)
  speakers = speakers_lib.by_rate(run)
  median = statistics.median(each.rate for each in speakers)
  parts.append(
      f'Test set: {100 * run.test_errors.rate:.1f} % of '
      f'{run.test_errors.words:,} words wrong, {len(run.speakers):,} speakers. '
      f'By speaker: median {100 * median:.1f} %, the worst tenth of speakers '
      f'{100 * speakers_lib.worst_tenth(speakers):.1f} %, the worst '
      f'{100 * speakers[-1].rate:.1f} %.'
  )
  if words := _evaluated(run).words:
    parts.append(words)
  groups = tables.speaker_groups([run])
  parts.append(
      tables.markdown(groups)
      if len(groups) > 1
      else 'By gender, age or accent: not measured.'
  )
  return '\n\n'.join(parts)


def _evaluated(run: runs_lib.Run) -> public_data.Figures:
  """The evaluation's count of speakers who are private in training."""
  stored = run.evaluation.get('private', {})
  try:
    return public_data.Figures(
        int(stored['private_speakers']),
        stored['is_checked'] is True,
    )
  except (KeyError, TypeError, ValueError):
    return public_data.Figures(0, is_checked=False)


def _exports(
    run: runs_lib.Run, exports: Sequence[export.Check], data_dir: str
) -> str:
  """The table of checks."""
  first = exports[0]
  cells = [['file', 'MB', 'same text', 'WER %', 'minus the checkpoint']]
  for each in exports:
    gap = 100 * (each.errors.rate - each.checkpoint_errors.rate)
    cells.append([
        each.file,
        f'{each.num_bytes / 1e6:.2f}',
        f'{each.num_same:,} of {each.num_utterances:,}',
        f'{100 * each.errors.rate:.1f}',
        f'{gap:+.1f}',
    ])
  private = public_data.count_overlap(run.path, client_data.load(data_dir))
  return '\n\n'.join(filter(None, [
      f'Checked on {first.num_utterances:,} utterances '
      f'({first.errors.words:,} words) of {_base(data_dir)}, of which the '
      f'checkpoint has {100 * first.checkpoint_errors.rate:.1f} % wrong.',
      private.words,
      tables.markdown(cells),
  ]))


def _privacy(run: runs_lib.Run) -> str:
  """The statement, or that there is none."""
  if run.statement:
    # A fence that nothing inside can close.
    inside = max(map(len, re.findall('`+', run.statement)), default=0)
    fence = '`' * max(3, inside + 1)
    return f'{fence}\n{run.statement.rstrip()}\n{fence}'
  return (
      'NOT PRIVATE: the run has no privacy statement. Nothing says that the '
      'model was trained with differential privacy: it may have learned its '
      'speakers\' words by heart.'
  )


def _literal(run: runs_lib.Run, name: str) -> Optional[str]:
  """A text among the run's settings; None if it is none."""
  try:
    value = ast.literal_eval(run.settings.get(name, 'None').replace('\\\n', ''))
  except (ValueError, SyntaxError):
    return None
  return value if isinstance(value, str) else None


def _code(text: str) -> str:
  """A text as code, if it can be that."""
  is_code = text.isprintable() and '`' not in text
  return f'`{text}`' if is_code else tables.plain(text)


def _base(path: str) -> str:
  """The last part of a path: where it lies is nobody's business."""
  return os.path.basename(os.path.normpath(path))

"""A model card in Markdown, filled in from a run and the checks of its exports.

After Mitchell et al. 2019, "Model cards for model reporting"
(https://arxiv.org/abs/1810.03993). Every figure is read from the run, its data
folders or the checks; what is not there is said to be missing.
"""

import ast
from collections.abc import Mapping, Sequence
import os
import statistics
from typing import Any, Optional

from tff_asr.data import summaries
from tff_asr.models import weights as weights_lib
from tff_asr.recognition import exporting
from tff_asr.recognition import recognizer as recognizer_lib
from tff_asr.reports import run_record
from tff_asr.reports import speaker_groups
from tff_asr.reports import speaker_spread

CARD = 'model_card.md'

# The settings that name folders of shards, and what training did with them.
_DATA = {
    'TRAIN_DIR': 'trained on',
    'PRIVATE_DIR': 'trained on federatedly (private)',
    'DEV_DIR': 'watched during training',
}
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
```'''


def build(
    run: run_record.Run,
    *,
    recognizer: recognizer_lib.Recognizer,
    exports: Sequence[exporting.Check],
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
      f'# Model card: {run.name}',
      _model(run, recognizer),
      '## Use',
      f'For speech of 16 kHz, recordings of up to '
      f'{recognizer.pipeline.max_utterance_sec:g} s at once, the longest that '
      'training took (`bin/transcribe.py` cuts longer ones). It is not fit for '
      'decisions about people, and not tried on other languages, microphones '
      'or rooms than those of the data below.',
      _USE,
      '## Data',
      _data(run),
      '## Word errors',
      _errors(run),
      '## Exports',
      _exports(exports, data_dir),
      '## Privacy',
      _privacy(run),
  ]
  return '\n\n'.join(parts) + '\n'


def _model(run: run_record.Run, recognizer: recognizer_lib.Recognizer) -> str:
  """What it is and how it came about."""
  model = recognizer.model
  last = max((max(v) for v in run.metrics.values() if v), default=0)
  how = 'federated training' if run.unit == 'round' else 'central training'
  seed = _literal(run, 'INIT_FROM_RUN')
  start = f', from the model of the run `{_base(seed)}`' if seed else ''
  characters = recognizer.pipeline.tokenizer.characters
  return (
      f'A CTC speech recogniser of {weights_lib.count(model.specs):,} '
      f'parameters: {last:,} {run.unit}s of {how}{start}. Log-mel features '
      'are computed inside. It writes the characters '
      f'`{characters.replace(" ", "␣")}`, decoded greedily, without a '
      'language model.'
  )


def _data(run: run_record.Run) -> str:
  """The data folders that its configuration names."""
  lines = [
      '| data | what for | speakers | utterances | hours |',
      '|---|---|---|---|---|',
  ]
  for name, purpose in _DATA.items():
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
    lines.append(f'| {_base(folder)} | {purpose} | {" | ".join(figures)} |')
  if len(lines) == 2:
    return 'The run\'s configuration names no folder of data.'
  return '\n'.join(lines)


def _errors(run: run_record.Run) -> str:
  """Word error rates of the evaluation, by speaker."""
  dev = run.last('dev_word_error_rate')
  lines = []
  if dev is not None:
    lines.append(
        f'Dev set, which training was watched on: {100 * dev:.1f} % of words '
        'wrong at the last evaluation.'
    )
  if run.evaluation is None:
    lines.append(
        'No test set: the run was not evaluated (`bin/evaluate.py`).'
    )
    return '\n\n'.join(lines)
  evaluated = run.evaluation
  speakers = speaker_spread.by_rate(evaluated['speakers'])
  lines.append(
      f'Test set: {100 * evaluated["word_error_rate"]:.1f} % of '
      f'{evaluated["num_words"]:,} words wrong, '
      f'{evaluated["num_speakers"]:,} speakers. By speaker: median '
      f'{100 * statistics.median(s.rate for s in speakers):.1f} %, the worst '
      f'tenth of speakers {100 * speaker_spread.worst_tenth(speakers):.1f} %, '
      f'the worst {100 * speakers[-1].rate:.1f} %.'
  )
  lines.append(_groups(evaluated))
  return '\n\n'.join(lines)


def _groups(evaluated: Mapping[str, Any]) -> str:
  """Word error rates of groups of the test speakers."""
  found = speaker_groups.by_attribute(evaluated)
  if not found:
    return 'By gender, age or accent: not measured.'
  lines = ['| test speakers | number | WER % (95 %) |', '|---|---|---|']
  for name, groups in found.items():
    for value, group in groups.items():
      cell = f'{100 * group.rate:.1f}'
      if group.interval is not None:
        low, high = group.interval
        cell += f' ({100 * low:.1f} to {100 * high:.1f})'
      label = f'{name}: {value}'.replace('|', '\\|')
      lines.append(f'| {label} | {group.num_speakers:,} | {cell} |')
  return '\n'.join(lines)


def _exports(exports: Sequence[exporting.Check], data_dir: str) -> str:
  """The table of checks."""
  first = exports[0]
  lines = [
      f'Checked on {first.num_utterances:,} utterances '
      f'({first.errors.words:,} words) of {_base(data_dir)}, of which the '
      f'checkpoint has {100 * first.checkpoint_errors.rate:.1f} % wrong.',
      '',
      '| file | MB | same text | WER % | minus the checkpoint |',
      '|---|---|---|---|---|',
  ]
  for each in exports:
    gap = 100 * (each.errors.rate - each.checkpoint_errors.rate)
    lines.append(
        f'| {each.file} | {each.num_bytes / 1e6:.2f} '
        f'| {each.num_same:,} of {each.num_utterances:,} '
        f'| {100 * each.errors.rate:.1f} | {gap:+.1f} |'
    )
  return '\n'.join(lines)


def _privacy(run: run_record.Run) -> str:
  """The statement, or that there is none."""
  if run.statement:
    return f'```\n{run.statement.rstrip()}\n```'
  return (
      'NOT PRIVATE: the run has no privacy statement. The model was trained '
      'without differential privacy, and may have learned its speakers\' words '
      'by heart.'
  )


def _literal(run: run_record.Run, name: str) -> Optional[str]:
  """A text among the run's settings; None if it is none."""
  try:
    value = ast.literal_eval(run.settings.get(name, 'None').replace('\\\n', ''))
  except (ValueError, SyntaxError):
    return None
  return value if isinstance(value, str) else None


def _base(path: str) -> str:
  """The last part of a path: where it lies is nobody's business."""
  return os.path.basename(os.path.normpath(path))

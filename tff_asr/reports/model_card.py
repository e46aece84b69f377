"""Builds a model card in Markdown from a run and the checks of its exports.

After Mitchell et al. 2019, "Model cards for model reporting"
(https://arxiv.org/abs/1810.03993). All numbers are read from the run, its data
folders or the checks; missing ones are reported as missing.
"""

import ast
from collections.abc import Sequence
import math
import os
import statistics
from typing import Optional

from tff_asr.data import client_data
from tff_asr.data import split_summary
from tff_asr.models import weights as weights_lib
from tff_asr.programs import public_data
from tff_asr.recognition import export
from tff_asr.recognition import recognizer as recognizer_lib
from tff_asr.reports import runs as runs_lib
from tff_asr.reports import speakers as speakers_lib
from tff_asr.reports import tables

CARD = 'model_card.md'

# By unit of the run's metrics, the setting with the folder of training data.
_TRAINING = {
    'round': ('PRIVATE_DIR', 'federated training (private)'),
    'step': ('TRAIN_DIR', 'training'),
}
_DEV = ('DEV_DIR', 'evaluation during training')
_USE = '''\
```python
import numpy as np
import tensorflow as tf

server = tf.saved_model.load('saved_model').signatures['serving_default']
waveforms = np.zeros([1, 16000], np.int16)  # 16 kHz mono, of one length
outputs = server(waveforms=tf.constant(waveforms),
                 num_samples=tf.constant([16000]))
outputs['text']         # string [B], UTF-8
outputs['token_ids']    # int32 [B, U], -1 past an utterance's tokens

lite = tf.lite.Interpreter('model.float16.tflite').get_signature_runner()
lite(waveform=waveforms[:1])['token_ids']   # int32 [U]; see tokens.json
```

`tff-asr transcribe --run=FOLDER recording.wav` uses this folder: the weights
(`model.safetensors`, which `safetensors.numpy.load_file` also reads) and the
model as JSON (`model_spec.json`).'''


def build(
    run: runs_lib.Run,
    *,
    recognizer: recognizer_lib.Recognizer,
    exports: Sequence[export.Check],
    data_dir: str,
) -> str:
  """Builds the card.

  Args:
    run: The run.
    recognizer: Its model.
    exports: The checks of the exports.
    data_dir: The folder of shards that they were checked on.

  Returns:
    The card in Markdown.
  """
  parts = [
      f'# Model card: {tables.plain(run.name)}',
      _model(run, recognizer),
      '## Use',
      f'For speech at 16 kHz, in recordings of up to '
      f'{recognizer.pipeline.max_utterance_sec:g} s, the longest in training '
      '(`bin/transcribe.py` splits longer ones). Do not use it for decisions '
      'about people. Its errors in other languages, or with other microphones '
      'and rooms than those of the data below, are unknown.',
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
  """Describes the model, its size and its training."""
  model = recognizer.model
  how = 'federated training' if run.unit == 'round' else 'central training'
  seed = _literal(run, 'INIT_FROM_RUN')
  start = f', from the model of the run {_code(_base(seed))}' if seed else ''
  tokens = recognizer.pipeline.tokenizer.tokens
  characters = recognizer.pipeline.tokenizer.characters
  vocabulary = f'the characters {_code(characters.replace(" ", "␣"))}'
  if any(len(token) > 1 for token in tokens):
    vocabulary = f'{len(tokens):,} sentence pieces of {vocabulary}'
  return (
      f'A CTC speech recogniser of {weights_lib.num_parameters(model.specs):,} '
      f'trained parameters: {run.num_done:,} {run.unit}s of {how}{start}. '
      f'{_front_end(recognizer)} Its vocabulary is {vocabulary}, '
      'decoded greedily, without a language model.'
  )


def _front_end(recognizer: recognizer_lib.Recognizer) -> str:
  """Says from what the model computes, and names a public model."""
  public = recognizer.pipeline.front_end.public_model
  if public is None:
    return 'Log-mel features are computed inside.'
  return (
      f'It is built on the public model {tables.plain(public.name)} (licence '
      f'{tables.plain(public.licence)}, from {tables.plain(public.source)}, '
      f'SHA-256 `{public.sha256}`), whose encoder is computed inside. The data '
      'of that model are not known here, and no guarantee below covers them.'
  )


def _data(run: runs_lib.Run) -> str:
  """Returns the table of the data folders that the run used."""
  cells = [['data', 'use', 'speakers', 'utterances', 'hours']]
  training = _TRAINING[run.unit]
  # A dev set may be configured and never evaluated.
  is_watched = any(name.startswith('dev_') for name in run.metrics)
  for name, purpose in (training, *([_DEV] if is_watched else [])):
    folder = _literal(run, name)
    if not folder:
      continue
    counts = ['missing when this card was made', '', '']
    if os.path.isdir(folder):
      summary = split_summary.read(folder)
      counts = [
          f'{summary["num_clients"]:,}',
          f'{summary["num_utterances"]:,}',
          f'{summary["hours"]:.2f}',
      ]
      # The dev set is public; of training data only what epsilon allows.
      if name == training[0]:
        counts = [
            count if is_public else 'not public'
            for count, is_public in zip(counts, _public_counts(run))
        ]
    cells.append([_base(folder), purpose, *counts])
  if len(cells) == 1:
    return 'The configuration has no folder of data.'
  return tables.markdown(cells)


def _public_counts(run: runs_lib.Run) -> tuple[bool, bool, bool]:
  """Returns whether the counts of speakers, utterances and hours are public."""
  if run.unit == 'step':
    stated = run.privacy or {'rounds': 0, 'inherited_rounds': 0}
    if stated['rounds'] == stated['inherited_rounds']:
      return True, True, True  # No epsilon covers these data.
  # No guarantee, so no count needs protection.
  if run.epsilon == math.inf:
    return True, True, True
  # An epsilon takes the number of its privacy units to be public, and no more.
  return (run.unit == 'round', run.unit == 'step', False)


def _errors(run: runs_lib.Run) -> str:
  """Returns word error rates by speaker and by group of speakers."""
  dev = run.metric('dev_word_error_rate')
  parts = []
  if dev:
    parts.append(
        f'Dev set, evaluated during training: WER {100 * dev[max(dev)]:.1f} % '
        'at the last evaluation.'
    )
  if not run.speakers:
    parts.append('No test set: the run was not evaluated (`bin/evaluate.py`).')
    return '\n\n'.join(parts)
  speakers = speakers_lib.sorted_by_wer(run)
  # By speaker: an average over words hides those it fails.
  median = statistics.median(each.rate for each in speakers)
  parts.append(
      f'Test set: WER {100 * run.test_errors.rate:.1f} % on '
      f'{run.test_errors.words:,} words of {len(run.speakers):,} speakers. '
      f'By speaker: median {100 * median:.1f} %, the worst tenth of speakers '
      f'{100 * speakers_lib.worst_tenth(speakers):.1f} %, the worst '
      f'{100 * speakers[-1].rate:.1f} %.'
  )
  parts.append(_other_rates(run))
  private = public_data.OverlapCounts(**run.evaluation['private'])
  if private.words:
    parts.append(private.words)
  # Only a header if no attribute has two groups.
  groups = tables.speaker_groups([run])
  parts.append(
      tables.markdown(groups)
      if len(groups) > 1
      else 'By gender, age or accent: not measured.'
  )
  return '\n\n'.join(parts)


def _other_rates(run: runs_lib.Run) -> str:
  """Returns rates of characters and sentences, and those with an LM."""
  row = tables.Row(run.name, [run])
  # Evaluations that were written before sentences were counted have no SER.
  rates = lambda *measures: ', '.join(
      f'{measure.split()[0]} {tables.rate(row, measure)} %'
      for measure in measures if measure in run.scores
  )
  text = f'Characters and sentences: {rates(runs_lib.CER, runs_lib.SER)}.'
  if run.with_lm:
    with_lm = rates(
        runs_lib.WER_WITH_LM, runs_lib.CER_WITH_LM, runs_lib.SER_WITH_LM
    )
    text += (
        f' With the language model {tables.language_models(row)}: {with_lm}.'
    )
  if run.normalization:
    text += f' Both texts were normalised by {run.normalization}.'
  return tables.plain(text)


def _exports(
    run: runs_lib.Run, exports: Sequence[export.Check], data_dir: str
) -> str:
  """Returns the table of checks."""
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
  # Its error rates are exact, so private speakers in it must be named.
  private = public_data.count_overlap(run.path, client_data.load(data_dir))
  return '\n\n'.join(filter(None, [
      f'Checked on {first.num_utterances:,} utterances '
      f'({first.errors.words:,} words) of {_base(data_dir)}, on which the '
      f'checkpoint has WER {100 * first.checkpoint_errors.rate:.1f} %.',
      private.words,
      tables.markdown(cells),
  ]))


def _privacy(run: runs_lib.Run) -> str:
  """Returns the privacy report, or says that there is none."""
  if run.privacy_report:
    return f'```\n{run.privacy_report.rstrip()}\n```'
  return (
      'NOT PRIVATE: the run has no privacy report. Without one, assume that it '
      'was trained without differential privacy: the model may have memorised '
      'what its speakers said.'
  )


def _literal(run: runs_lib.Run, name: str) -> Optional[str]:
  """Returns a setting that is a str; None for any other."""
  try:
    # gin ends the lines of a long string with a backslash.
    value = ast.literal_eval(run.settings.get(name, 'None').replace('\\\n', ''))
  except (ValueError, SyntaxError):
    return None
  return value if isinstance(value, str) else None


def _code(text: str) -> str:
  """Formats a text as code where possible."""
  # A backquote would end the code, and a line end the paragraph.
  is_code = text.isprintable() and '`' not in text
  return f'`{text}`' if is_code else tables.plain(text)


def _base(path: str) -> str:
  """Returns the last part of a path; the folders above it are private."""
  return os.path.basename(os.path.normpath(path))

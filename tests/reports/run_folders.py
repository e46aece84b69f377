"""Folders as runs leave them, written by hand for tests of their readers."""

from collections.abc import Mapping
import dataclasses
import json
import math
import os
import pathlib
from typing import Any, Optional

from tff_asr.reports import runs

_ROUNDS = range(1, 4)
SEED = dict(
    settings={'NUM_STEPS': '20', 'LEARNING_RATE': '0.1', 'SEED': '1'},
    metrics={
        'train_loss': {10: 9.0, 20: 8.0},
        'dev_word_error_rate': {10: 0.9, 20: 0.8},
    },
    errors={'ann': (3, 4), 'bob': (5, 8)},
)
"""A central run's folder, for `read`."""

PRIVATE_METRICS = {
    'not_private/train_loss': {n: 9.0 - n for n in _ROUNDS},
    'dev_word_error_rate': {3: 0.4},
    'dev_loss': {3: 5.5},
    'epsilon': {n: 400.0 * n for n in _ROUNDS},
    'not_private/delta_norm': {1: 2.0, 2: math.nan, 3: 1.0},
    'not_private/clipped_clients': {n: 0.75 for n in _ROUNDS},
    'not_private/signal_norm': {n: 0.2 for n in _ROUNDS},
    'aggregator/noise_norm': {n: 0.1 for n in _ROUNDS},
}
"""Metrics of three rounds; the second has no clients."""


def write(
    folder: str,
    *,
    settings: Optional[Mapping[str, str]] = None,
    metrics: Optional[Mapping[str, Mapping[int, float]]] = None,
    privacy: Optional[dict[str, Any]] = None,
    results: Optional[dict[str, Any]] = None,
    hypotheses: Optional[list[tuple[str, str, str]]] = None,
    errors: Optional[Mapping[str, tuple[int, int]]] = None,
    errors_with_lm: Optional[Mapping[str, tuple[int, int]]] = None,
    attributes: Optional[Mapping[str, Mapping[str, str]]] = None,
    private: Optional[Mapping[str, Any]] = None,
) -> str:
  """Writes a run's folder; returns it.

  Args:
    folder: The folder to create.
    settings: Macros as gin text, by name.
    metrics: By name, then by round or step.
    privacy: Its privacy.json.
    results: Its results.json; None: it has not ended.
    hypotheses: Speaker, reference and hypothesis; None: not evaluated.
    errors: Substitutions and words of each speaker of the evaluation. There
      are four characters and two sentences for each word, and as many wrong
      ones as words.
    errors_with_lm: The same of the decoding with a language model.
    attributes: Attributes of speakers.
    private: Fields of `public_data.OverlapCounts` of the evaluation.
  """
  os.makedirs(folder)
  settings, metrics = settings or {}, metrics or {}

  def put(name: str, text: str) -> None:
    pathlib.Path(folder, name).write_text(text)

  put('config.gin', ''.join(f'{k} = {v}\n' for k, v in settings.items()))
  numbers = sorted({n for values in metrics.values() for n in values})
  rows = [','.join(['round', *metrics])] + [
      ','.join([str(n), *(str(v.get(n, '')) for v in metrics.values())])
      for n in numbers
  ]
  put('metrics.csv', '\n'.join(rows) + '\n')
  if privacy is not None:
    put('privacy_report.json', json.dumps(privacy))
    put('privacy_report.txt', f'Privacy report\n{privacy["verdict"]}\n')
  if results is not None:
    put('results.json', json.dumps(results))
  if errors is not None:
    put('test.json', json.dumps({
        **_counts(errors),
        **({} if errors_with_lm is None else {'with_lm': {
            'file': 'words.arpa', 'sha256': '0123456789', 'order': 2,
            'alpha': 0.5, 'beta': 1.5, 'temperature': 1.0,
            'beam_width': 32,
            **_counts(errors_with_lm),
        }}),
        'attributes': attributes or {},
        'private': private or {'private_speakers': 0, 'is_checked': False},
        'hypotheses': [
            {
                'client_id': speaker, 'utterance_id': f'{speaker}-{number}',
                'reference': reference, 'text': hypothesis,
            }
            for number, (speaker, reference, hypothesis) in enumerate(
                hypotheses or []
            )
        ],
    }))
  return folder


def _counts(errors: Mapping[str, tuple[int, int]]) -> dict[str, Any]:
  """The counts by speaker of one decoding."""
  return {
      field: {
          speaker: {
              'substitutions': count, 'deletions': 0, 'insertions': 0,
              unit: scale * words,
          }
          for speaker, (count, words) in errors.items()
      }
      for field, unit, scale in (
          ('speakers', 'words', 1), ('characters', 'characters', 4),
          ('sentences', 'sentences', 2),
      )
  }


def read(folder: str, **content: Any) -> runs.Run:
  """Writes a run's folder; reads it."""
  (run,) = runs.read([write(folder, **content)])
  return run


def with_private_evaluation(run: runs.Run) -> runs.Run:
  """Returns a run with an evaluation that counted more noise than words."""
  interval = lambda *ends: dict(zip(('estimate', 'low', 'high'), ends))
  evaluation = {
      'word_error_rate': interval(None, 0.1, 0.9),
      'quantiles': {'0.5': interval(0.25, 0.2, 0.3)},
      'histogram': [100.0, 190.0, 0.0, 3.0],
      'bin_half_width': 5.0,
      'num_people': interval(293.4, 280.0, 300.0),
      'epsilon': 0.5,
      'delta': 1e-5,
      'total_epsilon': 4.0,
      'trained_on': False,
  }
  return dataclasses.replace(run, private_evaluations=[evaluation])


def privacy(
    *,
    epsilon: Any = 1000.0,
    noise_multiplier: float = 0.1,
    cohort_size: int = 10,
    population: int = 100,
    rounds: int = 20,
) -> dict[str, Any]:
  """A privacy report's fields, those that are read."""
  return {
      'private': False,
      'verdict': f'NOT PRIVATE: epsilon is {epsilon}.',
      'delta': 1e-3,
      'epsilon': epsilon,
      'groups': [{
          'kind': 'poisson',
          'cohort_size': cohort_size,
          'population': population,
          'sampling_prob': cohort_size / population,
          'noise_multiplier': noise_multiplier,
          'rounds': rounds,
      }],
  }

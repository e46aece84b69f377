"""Evaluation of trained models as a program: words wrong, by speaker."""

from collections.abc import Sequence
import os
from typing import Any

import numpy as np
import tensorflow_federated as tff

from tff_asr import checks
from tff_asr import files
from tff_asr.data import pipeline as pipeline_lib
from tff_asr.data import speakers
from tff_asr.models import ctc
from tff_asr.programs import evaluation
from tff_asr.programs import progress as progress_lib
from tff_asr.storage import run_dir


def evaluate(
    *,
    runs: Sequence[str],
    model: ctc.CtcModel,
    pipeline: pipeline_lib.Pipeline,
    client_data: tff.simulation.datasets.ClientData,
    output_name: str = 'test.json',
) -> list[dict[str, Any]]:
  """Decodes all speakers of a data set with each run's model.

  Args:
    runs: Folders of runs with models of this configuration.
    model: The model.
    pipeline: Features, batches and the tokenizer.
    client_data: The speakers to decode.
    output_name: JSON file to write into each run's folder: the figures, the
      word errors of each speaker, what the data say of the speakers (gender,
      age, accent) and every hypothesis. The data are taken to be public: their
      transcripts are written out.

  Returns:
    What was written for each run.

  Raises:
    ValueError: For what is wrong with the arguments, together and before
      anything is decoded; or a file is damaged.
  """
  errors = []
  with checks.kept(errors):
    evaluation.check_characters(client_data, pipeline)
  with checks.kept(errors):
    _check_models(runs, model, pipeline)
  with checks.kept(errors):
    _check_outputs(runs, output_name)
  attributes = {}
  with checks.kept(errors):
    attributes = _attributes(client_data)
  checks.raise_together(errors)
  weights = [
      run_dir.read_model(run, model=model, tokens=pipeline.tokenizer.characters)
      for run in runs
  ]
  evaluator = evaluation.Evaluator(
      model=model, pipeline=pipeline, client_data=client_data
  )
  num_utterances = sum(
      map(client_data.num_utterances, client_data.client_ids)
  )
  results = []
  with progress_lib.Progress(
      description='evaluate', total=len(runs) * num_utterances, unit='utterance'
  ) as progress:
    for run, run_weights in zip(runs, weights, strict=True):
      evaluated = evaluator(run_weights, progress=progress.update)
      results.append(_figures(evaluated, attributes))
      files.write_json(os.path.join(run, output_name), results[-1])
  for run, figures in zip(runs, results, strict=True):
    print(
        f'{run}: WER {100 * figures["word_error_rate"]:.2f} % of '
        f'{figures["num_words"]} words of {figures["num_speakers"]} speakers'
    )
  return results


def _check_models(
    runs: Sequence[str], model: ctc.CtcModel, pipeline: pipeline_lib.Pipeline
) -> None:
  """Every run has a model, which fits."""
  if not runs or isinstance(runs, str):
    raise ValueError(f'runs must be a list of run folders, found {runs!r}.')
  twice = sorted({run for run in runs if runs.count(run) > 1})
  if twice:
    raise ValueError(f'runs holds {", ".join(twice)} more than once.')
  tokens = pipeline.tokenizer.characters
  errors = []
  for run in runs:
    with checks.kept(errors):
      run_dir.check_model(run, model=model, tokens=tokens)
  checks.raise_together(errors)


def _check_outputs(runs: Sequence[str], output_name: str) -> None:
  """What is written replaces nothing but an earlier evaluation."""
  is_file_name = os.path.basename(output_name) == output_name
  if not is_file_name or not output_name.endswith('.json'):
    raise ValueError(
        f"output_name must be a file name such as 'test.json', found "
        f'{output_name!r}.'
    )
  if output_name in run_dir.FILES:
    raise ValueError(
        f'output_name {output_name} is what training writes: take another.'
    )
  for run in runs:
    if os.path.isdir(run) and not os.access(run, os.W_OK | os.X_OK):
      raise ValueError(
          f'{run} is read-only, and the evaluation writes {output_name} there.'
      )


def _attributes(
    client_data: tff.simulation.datasets.ClientData,
) -> dict[str, dict[str, str]]:
  """What is known of the speakers to decode; of data in memory, nothing."""
  corpus = getattr(client_data, 'corpus', None)
  known = {} if corpus is None else speakers.read(corpus)
  return {
      client_id: known[client_id]
      for client_id in sorted(client_data.client_ids)
      if client_id in known
  }


def _figures(
    evaluated: evaluation.Evaluation,
    attributes: dict[str, dict[str, str]],
) -> dict[str, Any]:
  """An evaluation as JSON."""
  by_client = evaluated.errors_by_client()
  rates = [errors.rate for errors in by_client.values() if errors.words]
  return {
      'word_error_rate': evaluated.word_error_rate,
      'loss': evaluated.loss,
      'num_utterances': len(evaluated.hypotheses),
      'num_words': evaluated.errors.words,
      'num_speakers': len(by_client),
      'median_speaker_word_error_rate': float(np.median(rates)),
      'worst_speaker_word_error_rate': max(rates),
      'speakers': {
          client_id: errors._asdict() for client_id, errors in by_client.items()
      },
      'attributes': attributes,
      'hypotheses': [each._asdict() for each in evaluated.hypotheses],
  }

"""Evaluation of a trained model as a program: words wrong, by speaker."""

import json
import os
from typing import Any

import numpy as np
import tensorflow_federated as tff

from tff_asr.data import pipeline as pipeline_lib
from tff_asr.models import ctc
from tff_asr.programs import evaluation
from tff_asr.programs import outputs
from tff_asr.programs import progress as progress_lib


def evaluate(
    *,
    output_file: str,
    run: str,
    model: ctc.CtcModel,
    pipeline: pipeline_lib.Pipeline,
    client_data: tff.simulation.datasets.ClientData,
) -> dict[str, Any]:
  """Decodes all speakers of a data set with a run's model.

  Args:
    output_file: JSON file to write: the figures, the word errors of each
      speaker and every hypothesis (the data are public: they are written out).
    run: Folder of the run whose model is evaluated.
    model: The model.
    pipeline: Features, batches and the tokenizer.
    client_data: The speakers to decode.

  Returns:
    What was written.

  Raises:
    ValueError: The run's model does not fit, or the transcripts' characters
      are not tokens.
  """
  weights = outputs.read_model(
      run, model=model, tokens=pipeline.tokenizer.characters
  )
  evaluator = evaluation.Evaluator(
      model=model, pipeline=pipeline, client_data=client_data
  )
  total = sum(map(client_data.num_utterances, client_data.client_ids))
  with progress_lib.Progress(
      description='evaluate', total=total, unit='utterance'
  ) as progress:
    evaluated = evaluator(weights, progress=progress.update)
  by_client = evaluated.errors_by_client()
  rates = [errors.rate for errors in by_client.values() if errors.words]
  results = {
      'run': run,
      'word_error_rate': evaluated.word_error_rate,
      'loss': evaluated.loss,
      'num_utterances': len(evaluated.hypotheses),
      'num_words': evaluated.errors.words,
      'num_speakers': len(by_client),
      'speaker_word_error_rate': {
          'median': float(np.median(rates)) if rates else None,
          'worst': max(rates, default=None),
      },
      'speakers': {
          client_id: errors._asdict() for client_id, errors in by_client.items()
      },
      'hypotheses': [each._asdict() for each in evaluated.hypotheses],
  }
  folder = os.path.dirname(output_file)
  if folder:
    os.makedirs(folder, exist_ok=True)
  with open(output_file, 'w', encoding='utf-8') as f:
    json.dump(results, f, indent=1)
    f.write('\n')
  print(
      f'{run}: WER {100 * results["word_error_rate"]:.2f} % '
      f'({evaluated.errors.errors} errors in {evaluated.errors.words} words, '
      f'{len(by_client)} speakers, worst speaker '
      f'{100 * max(rates, default=float("nan")):.1f} %)'
  )
  return results

"""Checks of settings that must fit each other, before anything is written.

What one part demands of itself is checked where it is built.
"""

import os

import tensorflow_federated as tff

from tff_asr.data import pipeline as pipeline_lib


def check_another_run(init_from_run: str, output_dir: str) -> None:
  """Raises ValueError if a run would start from itself."""
  if os.path.realpath(init_from_run) == os.path.realpath(output_dir):
    raise ValueError(
        f'init_from_run and output_dir are both {output_dir}: a run cannot '
        'start from itself.'
    )


def check_characters(
    client_data: tff.simulation.datasets.ClientData,
    pipeline: pipeline_lib.Pipeline,
) -> None:
  """Raises ValueError if a corpus has characters that are not tokens.

  Data that do not describe their corpus (not made by `data.index`) are checked
  as they are read.
  """
  corpus = getattr(client_data, 'corpus', None)
  if corpus is None:
    return
  missing = pipeline.tokenizer.missing(corpus.characters)
  if missing:
    raise ValueError(
        f'transcripts of {corpus.path} have characters that are not tokens: '
        f'{" ".join(map(repr, missing))}; add them to the tokenizer or '
        'normalise the transcripts.'
    )


def check_durations(
    client_data: tff.simulation.datasets.ClientData,
    pipeline: pipeline_lib.Pipeline,
) -> None:
  """Raises ValueError if the longest utterance allowed is under the mean."""
  corpus = getattr(client_data, 'corpus', None)
  if corpus is None:
    return
  mean_sec = corpus.num_samples / corpus.num_utterances / corpus.sample_rate_hz
  if mean_sec > pipeline.max_utterance_sec:
    raise ValueError(
        f'max_utterance_sec {pipeline.max_utterance_sec} leaves out longer '
        f'utterances, and those of {corpus.path} last {mean_sec:.1f} s on '
        'average: raise it (and max_batch_sec with it).'
    )

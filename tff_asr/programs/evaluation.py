"""Greedy decoding of a data set and its error rates, by speaker.

`Evaluator` decodes with given weights, as training does. `evaluate` decodes
with the weights of finished runs and writes the results into their folders.

  B: batch size. S: output frames. V: vocabulary with blank.
"""

from collections.abc import Callable, Mapping, Sequence
import dataclasses
import functools
import os
from typing import Any, NamedTuple, Optional

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_asr import checks
from tff_asr import files
from tff_asr.data import client_data as client_data_lib
from tff_asr.data import pipeline as pipeline_lib
from tff_asr.data import speakers
from tff_asr.metrics import word_errors
from tff_asr.models import ctc
from tff_asr.models import weights as weights_lib
from tff_asr.programs import progress as progress_lib
from tff_asr.programs import public_data
from tff_asr.storage import run_dir


_PUBLISHED_ROWS = 8  # `pad_to_batch` of the published code.


class Hypothesis(NamedTuple):
  """A decoded utterance: `reference` is its transcript, `text` the output."""

  client_id: str
  utterance_id: str
  reference: str
  text: str


@dataclasses.dataclass(frozen=True)
class Evaluation:
  """A decoded data set.

  Attributes:
    hypotheses: One for each utterance, sorted by its id.
    loss: Mean CTC loss in nats of the utterances that have one (NaN if none).
    token_errors: Token errors of all utterances. The tokenizer's boundary
      tokens belong to the reference, and spaces at the ends of a hypothesis
      count. With sentence pieces, the same words in other pieces are errors.
    too_long: Ids of the utterances above the pipeline's `max_utterance_sec`,
      which are decoded, too.
    num_fill_rows: Rows that would pad the batches of the other utterances to a
      multiple of 8, as the published code pads them.
  """

  hypotheses: list[Hypothesis]
  loss: float
  token_errors: word_errors.WordErrors = word_errors.WordErrors()
  too_long: frozenset[str] = frozenset()
  num_fill_rows: int = 0

  def errors_by_client(self) -> dict[str, word_errors.WordErrors]:
    """Word errors of each speaker, sorted by speaker."""
    errors = {}
    for hypothesis in self.hypotheses:
      errors[hypothesis.client_id] = errors.get(
          hypothesis.client_id, word_errors.WordErrors()
      ) + word_errors.count(hypothesis.reference, hypothesis.text)
    return dict(sorted(errors.items()))

  @property
  def errors(self) -> word_errors.WordErrors:
    """Word errors of all utterances."""
    return word_errors.total(self.errors_by_client().values())

  @property
  def word_error_rate(self) -> float:
    return self.errors.rate

  @property
  def token_error_rate(self) -> float:
    return self.token_errors.rate

  @property
  def published_word_error_rate(self) -> float:
    """As the published code counts it: `word_errors.published_rate`."""
    return word_errors.published_rate(
        (
            word_errors.count(each.reference, each.text)
            for each in self.hypotheses
            if each.utterance_id not in self.too_long
        ),
        num_fill_rows=self.num_fill_rows,
    )

  def metrics(self) -> dict[str, float]:
    """Returns the metrics that a training run releases, by name."""
    return {
        'word_error_rate': self.word_error_rate,
        'token_error_rate': self.token_error_rate,
        'loss': self.loss,
    }


class Evaluator:
  """Decodes a data set with given weights; the graph is traced once.

  Attributes:
    client_data: The data set.
  """

  def __init__(
      self,
      *,
      model: ctc.CtcModel,
      pipeline: pipeline_lib.Pipeline,
      client_data: tff.simulation.datasets.ClientData,
  ):
    """Creates an evaluator.

    Args:
      model: The model.
      pipeline: Features and batches; also the tokenizer.
      client_data: The speakers to decode; all their utterances.

    Raises:
      ValueError: The transcripts have a character that is not a token.
    """
    check_corpus(client_data, pipeline)
    self._pipeline = pipeline
    self.client_data = client_data
    tokenizer = pipeline.tokenizer

    @tf.function(
        input_signature=[
            weights_lib.tensor_specs(model.specs),
            pipeline.batch_spec,
        ],
        autograph=False,
    )
    def decode(weights, batch):
      logits, lengths = model.logits(
          weights, batch['features'], batch['feature_lengths']
      )
      losses = ctc.loss(
          logits,
          lengths,
          batch['labels'],
          batch['label_lengths'],
          kernel=model.loss_kernel,
      )
      # Utterances too short for their transcripts have no CTC loss.
      usable = batch['example_weights'] > 0
      loss_sum = tf.reduce_sum(tf.where(usable, losses, 0.0))
      return (
          ctc.greedy_decode(logits, lengths),
          # Not the labels: an utterance without a loss has none.
          tokenizer.encode(batch['transcript']),
          loss_sum,
          tf.reduce_sum(batch['example_weights']),
      )

    self._decode = decode
    # Traced at the first evaluation, and not at each. With AutoGraph, which the
    # functions of users' own datasets may need.
    self._open = tf.function(self._batches, input_signature=[])

  def __call__(
      self,
      weights: weights_lib.Weights,
      *,
      progress: Optional[Callable[[int], Any]] = None,
  ) -> Evaluation:
    """Decodes the data set.

    Args:
      weights: float32 tensors or arrays by name.
      progress: Called with the number of utterances just decoded.
    """
    # Once, and not for each batch.
    weights = weights_lib.to_tensors(weights)
    tokenizer = self._pipeline.tokenizer
    hypotheses = []
    token_errors = word_errors.WordErrors()
    loss_sum = 0.0
    num_losses = 0.0
    too_long = set()
    num_fill_rows = 0
    for batch in self._open():
      tokens, reference_tokens, batch_loss_sum, batch_losses = self._decode(
          weights, batch
      )
      loss_sum += float(batch_loss_sum)
      num_losses += float(batch_losses)
      is_long = (batch['feature_lengths'] > self._pipeline.max_frames).numpy()
      too_long.update(
          name.decode() for name in batch['utterance_id'].numpy()[is_long]
      )
      # Rows of padding count as words in the published error rate.
      # `-n % 8` rows are missing to the next multiple of 8.
      num_fill_rows += int(-np.sum(~is_long) % _PUBLISHED_ROWS)
      rows = zip(
          batch['client_id'].numpy(),
          batch['utterance_id'].numpy(),
          batch['transcript'].numpy(),
          reference_tokens.to_list(),
          tokens.to_list(),
          strict=True,
      )
      for client_id, utterance_id, reference, reference_ids, ids in rows:
        token_errors += word_errors.count_tokens(reference_ids, ids)
        hypotheses.append(
            Hypothesis(
                client_id=client_id.decode(),
                utterance_id=utterance_id.decode(),
                reference=reference.decode(),
                # Boundary tokens decode to spaces at the ends.
                text=tokenizer.decode(ids).strip(),
            )
        )
      if progress is not None:
        progress(len(batch['utterance_id']))
    return Evaluation(
        # Batches are by length; sorted, runs can be compared.
        hypotheses=sorted(hypotheses, key=lambda each: each.utterance_id),
        # NaN and not 0, which would look like a perfect model.
        loss=loss_sum / num_losses if num_losses else float('nan'),
        token_errors=token_errors,
        too_long=frozenset(too_long),
        num_fill_rows=num_fill_rows,
    )

  def _batches(self) -> tf.data.Dataset:
    examples = tf.data.Dataset.from_tensor_slices(
        # Sorted, so that batches do not depend on the order of the ids.
        sorted(self.client_data.client_ids)
    ).flat_map(self.client_data.serializable_dataset_fn)
    return self._pipeline.evaluation_batches(examples)


def check_corpus(
    client_data: tff.simulation.datasets.ClientData,
    pipeline: pipeline_lib.Pipeline,
) -> None:
  """Raises ValueError if a corpus does not suit a pipeline.

  Its transcripts have characters that are not tokens, or it holds features of
  another front end. Without a tokenizer the model outputs no tokens, and any
  transcripts will do. Data without a corpus description (not made by
  `data.index`) are checked while they are read.
  """
  corpus = client_data_lib.corpus_of(client_data)
  if corpus is None:
    return
  pipeline.check_features(corpus.features, of=corpus.path)
  if pipeline.tokenizer is None:
    return
  missing = pipeline.tokenizer.missing(corpus.characters)
  if missing:
    raise ValueError(
        f'transcripts of {corpus.path} have characters that are not tokens: '
        f'{" ".join(map(repr, missing))}; add them to the tokenizer or '
        'normalise the transcripts.'
    )


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
    output_name: JSON file to write into each run's folder: the error rates;
      the word errors and known attributes (gender, age, accent) of each
      speaker; every hypothesis; and how many speakers the model's guarantee
      protects (`public_data.OverlapCounts`), which is also printed. It holds
      transcripts, so the data must be public.

  Returns:
    What was written for each run.

  Raises:
    ValueError: Arguments are wrong (one error for all of them, before anything
      is decoded), or a file is damaged.
  """
  tokens = pipeline.tokenizer.identity
  if not runs or isinstance(runs, str):
    raise ValueError(f'runs must be a list of run folders, found {runs!r}.')
  checks.check_all(
      lambda: check_corpus(client_data, pipeline),
      *(
          functools.partial(
              run_dir.check_model, run, model=model, tokens=tokens
          )
          for run in runs
      ),
      lambda: _check_output_name(output_name),
  )
  # Read before anything is decoded: a damaged file is found in seconds.
  attributes = _attributes(client_data)
  private = [public_data.count_overlap(run, client_data) for run in runs]
  read = functools.partial(run_dir.read_model, model=model, tokens=tokens)
  weights = list(map(read, runs))
  evaluator = Evaluator(
      model=model, pipeline=pipeline, client_data=client_data
  )
  num_utterances = sum(map(client_data.num_utterances, client_data.client_ids))
  results = []
  with progress_lib.Progress(
      description='evaluate', total=len(runs) * num_utterances, unit='utterance'
  ) as progress:
    for run, run_weights, counts in zip(runs, weights, private, strict=True):
      evaluated = evaluator(run_weights, progress=progress.update)
      # Written run by run: an interrupt keeps those that are done.
      results.append(_results(evaluated, attributes, counts))
      files.write_json(os.path.join(run, output_name), results[-1])
  for run, result, counts in zip(runs, results, private, strict=True):
    _print_result(run, result, counts)
  return results


def _print_result(
    run: str, result: Mapping[str, Any], private: public_data.OverlapCounts
) -> None:
  """Prints the error rates of a run, and a warning if there is one."""
  print(
      f'{run}: WER {100 * result["word_error_rate"]:.2f} % (TER '
      f'{100 * result["token_error_rate"]:.2f} %) of {result["num_words"]} '
      f'words of {result["num_speakers"]} speakers'
  )
  if private.words:
    print(f'{run}: {private.words}')


def _check_output_name(output_name: str) -> None:
  """Raises ValueError if an output would replace a file of training."""
  is_file_name = os.path.basename(output_name) == output_name
  if not is_file_name or not output_name.endswith('.json'):
    raise ValueError(
        f"output_name must be a file name such as 'test.json', found "
        f'{output_name!r}.'
    )
  # Reports read these files as what training wrote.
  if output_name in run_dir.FILES:
    raise ValueError(
        f'output_name {output_name} is what training writes: take another.'
    )


def _attributes(
    client_data: tff.simulation.datasets.ClientData,
) -> dict[str, dict[str, str]]:
  """Known attributes of the speakers; none for data in memory."""
  corpus = client_data_lib.corpus_of(client_data)
  known = {} if corpus is None else speakers.read(corpus)
  return {
      client_id: known[client_id]
      for client_id in sorted(client_data.client_ids)
      if client_id in known
  }


def _results(
    evaluated: Evaluation,
    attributes: dict[str, dict[str, str]],
    private: public_data.OverlapCounts,
) -> dict[str, Any]:
  """An evaluation as JSON."""
  by_client = evaluated.errors_by_client()
  # A speaker without words has no rate.
  rates = [errors.rate for errors in by_client.values() if errors.words]
  return {
      'word_error_rate': evaluated.word_error_rate,
      'token_error_rate': evaluated.token_error_rate,
      'published_word_error_rate': evaluated.published_word_error_rate,
      'loss': evaluated.loss,
      'num_utterances': len(evaluated.hypotheses),
      'num_words': evaluated.errors.words,
      'num_speakers': len(by_client),
      'median_speaker_word_error_rate': float(np.median(rates)),
      'worst_speaker_word_error_rate': max(rates),
      'private': private._asdict(),
      'speakers': {
          client_id: errors._asdict() for client_id, errors in by_client.items()
      },
      'attributes': attributes,
      'hypotheses': [each._asdict() for each in evaluated.hypotheses],
  }

"""Error rates of models that people adapt to themselves, by person.

`personalize` evaluates the models of finished runs before and after each client
has adapted a copy of them (`learning.personalization`), and writes the results
into the folders of the runs. Nothing is trained for others: the copies are
discarded.

The results are exact. Clients who are private in the training of a model are
therefore refused unless `exact_metrics` is set.
"""

from collections.abc import Iterator, Mapping, Sequence
import functools
import os
from typing import Any, NamedTuple, Optional

import numpy as np
import tensorflow_federated as tff

from tff_asr import checks
from tff_asr import files
from tff_asr.data import client_data as client_data_lib
from tff_asr.data import pipeline as pipeline_lib
from tff_asr.learning import personalization
from tff_asr.metrics import gains
from tff_asr.models import ctc
from tff_asr.models import weights as weights_lib
from tff_asr.programs import evaluation
from tff_asr.programs import progress as progress_lib
from tff_asr.programs import public_data
from tff_asr.programs import warm_start

# Clients of a call of the computation; each gets a row of its result.
_CLIENTS_PER_CALL = 100


class PersonResult(NamedTuple):
  """Counts of one person.

  Attributes:
    words: Words of the utterances evaluated on.
    errors: Word errors: before, then after each adaptation.
    sentences: Utterances evaluated on.
    wrong_sentences: Those with a word error: before, then after each
      adaptation.
    num_adapted: Utterances adapted on: 0, then for each adaptation.
  """

  words: int
  errors: list[int]
  sentences: int
  wrong_sentences: list[int]
  num_adapted: list[int]


class Personalizer:
  """Adapts models at clients and evaluates them; the graph is traced once.

  Attributes:
    client_data: The clients.
    adaptation: How they adapt the model.
  """

  def __init__(
      self,
      *,
      model: ctc.CtcModel,
      pipeline: pipeline_lib.Pipeline,
      client_data: tff.simulation.datasets.ClientData,
      adaptation: personalization.Adaptation,
  ):
    """Builds the computation.

    Args:
      model: The model.
      pipeline: Features and batches; also the tokenizer.
      client_data: The clients.
      adaptation: How they adapt the model.

    Raises:
      ValueError: As `evaluation.check_corpus` and `personalization.build`.
    """
    evaluation.check_corpus(client_data, pipeline, is_training=True)
    self.client_data = client_data
    self.adaptation = adaptation
    self._computation = personalization.build(
        model=model,
        pipeline=pipeline,
        client_data=client_data,
        adaptation=adaptation,
        measure=personalization.word_errors(model, pipeline.tokenizer),
        max_clients=_CLIENTS_PER_CALL,
    )

  async def __call__(
      self,
      weights: weights_lib.Weights,
      *,
      context: tff.framework.AsyncContext,
      progress: progress_lib.Progress,
  ) -> dict[str, PersonResult]:
    """Returns the counts of each client, sorted by id.

    Args:
      weights: float32 tensors or arrays by name.
      context: Runs the computation; see `tff_asr.execution`.
      progress: Is told how many clients are done.
    """
    tff.framework.set_default_context(context)
    weights = weights_lib.to_tensors(weights)
    people = {}
    client_ids = sorted(self.client_data.client_ids)
    for start in range(0, len(client_ids), _CLIENTS_PER_CALL):
      chosen = client_ids[start : start + _CLIENTS_PER_CALL]
      rows = await self._computation(
          weights, client_data_lib.client_arguments(self.client_data, chosen)
      )
      people.update(_people(rows))
      progress.update(len(chosen))
    return dict(sorted(people.items()))


async def personalize(
    *,
    runs: Sequence[str],
    context: tff.framework.AsyncContext,
    model: ctc.CtcModel,
    pipeline: pipeline_lib.Pipeline,
    client_data: tff.simulation.datasets.ClientData,
    adaptation: personalization.Adaptation,
    exact_metrics: bool = False,
    output_name: str = 'personalization.json',
) -> list[dict[str, Any]]:
  """Evaluates the models of runs before and after clients adapt them.

  Args:
    runs: Folders of runs with models of this configuration; adapters and
      low-rank changes that a run lacks begin without an effect
      (`warm_start.extend_weights`).
    context: Runs the clients' work; see `tff_asr.execution`.
    model: The model.
    pipeline: Features, batches and the tokenizer.
    client_data: The clients.
    adaptation: How they adapt the model.
    exact_metrics: Whether exact error rates of clients who are private in a
      run's training may be shown.
    output_name: JSON file to write into each run's folder: how clients adapted,
      the gains by number of utterances (`gains.Gains`), and the counts and the
      known attributes of each client.

  Returns:
    What was written for each run.

  Raises:
    ValueError: Arguments are wrong (one error for all of them), clients are
      private and exact_metrics is not set, or a file is damaged.
  """
  if not runs or isinstance(runs, str):
    raise ValueError(f'runs must be a list of run folders, found {runs!r}.')
  read = functools.partial(
      warm_start.extend_weights,
      model=model,
      tokens=pipeline.tokenizer.identity,
      public_sha256=pipeline.front_end.public_sha256,
      seed=adaptation.seed,
  )
  overlaps = [public_data.count_overlap(run, client_data) for run in runs]
  checks.check_all(
      lambda: evaluation.check_output_name(output_name),
      *(
          functools.partial(_check_private, run, overlap, exact_metrics)
          for run, overlap in zip(runs, overlaps, strict=True)
      ),
  )
  # Before the first client adapts: a damaged file is found in seconds.
  weights = list(map(read, runs))
  for run in runs:
    public_data.record(run, client_data, role='test')
  personalizer = Personalizer(
      model=model,
      pipeline=pipeline,
      client_data=client_data,
      adaptation=adaptation,
  )
  attributes = evaluation.attributes_of(client_data)
  results = []
  with progress_lib.Progress(
      description='personalize',
      total=len(runs) * len(client_data.client_ids),
      unit='client',
  ) as progress:
    for run, run_weights, overlap in zip(runs, weights, overlaps):
      people = await personalizer(
          run_weights, context=context, progress=progress
      )
      results.append(_results(people, adaptation, attributes, overlap))
      # Written run by run: an interrupt keeps those that are done.
      files.write_json(os.path.join(run, output_name), results[-1])
  for run, result, overlap in zip(runs, results, overlaps):
    _print_result(run, result, overlap)
  return results


def _check_private(
    run: str, overlap: public_data.OverlapCounts, exact_metrics: bool
) -> None:
  """Raises ValueError if exact error rates must not be shown."""
  if overlap.private_speakers and not exact_metrics:
    raise ValueError(
        f'{overlap.private_speakers:,} of these speakers are private in the '
        f'training of {run}, and the error rates of a personalisation are '
        'exact: take other speakers, or set EXACT_METRICS = True to show them '
        'without a guarantee.'
    )


def _people(
    rows: Mapping[str, np.ndarray]
) -> Iterator[tuple[str, PersonResult]]:
  """The clients of a call's result."""
  columns = {
      name: np.asarray(rows[name])
      for name in ('client_id', *PersonResult._fields)
  }
  # Words and sentences are the same in each evaluation.
  columns |= {name: columns[name][:, 0] for name in ('words', 'sentences')}
  columns = {name: values.tolist() for name, values in columns.items()}
  for client_id, *counts in zip(*columns.values(), strict=True):
    yield client_id.decode(), PersonResult(*counts)


def _results(
    people: Mapping[str, PersonResult],
    adaptation: personalization.Adaptation,
    attributes: Mapping[str, Mapping[str, str]],
    overlap: public_data.OverlapCounts,
) -> dict[str, Any]:
  """A personalisation as JSON."""
  local = adaptation.local
  return {
      'trained': list(adaptation.trained),
      'learning_rate': local.learning_rate,
      'num_steps': local.num_steps,
      'num_epochs': local.num_epochs,
      'proximal_weight': local.proximal_weight,
      'evaluation_share': adaptation.evaluation_share,
      'seed': adaptation.seed,
      'gains': [
          dict(num_utterances=number, **_summary(people, column, number))
          for column, number in enumerate(adaptation.num_utterances, 1)
      ],
      'people': {name: each._asdict() for name, each in people.items()},
      'attributes': dict(attributes),
      'private': overlap._asdict(),
  }


def _summary(
    people: Mapping[str, PersonResult], column: int, number: Optional[int]
) -> dict[str, Any]:
  """The gains of an adaptation, as JSON; empty if no person could adapt."""
  # People with fewer utterances would make the rows those of other adaptations.
  adapted = [
      each
      for each in people.values()
      if each.words and each.num_adapted[column] >= (number or 1)
  ]
  if not adapted:
    return {}
  summarize = lambda errors, units: gains.summarize(
      [getattr(each, errors)[0] for each in adapted],
      [getattr(each, errors)[column] for each in adapted],
      words=[getattr(each, units) for each in adapted],
  )
  words = summarize('errors', 'words')
  sentences = summarize('wrong_sentences', 'sentences')
  return words._asdict() | {
      'difference': words.difference._asdict(),
      'sentence_rate_before': sentences.rate_before,
      'sentence_rate_after': sentences.rate_after,
      'sentence_difference': sentences.difference._asdict(),
  }


def _print_result(
    run: str, result: Mapping[str, Any], overlap: public_data.OverlapCounts
) -> None:
  """Prints the gains of a run, and a warning if there is one."""
  for row in result['gains']:
    number = row['num_utterances']
    label = 'all utterances' if number is None else f'{number} utterances'
    # `_summary` was empty.
    if 'num_people' not in row:
      print(f'{run}, {label}: no person has that many.')
      continue
    percent = lambda name, of=row: f'{100 * of[name]:.1f}'
    ends = row['difference']
    print(
        f'{run}, {label}: WER {percent("rate_before")} to '
        f'{percent("rate_after")} % ({100 * ends["low"]:+.1f} to '
        f'{100 * ends["high"]:+.1f}), SER {percent("sentence_rate_before")} to '
        f'{percent("sentence_rate_after")} % of {row["num_people"]} people, '
        f'worst tenth {percent("worst_tenth_before")} to '
        f'{percent("worst_tenth_after")} %; better for '
        f'{100 * row["share_better"]:.0f} %, worse for '
        f'{100 * row["share_worse"]:.0f} %'
    )
  if overlap.words:
    print(f'{run}: {overlap.words}')

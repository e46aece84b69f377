"""Decoding of a data set and its error rates, by speaker.

`Evaluator` decodes with given weights, as training does. `evaluate` decodes
with the weights of finished runs and writes the results into their folders.
Decoding is greedy and, where there is a language model, also by beam search
over the same logits. `evaluate_recognizer` takes a public model as it is.

  B: batch size. S: output frames. V: vocabulary with blank.
"""

import collections
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
import concurrent.futures
import dataclasses
import functools
import os
from typing import Any, NamedTuple, Optional, Protocol

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_asr import checks
from tff_asr import files
from tff_asr.data import client_data as client_data_lib
from tff_asr.data import pipeline as pipeline_lib
from tff_asr.data import schema
from tff_asr.data import speakers
from tff_asr.decoding import hypothesis as hypothesis_lib
from tff_asr.decoding import language_model as language_model_lib
from tff_asr.execution import devices
from tff_asr.metrics import confidence
from tff_asr.metrics import normalization
from tff_asr.metrics import word_errors
from tff_asr.models import ctc
from tff_asr.models import weights as weights_lib
from tff_asr.programs import lm_tuning
from tff_asr.programs import progress as progress_lib
from tff_asr.programs import public_data
from tff_asr.storage import run_dir


_PUBLISHED_ROWS = 8  # `pad_to_batch` of the published code.
# The first fields of an `EvaluatedUtterance`.
_SPOKEN = (schema.CLIENT_ID, schema.UTTERANCE_ID, schema.TRANSCRIPT)

_Decoded = Mapping[str, tf.Tensor | tf.RaggedTensor]


class EvaluatedUtterance(NamedTuple):
  """A decoded utterance.

  Attributes:
    client_id: Its speaker.
    utterance_id: Its id.
    reference: Its transcript.
    text: The text that greedy decoding finds.
    text_with_lm: The text found with a language model; None without one.
  """

  client_id: str
  utterance_id: str
  reference: str
  text: str
  text_with_lm: Optional[str] = None


class Transcript(Protocol):
  """What is found in a waveform, as a `recognition.recognizer.Recognition`."""

  text: str


# Names and waveforms (int16 [N]) to their transcripts, in order.
Recognize = Callable[
    [Iterable[tuple[str, np.ndarray]]], Iterable[Transcript]
]
# Counts the errors of a hypothesis: reference and hypothesis to errors.
Count = Callable[[str, str], word_errors.WordErrors]


@dataclasses.dataclass(frozen=True)
class Evaluation:
  """A decoded data set.

  Attributes:
    hypotheses: One for each utterance, sorted by its id.
    loss: Mean CTC loss in nats of the utterances that have one (NaN if none);
      None, without token errors, for a model that is not one of CTC.
    token_errors: Token errors of all utterances. The tokenizer's boundary
      tokens belong to the reference, and spaces at the ends of a hypothesis
      count. With sentence pieces, the same words in other pieces are errors.
    too_long: Ids of the utterances above the pipeline's `max_utterance_sec`,
      which are decoded, too.
    num_fill_rows: Rows that would pad the batches of the other utterances to a
      multiple of 8, as the published code pads them.
    rules: Normalisation (`normalization.RULES`) before words, characters and
      sentences are compared. It does not apply to tokens and the published
      rate.
  """

  hypotheses: list[EvaluatedUtterance]
  loss: Optional[float] = None
  token_errors: word_errors.WordErrors = word_errors.WordErrors()
  too_long: frozenset[str] = frozenset()
  num_fill_rows: int = 0
  rules: Sequence[str] = ()

  def errors_by_client(
      self, *, count: Count = word_errors.count, field: str = 'text'
  ) -> dict[str, word_errors.WordErrors]:
    """Errors of each speaker, sorted by speaker.

    Args:
      count: Counts words, or characters or sentences (`word_errors`).
      field: The decoding: 'text' or 'text_with_lm'.
    """
    errors = {}
    for hypothesis in self.hypotheses:
      errors[hypothesis.client_id] = errors.get(
          hypothesis.client_id, word_errors.WordErrors()
      ) + count(
          *normalization.normalize(
              hypothesis.reference,
              getattr(hypothesis, field),
              rules=self.rules,
          )
      )
    return dict(sorted(errors.items()))

  @property
  def errors(self) -> word_errors.WordErrors:
    """Word errors of all utterances."""
    return word_errors.total(self.errors_by_client().values())

  @property
  def word_error_rate(self) -> float:
    return self.errors.rate

  @property
  def character_error_rate(self) -> float:
    return self._rate(word_errors.count_characters)

  @property
  def sentence_error_rate(self) -> float:
    return self._rate(word_errors.count_sentences)

  def _rate(self, count: Count) -> float:
    return word_errors.total(self.errors_by_client(count=count).values()).rate

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
        'character_error_rate': self.character_error_rate,
        'sentence_error_rate': self.sentence_error_rate,
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
      return {
          'logits': logits,
          'lengths': lengths,
          'ids': ctc.greedy_decode(logits, lengths),
          # Not the labels: an utterance without a loss has none.
          'reference_ids': tokenizer.encode(batch['transcript']),
          'loss_sum': loss_sum,
          'num_losses': tf.reduce_sum(batch['example_weights']),
      }

    self._decode = decode
    # Traced at the first evaluation, and not at each. With AutoGraph, which the
    # functions of users' own datasets may need.
    self._open = tf.function(self._batches, input_signature=[])

  def __call__(
      self,
      weights: weights_lib.Weights,
      *,
      progress: Optional[Callable[[int], Any]] = None,
      beam_search: Optional[hypothesis_lib.Decode] = None,
  ) -> Evaluation:
    """Decodes the data set.

    Args:
      weights: float32 tensors or arrays by name.
      progress: Called with the number of utterances just decoded.
      beam_search: Decodes the logits a second time, with a language model.
    """
    # Once, and not for each batch.
    weights = weights_lib.to_tensors(weights)
    hypotheses = []
    token_errors = word_errors.WordErrors()
    loss_sum = 0.0
    num_losses = 0.0
    too_long = set()
    num_fill_rows = 0
    for batch, decoded in self._decode_batches(weights):
      hypotheses += self._hypotheses(batch, decoded, beam_search)
      token_errors += word_errors.total(
          map(
              word_errors.count_tokens,
              decoded['reference_ids'].to_list(),
              decoded['ids'].to_list(),
          )
      )
      # In float64: a float32 sum over many batches loses digits.
      loss_sum += float(decoded['loss_sum'])
      # The loss is a mean over utterances, and batches differ in size.
      num_losses += float(decoded['num_losses'])
      is_long = (batch['feature_lengths'] > self._pipeline.max_frames).numpy()
      too_long.update(
          name.decode() for name in batch['utterance_id'].numpy()[is_long]
      )
      # Rows of padding count as words in the published error rate.
      # `-n % 8` rows are missing to the next multiple of 8.
      num_fill_rows += int(-np.sum(~is_long) % _PUBLISHED_ROWS)
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

  def _decode_batches(
      self, weights: weights_lib.Weights
  ) -> Iterator[tuple[Mapping[str, tf.Tensor], _Decoded]]:
    """Yields batches in order; cores that one's ops leave decode the next."""
    num_at_once = devices.num_ops_at_once()
    decoding = collections.deque()
    with concurrent.futures.ThreadPoolExecutor(num_at_once) as pool:
      for batch in self._open():
        decoding.append((batch, pool.submit(self._decode, weights, batch)))
        if len(decoding) > num_at_once:
          batch, decoded = decoding.popleft()
          yield batch, decoded.result()
      for batch, decoded in decoding:
        yield batch, decoded.result()

  def _hypotheses(
      self,
      batch: Mapping[str, tf.Tensor],
      decoded: _Decoded,
      beam_search: Optional[hypothesis_lib.Decode],
  ) -> list[EvaluatedUtterance]:
    """Returns the hypotheses of a batch."""
    texts_with_lm = [None] * len(batch['client_id'])
    if beam_search is not None:
      rows = zip(decoded['logits'].numpy(), decoded['lengths'].numpy())
      texts_with_lm = [
          beam_search(row[:length])[0].text for row, length in rows
      ]
    rows = zip(
        batch['client_id'].numpy(),
        batch['utterance_id'].numpy(),
        batch['transcript'].numpy(),
        decoded['ids'].to_list(),
        texts_with_lm,
        strict=True,
    )
    return [
        EvaluatedUtterance(
            client_id=client_id.decode(),
            utterance_id=utterance_id.decode(),
            reference=reference.decode(),
            # Boundary tokens decode to spaces at the ends.
            text=self._pipeline.tokenizer.decode(ids).strip(),
            text_with_lm=found,
        )
        for client_id, utterance_id, reference, ids, found in rows
    ]

  def logits(
      self, weights: weights_lib.Weights
  ) -> list[tuple[str, np.ndarray]]:
    """Returns the reference and the logits float32 [S, V] of each utterance."""
    kept = []

    def keep(found: np.ndarray) -> list[hypothesis_lib.Hypothesis]:
      # A copy, so that the batch's array can be freed. Its number is the text,
      # because hypotheses come in another order.
      kept.append(np.array(found))
      return [hypothesis_lib.Hypothesis(f'{len(kept) - 1}', [], 0.0)]

    decoded = self(weights, beam_search=keep)
    return [
        (each.reference, kept[int(each.text_with_lm)])
        for each in decoded.hypotheses
    ]

  def _batches(self) -> tf.data.Dataset:
    return self._pipeline.evaluation_batches(examples_of(self.client_data))


def examples_of(
    client_data: tff.simulation.datasets.ClientData, *, max_each: int = -1
) -> tf.data.Dataset:
  """Returns the utterances of all speakers, or the first ones of each."""
  of_each = client_data.serializable_dataset_fn
  if max_each >= 0:
    of_each = lambda each: client_data.serializable_dataset_fn(each).take(
        max_each
    )
  return tf.data.Dataset.from_tensor_slices(
      # Sorted, so that batches do not depend on the order of the ids.
      sorted(client_data.client_ids)
  ).flat_map(of_each)


def check_corpus(
    client_data: tff.simulation.datasets.ClientData,
    pipeline: pipeline_lib.Pipeline,
    *,
    is_training: bool = False,
) -> None:
  """Raises ValueError if a corpus does not suit a pipeline.

  Its transcripts have characters that are not tokens, it holds features of
  another front end, or it is trained on and holds features although waveforms
  are to be augmented. Without a tokenizer the model outputs no tokens, and any
  transcripts will do. Data without a corpus description (not made by
  `data.index`) are checked while they are read.
  """
  corpus = client_data_lib.corpus_of(client_data)
  if corpus is None:
    return
  pipeline.check_features(
      corpus.features, of=corpus.path, is_training=is_training
  )
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
    language_model: Optional[language_model_lib.LanguageModel] = None,
    dev_dir: Optional[str] = None,
    rules: Sequence[str] = (),
    output_name: str = 'test.json',
    compare: Optional[Callable[[Sequence[str], str], Iterable[str]]] = None,
) -> list[dict[str, Any]]:
  """Decodes all speakers of a data set with each run's model.

  Args:
    runs: Folders of runs with models of this configuration.
    model: The model.
    pipeline: Features, batches and the tokenizer.
    client_data: The speakers to decode.
    language_model: For a second decoding of the same logits, by beam search;
      None: greedy decoding only. Weights that it lacks are those that a run
      keeps for it (`lm_tuning`).
    dev_dir: Shards of public dev speakers. Weights that a run does not keep are
      tuned on them; None: those weights are the defaults.
    rules: Normalisation before words, characters and sentences are compared,
      named with the results: see `normalization.RULES`.
    output_name: JSON file to write into each run's folder: the error rates;
      the word, character and sentence errors and known attributes (gender, age,
      accent) of each speaker; every hypothesis; the same with the language
      model under `with_lm`, which names the model; and how many speakers the
      model's guarantee protects (`public_data.OverlapCounts`), which is also
      printed. It holds transcripts, so the data must be public.
    compare: Returns lines to print at the end, from the runs and `output_name`.

  Returns:
    What was written for each run.

  Raises:
    ValueError: Arguments are wrong (one error for all of them, before anything
      is decoded), or a file is damaged.
  """
  identities = dict(
      tokens=pipeline.tokenizer.identity,
      public_sha256=pipeline.front_end.public_sha256,
  )
  if not runs or isinstance(runs, str):
    raise ValueError(f'runs must be a list of run folders, found {runs!r}.')
  checks.check_all(
      lambda: check_corpus(client_data, pipeline),
      *(
          functools.partial(
              run_dir.check_model, run, model=model, **identities
          )
          for run in runs
      ),
      lambda: normalization.check(rules),
      lambda: check_output_name(output_name),
  )
  # Read before anything is decoded: a damaged file is found in seconds.
  searches = _Searches(
      runs, language_model, model=model, pipeline=pipeline, dev_dir=dev_dir
  )
  attributes = attributes_of(client_data)
  read = functools.partial(run_dir.read_model, model=model, **identities)
  weights = list(map(read, runs))
  private = [public_data.add(run, client_data, role='test') for run in runs]
  evaluator = Evaluator(
      model=model, pipeline=pipeline, client_data=client_data
  )
  num_utterances = sum(map(client_data.num_utterances, client_data.client_ids))
  results = []
  with progress_lib.Progress(
      description='evaluate', total=len(runs) * num_utterances, unit='utterance'
  ) as progress:
    for run, run_weights, counts in zip(runs, weights, private, strict=True):
      beam_search = searches.of(run, run_weights)
      evaluated = dataclasses.replace(
          evaluator(
              run_weights, progress=progress.update, beam_search=beam_search
          ),
          rules=rules,
      )
      # Written run by run: an interrupt keeps those that are done.
      results.append(_results(evaluated, attributes, counts, beam_search))
      files.write_json(os.path.join(run, output_name), results[-1])
  _print_results(runs, results)
  for line in compare(runs, output_name) if compare is not None else ():
    print(line)
  return results


def evaluate_recognizer(
    recognize: Recognize,
    *,
    name: str,
    client_data: tff.simulation.datasets.ClientData,
    rules: Sequence[str] = (),
    output_dir: Optional[str] = None,
) -> dict[str, Any]:
  """Transcribes all speakers of a data set, and prints the error rates.

  Args:
    recognize: Yields a transcript for each waveform, in order.
    name: The name of its model.
    client_data: The speakers, with audio.
    rules: As for `evaluate`.
    output_dir: A folder that gets the results as test.json, which names the
      `public_model` and lacks what only models of CTC have; None for no file.

  Returns:
    What is written.

  Raises:
    ValueError: An argument is wrong, output_dir is the folder of a run, or the
      data hold features.
  """
  normalization.check(rules)
  corpus = client_data_lib.corpus_of(client_data)
  if corpus is not None and corpus.features is not None:
    raise ValueError(
        f'{corpus.path} holds features, which {name} does not take: name the '
        'corpus of audio.'
    )
  if output_dir is not None:
    # Tables would take a run's own results for those of the public model.
    if os.path.exists(os.path.join(output_dir, run_dir.METRICS)):
      raise ValueError(f'{output_dir} is the folder of a run: name another.')
    checks.output_folders(output_dir=output_dir)
  spoken = collections.deque()

  def waveforms():
    for each in examples_of(client_data).as_numpy_iterator():
      names = [each[field].decode() for field in _SPOKEN]
      spoken.append(EvaluatedUtterance(*names, text=''))
      yield names[1], each[schema.WAVEFORM]

  hypotheses = []
  with progress_lib.Progress(
      description='evaluate',
      total=sum(map(client_data.num_utterances, client_data.client_ids)),
      unit='utterance',
  ) as progress:
    for found in recognize(waveforms()):
      # Waveforms may be read ahead.
      hypotheses.append(spoken.popleft()._replace(text=found.text))
      progress.update()
  result = {'public_model': name} | _results(
      Evaluation(
          sorted(hypotheses, key=lambda each: each.utterance_id), rules=rules
      ),
      attributes_of(client_data),
      # No run protects these speakers.
      public_data.OverlapCounts(0, True),
  )
  if output_dir is not None:
    os.makedirs(output_dir, exist_ok=True)
    files.write_json(os.path.join(output_dir, 'test.json'), result)
  _print_result(name, result)
  return result


def _print_results(
    runs: Sequence[str], results: Sequence[Mapping[str, Any]]
) -> None:
  """Prints the error rates of each run, and names each language model once."""
  for run, result in zip(runs, results, strict=True):
    _print_result(run, result)
  labels = (
      language_model_lib.label(result['with_lm'])
      for result in results
      if 'with_lm' in result
  )
  for label in dict.fromkeys(labels):
    print(f'LM: {label}')


class _Searches:
  """The beam search of each run, with its own weights."""

  def __init__(
      self,
      runs: Sequence[str],
      language_model: Optional[language_model_lib.LanguageModel],
      *,
      model: ctc.CtcModel,
      pipeline: pipeline_lib.Pipeline,
      dev_dir: Optional[str],
  ):
    """Reads everything, so that bad input is found before decoding."""
    self._search = self._evaluator = None
    if language_model is None:
      return
    self._search = language_model_lib.BeamSearch(
        language_model, tokens=pipeline.tokenizer.tokens
    )
    self._models = {
        run: lm_tuning.tuned(run, language_model) for run in runs
    }
    untuned = [
        run
        for run, each in self._models.items()
        if None in each.weights
    ]
    if dev_dir is None or not untuned:
      return
    dev_data = client_data_lib.load(dev_dir)
    checks.check_all(
        *(
            functools.partial(public_data.check, run, dev_data, role='tuning')
            for run in untuned
        )
    )
    self._evaluator = Evaluator(
        model=model, pipeline=pipeline, client_data=dev_data
    )

  def of(
      self, run: str, weights: weights_lib.Weights
  ) -> Optional[language_model_lib.BeamSearch]:
    """Returns the search with the weights of a run, tuned now if need be."""
    if self._search is None:
      return None
    known = self._models[run].weights
    if self._evaluator is None or None not in known:
      self._search.set_weights(known)
    else:
      lm_tuning.tune(
          run,
          dev_data=self._evaluator.client_data,
          decoded=self._evaluator.logits(weights),
          beam_search=self._search,
      )
    return self._search


def _print_result(run: str, result: Mapping[str, Any]) -> None:
  """Prints the error rates of a run, and a warning if there is one."""
  percent = lambda name, of=result: f'{100 * of[name]:.2f} %'
  rules = ', '.join(result['normalization'])
  ter = ''
  if 'token_error_rate' in result:
    ter = f' (TER {percent("token_error_rate")})'
  print(
      f'{run}: WER {percent("word_error_rate")}{_interval(result)}, CER '
      f'{percent("character_error_rate")}, SER '
      f'{percent("sentence_error_rate")}{ter} '
      f'of {result["num_words"]:,} words of {result["num_speakers"]} speakers'
      + (f', normalised by {rules}' if rules else '')
  )
  if with_lm := result.get('with_lm'):
    print(
        f'  with LM: WER {percent("word_error_rate", with_lm)}, CER '
        f'{percent("character_error_rate", with_lm)}, SER '
        f'{percent("sentence_error_rate", with_lm)} (weight '
        f'{with_lm["alpha"]:g}, word bonus {with_lm["beta"]:g}, temperature '
        f'{with_lm["temperature"]:g})'
    )
  if words := public_data.OverlapCounts(**result['private']).words:
    print(f'{run}: {words}')


def _interval(result: Mapping[str, Any]) -> str:
  """Formats the interval of a word error rate; empty with one speaker."""
  counts = [
      (sum(each.values()) - each['words'], each['words'])
      for each in result['speakers'].values()
  ]
  if len(counts) < 2:
    return ''
  _, low, high = confidence.rate(*zip(*counts))
  return f' ({100 * low:.2f} to {100 * high:.2f})'


def check_output_name(output_name: str) -> None:
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


def attributes_of(
    client_data: tff.simulation.datasets.ClientData,
) -> dict[str, dict[str, str]]:
  """Returns known attributes of the speakers; none for data in memory."""
  corpus = client_data_lib.corpus_of(client_data)
  known = {} if corpus is None else speakers.read_attributes(corpus)
  return {
      client_id: known[client_id]
      for client_id in sorted(client_data.client_ids)
      if client_id in known
  }


def _results(
    evaluated: Evaluation,
    attributes: dict[str, dict[str, str]],
    private: public_data.OverlapCounts,
    beam_search: Optional[language_model_lib.BeamSearch] = None,
) -> dict[str, Any]:
  """An evaluation as JSON."""
  with_lm = {}
  of_ctc = {} if evaluated.loss is None else {
      'token_error_rate': evaluated.token_error_rate,
      'published_word_error_rate': evaluated.published_word_error_rate,
      'loss': evaluated.loss,
  }
  if beam_search is not None:
    counts = _error_counts(evaluated, field='text_with_lm')
    with_lm['with_lm'] = beam_search.describe() | counts
  by_client = evaluated.errors_by_client()
  # A speaker without words has no rate.
  rates = [errors.rate for errors in by_client.values() if errors.words]
  return {
      **_error_counts(evaluated, field='text'),
      **with_lm,
      **of_ctc,
      'num_utterances': len(evaluated.hypotheses),
      'num_words': evaluated.errors.words,
      'num_speakers': len(by_client),
      'median_speaker_word_error_rate': float(np.median(rates)),
      'worst_speaker_word_error_rate': max(rates),
      'normalization': [*evaluated.rules],
      'private': private._asdict(),
      'attributes': attributes,
      'hypotheses': [
          {k: v for k, v in each._asdict().items() if v is not None}
          for each in evaluated.hypotheses
      ],
  }


def _error_counts(evaluated: Evaluation, *, field: str) -> dict[str, Any]:
  """Rates and counts by speaker of one decoding, as JSON."""
  found = {}
  for unit, counts, count in (
      ('word', 'speakers', word_errors.count),
      ('character', 'characters', word_errors.count_characters),
      ('sentence', 'sentences', word_errors.count_sentences),
  ):
    errors = evaluated.errors_by_client(count=count, field=field)
    found[f'{unit}_error_rate'] = word_errors.total(errors.values()).rate
    found[counts] = {
        client_id: {
            'substitutions': each.substitutions,
            'deletions': each.deletions,
            'insertions': each.insertions,
            f'{unit}s': each.words,
        }
        for client_id, each in errors.items()
    }
  return found

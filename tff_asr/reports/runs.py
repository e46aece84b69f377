"""Reads run folders: settings, metrics, word errors, privacy.

Fields are None or empty for a run that is in progress or was not evaluated.
"""

from collections.abc import Mapping, Sequence
import contextlib
import dataclasses
import functools
import glob
import os
import re
from typing import Any, Never, NotRequired, Optional, TypedDict

import tensorflow as tf

from tff_asr import checks
from tff_asr import files
from tff_asr.metrics import word_errors
from tff_asr.storage import metrics_file
from tff_asr.storage import run_dir
from tff_asr.storage import tensor_file

EVALUATION = 'test.json'
PERSONALIZATION = 'personalization.json'

# What an evaluation measures, as columns of tables name it.
WER, CER, SER = 'WER', 'CER', 'SER'
WER_WITH_LM, CER_WITH_LM = 'WER with LM', 'CER with LM'
SER_WITH_LM = 'SER with LM'

# Tags of metrics of a layer. metrics.csv has only those of the whole model.
_BY_LAYER = re.compile(
    r'(?:^|/)((?:clipped_)?layer_norm|layer_(?:gradient_norm|clipped))/(.*)'
)


class Rounds(TypedDict):
  """Rounds of one kind in privacy_report.json."""
  kind: str
  cohort_size: int
  population: int
  noise_multiplier: float
  noise_over_clip: NotRequired[Optional[float]]
  rounds: int


class Privacy(TypedDict):
  """Fields of privacy_report.json that reports use."""
  private: bool
  delta: float
  epsilon: float | str  # 'inf', because JSON has no infinity.
  groups: list[Rounds]
  rounds_over_noise: NotRequired[float | str | None]
  layer_noise: NotRequired[dict[str, float]]
  has_layer_clips: NotRequired[bool]
  releases: NotRequired[dict[str, int]]  # Rounds that released no model.


class EvaluatedUtterance(TypedDict):
  """An evaluated utterance in test.json."""
  client_id: str
  utterance_id: str
  reference: str
  text: str
  text_with_lm: NotRequired[str]


class ErrorCounts(TypedDict):
  """Counts of word, character and sentence errors by speaker, one decoding's.
  """
  speakers: dict[str, dict[str, int]]
  characters: dict[str, dict[str, int]]
  sentences: NotRequired[dict[str, dict[str, int]]]  # Not in older files.


class DecodingWithLm(ErrorCounts):
  """The decoding with a language model, and what names the model."""
  file: str
  text: NotRequired[str]
  sha256: str
  order: int
  alpha: float
  beta: float
  beam_width: int


class Evaluation(ErrorCounts):
  """Fields of test.json; attributes are by speaker."""
  public_model: NotRequired[str]  # Only of one that no run has trained.
  hypotheses: list[EvaluatedUtterance]
  attributes: dict[str, dict[str, str]]
  private: dict[str, int | bool]
  normalization: list[str]
  with_lm: NotRequired[DecodingWithLm]


class PersonResult(TypedDict):
  """Counts of a person in personalization.json, before and after."""
  words: int
  errors: list[int]
  num_adapted: list[int]


class Personalization(TypedDict):
  """Fields of personalization.json; `gains` are of `metrics.gains`."""
  trained: list[str]
  gains: list[dict[str, Any]]
  people: dict[str, PersonResult]
  attributes: dict[str, dict[str, str]]
  private: dict[str, int | bool]


class PrivateEvaluation(TypedDict):
  """Fields of an evaluation in private_evaluation.json.

  Intervals have `estimate`, `low` and `high`; an estimate may be None.
  """
  word_error_rate: dict[str, Optional[float]]
  quantiles: dict[str, dict[str, Optional[float]]]
  histogram: list[float]
  bin_half_width: float
  num_people: dict[str, Optional[float]]
  epsilon: float | str
  delta: float
  total_epsilon: float | str
  trained_on: bool
  round: NotRequired[int]  # Of training, after which it was done.


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Run:
  """A run, as read from its folder.

  Attributes:
    name: Its name in tables and plots.
    path: Its folder.
    configuration: The text of its config.gin.
    settings: The macros set there, as text, by name.
    metrics: The released metrics of the whole model: by name, by round or step.
    results: Its results.json; None: it has not ended. Its duration is missing
      where an epsilon is claimed.
    privacy: Its privacy_report.json, or None.
    privacy_report: Its privacy_report.txt, or empty.
    evaluation: The file of an evaluation, or None.
    scores: Errors of the evaluated speakers: by what was measured (`WER` and
      others), then by name, in order. Empty: not evaluated.
    personalization: Its personalization.json, or None.
    private_evaluations: Its private_evaluation.json, the oldest first.
  """

  name: str
  path: str
  configuration: str
  settings: Mapping[str, str]
  metrics: Mapping[str, Mapping[int, float]]
  results: Optional[Mapping[str, tensor_file.Json]] = None
  privacy: Optional[Privacy] = None
  privacy_report: str = ''
  evaluation: Optional[Evaluation] = None
  scores: Mapping[str, Mapping[str, word_errors.WordErrors]] = (
      dataclasses.field(default_factory=dict)
  )
  personalization: Optional[Personalization] = None
  private_evaluations: Sequence[PrivateEvaluation] = ()

  @property
  def public_model(self) -> str:
    """Returns the model that no run has trained; empty for a run."""
    return (self.evaluation or {}).get('public_model', '')

  @property
  def unit(self) -> str:
    """Returns the unit of its metrics: 'round' or 'step'."""
    # Only gin/programs/federated.gin sets this macro.
    return 'round' if 'NUM_ROUNDS' in self.settings else 'step'

  @property
  def num_done(self) -> int:
    """Returns the number of rounds or steps with metrics."""
    return max((max(v) for v in self.metrics.values() if v), default=0)

  @property
  def epsilon(self) -> Optional[float]:
    """Returns the epsilon of its privacy report; None without one."""
    return None if self.privacy is None else float(self.privacy['epsilon'])

  @property
  def is_public(self) -> bool:
    """Returns whether its training data count as public.

    A central run without a ledger gives no guarantee, so its data must be
    public.
    """
    # A run that goes on has a ledger before it has a report.
    has_ledger = os.path.exists(os.path.join(self.path, run_dir.LEDGER))
    return self.unit == 'step' and not has_ledger and not self.privacy_report

  @property
  def rounds(self) -> Rounds | dict[str, Never]:
    """Returns the last training rounds of its report; empty without one."""
    # Those before are of seed models, those after of private evaluations.
    privacy = self.privacy or {}
    num_evaluations = privacy.get('releases', {}).get('evaluation', 0)
    for group in reversed(privacy.get('groups', [])):
      if group['rounds'] > num_evaluations:
        return group
      num_evaluations -= group['rounds']
    return {}

  @property
  def final_evaluations(self) -> Sequence[PrivateEvaluation]:
    """Returns its private evaluations; of those in training, the last."""
    found = self.private_evaluations
    last = max((each.get('round', 0) for each in found), default=0)
    return [each for each in found if each.get('round', last) == last]

  @property
  def speakers(self) -> Mapping[str, word_errors.WordErrors]:
    """Returns word errors of the evaluated speakers, decoded greedily."""
    return self.scores.get(WER, {})

  @property
  def normalization(self) -> str:
    """Returns the rules by which texts were compared; empty without any."""
    return ', '.join((self.evaluation or {}).get('normalization', ()))

  @property
  def with_lm(self) -> Optional[DecodingWithLm]:
    """Returns the evaluation's decoding with a language model, or None."""
    return (self.evaluation or {}).get('with_lm')

  @property
  def test_errors(self) -> word_errors.WordErrors:
    """Returns the word errors of all speakers of the evaluation."""
    return word_errors.total(self.speakers.values())

  def metric(self, name: str) -> Mapping[int, float]:
    """Returns a metric by round or step; `not_private/` may be left out."""
    for full in (name, f'not_private/{name}'):
      if full in self.metrics:
        return self.metrics[full]
    return {}

  def last(self, name: str) -> Optional[float]:
    """Returns the last value of a metric, or None if never released."""
    values = self.metric(name)
    return values[max(values)] if values else None

  @functools.cached_property
  def layers(self) -> dict[str, dict[str, dict[int, float]]]:
    """Returns metrics of layers, from TensorBoard: by name, layer, round.

    A resumed run has released some rounds twice; the later release counts.
    """
    paths = glob.glob(os.path.join(self.path, run_dir.TENSORBOARD, 'events.*'))
    found = {}
    # Oldest first, so that a later release of a round replaces an earlier one.
    for path in sorted(paths, key=os.path.getmtime):
      # The last record of a run in progress may be incomplete.
      with contextlib.suppress(tf.errors.DataLossError):
        for event in tf.compat.v1.train.summary_iterator(path):
          for value in event.summary.value:
            if match := _BY_LAYER.search(value.tag):
              metric, layer = match.groups()
              by_layer = found.setdefault(metric, {}).setdefault(layer, {})
              by_layer[event.step] = float(tf.make_ndarray(value.tensor))
    return found


def read(
    paths: Sequence[str], *, evaluation: str = EVALUATION
) -> list[Run]:
  """Reads the folders of runs.

  Args:
    paths: The folders.
    evaluation: Name of the file that an evaluation wrote there.

  Raises:
    ValueError: A folder is not a run's, is named twice, or a file in it is
      damaged; for several of them together.
  """
  # A path with and without a slash is one folder.
  paths = [os.path.normpath(path) for path in paths]
  twice = sorted({path for path in paths if paths.count(path) > 1})
  if twice:
    raise ValueError(f'{", ".join(twice)} is given more than once.')
  runs, errors = [], []
  for path, name in zip(paths, _names(paths), strict=True):
    try:
      runs.append(_read(path, name=name, evaluation=evaluation))
    except ValueError as e:
      errors.append(e)
  checks.raise_errors(errors)
  return runs


def _read(path: str, *, name: str, evaluation: str) -> Run:
  """Reads a folder."""
  evaluated = _json(path, evaluation)
  configuration, metrics = '', {}
  # A public model that was evaluated as it is has no run.
  if 'public_model' not in (evaluated or {}):
    configuration = _text(run_dir.file_of(path, run_dir.CONFIG))
    file = os.path.join(path, run_dir.METRICS)
    if not os.path.isfile(file):
      raise ValueError(f'{path} has no {run_dir.METRICS}: has the run begun?')
    metrics = metrics_file.read(file)
  results = _json(path, run_dir.RESULTS)
  privacy = _json(path, run_dir.PRIVACY_REPORT_JSON)
  return Run(
      name=name,
      path=path,
      configuration=configuration,
      settings=run_dir.macros_of_text(configuration),
      metrics=metrics,
      results=results,
      privacy=privacy,
      privacy_report=_text(os.path.join(path, run_dir.PRIVACY_REPORT)),
      evaluation=evaluated,
      scores=_scores(evaluated, of=os.path.join(path, evaluation)),
      personalization=_json(path, PERSONALIZATION),
      private_evaluations=_json(path, run_dir.PRIVATE_EVALUATION, list) or (),
  )


def _scores(
    evaluation: Optional[Evaluation], *, of: str
) -> dict[str, dict[str, word_errors.WordErrors]]:
  """Returns all errors of an evaluation's speakers, sorted by name."""
  if evaluation is None:
    return {}
  try:
    found = _measures(evaluation, WER, CER, SER)
    if 'with_lm' in evaluation:
      found |= _measures(
          evaluation['with_lm'], WER_WITH_LM, CER_WITH_LM, SER_WITH_LM
      )
  except KeyError as e:
    raise ValueError(f'{of} has no {e}: evaluate the run again.') from None
  return found


def _measures(
    counts: ErrorCounts, words: str, characters: str, sentences: str
) -> dict[str, dict[str, word_errors.WordErrors]]:
  """Returns errors by measure and speaker of one decoding."""
  kinds = ('substitutions', 'deletions', 'insertions')
  return {
      measure: {
          name: word_errors.WordErrors(
              *(each[kind] for kind in kinds), words=each[unit]
          )
          for name, each in sorted(counts[field].items())
      }
      for measure, field, unit in (
          (words, 'speakers', 'words'),
          (characters, 'characters', 'characters'),
          (sentences, 'sentences', 'sentences'),
      )
      # Evaluations that were written before sentences were counted.
      if field != 'sentences' or field in counts
  }


def _names(paths: Sequence[str]) -> list[str]:
  """Returns the shortest distinct ends of the paths."""
  parts = [os.path.abspath(path).split(os.sep) for path in paths]
  # From the last folder up, until no two names are equal.
  for count in range(1, max(map(len, parts), default=0) + 1):
    names = ['/'.join(each[-count:]) for each in parts]
    if len(set(names)) == len(names):
      return names
  return list(paths)


def _text(path: str) -> str:
  """Reads a file's text; empty without the file."""
  if not os.path.exists(path):
    return ''
  # An unreadable byte must not end a report.
  return files.read(path).decode(errors='replace')


def _json(folder: str, name: str, kind: type = dict) -> Any:
  """Reads a JSON file of a folder; None without the file."""
  path = os.path.join(folder, name)
  if not os.path.exists(path):
    return None
  def of_kind(content):
    if not isinstance(content, kind):
      raise ValueError(f'it is not a {kind.__name__}')
    return content

  return files.read_json(
      path, of_kind, remedy='train or evaluate the run again'
  )

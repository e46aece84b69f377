"""Weights of a language model, tuned on dev speakers and kept in the run.

`tune` searches logits of the dev speakers with several model weights at higher
and higher temperatures, while these help, and then with several word bonuses.
What it chooses goes into decoding.json of the run's folder, by the SHA-256 of
the language model; evaluation, transcription and the demo read it there. Each
time that is the first that has no more word errors than the best by one
standard error (Breiman et al. 1984), so that a few dev speakers rarely move the
defaults.

How well settings can be compared depends on the number of errors, so a model
that errs often is tuned on fewer utterances: random ones, until the defaults
make 200 errors. Searches of such a model are the slow ones.

The weights depend on no other data. No noise protects the dev speakers, so they
must be public: those who are private in the run's training are refused.
"""

from collections.abc import Sequence
import dataclasses
import os
from typing import TypedDict

import numpy as np
import tensorflow_federated as tff

from tff_asr import files
from tff_asr.decoding import language_model as language_model_lib
from tff_asr.metrics import word_errors
from tff_asr.programs import public_data
from tff_asr.storage import run_dir

ALPHAS = (0.5, 0.25, 0.75, 1.0)
BETAS = (1.5, 0.0, 3.0)
TEMPERATURES = (1.0, 1.25, 1.5, 1.75, 2.0)
"""What is tried; the defaults come first."""

# On generated speech, of models with a WER of 34 and 42 % this chose settings
# .3 and .9 points worse than 480 and 580 errors did, in half and a third of the
# time; draws of utterances differed by .5 and .6 (standard deviation).
_ENOUGH_ERRORS = 200


class Tuned(TypedDict):
  """An entry of decoding.json."""
  file: str
  alpha: float
  beta: float
  temperature: float
  num_dev_speakers: int
  # Of the utterances that were searched.
  num_dev_words: int
  # alpha, beta, temperature, and the word error rate.
  dev_word_error_rates: list[tuple[float, float, float, float]]


def read(run: str) -> dict[str, Tuned]:
  """Reads the weights that were tuned for a run, by the model's SHA-256.

  Raises:
    ValueError: The file is damaged.
  """
  path = os.path.join(run, run_dir.DECODING)
  if not os.path.exists(path):
    return {}
  return files.read_json(
      path, _checked, remedy='delete it and evaluate the run again'
  )


def _checked(content: dict[str, Tuned]) -> dict[str, Tuned]:
  """The content, if all of its weights are numbers."""
  # Here and not at the first use, after a decoding that takes hours.
  for entry in content.values():
    sum(float(entry[name]) for name in language_model_lib.Weights._fields)
  return content


def tuned(
    run: str, language_model: language_model_lib.LanguageModel
) -> language_model_lib.LanguageModel:
  """Returns a language model with the weights that a run keeps for it.

  Weights that the language model has stay; without kept ones, none are set.
  """
  kept = read(run).get(language_model.sha256)
  if kept is None:
    return language_model
  return dataclasses.replace(
      language_model,
      **{
          name: kept[name]
          for name in language_model_lib.Weights._fields
          if getattr(language_model, name) is None
      },
  )


def tune(
    run: str,
    *,
    dev_data: tff.simulation.datasets.ClientData,
    decoded: Sequence[tuple[str, np.ndarray]],
    beam_search: language_model_lib.BeamSearch,
) -> Tuned:
  """Tunes the weights of a run's language model, and keeps them in the run.

  Args:
    run: The run's folder.
    dev_data: The dev speakers.
    decoded: References, and logits float32 [S, V], of their utterances.
    beam_search: The search, with the language model; gets the best weights.

  Raises:
    ValueError: As `public_data.check`, or there are no words.
  """
  public_data.check(run, dev_data, role='tuning')
  if not any(reference.split() for reference, _ in decoded):
    raise ValueError('the dev speakers have no words to tune weights on.')
  public_data.record(run, dev_data, role='tuning')
  errors = _Errors(decoded, beam_search=beam_search)
  tried, fewest = [], np.inf
  for temperature in TEMPERATURES:
    row = [
        language_model_lib.Weights(alpha, BETAS[0], temperature)
        for alpha in ALPHAS
    ]
    tried += row
    found = min(errors.of(weights).sum() for weights in row)
    if found > fewest:
      # Higher ones search more tokens, which takes minutes, and are worse.
      break
    fewest = found
  first = errors.best(tried)
  chosen = errors.best([first._replace(beta=beta) for beta in BETAS])
  beam_search.set_weights(chosen)
  entry = Tuned(
      file=os.path.basename(beam_search.language_model.path),
      **chosen._asdict(),
      num_dev_speakers=len(dev_data.client_ids),
      num_dev_words=errors.num_words,
      dev_word_error_rates=[
          (*weights, float(row.sum() / errors.num_words))
          for weights, row in errors.found.items()
      ],
  )
  files.write_json(
      os.path.join(run, run_dir.DECODING),
      read(run) | {beam_search.language_model.sha256: entry},
  )
  return entry


class _Errors:
  """Word errors of enough utterances, by the weights that were tried.

  Attributes:
    num_words: In their references.
    found: The weights to the errors of each utterance, int [utterances].
  """

  def __init__(
      self,
      decoded: Sequence[tuple[str, np.ndarray]],
      *,
      beam_search: language_model_lib.BeamSearch,
  ):
    self._search = beam_search
    self._decoded, errors = [], []
    beam_search.set_weights(language_model_lib.DEFAULTS)
    for i in np.random.default_rng(0).permutation(len(decoded)):
      self._decoded.append(decoded[i])
      errors.append(self._count(*decoded[i]))
      if sum(errors) >= _ENOUGH_ERRORS:
        break
    self.num_words = sum(
        len(reference.split()) for reference, _ in self._decoded
    )
    self.found = {language_model_lib.DEFAULTS: np.array(errors)}

  def of(self, weights: language_model_lib.Weights) -> np.ndarray:
    """Returns the errors of each utterance; searches the first time."""
    if weights not in self.found:
      self._search.set_weights(weights)
      self.found[weights] = np.array([
          self._count(reference, logits) for reference, logits in self._decoded
      ])
    return self.found[weights]

  def _count(self, reference: str, logits: np.ndarray) -> int:
    """Returns the errors of an utterance with the weights of the search."""
    return word_errors.count(reference, self._search(logits)[0].text).errors

  def best(
      self, tried: Sequence[language_model_lib.Weights]
  ) -> language_model_lib.Weights:
    """Returns the weights to take, of several with the preferred ones first."""
    return tried[_choose(np.array([self.of(each) for each in tried]))]


def _choose(errors: np.ndarray) -> int:
  """Chooses a row of word errors, int [weights, utterances]; see the top."""
  best = errors[errors.sum(axis=1).argmin()]
  # Paired by utterance: most are decoded alike.
  differences = errors - best
  # The standard error of a sum of differences over utterances.
  is_close = differences.sum(axis=1) <= np.sqrt((differences**2).sum(axis=1))
  return int(is_close.argmax())

"""Beam search with an n-gram language model: an optional extra.

pyctcdecode searches over CTC prefixes with the score

    log p(frames | text) + alpha ln p_LM(text) + beta (number of words)

where p_LM is a KenLM model. It needs the packages of requirements-lm.txt, which
are not in requirements.txt.

  S: output frames. V: vocabulary with blank.
"""

from collections.abc import Iterator, Mapping, Sequence
import dataclasses
import functools
import logging
import os
from typing import Optional

import numpy as np

from tff_asr import checks
from tff_asr import files
from tff_asr.decoding import hypothesis

ALPHA = 0.5
BETA = 1.5
BEAM_WIDTH = 32

_INSTALL = (
    'a language model needs further packages; install them with: '
    'pip install --no-deps -r requirements-lm.txt'
)
_ENDINGS = ('.arpa', '.bin', '.binary')


@dataclasses.dataclass(frozen=True, kw_only=True)
class LanguageModel:
  """An n-gram model and its weights in the search.

  Attributes:
    path: A KenLM model, .arpa or binary. With .arpa, prefixes of unknown words
      are scored as unlikely.
    alpha: Weight of the model, at least 0.
    beta: Bonus for each word, which counteracts joined words.
    beam_width: Number of prefixes kept, at least 1.
  """

  path: str
  alpha: float = ALPHA
  beta: float = BETA
  beam_width: int = BEAM_WIDTH

  def __post_init__(self):
    checks.non_negative(alpha=self.alpha)
    checks.finite(beta=self.beta)
    checks.positive_int(beam_width=self.beam_width)
    if not os.path.isfile(self.path):
      raise ValueError(f'the language model {self.path} does not exist.')
    # By the ending, because only an .arpa file lists its words.
    if not self.path.endswith(_ENDINGS):
      raise ValueError(
          f'the language model {self.path} must be a file of KenLM that ends '
          f'in one of {", ".join(_ENDINGS)}.'
      )

  @functools.cached_property
  def sha256(self) -> str:
    """Returns the digest of the file."""
    return files.sha256(self.path)


def build(
    *,
    path: Optional[str],
    alpha: float = ALPHA,
    beta: float = BETA,
    beam_width: int = BEAM_WIDTH,
) -> Optional[LanguageModel]:
  """Returns the `LanguageModel` of a file; None without one."""
  if path is None:
    return None
  return LanguageModel(
      path=path, alpha=alpha, beta=beta, beam_width=beam_width
  )


class BeamSearch:
  """Decodes logits with a language model: a `hypothesis.Decode`.

  Attributes:
    language_model: The model and its weights.
    order: The longest n-gram of the model, in words.
  """

  def __init__(
      self, language_model: LanguageModel, *, tokens: Sequence[str]
  ):
    """Reads the model.

    Args:
      language_model: The model.
      tokens: The text of each id except the blank: single characters, one of
        them a space.

    Raises:
      ValueError: The packages are not installed, the file is not a KenLM model,
        or the tokens are not characters or lack the space.
    """
    if any(len(token) > 1 for token in tokens):
      raise ValueError(
          'a language model needs a vocabulary of characters, and this model '
          'has sentence pieces: decode without a language model.'
      )
    if ' ' not in tokens:
      raise ValueError('a language model of words needs a token for the space.')
    try:
      import kenlm  # pylint: disable=g-import-not-at-top
      import pyctcdecode  # pylint: disable=g-import-not-at-top
    except ImportError as e:
      raise ValueError(f'{_INSTALL} ({e}).') from e
    # It logs warnings about labels, and about models without unigrams.
    logging.getLogger('pyctcdecode').setLevel(logging.ERROR)
    path = language_model.path
    settings = kenlm.Config()
    # Otherwise it prints a progress bar and a hint to stderr.
    settings.show_progress = False
    settings.arpa_complain = kenlm.ARPALoadComplain.NONE
    try:
      model = kenlm.Model(path, settings)
    except (OSError, RuntimeError) as e:
      # After the signature of the C++ function that raised it.
      _, _, reason = str(e).splitlines()[0].rpartition('Exception. ')
      raise ValueError(
          f'{path} is not a model that KenLM can read: {reason.rstrip(".)")}.'
      ) from e
    self.language_model = language_model
    self.order: int = model.order
    self._decoder = pyctcdecode.BeamSearchDecoderCTC(
        # The empty text is pyctcdecode's name of the blank, the last id.
        pyctcdecode.Alphabet.build_alphabet([*tokens, '']),
        pyctcdecode.LanguageModel(
            model,
            set(_unigrams(path)) if path.endswith('.arpa') else None,
            alpha=float(language_model.alpha),
            beta=float(language_model.beta),
        ),
    )

  def __call__(self, logits: np.ndarray) -> hypothesis.Hypothesis:
    """Decodes an utterance, given logits float32 [S, V]."""
    # pyctcdecode fails without frames.
    if not len(logits):  # pylint: disable=g-explicit-length-test
      return hypothesis.Hypothesis('', [])
    best, *_ = self._decoder.decode_beams(
        logits, beam_width=self.language_model.beam_width
    )
    # Scores follow, which are not used.
    text, _, frames, *_ = best
    return hypothesis.Hypothesis(
        text, [hypothesis.Word(word, *ends) for word, ends in frames]
    )

  def describe(self) -> dict[str, str | int | float]:
    """Returns what names the model and the search in results, as JSON."""
    model = self.language_model
    return {
        'file': os.path.basename(model.path),
        'sha256': model.sha256,
        'order': self.order,
        'alpha': model.alpha,
        'beta': model.beta,
        'beam_width': model.beam_width,
    }


def _unigrams(path: str) -> Iterator[str]:
  """Yields the words of an ARPA file."""
  # pyctcdecode's own reader skips words without a back-off weight, which many
  # writers leave out where it is 0.
  with open(path, encoding='utf-8', errors='replace') as file:
    for line in file:
      if line.startswith('\\1-grams:'):
        break
    for line in file:
      if line.startswith('\\'):
        return
      fields = line.split()
      if len(fields) > 1:
        yield fields[1]


def name(description: Mapping[str, str | int | float]) -> str:
  """Returns the words that name a model in tables, given `describe`'s JSON."""
  return (
      f'{description["file"]} (order {description["order"]}, SHA-256 '
      f'{description["sha256"][:8]})'
  )

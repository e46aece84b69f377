"""Beam search with an n-gram language model: an optional extra.

Uses pyctcdecode to search over CTC prefixes with the score

    log p(frames | text) + alpha ln p_LM(text) + beta (number of words)

where p_LM is a KenLM model. It needs the packages of requirements-lm.txt, which
are not in requirements.txt.

  S: output frames. V: vocabulary with blank.
"""

from collections.abc import Callable, Sequence
import dataclasses
import logging
import os

import numpy as np

from tff_asr import checks

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
  alpha: float = 0.5
  beta: float = 1.5
  beam_width: int = 100

  def __post_init__(self):
    checks.non_negative(alpha=self.alpha)
    checks.finite(beta=self.beta)
    checks.positive_int(beam_width=self.beam_width)
    if not os.path.isfile(self.path):
      raise ValueError(f'the language model {self.path} does not exist.')
    # pyctcdecode goes by the ending: it reads the words of an .arpa file.
    if not self.path.endswith(_ENDINGS):
      raise ValueError(
          f'the language model {self.path} must be a file of KenLM that ends '
          f'in one of {", ".join(_ENDINGS)}.'
      )


def build_decode(
    language_model: LanguageModel, *, tokens: Sequence[str]
) -> Callable[[np.ndarray], tuple[str, list[tuple[str, int, int]]]]:
  """Returns a `recognizer.Decode`: logits [S, V] to text, and words in frames.

  Args:
    language_model: The model.
    tokens: The text of each id: single characters, one of them a space.

  Raises:
    ValueError: The packages are not installed, the file is not a KenLM model,
      or the tokens are not characters or lack the space.
  """
  if any(len(token) > 1 for token in tokens):
    raise ValueError(
        'a language model needs a vocabulary of characters, and this model '
        'has sentence pieces: transcribe without --lm.'
    )
  if ' ' not in tokens:
    raise ValueError('a language model of words needs a token for the space.')
  try:
    import pyctcdecode  # pylint: disable=g-import-not-at-top
  except ImportError as e:
    raise ValueError(f'{_INSTALL} ({e}).') from e
  # It logs warnings about labels, and about models without unigrams.
  logging.getLogger('pyctcdecode').setLevel(logging.ERROR)
  try:
    decoder = pyctcdecode.build_ctcdecoder(
        # The empty text is pyctcdecode's name of the blank, which is the last
        # id.
        [*tokens, ''],
        kenlm_model_path=language_model.path,
        alpha=language_model.alpha,
        beta=language_model.beta,
    )
  except ImportError as e:
    raise ValueError(f'{_INSTALL} ({e}).') from e
  except (OSError, RuntimeError) as e:
    raise ValueError(
        f'{language_model.path} is not a model that KenLM can read: '
        f'{str(e).splitlines()[0]}.'
    ) from e

  def decode(
      logits: np.ndarray,
  ) -> tuple[str, list[tuple[str, int, int]]]:
    # pyctcdecode fails without frames.
    if not len(logits):  # pylint: disable=g-explicit-length-test
      return '', []
    best = decoder.decode_beams(
        logits, beam_width=language_model.beam_width
    )[0]
    # Scores follow, which are not used.
    text, _, frames, *_ = best
    return text, [(word, start, end) for word, (start, end) in frames]

  return decode

"""Beam search with an n-gram language model or hotwords: an optional extra.

pyctcdecode searches over CTC prefixes with the score

    log p(frames | text) + alpha ln p_LM(text) + beta (number of words)
        + hotword_weight (number of hotwords)

where p_LM is a KenLM model. Tokens that are improbable in a frame are not
searched; a temperature above 1 divides the logits before, which flattens the
frames of a model that is too sure of itself, so that more is searched. It needs
the packages of requirements-lm.txt, which are not in requirements.txt.

  S: output frames. V: vocabulary with blank.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
import dataclasses
import functools
import gzip
import json
import logging
import os
from typing import NamedTuple, Optional, TextIO

import numpy as np
from scipy import special

from tff_asr import checks
from tff_asr import files
from tff_asr.decoding import hypothesis

BEAM_WIDTH = 32
HOTWORD_WEIGHT = 10.0

_INSTALL = (
    'a language model or hotwords need further packages; install them with: '
    'pip install --no-deps -r requirements-lm.txt'
)
# Characters of a comment in a model's first line.
_MAX_COMMENT = 10_000
_ARPA = ('.arpa', '.arpa.gz')
_ENDINGS = (*_ARPA, '.bin', '.binary')
# Of a model's words, at least so many must consist of the tokens' characters.
_MIN_WRITABLE = 0.5
# Less probable tokens are not searched, unless they are a frame's best.
_MIN_TOKEN_LOG_PROB = -5.0
# pyctcdecode's symbol for the space that begins a piece.
_SPACE = '\u2581'


class Weights(NamedTuple):
  """How a search weighs its model: see `LanguageModel`; None: not known."""

  alpha: Optional[float] = None
  beta: Optional[float] = None
  temperature: Optional[float] = None


DEFAULTS = Weights(alpha=0.5, beta=1.5, temperature=1.0)
"""Weights where none are given or tuned."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class LanguageModel:
  """An n-gram model and its weights in the search.

  Attributes:
    path: A KenLM model, .arpa, .arpa.gz or binary. With .arpa, prefixes of
      unknown words are scored as unlikely.
    alpha: Weight of the model, at least 0; None: as tuned for a run, or
      the default.
    beta: Bonus for each word, which counteracts joined words; None: as tuned
      for a run, or the default.
    temperature: Divides the logits, above 0; None: as tuned for a run, or
      the default.
    beam_width: Number of prefixes kept, at least 1.
  """

  path: str
  alpha: Optional[float] = None
  beta: Optional[float] = None
  temperature: Optional[float] = None
  beam_width: int = BEAM_WIDTH

  def __post_init__(self):
    if self.alpha is not None:
      checks.non_negative(alpha=self.alpha)
    if self.beta is not None:
      checks.finite(beta=self.beta)
    if self.temperature is not None:
      checks.positive(temperature=self.temperature)
    checks.positive_int(beam_width=self.beam_width)
    if not os.path.isfile(self.path):
      raise ValueError(f'the language model {self.path} does not exist.')
    # By the ending, because only an .arpa file lists its words.
    if not self.path.endswith(_ENDINGS):
      raise ValueError(
          f'the language model {self.path} must be a file of KenLM that ends '
          f'in one of {", ".join(_ENDINGS)}.'
      )

  @property
  def weights(self) -> Weights:
    """Returns the weights, None where they are to be tuned."""
    return Weights(self.alpha, self.beta, self.temperature)

  @functools.cached_property
  def sha256(self) -> str:
    """Returns the digest of the file."""
    return files.sha256(self.path)


def build(
    *,
    path: Optional[str],
    alpha: Optional[float] = None,
    beta: Optional[float] = None,
    temperature: Optional[float] = None,
    beam_width: int = BEAM_WIDTH,
) -> Optional[LanguageModel]:
  """Returns the `LanguageModel` of a file; None without one."""
  if path is None:
    return None
  return LanguageModel(
      path=path,
      alpha=alpha,
      beta=beta,
      temperature=temperature,
      beam_width=beam_width,
  )


class BeamSearch:
  """Decodes logits by beam search: a `hypothesis.Decode`.

  Attributes:
    language_model: The model; None: hotwords alone.
    weights: The weights of the search, all of them known.
    order: The longest n-gram of the model, in words; 0 without one.
  """

  def __init__(
      self,
      language_model: Optional[LanguageModel],
      *,
      tokens: Sequence[str],
      hotwords: Sequence[str] = (),
      hotword_weight: float = HOTWORD_WEIGHT,
      num_best: int = 1,
  ):
    """Reads the model.

    Args:
      language_model: The model, or None.
      tokens: The text of each id except the blank: characters, or sentence
        pieces that have a space at their beginning only; one of them a space.
        Those without text count as blanks.
      hotwords: Words to prefer, and phrases, each word of which is preferred.
        Their case is the tokens'.
      hotword_weight: Added to the score for each hotword.
      num_best: Number of hypotheses to return, at least 1.

    Raises:
      ValueError: The packages are not installed, the file is not a KenLM model,
        the tokens lack the space or have it elsewhere, a hotword has other
        characters, or most words of an .arpa file have.
    """
    checks.positive_int(num_best=num_best)
    checks.finite(hotword_weight=hotword_weight)
    labels = _labels([*filter(None, tokens)])
    hotwords = _in_tokens(hotwords, tokens=tokens)
    try:
      import kenlm  # pylint: disable=g-import-not-at-top
      import pyctcdecode  # pylint: disable=g-import-not-at-top
    except ImportError as e:
      raise ValueError(f'{_INSTALL} ({e}).') from e
    # It logs warnings about labels, and about models without unigrams.
    logging.getLogger('pyctcdecode').setLevel(logging.ERROR)
    self.language_model = language_model
    self.order = 0
    # Hotwords alone.
    self.weights = Weights(alpha=0.0, beta=0.0, temperature=1.0)
    self._is_blank = np.array([*(not token for token in tokens), True])
    self._hotwords = hotwords
    self._hotword_weight = hotword_weight
    self._num_best = num_best
    self._beam_width = BEAM_WIDTH
    scorer = None
    if language_model is not None:
      model = _read(kenlm, language_model.path)
      self.order = model.order
      self._beam_width = language_model.beam_width
      words = None
      if language_model.path.endswith(_ARPA):
        words = set(_unigrams(language_model.path))
        _check_words(words, tokens=tokens, path=language_model.path)
      scorer = pyctcdecode.LanguageModel(model, words)
    self._decoder = pyctcdecode.BeamSearchDecoderCTC(
        # The empty text is pyctcdecode's name of the blank, the last id.
        pyctcdecode.Alphabet.build_alphabet([*labels, '']),
        scorer,
    )
    if language_model is not None:
      self.set_weights(language_model.weights)

  def set_weights(self, weights: Weights) -> None:
    """Sets the weights of the search, and the defaults where they are None."""
    self.weights = Weights(*(
        float(default if each is None else each)
        for each, default in zip(weights, DEFAULTS)
    ))
    self._decoder.reset_params(
        alpha=self.weights.alpha, beta=self.weights.beta
    )

  def __call__(self, logits: np.ndarray) -> list[hypothesis.Hypothesis]:
    """Decodes an utterance, given logits float32 [S, V]."""
    # pyctcdecode fails without frames.
    if not len(logits):  # pylint: disable=g-explicit-length-test
      return [hypothesis.Hypothesis('', [], 0.0)]
    log_probs = hypothesis.log_softmax(logits / self.weights.temperature)
    # A token without text divides equal tokens and writes nothing: a blank.
    blank = special.logsumexp(
        log_probs[:, self._is_blank], axis=-1, keepdims=True
    )
    log_probs = np.hstack([log_probs[:, ~self._is_blank], blank])
    kept = _frames_to_search(log_probs)
    beams = self._decoder.decode_beams(
        log_probs[kept],
        beam_width=self._beam_width,
        token_min_logp=_MIN_TOKEN_LOG_PROB,
        hotwords=self._hotwords,
        hotword_weight=self._hotword_weight,
    )
    # A beam: text, state, words with frames, and two scores, the second one
    # with language model and hotwords.
    scores = np.array([score for *_, score in beams])
    # Less the best score, as exp of long utterances' scores is 0.
    shares = np.exp(scores - scores.max())
    shares /= shares.sum()
    # Every text has a blank in the frames that were not searched.
    skipped = log_probs[:, -1].sum() - log_probs[kept, -1].sum()
    return [
        hypothesis.Hypothesis(
            text,
            [
                hypothesis.Word(
                    word,
                    int(kept[start]),
                    # The last frame of a word is one that was searched.
                    int(kept[end - 1]) + 1,
                    _confidence((word, (start, end)), beams, shares),
                )
                for word, (start, end) in words
            ],
            float(score + skipped),
        )
        for text, _, words, _, score in beams[: self._num_best]
    ]

  def describe(self) -> dict[str, str | int | float]:
    """Returns what names the model and the search in results, as JSON.

    Its text is named if the file names it.
    """
    model = self.language_model
    text = _text_of(model.path)
    return ({'text': text} if text else {}) | {
        'file': os.path.basename(model.path),
        'sha256': model.sha256,
        'order': self.order,
        **self.weights._asdict(),
        'beam_width': model.beam_width,
    }


def label(description: Mapping[str, str | int | float]) -> str:
  """Returns a label of a model for tables, given `describe`'s JSON."""
  text = f' of {description["text"]}' if 'text' in description else ''
  return (
      f'{description["file"]}{text} (order {description["order"]}, SHA-256 '
      f'{description["sha256"][:8]})'
  )


class _LoneSpace(str):
  """The label of a space that is a piece of its own.

  pyctcdecode looks at the first and last characters of labels. One that also
  ends in the symbol of a space would force a break into the next prefix that it
  extends, whichever that is.
  """

  def __getitem__(self, key: slice) -> str:
    return _SPACE if key == slice(None, 1) else ''


def _labels(tokens: Sequence[str]) -> list[str]:
  """Returns tokens as pyctcdecode's labels."""
  if ' ' not in tokens:
    raise ValueError('a language model of words needs a token for the space.')
  if all(len(token) == 1 for token in tokens):
    return [*tokens]
  inside = [token for token in tokens if ' ' in token[1:]]
  if inside:
    raise ValueError(
        f'the piece {inside[0]!r} has a space inside: with it, words cannot be '
        'scored. Train pieces that do not cross words, or decode greedily.'
    )
  return [
      _LoneSpace(_SPACE) if token == ' ' else token.replace(' ', _SPACE)
      for token in tokens
  ]


def _in_tokens(hotwords: Sequence[str], *, tokens: Sequence[str]) -> list[str]:
  """Returns the words of hotwords in the case of the tokens."""
  known, words = set(''.join(tokens)), []
  for hotword in hotwords:
    forms = [hotword, hotword.lower(), hotword.upper()]
    fitting = [form for form in forms if known.issuperset(form)]
    if not fitting or not hotword.strip():
      unknown = ' '.join(map(repr, sorted(set(forms[1]) - known)))
      raise ValueError(
          f"the hotword {hotword!r} must be of the tokens' characters"
          + (f', without {unknown}.' if unknown else '.')
      )
    words += fitting[0].split()
  return words


def _check_words(
    words: Collection[str], *, tokens: Sequence[str], path: str
) -> None:
  """Raises ValueError if the tokens cannot write most of a model's words."""
  known = set(''.join(tokens))
  # Without <unk>, <s>, </s>, and tags.
  words = sorted(word for word in words if not word.startswith('<'))
  share = lambda convert: np.mean(
      [known.issuperset(convert(word)) for word in words] or [1.0]
  )
  if share(str) >= _MIN_WRITABLE:
    return
  remedy = 'they are of another script or language: take a model of this one'
  for case, convert in ('lower', str.lower), ('upper', str.upper):
    if share(convert) >= _MIN_WRITABLE:
      remedy = f'they are in another case: write the file in {case} case'
  outside = [word for word in words if not known.issuperset(word)]
  raise ValueError(
      f"the tokens' characters write {share(str):.0%} of the words of {path}, "
      f'and not {", ".join(map(repr, outside[:3]))}; {remedy}.'
  )


def _read(kenlm, path: str):
  """Reads a model of KenLM."""
  settings = kenlm.Config()
  # Otherwise it prints a progress bar and a hint to stderr.
  settings.show_progress = False
  settings.arpa_complain = kenlm.ARPALoadComplain.NONE
  try:
    return kenlm.Model(path, settings)
  except (OSError, RuntimeError) as e:
    # After the signature of the C++ function that raised it.
    _, _, reason = str(e).splitlines()[0].rpartition('Exception. ')
    raise ValueError(
        f'{path} is not a model that KenLM can read: {reason.rstrip(".)")}.'
    ) from e


def _frames_to_search(log_probs: np.ndarray) -> np.ndarray:
  """Returns the frames that a search needs, int [at most S].

  In a frame where every other token is too improbable to be searched, each
  prefix gets a blank and the same score. After a first one of them, further
  ones change nothing.
  """
  others = log_probs[:, :-1].max(axis=-1)
  is_blank = (others < _MIN_TOKEN_LOG_PROB) & (log_probs[:, -1] >= others)
  follows = np.concatenate([[False], is_blank[:-1]])
  return np.flatnonzero(~(is_blank & follows))


def _confidence(
    word: tuple[str, tuple[int, int]],
    beams: Sequence[tuple],
    shares: np.ndarray,
) -> float:
  """Returns the share of beams that have a word in overlapping frames."""
  text, (start, end) = word
  has_word = [
      any(
          other == text and first < end and start < last
          for other, (first, last) in words
      )
      for _, _, words, *_ in beams
  ]
  # Rounding of a sum of shares.
  return float(min(1.0, shares[has_word].sum()))


def _open(path: str) -> TextIO:
  """Opens an ARPA file."""
  opened = gzip.open if path.endswith('.gz') else open
  return opened(path, 'rt', encoding='utf-8', errors='replace')


def _text_of(path: str) -> str:
  """Returns the name of a model's text, if `data_tools.ngram` wrote it."""
  if not path.endswith(_ARPA):
    return ''
  with _open(path) as file:
    line = file.readline(_MAX_COMMENT)
  try:
    return str(json.loads(line.removeprefix('#'))['text'])
  except (KeyError, TypeError, ValueError):
    return ''


def _unigrams(path: str) -> Iterator[str]:
  """Yields the words of an ARPA file."""
  # pyctcdecode's own reader skips words without a back-off weight, which many
  # writers leave out where it is 0.
  with _open(path) as file:
    for line in file:
      if line.startswith('\\1-grams:'):
        break
    for line in file:
      if line.startswith('\\'):
        return
      fields = line.split()
      if len(fields) > 1:
        yield fields[1]

"""Text for generated speech: everyday sentences from a grammar.

`draw_sentences` expands the templates of sentences.txt, in this folder, which
explains its format. Verbs agree with their subjects, and `a` with the next
word. A word's frequency in its list is inversely proportional to its rank, as
in Zipf's law, and each speaker prefers some words and templates, so that
clients differ. A hash of the sentence assigns it to one split.

    >>> split_of('my sister left her umbrella on the bus')
    'train'

Loads no TensorFlow, so that processes that speak start fast.
"""

import bisect
import functools
import hashlib
import math
import os
import re
from typing import NamedTuple

import numpy as np

_GRAMMAR = os.path.join(os.path.dirname(__file__), 'sentences.txt')
_SENTENCE = 'sentence'
# An option's weight is 1 / (rank + _FIRST_RANK), rank 0 being the first.
_FIRST_RANK = 2.0
_SLOT = re.compile(r"\{([a-z_']+)(?:\.([a-z]+))?\}")
# Words that agree with the subject.
_AGREEMENT = {
    'i': ('am', 'was', 'have', 'do', "don't", 'my'),
    'you': ('are', 'were', 'have', 'do', "don't", 'your'),
    'we': ('are', 'were', 'have', 'do', "don't", 'our'),
    'they': ('are', 'were', 'have', 'do', "don't", 'their'),
    'he': ('is', 'was', 'has', 'does', "doesn't", 'his'),
    'she': ('is', 'was', 'has', 'does', "doesn't", 'her'),
}
_AGREEING = ('is', 'was', 'has', 'does', "doesn't", 'their')
_THIRD_PERSON = ('he', 'she')
# "a" goes before these, in spite of their first letter.
_SOUND_OF_CONSONANT = ('uni', 'use', 'europe', 'one', 'once')


class _Option(NamedTuple):
  """What a slot may be replaced by.

  Attributes:
    forms: Texts by form: '' and, of nouns and verbs, 's', 'ed' and 'ing'.
    agreement: Key of `_AGREEMENT`; '': not a subject.
  """

  forms: dict[str, str]
  agreement: str = ''


class _Section(NamedTuple):
  """Options and the logarithms of their weights, float64 [N]."""

  options: tuple[_Option, ...]
  log_weights: np.ndarray


def split_of(sentence: str) -> str:
  """Returns the split that a sentence belongs to."""
  # An eighth each to dev and test.
  digit = hashlib.sha256(sentence.encode()).digest()[0] % 8
  return {0: 'dev', 1: 'test'}.get(digit, 'train')


def draw_sentences(
    rng: np.random.Generator, *, split: str, count: int, word_share: float = 1.0
) -> tuple[str, ...]:
  """Returns `count` distinct sentences, by one speaker's preferences.

  Args:
    rng: Draws the preferences and the sentences.
    split: The split that the sentences must belong to.
    count: How many.
    word_share: In (0, 1], the share of each list of words that is used, the
      frequent words first.
  """
  speaker = _Speaker(rng, _grammar(word_share))
  sentences: dict[str, None] = {}
  while len(sentences) < count:
    sentence = speaker.draw()
    if split_of(sentence) == split:
      sentences[sentence] = None
  return tuple(sentences)


class _Speaker:
  """Expands the grammar by one speaker's preferences."""

  def __init__(self, rng: np.random.Generator, grammar: dict[str, _Section]):
    self._rng = rng
    self._grammar = grammar
    # By section, drawn when it is first needed: most speakers say little.
    self._preferences: dict[str, list[float]] = {}

  def draw(self) -> str:
    """Returns a sentence."""
    text, _ = self._expand(_SENTENCE, form='', agreement='')
    return _with_articles(text)

  def _choose(self, name: str) -> _Option:
    """Draws an option of a section."""
    section = self._grammar[name]
    if name not in self._preferences:
      # Log-normal: a few options are much more frequent than others.
      noise = self._rng.normal(size=len(section.options))
      weights = np.cumsum(np.exp(section.log_weights + noise))
      self._preferences[name] = (weights / weights[-1]).tolist()
    number = bisect.bisect(self._preferences[name], self._rng.random())
    return section.options[number]

  def _expand(
      self, name: str, *, form: str, agreement: str
  ) -> tuple[str, str]:
    """Expands a slot; returns its text and the agreement that then holds."""
    if name in _AGREEING:
      return _AGREEMENT[agreement][_AGREEING.index(name)], agreement
    if form == 'v':
      form = 's' if agreement in _THIRD_PERSON else ''
    option = self._choose(name)
    # A subject's agreement holds to the end of the text that contains it.
    inner = agreement

    def replace(match: re.Match[str]) -> str:
      nonlocal inner
      text, inner = self._expand(
          match[1], form=match[2] or '', agreement=inner
      )
      return text

    text = _SLOT.sub(replace, option.forms[form])
    return text, option.agreement or agreement


@functools.cache
def _grammar(word_share: float) -> dict[str, _Section]:
  """Sections of sentences.txt by name, with a share of their words."""
  options: dict[str, list[_Option]] = {}
  phrases = set()
  kind, name = '', ''
  with open(_GRAMMAR, encoding='ascii') as f:
    for line in map(str.strip, f):
      if not line or line.startswith('#'):
        continue
      if line.startswith('['):
        kind, name = line[1:-1].split()
        options[name] = []
        if kind == 'phrase':
          phrases.add(name)
      elif kind == 'phrase':
        text, _, agreement = line.partition(' | ')
        options[name].append(_Option({'': text}, agreement))
      else:
        options[name] += [_Option(_forms(kind, word)) for word in line.split()]
  sections = {}
  for name, found in options.items():
    if name in phrases:
      sections[name] = _Section(tuple(found), np.zeros(len(found)))
    else:
      words = tuple(found[: math.ceil(word_share * len(found))])
      ranks = np.arange(len(words))
      sections[name] = _Section(words, -np.log(ranks + _FIRST_RANK))
  return sections


def _forms(kind: str, entry: str) -> dict[str, str]:
  """Forms of a word, a noun or a verb of the grammar."""
  base, *irregular = entry.replace('_', ' ').split('/')
  if kind == 'word':
    return {'': base}
  if kind == 'noun':
    return {'': base, 's': irregular[0] if irregular else _with_s(base)}
  stem = base[:-1] if base.endswith('e') else base
  past = (base[:-1] + 'i' if _ends_in_consonant_y(base) else stem) + 'ed'
  return {
      '': base,
      's': base + 'es' if base.endswith('o') else _with_s(base),
      'ed': irregular[0] if irregular else past,
      'ing': irregular[1] if len(irregular) > 1 else stem + 'ing',
  }


def _with_s(base: str) -> str:
  """The regular plural of a noun and third person of a verb."""
  if _ends_in_consonant_y(base):
    return base[:-1] + 'ies'
  return base + ('es' if base.endswith(('s', 'x', 'z', 'ch', 'sh')) else 's')


def _ends_in_consonant_y(base: str) -> bool:
  """Whether y becomes i before an ending."""
  return base.endswith('y') and base[-2] not in 'aeiou'


def _with_articles(text: str) -> str:
  """Replaces `a` by `an` before the sound of a vowel."""
  words = text.split()
  for i, (word, after) in enumerate(zip(words, words[1:])):
    is_vowel = after[0] in 'aeiou' and not after.startswith(_SOUND_OF_CONSONANT)
    if word == 'a' and (is_vowel or after.startswith('hour')):
      words[i] = 'an'
  return ' '.join(words)

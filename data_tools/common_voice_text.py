"""Common Voice sentences to the characters of a language's tokens.

The rule of the published federated recipe (https://arxiv.org/abs/2310.00098):
lower case; the language's letters, space, apostrophe and hyphen are kept; a
typographic apostrophe becomes a plain one unless punctuation is beside it (then
it is a quotation mark); another letter is transliterated to ASCII if that gives
letters only; everything else is dropped; a hyphen beside a space becomes a
space; runs of spaces become one.

Two differences: Unicode is composed first (NFC), and dashes and slashes become
spaces, so that the words beside them stay apart. Transliteration is that of
anyascii.
"""

from collections.abc import Sequence
import unicodedata

import anyascii

from tff_asr.text import alphabets

TRANSLITERATED = 'had letters transliterated'
LOST_DIGITS = 'lost digits'
LOST_LETTERS = 'lost letters'
LOST_SYMBOLS = 'lost symbols'

_APOSTROPHES = '\u2019\u2018\u02bc\u0060\u00b4'
_HYPHENS = '\u2010\u2011'
# Unicode has them as punctuation, but people say them.
_SPOKEN = '&%@#§¶†‡‰*'


def normalize(text: str, *, letters: str) -> tuple[str, Sequence[str]]:
  """Returns a sentence in the given letters, and what happened to it.

  Args:
    text: A sentence as published.
    letters: The language's letters, in lower case.

  Returns:
    The sentence, maybe empty, and the kinds of changes beyond those that lose
    nothing (case, punctuation), sorted.
  """
  text = unicodedata.normalize('NFC', text).lower()
  kept: list[str] = []
  changes = set()
  for i, character in enumerate(text):
    if character in letters or character in alphabets.PUNCTUATION:
      kept.append(character)
    elif character.isspace():
      kept.append(' ')
    elif character in _APOSTROPHES:
      beside = text[max(0, i - 1) : i] + text[i + 1 : i + 2]
      if not any(map(_is_punctuation, beside)):
        kept.append("'")
    elif character in _HYPHENS:
      kept.append('-')
    elif character == '/' or unicodedata.category(character) == 'Pd':
      kept.append(' ')
    else:
      kept.append(_transliterate(character, letters, changes))
  text = ''.join(kept).replace('- ', ' ').replace(' -', ' ')
  return ' '.join(text.split()), sorted(changes)


def letters_of(texts: Sequence[str]) -> str:
  """Returns every letter (and mark) of the texts in lower case, sorted."""
  letters = {
      character
      for text in texts
      for character in unicodedata.normalize('NFC', text).lower()
      if unicodedata.category(character)[0] in 'LM'
  }
  return ''.join(sorted(letters - set(_APOSTROPHES)))


def _is_punctuation(character: str) -> bool:
  """Whether a character is a mark that does not stand inside words."""
  return (
      unicodedata.category(character)[0] == 'P'
      and character not in "'-"
      and character not in _APOSTROPHES + _HYPHENS
  )


def _transliterate(character: str, letters: str, changes: set[str]) -> str:
  """A character outside the letters as letters, or '' and why."""
  kind = unicodedata.category(character)
  if kind[0] in 'LM':
    latin = anyascii.anyascii(character).lower()
    if latin and all(c in letters for c in latin):
      changes.add(TRANSLITERATED)
      return latin
    changes.add(LOST_LETTERS)
  elif kind[0] == 'N':
    changes.add(LOST_DIGITS)
  elif kind[0] == 'S' or character in _SPOKEN:
    changes.add(LOST_SYMBOLS)
  return ''

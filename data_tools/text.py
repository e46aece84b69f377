"""Transcripts to the characters of the tokens: one rule per kind of corpus.

`normalize_english` is for read English corpora: lower case, Unicode NFC,
typographic apostrophes and hyphens as plain ones, runs of white space as one
space. The result must be a-z, space, apostrophe and hyphen: any other character
means that a corpus needs its own rule, so it is an error and not dropped.

`normalize_common_voice` is for Common Voice, by the published federated recipe
(https://arxiv.org/abs/2310.00098):
lower case; the language's letters, space, apostrophe and hyphen are kept; a
typographic apostrophe becomes a plain one, unless it is next to punctuation (a
quotation mark); another letter is transliterated to ASCII if that gives
letters only; everything else is dropped; a hyphen next to a space becomes a
space; runs of spaces become one.

Differences: Unicode is composed first (NFC), letters in compatibility forms
(ligatures, full width, positional forms of Arabic) become plain ones, a final
sigma becomes a plain one where the letters lack it, and dashes and slashes
become spaces, so that the words next to them stay apart (dashes='drop' drops
them, as the recipe does). Languages with special rules for lower case use them
(`LOWER_CASE`). Transliteration is by anyascii.

`normalize_as_published` follows that recipe exactly, given the transliteration
of its code.
"""

from collections.abc import Callable, Sequence
import re
import string
import unicodedata

import anyascii

from tff_asr import checks
from tff_asr.text import tokenizer

TRANSLITERATED = 'had letters transliterated'
PLAIN_FORMS = 'had ligatures or letters of full width replaced'
FINAL_SIGMA = 'had final sigmas replaced'
LOWER_CASE = {
    'az': str.maketrans({'İ': 'i', 'I': 'ı'}),
    'tr': str.maketrans({'İ': 'i', 'I': 'ı'}),
}
"""Languages (ISO 639-1) with lower case other than Unicode's default."""
DASHES = ('space', 'drop')
LOST_DIGITS = 'lost digits'
LOST_LETTERS = 'lost letters'
LOST_SYMBOLS = 'lost symbols'

_APOSTROPHES = '\u2019\u2018\u02bc\u0060\u00b4'
_HYPHENS = '\u2010\u2011'
# Letters that are other forms of plain ones: digraphs, ligatures, positional
# forms, half and full width. Not all that has a compatibility form: the vowel
# signs of Thai and Lao would be taken apart.
_FORMS = re.compile(
    '[\u01c4-\u01cc\u01f1-\u01f3\ufb00-\ufb17\ufb1d-\ufdff\ufe70-\ufefc'
    '\uff21-\uff3a\uff41-\uff5a\uff66-\uffdc]+'
)
_PUBLISHED_PUNCTUATION = string.punctuation.replace("'", '').replace('-', '')
# Unicode has them as punctuation, but people say them.
_SPOKEN = '&%@#§¶†‡‰*'
_REPLACED = str.maketrans({
    '\u2018': "'",  # left single quotation mark
    '\u2019': "'",  # right single quotation mark
    '\u02bc': "'",  # modifier letter apostrophe
    '\u2010': '-',  # hyphen
    '\u2011': '-',  # non-breaking hyphen
})


class TranscriptError(ValueError):
  """A transcript that cannot be used.

  Attributes:
    reason: The kind of defect in few words, the same for all such transcripts.
  """

  reason = 'has characters outside the tokens'


def normalize_english(text: str, *, name: str) -> str:
  """Returns `text` in the characters of the English tokens; may be empty.

  Args:
    text: A transcript.
    name: What errors call it, such as the utterance's id.

  Raises:
    TranscriptError: Naming the first character outside the tokens.
  """
  # Composed first: a letter and its accent must be one character.
  text = unicodedata.normalize('NFC', text).lower().translate(_REPLACED)
  text = ' '.join(text.split())
  for character in text:
    if character not in tokenizer.ENGLISH:
      raise TranscriptError(
          f'utterance {name}: its transcript holds {character!r}'
          f' (U+{ord(character):04X}), which is not among the tokens (a-z,'
          ' space, apostrophe, hyphen); spell it out or remove it.'
      )
  return text


def normalize_common_voice(
    text: str, *, letters: str, language: str = '', dashes: str = 'space'
) -> tuple[str, Sequence[str]]:
  """Returns a sentence in the given letters, and what happened to it.

  Args:
    text: A sentence as published.
    letters: The language's letters, in lower case.
    language: Language for lower-casing; see `LOWER_CASE`.
    dashes: What becomes of dashes and slashes: 'space' or 'drop'.

  Returns:
    The sentence, maybe empty, and the kinds of changes beyond those that lose
    nothing (case, punctuation), sorted.

  Raises:
    ValueError: Other dashes.
  """
  checks.one_of(DASHES, dashes=dashes)
  changes = set()
  if _FORMS.search(text):
    changes.add(PLAIN_FORMS)
  text = lower(text, language=language)
  kept: list[str] = []
  for i, character in enumerate(text):
    if character == 'ς' and 'ς' not in letters and 'σ' in letters:
      kept.append('σ')
      changes.add(FINAL_SIGMA)
    elif character in letters or character in tokenizer.PUNCTUATION:
      kept.append(character)
    elif character.isspace():
      kept.append(' ')
    elif character in _APOSTROPHES:
      neighbors = text[max(0, i - 1) : i] + text[i + 1 : i + 2]
      if not any(map(_is_punctuation, neighbors)):
        kept.append("'")
    elif character in _HYPHENS:
      kept.append('-')
    elif character == '/' or unicodedata.category(character) == 'Pd':
      kept.append(' ' if dashes == 'space' else '')
    else:
      kept.append(_transliterate(character, letters, changes))
  text = ''.join(kept).replace('- ', ' ').replace(' -', ' ')
  return ' '.join(text.split()), sorted(changes)


def normalize_as_published(
    text: str, *, letters: str, transliterate: Callable[[str], str]
) -> tuple[str, Sequence[str]]:
  """Returns a sentence in the given letters, and what happened to it.

  As the published code has it, also where it surprises: letters that are not
  composed lose their accents, a tab joins words, a quotation mark before a word
  is dropped, and a character may become several words.

  Args:
    text: A sentence as published.
    letters: The language's letters, in lower case; the published scripts end in
      those of English for every language.
    transliterate: A character to ASCII; the code takes that of Unidecode.

  Returns:
    As `normalize_common_voice`.
  """
  text = text.lower()
  latin = lambda character: transliterate(character).lower()
  kept: list[str] = []
  changes: set[str] = set()
  for i, character in enumerate(text):
    if character in _PUBLISHED_PUNCTUATION:
      _report_loss(character, changes)
    elif character in letters or character in tokenizer.PUNCTUATION:
      kept.append(character)
    elif all(c in string.ascii_lowercase + ' ' for c in latin(character)):
      kept.append(latin(character))
      if latin(character).strip():
        changes.add(TRANSLITERATED)
      else:
        _report_loss(character, changes)
    elif character == '\u2019':
      around = map(transliterate, text[max(0, i - 1) : i] + text[i + 1 : i + 2])
      if not any(each in _PUBLISHED_PUNCTUATION + '-' for each in around):
        kept.append("'")
    else:
      _report_loss(character, changes)
  text = ''.join(kept).replace('- ', ' ').replace(' -', ' ')
  return ' '.join(text.split()), sorted(changes)


def lower(text: str, *, language: str = '') -> str:
  """Returns a text in lower case, composed, of letters in their plain form."""
  text = _FORMS.sub(lambda m: unicodedata.normalize('NFKC', m[0]), text)
  text = unicodedata.normalize('NFC', text)
  text = text.translate(LOWER_CASE.get(language, {})).lower()
  # Without its language a Turkish I with a dot is lowered to i and a mark.
  return unicodedata.normalize('NFC', text.replace('i\u0307', 'i'))


def letters_of(texts: Sequence[str], *, language: str = '') -> str:
  """Returns every letter (and mark) of the texts in lower case, sorted.

  Args:
    texts: Any.
    language: Language for lower-casing; see `LOWER_CASE`.
  """
  letters = {
      character
      for text in texts
      for character in lower(text, language=language)
      if unicodedata.category(character)[0] in 'LM'
  }
  # Some apostrophes are letters in Unicode (category Lm).
  return ''.join(sorted(letters - set(_APOSTROPHES)))


def sentences(lines: Sequence[str], *, normalises: bool) -> list[str]:
  """Returns the lines of a text as transcripts are, without empty ones.

  Args:
    lines: A sentence each.
    normalises: Whether to write them in the letters that occur in the text, as
      `normalize_common_voice`; otherwise they are only tidied.
  """
  if normalises:
    letters = letters_of(lines)
    lines = [normalize_common_voice(line, letters=letters)[0] for line in lines]
  return [tidied for line in lines if (tidied := tidy(line))]


def tidy(text: str) -> str:
  """Returns a text with composed characters and single spaces."""
  return ' '.join(unicodedata.normalize('NFC', text).split())


def _is_punctuation(character: str) -> bool:
  """True for a mark that does not occur inside words."""
  return (
      unicodedata.category(character)[0] == 'P'
      and character not in "'-"
      and character not in _APOSTROPHES + _HYPHENS
  )


def _transliterate(character: str, letters: str, changes: set[str]) -> str:
  """Transliterates a character into the letters; or '' and the reason."""
  if unicodedata.category(character)[0] in 'LM':
    # May be several letters, as 'ss'.
    latin = anyascii.anyascii(character).lower()
    if latin and all(c in letters for c in latin):
      changes.add(TRANSLITERATED)
      return latin
  _report_loss(character, changes)
  return ''


def _report_loss(character: str, changes: set[str]) -> None:
  """Adds the kind of character that was dropped, if it is a word's."""
  kind = unicodedata.category(character)[0]
  if kind in 'LM':
    changes.add(LOST_LETTERS)
  elif kind == 'N':
    changes.add(LOST_DIGITS)
  elif kind == 'S' or character in _SPOKEN:
    changes.add(LOST_SYMBOLS)

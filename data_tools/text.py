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

`normalize_written` is for tables and texts of your own, in which people write
as they like: tags of sounds, quotation marks, a full stop without a space. It
adds rules to those of `normalize_common_voice`, and counts each one
(docs/own_recordings.md has the table).
"""

import collections
from collections.abc import Callable, Iterator, Sequence
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
SEPARATED = 'had words separated at marks without a space'
TAGS = 'had tags in brackets removed'
QUOTES = 'had single quotation marks removed'
TATWEEL = 'had tatweel removed'
INVISIBLE = 'had invisible characters removed'
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
# Arabic and N'Ko stretch words by them; they are Lm in Unicode, but no letters.
_TATWEEL = '\u0640\u07fa'
# Soft hyphens, joiners, marks of direction, variation selectors, controls.
_INVISIBLE = re.compile(
    '[\0-\x08\x0e-\x1b\x7f-\x84\x86-\x9f\u00ad\u034f\u061c\u115f\u1160'
    '\u17b4\u17b5\u180b-\u180e\u200b-\u200f\u202a-\u202e\u2060-\u206f'
    '\ufe00-\ufe0f\ufeff\U000e0000-\U000e0fff]+'
)
# The innermost brackets; `a < b` is none.
_TAG = re.compile(
    r'\[[^][]*\]|\{[^{}]*\}|<[^<>\s][^<>]*>|【[^【】]*】|〔[^〔〕]*〕'
)
# With something in them that may be said.
_ROUND = re.compile(r'\([^()]*\w[^()]*\)|（[^（）]*\w[^（）]*）')
# In these scripts no space stands between words, so none is put there: Thai,
# Lao, Tibetan, Burmese, Khmer, kana, Chinese characters.
_UNSPACED = re.compile(
    '[\u0e00-\u0fff\u1000-\u109f\u1780-\u17ff\u3005-\u3007\u3040-\u30ff'
    '\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff'
    '\U00020000-\U0003ffff]'
)
# Marks that stand inside words: Catalan l·l, Hebrew geresh and gershayim.
_INSIDE = re.compile('(?<=[lL])\u00b7(?=[lL])|[\u05f3\u05f4]')
# Stands for a mark or digit that was taken out; no text has it.
_MARK = '\0'
_BETWEEN = re.compile("(?<=[^\0 '-])(?:[\0'-]{2,}|\0)(?=[^\0 '-])")
_LOOSE_HYPHEN = re.compile("(?<![^ '-])-+|-+(?![^ '-])")
_LOOSE_APOSTROPHE = re.compile("'{2,}|(?<![^ ])'(?![^ ])")
# Characters of an example in a message.
_MAX_EXAMPLE = 60
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


class BracketsError(TranscriptError):
  """A transcript with brackets around what may be said, or may be a tag."""

  reason = 'has brackets around what may be said or not'


class Changes:
  """What happened to texts: how often, and the shortest example of each kind.

  Attributes:
    counts: Number of texts by kind of change, or by reason to leave them out.
    examples: `'BEFORE' becomes 'AFTER'` by kind.
  """

  def __init__(self):
    self.counts: collections.Counter[str] = collections.Counter()
    self._shortest: dict[str, tuple[str, str | None]] = {}

  def add(self, kinds: Sequence[str], before: str, after: str | None) -> None:
    """Counts the changes of a text; `after` is None if it was left out."""
    self.counts.update(kinds)
    for kind in kinds:
      known = self._shortest.get(kind)
      if known is None or len(before) < len(known[0]):
        self._shortest[kind] = before, after

  @property
  def examples(self) -> dict[str, str]:
    return {
        kind: _example(before)
        + ('' if after is None else f' becomes {_example(after)}')
        for kind, (before, after) in self._shortest.items()
    }

  def remarks(self, name: str) -> list[str]:
    """Returns a line for each kind of change to the lines of a file."""
    return [
        f'{name}: lines {kind}: {count:,}, as {self.examples[kind]}'
        for kind, count in sorted(self.counts.items())
    ]


def _example(text: str) -> str:
  """The beginning of a text, in quotation marks."""
  text = ' '.join(text.split())
  return repr(
      text if len(text) <= _MAX_EXAMPLE else f'{text[:_MAX_EXAMPLE]}...'
  )


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
    elif character in _TATWEEL:
      changes.add(TATWEEL)
    elif character == '/' or unicodedata.category(character) == 'Pd':
      kept.append(' ' if dashes == 'space' else '')
    else:
      kept.append(_transliterate(character, letters, changes))
  text = ''.join(kept).replace('- ', ' ').replace(' -', ' ')
  return ' '.join(text.split()), sorted(changes)


def normalize_written(
    text: str, *, letters: str, language: str = ''
) -> tuple[str, Sequence[str]]:
  """Returns a text that people wrote in the given letters, and its changes.

  What is removed between two letters leaves a space, so that words stay apart;
  between letters of a script without spaces it leaves nothing. An apostrophe is
  kept at a letter, a hyphen between letters.

  Args:
    text: A sentence.
    letters: The language's letters, in lower case.
    language: Language for lower-casing; see `LOWER_CASE`.

  Returns:
    As `normalize_common_voice`.

  Raises:
    BracketsError: As `clean`.
  """
  text, changes = clean(text)
  if _FORMS.search(text):
    changes.add(PLAIN_FORMS)
  kept: list[str] = []
  for character in lower(text, language=language):
    if character == 'ς' and 'ς' not in letters and 'σ' in letters:
      kept.append('σ')
      changes.add(FINAL_SIGMA)
    elif character in letters or character in tokenizer.PUNCTUATION:
      kept.append(character)
    elif character.isspace():
      kept.append(' ')
    elif _is_letter(character):
      kept.append(_transliterate(character, letters, changes))
    else:
      _report_loss(character, changes)
      kept.append(_MARK)

  def separate(match: re.Match[str]) -> str:
    around = match.string[match.start() - 1] + match.string[match.end()]
    if all(map(_UNSPACED.match, around)):
      return ''
    changes.add(SEPARATED)
    return ' '

  text = _BETWEEN.sub(separate, ''.join(kept)).replace(_MARK, ' ')
  text = _LOOSE_APOSTROPHE.sub(' ', _LOOSE_HYPHEN.sub(' ', text))
  return ' '.join(text.split()), sorted(changes)


def clean(text: str) -> tuple[str, set[str]]:
  """Takes out of a text what is no part of its words, and returns the changes.

  These are tags in square, curly and angle brackets, single quotation marks in
  pairs, tatweel and invisible characters. The other apostrophes and hyphens
  become plain ones.

  Raises:
    BracketsError: Round brackets stand around letters or digits, or other ones
      beside letters, as in `wo[r]d`: what is in them may be said or not.
  """
  changes = set()
  for kind, pattern in (
      (INVISIBLE, _INVISIBLE), (TATWEEL, re.compile(f'[{_TATWEEL}]+'))
  ):
    text, count = pattern.subn('', text)
    if count:
      changes.add(kind)
  if _ROUND.search(text):
    raise BracketsError(f'{_example(text)} {BracketsError.reason}')
  while tag := _TAG.search(text):
    beside = text[max(0, tag.start() - 1) : tag.start()] + (
        text[tag.end() : tag.end() + 1]
    )
    if tag[0][0] != '<' and any(map(_is_word, beside)):
      raise BracketsError(f'{_example(text)} {BracketsError.reason}')
    text = f'{text[:tag.start()]} {text[tag.end():]}'
    changes.add(TAGS)
  text = _INSIDE.sub('', text.replace('\uff07', "'").replace('\u201b', '‘'))
  quotes = {i for pair in _quotes(text) for i in pair}
  if quotes:
    changes.add(QUOTES)
    text = ''.join(' ' if i in quotes else c for i, c in enumerate(text))
  plain = dict.fromkeys(_APOSTROPHES, "'") | dict.fromkeys(_HYPHENS, '-')
  return text.translate(str.maketrans(plain)), changes


def _quotes(text: str) -> Iterator[tuple[int, int]]:
  """Positions of single quotation marks that open and close at words' edges."""
  opened = None
  for i, character in enumerate(text):
    if character not in _APOSTROPHES + "'‚":
      continue
    before, after = text[i - 1 : i], text[i + 1 : i + 2]
    if _is_word(before) and _is_word(after):
      continue
    if opened is not None and before.strip() and not _is_word(after):
      yield opened, i
      opened = None
    elif after.strip() and not _is_word(before):
      opened = i


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
      if _is_letter(character)
  }
  # Some apostrophes are letters in Unicode (category Lm).
  return ''.join(sorted(letters - set(_APOSTROPHES + _TATWEEL)))


def cleaned(texts: Sequence[str]) -> Iterator[str]:
  """Yields the texts as `clean` leaves them, without those that it refuses."""
  for text in texts:
    try:
      yield clean(text)[0]
    except BracketsError:
      pass


def sentences(
    lines: Sequence[str],
    *,
    normalises: bool,
    alphabet: str | None = None,
    language: str = '',
) -> tuple[list[str], Changes]:
  """Returns the lines of a text as transcripts are, without empty ones.

  Args:
    lines: A sentence each.
    normalises: Whether to write them in the letters that occur in the text, as
      `normalize_written`; otherwise they are only tidied.
    alphabet: The letters, in place of those that occur.
    language: Language for lower-casing; see `LOWER_CASE`.

  Returns:
    The sentences, and what was changed and left out.
  """
  changes, written = Changes(), lines
  if normalises:
    written = []
    letters = letters_of(
        [alphabet] if alphabet else list(cleaned(lines)), language=language
    )
    for line in lines:
      try:
        sentence, kinds = normalize_written(
            line, letters=letters, language=language
        )
      except BracketsError as e:
        changes.add([f'left out, {e.reason}'], line, None)
        continue
      changes.add(kinds, line, sentence)
      written.append(sentence)
  return [tidied for line in written if (tidied := tidy(line))], changes


def tidy(text: str) -> str:
  """Returns a text with composed characters and single spaces."""
  return ' '.join(unicodedata.normalize('NFC', text).split())


def _is_letter(character: str) -> bool:
  """True for letters and their marks; and the Chinese zero, which is said."""
  # A mark of category Me encloses a character, as in a keycap.
  category = unicodedata.category(character)
  return category[0] in 'LM' and category != 'Me' or character == '〇'


def _is_word(character: str) -> bool:
  """True for a letter or digit, which an empty text is not."""
  return bool(character) and unicodedata.category(character)[0] in 'LMN'


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

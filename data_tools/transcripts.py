"""Transcripts of the English corpora to the characters of the English tokens.

Lower case, Unicode NFC, typographic apostrophes and hyphens as plain ones, runs
of white space as one space. What is then left must be a-z, space, apostrophe
and hyphen: another character means that a corpus needs a rule of its own, so it
is refused by name and not dropped.
"""

import string
import unicodedata

CHARACTERS = frozenset(string.ascii_lowercase + " '-")

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


def read_lines(path: str) -> list[str]:
  """The lines of a text file, stripped.

  Raises:
    ValueError: If it is missing or not UTF-8. It names the file.
  """
  try:
    with open(path, encoding='utf-8') as f:
      return [line.strip() for line in f]
  except FileNotFoundError as e:
    raise ValueError(f'{path} is missing; check --source_dir.') from e
  except UnicodeDecodeError as e:
    raise ValueError(
        f'{path} is not UTF-8 ({e.reason}); convert it, or get the corpus '
        'again.'
    ) from e


def normalize(text: str, *, name: str) -> str:
  """Returns `text` in the characters of the English tokens; may be empty.

  Args:
    text: A transcript.
    name: What errors call it, such as the utterance's id.

  Raises:
    TranscriptError: Naming the first character outside the tokens.
  """
  text = unicodedata.normalize('NFC', text).lower().translate(_REPLACED)
  text = ' '.join(text.split())
  for character in text:
    if character not in CHARACTERS:
      raise TranscriptError(
          f'utterance {name}: its transcript holds {character!r}'
          f' (U+{ord(character):04X}), which is not among the tokens (a-z,'
          ' space, apostrophe, hyphen); spell it out or leave it away.'
      )
  return text

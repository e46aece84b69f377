"""Character tokens: text to ids and back.

One token a character; the CTC blank is the last id and has no character.
Encoding runs in the graph through tensorflow-text's `UnicodeCharTokenizer`,
whose op is a core TensorFlow op, so that every execution context can run it.

  B: batch size. U: label length. V: vocabulary with blank.
"""

import collections
from collections.abc import Iterable, Sequence
import string
import unicodedata

import numpy as np
import tensorflow as tf
import tensorflow_text as tf_text

PUNCTUATION = " '-"
"""Space, apostrophe and hyphen are characters of every language."""

_LATIN = string.ascii_lowercase
# French and German share one set, which the published code uses for all three
# languages, so that a model can be carried from one to the other.
_ALL = _LATIN + 'öäüßàâæçéèêëîïôœùûÿ'
LETTERS = {'en': _LATIN, 'de': _ALL, 'fr': _ALL}
"""Letters of the published recipes (https://arxiv.org/abs/2310.00098)."""

ENGLISH = f" '{_LATIN}-"


class CharTokenizer:
  """Maps characters to ids 0 .. V - 2; V - 1 is the blank."""

  def __init__(self, characters: str = ENGLISH, *, boundary: str = ''):
    """Creates a tokenizer.

    Args:
      characters: Each character once; its place is its id.
      boundary: A character to encode before and after every transcript, as the
        published code does with a space, or '' for none.

    Raises:
      ValueError: No character, one of them twice, a control character, or
        another boundary.
    """
    if not characters:
      raise ValueError('characters must name at least one character.')
    # What a model hears is printed, and these would steer the terminal.
    control = sorted({c for c in characters if unicodedata.category(c) == 'Cc'})
    if control:
      raise ValueError(f'characters has control characters: {control}.')
    counts = collections.Counter(characters)
    twice = sorted(c for c, count in counts.items() if count > 1)
    if twice:
      raise ValueError(f'characters has {twice} more than once.')
    if len(boundary) > 1 or boundary not in characters:
      raise ValueError(
          f"boundary must be one of the characters or '', found {boundary!r}."
      )
    self._characters = characters
    self._boundary = boundary
    codepoints = [ord(c) for c in characters]
    self._id_of_codepoint = np.full(max(codepoints) + 1, -1, np.int32)
    self._id_of_codepoint[codepoints] = np.arange(len(characters))

  @property
  def characters(self) -> str:
    return self._characters

  @property
  def vocab_size(self) -> int:
    """V: characters and the blank."""
    return len(self._characters) + 1

  @property
  def blank_id(self) -> int:
    return len(self._characters)

  def encode(self, transcripts: tf.Tensor) -> tf.RaggedTensor:
    """Encodes transcripts in the graph.

    Args:
      transcripts: string [B], UTF-8.

    Returns:
      int32 [B, (U)] ids of what `spell` gives; a character that is not a token
      becomes -1 (check the corpus beforehand with `missing`).
    """
    if self._boundary:
      spelt = tf.strings.join([self._boundary, transcripts, self._boundary])
      transcripts = tf.where(tf.equal(transcripts, ''), '', spelt)
    codepoints = tf_text.UnicodeCharTokenizer().tokenize(transcripts)
    table = tf.constant(self._id_of_codepoint)
    size = len(self._id_of_codepoint)
    known = codepoints.flat_values < size
    ids = tf.gather(table, tf.minimum(codepoints.flat_values, size - 1))
    return codepoints.with_flat_values(tf.where(known, ids, -1))

  def spell(self, transcript: str) -> str:
    """The transcript between its boundaries; an empty one stays empty."""
    return transcript and self._boundary + transcript + self._boundary

  def decode(self, ids: Iterable[int]) -> str:
    """Returns the text of ids without blanks.

    Raises:
      ValueError: An id is the blank or outside [0, V).
    """
    text = []
    for token in ids:
      if not 0 <= token < len(self._characters):
        raise ValueError(
            f'token id {token} is not one of the {len(self._characters)} '
            'characters.'
        )
      text.append(self._characters[token])
    return ''.join(text)

  def missing(self, characters: Sequence[str]) -> list[str]:
    """Returns the characters that are not tokens, sorted."""
    return sorted(set(characters) - set(self._characters))


def for_language(language: str, *, boundary: str = '') -> CharTokenizer:
  """Builds the tokenizer of a language with a published set of characters.

  Args:
    language: 'en', 'fr' or 'de'; see `LETTERS`.
    boundary: See `CharTokenizer`.

  Raises:
    ValueError: If `language` has no published set.
  """
  if language not in LETTERS:
    raise ValueError(
        f'language must be one of {", ".join(LETTERS)}, found {language!r};'
        ' for another one give CharTokenizer its characters.'
    )
  characters = ENGLISH + LETTERS[language][len(_LATIN) :]
  return CharTokenizer(characters, boundary=boundary)

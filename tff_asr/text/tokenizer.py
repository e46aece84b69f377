"""Maps text to token ids and back, by characters or by sentence pieces.

    >>> tokenizer = CharTokenizer('ab ')
    >>> tokenizer.encode(tf.constant(['ab a'])).to_list()
    [[0, 1, 2, 0]]
    >>> tokenizer.decode([0, 1, 2, 0])
    'ab a'

The CTC blank is the last id and stands for no text. Encoding runs in the graph,
through tensorflow-text. Characters use a core TensorFlow op, which every
execution context can run; sentence pieces use an op of tensorflow-text, which
TFF's native runtime lacks.

  B: batch size. U: label length. V: vocabulary with blank.
"""

import abc
import collections
from collections.abc import Iterable, Mapping, Sequence
import hashlib
import string
import struct
import unicodedata

import numpy as np
import tensorflow as tf
import tensorflow_text as tf_text

from tff_asr import checks

# Characters of every language.
PUNCTUATION = " '-"

_LATIN = string.ascii_lowercase
# French and German share one set, as in the published code, so that a model of
# one language can be fine-tuned on the other.
_ALL = _LATIN + 'öäüßàâæçéèêëîïôœùûÿ'
# Letters of the published recipes (https://arxiv.org/abs/2310.00098).
LETTERS = {'en': _LATIN, 'de': _ALL, 'fr': _ALL}

ENGLISH = f" '{_LATIN}-"

UNKNOWN_SOURCE = (
    'the configuration names them; collected from private transcripts, they '
    'would depend on private data, which is NOT COVERED'
)

# SentencePiece's symbol for a space.
_SPACE = '\u2581'
_UNKNOWN = '<unk>'
# Log probabilities are far smaller; sums of these stay finite in float32.
_MAX_SCORE = 1e5


class Tokenizer(abc.ABC):
  """Maps texts to ids 0 .. V - 2; V - 1 is the blank.

  Attributes:
    tokens: The text of each id except the blank; '' for tokens without text.
    characters: The characters of texts that can be encoded.
    identity: Identifies the vocabulary; stored with a model.
    source: Where the tokens come from, for the privacy report.
  """

  tokens: tuple[str, ...]
  characters: str
  identity: str
  source: str

  @property
  def vocab_size(self) -> int:
    """Returns V: the number of tokens and the blank, which has id V - 1."""
    return len(self.tokens) + 1

  @abc.abstractmethod
  def encode(self, transcripts: tf.Tensor) -> tf.RaggedTensor:
    """Encodes transcripts in the graph.

    Args:
      transcripts: string [B], UTF-8.

    Returns:
      int32 [B, (U)] ids; -1 for a character that is not in `characters`
      (`missing` checks a corpus).
    """

  def decode(self, ids: Iterable[int]) -> str:
    """Returns the text of ids without blanks; spaces at its ends are kept.

    Raises:
      ValueError: An id is the blank or outside [0, V).
    """
    return ''.join(self.texts(ids))

  def decode_batch(self, ids: tf.RaggedTensor) -> tf.Tensor:
    """Returns texts, string [B], in the graph; see `decode`.

    Args:
      ids: int32 [B, (U)], none of them the blank.
    """
    return tf.strings.reduce_join(tf.gather(self.tokens, ids), axis=1)

  def texts(self, ids: Iterable[int]) -> list[str]:
    """Returns the text of each id; raises as `decode`."""
    texts = []
    for token in ids:
      if not 0 <= token < len(self.tokens):
        raise ValueError(
            f'token id {token} is not one of the {len(self.tokens)} tokens.'
        )
      texts.append(self.tokens[token])
    return texts

  def missing(self, characters: Sequence[str]) -> list[str]:
    """Returns the characters that cannot be encoded, sorted."""
    return sorted(set(characters) - set(self.characters))


class CharTokenizer(Tokenizer):
  """Has one token for each character."""

  def __init__(
      self,
      characters: str = ENGLISH,
      *,
      boundary: str = '',
      num_silent: int = 0,
      source: str = UNKNOWN_SOURCE,
  ):
    """Creates a tokenizer.

    Args:
      characters: Each character once; its index is its id.
      boundary: A character to encode before and after every transcript, as the
        published code does with a space, or '' for none.
      num_silent: Number of tokens without text after the characters, such as
        `<unk>` of a public model, which a model may emit.
      source: See `Tokenizer`.

    Raises:
      ValueError: There are no characters, duplicates or control characters, the
        boundary is not one of them, or num_silent is negative.
    """
    if not characters:
      raise ValueError('characters must name at least one character.')
    _check_control(characters, of='characters')
    counts = collections.Counter(characters)
    # Of two ids, `encode` would use one only.
    twice = sorted(c for c, count in counts.items() if count > 1)
    if twice:
      raise ValueError(f'characters has {twice} more than once.')
    if len(boundary) > 1 or boundary not in characters:
      raise ValueError(
          f"boundary must be one of the characters or '', found {boundary!r}."
      )
    checks.non_negative_int(num_silent=num_silent)
    self.characters = self.identity = characters
    self.tokens = (*characters, *[''] * num_silent)
    if num_silent:
      self.identity += f' and {num_silent} tokens without text'
    self.source = source
    self._boundary = boundary
    codepoints = [ord(c) for c in characters]
    # -1: `encode` returns it for characters without an id.
    self._id_of_codepoint = np.full(max(codepoints) + 1, -1, np.int32)
    self._id_of_codepoint[codepoints] = np.arange(len(characters))

  def encode(self, transcripts: tf.Tensor) -> tf.RaggedTensor:
    """See base class; an empty transcript gets no boundaries."""
    if self._boundary:
      enclosed = tf.strings.join([self._boundary, transcripts, self._boundary])
      # An empty transcript stays empty, so that the pipeline leaves it out.
      transcripts = tf.where(tf.equal(transcripts, ''), '', enclosed)
    codepoints = tf_text.UnicodeCharTokenizer().tokenize(transcripts)
    # A constant table by code point: a tf.lookup table would be a resource,
    # which each context would have to initialize.
    table = tf.constant(self._id_of_codepoint)
    size = len(self._id_of_codepoint)
    # The gather must stay in range: on a CPU it raises otherwise.
    known = codepoints.flat_values < size
    ids = tf.gather(table, tf.minimum(codepoints.flat_values, size - 1))
    return codepoints.with_flat_values(tf.where(known, ids, -1))


class SentencePieceTokenizer(Tokenizer):
  """Sentence pieces of a unigram model (https://arxiv.org/abs/1804.10959).

  A text is split into the pieces with the largest sum of scores, by
  tensorflow-text's `SentencepieceTokenizer`. White space becomes a single
  space, which belongs to the piece after it; the first word gets one, too. Text
  is not normalised.
  """

  def __init__(
      self, pieces: Mapping[str, float], *, source: str = UNKNOWN_SOURCE
  ):
    """Creates a tokenizer.

    Args:
      pieces: Scores (log probabilities) by piece; `data_tools.sentence_pieces`
        trains them. Ids follow the sorted pieces, so their order does not
        matter. U+2581 stands for a space. It must be a piece, and so must each
        character of the other pieces.
      source: See `Tokenizer`.

    Raises:
      ValueError: A piece is empty, not a str, or has a space; its score is not
        a number; a character is not a piece, or is a control character.
    """
    for piece, score in pieces.items():
      if not isinstance(piece, str) or piece in ('', _UNKNOWN) or ' ' in piece:
        raise ValueError(
            f'pieces must be texts with {_SPACE!r} for a space, found '
            f'{piece!r}.'
        )
      checks.in_range(
          -_MAX_SCORE, _MAX_SCORE, **{f'the score of {piece!r}': score}
      )
    # Sorted: ids must not depend on the order in a gin file.
    pieces = dict(sorted(pieces.items()))
    characters = sorted(set(''.join(pieces)) | {_SPACE})
    missing = [each for each in characters if each not in pieces]
    if missing:
      raise ValueError(f'pieces must have one for each of {missing}.')
    _check_control(characters, of='pieces')
    self.tokens = tuple(piece.replace(_SPACE, ' ') for piece in pieces)
    self.characters = ''.join(characters).replace(_SPACE, ' ')
    self.source = source
    self._model = _unigram_model(pieces)
    # By content: pieces with other scores split texts differently.
    digest = hashlib.sha256(self._model).hexdigest()
    self.identity = f'{len(pieces)} sentence pieces {digest}'

  def encode(self, transcripts: tf.Tensor) -> tf.RaggedTensor:
    """See base class."""
    # Created here, so that the model is in the graph being built.
    ids = tf_text.SentencepieceTokenizer(self._model).tokenize(transcripts)
    # Piece 0 of the model is the unknown one, which has no id here.
    return ids.with_flat_values(ids.flat_values - 1)


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
  return CharTokenizer(
      # English first, so that its ids are the same in every language.
      ENGLISH + LETTERS[language][len(_LATIN) :],
      boundary=boundary,
      source=f'the published characters of {language!r}',
  )


def _check_control(characters: Iterable[str], *, of: str) -> None:
  """Raises ValueError for control characters."""
  # Transcripts are printed, and control characters would steer the terminal.
  control = sorted({c for c in characters if unicodedata.category(c) == 'Cc'})
  if control:
    raise ValueError(f'{of} has control characters: {control}.')


def _unigram_model(pieces: Mapping[str, float]) -> bytes:
  """Serializes a `ModelProto` of SentencePiece from its pieces."""
  # Serialized here, so that a run's tokens are plain data. A whole model file
  # has tables for normalisation, which SentencePiece does not check.
  sized = lambda tag, data: bytes([tag]) + _varint(len(data)) + data
  # A piece: field 1 text, field 2 score (float32), field 3 kind.
  entry = lambda text, score, kind: sized(
      0x0A,
      sized(0x0A, text.encode())
      + struct.pack('<Bf2B', 0x15, score, 0x18, kind),
  )
  return b''.join([
      entry(_UNKNOWN, 0.0, 2),
      *(entry(piece, score, 1) for piece, score in pieces.items()),
  ])


def _varint(number: int) -> bytes:
  """Encodes a length as protocol buffers do."""
  low, rest = number & 0x7F, number >> 7
  return bytes([low | 0x80]) + _varint(rest) if rest else bytes([low])

"""The characters of the published recipes, by language. No TensorFlow here.

English has the 29 tokens of https://arxiv.org/abs/2310.00098; French and German
share one set, which their published code uses for all three languages, so that
a model can be carried from one to the other.
"""

import string

PUNCTUATION = " '-"
"""Space, apostrophe and hyphen are characters of every language."""

_LATIN = string.ascii_lowercase
_GERMAN = 'öäüß'
_FRENCH = 'àâæçéèêëîïôœùûüÿ'
_ALL = _LATIN + ''.join(dict.fromkeys(_GERMAN + _FRENCH))

LETTERS = {'en': _LATIN, 'de': _ALL, 'fr': _ALL}
"""Letters by language code."""


def characters(language: str) -> str:
  """Returns the tokens of a language, in the order of their ids.

  Raises:
    ValueError: If `language` has no published set.
  """
  if language not in LETTERS:
    raise ValueError(
        f'language must be one of {", ".join(LETTERS)}, found {language!r};'
        ' for another one give CharTokenizer its characters.'
    )
  letters = LETTERS[language]
  return f" '{_LATIN}-{letters[len(_LATIN):]}"

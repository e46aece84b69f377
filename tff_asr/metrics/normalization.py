"""Rules that make texts alike before their errors are counted; by default none.

A rule changes what an error rate means, so tables name those that were used.

    >>> normalize('twenty-one', 'Twenty one.', rules=['case', 'punctuation'])
    ('twenty-one', 'twenty one')
    >>> normalize('twenty-one', 'twenty one', rules=['hyphens'])
    ('twenty one', 'twenty one')
"""

from collections.abc import Callable, Mapping, Sequence
import functools
import re
import unicodedata

from tff_asr import checks
from tff_asr.metrics import word_errors

_DIGITS = (
    'zero', 'one', 'two', 'three', 'four', 'five', 'six', 'seven', 'eight',
    'nine',
)
_ENGLISH = 'english'
# An apostrophe or hyphen between letters or digits is part of a word.
_WITHIN_WORDS = re.compile(r"(?<=[^\W_])['-](?=[^\W_])")


@functools.cache
def _english_normalizer() -> Callable[[str], str]:
  """Imports the package and builds its tables, which takes some 0.1 s."""
  try:
    from whisper_normalizer import english
  except ImportError as e:
    raise ValueError(
        f'the rule {_ENGLISH} needs a further package; install it with: pip '
        'install --no-deps -r requirements-whisper-normalizer.txt'
    ) from e
  return english.EnglishTextNormalizer()


# References and frequent hypotheses come up several times in an evaluation.
@functools.lru_cache(maxsize=1 << 16)
def _to_english(text: str) -> str:
  return _english_normalizer()(text).strip()


def _strip_punctuation(text: str) -> str:
  text = text.replace('\u2019', "'")
  kept = {match.start() for match in _WITHIN_WORDS.finditer(text)}
  return ''.join(
      ' ' if unicodedata.category(c)[0] == 'P' and i not in kept else c
      for i, c in enumerate(text)
  ).strip()


def _spell_digits(text: str) -> str:
  return re.sub('[0-9]', lambda digit: f' {_DIGITS[int(digit[0])]} ', text)


def _join_compounds(reference: str, hypothesis: str) -> tuple[str, str]:
  """Gives the hypothesis the reference's spaces where letters are equal."""
  words, start = [], 0
  pairs = word_errors.align(reference, hypothesis)
  # Stretches of errors between equal words; the end closes the last one.
  ends = [i for i, pair in enumerate(pairs) if pair.kind == 'equal']
  for end in (*ends, len(pairs)):
    references, hypotheses = (
        [word for pair in pairs[start:end] if (word := getattr(pair, field))]
        for field in ('reference', 'hypothesis')
    )
    # Of the stretch as a whole: 'every one' is aligned as two errors.
    is_equal = ''.join(references) == ''.join(hypotheses)
    words += references if is_equal else hypotheses
    words += [pair.hypothesis for pair in pairs[end : end + 1]]
    start = end + 1
  return reference, ' '.join(words)


def _of_each(rule: Callable[[str], str]) -> Callable[..., tuple[str, str]]:
  """Applies a rule of one text to both texts."""
  return lambda *texts: tuple(map(rule, texts))


RULES: Mapping[str, Callable[[str, str], tuple[str, str]]] = {
    _ENGLISH: _of_each(_to_english),
    'case': _of_each(str.lower),
    'punctuation': _of_each(_strip_punctuation),
    'hyphens': _of_each(lambda text: text.replace('-', ' ')),
    'digits': _of_each(_spell_digits),
    'compounds': _join_compounds,
}
"""Rules by name, in the order in which they are applied.

- english: the normaliser of Whisper's authors for English (Radford et al. 2022,
  https://arxiv.org/abs/2212.04356, appendix C), from the package
  whisper-normalizer. It lowers case, removes punctuation, fillers such as 'uh'
  and text in brackets, writes out contractions and titles, and gives numbers in
  digits and words in American spelling. It includes case and punctuation.
- case: capital letters are small ones.
- punctuation: a character of Unicode's category P (also %, & and @) is a space,
  unless it is an apostrophe or a hyphen within a word. The apostrophe U+2019 is
  the ASCII one.
- hyphens: a hyphen is a space.
- digits: each digit is its English word, '42' is 'four two'.
- compounds: words that differ in spaces alone are equal, as 'every one' and
  'everyone'. Their space is not a character error.
"""


def check(rules: Sequence[str]) -> None:
  """Raises ValueError for rules that do not exist or lack their package."""
  if isinstance(rules, str):
    raise ValueError(f'rules must be a list of names, found {rules!r}.')
  for rule in rules:
    checks.one_of(RULES, rule=rule)
  if _ENGLISH in rules:
    _english_normalizer()


def normalize(
    reference: str, hypothesis: str, *, rules: Sequence[str]
) -> tuple[str, str]:
  """Applies rules to a reference and a hypothesis.

  Args:
    reference: The transcript.
    hypothesis: The recognised text.
    rules: Names of `RULES`.

  Raises:
    ValueError: The rule english lacks its package.
  """
  # In the order of RULES: compounds are joined after hyphens are spaces.
  for name, rule in RULES.items():
    if name in rules:
      reference, hypothesis = rule(reference, hypothesis)
  return reference, hypothesis

"""Rules that make texts alike before their errors are counted; by default none.

A rule changes what an error rate means, so tables name those that were used.

    >>> normalize('twenty-one', 'twenty one', rules=['hyphens'])
    ('twenty one', 'twenty one')
"""

from collections.abc import Callable, Mapping, Sequence
import re

from tff_asr import checks
from tff_asr.metrics import word_errors

_DIGITS = (
    'zero', 'one', 'two', 'three', 'four', 'five', 'six', 'seven', 'eight',
    'nine',
)


def _split_hyphens(reference: str, hypothesis: str) -> tuple[str, str]:
  return reference.replace('-', ' '), hypothesis.replace('-', ' ')


def _spell_digits(reference: str, hypothesis: str) -> tuple[str, str]:
  spell = lambda digit: f' {_DIGITS[int(digit[0])]} '
  return re.sub('[0-9]', spell, reference), re.sub('[0-9]', spell, hypothesis)


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


RULES: Mapping[str, Callable[[str, str], tuple[str, str]]] = {
    'hyphens': _split_hyphens,
    'digits': _spell_digits,
    'compounds': _join_compounds,
}
"""Rules by name, in the order in which they are applied.

- hyphens: a hyphen is a space.
- digits: each digit is its English word, '42' is 'four two'.
- compounds: words that differ in spaces alone are equal, as 'every one' and
  'everyone'. Their space is not a character error.
"""


def check(rules: Sequence[str]) -> None:
  """Raises ValueError for rules that do not exist."""
  if isinstance(rules, str):
    raise ValueError(f'rules must be a list of names, found {rules!r}.')
  for rule in rules:
    checks.one_of(RULES, rule=rule)


def normalize(
    reference: str, hypothesis: str, *, rules: Sequence[str]
) -> tuple[str, str]:
  """Applies rules to a reference and a hypothesis.

  Args:
    reference: The transcript.
    hypothesis: The recognised text.
    rules: Names of `RULES`.
  """
  # In the order of RULES: compounds are joined after hyphens are spaces.
  for name, rule in RULES.items():
    if name in rules:
      reference, hypothesis = rule(reference, hypothesis)
  return reference, hypothesis

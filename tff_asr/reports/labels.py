"""LABEL=VALUE, as the comparing programs' flags give it."""

from collections.abc import Sequence


def parse(flag: str, texts: Sequence[str], *, form: str) -> dict[str, str]:
  """Labels to values, in the order given.

  Args:
    flag: The flag's name, for errors.
    texts: Its values. A label may hold equals signs, what follows may not.
    form: What each must look like, for errors.

  Raises:
    ValueError: A text has no equals sign or no label, or a label comes twice.
  """
  values = {}
  for text in texts:
    label, _, value = text.rpartition('=')
    if not label:
      raise ValueError(f'--{flag} must look like {form}, found {text!r}.')
    if label in values:
      raise ValueError(f'--{flag} has the label {label!r} twice.')
    values[label] = value
  return values

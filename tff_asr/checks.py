"""Argument validators that name the argument and say what was found.

Each takes the values to check as keyword arguments, so that a call reads like
the claim it makes, `checks.positive(cohort_size=cohort_size)`, and raises
`ValueError` with the argument's name, what was found and what is allowed.
"""

from collections.abc import Collection, Sequence
import math
from typing import Any


class Problems(ValueError):
  """Several things that are wrong at once.

  Attributes:
    messages: What is wrong with each and what to change; a line each in `str`.
  """

  def __init__(self, *messages: str):
    super().__init__('\n'.join(messages))
    self.messages = messages


def raise_together(errors: Sequence[Exception], /) -> None:
  """Raises one error as it is, several as `Problems`, none not at all."""
  messages = {}  # In order, each once: a part may fail in several places.
  for error in errors:
    found = error.messages if isinstance(error, Problems) else [str(error)]
    messages |= dict.fromkeys(found)
  if len(messages) == 1:
    raise errors[0]
  if messages:
    raise Problems(*messages)


def positive(**values: float) -> None:
  """Raises ValueError unless each value is a number above zero."""
  for name, value in values.items():
    if not _is_number(value) or not value > 0:
      raise ValueError(f'{name} must be positive, found {value!r}.')


def non_negative(**values: float) -> None:
  """Raises ValueError unless each value is a number of at least zero."""
  for name, value in values.items():
    if not _is_number(value) or not value >= 0:
      raise ValueError(f'{name} must be at least 0, found {value!r}.')


def positive_int(**values: int) -> None:
  """Raises ValueError unless each value is an integer of at least one."""
  for name, value in values.items():
    if not _is_int(value) or value < 1:
      raise ValueError(
          f'{name} must be a positive integer, found {value!r}.'
      )


def non_negative_int(**values: int) -> None:
  """Raises ValueError unless each value is an integer of at least zero."""
  for name, value in values.items():
    if not _is_int(value) or value < 0:
      raise ValueError(
          f'{name} must be an integer of at least 0, found {value!r}.'
      )


def finite(**values: float) -> None:
  """Raises ValueError unless each value is a finite number."""
  for name, value in values.items():
    if not _is_number(value) or not math.isfinite(value):
      raise ValueError(f'{name} must be a finite number, found {value!r}.')


def in_range(low: float, high: float, /, **values: float) -> None:
  """Raises ValueError unless low <= value <= high for each value."""
  for name, value in values.items():
    if not _is_number(value) or not low <= value <= high:
      raise ValueError(
          f'{name} must be between {low} and {high}, found {value!r}.'
      )


def one_of(allowed: Collection[Any], /, **values: Any) -> None:
  """Raises ValueError unless each value is among the allowed ones."""
  for name, value in values.items():
    if value not in allowed:
      names = ', '.join(repr(option) for option in allowed)
      raise ValueError(f'{name} must be one of {names}, found {value!r}.')


def _is_number(value: Any) -> bool:
  return isinstance(value, (int, float)) and not isinstance(value, bool)


def _is_int(value: Any) -> bool:
  return isinstance(value, int) and not isinstance(value, bool)

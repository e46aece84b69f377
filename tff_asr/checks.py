"""Argument validators that name the argument and say what was found.

Each takes the values to check as keyword arguments, such as
`checks.positive(cohort_size=cohort_size)`, and raises `ValueError` with the
argument's name, what was found and what is allowed. For several arguments it
raises `Problems`, which is also a `ValueError`.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
import math
import os


class Problems(ValueError):
  """Several things that are wrong at once.

  Attributes:
    messages: What is wrong with each and what to change; `str` has one
      line for each.
  """

  def __init__(self, *messages: str):
    super().__init__('\n'.join(messages))
    self.messages = messages


def raise_errors(errors: Sequence[Exception], /) -> None:
  """Raises one error as it is, several as `Problems`, none not at all."""
  messages = {}  # In order, each once: a part may fail in several places.
  for error in errors:
    found = error.messages if isinstance(error, Problems) else [str(error)]
    messages |= dict.fromkeys(found)
  if len(messages) == 1:
    raise errors[0]
  if messages:
    raise Problems(*messages)


def check_all(*checks: Callable[[], object]) -> None:
  """Runs all checks, and reports those that fail as one error.

      >>> check_all(
      ...     lambda: positive(rate=0.0), lambda: positive_int(steps=1.5)
      ... )
      Traceback (most recent call last):
      tff_asr.checks.Problems: rate must be positive, found 0.0.
      steps must be a positive integer, found 1.5.

  Args:
    *checks: Called in order. Each ValueError and OSError is kept, and raised at
      the end as by `raise_errors`.
  """
  errors = []
  for check in checks:
    try:
      check()
    except (ValueError, OSError) as error:  # Any other is a defect.
      errors.append(error)
  raise_errors(errors)


def positive(**values: float) -> None:
  """Raises ValueError unless each value is a number above zero."""
  # NaN fails here and below: every comparison with it is false.
  _check_all(values, lambda v: _is_number(v) and v > 0, 'positive')


def non_negative(**values: float) -> None:
  """Raises ValueError unless each value is a number of at least zero."""
  _check_all(values, lambda v: _is_number(v) and v >= 0, 'at least 0')


def positive_int(**values: int) -> None:
  """Raises ValueError unless each value is an integer of at least one."""
  _check_all(values, lambda v: _is_int(v) and v >= 1, 'a positive integer')


def non_negative_int(**values: int) -> None:
  """Raises ValueError unless each value is an integer of at least zero."""
  _check_all(
      values, lambda v: _is_int(v) and v >= 0, 'an integer of at least 0'
  )


def finite(**values: float) -> None:
  """Raises ValueError unless each value is a finite number."""
  _check_all(
      values, lambda v: _is_number(v) and math.isfinite(v), 'a finite number'
  )


def in_range(low: float, high: float, /, **values: float) -> None:
  """Raises ValueError unless low <= value <= high for each value."""
  _check_all(
      values,
      lambda v: _is_number(v) and low <= v <= high,
      f'between {low} and {high}',
  )


def below_one(**values: float) -> None:
  """Raises ValueError unless 0 <= value < 1 for each value."""
  _check_all(
      values, lambda v: _is_number(v) and 0 <= v < 1, 'at least 0 and below 1'
  )


def one_of(allowed: Collection[object], /, **values: object) -> None:
  """Raises ValueError unless each value is among the allowed ones."""
  names = ', '.join(repr(option) for option in allowed)
  _check_all(values, lambda v: v in allowed, f'one of {names}')


def output_folders(**paths: str) -> None:
  """Raises ValueError unless each is a folder to write in, or can become one.

  Nothing is written to find out.
  """
  errors = []
  for name, path in paths.items():
    if not path:
      errors.append(ValueError(f'{name} must name a folder, found {path!r}.'))
      continue
    existing = os.path.abspath(path)
    # The first folder that exists decides whether the others can be made.
    while not os.path.lexists(existing):
      existing = os.path.dirname(existing)
    if not os.path.isdir(existing):
      problem = f'cannot be a folder: {existing} is a file'
    # A folder also needs the right to be entered.
    elif not os.access(existing, os.W_OK | os.X_OK):
      problem = f'cannot be written: {existing} is read-only'
    else:
      continue
    errors.append(ValueError(f'{name} {path} {problem}. Take another {name}.'))
  raise_errors(errors)


def _check_all(
    values: Mapping[str, object], is_good: Callable[[object], bool], wanted: str
) -> None:
  """Raises ValueError for the values that are not good, together."""
  raise_errors([
      ValueError(f'{name} must be {wanted}, found {value!r}.')
      for name, value in values.items()
      if not is_good(value)
  ])


def _is_number(value: object) -> bool:
  # A bool is an int in Python.
  return isinstance(value, (int, float)) and not isinstance(value, bool)


def _is_int(value: object) -> bool:
  # Not NumPy's integers, which JSON and gin cannot write.
  return isinstance(value, int) and not isinstance(value, bool)


def xla_is_exact() -> None:
  """Raises ValueError if XLA is told to change the arithmetic of a program.

  Proofs of privacy hold for the arithmetic that is written. `XLA_FLAGS` has
  XLA's flags, or the name of a file with them.
  """
  options = os.environ.get('XLA_FLAGS', '').strip()
  if options and not options.startswith('-') and os.path.isfile(options):
    with open(options, encoding='utf-8') as file:
      options = file.read()
  if 'xla_cpu_enable_fast_math' in options:
    raise ValueError(
        'XLA_FLAGS has xla_cpu_enable_fast_math, under which the bounds of '
        'clips and noise are not known to hold: leave it out.'
    )

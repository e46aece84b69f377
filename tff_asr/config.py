"""gin files and overrides to a bound program: the only module that knows gin.

`bind` parses, checks what gin itself lets pass (misspelt macros, settings
without a value) and returns the program with its arguments bound. Files are
looked up from the working directory and from this project's folder, so that
`gin/experiments/x.gin` works in a notebook anywhere.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
import contextlib
import difflib
import inspect
import logging
import os
import re
import tokenize
from typing import Any

import gin

# BUILD data: //gin


class ConfigError(ValueError):
  """A configuration that cannot be used; the message is for its author."""


_GIN_ERRORS = (
    AttributeError,
    ImportError,
    NameError,
    OSError,
    SyntaxError,
    ValueError,
    tokenize.TokenError,
)
_ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
# In gin's own text: a name without a dot is a macro.
_MACRO_DEFINITION = re.compile(r'^(\w+) *=', re.MULTILINE)
_MACRO_USE = re.compile(r'%([A-Z][A-Z0-9_]*)\b')
_WITHOUT_VALUE = re.compile(
    r'^([A-Z][A-Z0-9_]*) *= *\\?\s*%gin\.REQUIRED', re.MULTILINE
)
_INFINITY = re.compile(r'^([\w./]+ =) inf$', re.MULTILINE)
_FUNCTION = re.compile(r'(?:^|@)([\w./]*\w+\.\w+)', re.MULTILINE)
# The override itself, which is shown anyway, and a syntax tree's address.
_NOISE = re.compile(r' In bindings string line .*$| on line \d+: <[^>]*>')
_UNKNOWN_FUNCTION = re.compile(r"No configurable matching .*?'@?([\w./]+)")
_UNKNOWN_ARGUMENT = re.compile(
    r"'([^']+)' doesn't have a parameter named '(\w+)'"
)


def bind(
    program: Callable[..., Any],
    *,
    gin_files: Sequence[str],
    gin_params: Sequence[str] = (),
) -> Callable[..., Any]:
  """Returns `program` with the arguments that gin files and overrides give it.

  Args:
    program: A function that one of the files configures.
    gin_files: Files to read, in order.
    gin_params: Overrides such as `NUM_ROUNDS = 10`, applied last. A macro must
      be one that the files define.

  Returns:
    A callable with the same signature; `text()` gives the configuration.

  Raises:
    ConfigError: A file is missing, a name is unknown (the nearest known one is
      named), a macro has no value, or the text cannot be parsed.
  """
  gin.clear_config()
  if not gin_files:
    raise ConfigError('no configuration: give a file with --gin_file.')
  with _searched_from_root(), _explained():
    gin.parse_config_files_and_bindings(
        [_find(path) for path in gin_files], (), finalize_config=False
    )
  _apply_overrides(gin_params)
  _check_macros()
  try:
    return gin.get_configurable(program)
  except ValueError as e:
    raise ConfigError(
        f'{", ".join(gin_files)} does not configure '
        f'{program.__module__}.{program.__name__}.'
    ) from e


def text() -> str:
  """The whole configuration as bound now; gin text that can be read again."""
  # gin writes infinity as Python does and cannot read that.
  return _INFINITY.sub(r'\1 1e999', gin.config_str(max_line_length=80))


def _find(path: str) -> str:
  """The file's path from here or from this project's folder."""
  for folder in ('', _ROOT):
    found = os.path.join(folder, path)
    if os.path.isfile(found):
      return found
  raise ConfigError(f'configuration file {path} does not exist.')


@contextlib.contextmanager
def _searched_from_root() -> Iterator[None]:
  """Lets `include` find this project's files from any working directory."""
  global _is_root_known  # gin's list of folders is global, too.
  if not _is_root_known:
    gin.add_config_file_search_path(_ROOT)
    _is_root_known = True
  # gin logs an error for each folder that it looks into in vain.
  is_wanted = lambda record: not str(record.msg).startswith('Path not found')
  logging.getLogger().addFilter(is_wanted)
  try:
    yield
  finally:
    logging.getLogger().removeFilter(is_wanted)


_is_root_known = False


@contextlib.contextmanager
def _explained(where: str = '') -> Iterator[None]:
  """Turns gin's errors into one line."""
  try:
    yield
  except _GIN_ERRORS as e:
    raise ConfigError(where + _one_line(e)) from e


def _one_line(error: Exception) -> str:
  """gin's message on one line, with the nearest known name."""
  if isinstance(error, SyntaxError) and error.text:
    message = f'cannot parse {error.text.strip()!r}: {error.msg}'
  elif isinstance(error, tokenize.TokenError):
    message = f'cannot parse: {error.args[0]}.'
  else:
    message = str(error)
  # gin appends the place as further lines; the last names file and line.
  message = ' '.join(message.split())
  message = _NOISE.sub('', message).replace(
      'malformed node or string', 'no value (does a text lack its quotes?)'
  )
  if unknown := _UNKNOWN_FUNCTION.search(message):
    message += nearest(unknown[1], _functions())
  if unknown := _UNKNOWN_ARGUMENT.search(message):
    function = gin.get_configurable(unknown[1])
    message += nearest(unknown[2], inspect.signature(function).parameters)
  return message


def _functions() -> set[str]:
  """Names of the functions that the configuration mentions."""
  names = set()
  for name in _FUNCTION.findall(text()):
    name = name.split('/')[-1]
    names |= {name, name.rpartition('.')[0]}  # With and without an argument.
  return names


def _apply_overrides(gin_params: Sequence[str]) -> None:
  """Parses the overrides; a macro must be one that the files define."""
  known = set(_MACRO_DEFINITION.findall(text()))
  for param in gin_params:
    if '=' not in param:
      raise ConfigError(
          f"--gin_param must look like 'NAME = value', found {param!r}."
      )
    name = param.split('=')[0].strip()
    if re.fullmatch(r'\w+', name) and name not in known:
      raise ConfigError(
          f'unknown setting {name} in --gin_param.{nearest(name, known)}'
      )
    with _explained(f'--gin_param={param!r}: '):
      gin.parse_config(param)
  # What the first line of an override does not tell.
  for name in sorted(set(_MACRO_DEFINITION.findall(text())) - known):
    raise ConfigError(
        f'unknown setting {name} in --gin_param.{nearest(name, known)}'
    )


def _check_macros() -> None:
  """Raises ConfigError for macros without a definition or without a value."""
  config = text()
  known = set(_MACRO_DEFINITION.findall(config))
  problems = []
  for name in sorted(set(_MACRO_USE.findall(config)) - known):
    problems.append(
        f'%{name} is used and nowhere set.{nearest(name, known)}'
    )
  for name in _WITHOUT_VALUE.findall(config):
    problems.append(
        f"{name} has no value; set it with --gin_param='{name} = ...'."
    )
  if problems:
    raise ConfigError(' '.join(problems))


def nearest(name: str, known: Iterable[str]) -> str:
  """` Did you mean X?` for the known name most like `name`, else nothing."""
  close = difflib.get_close_matches(name, sorted(known), n=1, cutoff=0.6)
  return f' Did you mean {close[0]}?' if close else ''

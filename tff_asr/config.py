"""gin files and overrides to a bound program: the only module that knows gin.

`bind` parses, checks what gin itself lets pass (misspelt macros, settings
without a value) and returns the program with its arguments bound. Files are
looked up from the working directory and from this project's folder, so that
`gin/experiments/x.gin` works in a notebook anywhere.
"""

from collections.abc import Callable, Sequence
import contextlib
import difflib
import os
import re
from typing import Any

import gin


class ConfigError(ValueError):
  """A configuration that cannot be used; the message is for its author."""


_GIN_ERRORS = (
    AttributeError,
    ImportError,
    NameError,
    OSError,
    SyntaxError,
    ValueError,
)
_ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_MACRO_DEFINITION = re.compile(r'^([A-Z][A-Z0-9_]*) *=', re.MULTILINE)
_MACRO_USE = re.compile(r'%([A-Z][A-Z0-9_]*)\b')
_WITHOUT_VALUE = re.compile(
    r'^([A-Z][A-Z0-9_]*) *= *\\?\s*%gin\.REQUIRED', re.MULTILINE
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
  gin.add_config_file_search_path(_ROOT)
  if not gin_files:
    raise ConfigError('no configuration: give a file with --gin_file.')
  for path in gin_files:
    if not any(
        os.path.isfile(os.path.join(folder, path)) for folder in ('', _ROOT)
    ):
      raise ConfigError(f'configuration file {path} does not exist.')
  with _explained():
    gin.parse_config_files_and_bindings(gin_files, (), finalize_config=False)
  _check_overrides(gin_params)
  with _explained():
    gin.parse_config(list(gin_params))
  _check_macros()
  with _explained():
    return gin.get_configurable(program)


def text() -> str:
  """The whole configuration as bound now, as gin text."""
  return gin.config_str(max_line_length=80)


@contextlib.contextmanager
def _explained():
  """Turns gin's errors into one line."""
  try:
    yield
  except _GIN_ERRORS as e:
    raise ConfigError(_one_line(e)) from e


def _one_line(error: Exception) -> str:
  """gin's message without its trace of files, on one line."""
  if isinstance(error, SyntaxError) and error.text:
    return f'cannot parse {error.text.strip()!r}: {error.msg}.'
  message = str(error).strip()
  # gin appends the place as further lines; the last names file and line.
  return ' '.join(line.strip() for line in message.splitlines() if line.strip())


def _check_overrides(gin_params: Sequence[str]) -> None:
  """Raises ConfigError for an override of a macro that no file defines."""
  known = set(_MACRO_DEFINITION.findall(text()))
  for param in gin_params:
    if '=' not in param:
      raise ConfigError(
          f"--gin_param must look like 'NAME = value', found {param!r}."
      )
    name = param.split('=')[0].strip()
    if _MACRO_DEFINITION.match(f'{name} =') and name not in known:
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


def nearest(name: str, known: Sequence[str] | set[str]) -> str:
  """` Did you mean X?` for the known name most like `name`, else nothing."""
  close = difflib.get_close_matches(name, sorted(known), n=1, cutoff=0.5)
  return f' Did you mean {close[0]}?' if close else ''

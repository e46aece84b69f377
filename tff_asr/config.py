"""gin files and overrides to a bound program: the only module that knows gin.

`bind` parses, checks what gin itself lets pass (misspelt macros, settings
without a value) and returns the program with its arguments bound. When that is
called, the parts that the configuration names are built from the leaves up,
each once; the errors of all parts are reported together, so that a user mends
them in one go. Files are looked up from the working directory and from this
project's folder, so that `gin/experiments/x.gin` works in a notebook anywhere.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
import contextlib
import copy
import difflib
import functools
import inspect
import logging
import os
import re
import tokenize
from typing import Any

import gin

from tff_asr import type_checks
from tff_asr import checks


class ConfigError(checks.Problems):
  """A configuration that cannot be used; the messages are for its author."""


_GIN_ERRORS = (
    AttributeError,
    ImportError,
    KeyError,
    NameError,
    OSError,
    SyntaxError,
    ValueError,
    tokenize.TokenError,
)
# What users can mend. Anything else is a defect, and is not caught.
_USERS_ERRORS = (ValueError, OSError)
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
    check: Callable[..., None] | None = None,
    call: Callable[..., Any] | None = None,
) -> Callable[..., Any]:
  """Returns `program` with the arguments that gin files and overrides give it.

  Args:
    program: A function that one of the files configures.
    gin_files: Files to read, in order.
    gin_params: Overrides such as `NUM_ROUNDS = 10`, applied last. A macro must
      be one that the files define.
    check: Raises ValueError for what is wrong with the program's arguments, of
      which it takes any by name. It is called where parts cannot be built, so
      that its error is reported with theirs.
    call: Called with the program's arguments in its place, such as to describe
      what it would do.

  Returns:
    The program, which takes the arguments left by name; those given win. It
    raises what the parts raise, and `checks.Problems` for several of them.
    `text()` gives the configuration.

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
  problems = _apply_overrides(gin_params) + _macro_problems()
  if problems:
    raise ConfigError(*problems)
  try:
    bindings = gin.get_bindings(program, resolve_references=False)
  except ValueError:  # gin has never heard of it.
    bindings = {}
  if not bindings:
    raise ConfigError(
        f'{", ".join(gin_files)} does not configure '
        f'{program.__module__}.{program.__name__}.'
    )

  @functools.wraps(program)
  def bound(**given):
    parts = _Parts()
    wanted = bindings | given
    built, _ = parts.build_arguments(program, wanted)
    if parts.errors and check is not None:
      defaults = _defaults(program)
      left = {name: defaults[name] for name in defaults.keys() - wanted.keys()}
      try:
        check(**left | built)
      except _USERS_ERRORS as e:
        parts.errors.append(e)
    checks.raise_together(parts.errors)
    return (call or program)(**built)

  return bound


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
  if isinstance(error, KeyError):  # Python shows its argument in quotes.
    message = message.replace('\\n', ' ').strip('\'"')
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


def _apply_overrides(gin_params: Sequence[str]) -> list[str]:
  """Parses the overrides; returns what is wrong with them."""
  known = set(_MACRO_DEFINITION.findall(text()))
  problems = []
  for param in gin_params:
    name = param.split('=')[0].strip()
    if '=' not in param:
      problems.append(
          f"--gin_param must look like 'NAME = value', found {param!r}."
      )
    elif re.fullmatch(r'\w+', name) and name not in known:
      problems.append(
          f'unknown setting {name} in --gin_param.{nearest(name, known)}'
      )
    else:
      try:
        with _explained(f'--gin_param={param!r}: '):
          gin.parse_config(param)
      except ConfigError as e:
        problems.append(str(e))
  # What the first line of an override does not tell.
  for name in sorted(set(_MACRO_DEFINITION.findall(text())) - known):
    problems.append(
        f'unknown setting {name} in --gin_param.{nearest(name, known)}'
    )
  return problems


def _macro_problems() -> list[str]:
  """Which macros have no definition or no value."""
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
  return problems


class _Failed(Exception):
  """A part that another one needs could not be built."""


class _Parts:
  """Builds what references stand for, each once, and keeps all errors.

  gin itself would build a part while it is calling the one that needs it, and
  end at the first error. Scopes are as in gin: a reference without a scope of
  its own is built in that of the reference it belongs to.
  """

  def __init__(self):
    self.errors: list[Exception] = []
    self._built: dict[tuple[str, str], Any] = {}

  def build_arguments(
      self, function: Callable[..., Any], bindings: Mapping[str, Any]
  ) -> tuple[dict[str, Any], bool]:
    """The arguments that can be built, and whether all can."""
    built = {}
    hints = type_checks.of(function)
    for name, binding in bindings.items():
      try:
        value = self._build(binding)
      except _Failed:
        continue
      if type_checks.is_met(hints.get(name, Any), value):
        built[name] = value
      else:
        self.errors.append(ConfigError(
            f'{_name(function, name, binding)} must be '
            f'{type_checks.describe(hints[name])}, found {_shown(value)}.'
        ))
    for name in _required(function) - bindings.keys():
      self.errors.append(ConfigError(
          f'{_name(function, name, None)} has no value; set it in the '
          'configuration.'
      ))
    missing = (bindings.keys() | _required(function)) - built.keys()
    return built, not missing

  def _build(self, value: Any) -> Any:
    """A bound value with its references built; _Failed where one cannot be."""
    if isinstance(value, gin.config.ConfigurableReference):
      if not value.evaluate:
        return copy.deepcopy(value)  # gin's way to say: the function.
      # In gin's own order of calls the scope replaces the one around it.
      with gin.config_scope(value.scopes or gin.current_scope()) as scope:
        key = ('/'.join(scope), value.configurable.selector)
        if key not in self._built:
          self._built[key] = self._call(value.configurable)
        if self._built[key] is _Failed:
          raise _Failed
        return self._built[key]
    if isinstance(value, dict):
      return {self._build(k): self._build(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
      return type(value)(map(self._build, value))
    return value

  def _call(self, configurable: Any) -> Any:
    """Builds a part in the scope that is open; `_Failed` if that fails."""
    function = configurable.wrapped
    bindings = gin.get_bindings(
        configurable.selector, resolve_references=False
    )
    built, is_whole = self.build_arguments(function, bindings)
    if not is_whole:
      return _Failed
    try:
      return function(**built)
    except _USERS_ERRORS as e:
      self.errors.append(e)
      return _Failed


def _required(function: Callable[..., Any]) -> set[str]:
  """Names of the arguments that have no default."""
  return {
      name
      for name, parameter in inspect.signature(function).parameters.items()
      if parameter.default is parameter.empty
      and parameter.kind in (parameter.POSITIONAL_OR_KEYWORD,
                             parameter.KEYWORD_ONLY)
  }


def _defaults(function: Callable[..., Any]) -> dict[str, Any]:
  """The arguments that have a default."""
  return {
      name: parameter.default
      for name, parameter in inspect.signature(function).parameters.items()
      if parameter.default is not parameter.empty
  }


def _name(function: Callable[..., Any], name: str, binding: Any) -> str:
  """What a user calls an argument: its macro, if it is set by one."""
  if str(binding).startswith('%'):
    return str(binding)[1:]
  module = function.__module__.rpartition('.')[2]
  return f'{module}.{function.__name__}.{name}'


def _shown(value: Any) -> str:
  """A value on one line, without addresses."""
  if isinstance(value, (bool, int, float, str, list, tuple, type(None))):
    return repr(value)
  return f'a {type(value).__name__}'


def nearest(name: str, known: Iterable[str]) -> str:
  """` Did you mean X?` for the known name most like `name`, else nothing."""
  close = difflib.get_close_matches(name, sorted(known), n=1, cutoff=0.6)
  return f' Did you mean {close[0]}?' if close else ''

"""Binds gin files and overrides to a program: the only module that uses gin.

    build = config.bind(
        federated.FederatedTraining,
        gin_files=['gin/experiments/quickstart_federated_dp.gin'],
        gin_params=['NUM_ROUNDS = 20'],
    )

- Files are searched in the working directory, then in this project:
  `gin/experiments/x.gin` works anywhere. Includes and imports of a file outside
  the project are also searched in its folder. A gin file is a program: it is
  read only if the user names it.
- gin accepts misspelt macros and macros without a value; `bind` rejects both.
- Before gin builds any part, all arguments are checked against their annotated
  types, and all problems are reported together.
- gin builds a part at each use of its macro; `gin.singleton` shares one.
"""

import collections.abc
from collections.abc import (
    Callable, Collection, Iterable, Iterator, Mapping, Sequence
)
import contextlib
import difflib
import functools
import glob
import inspect
import json
import logging
import os
import pprint
import re
import sys
import tokenize
import types
import typing
from typing import Any

import gin

from tff_asr import checks


class ConfigError(checks.Problems):
  """A configuration that cannot be used."""


# Annotated types in words, for messages.
_TYPES = {
    bool: 'True or False',
    int: 'an integer',
    float: 'a number',
    str: 'a text in quotes',
    types.NoneType: 'None',
    collections.abc.Callable: 'a function (@ without brackets)',
    collections.abc.Sequence: 'a list',
}
# What gin raises for wrong files; any other error is a defect.
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
_PACKAGE = os.path.dirname(os.path.abspath(__file__))
# A wheel has the folder gin in the package, a working copy next to it.
_ROOT = next(
    folder
    for folder in (_PACKAGE, os.path.dirname(_PACKAGE))
    if os.path.isdir(os.path.join(folder, 'gin', 'programs'))
)
gin.add_config_file_search_path(_ROOT)  # For `include`, from any folder.
# gin would sort the keys of mappings that it writes, but their order may
# matter: the first pattern that fits a layer counts.
gin.config.pprint = types.SimpleNamespace(
    pformat=functools.partial(pprint.pformat, sort_dicts=False)
)
# In the text of a configuration, a name without a dot is a macro.
_MACRO_DEFINITION = re.compile(r'^(\w+) *=', re.MULTILINE)
_INCLUDE = re.compile(r"^include '(.+)'")
_SETTING = re.compile(r'^([A-Z][A-Z0-9_]*) *= *(.+?)(?: +#.*)?$')
_MACRO_USE = re.compile(r'%([A-Z][A-Z0-9_]*)\b')
_WITHOUT_VALUE = re.compile(
    r'^([A-Z][A-Z0-9_]*) *= *\\?\s*%gin\.REQUIRED', re.MULTILINE
)
_INFINITY = re.compile(r'^([\w./]+ =) inf$', re.MULTILINE)
# Parts of gin's messages to drop: the override, which is shown anyway, and the
# address of a syntax tree.
_NOISE = re.compile(r' In bindings string line .*$| on line \d+: <[^>]*>')


def bind(
    program: Callable[..., object],
    *,
    gin_files: Sequence[str],
    gin_params: Sequence[str] = (),
) -> Callable[..., object]:
  """Returns `program` with the arguments of gin files and overrides.

  Args:
    program: A function that one of the files configures.
    gin_files: Files to read, in order.
    gin_params: Overrides such as `NUM_ROUNDS = 10`, applied last. A macro must
      be one that the files define.

  Returns:
    The program, which takes the remaining arguments by name; those given win.
    It raises ConfigError for arguments that are missing or of the wrong type,
    and what the parts raise. `text()` gives the configuration.

  Raises:
    ConfigError: A file is missing, a name is unknown (the nearest known one is
      named), a macro has no value, or the text cannot be parsed.
  """
  # gin's configuration is global to the process: drop that of an earlier call.
  gin.clear_config()
  if not gin_files:
    raise ConfigError('no configuration: give a file with --gin_file.')
  paths = [_find(path) for path in gin_files]
  for path in paths:
    _search_folder_of(path)
  # Not finalized, because the overrides are applied later.
  with _without_search_log(), _explained():
    gin.parse_config_files_and_bindings(paths, (), finalize_config=False)
  # Before overrides: gin would accept one that defines another macro.
  known = set(_MACRO_DEFINITION.findall(text()))
  problems = _apply_overrides(gin_params)
  problems += _unknown_macros(gin_params, known) + _macro_problems(text())
  if problems:
    raise ConfigError(*problems)
  try:
    bindings = gin.get_bindings(program, resolve_references=False)
  except ValueError:  # No file mentions it.
    bindings = {}
  if not bindings:
    raise ConfigError(
        f'{", ".join(gin_files)} does not configure '
        f'{program.__module__}.{program.__name__}.'
    )

  @functools.wraps(program)
  def bound(**given):
    problems = _preflight(program, bindings, given)
    if problems:
      raise ConfigError(*dict.fromkeys(problems))
    # Looked up now: the configurable has the bindings, `program` has not.
    return gin.get_configurable(program)(**given)

  return bound


def text() -> str:
  """Returns the bound configuration as gin text, which can be bound again."""
  # gin writes infinity as Python does and cannot read that.
  return _INFINITY.sub(r'\1 1e999', gin.config_str(max_line_length=80))


def macros_of_files(gin_files: Sequence[str]) -> dict[str, str]:
  """Returns the macros that files set, as text, without importing anything.

      >>> macros_of_files(['gin/schedules/constant.gin'])
      {'SCHEDULE': '@schedules.constant()'}

  Args:
    gin_files: Files to read, in order, with their includes.

  Raises:
    ConfigError: A file is missing.
  """
  found = {}
  for path in map(_find, gin_files):
    with open(path, encoding='utf-8') as file:
      for line in file:
        if included := _INCLUDE.match(line):
          # A file outside the project may include its neighbours.
          beside = os.path.join(os.path.dirname(path), included[1])
          exists = os.path.isfile(beside)
          found |= macros_of_files([beside if exists else included[1]])
        elif defined := _SETTING.match(line):
          found[defined[1]] = defined[2]
  return found


def public_model_params(
    gin_files: Sequence[str], pretrained: str | None
) -> list[str]:
  """Parameters that `--pretrained` stands for.

  Args:
    gin_files: The files of the configuration.
    pretrained: Name or folder of a public model; None: as the files say.

  Raises:
    ConfigError: The files do not set PRETRAINED.
  """
  if pretrained is None:
    return []
  if 'PRETRAINED' not in macros_of_files(gin_files):
    raise ConfigError(
        f'--pretrained: the model of {", ".join(gin_files)} has no public part;'
        ' add --gin_file=gin/models/public_head.gin.'
    )
  return [f'PRETRAINED = {pretrained!r}']


def settings_help(argv: Sequence[str], *, gin_file: str) -> str:
  """Returns the settings of a command's gin files, for --help.

  Args:
    argv: The command line; each --gin_file=FILE is read.
    gin_file: The program's file, read if the command line names none.
  """
  given = [
      arg.partition('=')[2] for arg in argv if arg.startswith('--gin_file=')
  ] or [gin_file]
  required = lambda value: value.replace('%gin.REQUIRED', '(required)')
  return '\n'.join([
      f'Settings of {" and ".join(given)}, for --gin_param; its header',
      'explains them. %NAME is another setting. --help after',
      '--gin_file=EXPERIMENT lists those of the experiment.',
      *(
          f'  {name} = {required(value)}'
          for name, value in macros_of_files(given).items()
      ),
  ])


def model_spec(*macros: str) -> str:
  """Returns macros' values as JSON, which `recognition.model_spec` builds.

  The parts are named, not built. Their objects are

      {"build": "module.function", "arguments": {name: value}}
      {"function": "module.function", "arguments": {name: value}}
      {"mapping": [[key, value]]}

  Other values are written as they are; a tuple becomes a list.

  Args:
    *macros: Their names, such as 'MODEL'.

  Returns:
    An object with one part for each macro. Empty if a macro is not set.

  Raises:
    ConfigError: An argument of a part cannot be written as JSON.
  """
  try:
    found = {name: gin.query_parameter(f'%{name}') for name in macros}
  except ValueError:  # A program without a model, such as a test's.
    return ''
  try:
    return json.dumps({k: _described(v) for k, v in found.items()}, indent=1)
  # Such as an array: JSON has no such value.
  except TypeError as e:
    raise ConfigError(f'{" or ".join(macros)} cannot be saved: {e}.') from e


def _described(value: object) -> object:
  """A bound value as `model_spec` writes it."""
  if isinstance(value, gin.config.ConfigurableReference):
    # As in gin: a reference without a scope has that of its user.
    with gin.config_scope(value.scopes or gin.current_scope()):
      function = value.configurable.wrapped
      given = {
          name: _described(argument)
          for name, argument in gin.get_bindings(
              value.configurable.selector, resolve_references=False
          ).items()
      }
    # A macro is written as its value.
    if value.configurable.selector == 'gin.macro':
      return given['value']
    return {
        'build' if value.evaluate else 'function': (
            f'{function.__module__}.{function.__qualname__}'
        ),
        'arguments': given,
    }
  if isinstance(value, dict):
    # Keys of JSON objects are texts; those of a mapping may be numbers.
    return {'mapping': [list(map(_described, item)) for item in value.items()]}
  if isinstance(value, (list, tuple)):
    return [*map(_described, value)]
  return value


def _find(path: str) -> str:
  """Returns the path of a file in the working directory or the project."""
  for folder in ('', _ROOT):
    found = os.path.join(folder, path)
    if os.path.isfile(found):
      return found
  known = glob.glob('gin/**/*.gin', root_dir=_ROOT, recursive=True)
  known += glob.glob(os.path.join(os.path.dirname(path), '*.gin'))
  raise ConfigError(
      f'configuration file {path} does not exist.{_nearest(path, known)}'
  )


def _search_folder_of(path: str) -> None:
  """Lets a user's file import and include files of its folder."""
  folder = os.path.dirname(os.path.realpath(path))
  own = os.path.join(os.path.realpath(_ROOT), 'gin', '')
  if folder not in sys.path and not folder.startswith(own):
    sys.path.append(folder)  # Last, so that nothing in it hides a library.
    gin.add_config_file_search_path(folder)


@contextlib.contextmanager
def _without_search_log() -> Iterator[None]:
  """Silences gin's line for each folder without an included file."""
  is_wanted = lambda record: not str(record.msg).startswith('Path not found')
  logging.getLogger().addFilter(is_wanted)
  try:
    yield
  finally:
    logging.getLogger().removeFilter(is_wanted)


@contextlib.contextmanager
def _explained(where: str = '') -> Iterator[None]:
  """Raises gin's errors as a ConfigError of one line."""
  try:
    yield
  except _GIN_ERRORS as e:
    raise ConfigError(where + _one_line(e)) from e


def _one_line(error: Exception) -> str:
  """Returns gin's message on one line."""
  if isinstance(error, SyntaxError) and error.text:
    message = f'cannot parse {error.text.strip()!r}: {error.msg}'
  elif isinstance(error, tokenize.TokenError):
    message = f'cannot parse: {error.args[0]}.'
  else:
    message = str(error)
  if isinstance(error, KeyError):  # Python shows its argument in quotes.
    message = message.replace('\\n', ' ').strip('\'"')
  return _NOISE.sub('', ' '.join(message.split())).replace(
      'malformed node or string', 'no value (does a text lack its quotes?)'
  )


def _apply_overrides(gin_params: Sequence[str]) -> list[str]:
  """Parses the overrides; returns their problems."""
  problems = []
  for param in gin_params:
    if '=' not in param:
      problems.append(
          f"--gin_param must look like 'NAME = value', found {param!r}."
      )
      continue
    try:
      with _explained(f'--gin_param={param!r}: '):
        gin.parse_config(param)
    except ConfigError as e:
      problems.append(str(e))
  return problems


def _unknown_macros(gin_params: Sequence[str], known: set[str]) -> list[str]:
  """Problems of macros that overrides define and no file does."""
  # An override may have several lines.
  unknown = set(_MACRO_DEFINITION.findall('\n'.join(gin_params))) - known
  return [
      f'unknown setting {name} in --gin_param.{_nearest(name, known)}'
      for name in sorted(unknown)
  ]


def _macro_problems(config: str) -> list[str]:
  """Problems of macros without a definition or a value."""
  known = set(_MACRO_DEFINITION.findall(config))
  unset = sorted(set(_MACRO_USE.findall(config)) - known)
  return [
      f'%{name} is used and nowhere set.{_nearest(name, known)}'
      for name in unset
  ] + [
      f"{name} has no value; set it with --gin_param='{name} = ...'."
      for name in _WITHOUT_VALUE.findall(config)
  ]


def _preflight(
    function: Callable[..., object],
    bindings: Mapping[str, object],
    given: Collection[str] = (),
) -> list[str]:
  """Problems of the arguments of a program and its parts, named by macro.

  Nothing is built; a part checks the rest when gin builds it.

  Args:
    function: The program, or a part.
    bindings: What gin binds to its arguments.
    given: Names of arguments that the caller passes.
  """
  problems = [
      f'{_name(function, name, None)} has no value; set it in the '
      'configuration.'
      for name in _missing(function, {*bindings, *given})
  ]
  hints = _annotations(function)
  for name, binding in bindings.items():
    problems += _reference_problems(binding)
    value = _macro_value(binding)
    if _has_references(value):
      continue
    if problem := _mismatch(value, hints.get(name, object)):
      problems.append(f'{_name(function, name, binding)} {problem}')
  return problems


def _reference_problems(binding: object) -> list[str]:
  """Problems of the parts that a bound value refers to."""
  problems = []
  for reference in gin.config.iterate_references(binding):
    if not reference.evaluate:
      continue  # A function: its caller passes further arguments.
    # As in gin: a reference without a scope has that of its user.
    with gin.config_scope(reference.scopes or gin.current_scope()):
      selector = reference.configurable.selector
      problems += _preflight(
          reference.configurable.wrapped,
          gin.get_bindings(selector, resolve_references=False),
      )
  return problems


def _macro_value(value: object) -> object:
  """Resolves a macro, also through other macros; returns other values."""
  while _has_references(value) and str(value).startswith('%'):
    value = gin.query_parameter(str(value))
  return value


def _has_references(value: object) -> bool:
  """True for a reference to a part, and for a container of one."""
  return any(True for _ in gin.config.iterate_references(value))


def _annotations(function: Callable[..., object]) -> dict[str, object]:
  """The annotations of the arguments of a function or class, by name."""
  if inspect.isclass(function) and '__init__' in vars(function):
    function = function.__init__
  return typing.get_type_hints(function)


def _missing(
    function: Callable[..., object], given: Collection[str]
) -> list[str]:
  """Arguments without a default that are not given."""
  return [
      name
      for name, parameter in inspect.signature(function).parameters.items()
      if parameter.default is parameter.empty
      and parameter.kind
      not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
      and name not in given
  ]


def _mismatch(value: object, annotation: object) -> str:
  """Returns "must be an integer, found 'x'.", or '' for the right type."""
  if _is_of_type(value, annotation):
    return ''
  return f'must be {_type_in_words(annotation)}, found {_shown(value)}.'


def _is_of_type(value: object, annotation: object) -> bool:
  """True if a value has an annotated type; an int is also a float.

  Only classes, unions, sequences and callables are checked.
  """
  # list[int] has the origin list and the option int.
  origin = typing.get_origin(annotation) or annotation
  options = typing.get_args(annotation)
  if origin in (typing.Union, types.UnionType):
    return any(_is_of_type(value, option) for option in options)
  if origin is collections.abc.Sequence:
    return isinstance(value, (list, tuple)) and all(
        _is_of_type(item, option) for option in options for item in value
    )
  if origin is collections.abc.Callable:
    return callable(value)
  if origin in (int, float):
    # A bool is an int in Python, but no number in a configuration.
    allowed = (int,) if origin is int else (int, float)
    return isinstance(value, allowed) and not isinstance(value, bool)
  # Protocols and type variables cannot be checked by isinstance.
  if annotation is Any or not isinstance(origin, type):
    return True
  return isinstance(value, origin)


def _type_in_words(annotation: object) -> str:
  """Returns an annotation in words: 'an integer or None'."""
  origin = typing.get_origin(annotation) or annotation
  if origin in (typing.Union, types.UnionType):
    words = [
        _type_in_words(argument)
        for argument in typing.get_args(annotation)
        if typing.get_origin(argument) is not os.PathLike
    ]
    return ' or '.join(dict.fromkeys(words))
  return _TYPES.get(origin) or f'a {getattr(origin, "__name__", origin)}'


def _shown(value: object) -> str:
  """Returns a value on one line, without addresses."""
  if isinstance(value, (bool, int, float, str, list, tuple, type(None))):
    return repr(value)
  return f'a {type(value).__name__}'


def _name(function: Callable[..., object], name: str, binding: object) -> str:
  """Returns the name of an argument in messages: its macro, if it has one."""
  if str(binding).startswith('%'):
    return str(binding)[1:]
  module = function.__module__.rpartition('.')[2]
  return f'{module}.{function.__name__}.{name}'


def _nearest(name: str, known: Iterable[str]) -> str:
  """Returns ' Did you mean X?' for a similar known name, or ''."""
  # Sorted, so that the suggestion does not depend on the order of a set.
  close = difflib.get_close_matches(name, sorted(known), n=1, cutoff=0.6)
  return f' Did you mean {close[0]}?' if close else ''

"""Arguments held against the annotations of the function that gets them."""

import collections.abc
from collections.abc import Callable, Collection
import inspect
import os
import types
import typing
from typing import Any

_TYPES = {
    bool: 'True or False',
    int: 'an integer',
    float: 'a number',
    str: 'a text in quotes',
    types.NoneType: 'None',
    collections.abc.Callable: 'a function (@ without brackets)',
    collections.abc.Sequence: 'a list',
}


def annotations(function: Callable[..., object]) -> dict[str, object]:
  """The annotations of a function's, or a class's, arguments by name."""
  if inspect.isclass(function) and '__init__' in vars(function):
    function = function.__init__
  return typing.get_type_hints(function)


def missing(
    function: Callable[..., object], given: Collection[str]
) -> list[str]:
  """The arguments without a default that are not among those given."""
  return [
      name
      for name, parameter in inspect.signature(function).parameters.items()
      if parameter.default is parameter.empty
      and parameter.kind
      not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
      and name not in given
  ]


def mismatch(value: object, annotation: object) -> str:
  """`must be an integer, found 'x'.` for a value of another type, else ''."""
  if _is_of_type(value, annotation):
    return ''
  return f'must be {_describe(annotation)}, found {_shown(value)}.'


def _is_of_type(value: object, annotation: object) -> bool:
  """True if a value is of an annotated type; an int is a float, too.

  Annotations other than classes, unions, sequences and callables allow all.
  """
  origin = typing.get_origin(annotation) or annotation
  arguments = typing.get_args(annotation)
  if origin in (typing.Union, types.UnionType):
    return any(_is_of_type(value, argument) for argument in arguments)
  if origin is collections.abc.Sequence:
    return isinstance(value, (list, tuple)) and all(
        _is_of_type(item, argument) for argument in arguments for item in value
    )
  if origin is collections.abc.Callable:
    return callable(value)
  if origin in (int, float):
    allowed = (int,) if origin is int else (int, float)
    return isinstance(value, allowed) and not isinstance(value, bool)
  if annotation is Any or not isinstance(origin, type):
    return True
  return isinstance(value, origin)


def _describe(annotation: object) -> str:
  """An annotation in words: `an integer or None`."""
  origin = typing.get_origin(annotation) or annotation
  if origin in (typing.Union, types.UnionType):
    words = [
        _describe(argument)
        for argument in typing.get_args(annotation)
        if typing.get_origin(argument) is not os.PathLike
    ]
    return ' or '.join(dict.fromkeys(words))
  return _TYPES.get(origin) or f'a {getattr(origin, "__name__", origin)}'


def _shown(value: object) -> str:
  """A value on one line, without addresses."""
  if isinstance(value, (bool, int, float, str, list, tuple, type(None))):
    return repr(value)
  return f'a {type(value).__name__}'

"""Whether a value is what an argument's annotation asks for, and in words.

For values that come from outside of Python, such as those of a configuration
file. It knows classes, unions, `Any`, callables and sequences; any other
annotation is met by every value.
"""

import collections.abc
import inspect
import os
import types
import typing
from typing import Any

_WORDS = {
    bool: 'True or False',
    int: 'an integer',
    float: 'a number',
    str: 'a text in quotes',
    Any: 'anything',
    types.NoneType: 'None',
    collections.abc.Callable: 'a function (@ without brackets)',
}


def of(function: collections.abc.Callable[..., Any]) -> dict[str, Any]:
  """The annotations of a function's, or a class's, arguments by name."""
  if inspect.isclass(function) and '__init__' in vars(function):
    function = function.__init__
  hints = typing.get_type_hints(function)
  hints.pop('return', None)
  return hints


def is_met(annotation: Any, value: Any) -> bool:
  """Whether a value is of an annotated type; an int is a float, too."""
  origin, arguments = _parts(annotation)
  if origin is typing.Union:
    return any(is_met(argument, value) for argument in arguments)
  if origin is collections.abc.Sequence:
    return isinstance(value, (list, tuple)) and all(
        is_met(arguments[0], item) for item in value
    )
  if origin is collections.abc.Callable:
    return callable(value)
  if annotation is float:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
  if annotation is int:
    return isinstance(value, int) and not isinstance(value, bool)
  if annotation is Any or not isinstance(origin, type):
    return True
  return isinstance(value, origin)


def describe(annotation: Any) -> str:
  """What an annotation asks for: `an integer or None`."""
  origin, arguments = _parts(annotation)
  if origin is typing.Union:
    words = (
        describe(argument)
        for argument in arguments
        if typing.get_origin(argument) is not os.PathLike
    )
    return ' or '.join(dict.fromkeys(words))
  if origin is collections.abc.Sequence:
    return 'a list'
  return _WORDS.get(origin) or f'a {getattr(origin, "__name__", origin)}'


def _parts(annotation: Any) -> tuple[Any, tuple[Any, ...]]:
  """What an annotation is made of: `list[int]` is list and (int,)."""
  origin = typing.get_origin(annotation) or annotation
  arguments = typing.get_args(annotation)
  if origin is types.UnionType:
    origin = typing.Union
  if origin is collections.abc.Sequence and not arguments:
    arguments = (Any,)
  return origin, arguments

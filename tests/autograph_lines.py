"""Lets coverage see the statements of functions that AutoGraph converts.

`tf.function` and `tf.data` run a rewritten copy of a Python function, from a
temporary file, so the lines of the function itself count as never run. While
coverage measures, the copies get the file name and the line numbers of what
they were made of. A branch that is traced counts as run, whichever branch the
graph takes later.

Reaches into TensorFlow's private modules, for the measurement only.
"""

from collections.abc import Mapping
import types
from typing import Optional

from tensorflow.python.autograph.pyct import loader

# PEP 626's table of locations, in the format of Python 3.11: a first byte with
# kind and length in code units, less one, then the kind's fields.
_ENTRY = 0x80
_LINE_ONLY, _NO_LINE = 13 << 3, 15 << 3
_MAX_UNITS = 8


def install() -> None:
  """Makes all conversions from now on keep the places of their originals.

  Once: code that has been put in its place has none in the copy any more.
  """
  load_ast = loader.load_ast
  if getattr(load_ast, 'keeps_places', False):
    return

  def load_ast_in_place(*args, **kwargs):
    module, source, source_map = load_ast(*args, **kwargs)
    if source_map:
      places = {
          made.lineno: (origin.loc.filename, origin.loc.lineno)
          for made, origin in source_map.items()
      }
      for value in vars(module).values():
        if isinstance(value, types.FunctionType):
          value.__code__ = relocate(value.__code__, places)
    return module, source, source_map

  load_ast_in_place.keeps_places = True
  loader.load_ast = load_ast_in_place


def relocate(
    code: types.CodeType, places: Mapping[int, tuple[str, int]]
) -> types.CodeType:
  """The same code with other places, as has all code inside.

  Args:
    code: Code of one file.
    places: From a line of that file to (file, line); lines that are not here
      come from nowhere.
  """
  lines = [
      places[position[0]][1] if position[0] in places else None
      for position in code.co_positions()
  ]
  known = [
      places[position[0]][0]
      for position in code.co_positions()
      if position[0] in places
  ]
  first = next((line for line in lines if line is not None), 1)
  return code.replace(
      co_consts=tuple(
          relocate(each, places) if isinstance(each, types.CodeType) else each
          for each in code.co_consts
      ),
      co_filename=known[0] if known else code.co_filename,
      co_firstlineno=first,
      co_linetable=_table(lines, first=first),
  )


def _table(lines: list[Optional[int]], *, first: int) -> bytes:
  """The table of a line for each code unit, from line `first` on."""
  table = bytearray()
  last = first
  start = 0
  while start < len(lines):
    line = lines[start]
    end = start + 1
    while end < min(len(lines), start + _MAX_UNITS) and lines[end] == line:
      end += 1
    kind = _NO_LINE if line is None else _LINE_ONLY
    table.append(_ENTRY | kind | (end - start - 1))
    if line is not None:
      table += _varint(abs(line - last) << 1 | (line < last))
      last = line
    start = end
  return bytes(table)


def _varint(value: int) -> bytes:
  """Six bits a byte, the lowest first; the seventh says that more follow."""
  encoded = bytearray()
  while value >= 64:
    encoded.append(64 | value & 63)
    value >>= 6
  encoded.append(value)
  return bytes(encoded)

"""What a program says to --help: what it does, an example, its flags by group.

absl's own help has the flags in alphabetical order, two to four lines each.
"""

from collections.abc import Mapping, Sequence
import re
import textwrap

from absl import flags

_WIDTH = 80
_COLUMN = 26
_VALUES = {
    'bool': '',
    'float': '=X',
    'int': '=N',
    'comma separated list of strings': '=A,B',
    'multi string': '=TEXT',
    'string': '=TEXT',
}
# What absl puts before the help of a choice, and after that of a list.
_ADDED = re.compile(r'^<[^>]*>: |;\s+repeat this option .*$', re.DOTALL)
_REST = 'Optional'
_NEEDED = 'Needed'


def text(
    description: str,
    *,
    defined: Sequence[flags.Flag],
    groups: Mapping[str, Sequence[str]] | None = None,
) -> str:
  """Returns the help of a program.

  Args:
    description: What it does, with an example.
    defined: Its flags, in order.
    groups: Headings to names of flags. Flags that no group has are under
      'Needed' or 'Optional'.

  Raises:
    ValueError: A group names a flag that is not defined.
  """
  left = {flag.name: flag for flag in defined}
  found = {}
  for heading, names in (groups or {}).items():
    unknown = [name for name in names if name not in left]
    if unknown:
      raise ValueError(f'no flags to group: {", ".join(unknown)}.')
    found[heading] = [left.pop(name) for name in names]
  needed = [flag for flag in left.values() if _is_needed(flag)]
  rest = [flag for flag in left.values() if not _is_needed(flag)]
  parts = [description.strip()]
  for heading, members in ((_NEEDED, needed), *found.items(), (_REST, rest)):
    if members:
      parts.append('\n'.join([f'{heading}:', *map(_entry, members)]))
  return '\n\n'.join(parts) + '\n'


def _entry(flag: flags.Flag) -> str:
  """A flag, its default and what it does, wrapped."""
  if flag.flag_type() == 'bool':
    name = f'--[no]{flag.name}'
  elif flag.flag_type() == 'string enum':
    name = f'--{flag.name}={"|".join(flag.parser.enum_values)}'
  else:
    name = f'--{flag.name}{_VALUES.get(flag.flag_type(), "=VALUE")}'
  said = _ADDED.sub('', flag.help)
  if flag.default not in (None, False, '', []):
    said += f' Default: {flag.default_as_str.strip(chr(39))}.'
  # A name that is too long has its line.
  first = f'  {name}'.ljust(_COLUMN)
  if len(first) > _COLUMN:
    first += '\n' + ' ' * _COLUMN
  wrapped = textwrap.wrap(said, _WIDTH - _COLUMN)
  return first + ('\n' + ' ' * _COLUMN).join(wrapped)


def _is_needed(flag: flags.Flag) -> bool:
  """Whether the program ends without it."""
  return any(
      'must have a value other than None' in validator.message
      for validator in flag.validators
  )

"""BUILD files as text, laid out as buildifier lays them out."""

from collections.abc import Iterable, Mapping

Value = str | bool | list[str]

# Attributes in buildifier's order; others do not occur.
_ORDER = (
    'name',
    'size',
    'testonly',
    'srcs',
    'main',
    'data',
    'tags',
    'includes',
    'packages',
    'default_testonly',
    'default_visibility',
    'visibility',
    'deps',
)
_LOADS = {
    'py_binary': '@rules_python//python:py_binary.bzl',
    'py_library': '@rules_python//python:py_library.bzl',
    'pytest_test': '//tests:pytest_test.bzl',
}


def build_file(comment: str, rules: Iterable[tuple[str, dict]]) -> str:
  """Text of a BUILD file.

  Args:
    comment: Its first lines, without '#'.
    rules: Names of rules and their attributes, in order. Empty lists are left
      out; 'args' holds arguments without a name.

  Returns:
    The text, with the loads that the rules need.
  """
  rules = list(rules)
  names = {name for name, _ in rules}
  loads = [
      f'load("{file}", "{name}")'
      for name, file in sorted(_LOADS.items(), key=lambda item: item[1])
      if name in names
  ]
  # buildifier puts the project's own files after those of other projects.
  loads.sort(key=lambda load: load.startswith('load("//'))
  parts = ['\n'.join(f'# {line}' for line in comment.splitlines())]
  parts += ['\n'.join(loads)] if loads else []
  parts += [_rule(name, attributes) for name, attributes in rules]
  return '\n\n'.join(parts) + '\n'


def sorted_labels(labels: Iterable[str]) -> list[str]:
  """Labels without repetition: of this package first, then by their parts."""
  return sorted(
      set(labels),
      key=lambda label: (
          label.startswith('//'),
          # A folder's own targets come before its subfolders.
          label.replace(':', '!'),
      ),
  )


def _rule(name: str, attributes: Mapping[str, Value]) -> str:
  """A call."""
  present = {
      key: value for key, value in attributes.items() if value not in ([], None)
  }
  if 'args' in present:
    return f'{name}({_value(present["args"], indent=0)})'
  if name == 'package' and len(present) == 1:
    ((key, value),) = present.items()
    return f'package({key} = {_value(value, indent=0)})'
  lines = [
      f'    {key} = {_value(present[key], indent=4)},'
      for key in sorted(present, key=_ORDER.index)
  ]
  return '\n'.join([f'{name}(', *lines, ')'])


def _value(value: Value, *, indent: int) -> str:
  """A text, a truth value, or a list, on one line if it has one item."""
  if isinstance(value, bool):
    return str(value)
  if isinstance(value, str):
    return value if value.startswith('glob(') else f'"{value}"'
  if len(value) == 1:
    return f'["{value[0]}"]'
  space = ' ' * indent
  items = [f'{space}    "{item}",' for item in value]
  return '\n'.join(['[', *items, f'{space}]'])

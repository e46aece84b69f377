r"""Writes the BUILD files: a target a module, with the imports it really has.

    python -m tools.build_files            # writes what has changed
    python -m tools.build_files --check    # exit 1 if a file is out of date

A module's target bears its name: a `py_binary` where the file is a program, a
`pytest_test` where it is a test, else a `py_library`. Its `deps` are its
imports, its visibility follows from the layers of tools/layers.py. What cannot
be seen from imports stands in the file itself, in comments without indent:

    # BUILD data: //bin:evaluate      started or read, not imported
    # BUILD size: large               of a test that takes minutes
    # BUILD tags: external local      of a test that reads the working copy
"""

from collections.abc import Iterator
import functools
import pathlib
import re
import sys
from typing import NamedTuple

from tools import layers
from tools import starlark
from tools import visibility

_COMMENT = """\
Made from the imports of the files here: python -m tools.build_files"""
_DIRECTIVE = re.compile(r'^# BUILD (.*)$', re.MULTILINE)
_DIRECTIVES = ('data', 'size', 'tags')
_PROGRAM = re.compile(r"^if __name__ == '__main__':$", re.MULTILINE)
_GIN_IMPORT = re.compile(r'^from (tff_asr\S*) import (\w+)', re.MULTILINE)
_TENSORFLOW = ('tensorflow', 'tensorflow_federated')
# Run by rules and named by them; no library.
_TEST_MAIN = 'tests.pytest_main'
_EXPORTED = {
    '': ['docs/privacy.md', 'pyproject.toml', 'requirements.txt'],
    'tests': ['pytest_main.py'],
}

Rule = tuple[str, dict]


class _Module(NamedTuple):
  """A Python file of the project."""

  name: str
  folder: str
  source: str

  @property
  def target(self) -> str:
    return self.name.rpartition('.')[2]

  @property
  def label(self) -> str:
    return f'//{self.folder}:{self.target}'

  def directives(self, kind: str) -> list[str]:
    """What the file's own BUILD comments say of a kind."""
    found = []
    for text in _DIRECTIVE.findall(self.source):
      name, _, words = text.partition(': ')
      if name not in _DIRECTIVES or not words:
        raise ValueError(
            f'{self.name}: BUILD comments are of {_DIRECTIVES}, found {text!r}.'
        )
      found += words.split() if name == kind else []
    return found


def build_files(root: pathlib.Path = layers.ROOT) -> dict[str, str]:
  """The BUILD files that a working copy should have.

  Args:
    root: Its folder.

  Returns:
    Paths from the root to texts.

  Raises:
    ValueError: For a folder that tools/layers.py does not have, or an import
      of a module of the project that does not exist.
  """
  modules = _modules(root)
  by_folder = {}
  for module in modules.values():
    by_folder.setdefault(module.folder, []).append(module)
  files = {'BUILD': [('exports_files', {'args': _EXPORTED['']})]}
  for folder, members in by_folder.items():
    files[f'{folder}/BUILD'] = [
        *_head(folder, members),
        *(_target(module, modules) for module in members if _is_target(module)),
    ]
  files['tff_asr/BUILD'] += [*_groups(), _whole(modules)]
  files['gin/BUILD'] = [_gin(root, modules)]
  if (root / 'tests' / 'golden' / 'experiments').exists():
    files['tests/BUILD'].append(('filegroup', {
        'name': 'golden_files',
        'srcs': 'glob(["golden/**"])',
    }))
  return {
      path: starlark.build_file(_COMMENT, rules)
      for path, rules in sorted(files.items())
  }


def differences(root: pathlib.Path = layers.ROOT) -> Iterator[str]:
  """Paths of BUILD files that are missing, out of date or one too many."""
  wanted = build_files(root)
  for path, text in wanted.items():
    file = root / path
    if not file.exists() or file.read_text(encoding='utf-8') != text:
      yield path
  for folder in ('gin', *layers.FOLDERS):
    for file in sorted((root / folder).rglob('BUILD')):
      path = str(file.relative_to(root))
      if path not in wanted and not path.startswith('tools/bazel4/'):
        yield path


def _modules(root: pathlib.Path) -> dict[str, _Module]:
  """Full names to the project's Python files."""
  modules = {}
  for folder in layers.FOLDERS:
    for path in layers.files(folder, root=root):
      parts = path.relative_to(root).with_suffix('').parts
      modules['.'.join(parts)] = _Module(
          '.'.join(parts),
          '/'.join(parts[:-1]),
          path.read_text(encoding='utf-8'),
      )
  return modules


def _is_target(module: _Module) -> bool:
  return module.name != _TEST_MAIN


def _is_test(module: _Module) -> bool:
  return module.folder.startswith('tests') and module.name.endswith('_test')


def _head(folder: str, members: list[_Module]) -> Iterator[Rule]:
  """What a BUILD file begins with."""
  attributes = {}
  if folder.split('/')[0] == 'tests':
    attributes['default_testonly'] = True
  attributes['default_visibility'] = _default_visibility(members)
  yield 'package', attributes
  if folder in _EXPORTED:
    yield 'exports_files', {'args': _EXPORTED[folder]}


def _default_visibility(members: list[_Module]) -> list[str]:
  """The visibility that most modules of a package have."""
  visibilities = [_visibility(m) for m in members if m.target != '__init__']
  return max(visibilities, key=visibilities.count, default=visibility.PRIVATE)


def _visibility(module: _Module) -> list[str]:
  """Who may depend on a module."""
  if _PROGRAM.search(module.source) and not _is_test(module):
    return visibility.PUBLIC
  return visibility.of(module.name)


def _target(module: _Module, modules: dict[str, _Module]) -> Rule:
  """The target of a module."""
  own = f'{module.target}.py'
  attributes = {
      'name': module.target,
      'srcs': [own],
      'data': starlark.sorted_labels(
          _local(label, module.folder) for label in module.directives('data')
      ),
      'deps': starlark.sorted_labels(
          _local(other.label, module.folder)
          for other in _dependencies(module, modules)
      ),
  }
  if module.target == '__init__':
    attributes['visibility'] = visibility.PRIVATE
    if any(m.folder.startswith(f'{module.folder}/') for m in modules.values()):
      attributes['visibility'] = [f'//{module.folder}:__subpackages__']
    return 'py_library', attributes
  if _is_test(module):
    attributes['size'] = _size(module, modules)
    attributes['tags'] = module.directives('tags')
    return 'pytest_test', attributes
  members = [m for m in modules.values() if m.folder == module.folder]
  if _visibility(module) != _default_visibility(members):
    attributes['visibility'] = _visibility(module)
  if _PROGRAM.search(module.source):
    return 'py_binary', attributes
  return 'py_library', attributes


def _dependencies(
    module: _Module, modules: dict[str, _Module]
) -> list[_Module]:
  """The modules that a module imports, and what makes its folder a package."""
  found = []
  for name in layers.imports(module.source):
    if name.split('.', maxsplit=1)[0] in layers.FOLDERS:
      found.append(_module(name, modules, imported_by=module.name))
  package = module.name.rpartition('.')[0]
  if module.target == '__init__':
    package = package.rpartition('.')[0]
  if package and f'{package}.__init__' in modules:
    found.append(modules[f'{package}.__init__'])
  return found


def _module(
    name: str, modules: dict[str, _Module], *, imported_by: str
) -> _Module:
  """The module that an imported name is."""
  if name not in modules:
    raise ValueError(
        f'{imported_by} imports {name}, which is no module of this project.'
    )
  return modules[name]


def _size(module: _Module, modules: dict[str, _Module]) -> str:
  """A test's size: as its file says, else by whether it uses TensorFlow."""

  @functools.cache
  def loads_tensorflow(name: str) -> bool:
    imports = layers.imports(modules[name].source)
    return not imports.isdisjoint(_TENSORFLOW) or any(
        loads_tensorflow(other.name)
        for other in _dependencies(modules[name], modules)
    )

  (size,) = module.directives('size') or [
      'medium' if loads_tensorflow(module.name) else 'small'
  ]
  return size


def _local(label: str, folder: str) -> str:
  """A label as files of the same package write it."""
  return label.removeprefix(f'//{folder}') if (
      label.startswith(f'//{folder}:')
  ) else label


def _groups() -> Iterator[Rule]:
  """The package groups that visibilities name."""
  for name, (packages, includes) in visibility.groups().items():
    attributes = {'name': name, 'packages': packages, 'includes': includes}
    yield 'package_group', attributes


def _whole(modules: dict[str, _Module]) -> Rule:
  """All of tff_asr, for other projects."""
  labels = [
      _local(module.label, 'tff_asr')
      for module in modules.values()
      if module.folder.startswith('tff_asr') and module.target != '__init__'
  ]
  return 'py_library', {
      'name': 'tff_asr',
      'visibility': visibility.PUBLIC,
      'deps': starlark.sorted_labels(labels),
  }


def _gin(root: pathlib.Path, modules: dict[str, _Module]) -> Rule:
  """The configurations, with the modules that they import."""
  labels = set()
  for path in sorted((root / 'gin').rglob('*.gin')):
    for package, name in _GIN_IMPORT.findall(path.read_text(encoding='utf-8')):
      imported = _module(
          f'{package}.{name}', modules, imported_by=str(path.relative_to(root))
      )
      labels.add(imported.label)
  return 'py_library', {
      'name': 'gin',
      'data': 'glob(["**/*.gin"])',
      'visibility': ['//tff_asr:__pkg__'],
      'deps': starlark.sorted_labels(labels),
  }


def main(arguments: list[str]) -> None:
  """Writes or checks; arguments are those of the command line."""
  if arguments not in ([], ['--check']):
    sys.exit(f'error: --check or nothing is expected, found {arguments}.')
  changed = list(differences())
  if arguments and changed:
    sys.exit(
        f'error: {", ".join(changed)} not as the imports are; run python -m '
        'tools.build_files.'
    )
  wanted = build_files()
  for path in changed:
    file = layers.ROOT / path
    if path in wanted:
      file.write_text(wanted[path], encoding='utf-8')
    else:
      file.unlink()
    print(path)


if __name__ == '__main__':
  main(sys.argv[1:])

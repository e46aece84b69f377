"""Who may import what: the layers of the project, checked on every file.

A package may import those of lower layers and itself. BUILD mirrors the table.
"""

import ast
from collections.abc import Iterator
import pathlib

from absl.testing import absltest

_ROOT = pathlib.Path(__file__).parents[1]

_LAYERS = {
    'checks': 0,
    'features': 1,
    'text': 1,
    'metrics': 1,
    'privacy': 1,
    'models': 2,
    'optimizers': 2,
    'aggregators': 2,
    'data': 2,
    'execution': 2,
    'learning': 3,
    'programs': 4,
    # Stand beside the packages: they import none, and only bin imports them.
    'config': 5,
    'launch': 5,
}
_ALONE = ('config', 'launch')
# Libraries that only some packages may import.
_NO_FEDERATED = ('checks', 'features', 'text', 'metrics', 'privacy', 'models')
_NO_TENSORFLOW = ('checks', 'metrics', 'config', 'launch')
_DATA_TOOLS_MAY_IMPORT = (
    'tff_asr.checks',
    'tff_asr.data.index',
    'tff_asr.data.schema',
    'tff_asr.features',
    'tff_asr.text',
)


def _files(folder: str) -> Iterator[pathlib.Path]:
  return iter(sorted((_ROOT / folder).rglob('*.py')))


def _imports(path: pathlib.Path) -> set[str]:
  """Full names of all that a file imports, anywhere in it."""
  names = set()
  for node in ast.walk(ast.parse(path.read_text(encoding='utf-8'))):
    if isinstance(node, ast.Import):
      names |= {alias.name for alias in node.names}
    elif isinstance(node, ast.ImportFrom):
      if node.level:
        raise AssertionError(f'{path} has a relative import.')
      names |= {f'{node.module}.{alias.name}' for alias in node.names}
  return names


def _is_under(name: str, packages: tuple[str, ...]) -> bool:
  return any(
      name == package or name.startswith(f'{package}.') for package in packages
  )


def _package(path: pathlib.Path) -> str:
  """'models' for tff_asr/models/ctc.py, 'config' for tff_asr/config.py."""
  return path.relative_to(_ROOT / 'tff_asr').parts[0].removesuffix('.py')


def _problems(path: pathlib.Path) -> Iterator[str]:
  """What a file of tff_asr imports and may not."""
  package = _package(path)
  for name in sorted(_imports(path)):
    if _is_under(name, ('data_tools', 'bin', 'tests')):
      yield f'{path.name} of {package} imports {name}'
    if name.startswith('tff_asr.'):
      other = name.split('.')[1]
      is_lower = _LAYERS[other] < _LAYERS[package]
      if package in _ALONE or not (is_lower or other == package):
        yield f'{path.name} of {package} imports {name}'
    if package in _NO_FEDERATED and _is_under(name, ('tensorflow_federated',)):
      yield f'{path.name} of {package} imports TFF'
    if package in _NO_TENSORFLOW and _is_under(name, ('tensorflow',)):
      yield f'{path.name} of {package} imports TensorFlow'
    if package != 'config' and _is_under(name, ('gin',)):
      yield f'{path.name} of {package} imports gin'


class LayeringTest(absltest.TestCase):

  def test_the_table_names_every_package(self):
    packages = {
        _package(path)
        for path in _files('tff_asr')
        if path.name != '__init__.py' or path.parent.name != 'tff_asr'
    }
    self.assertEqual(packages, set(_LAYERS))

  def test_imports_point_down(self):
    problems = [
        problem
        for path in _files('tff_asr')
        if path != _ROOT / 'tff_asr' / '__init__.py'
        for problem in _problems(path)
    ]
    self.assertEqual(problems, [])

  def test_data_tools_import_the_record_format_and_little_else(self):
    for path in _files('data_tools'):
      for name in _imports(path):
        if name.startswith('tff_asr.'):
          self.assertTrue(_is_under(name, _DATA_TOOLS_MAY_IMPORT), (path, name))
        self.assertFalse(_is_under(name, ('bin', 'gin', 'tests')), (path, name))

  def test_programs_in_bin_import_neither_gin_nor_data_tools(self):
    for path in _files('bin'):
      for name in _imports(path):
        self.assertFalse(
            _is_under(name, ('data_tools', 'bin', 'gin', 'tests')), (path, name)
        )

  def test_programs_in_bin_are_short(self):
    # Flags, bind, run. The quickstart runs the others, and is no such program.
    for path in _files('bin'):
      if path.name != 'run_quickstart.py':
        lines = path.read_text(encoding='utf-8').splitlines()
        self.assertLess(len(lines), 60, path)

  def test_only_programs_define_flags(self):
    for path in [*_files('tff_asr'), *_files('tests')]:
      if path == pathlib.Path(__file__):
        continue
      text = path.read_text(encoding='utf-8')
      self.assertNotIn('flags.DEFINE', text, path)
      if 'absl.flags' in _imports(path):
        self.assertIn(path.name, ('launch.py', 'launch_test.py'))

  def test_no_folder_shadows_gin(self):
    self.assertEqual(list(_files('gin')), [])

  def test_files_are_of_readable_length(self):
    folders = ('tff_asr', 'data_tools', 'bin', 'benchmarks')
    for path in [path for folder in folders for path in _files(folder)]:
      lines = path.read_text(encoding='utf-8').splitlines()
      self.assertLessEqual(len(lines), 400, path)
      for number, line in enumerate(lines, 1):
        if '://' not in line:
          self.assertLessEqual(len(line), 80, f'{path}:{number}')


class BuildFileTest(absltest.TestCase):
  """BUILD, read as the Python that it also is."""

  def setUp(self):
    super().setUp()
    self.targets = {}

    def add(**attributes):
      self.assertNotIn(attributes['name'], self.targets)
      self.targets[attributes['name']] = attributes

    def glob(patterns, exclude=()):
      find = lambda pattern: {
          str(path.relative_to(_ROOT)) for path in _ROOT.glob(pattern)
      }
      found = set().union(*map(find, patterns))
      self.assertNotEmpty(found, patterns)
      return sorted(found.difference(*map(find, exclude)))

    names = dict(
        load=lambda *unused: None,
        package=lambda **unused: None,
        glob=glob,
        py_binary=add,
        py_library=add,
        py_test=add,
    )
    path = _ROOT / 'BUILD'
    code = compile(path.read_text(encoding='utf-8'), 'BUILD', 'exec')
    exec(code, names)  # pylint: disable=exec-used

  def library_of(self, path: str) -> str:
    """The library that has a file."""
    (name,) = [
        name
        for name, target in self.targets.items()
        if path in target.get('srcs', ())
        and not (name.endswith('_test') or 'main' in target)
    ]
    return name

  def test_every_file_is_listed(self):
    listed = {
        source
        for target in self.targets.values()
        for source in target.get('srcs', ())
    }
    for folder in ('tff_asr', 'data_tools', 'bin', 'benchmarks', 'tests'):
      for path in _files(folder):
        self.assertIn(str(path.relative_to(_ROOT)), listed)

  def test_dependencies_exist_and_cover_the_imports(self):
    for name, target in self.targets.items():
      dependencies = {dep.removeprefix(':') for dep in target.get('deps', ())}
      self.assertContainsSubset(dependencies, self.targets, name)
      for source in target.get('srcs', ()):
        if not source.startswith('tff_asr/') or source.endswith('__init__.py'):
          continue
        for imported in _imports(_ROOT / source):
          file = imported.replace('.', '/') + '.py'
          if file.startswith('tff_asr/') and (_ROOT / file).exists():
            self.assertIn(
                self.library_of(file), dependencies | {name}, source
            )


class RulesTest(absltest.TestCase):
  """The checks see what they are there for."""

  def problems(self, package: str, text: str) -> list[str]:
    path = _ROOT / 'tff_asr' / package / 'example.py'
    real = path.__class__.read_text
    with absltest.mock.patch.object(
        pathlib.Path,
        'read_text',
        lambda self, **kwargs: text if self == path else real(self, **kwargs),
    ):
      return list(_problems(path))

  def test_upward_sideways_and_foreign_imports_are_found(self):
    for package, line in (
        ('models', 'from tff_asr.learning import fed_avg'),
        ('models', 'from tff_asr.data import pipeline'),
        ('models', 'import tensorflow_federated as tff'),
        ('learning', 'import gin'),
        ('learning', 'from tff_asr import config'),
        ('programs', 'def f():\n  from data_tools import shards'),
        ('metrics', 'import tensorflow as tf'),
    ):
      self.assertLen(self.problems(package, line), 1, line)
    for package, line in (
        ('learning', 'from tff_asr.models import ctc'),
        ('learning', 'from tff_asr.learning import client_update'),
        ('models', 'from tff_asr import checks'),
        ('data', 'import tensorflow_federated as tff'),
    ):
      self.assertEmpty(self.problems(package, line), line)


if __name__ == '__main__':
  absltest.main()

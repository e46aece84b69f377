"""Every file follows the table of tools/layers.py."""

import ast
import collections
import pathlib

from absl.testing import absltest
from absl.testing import parameterized

from tools import layers

_LINES_IN_PROGRAMS = 100
_WIDTH = 80


def _modules() -> dict[str, pathlib.Path]:
  """Full names of the project's modules and their files."""
  return {
      '.'.join(path.relative_to(layers.ROOT).with_suffix('').parts): path
      for folder in layers.FOLDERS
      for path in layers.files(folder)
  }


def _bound(statement: ast.stmt) -> list[str]:
  """Names that a statement of a module imports or defines."""
  if isinstance(statement, (ast.Import, ast.ImportFrom)):
    return [name.asname or name.name for name in statement.names]
  if isinstance(statement, (ast.FunctionDef, ast.ClassDef)):
    return [statement.name]
  return []


def _is_init(module: str) -> bool:
  return module.endswith('.__init__')


class LayeringTest(absltest.TestCase):

  def test_the_table_names_every_package(self):
    in_tables = {*layers.ALONE, *layers.OUTSIDE}.union(*layers.LAYERS)
    packages = {layers.package_of(module) for module in _modules()}
    self.assertEqual(packages, in_tables | {'__init__'})

  def test_every_import_is_in_the_table(self):
    problems = [
        problem
        for module, path in _modules().items()
        if module != 'tff_asr.__init__'
        for problem in layers.problems(module, path.read_text('utf-8'))
    ]
    self.assertEqual(problems, [])

  def test_training_does_not_read_what_is_known_of_speakers(self):
    # As docs/data.md promises.
    readers = {
        module
        for module, path in _modules().items()
        if module.startswith('tff_asr.')
        and 'tff_asr.data.speakers' in layers.imports(path.read_text('utf-8'))
    }
    self.assertEqual(
        readers, {'tff_asr.programs.evaluation', 'tff_asr.programs.inspection'}
    )

  def test_every_library_in_the_table_is_imported(self):
    imported = {}
    for module, path in _modules().items():
      names = layers.imports(path.read_text('utf-8'))
      imported.setdefault(layers.package_of(module), set()).update(names)
    for package, names in imported.items():
      if package != '__init__':
        for allowed in layers.may_import(package):
          if allowed.split('.')[0] not in layers.FOLDERS:
            self.assertTrue(
                any(layers.is_under(name, (allowed,)) for name in names),
                f'{package}: {allowed}',
            )

  def test_package_files_hold_a_docstring_at_most(self):
    for module, path in _modules().items():
      if _is_init(module):
        tree = ast.parse(path.read_text('utf-8'))
        is_documented = ast.get_docstring(tree) is not None
        self.assertLen(tree.body, int(is_documented), msg=f'{path}')

  def test_no_folder_shadows_gin(self):
    self.assertEqual(layers.files('gin'), [])

  def test_programs_can_be_interrupted_while_they_import(self):
    for folder in ('bin', 'benchmarks', 'data_tools'):
      for path in layers.files(folder):
        text = path.read_text('utf-8')
        if "if __name__ == '__main__':" not in text:
          continue
        _, *statements = ast.parse(text).body
        self.assertEqual(
            [ast.unparse(statement) for statement in statements[:2]],
            [
                'from tff_asr import launch',
                'launch.install_early_sigint(__name__)',
            ],
            path,
        )

  def test_programs_in_bin_are_short(self):
    # Flags, bind, run. The quickstart runs the others and is an exception.
    for path in layers.files('bin'):
      if path.name != 'run_quickstart.py':
        lines = path.read_text('utf-8').splitlines()
        self.assertLess(len(lines), _LINES_IN_PROGRAMS, path)

  def test_no_name_is_bound_twice(self):
    # What is defined later hides an import of that name.
    for module, path in _modules().items():
      bound = collections.Counter(
          name
          for statement in ast.parse(path.read_text('utf-8')).body
          for name in _bound(statement)
      )
      twice = [name for name, count in bound.items() if count > 1]
      self.assertEqual(twice, [], path)

  def test_lines_fit_a_page(self):
    for module, path in _modules().items():
      if module.startswith('tests.'):
        continue
      lines = path.read_text('utf-8').splitlines()
      for number, line in enumerate(lines, 1):
        if '://' not in line:
          self.assertLessEqual(len(line), _WIDTH, f'{path}:{number}')


class TableTest(parameterized.TestCase):
  """The checks see what they are there for."""

  @parameterized.named_parameters(
      ('upward', 'tff_asr.models.x', 'from tff_asr.learning import fed_avg'),
      ('sideways', 'tff_asr.models.x', 'from tff_asr.data import pipeline'),
      ('library', 'tff_asr.models.x', 'import tensorflow_federated as tff'),
      ('tensorflow', 'tff_asr.decoding.x', 'import tensorflow as tf'),
      ('gin', 'tff_asr.learning.x', 'import gin'),
      ('gin_in_bin', 'bin.x', 'import gin'),
      ('gin_in_tests', 'tests.x_test', 'import gin'),
      ('config', 'tff_asr.learning.x', 'from tff_asr import config'),
      ('project_in_config', 'tff_asr.config', 'from tff_asr import launch'),
      ('inside', 'tff_asr.programs.x', 'def f():\n  from data_tools import y'),
      ('tests', 'tff_asr.checks', 'from tests import fakes'),
      ('data', 'data_tools.x', 'from tff_asr.data import client_data'),
      ('tools_in_bin', 'bin.x', 'from data_tools import shards'),
      ('unknown', 'tff_asr.data.x', 'import pandas'),
      ('like_a_name', 'tff_asr.models.x', 'import tff_asr.features_old'),
      ('ray', 'tff_asr.execution.context', 'import ray'),
      ('baseline', 'benchmarks.baselines.rounds', 'import torch'),
      ('beams', 'tff_asr.decoding.greedy', 'import pyctcdecode'),
      ('flags', 'tff_asr.launch', "flags.DEFINE_string('x', None, 'X.')"),
      ('flags_in_tests', 'tests.x_test', "f.DEFINE_bool('x', None, 'X.')"),
      ('argparse', 'tools.x', 'import argparse'),
  )
  def test_finds(self, module, source):
    self.assertLen(list(layers.problems(module, source)), 1)

  @parameterized.named_parameters(
      ('downward', 'tff_asr.learning.x', 'from tff_asr.models import ctc'),
      ('own', 'tff_asr.learning.x', 'from tff_asr.learning import fed_avg'),
      ('checks', 'tff_asr.models.x', 'from tff_asr import checks'),
      ('library', 'tff_asr.data.x', 'import tensorflow_federated as tff'),
      ('python', 'tff_asr.checks', 'import collections.abc'),
      ('format', 'data_tools.x', 'from tff_asr.data import schema'),
      ('ray', 'tff_asr.execution.ray_runner', 'import ray'),
      ('baseline', 'benchmarks.baselines.pfl_round', 'import torch'),
      ('flags', 'bin.x', "flags.DEFINE_string('x', None, 'X.')"),
  )
  def test_allows(self, module, source):
    self.assertEmpty(list(layers.problems(module, source)))

  def test_refuses_relative_imports_and_unknown_packages(self):
    with self.assertRaisesRegex(ValueError, 'line 2 has a relative import'):
      layers.imports('import os\nfrom . import x')
    with self.assertRaisesRegex(ValueError, 'no entry for audio'):
      list(layers.problems('tff_asr.audio.x', ''))

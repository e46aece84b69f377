"""The deps of each BUILD file are what its package imports."""

import collections
import pathlib

from absl.testing import absltest

from tools import layers

_EVERYTHING = '//tff_asr'


def _packages() -> dict[str, set[str]]:
  """Folders with Python files, and the labels of those that they import."""
  found = collections.defaultdict(set)
  for folder in layers.FOLDERS:
    for path in layers.files(folder):
      package = path.parent.relative_to(layers.ROOT).as_posix()
      for name in layers.imports(path.read_text('utf-8')):
        if name.split('.')[0] in layers.FOLDERS:
          imported = pathlib.PurePath(*name.split('.')[:-1]).as_posix()
          if imported != package:
            found[package].add(_label(imported))
  return found


def _label(folder: str) -> str:
  return '//tff_asr:base' if folder == 'tff_asr' else f'//{folder}'


def _targets(folder: str) -> dict[str, dict]:
  """The attributes of a BUILD file's targets, by name."""
  targets = {}
  add = lambda name='', **attributes: targets.update({name: attributes})
  rules = (
      'filegroup', 'package_group', 'py_binary', 'py_library', 'test_package'
  )
  names = {
      **dict.fromkeys(rules, add),
      **dict.fromkeys(('load', 'exports_files'), lambda *unused: None),
      'glob': lambda *unused: [],
  }
  text = (layers.ROOT / folder / 'BUILD').read_text('utf-8')
  exec(text, names)  # pylint: disable=exec-used
  return targets


class BuildFilesTest(absltest.TestCase):

  def test_deps_of_a_package_are_what_it_imports(self):
    for folder, imported in _packages().items():
      target = 'base' if folder == 'tff_asr' else pathlib.Path(folder).name
      deps = set(_targets(folder)[target].get('deps', ()))
      if folder.startswith('tests'):
        deps |= {_EVERYTHING, '//tests'}
        imported |= {'//tests'}
      if _EVERYTHING in deps:
        imported = {
            label for label in imported if not label.startswith(_EVERYTHING)
        } | {_EVERYTHING}
      self.assertEqual(deps, imported, folder)

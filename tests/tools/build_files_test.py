"""BUILD files agree with the folders, the imports and the layers."""

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

  def test_visibilities_are_the_layers(self):
    groups = {
        name: (attributes['packages'], attributes.get('includes', []))
        for name, attributes in _targets('tff_asr').items()
        if name.startswith('from_layer_')
    }
    whole = _targets('tff_asr')['tff_asr']['deps']
    folders = lambda layer: [
        f'//tff_asr/{package}'
        for package in sorted(layers.LAYERS[layer])
        if (layers.ROOT / 'tff_asr' / package).is_dir()
    ]
    top = len(layers.LAYERS)
    self.assertLen(groups, top)
    for layer in range(1, top):
      self.assertEqual(
          groups[f'from_layer_{layer}'],
          (folders(layer), [f':from_layer_{layer + 1}']),
      )
      for label in folders(layer):
        self.assertIn(label, whole)
        package = label.removeprefix('//')
        (target,) = _targets(package).values()
        self.assertIn(
            f'//tff_asr:from_layer_{layer + 1}', target['visibility'], label
        )

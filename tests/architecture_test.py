"""The files, tours and layers that docs/architecture.md names exist."""

import ast
import pathlib
import re

from absl.testing import parameterized

from tools import layers

_PAGE = layers.ROOT / 'docs' / 'architecture.md'
_NAMED = re.compile(r'`([\w/]+\.(?:py|gin))`, `([\w.]+)`')
_STOP = re.compile(r'^\d+\. `([^`]+)`, `([^`]+)`: (.+)', re.MULTILINE)
# Python files that a debugger steps into; a longer way needs another design.
_MOST_FILES = 18


def _tours() -> dict[str, list[tuple[str, str]]]:
  """Files and names of each tour, by its heading."""
  tours = {}
  for section in _PAGE.read_text('utf-8').split('\n## ')[1:]:
    stops = [(path, name) for path, name, _ in _STOP.findall(section)]
    if stops:
      tours[section.split('\n')[0]] = stops
  return tours


def _defined(path: pathlib.Path) -> set[str]:
  """Functions, classes and methods (`Class.method`) of a Python file."""
  found = set()
  for node in ast.parse(path.read_text('utf-8')).body:
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
      found.add(node.name)
    if isinstance(node, ast.ClassDef):
      found |= {
          f'{node.name}.{part.name}'
          for part in node.body
          if isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef)
      }
  return found


class ToursTest(parameterized.TestCase):

  def test_the_page_has_two_tours(self):
    self.assertLen(_tours(), 2)

  def test_names_quoted_from_files_exist(self):
    named = _NAMED.findall(_PAGE.read_text('utf-8'))
    self.assertGreater(len(named), 35)
    missing = []
    for name, what in named:
      path = layers.ROOT / name
      if not path.exists():
        missing.append(name)
      elif path.suffix == '.py':
        if what not in _defined(path):
          missing.append(f'{name}: {what}')
      elif not re.search(
          rf'^{re.escape(what)}\b', path.read_text('utf-8'), re.MULTILINE
      ):
        missing.append(f'{name}: {what}')
    self.assertEqual(missing, [])

  @parameterized.parameters('noise and LAMB', 'padded batch')
  def test_tour_is_short(self, end):
    (text,) = [
        section
        for section in _PAGE.read_text('utf-8').split('\n## ')[1:]
        if section.split('\n')[0].endswith(end)
    ]
    steps = re.findall(r'^\d+\. .*', text, re.MULTILINE)
    files = set(re.findall(r'`([\w/]+\.py)`', '\n'.join(steps)))
    self.assertLessEqual(len(files), _MOST_FILES, files)

  def test_picture_has_the_packages_of_each_layer(self):
    picture = _PAGE.read_text('utf-8').split('```')[1]
    found = [
        set(re.findall(r'[a-z_]+', line.split('|')[1]))
        for line in picture.splitlines()
        if '|' in line
    ]
    self.assertEqual(found, [set(row) for row in layers.LAYERS][::-1])

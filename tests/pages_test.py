"""The pages: their links lead somewhere, and the site has all of them."""

import importlib
import inspect
import pathlib
import re
import sys
import types
from unittest import mock
import urllib.parse

from absl.testing import parameterized

from tff_asr.privacy import accounting
from tools import layers

_PAGES = (
    *(layers.ROOT / name for name in (
        'README.md', 'CONTRIBUTING.md', 'CHANGELOG.md',
    )),
    *sorted((layers.ROOT / 'docs').glob('*.md')),
)
_LINK = re.compile(r'\]\(([^()\s]+)\)|^\[[^]]+\]: (\S+)', re.MULTILINE)
_HEADING = re.compile(r'^#+ +(.+?) *$', re.MULTILINE)
_FENCE = re.compile(r'^```.*?^```', re.MULTILINE | re.DOTALL)
_NAV = re.compile(r'^ *- (?:[\w ]+: )?(\S+\.(?:md|ipynb))$', re.MULTILINE)
# What tools/site_pages.py calls it.
_OVERVIEW = 'overview.md'


def anchors(text: str) -> set[str]:
  """The anchors of a page's headings, as GitHub and MkDocs make them."""
  found = set()
  for heading in _HEADING.findall(_FENCE.sub('', text)):
    heading = re.sub(r'\[([^]]*)\]\([^)]*\)', r'\1', heading)
    heading = re.sub(r'[^\w\s-]', '', heading.lower())
    found.add(re.sub(r'\s', '-', heading.strip()))
  return found


def broken(page: pathlib.Path, text: str) -> list[str]:
  """The links of a page that lead nowhere; those to other sites are not tried."""
  found = []
  for groups in _LINK.findall(_FENCE.sub('', text)):
    link = ''.join(groups)
    parts = urllib.parse.urlparse(link)
    if parts.scheme:
      continue
    target = (page.parent / parts.path).resolve() if parts.path else page
    if not target.is_file() or not target.is_relative_to(layers.ROOT):
      found.append(link)
    elif parts.fragment and target.suffix == '.md':
      other = text if target == page else target.read_text('utf-8')
      if parts.fragment not in anchors(other):
        found.append(link)
  return found


def cells(text: str) -> list[list[str]]:
  """The cells of a page's tables, by row."""
  return [
      [cell.strip() for cell in line.strip('|').split('|')]
      for line in text.splitlines()
      if line.startswith('|')
  ]


class PagesTest(parameterized.TestCase):

  @parameterized.parameters(*_PAGES)
  def test_links_lead_somewhere(self, page):
    self.assertEqual(broken(page, page.read_text('utf-8')), [])

  def test_the_results_are_those_of_the_pages_that_they_name(self):
    folder = layers.ROOT / 'docs'
    rows = [
        row
        for row in cells((folder / 'results.md').read_text('utf-8'))
        if row[-1].startswith('[')
    ]
    self.assertGreater(len(rows), 20)
    for claim, verdict, measured, link in rows:
      page = re.search(r'\((.+\.md)', link)[1]
      text = (folder / page).read_text('utf-8')
      with self.subTest(f'{page}: {claim}'):
        self.assertTrue(
            any(claim in row and verdict in row for row in cells(text)),
            f'{page} does not say: {claim} {verdict}',
        )
        self.assertTrue(
            measured in ' '.join(text.split()),
            f'{page} has nowhere {measured}',
        )

  def test_broken_links_are_found(self):
    page = layers.ROOT / 'docs' / 'index.md'
    text = '# A b, c\n[1](#a-b-c) [2](#a) [3](runs.md) [4](x.md) [5](../../x)'
    self.assertEqual(broken(page, text), ['#a', 'x.md', '../../x'])
    text = '[1](runs.md#switching-parts) [2](runs.md#x)\n[3]: no.md\n'
    self.assertEqual(broken(page, text), ['runs.md#x', 'no.md'])

  def test_the_site_has_every_page(self):
    found = _NAV.findall((layers.ROOT / 'mkdocs.yml').read_text('utf-8'))
    packages = [
        path.parent.name
        for path in (layers.ROOT / 'tff_asr').glob('*/__init__.py')
    ]
    self.assertCountEqual(
        found,
        [
            _OVERVIEW if page.name == 'README.md' else page.name
            for page in _PAGES
        ]
        + [f'colab/{path.name}' for path in (layers.ROOT / 'colab').glob('*.ipynb')]
        + [f'api/{package}.md' for package in packages],
    )

  def test_tables_of_docstrings_keep_their_lines(self):
    griffe = types.SimpleNamespace(Extension=object, Object=object)
    with mock.patch.dict(sys.modules, {'griffe': griffe}):
      site_docstrings = importlib.import_module('tools.site_docstrings')
    text = (
        'A sum.\n\n  a  b\n    c\n\nArgs:\n  x: One.\n\n  y: Two.\n\n'
        '[1] e\n[2] f'
    )
    self.assertEqual(
        site_docstrings.preformatted(text),
        'A sum.\n\n    a  b\n      c\n\nArgs:\n  x: One.\n\n  y: Two.\n\n'
        '[1] e  \n[2] f',
    )
    docstring = inspect.cleandoc(accounting.__doc__)
    self.assertRegex(docstring, '\n  poisson  each')
    self.assertRegex(
        site_docstrings.preformatted(docstring), '\n    poisson  each'
    )

  def test_readme_is_short_and_names_the_notebooks(self):
    text = (layers.ROOT / 'README.md').read_text('utf-8')
    self.assertLessEqual(text.count('\n'), 150)
    for path in (layers.ROOT / 'colab').glob('*.ipynb'):
      self.assertIn(f'(colab/{path.name})', text)

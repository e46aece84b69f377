"""Links of the pages resolve, and the site has every page."""

import pathlib
import re
import urllib.parse

from absl.testing import parameterized

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
  """The links of a page that do not resolve; other sites are not tried."""
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


class PagesTest(parameterized.TestCase):

  @parameterized.parameters(*_PAGES)
  def test_links_lead_somewhere(self, page):
    self.assertEqual(broken(page, page.read_text('utf-8')), [])

  @parameterized.parameters(*_PAGES)
  def test_no_marks_of_a_merge_are_left(self, page):
    self.assertNotRegex(page.read_text('utf-8'), '(?m)^(<{7}|>{7}) ')

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
        + [f'api/{package}.md' for package in ('index', *packages)],
    )

"""Pages of the site from outside docs/: a hook of MkDocs (mkdocs.yml).

README, CONTRIBUTING and CHANGELOG, the notebooks, the first page of the API
(`site_api`), and a page of docstrings for each package of `tff_asr`. Links are
written as they hold in the repository, and are changed here to what holds on
the site.
"""

import pathlib
import re
from typing import Any

from mkdocs import plugins
from mkdocs.structure import files as files_lib

from tools import site_api

_ROOT = pathlib.Path(__file__).resolve().parents[1]
# Pages and texts of the repository's root.
_FILES = (
    'CONTRIBUTING.md', 'CHANGELOG.md', 'LICENSE', 'NOTICE', 'CITATION.cff',
)
# A README would be the first page of its folder.
_README = 'overview.md'
_HOME = 'index.md'


@plugins.event_priority(100)  # Before the plugin that renders notebooks.
def on_files(files: Any, config: Any) -> Any:
  """Adds the pages to those of docs/."""
  notebooks = (_ROOT / 'colab').glob('*.ipynb')
  for name in (*_FILES, *(f'colab/{path.name}' for path in notebooks)):
    files.append(
        files_lib.File(
            name, str(_ROOT), config.site_dir, config.use_directory_urls
        )
    )
  text = (_ROOT / 'README.md').read_text('utf-8')
  files.append(files_lib.File.generated(config, _README, content=text))
  library = _ROOT / 'tff_asr'
  text = site_api.page(library)
  files.append(files_lib.File.generated(config, 'api/index.md', content=text))
  for folder in library.iterdir():
    modules = sorted(
        f'::: tff_asr.{folder.name}.{path.stem}'
        for path in folder.glob('*.py')
        if path.stem != '__init__'
    )
    if modules:
      text = '\n\n'.join([f'# {folder.name}', *modules])
      name = f'api/{folder.name}.md'
      files.append(files_lib.File.generated(config, name, content=text))
  return files


def on_page_markdown(markdown: str, page: Any, **unused: Any) -> str:
  """Changes links to pages that are elsewhere on the site."""
  if page.file.src_uri.startswith('api/'):  # Written for the site.
    return markdown
  if page.file.src_uri == _HOME:
    page.meta['hide'] = ['navigation', 'toc']  # Room for three doors.
  if page.file.src_uri in (_README, *_FILES):
    markdown = re.sub(r'(\]\(|\]: )docs/', r'\1', markdown)
  markdown = markdown.replace('](../', '](')
  return markdown.replace('](README.md', f']({_README}')

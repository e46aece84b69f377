"""Notebooks, written from their paired Python files.

    python -m tools.notebooks    # writes colab/*.ipynb from colab/*.py

The pair is in the percent format that Jupytext and editors read: `# %%` begins
a cell of code, `# %% [markdown]` one of text, whose lines are comments. The
Python file is the one that is written by hand; a notebook holds no outputs.
"""

import json
import pathlib
from typing import Any

from tools import layers

_CODE = '# %%'
_TEXT = '# %% [markdown]'


def cells(source: str) -> list[tuple[str, str]]:
  """The cells of a Python file in percent format.

  Args:
    source: Its text; begins with a cell.

  Returns:
    'code' or 'markdown', and the cell's text.

  Raises:
    ValueError: It does not begin with a cell, or text is no comment.
  """
  found = []
  for number, line in enumerate(source.splitlines(), 1):
    if line in (_CODE, _TEXT):
      found.append(('markdown' if line == _TEXT else 'code', []))
    elif not found:
      raise ValueError(f'line {number} is before the first cell.')
    elif found[-1][0] == 'code':
      found[-1][1].append(line)
    elif not line:
      found[-1][1].append('')
    elif line == '#' or line.startswith('# '):
      found[-1][1].append(line[2:])
    else:
      raise ValueError(f'line {number} is text and no comment.')
  return [(kind, '\n'.join(lines).strip('\n')) for kind, lines in found]


def notebook(source: str) -> dict[str, Any]:
  """The notebook (nbformat 4.5) of a Python file in percent format."""
  built = []
  for number, (kind, text) in enumerate(cells(source)):
    cell = {
        'cell_type': kind,
        'id': f'cell-{number}',
        'metadata': {},
        'source': text.splitlines(keepends=True),
    }
    if kind == 'code':
      cell |= {'execution_count': None, 'outputs': []}
    built.append(cell)
  return {
      'cells': built,
      'metadata': {
          'kernelspec': {
              'display_name': 'Python 3 (ipykernel)',
              'language': 'python',
              'name': 'python3',
          },
          'language_info': {'name': 'python', 'version': '3.11'},
      },
      'nbformat': 4,
      'nbformat_minor': 5,
  }


def files(root: pathlib.Path = layers.ROOT) -> dict[pathlib.Path, str]:
  """The notebooks that should be there, with their text."""
  return {
      path.with_suffix('.ipynb'): json.dumps(
          notebook(path.read_text('utf-8')), indent=1, ensure_ascii=False
      ) + '\n'
      for path in sorted((root / 'colab').glob('*.py'))
  }


if __name__ == '__main__':
  for notebook_path, notebook_text in files().items():
    notebook_path.write_text(notebook_text, 'utf-8')

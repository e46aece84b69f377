"""First page of the site's API: the rooms of `tff_asr`, and examples.

A room's description is the first line of its docstring. The examples are the
doctests of entry points, which tests/doctest_test.py runs. Nothing of the
project is imported.
"""

import ast
import pathlib

# What a reader calls first, in the order of a run.
ENTRY_POINTS = (
    'data.client_data.load',
    'data.cohorts',
    'features.log_mel.log_mel',
    'optimizers.lamb.build_lamb',
    'privacy.queries.PerLayerClipSumQuery',
    'aggregators.dp_mean',
    'learning.fed_avg.build',
    'execution.multi_device.set_default_context',
    'privacy.accounting',
    'metrics.word_errors',
)
_INTRODUCTION = """\
# API

Each room of the library is a package. A [whole training
run](../overview.md#from-python-in-a-notebook) has its ledger and its privacy
report; the rooms below are its parts. [Architecture](../architecture.md) shows
how they are layered, and where to look for what.
"""
_EXAMPLES = """\
## Examples

Each runs in its module, whose names it uses without a prefix; tests run all.
"""


def page(library: pathlib.Path) -> str:
  """Returns the page as Markdown.

  Args:
    library: The folder `tff_asr`.
  """
  rows = ['| room | what it is |', '|---|---|']
  for path in sorted(library.glob('*/__init__.py')):
    name = path.parent.name
    title = _docstring(path).splitlines()[0].rstrip('.')
    rows.append(f'| [{name}]({name}.md) | {title} |')
  sections = [_INTRODUCTION, '\n'.join(rows) + '\n', _EXAMPLES]
  for name in ENTRY_POINTS:
    sections.append(
        f'### [`{name}`][tff_asr.{name}]\n\n```pycon\n'
        f'{example(library, name)}\n```\n'
    )
  return '\n'.join(sections)


def example(library: pathlib.Path, name: str) -> str:
  """Returns the first doctest of a docstring.

  Args:
    library: The folder `tff_asr`.
    name: Of a module, or of a function or class in one, such as
      'data.client_data.load'.

  Raises:
    ValueError: The docstring has no doctest.
  """
  room, module, *members = name.split('.')
  lines = _docstring(library / room / f'{module}.py', *members).splitlines()
  starts = [i for i, line in enumerate(lines) if line.lstrip()[:3] == '>>>']
  if not starts:
    raise ValueError(f'{name} has no example.')
  indent = len(lines[starts[0]]) - len(lines[starts[0]].lstrip())
  found = []
  for line in lines[starts[0] :]:
    if not line.strip():  # A doctest ends with a blank line.
      break
    found.append(line[indent:])
  return '\n'.join(found)


def _docstring(path: pathlib.Path, member: str | None = None) -> str:
  """The docstring of a module, or of its function or class `member`."""
  node = ast.parse(path.read_text('utf-8'))
  if member is not None:
    (node,) = [
        each for each in node.body if getattr(each, 'name', None) == member
    ]
  return ast.get_docstring(node) or ''

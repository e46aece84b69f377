"""Counts of the code by folder: lines, names, comments, long functions.

    python -m tools.count_code > before.txt

One row a folder. Code is lines that are neither blank, nor comment, nor
docstring. Comments are lines that are a comment alone, in percent of all lines.
Public names are classes and functions of a module that do not start with an
underscore (methods are not counted). `Any` counts uses in annotations and
elsewhere. The last line is the number of tff_asr's modules that
`programs.federated` imports, directly or indirectly, including itself.
"""

import ast
import io
import pathlib
import tokenize

from tools import layers

_FOLDERS = (
    'tff_asr', 'tests', 'data_tools', 'gin', 'experiments', 'benchmarks',
    'docs', 'bin', 'tools',
)
_LONG = 60
_COLUMNS = (
    'files', 'lines', 'code', 'comments %', 'classes', 'functions', 'Any',
    f'> {_LONG} lines', '> 8 arguments',
)


def count_module(source: str) -> list[int]:
  """Counts of one Python module, in the order of the columns after files.

  Args:
    source: Text of the module.

  Returns:
    Lines, code, comments (in lines), public classes, public functions, uses of
    Any, functions of more than 60 lines, and of more than 8 arguments.
  """
  tree = ast.parse(source)
  documented = set()
  long_functions = many_arguments = uses_of_any = 0
  for node in ast.walk(tree):
    if isinstance(
        node,
        (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef),
    ):
      first = node.body[0] if node.body else None
      if isinstance(first, ast.Expr) and isinstance(
          getattr(first.value, 'value', None), str
      ):
        documented.update(range(first.lineno, first.end_lineno + 1))
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
      long_functions += node.end_lineno - node.lineno + 1 > _LONG
      arguments = node.args
      many_arguments += 8 < sum(
          each.arg not in ('self', 'cls')
          for each in [
              *arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs
          ]
      )
    uses_of_any += isinstance(node, ast.Name) and node.id == 'Any'
  comments, code = set(), set()
  skipped = (
      tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT,
      tokenize.ENDMARKER,
  )
  for token in tokenize.generate_tokens(io.StringIO(source).readline):
    if token.type == tokenize.COMMENT:
      comments.add(token.start[0])
    elif token.type not in skipped:
      code.update(range(token.start[0], token.end[0] + 1))
  code -= documented
  public = [
      node
      for node in tree.body
      if isinstance(
          node, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
      )
      and not node.name.startswith('_')
  ]
  classes = sum(isinstance(node, ast.ClassDef) for node in public)
  return [
      source.count('\n'), len(code), len(comments - code), classes,
      len(public) - classes, uses_of_any, long_functions, many_arguments,
  ]


def count_folder(name: str) -> list[int]:
  """Files, and the sums of `count_module` over a folder's Python files.

  Of other files (gin, Markdown) only files and lines are counted.
  """
  totals = [0] * 9
  for path in sorted((layers.ROOT / name).rglob('*')):
    if path.suffix not in ('.py', '.gin', '.md'):
      continue
    totals[0] += 1
    source = path.read_text(encoding='utf-8')
    if path.suffix == '.py':
      counts = count_module(source)
      totals[1:] = [old + new for old, new in zip(totals[1:], counts)]
    else:
      totals[1] += source.count('\n')
  return totals


def closure(module: str) -> set[str]:
  """Returns the modules of tff_asr that a module imports, and itself."""
  found, left = set(), [module]
  while left:
    name = left.pop()
    path = layers.ROOT / pathlib.Path(*name.split('.')).with_suffix('.py')
    if name in found or not path.exists():
      continue
    found.add(name)
    for node in ast.walk(ast.parse(path.read_text(encoding='utf-8'))):
      if isinstance(node, ast.ImportFrom) and node.module:
        left += [f'{node.module}.{each.name}' for each in node.names]
  return {name for name in found if name.startswith('tff_asr.')}


def main() -> None:
  print(f'{"":12}' + ''.join(f'{name:>14}' for name in _COLUMNS))
  for name in _FOLDERS:
    counts = count_folder(name)
    counts[3] = round(100 * counts[3] / counts[1], 1)
    print(f'{name:12}' + ''.join(f'{number:>14}' for number in counts))
  size = len(closure('tff_asr.programs.federated'))
  print(f'programs.federated imports {size} modules of tff_asr')


if __name__ == '__main__':
  main()

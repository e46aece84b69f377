"""The command `tff-asr`: the programs of bin/ and data_tools/, from anywhere.

Usage:
  tff-asr PROGRAM [FLAG ...]     the same as `python bin/PROGRAM.py FLAG ...`
  tff-asr PROGRAM --help
  tff-asr --version
"""

import ast
from importlib import metadata
import os
import sys
import tomllib

_PACKAGE = os.path.dirname(os.path.abspath(__file__))
_OUTSIDE = os.path.dirname(_PACKAGE)
_FOLDERS = (
    # Installed from a wheel, or in a working copy.
    next(
        path
        for path in (
            os.path.join(_PACKAGE, 'bin'), os.path.join(_OUTSIDE, 'bin')
        )
        if os.path.isdir(path)
    ),
    os.path.join(_OUTSIDE, 'data_tools'),
)


def main() -> None:
  """Becomes the program that the first argument names."""
  programs = _programs()
  name, *arguments = sys.argv[1:] or ['--help']
  if name in programs:
    path, _ = programs[name]
    module = ['-m', f'data_tools.{name}'] if path.startswith(_FOLDERS[1]) else [
        path
    ]
    # Replaces this process, so that signals and the exit code are the
    # program's.
    os.execv(sys.executable, [sys.executable, *module, *arguments])
  lines = [f'  {each:20} {title}' for each, (_, title) in programs.items()]
  listing = '\n'.join([__doc__, 'Programs:', *lines])
  if name in ('--help', '-h', 'help'):
    print(listing)
    return
  if name == '--version':
    print(f'tff-asr {_version()}')
    return
  sys.exit(f'error: {name} is not a program; see tff-asr --help.')


def _version() -> str:
  """The version of the wheel, or of a working copy."""
  try:
    return metadata.version('tff-asr')
  except metadata.PackageNotFoundError:
    with open(os.path.join(_OUTSIDE, 'pyproject.toml'), 'rb') as f:
      return tomllib.load(f)['project']['version']


def _programs() -> dict[str, tuple[str, str]]:
  """File and title of each program by name, without importing any."""
  found = {}
  for folder in _FOLDERS:
    for file in sorted(os.listdir(folder)):
      if not file.endswith('.py'):
        continue
      path = os.path.join(folder, file)
      with open(path, encoding='utf-8') as f:
        text = f.read()
      # Other files of the folder are modules that programs import.
      if "if __name__ == '__main__':" in text:
        title = (ast.get_docstring(ast.parse(text)) or '').partition('\n')[0]
        found[file[:-3].removeprefix('run_')] = path, title
  return found


if __name__ == '__main__':
  main()

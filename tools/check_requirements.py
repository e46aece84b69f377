"""Checks the environment: every pin is installed, and pip finds known faults.

    .venv/bin/python tools/check_requirements.py

TFF 0.87 asks for jax and jaxlib 0.4.14, and no jaxlib 0.4.14 exists; 0.4.13 is
installed instead (requirements.overrides). `pip check` prints a line for each
of the two. Anything else that it prints is an error, and so is either line
missing: then requirements.overrides can go.
"""

from collections.abc import Iterable, Iterator
from importlib import metadata
import pathlib
import subprocess
import sys

_REQUIREMENTS = pathlib.Path(__file__).parents[1] / 'requirements.txt'
KNOWN = (
    'tensorflow-federated 0.87.0 has requirement jax==0.4.14, but you have jax '
    '0.4.13.',
    'tensorflow-federated 0.87.0 has requirement jaxlib==0.4.14, but you have '
    'jaxlib 0.4.13.',
)


def surprises(output: str) -> Iterator[str]:
  """Compares what `pip check` prints with the known lines.

  Args:
    output: Its standard output.

  Yields:
    A line for each difference.
  """
  lines = output.splitlines()
  for line in lines:
    if line not in KNOWN:
      yield f'pip check: {line}'
  for line in KNOWN:
    if line not in lines:
      yield f'pip check no longer says: {line}'


def missing(requirements: Iterable[str]) -> Iterator[str]:
  """Compares pins with the packages of this Python.

  Args:
    requirements: Lines of a requirements file: 'name==version', comments.

  Yields:
    A line for each package that is not there in that version.
  """
  for requirement in requirements:
    requirement = requirement.strip()
    if not requirement or requirement.startswith('#'):
      continue
    name, _, version = requirement.partition('==')
    try:
      installed = metadata.version(name)
    except metadata.PackageNotFoundError:
      yield f'{requirement} is not installed.'
      continue
    if installed != version:
      yield f'{requirement} is needed, found {installed}.'


def main() -> None:
  """Exits with 1 and the differences, if there are any."""
  checked = subprocess.run(
      [sys.executable, '-m', 'pip', '--disable-pip-version-check', 'check'],
      stdout=subprocess.PIPE,
      text=True,
      check=False,
  )
  pins = _REQUIREMENTS.read_text(encoding='utf-8').splitlines()
  found = [*missing(pins), *surprises(checked.stdout)]
  if found:
    sys.exit('\n'.join(f'error: {line}' for line in found))


if __name__ == '__main__':
  main()

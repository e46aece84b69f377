"""Commands of the pages: programs, flags, gin files and settings exist.

Each command is parsed by its program's own flags. Capitals such as EXPERIMENT
and `...` are placeholders.
"""

from collections.abc import Iterator
import pathlib
import re
import shlex
import sys
from typing import NamedTuple
from unittest import mock

from absl import app
from absl.testing import parameterized

from tests import experiment_files
from tests.bin import in_process
from tff_asr import config
from tff_asr import launch

_ROOT = experiment_files.ROOT
_PAGES = [
    _ROOT / 'README.md',
    _ROOT / 'CONTRIBUTING.md',
    *sorted((_ROOT / 'docs').glob('*.md')),
    *sorted((_ROOT / 'colab').glob('*.py')),
]
# The first words of commands; another line in a block of them is a mistake.
_WORDS = (
    'apt-get', 'bazel', 'bin/', 'cd', 'docker', 'export', 'pip', 'python',
    'python3.11', 'ray', 'tff-asr', 'tools/', 'unshare', 'uv', 'mkdocs', 'bash',
    'git', 'chmod', 'source', './', '$',
)
_OF_ENVIRONMENT = re.compile(r'[\w.]+/bin/')
# Those without flags of absl.
_OTHER_PARSERS = ('tools.licences', 'tools.mutate')
_PYTHON = re.compile(r'(?:^|.*/)python(?:3\.11)?$')
_SETTING = re.compile(r'^([A-Z][A-Z0-9_]*) *=', re.MULTILINE)
_INLINE = re.compile(r'`(python (?:-m|bin/)[^`]+)`')
_PLACEHOLDER = re.compile(r'\.\.\.|EXPERIMENT|ARGUMENTS|_PROGRAM|/RUN\b')


class Command(NamedTuple):
  """A program of this project, and its arguments."""

  page: str
  program: str
  arguments: tuple[str, ...]


def _lines(page: pathlib.Path) -> Iterator[str]:
  """The command lines of a page, joined where they go on."""
  text = page.read_text(encoding='utf-8')
  if page.suffix == '.py':  # A notebook's; its commands stand in its text.
    lines = re.findall('^#.*|^$', text, re.MULTILINE)
    text = re.sub('^# ?', '', '\n'.join(lines), flags=re.MULTILINE)
  # Blocks of other languages, such as Python.
  text = re.sub('```(?:ba)?sh\n', '```\n', text)
  text = re.sub(r'```\w+\n.*?```', '', text, flags=re.DOTALL)
  text = re.sub(
      r'```\n(.*?)```',
      lambda m: re.sub('^', '    ', m[1], flags=re.MULTILINE),
      text,
      flags=re.DOTALL,
  )
  for found in _INLINE.findall(' '.join(text.split())):
    yield found
  for block in re.findall(r'(?:^ {4}.*\n)+', text, re.MULTILINE):
    lines = re.sub(r' *\\\n +', ' ', block).strip().splitlines()
    if _is_command(lines[0]):
      for line in filter(str.strip, lines):
        if not _is_command(line):
          raise AssertionError(f'{page.name}: {line!r} is not a command.')
        yield line.strip()


def _is_command(line: str) -> bool:
  words = [w for w in line.split() if not re.match(r'\w+=', w)]
  return bool(words) and bool(
      words[0].startswith(_WORDS) or _OF_ENVIRONMENT.match(words[0])
  )


def _commands() -> list[Command]:
  """Commands of this project's own programs on all pages, each once."""
  found = {}
  for page in _PAGES:
    for line in _lines(page):
      words = shlex.split(line.split(' > ')[0], comments=True)
      while words and re.match(r'[A-Z_]+=', words[0]):
        words = words[1:]
      pythons = [i for i, word in enumerate(words) if _PYTHON.match(word)]
      if pythons:
        words = words[pythons[0] + 1 :]
        if words[:1] == ['-m']:
          words = words[1:]
      name = words[0] if words else ''
      if name == 'tff-asr' and words[1:] and words[1][0] != '-':
        words = words[1:]
        name = _file_of(words[0])
      is_own = name.startswith(('bin/', 'tools/')) or name.split('.')[0] in (
          'benchmarks', 'data_tools', 'experiments', 'tools'
      )
      if is_own and not _PLACEHOLDER.search(name):
        command = Command(page.name, name, tuple(words[1:]))
        found.setdefault(command[1:], command)
  return list(found.values())


def _file_of(name: str) -> str:
  """What `tff-asr NAME` runs."""
  for file in (f'{name}.py', f'run_{name}.py'):
    if (_ROOT / 'bin' / file).is_file():
      return f'bin/{file}'
  return f'data_tools.{name}'


def _path(program: str) -> pathlib.Path:
  if '/' in program:
    return _ROOT / program
  path = _ROOT.joinpath(*program.split('.'))
  return path / '__main__.py' if path.is_dir() else path.with_suffix('.py')


class CommandsTest(parameterized.TestCase):

  def test_pages_have_commands_of_programs_that_exist(self):
    self.assertGreater(len(_commands()), 40)
    for command in _commands():
      self.assertTrue(_path(command.program).is_file(), command)

  @parameterized.parameters(*_commands())
  def test_a_command_is_one_of_its_program(self, page, program, arguments):
    if _path(program).suffix != '.py' or program in _OTHER_PARSERS:
      return
    flags = [a for a in arguments if a != '...']
    if _PLACEHOLDER.search(' '.join(arguments)):
      flags.append('--output_dir=x')  # May be among what is left out.

    def parse(*unused_arguments, **unused_options):
      launch._parse_flags(sys.argv)  # pylint: disable=protected-access

    target = program
    if '/' not in program and _path(program).name == '__main__.py':
      target += '.__main__'
    with (
        mock.patch.object(launch, 'run', parse),
        mock.patch.object(app, 'run', parse),
    ):
      finished = in_process.run(target, *flags)
    self.assertEqual((finished.code, finished.stderr), (0, ''), page)

  @parameterized.parameters(*_commands())
  def test_an_experiment_is_configured_whole(self, page, program, arguments):
    del program
    files, params = (
        [a.partition('=')[2] for a in arguments if a.startswith(flag)]
        for flag in ('--gin_file', '--gin_param')
    )
    own = [
        path for path in files
        if path.startswith('gin/') and not _PLACEHOLDER.search(path)
    ]
    for path in own:
      self.assertTrue((_ROOT / path).is_file(), f'{page}: {path}')
    # Files of the reader's, and rows of several values, are not here to bind.
    if all((_ROOT / path).is_file() for path in files):
      programs = [each for each in map(experiment_files.program, files) if each]
      if programs and not any('{' in each for each in params):
        config.bind(programs[0], gin_files=files, gin_params=params)
        return
    is_open = not own or any(map(_PLACEHOLDER.search, files))
    paths = experiment_files.every_file() if is_open else {
        each for path in own for each in experiment_files.included(path)
    }
    known = {
        name
        for path in paths
        for name in _SETTING.findall(experiment_files.read(path))
    }
    for param in params:
      for name in _SETTING.findall(param):
        self.assertIn(name, known, page)

"""The wheel: its files, and that it works from an empty folder.

The environment that it is installed into has this one's libraries, but not this
working copy.
"""

import os
import pathlib
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import tomllib
import venv
import zipfile

from absl.testing import absltest
import pytest

from tests.bin import programs
from tools import layers

_FOLDERS = ('bin', 'colab', 'data_tools', 'examples', 'gin', 'tff_asr')
_BUILD = 'from setuptools import build_meta; build_meta.build_wheel("wheels")'


class PackageTest(absltest.TestCase):

  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    root = pathlib.Path(cls.enterClassContext(tempfile.TemporaryDirectory()))
    source = root / 'source'
    source.mkdir()
    for path in layers.ROOT.iterdir():
      if path.is_file():
        shutil.copy(path, source)
    for folder in _FOLDERS:
      shutil.copytree(
          layers.ROOT / folder,
          source / folder,
          ignore=shutil.ignore_patterns('__pycache__'),
      )
    (source / 'wheels').mkdir()
    cls._call(sys.executable, '-c', _BUILD, folder=source)
    (cls.wheel,) = (source / 'wheels').iterdir()
    cls.environment = root / 'environment'
    venv.create(cls.environment)
    installed = sysconfig.get_path('purelib', vars={'base': cls.environment})
    (pathlib.Path(installed) / 'libraries.pth').write_text(
        sysconfig.get_path('purelib')
    )
    cls.empty = root / 'empty'
    cls.empty.mkdir()
    cls._call(
        sys.executable, '-m', 'pip', '--python', cls.environment, 'install',
        '--quiet', '--no-deps', '--no-index', cls.wheel, folder=cls.empty,
    )

  @staticmethod
  def _call(*command, folder) -> str:
    environment = {
        name: value
        for name, value in os.environ.items()
        if name not in ('PYTHONPATH', 'TF_CPP_MIN_LOG_LEVEL')
    }
    finished = subprocess.run(
        command,
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if finished.returncode:
      raise AssertionError(f'{command}:\n{finished.stdout}')
    return finished.stdout

  def command(self, *arguments: str) -> str:
    return self._call(
        self.environment / 'bin' / 'tff-asr', *arguments, folder=self.empty
    )

  def test_has_all_modules_and_gin_files_and_nothing_else(self):
    files = lambda folder, ending: {
        path.relative_to(layers.ROOT).as_posix()
        for path in (layers.ROOT / folder).rglob(f'*.{ending}')
    }
    expected = files('tff_asr', 'py') | files('data_tools', 'py') | {
        'data_tools/sentences.txt', 'tff_asr/reports/demo.html',
        'tff_asr/reports/figures.mplstyle', 'tff_asr/reports/page.css',
    } | {
        f'tff_asr/{path}' for path in files('bin', 'py') | files('gin', 'gin')
    }
    held = set(zipfile.ZipFile(self.wheel).namelist())
    self.assertEqual(
        {name for name in held if not name.startswith('tff_asr-')}, expected
    )
    # Also the locks, and the texts that a copy must include.
    rest = {pathlib.PurePath(name).name for name in held - expected}
    self.assertContainsSubset(
        {'LICENSE', 'NOTICE', 'METADATA', 'entry_points.txt',
         *(path.name for path in layers.ROOT.glob('requirements*.txt')
           if path.name not in ('requirements-coverage.txt',
                                'requirements-docs.txt',
                                'requirements-parity.txt',
                                'requirements-pretrained-parity.txt')),
         *(path.name for path in layers.ROOT.glob('examples/*/*.*'))},
        rest,
    )

  def test_extras_are_those_of_the_requirements_files(self):
    project = tomllib.loads(
        (layers.ROOT / 'pyproject.toml').read_text('utf-8')
    )['project']
    self.assertEqual(project['dependencies'], [])
    for extra, pins in project['optional-dependencies'].items():
      path = layers.ROOT / f'requirements-{extra}.txt'
      lines = path.read_text('utf-8').splitlines()
      # A pin with a hash goes on in the next line.
      self.assertContainsSubset(
          pins, [line.removesuffix(' \\') for line in lines]
      )

  def test_command_lists_and_starts_programs(self):
    listing = self.command('--help')
    for name in ('train_federated', 'quickstart', 'librispeech'):
      self.assertRegex(listing, rf'\n  {name} +\w+')
    self.assertNotRegex(listing, r'\n  training ')
    self.assertIn('--population', self.command('compute_epsilon', '--help'))
    with self.assertRaisesRegex(AssertionError, 'output_dir is needed'):
      self.command('synthetic_population')
    with self.assertRaisesRegex(
        AssertionError, 'error: no_such is not a program'
    ):
      self.command('no_such')

  def test_is_imported_from_where_it_is_installed(self):
    found = self._call(
        self.environment / 'bin' / 'python', '-c',
        'import data_tools, tff_asr; print(data_tools.__file__, '
        'tff_asr.__file__)',
        folder=self.empty,
    )
    for path in found.split():
      self.assertStartsWith(path, str(self.environment))

  @pytest.mark.slow
  def test_trains_and_evaluates_from_an_empty_folder(self):
    params = programs.write_tiny(str(self.empty / 'train'))
    self.command(
        'train_federated', '--output_dir=run',
        '--gin_file=gin/experiments/quickstart_federated_dp.gin',
        '--gin_param=NUM_ROUNDS = 2',
        *(f'--gin_param={param}' for param in params),
    )
    self.assertTrue((self.empty / 'run' / 'results.json').exists())
    evaluated = self.command(
        'evaluate', '--gin_file=gin/experiments/quickstart_evaluate.gin',
        "--gin_param=RUNS = ['run']",
        f'--gin_param=TEST_DIR = {str(self.empty / "train_dev")!r}',
        *(f'--gin_param={param}' for param in programs.TINY),
    )
    self.assertIn('run', evaluated)
    self.assertIn('federated, DP', self.command('report', 'run'))

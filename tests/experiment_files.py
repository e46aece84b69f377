"""The experiments of gin/experiments, for tests that go through all of them."""

from collections.abc import Callable
import importlib
import inspect
import pathlib
import re
from typing import Any

from tff_asr import config
from tff_asr.programs import central
from tff_asr.programs import evaluation
from tff_asr.programs import federated
from tff_asr.programs import personalization
from tff_asr.programs import pretraining

# Of the working copy, also where Bazel runs a link to this file.
ROOT = pathlib.Path(__file__).resolve().parents[1]

_PROGRAMS = {
    'gin/programs/central.gin': central.CentralTraining,
    'gin/programs/evaluate.gin': evaluation.evaluate,
    'gin/programs/federated.gin': federated.FederatedTraining,
    'gin/programs/personalize.gin': personalization.personalize,
    'gin/programs/pretrain.gin': pretraining.Pretraining,
}
_IMPORT = re.compile(r'^from ([\w.]+) import (\w+)$', re.MULTILINE)
# Arguments and uses of functions: `scope/module.function`, the module perhaps
# with its packages.
_CONFIGURED = re.compile(
    r'(?:^|@)(?:[\w-]+/)?((?:\w+\.)+\w+)(?= =|\(|$)', re.MULTILINE
)
_INCLUDE = re.compile(r"^include '(.+)'$", re.MULTILINE)
# What an experiment leaves to the command line, and a value for it.
_LEFT_OPEN = {
    'DEV_DIR': "'data/dev'",
    'L2_NORM_CLIP': '0.1',
    'NOISE_MULTIPLIER': '0.01',
    'PRIVATE_DIR': "'data/train'",
    'RUNS': "['runs/x']",
}


def read(path: str) -> str:
  """The text of a file of the project."""
  return (ROOT / path).read_text(encoding='utf-8')


def every_file() -> list[str]:
  """Paths of all files of gin/."""
  return sorted(
      path.relative_to(ROOT).as_posix()
      for path in (ROOT / 'gin').rglob('*.gin')
  )


def included(path: str) -> set[str]:
  """The files that a gin file includes, directly or not, and itself."""
  files = {path}
  for other in _INCLUDE.findall(read(path)):
    files |= included(other)
  return files


def program(path: str) -> Callable[..., Any] | None:
  """The program that a gin file configures, or None."""
  (found,) = [
      each for name, each in _PROGRAMS.items() if name in included(path)
  ] or [None]
  return found


def pretrains(path: str) -> bool:
  """True for an experiment of masked prediction."""
  return 'gin/programs/best_rq.gin' in included(path)


def paths() -> list[str]:
  """Paths of all experiments, without what they share."""
  found = (
      str(path.relative_to(ROOT))
      for path in sorted((ROOT / 'gin' / 'experiments').glob('*.gin'))
  )
  return [path for path in found if program(path)]


def name(path: str) -> str:
  """The experiment's name."""
  return pathlib.Path(path).stem


def bind_complete(path: str) -> tuple[Callable[..., Any], list[str]]:
  """Binds an experiment, with values for what its header leaves open.

  Returns:
    The bound program, and the names of the settings that were left open.
  """
  try:
    return config.bind(program(path), gin_files=[path]), []
  except config.ConfigError as error:
    names = re.findall(r'(\w+) has no value', str(error))
    if not names:
      raise
  params = [f'{each} = {_LEFT_OPEN[each]}' for each in names]
  bound = config.bind(program(path), gin_files=[path], gin_params=params)
  return bound, names


def configured(text: str) -> dict[str, Callable[..., Any]]:
  """The functions that a configuration sets or uses: by 'module.function'.

  Of this project only: TFF's and gin's own are theirs to test.
  """
  modules = {
      module: importlib.import_module(f'{package}.{module}')
      for package, module in _IMPORT.findall(text)
      if package.startswith('tff_asr')
  }
  functions = {}
  for selector in _CONFIGURED.findall(text):
    module, *names = selector.split('.')
    if module in modules and hasattr(modules[module], names[0]):
      functions[f'{module}.{names[0]}'] = getattr(modules[module], names[0])
  return dict(sorted(functions.items()))


def defaults(text: str) -> str:
  """Code defaults that add to a configuration, as comments."""
  lines = []
  for selector, function in configured(text).items():
    for argument in inspect.signature(function).parameters.values():
      is_set = re.search(
          rf'^(?:[\w-]+/)?{selector}\.{argument.name} =', text, re.MULTILINE
      )
      if argument.default is not argument.empty and not is_set:
        lines.append(f'# {selector}.{argument.name} = {argument.default!r}\n')
  return ''.join(lines)

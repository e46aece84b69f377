"""Model and pipeline of a run, built from plain data.

`parts.json` names builders and their arguments (`config.model_spec` writes
it). A run's folder may come from a stranger, and config.gin is a program: it
imports and calls what it likes. So config.gin is never parsed from a folder,
and parts.json can call only the functions of `BUILDERS`.

A model of one's own, outside this package, needs its folder of code to be named
by the user (`trust_code`). What a run says is never enough.
"""

from collections.abc import Callable, Mapping
import functools
import importlib
from importlib import machinery
import inspect
import os
import sys
from typing import Any, Optional

from tff_asr import arguments as arguments_lib
from tff_asr import files
from tff_asr.data import pipeline as pipeline_lib
from tff_asr.features import spec_augment
from tff_asr.models import conformer
from tff_asr.models import conv
from tff_asr.models import ctc
from tff_asr.models import subsampling
from tff_asr.models import transformer
from tff_asr.storage import run_dir
from tff_asr.text import tokenizer

BUILDERS: Mapping[str, Callable[..., Any]] = {
    f'{builder.__module__}.{builder.__qualname__}': builder
    for builder in (
        conformer.build,
        conv.build,
        ctc.build,
        pipeline_lib.Pipeline,
        spec_augment.build,
        subsampling.output_lengths_3x,
        subsampling.output_lengths_4x,
        tokenizer.CharTokenizer,
        tokenizer.SentencePieceTokenizer,
        tokenizer.for_language,
        transformer.build,
    )
}
"""Builders that parts.json may call: none touches a file or the system."""

# Size for a model with 20,000 sentence pieces, which it names twice.
_MAX_BYTES = 2**22
# Largest number. A million blocks, or seconds, would fill the memory.
_MAX_NUMBER = 100_000
# Longest text; the largest published set of characters has 54.
_MAX_CHARACTERS = 10_000


def read(
    run: str, *, trust_code: Optional[str] = None
) -> tuple[ctc.CtcModel, pipeline_lib.Pipeline]:
  """Builds the model and the pipeline of a run.

  Args:
    run: The run's folder.
    trust_code: Folder of Python modules that may be imported, and whose
      functions may be called; None: none.

  Raises:
    ValueError: The folder has no parts, or parts that cannot be built; the run
      is pre-trained, without text; or a builder is neither in `BUILDERS` nor in
      trust_code.
  """
  path = run_dir.file_of(run, run_dir.PARTS)
  try:
    found = files.parse_json(files.read(path, max_bytes=_MAX_BYTES))
    if not isinstance(found, dict) or not found.keys() >= {'MODEL', 'PIPELINE'}:
      raise ValueError('it has no MODEL and PIPELINE')
    built = {}
    for name, kind in (
        ('PIPELINE', pipeline_lib.Pipeline),
        ('MODEL', ctc.CtcModel),
    ):
      built[name] = _build(found[name], trust_code=trust_code)
      if not isinstance(built[name], kind):
        raise ValueError(f'its {name} is no {kind.__name__}')
      if built['PIPELINE'].tokenizer is None:
        raise ValueError(
            'the model is pre-trained and spells nothing yet: fine-tune it '
            'first, by a training run with INIT_FROM_RUN.'
        )
  except RecursionError:
    raise ValueError(f'{path}: it is nested too deeply.') from None
  except ValueError as e:
    raise ValueError(f'{path}: {e}') from e
  return built['MODEL'], built['PIPELINE']


def _build(value: Any, *, trust_code: Optional[str]) -> Any:
  """A value of parts.json, with the parts in it built."""
  build = functools.partial(_build, trust_code=trust_code)
  if isinstance(value, str) and len(value) > _MAX_CHARACTERS:
    raise ValueError(f'a text of {len(value):,} characters is too long.')
  if isinstance(value, (int, float)) and not abs(value) <= _MAX_NUMBER:
    raise ValueError(f'the number {str(value)[:20]} is out of range.')
  if isinstance(value, list):
    return [*map(build, value)]
  if not isinstance(value, dict):
    return value
  if value.keys() == {'mapping'}:
    try:
      return {build(key): build(item) for key, item in value['mapping']}
    except TypeError as e:
      raise ValueError(f'a mapping is none ({e}).') from None
  kind, name, given = _fields(value)
  function = _function(name, trust_code)
  given = {argument: build(item) for argument, item in given.items()}
  signature = inspect.signature(function)
  try:
    bind = signature.bind if kind == 'build' else signature.bind_partial
    bind(**given)
  except TypeError as e:
    raise ValueError(f'{name}: {e}.') from None
  annotations = arguments_lib.annotations(function)
  for argument, item in given.items():
    problem = arguments_lib.mismatch(item, annotations.get(argument, Any))
    if problem:
      raise ValueError(f'{name}: {argument} {problem}')
  if kind == 'function':
    return functools.partial(function, **given) if given else function
  return function(**given)


def _fields(value: Mapping[str, Any]) -> tuple[str, str, dict[str, Any]]:
  """An object's meaning: 'build' or 'function', name and arguments."""
  for kind in ('build', 'function'):
    if value.keys() == {kind, 'arguments'}:
      name, given = value[kind], value['arguments']
      if isinstance(name, str) and isinstance(given, dict):
        return kind, name, given
  raise ValueError(f'{str(value)[:60]!r} is no part.')


def _function(name: str, trust_code: Optional[str]) -> Callable[..., Any]:
  """The function of a full name, if it may be called."""
  if name in BUILDERS:
    return BUILDERS[name]
  shown = name if len(name) < 80 else f'{name[:80]}...'
  module_name, _, function_name = name.rpartition('.')
  if trust_code is None:
    raise ValueError(
        f'{shown} is no builder of this package, and could run any code: read '
        'it, and name its folder with --trust_code=FOLDER.'
    )
  top = module_name.partition('.')[0]
  folder = os.path.realpath(trust_code)
  refused = ValueError(
      f'{shown} is no builder of this package, nor a function that a module in '
      f'{trust_code} defines.'
  )
  # Python's own modules, and those installed, are not in the folder.
  if not top or machinery.PathFinder.find_spec(top, [folder]) is None:
    raise refused
  if folder not in sys.path:
    sys.path.insert(0, folder)
  try:
    module = importlib.import_module(module_name)
  except ModuleNotFoundError as e:
    raise refused from e
  function = vars(module).get(function_name)
  # One that the module has imported, as `system`, belongs to another.
  if (
      not os.path.realpath(module.__file__ or '').startswith(folder + os.sep)
      or not callable(function)
      or getattr(function, '__module__', None) != module_name
  ):
    raise refused
  return function

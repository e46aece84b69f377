"""Model and pipeline of a run, built from JSON by an allow-list of builders.

`model_spec.json` names builders and their arguments; `config.model_spec` writes
it and has its format. A run folder may come from a stranger. Its config.gin is
never parsed, because gin imports and calls whatever a file names;
model_spec.json can call the functions of `BUILDERS` only.

A run names its public model; an export has it in a folder of its own, which
`bundled` names in its specification:

    {"bundled": "public_model"}

For a model outside this package the user names the folder of its code
(`trust_code`).
"""

from collections.abc import Callable, Mapping
import contextlib
import functools
import importlib
from importlib import machinery
import os
import sys

from tff_asr import files
from tff_asr.data import pipeline as pipeline_lib
from tff_asr.features import front_end
from tff_asr.features import spec_augment
from tff_asr.features import waveform_augment
from tff_asr.models import conformer
from tff_asr.models import conv
from tff_asr.models import ctc
from tff_asr.models import layer_mix
from tff_asr.models import subsampling
from tff_asr.models import transformer
from tff_asr.pretrained import adapted
from tff_asr.pretrained import features
from tff_asr.storage import run_dir
from tff_asr.storage import tensor_file
from tff_asr.text import tokenizer

# None of these touches a file or the operating system, except that those of
# `adapted` and `features` read a public model, which cannot run code.
BUILDERS: Mapping[str, Callable[..., object]] = {
    f'{builder.__module__}.{builder.__qualname__}': builder
    for builder in (
        adapted.adapters,
        adapted.ctc_head,
        adapted.ctc_tokenizer,
        adapted.front_end,
        adapted.frozen,
        adapted.last_blocks,
        adapted.load,
        adapted.lora,
        adapted.output_lengths,
        adapted.whole,
        conformer.build,
        conv.build,
        ctc.build,
        features.of_model,
        front_end.build_log_mel,
        front_end.build_whisper_log_mel,
        layer_mix.build,
        layer_mix.build_on,
        layer_mix.output_lengths,
        pipeline_lib.Pipeline,
        spec_augment.build,
        subsampling.output_lengths_3x,
        subsampling.output_lengths_4x,
        tokenizer.CharTokenizer,
        tokenizer.SentencePieceTokenizer,
        tokenizer.for_language,
        transformer.build,
        waveform_augment.build,
    )
}


# The folder of an export's public model.
PUBLIC_MODEL = 'public_model'


def read(
    run: str, *, trust_code: str | None = None
) -> tuple[ctc.CtcModel, pipeline_lib.Pipeline]:
  """Builds the model and the pipeline of a run.

  Args:
    run: The run's folder.
    trust_code: Folder of Python modules that may be imported, with functions
      that may be called; None: none.

  Raises:
    ValueError: The folder has no model_spec.json, or one that cannot be built;
      the run is pre-trained, without text; or a builder is neither in
      `BUILDERS` nor in trust_code.
  """
  path = run_dir.file_of(run, run_dir.MODEL_SPEC)
  try:
    spec = files.parse_json(files.read(path))
    if not isinstance(spec, dict) or not spec.keys() >= {'MODEL', 'PIPELINE'}:
      raise ValueError('it has no MODEL and PIPELINE')
    # First: the model of a pre-trained run is of another kind, and the message
    # about the missing tokenizer is clearer.
    build = functools.partial(_build, run=run, trust_code=trust_code)
    pipeline = build(spec['PIPELINE'])
    if not isinstance(pipeline, pipeline_lib.Pipeline):
      raise ValueError('its PIPELINE is not a pipeline')
    if pipeline.tokenizer is None:
      raise ValueError(
          'the run is a pre-trained encoder without a CTC head: fine-tune it '
          'first, by a training run with INIT_FROM_RUN.'
      )
    model = build(spec['MODEL'])
    # Builders return many types, and the file decides which one is called.
    if not isinstance(model, ctc.CtcModel):
      raise ValueError('its MODEL is not a CTC model')
  # TypeError: a builder takes no argument of that name or type.
  except (TypeError, ValueError) as e:
    raise ValueError(f'{path}: {e}') from e
  return model, pipeline


def public_models(spec: tensor_file.Json) -> set[str]:
  """Names of the public models in a specification, but not bundled ones."""
  match spec:
    case {'build': builder, 'arguments': {'name': str(name)}}:
      return {name} if _is_of_public_model(builder) else set()
    case dict():
      return set().union(*map(public_models, spec.values()))
    case list():
      return set().union(*map(public_models, spec))
  return set()


def with_bundled(spec: tensor_file.Json) -> tensor_file.Json:
  """The specification with the bundled public model in place of its name."""
  match spec:
    case {'build': builder, 'arguments': {'name': str(), **others}} if (
        _is_of_public_model(builder)
    ):
      bundled = {'bundled': PUBLIC_MODEL}
      return dict(spec, arguments=dict(others, name=bundled))
    case dict():
      return {key: with_bundled(value) for key, value in spec.items()}
    case list():
      return [*map(with_bundled, spec)]
  return spec


def _is_of_public_model(builder: str) -> bool:
  """Whether a builder's `name` is that of a public model."""
  return builder.rpartition('.')[0] in (adapted.__name__, features.__name__)


def _build(
    value: tensor_file.Json, *, run: str, trust_code: str | None
) -> object:
  """Builds a value of model_spec.json, and those inside it."""
  build = functools.partial(_build, run=run, trust_code=trust_code)
  match value:
    case list():
      return [*map(build, value)]
    case {'bundled': folder} if folder == PUBLIC_MODEL:
      return os.path.join(run, folder)
    case {'mapping': items}:
      return {build(key): build(item) for key, item in items}
    case {'build': name, 'arguments': given}:
      arguments = {key: build(item) for key, item in given.items()}
      return _builder(name, trust_code)(**arguments)
    case {'function': name, 'arguments': given}:
      # A function that the model calls later, as `output_lengths`.
      function = _builder(name, trust_code)
      arguments = {key: build(item) for key, item in given.items()}
      return functools.partial(function, **arguments) if given else function
    case dict():
      # Cut: the file may come from a stranger, and the message is printed.
      raise ValueError(f'{str(value)[:60]!r} is neither a builder nor a value')
  return value


def _builder(name: str, trust_code: str | None) -> Callable[..., object]:
  """Returns the function of a full name, if it may be called."""
  if name in BUILDERS:
    return BUILDERS[name]
  if trust_code is None:
    raise ValueError(
        f'{name[:80]} is not a builder of this package, and could run any '
        'code: read it, and name its folder with --trust_code=FOLDER.'
    )
  module_name, _, function_name = name.rpartition('.')
  # Absolute: an entry of sys.path must not follow a change of folder.
  folder = os.path.realpath(trust_code)
  # Python's own modules, and those installed, are not in the folder.
  top = module_name.partition('.')[0]
  function = None
  if top and machinery.PathFinder.find_spec(top, [folder]) is not None:
    # First, so that no installed module is imported in place of the user's.
    if folder not in sys.path:
      sys.path.insert(0, folder)
    with contextlib.suppress(ModuleNotFoundError):
      function = vars(importlib.import_module(module_name)).get(function_name)
  # A function that the module imports, such as `system`, names another module.
  if getattr(function, '__module__', None) != module_name:
    raise ValueError(
        f'{name[:80]} is neither a builder of this package nor a function that '
        f'a module in {trust_code} defines.'
    )
  return function

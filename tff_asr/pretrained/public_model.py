"""A public model: an encoder, its weights, and where they are from."""

from collections.abc import Mapping
import dataclasses
import hashlib
import math
import os
import re

import numpy as np

from tff_asr import files
from tff_asr.features import front_end as front_end_lib
from tff_asr.models import encoder as encoder_lib

UNKNOWN_LICENCE = 'unknown'

# The front ends that public models need: modules of `tff_asr/features`.
WHISPER_LOG_MEL = 'whisper_log_mel'
WAVEFORM = 'waveform'

_FRONT_MATTER = re.compile(r'\A---\s*\n(.*?)^---\s*$', re.DOTALL | re.MULTILINE)
_LICENCE_LINE = re.compile(r'^license:\s*([\w.+-]+)\s*$', re.MULTILINE)


@dataclasses.dataclass(frozen=True, eq=False)
class PublicModel:
  """An encoder that others have trained on data that are not part of a run.

  Attributes:
    name: Its name, as in 'whisper-tiny.en'.
    family: 'whisper', 'wav2vec2' or 'hubert'.
    licence: Its licence as its folder or package states it, or 'unknown'.
    source: Where the weights are from, without paths of this machine.
    sha256: Digest of the file of weights; of several, of the lines 'digest
      name' in the order of their names, as `sha256sum` prints them.
    front_end: Module of `tff_asr/features` that computes its inputs.
    front_end_settings: Keyword arguments of the front end.
    settings: Keyword arguments with which the `build` of `models.whisper` or
      `models.wav2vec2` makes `encoder`; add dropout and the like to train it.
    encoder: The encoder.
    weights: float32 arrays by name, sorted, as `encoder.specs`.
    files: Paths of the files that it was read from, in one folder.
    max_duration_sec: The longest utterance that it takes; may be infinite.
  """

  name: str
  family: str
  licence: str
  source: str
  sha256: str
  front_end: str
  front_end_settings: Mapping[str, int | bool]
  settings: Mapping[str, int | str | bool | tuple[int, ...]]
  encoder: encoder_lib.Encoder
  weights: dict[str, np.ndarray]
  files: tuple[str, ...]
  max_duration_sec: float = math.inf

  @property
  def public_source(self) -> front_end_lib.PublicSource:
    return front_end_lib.PublicSource(
        self.name, self.licence, self.source, self.sha256
    )

  @property
  def description(self) -> str:
    """One line, which identifies stored features."""
    return (
        f'public: {self.name} ({self.family}, licence {self.licence}, from '
        f'{self.source}), SHA-256 {self.sha256}'
    )


def licence_of(folder: str) -> str:
  """The licence in the header of a folder's README.md, or 'unknown'."""
  try:
    text = files.read(os.path.join(folder, 'README.md')).decode()
  except (OSError, ValueError):  # No such file, or not of UTF-8.
    return UNKNOWN_LICENCE
  header = _FRONT_MATTER.search(text)
  found = header and _LICENCE_LINE.search(header.group(1))
  return found.group(1) if found else UNKNOWN_LICENCE


def sha256_of(paths: list[str]) -> str:
  """Digest of files of weights; see `PublicModel.sha256`."""
  digests = {os.path.basename(path): files.sha256(path) for path in paths}
  if len(digests) == 1:
    return next(iter(digests.values()))
  lines = ''.join(f'{digests[name]}  {name}\n' for name in sorted(digests))
  return hashlib.sha256(lines.encode()).hexdigest()



"""A stand-in for faster-whisper and CTranslate2, which are extras."""

from collections.abc import Iterator
import contextlib
import os
import pathlib
import sys
import types

import numpy as np


class Model:
  """Says '<seconds> seconds.' of each waveform, in two segments.

  Attributes:
    heard: What `transcribe` was called with.
  """

  supported_languages = ['en', 'de']
  heard = []

  def __init__(self, folder: str, *, device: str):
    if pathlib.Path(folder, 'model.bin').read_bytes() == b'damaged':
      raise RuntimeError('bad\nmodel')

  def transcribe(
      self, audio: np.ndarray, *, language: str | None, word_timestamps: bool
  ):
    self.heard.append((audio, language, word_timestamps))
    seconds = f'{len(audio) / 16000:g}'
    word = lambda text, start: types.SimpleNamespace(
        word=f' {text}', start=start, end=start + 0.5, probability=0.25
    )
    segments = (
        types.SimpleNamespace(text=f' {each.word.strip()}', words=[each])
        for each in (word(seconds, 0.0), word('Seconds.', 0.5))
    )
    return segments, types.SimpleNamespace(language=language or 'en')


@contextlib.contextmanager
def installed() -> Iterator[Model]:
  """Installs the stand-in; yields its class, which has heard nothing yet."""
  Model.heard.clear()
  modules = {
      'faster_whisper': types.SimpleNamespace(WhisperModel=Model),
      'ctranslate2': types.SimpleNamespace(
          set_random_seed=lambda seed: None, set_log_level=lambda level: None
      ),
  }
  # Not by `mock.patch.dict`, which forgets what is imported meanwhile.
  before = {name: sys.modules.get(name) for name in modules}
  sys.modules.update(modules)
  try:
    yield Model
  finally:
    for name, module in before.items():
      if module is None:
        del sys.modules[name]
      else:
        sys.modules[name] = module


def write(folder: str, *, model: bytes = b'') -> str:
  """Writes a folder of CTranslate2 that the stand-in can load; returns it."""
  os.makedirs(folder)
  for name, content in (('model.bin', model), ('tokenizer.json', b'{}')):
    pathlib.Path(folder, name).write_bytes(content)
  return folder

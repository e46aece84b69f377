"""Transcription with a public Whisper model as it was published.

    decode = load('whisper-tiny.en')
    for recognition in decode([('a.wav', audio.read('a.wav'))]):
      print(recognition.text)

The decoder is that of faster-whisper
(https://github.com/SYSTRAN/faster-whisper), with its default options: beam
search in windows of 30 s, and sampling where the best text repeats itself or is
improbable. It also finds the language and, from the attention to the sound, the
times of words. It needs the packages of requirements-whisper-decoder.txt.
"""

from collections.abc import Iterable, Iterator
import logging
import os
from typing import Optional

import numpy as np

from tff_asr.data import schema
from tff_asr.pretrained import ctranslate2 as ctranslate2_lib
from tff_asr.pretrained import sources
from tff_asr.recognition import recognizer

_INSTALL = 'pip install --no-deps -r requirements-whisper-decoder.txt'
# Options of models of CTC, and their flags.
_CTC_FLAGS = {
    'window_sec': '--window_sec', 'language_model': '--lm',
    'hotwords': '--hotword', 'num_best': '--num_best',
}


class WhisperDecoder:
  """Transcribes waveforms with a Whisper model; see `recognizer.Recognize`."""

  def __init__(self, folder: str, *, language: Optional[str] = None):
    """Loads a model.

    Args:
      folder: A folder of CTranslate2 with `model.bin`, `tokenizer.json` and the
        vocabulary.
      language: The language of the speech (ISO 639-1), of a multilingual model;
        by default the decoder finds it in the first 30 s of each waveform.

    Raises:
      ValueError: A package is not installed, a file is missing or damaged, or
        the model does not know the language.
    """
    try:
      import ctranslate2  # pylint: disable=g-import-not-at-top
      import faster_whisper  # pylint: disable=g-import-not-at-top
    except ImportError as e:
      raise ValueError(
          f'the decoder of Whisper needs a package that is not installed ({e}):'
          f' `{_INSTALL}`.'
      ) from None
    # The library would look for it on the network.
    if not os.path.exists(os.path.join(folder, 'tokenizer.json')):
      raise ValueError(
          f'{folder} has no tokenizer.json: fetch the whole folder.'
      )
    # It would say on each start that it computes in float32.
    ctranslate2.set_log_level(logging.ERROR)
    # The same samples each time, where beam search fails.
    ctranslate2.set_random_seed(0)
    try:
      self._model = faster_whisper.WhisperModel(folder, device='cpu')
    # The tokenizer's errors have no class of their own.
    except Exception as e:  # pylint: disable=broad-exception-caught
      raise ValueError(
          f'{folder} has no Whisper model that can be loaded ({e}): fetch the '
          'whole folder again.'
      ) from e
    known = self._model.supported_languages
    if language is not None and language not in known:
      raise ValueError(f'{folder} knows {", ".join(known)}, not {language!r}.')
    self._language = language

  def __call__(
      self, waveforms: Iterable[tuple[str, np.ndarray]]
  ) -> Iterator[recognizer.Recognition]:
    """Transcribes waveforms; yields the transcripts in order.

    Args:
      waveforms: Names, and int16 [N], 16 kHz mono; read lazily.
    """
    for name, waveform in waveforms:
      segments, info = self._model.transcribe(
          waveform.astype(np.float32) / 2**15,
          language=self._language,
          word_timestamps=True,
      )
      # Decoded while they are listed.
      segments = list(segments)
      words = [
          recognizer.Word(
              each.word.strip(), each.start, each.end, each.probability
          )
          for segment in segments
          for each in segment.words
      ]
      yield recognizer.Recognition(
          name,
          len(waveform) / schema.SAMPLE_RATE_HZ,
          ''.join(segment.text for segment in segments).strip(),
          words,
          alternatives=[],
          language=info.language,
      )


def load(
    name_or_folder: str, *, language: Optional[str] = None, **options: object
) -> recognizer.Recognize:
  """Loads a public model that transcribes as it was published.

  Args:
    name_or_folder: A Whisper model in CTranslate2's format, or a model of CTC;
      see `sources.load`.
    language: See `WhisperDecoder`.
    **options: Keyword arguments of `recognizer.load_pretrained`, for models of
      CTC.

  Raises:
    ValueError: As `sources.find`, `WhisperDecoder` and
      `recognizer.load_pretrained`; or the model does not take an option.
  """
  folder = sources.find(name_or_folder)
  if not os.path.exists(os.path.join(folder, ctranslate2_lib.FILE)):
    if language is not None:
      raise ValueError(
          f'--language is for Whisper models, and {name_or_folder} is none: '
          'leave it out.'
      )
    return recognizer.load_pretrained(name_or_folder, **options)
  # A weight of hotwords has no effect without these.
  if given := [
      flag for name, flag in _CTC_FLAGS.items()
      if options.get(name) not in (None, [], 1)
  ]:
    raise ValueError(
        f'{", ".join(given)} needs a model of CTC, and {name_or_folder} is a '
        'Whisper model, which has its own decoder and windows: leave it out.'
    )
  return WhisperDecoder(folder, language=language)

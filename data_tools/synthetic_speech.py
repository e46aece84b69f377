"""Generated speech: eSpeak NG's library.

eSpeak NG (GPL-3, from the extra package espeakng-loader) speaks the sentences
of `synthetic_text`. It is not human speech and serves to try the system in
minutes: a recogniser learns it on two cores, and is tested on new speakers and
sentences.

eSpeak's breath noise, else seeded by the clock, gets a seed. Its state drifts
from one utterance to the next.

Loads no TensorFlow, so that processes that speak start fast.
"""

import _ctypes
import ctypes
import hashlib
from importlib import metadata
import os
from typing import Any

import numpy as np

# Voice variants, without effects (whispers, robots, echoes), without those
# that differ from an earlier one by under 1 dB of mean spectrum, 6 % of pitch
# and 4 % of rate, and without five of extreme pitch, pace or distortion.
VARIANTS = (
    'Alex Alicia Andrea Andy Annie AnxiousAndy Denis Diogo Gene Gene2 Hugo Lee'
    ' Mario Michael Mike Nguyen Reed RicishayMax RicishayMax2 Storm adam anika'
    ' announcer antonio aunty belinda boris david ed edward f1 f2 f3 f5 grandma'
    ' grandpa gustave ian iven2 iven3 iven4 john kaukovalta klatt klatt3 klatt4'
    ' linda m1 m2 m3 m4 m5 m6 m7 m8 marcelo max michel mike2 norbert pablo paul'
    ' pedro quincy rob robert sandro shelby steph steph2 travis victor'
).split()
# Languages, and how often a generated speaker should have each.
ACCENTS = {'en-us': 0.75, 'en-us-nyc': 0.1, 'en-gb-x-rp': 0.15}

# speak_lib.h
_AUDIO_OUTPUT_SYNCHRONOUS = 2
_BUFFER_MS = 4000
_RATE, _PITCH = 1, 3
_BREATH_SEED = 1
_POS_CHARACTER, _CHARS_UTF8 = 1, 1


def espeak_version() -> str:
  """Version of the extra package; ValueError if it is not installed."""
  try:
    return metadata.version('espeakng-loader')
  except metadata.PackageNotFoundError:
    raise ValueError(
        'eSpeak NG (GPL-3), which generates the speech, is an extra; install '
        'it with: pip install --no-deps -r requirements-speech-synthesis.txt'
    ) from None


class Espeak:
  """eSpeak NG's library, loaded again; `close` unloads it."""

  def __init__(self, data_dir: str | None = None):
    """Loads eSpeak NG.

    Args:
      data_dir: Its data, a folder espeak-ng-data; by default all that it has.

    Raises:
      RuntimeError: eSpeak cannot use the data.
    """
    # Late: the package is an extra.
    import espeakng_loader  # pylint: disable=g-import-not-at-top

    self._library = ctypes.CDLL(espeakng_loader.get_library_path())
    self._library.espeak_Synth.argtypes = [
        ctypes.c_char_p,
        ctypes.c_size_t,
        ctypes.c_uint,
        ctypes.c_int,
        ctypes.c_uint,
        ctypes.c_uint,
        ctypes.c_void_p,
        ctypes.c_void_p,
    ]
    parent_dir = os.path.dirname(data_dir or espeakng_loader.get_data_path())
    self.sample_rate_hz = self._library.espeak_Initialize(
        _AUDIO_OUTPUT_SYNCHRONOUS, _BUFFER_MS, parent_dir.encode(), 0
    )
    if self.sample_rate_hz <= 0:
      raise RuntimeError(f'eSpeak NG cannot use its data in {parent_dir}.')
    self._voice: tuple[str, int, int] | None = None
    self._chunks: list[np.ndarray] = []

    def collect(samples, num_samples, unused_events) -> int:
      if samples and num_samples:
        self._chunks.append(
            # The library uses its buffer again after the callback.
            np.ctypeslib.as_array(samples, (num_samples,)).copy()
        )
      return 0

    callback_type = ctypes.CFUNCTYPE(
        ctypes.c_int,
        ctypes.POINTER(ctypes.c_short),
        ctypes.c_int,
        ctypes.c_void_p,
    )
    self._callback = callback_type(collect)  # Kept: the library calls it.
    self._library.espeak_SetSynthCallback(self._callback)

  def close(self) -> None:
    """Unloads the library and its state; call nothing else afterwards."""
    self._library.espeak_Terminate()
    # ctypes has no way to unload a library.
    _ctypes.dlclose(self._library._handle)  # pylint: disable=protected-access

  def speak(
      self, text: str, *, voice: str, rate: int, pitch: int
  ) -> np.ndarray:
    """Returns int16 [N] at `sample_rate_hz`; silent speech is an error."""
    library = self._library
    # Reading a voice takes as long as a few words.
    if (voice, rate, pitch) != self._voice:
      # An unknown language leaves the voice as it was and says so only here.
      if library.espeak_SetVoiceByName(voice.encode()) != 0:
        raise RuntimeError(f'eSpeak NG has no voice {voice!r}.')
      library.espeak_SetParameter(_RATE, rate, 0)
      library.espeak_SetParameter(_PITCH, pitch, 0)
      self._voice = voice, rate, pitch
    library.espeak_ng_SetRandSeed(ctypes.c_long(_BREATH_SEED))
    # C strings end with a zero byte.
    data = text.encode() + b'\0'
    self._chunks.clear()
    status = library.espeak_Synth(
        data, len(data), 0, _POS_CHARACTER, 0, _CHARS_UTF8, None, None
    )
    speech = np.concatenate(self._chunks) if self._chunks else np.zeros(0)
    if status != 0 or not np.any(speech):
      raise RuntimeError(f'eSpeak NG said nothing (status {status}).')
    return speech


def generator(seed: int, *names: Any) -> np.random.Generator:
  """A generator that depends on the seed and the names only."""
  text = ':'.join(map(str, (seed, *names)))
  digest = hashlib.sha256(text.encode()).digest()
  return np.random.Generator(np.random.PCG64(int.from_bytes(digest, 'little')))

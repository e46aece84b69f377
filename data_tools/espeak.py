"""eSpeak NG as a Python object, and processes to call it in.

eSpeak's state drifts from one utterance to the next. What is to come out bit
for bit the same is spoken in a process that starts from a fresh state:
`run_forked`. Its breath noise, else seeded by the clock, gets a seed.
"""

from collections.abc import Callable, Iterable
import ctypes
import os
import sys

import espeakng_loader
import numpy as np
import tqdm

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
_RATE, _PITCH_PARAMETER = 1, 3
_BREATH_SEED = 1
_POS_CHARACTER, _CHARS_UTF8 = 1, 1


class Espeak:
  """eSpeak NG's library, loaded once; `speak` is called in forked processes."""

  def __init__(self):
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
    data_dir = os.path.dirname(espeakng_loader.get_data_path())
    self.sample_rate_hz = self._library.espeak_Initialize(
        _AUDIO_OUTPUT_SYNCHRONOUS, 0, data_dir.encode(), 0
    )
    if self.sample_rate_hz <= 0:
      raise RuntimeError(f'eSpeak NG cannot use its data in {data_dir}.')
    self._chunks: list[np.ndarray] = []

    def collect(samples, num_samples, unused_events) -> int:
      if samples and num_samples:
        self._chunks.append(
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

  def speak(
      self, text: str, *, voice: str, rate: int, pitch: int
  ) -> np.ndarray:
    """Returns int16 [N] at `sample_rate_hz`; silent speech is an error."""
    library = self._library
    # An unknown language leaves the voice as it was and says so only here.
    if library.espeak_SetVoiceByName(voice.encode()) != 0:
      raise RuntimeError(f'eSpeak NG has no voice {voice!r}.')
    library.espeak_SetParameter(_RATE, rate, 0)
    library.espeak_SetParameter(_PITCH_PARAMETER, pitch, 0)
    library.espeak_ng_SetRandSeed(ctypes.c_long(_BREATH_SEED))
    data = text.encode() + b'\0'
    self._chunks.clear()
    status = library.espeak_Synth(
        data, len(data), 0, _POS_CHARACTER, 0, _CHARS_UTF8, None, None
    )
    speech = np.concatenate(self._chunks) if self._chunks else np.zeros(0)
    if status != 0 or not np.any(speech):
      raise RuntimeError(f'eSpeak NG said nothing (status {status}).')
    return speech


def run_forked(
    tasks: Iterable[tuple[str, Callable[[], None]]], *, num_workers: int
) -> None:
  """Runs each task in a process of its own, `num_workers` at a time.

  Args:
    tasks: Names and what to do. What a task returns is lost: it writes files.
    num_workers: Processes at a time.

  Raises:
    RuntimeError: If a task raised or its process died; it names the task. No
      process is left behind.
  """
  running: list[tuple[str, int, int]] = []
  bar = tqdm.tqdm(
      list(tasks),
      desc='generated speech',
      unit=' tasks',
      disable=not sys.stderr.isatty(),
  )
  try:
    for name, task in bar:
      if len(running) >= num_workers:
        _wait(*running.pop(0))
      running.append((name, *_fork(task)))
    while running:
      _wait(*running.pop(0))
  finally:
    for _, pid, reader in running:
      os.waitpid(pid, 0)
      os.close(reader)


def _fork(task: Callable[[], None]) -> tuple[int, int]:
  """Starts a task; returns its process id and a pipe with its error, if any."""
  reader, writer = os.pipe()
  pid = os.fork()
  if pid:
    os.close(writer)
    return pid, reader
  status = 1
  try:
    task()
    status = 0
  except BaseException as e:  # pylint: disable=broad-exception-caught
    os.write(writer, f'{type(e).__name__}: {e}'.encode())
  finally:
    os._exit(status)  # pylint: disable=protected-access


def _wait(name: str, pid: int, reader: int) -> None:
  """Waits for a task; raises RuntimeError naming it if it failed."""
  with os.fdopen(reader, 'rb') as f:
    error = f.read().decode(errors='replace')
  _, status = os.waitpid(pid, 0)
  if status:
    code = os.waitstatus_to_exitcode(status)
    raise RuntimeError(f'{name}: {error or f"ended with {code}"}')

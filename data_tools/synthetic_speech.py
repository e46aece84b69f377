"""Generated speech: a small corpus in LibriSpeech's layout.

    python -m data_tools.synthetic_speech --output_dir=data/synthetic

eSpeak NG (GPL-3, from the extra package espeakng-loader) speaks short sentences
of a closed vocabulary. It is not human speech and serves to try the system in
minutes: a recogniser learns it on two cores, and hears new speakers say new
sentences.

- A speaker is a voice variant with an accent, a rate, a pitch, a loudness, a
  background noise, and a taste for some templates and words (clients differ).
- Splits train, dev and test share no speaker and no sentence: a sentence
  belongs to the one split that its hash names.
- Everything follows from the seed, bit for bit, on one machine. eSpeak's state
  drifts from one utterance to the next, so each speaker is made in a process of
  its own (a fork) that starts from the same state; and its breath noise,
  else seeded by the clock, gets a seed.

TensorFlow must not be loaded in the process that forks.
"""

from tff_asr import launch  # First: quiets what others load.

launch.begin(__name__)

import _ctypes
import bisect
from collections.abc import Callable, Iterable, Mapping, Sequence
import ctypes
import dataclasses
import functools
import hashlib
from importlib import metadata
import json
import multiprocessing
import os
import shutil
import sys
import tempfile
from typing import Any

from absl import flags
import numpy as np
import soundfile
import soxr
import tqdm

from tff_asr import checks
from tff_asr import files
from tff_asr.features import log_mel

SAMPLE_RATE_HZ = log_mel.SAMPLE_RATE_HZ
SPLITS = ('train', 'dev', 'test')
MARKER_FILE = 'synthetic_speech.json'
SPEAKERS_FILE = 'SPEAKERS.TXT'

_GENERATOR_VERSION = 3

_UTTERANCES = (14, 34)
_RATE_WORDS_PER_MINUTE = (150, 185)
_PITCH = (40, 60)
_LEVEL_DB = (-30.0, -20.0)
_SNR_DB = (22.0, 36.0)
_NOISE_TAPS = 32
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
_RATE, _PITCH_PARAMETER = 1, 3
_BREATH_SEED = 1
_POS_CHARACTER, _CHARS_UTF8 = 1, 1

_WORDS = {
    'verb': 'open close bring find paint carry hold sell wash',
    'deed': 'likes wants makes takes needs draws counts loves',
    'color': 'red blue green yellow black white brown silver',
    'number': 'two three four five six seven eight nine ten',
    'adjective': 'old new small large broken quiet cold happy',
    'object': (
        'door window table chair lamp bottle basket hammer picture garden'
    ),
    'things': 'apples books flowers boats horses letters stones shoes',
    'animal': 'dog cat bird fish rabbit monkey tiger',
    'name': 'anna peter maria thomas david susan oliver laura',
    'place': 'london paris berlin boston madrid tokyo',
    'day': 'monday tuesday friday sunday',
    'time': 'today tomorrow tonight again now together',
    'motion': 'runs walks sleeps sings waits',
    'where': 'under behind near inside',
    'device': 'radio music heating camera',
    'switch': 'on off up down',
    'weather': 'rain snow wind thunder',
}
_TEMPLATES = (
    '{verb} the {color} {object}',
    'please {verb} the {adjective} {object}',
    '{verb} {number} {color} {things}',
    '{name} {deed} {number} {things}',
    '{name} {deed} {adjective} {things} {time}',
    'the {color} {animal} {motion} {where} the {object}',
    'my {adjective} {animal} {motion} {time}',
    'turn the {device} {switch} {time}',
    'meet {name} in {place} on {day}',
    'call {name} at {number} {time}',
    'there is {weather} in {place} {time}',
    '{name} goes to {place} {time}',
    '{number} {animal} pictures for {name}',
    'add {number} and {number} please',
)
_TEMPLATE = 'template'
_OPTIONS = {kind: tuple(words.split()) for kind, words in _WORDS.items()} | {
    _TEMPLATE: _TEMPLATES
}


@dataclasses.dataclass(frozen=True)
class Speaker:
  """One generated speaker.

  Attributes:
    speaker_id: A number, as in LibriSpeech.
    split: 'train', 'dev' or 'test'.
    variant: eSpeak's voice variant, which carries the identity.
    accent: eSpeak's language.
    rate: Words a minute.
    pitch: eSpeak's scale, 0 to 100.
    level_db: Loudness of the speech, dB of full scale.
    snr_db: Speech over background noise.
    noise_pole: In [0, 0.9]; 0 is white noise, higher is darker.
    sentences: What the speaker says.
  """

  speaker_id: str
  split: str
  variant: str
  accent: str
  rate: int
  pitch: int
  level_db: float
  snr_db: float
  noise_pole: float
  sentences: tuple[str, ...]


def generate(
    output_dir: str | os.PathLike[str],
    *,
    num_speakers: int = 72,
    num_dev_speakers: int = 8,
    num_test_speakers: int = 12,
    seed: int = 1,
    num_workers: int | None = None,
) -> Mapping[str, Any]:
  """Makes the corpus, unless the same one is there.

  Args:
    output_dir: Gets SPEAKERS.TXT and train/, dev/ and test/, each with
      SPEAKER/CHAPTER/SPEAKER-CHAPTER-UTTERANCE.flac (16 kHz mono int16) and
      SPEAKER-CHAPTER.trans.txt.
    num_speakers: Of all splits. Up to `len(VARIANTS)` no two have the
      same variant; beyond, no two have the same variant and accent.
    num_dev_speakers: Of these, in dev.
    num_test_speakers: Of these, in test.
    seed: At least 0.
    num_workers: Processes at a time; by default one a core.

  Returns:
    The parameters, and the number of utterances and seconds.

  Raises:
    ValueError: If an argument is out of range, `output_dir` holds something
      else, or eSpeak NG is not installed.
    RuntimeError: If TensorFlow is loaded or eSpeak fails (speaker named).
  """
  parameters = {
      'generator_version': _GENERATOR_VERSION,
      'espeakng_loader': espeak_version(),
      'num_speakers': num_speakers,
      'num_dev_speakers': num_dev_speakers,
      'num_test_speakers': num_test_speakers,
      'seed': seed,
  }
  speakers = build_speakers(
      num_speakers=num_speakers,
      num_dev_speakers=num_dev_speakers,
      num_test_speakers=num_test_speakers,
      seed=seed,
  )
  output_dir = os.path.abspath(os.fspath(output_dir))
  existing = _read_existing(output_dir, parameters=parameters)
  if existing is not None:
    return existing
  if 'tensorflow' in sys.modules:
    raise RuntimeError(
        'Generated speech is made by forked processes, which is not safe once'
        ' TensorFlow is loaded; run python -m data_tools.synthetic_speech.'
    )
  parent, name = os.path.split(output_dir)
  os.makedirs(parent, exist_ok=True)
  partial_dir = tempfile.mkdtemp(prefix=f'.{name}.', dir=parent)
  try:
    os.chmod(partial_dir, 0o755)
    seconds = _write_corpus(
        partial_dir, speakers, seed=seed, num_workers=num_workers
    )
    content = dict(
        parameters,
        num_utterances=sum(len(s.sentences) for s in speakers),
        seconds=round(seconds, 3),
    )
    files.write_json(os.path.join(partial_dir, MARKER_FILE), content)
    os.rename(partial_dir, output_dir)
  finally:
    shutil.rmtree(partial_dir, ignore_errors=True)
  return content


def build_speakers(
    *,
    num_speakers: int,
    num_dev_speakers: int,
    num_test_speakers: int,
    seed: int,
) -> list[Speaker]:
  """Returns the speakers and what they say, without making any sound.

  Raises:
    ValueError: If an argument is out of range.
  """
  checks.non_negative_int(
      num_dev_speakers=num_dev_speakers,
      num_test_speakers=num_test_speakers,
      seed=seed,
  )
  most = len(VARIANTS) * len(ACCENTS)
  least = num_dev_speakers + num_test_speakers + 1
  if not least <= num_speakers <= most:
    raise ValueError(
        f'num_speakers must be between {least} (one to train on) and {most},'
        f' found {num_speakers}.'
    )
  rng = generator(seed, 'voices')
  accents = list(ACCENTS)
  variants = rng.permutation(VARIANTS).tolist()
  first_accents = rng.choice(
      len(accents), len(variants), p=list(ACCENTS.values())
  )
  splits = np.full(num_speakers, 'train')
  held_out = rng.permutation(num_speakers)
  splits[held_out[: num_dev_speakers + num_test_speakers]] = 'test'
  splits[held_out[:num_dev_speakers]] = 'dev'
  speakers = []
  for i, split in enumerate(splits.tolist()):
    lap, j = divmod(i, len(variants))
    rng = generator(seed, 'speaker', i)
    speakers.append(
        Speaker(
            speaker_id=str(1001 + i),
            split=split,
            variant=variants[j],
            accent=accents[(first_accents[j] + lap) % len(accents)],
            rate=int(rng.integers(*_RATE_WORDS_PER_MINUTE, endpoint=True)),
            pitch=int(rng.integers(*_PITCH, endpoint=True)),
            level_db=float(rng.uniform(*_LEVEL_DB)),
            snr_db=float(rng.uniform(*_SNR_DB)),
            noise_pole=float(rng.uniform(0, 0.9)),
            sentences=draw_sentences(
                rng,
                split=split,
                count=int(rng.integers(*_UTTERANCES, endpoint=True)),
            ),
        )
    )
  return speakers


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
  """eSpeak NG's library, loaded once; `speak` is called in forked processes."""

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

  def close(self) -> None:
    """Unloads the library, and so its state; nothing else may be called."""
    self._library.espeak_Terminate()
    _ctypes.dlclose(self._library._handle)  # pylint: disable=protected-access

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


def split_of(sentence: str) -> str:
  """Returns the only split whose speakers say a sentence."""
  digit = hashlib.sha256(sentence.encode()).digest()[0] % 8
  return {0: 'dev', 1: 'test'}.get(digit, 'train')


def draw_sentences(
    rng: np.random.Generator, *, split: str, count: int
) -> tuple[str, ...]:
  """Returns `count` distinct sentences of one speaker, by a taste of its own.

  Args:
    rng: Decides the taste and the sentences.
    split: The split that the sentences must belong to.
    count: How many.
  """

  taste = {}
  for kind, options in _OPTIONS.items():
    weights = np.cumsum(np.exp(rng.normal(size=len(options))))
    taste[kind] = (weights / weights[-1]).tolist()

  def choose(kind: str) -> str:
    return _OPTIONS[kind][bisect.bisect(taste[kind], rng.random())]

  sentences: dict[str, None] = {}
  while len(sentences) < count:
    sentence = ' '.join(
        choose(token[1:-1]) if token.startswith('{') else token
        for token in choose(_TEMPLATE).split()
    )
    if split_of(sentence) == split:
      sentences[sentence] = None
  return tuple(sentences)


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
  context = multiprocessing.get_context('fork')
  running: list[multiprocessing.Process] = []
  bar = tqdm.tqdm(
      list(tasks),
      desc='generated speech',
      unit=' tasks',
      disable=not sys.stderr.isatty(),
  )
  try:
    for name, task in bar:
      if len(running) >= num_workers:
        _wait(running.pop(0))
      running.append(context.Process(target=task, name=name))
      running[-1].start()
    while running:
      _wait(running.pop(0))
  finally:
    for process in running:
      process.join()


def _write_corpus(
    folder: str,
    speakers: Sequence[Speaker],
    *,
    seed: int,
    num_workers: int | None,
) -> float:
  """Writes texts and audio; returns the seconds of audio."""
  engine = Espeak()
  tasks, paths = [], {}
  for speaker in speakers:
    chapter = f'{speaker.speaker_id}-{int(speaker.speaker_id) + 100000}'
    chapter_dir = os.path.join(folder, speaker.split, *chapter.split('-'))
    os.makedirs(chapter_dir)
    texts = {
        f'{chapter}-{i:04d}': sentence
        for i, sentence in enumerate(speaker.sentences)
    }
    paths[speaker] = [
        os.path.join(chapter_dir, f'{name}.flac') for name in texts
    ]
    task = functools.partial(
        _write_speaker, engine, speaker, paths[speaker], seed=seed
    )
    tasks.append((f'speaker {speaker.speaker_id}', task))
    files.write_text(
        os.path.join(chapter_dir, f'{chapter}.trans.txt'),
        ''.join(f'{name} {text.upper()}\n' for name, text in texts.items()),
    )
  run_forked(tasks, num_workers=num_workers or os.cpu_count() or 1)
  rows, total = [';ID  |SEX| SUBSET           |MINUTES| NAME'], 0.0
  for speaker in speakers:
    seconds = sum(soundfile.info(path).duration for path in paths[speaker])
    total += seconds
    rows.append(
        f'{speaker.speaker_id:5}|   | {speaker.split:16} |{seconds / 60:6.2f} |'
        f' {speaker.accent}+{speaker.variant}'
    )
  files.write_text(
      os.path.join(folder, SPEAKERS_FILE), '\n'.join(rows) + '\n'
  )
  return total


def _write_speaker(
    engine: Espeak,
    speaker: Speaker,
    paths: Sequence[str],
    *,
    seed: int,
) -> None:
  """Speaks a speaker's sentences to their paths, in order."""
  for path, sentence in zip(paths, speaker.sentences):
    _write_utterance(engine, path, speaker, sentence, seed=seed)


def _write_utterance(
    engine: Espeak,
    path: str,
    speaker: Speaker,
    sentence: str,
    *,
    seed: int,
) -> None:
  """Speaks one sentence and writes it as FLAC."""
  speech = engine.speak(
      sentence,
      voice=f'{speaker.accent}+{speaker.variant}',
      rate=speaker.rate,
      pitch=speaker.pitch,
  )
  speech = soxr.resample(
      speech.astype(np.float32), engine.sample_rate_hz, SAMPLE_RATE_HZ
  ).astype(np.float64)
  rng = generator(seed, 'utterance', os.path.basename(path))
  before, after = rng.integers(SAMPLE_RATE_HZ // 50, SAMPLE_RATE_HZ // 8, 2)
  speech = np.pad(speech, (before, after))
  level_db = speaker.level_db + rng.uniform(-2, 2)
  snr_db = speaker.snr_db + rng.uniform(-3, 3)
  noise = np.convolve(
      rng.normal(size=len(speech)),
      speaker.noise_pole ** np.arange(_NOISE_TAPS),
      mode='same',
  )
  mixed = scale_rms(speech, 10 ** (level_db / 20))
  mixed = mixed + scale_rms(noise, 10 ** ((level_db - snr_db) / 20))
  mixed *= min(1.0, 0.95 / np.max(np.abs(mixed)))
  soundfile.write(
      path,
      np.rint(mixed * 32767).astype(np.int16),
      SAMPLE_RATE_HZ,
      format='FLAC',
      subtype='PCM_16',
  )


def _wait(process: multiprocessing.Process) -> None:
  """Waits for a task; raises RuntimeError naming it if it failed."""
  process.join()
  if process.exitcode:
    raise RuntimeError(
        f'{process.name} ended with {process.exitcode}; its own error is above.'
    )


def _read_existing(
    output_dir: str, *, parameters: Mapping[str, Any]
) -> Mapping[str, Any] | None:
  """The marker of the same corpus in `output_dir`; None to make it."""
  if not os.path.lexists(output_dir):
    return None
  if os.path.isdir(output_dir) and not os.listdir(output_dir):
    return None
  try:
    path = os.path.join(output_dir, MARKER_FILE)
    with open(path, encoding='utf-8') as f:
      content = json.load(f)
  except (OSError, json.JSONDecodeError) as e:
    raise ValueError(
        f'{output_dir} is not empty and holds no generated speech; choose'
        ' another folder.'
    ) from e
  for name, value in parameters.items():
    if content.get(name) != value:
      raise ValueError(
          f'{output_dir} holds generated speech with {name} ='
          f' {content.get(name)!r}, not {value!r}; choose another folder or'
          ' delete it.'
      )
  return content


def scale_rms(waveform: np.ndarray, value: float) -> np.ndarray:
  """Scales a waveform, not all zero, to a root mean square."""
  return waveform * (value / np.sqrt(np.mean(np.square(waveform))))


def generator(seed: int, *names: Any) -> np.random.Generator:
  """A generator that depends on the seed and the names only."""
  text = ':'.join(map(str, (seed, *names)))
  digest = hashlib.sha256(text.encode()).digest()
  return np.random.Generator(np.random.PCG64(int.from_bytes(digest, 'little')))


def main(argv: Sequence[str]) -> None:
  if len(argv) > 1:
    raise ValueError(f'Unknown argument {argv[1]!r}; see --help.')
  if not _OUTPUT_DIR.value:
    raise ValueError('--output_dir is needed; see --help.')
  checks.output_folders(output_dir=_OUTPUT_DIR.value)
  try:
    content = generate(
        _OUTPUT_DIR.value,
        num_speakers=_NUM_SPEAKERS.value,
        num_dev_speakers=_NUM_DEV_SPEAKERS.value,
        num_test_speakers=_NUM_TEST_SPEAKERS.value,
        seed=_SEED.value,
    )
  except RuntimeError as e:  # eSpeak's.
    print(f'error: {e}', file=sys.stderr)
    sys.exit(1)
  print(
      f'{_OUTPUT_DIR.value}: {content["num_speakers"]} speakers,'
      f' {content["num_utterances"]} utterances,'
      f' {content["seconds"] / 60:.1f} minutes of generated speech'
  )


if __name__ == '__main__':
  # Defined here because `conversion` has flags of the same names.
  _OUTPUT_DIR = flags.DEFINE_string(
      'output_dir', None, 'The corpus folder. Required.'
  )
  _NUM_SPEAKERS = flags.DEFINE_integer('num_speakers', 72, 'In all splits.')
  _NUM_DEV_SPEAKERS = flags.DEFINE_integer('num_dev_speakers', 8, 'In dev.')
  _NUM_TEST_SPEAKERS = flags.DEFINE_integer('num_test_speakers', 12, 'In test.')
  _SEED = flags.DEFINE_integer('seed', 1, 'Of everything.')
  launch.run(main, after_interrupt='nothing was written.')

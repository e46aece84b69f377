"""Generated voices: thousands of speakers, each with its own voice file.

A voice is drawn from continuous ranges: the frequencies, heights and widths of
eSpeak NG's nine formants, pitch and its range, rate, roughness, breath, voicing
and the loudness of consonants. The generator writes each as one of eSpeak's
variant files. So no two speakers share a voice, and those of dev and test have
settings that occur nowhere else.

eSpeak's state drifts from one utterance to the next. The library is therefore
loaded again for each speaker (2 to 3 ms), so that a speaker depends on the seed
alone, bit for bit on one machine, whatever the process synthesised before.

Loads no TensorFlow, so that processes that speak start fast.
"""

import dataclasses
import functools
import os
import pathlib
import tempfile
from typing import NamedTuple

import numpy as np
import soxr

from data_tools import synthetic_speech
from data_tools import synthetic_text
from tff_asr.features import log_mel

_ACCENTS = synthetic_speech.ACCENTS
_VARIANT = 'drawn'
# What English needs of eSpeak's data. eSpeak parses each language that it
# finds, of 141, whenever it is loaded.
_DATA = (
    'phondata', 'phonindex', 'phontab', 'intonations', 'en_dict',
    'lang/gmw/en-US', 'lang/gmw/en-US-nyc', 'lang/gmw/en-GB-x-rp',
)
_NUM_FORMANTS = 9
_ESPEAK_RATE_HZ = 22050
_NOISE_TAPS = 32  # A power of 2.
# Of the groups of speakers by rate, in words a minute.
_RATE_GROUP_WIDTH = 30


class Voices(NamedTuple):
  """Ranges that voices are drawn from.

  Attributes:
    rate: Words a minute.
    length: Of the vocal tract, which scales all formants alike, in percent.
    formants: Factor of each formant's frequency.
    heights: Of formants, in percent.
    widths: Of formants, in percent.
    roughness: eSpeak's levels.
    breathy: Share of voices with breath noise.
  """

  rate: tuple[int, int]
  length: tuple[float, float]
  formants: tuple[float, float]
  heights: tuple[float, float]
  widths: tuple[float, float]
  roughness: tuple[int, int]
  breathy: float


VOICES = {
    'varied': Voices(
        (190, 260), (88, 116), (0.95, 1.05), (60, 135), (70, 140), (0, 4), 0.3
    ),
    'clear': Voices(
        (150, 210), (90, 114), (0.97, 1.03), (85, 115), (85, 115), (0, 2), 0.0
    ),
}
"""By name: 'varied', far from each other; 'clear', slower and closer."""


@dataclasses.dataclass(frozen=True)
class Speaker:
  """One generated speaker.

  Attributes:
    speaker_id: Unlike those of all other speakers of the seed.
    seed: Seed of the corpus.
    accent: eSpeak's language.
    rate: Words a minute.
    variant: The text of eSpeak's variant file: what makes the voice.
    level_db: Loudness of the speech, dB of full scale.
    snr_db: Speech over background noise.
    noise_pole: In [0, 0.9]; 0 is white noise, higher is darker.
    sentences: What the speaker says.
  """

  speaker_id: str
  seed: int
  accent: str
  rate: int
  variant: str
  level_db: float
  snr_db: float
  noise_pole: float
  sentences: tuple[str, ...]


def draw(
    speaker_id: str,
    *,
    split: str,
    num_utterances: int,
    seed: int,
    voices: str = 'varied',
    word_share: float = 1.0,
) -> Speaker:
  """Draws a speaker; no sound is made.

  Args:
    speaker_id: Determines the speaker, together with the seed.
    split: Split to draw sentences from: 'train', 'dev' or 'test'.
    num_utterances: Sentences, all different.
    seed: Seed of the corpus, at least 0.
    voices: A name of `VOICES`.
    word_share: As for `synthetic_text.draw_sentences`.
  """
  ranges = VOICES[voices]
  rng = synthetic_speech.generator(seed, 'voice', speaker_id)
  return Speaker(
      speaker_id=speaker_id,
      seed=seed,
      accent=list(_ACCENTS)[rng.choice(3, p=list(_ACCENTS.values()))],
      rate=int(rng.integers(*ranges.rate, endpoint=True)),
      variant=_draw_variant(rng, ranges),
      level_db=float(rng.uniform(-30, -20)),
      snr_db=float(rng.uniform(20, 36)),
      noise_pole=float(rng.uniform(0, 0.9)),
      sentences=synthetic_text.draw_sentences(
          rng, split=split, count=num_utterances, word_share=word_share
      ),
  )


def rate_group(speaker: Speaker) -> str:
  """Returns the range of rates that a speaker's is in, in words."""
  low = speaker.rate // _RATE_GROUP_WIDTH * _RATE_GROUP_WIDTH
  return f'{low} to {low + _RATE_GROUP_WIDTH - 1} words a minute'


def speak(speaker: Speaker, number: int) -> np.ndarray:
  """One of a speaker's sentences, int16 [N] at 16 kHz."""
  return _speak_all(speaker)[number]


# A speaker's utterances are asked for one after another.
@functools.lru_cache(maxsize=1)
def _speak_all(speaker: Speaker) -> list[np.ndarray]:
  """All sentences of a speaker, each int16 [N] at 16 kHz."""
  spoken = _engine().speak_from_start(speaker)
  rng = synthetic_speech.generator(speaker.seed, 'noise', speaker.speaker_id)
  return [_record(each, speaker, rng) for each in spoken]


@functools.cache
def _engine() -> '_Engine':
  """This process's eSpeak."""
  return _Engine()


class _Engine:
  """eSpeak NG with its own folder of data, to write variants into."""

  def __init__(self):
    # Late: the package is an extra.
    import espeakng_loader  # pylint: disable=g-import-not-at-top

    self._folder = tempfile.TemporaryDirectory(prefix='voices')
    data_dir = os.path.join(self._folder.name, 'espeak-ng-data')
    variants = os.path.join(data_dir, 'voices', '!v')
    os.makedirs(variants)
    os.makedirs(os.path.join(data_dir, 'lang', 'gmw'))
    for name in _DATA:
      source = os.path.join(espeakng_loader.get_data_path(), name)
      # Links, because the data are large.
      os.symlink(source, os.path.join(data_dir, name))
    self._data_dir = data_dir
    self._variant = os.path.join(variants, _VARIANT)
    pathlib.Path(self._variant).touch()
    self._library = None

  def speak_from_start(self, speaker: Speaker) -> list[np.ndarray]:
    """A speaker's sentences, int16 at 22.05 kHz, from eSpeak's first state."""
    # A file that is emptied first is waited for: ext4 puts it on the disk.
    with open(self._variant, 'r+', encoding='ascii') as f:
      f.write(speaker.variant)
      f.truncate()
    if self._library is not None:
      self._library.close()
    self._library = synthetic_speech.Espeak(self._data_dir)
    voice = f'{speaker.accent}+{_VARIANT}'
    return [
        self._library.speak(text, voice=voice, rate=speaker.rate, pitch=50)
        for text in speaker.sentences
    ]


def _draw_variant(rng: np.random.Generator, ranges: Voices) -> str:
  """The text of a variant file."""
  length = rng.uniform(*ranges.length)
  # In Hz: from low male to high female voices.
  pitch = rng.uniform(70, 210)
  lines = [
      'language variant',
      f'name {_VARIANT}',
      f'pitch {pitch:.0f} {pitch + rng.uniform(15, 90):.0f}',
      f'roughness {rng.integers(*ranges.roughness, endpoint=True)}',
      f'voicing {rng.integers(70, 140)}',
      f'consonants {rng.integers(70, 140)} {rng.integers(70, 140)}',
      f'flutter {rng.integers(0, 5)}',
  ]
  frequencies = length * rng.uniform(*ranges.formants, _NUM_FORMANTS)
  heights = rng.uniform(*ranges.heights, _NUM_FORMANTS)
  widths = rng.uniform(*ranges.widths, _NUM_FORMANTS)
  lines.extend(
      f'formant {i} {frequency:.0f} {height:.0f} {width:.0f}'
      for i, (frequency, height, width) in enumerate(
          zip(frequencies, heights, widths)
      )
  )
  if rng.random() < ranges.breathy:
    breath = rng.integers(0, 4, 8)
    lines.append(f'breath {" ".join(map(str, breath))}')
  return '\n'.join(lines) + '\n'


def _record(
    speech: np.ndarray, speaker: Speaker, rng: np.random.Generator
) -> np.ndarray:
  """Speech at 22.05 kHz as recorded with pauses and noise, int16 [N]."""
  rate_hz = log_mel.SAMPLE_RATE_HZ
  # Sums of integers are exact in float64, so that they are the same in any
  # order, and all else is done sample by sample in float32: processors with
  # other vectors give the same bits.
  exact = speech.astype(np.float64)
  rms = np.sqrt(exact @ exact / len(exact))
  # Both this and 'LQ', which takes twice as long, differ from 'VHQ' by -30 dB.
  speech = soxr.resample(
      speech.astype(np.float32), _ESPEAK_RATE_HZ, rate_hz, quality='QQ'
  )
  before, after = rng.integers(rate_hz // 50, rate_hz // 8, 2)
  level = 10 ** ((speaker.level_db + rng.uniform(-2, 2)) / 20)
  snr_db = speaker.snr_db + rng.uniform(-3, 3)
  mixed = _noise(rng, before + len(speech) + after, pole=speaker.noise_pole)
  mixed *= np.float32(level * 10 ** (-snr_db / 20))
  mixed[before : before + len(speech)] += speech * np.float32(level / rms)
  # Leaves loud samples below full scale.
  peak = max(np.max(mixed), -np.min(mixed))
  mixed *= np.float32(32767 * min(1.0, 0.95 / peak))
  return np.rint(mixed).astype(np.int16)


def _noise(
    rng: np.random.Generator, size: int, *, pole: float
) -> np.ndarray:
  """Noise with one pole and a root mean square of about 1, float32 [size]."""
  # Evenly distributed samples sound like Gaussian ones and are drawn faster.
  integers = np.frombuffer(rng.bytes(2 * (size + _NOISE_TAPS - 1)), '<i2')
  noise = integers.astype(np.float32)
  # The taps pole^0, pole^1, ... are the product of (1 + (pole / z)^shift).
  shift = 1
  while shift < _NOISE_TAPS:
    noise = noise[shift:] + np.float32(pole**shift) * noise[:-shift]
    shift *= 2
  power = 2.0**32 / 12 * sum(pole ** (2 * tap) for tap in range(_NOISE_TAPS))
  noise *= np.float32(1 / np.sqrt(power))
  return noise

"""Generated population: shards of thousands of speakers, in a minute.

    python -m data_tools.synthetic_population --output_dir=data/population

Writes the folders public, private, dev and test. Each speaker has a different
voice (`synthetic_voices`) and says a few short sentences; no speaker is in two
folders, and no other split has the sentences of dev and test. Speech goes from
eSpeak NG's library into shards, without other files. An identical population is
kept.
"""

from tff_asr import launch  # First: quiets what others load.

launch.install_early_sigint(__name__)

from collections.abc import Mapping, Sequence
import functools
import math
import os

from absl import flags

from data_tools import parallel_encoding
from data_tools import shards
from data_tools import synthetic_speech
from data_tools import synthetic_voices
from data_tools import utterances
from tff_asr import checks
from tff_asr.data import split_summary

PARTS = ('public', 'private', 'dev', 'test')
_SPLITS = {'public': 'train', 'private': 'train', 'dev': 'dev', 'test': 'test'}
# Raised when the same seed gives other speech.
_GENERATOR_VERSION = 3


def generate(
    output_dir: str | os.PathLike[str],
    *,
    num_speakers: Mapping[str, int],
    num_utterances: Mapping[str, int],
    seed: int = 1,
    voices: str = 'varied',
    word_share: float = 1.0,
    num_workers: int | None = None,
) -> dict[str, split_summary.Summary]:
  """Writes the population, unless the same one is there.

  Args:
    output_dir: Gets a folder of shards a part.
    num_speakers: Number of speakers, by part.
    num_utterances: Number of utterances of each speaker, by part.
    seed: Seed of everything, at least 0. A speaker follows from its part, its
      number and the seed, however many there are.
    voices: A name of `synthetic_voices.VOICES`.
    word_share: Share of each list of words, in (0, 1].
    num_workers: Processes that speak; by default one a core.

  Returns:
    The summary of each part.

  Raises:
    ValueError: If an argument is out of range or `output_dir` holds something
      else.
  """
  checks.non_negative_int(seed=seed)
  if voices not in synthetic_voices.VOICES:
    raise ValueError(
        f'voices must be one of {", ".join(synthetic_voices.VOICES)}, found '
        f'{voices!r}.'
    )
  if not 0 < word_share <= 1:
    raise ValueError(f'word_share must be in (0, 1], found {word_share}.')
  for part in PARTS:
    checks.positive_int(**{
        f'num_speakers[{part}]': num_speakers[part],
        f'num_utterances[{part}]': num_utterances[part],
    })
  speakers = {
      part: [
          synthetic_voices.draw(
              f'{part}-{number:06d}',
              split=_SPLITS[part],
              num_utterances=num_utterances[part],
              seed=seed,
              voices=voices,
              word_share=word_share,
          )
          for number in range(num_speakers[part])
      ]
      for part in PARTS
  }
  return {
      part: shards.write_split(
          _list(speakers[part]),
          os.path.join(output_dir, part),
          attributes=_attributes(speakers[part]),
          origin={
              'corpus': 'generated population',
              'generator_version': _GENERATOR_VERSION,
              'espeakng_loader': synthetic_speech.espeak_version(),
              'part': part,
              'seed': seed,
              **({} if voices == 'varied' else {'voices': voices}),
              **({} if word_share == 1 else {'word_share': word_share}),
          },
          # No other speaker has these ids.
          namespace=f'generated population, seed {seed}',
          # Generated speech has no reason to be left out.
          strict=True,
          # Whole speakers: a part of one takes as long as all of it.
          task_size=num_utterances[part]
          * math.ceil(parallel_encoding.TASK_SIZE / num_utterances[part]),
          num_workers=num_workers,
      )
      for part in PARTS
  }


def _list(
    speakers: Sequence[synthetic_voices.Speaker],
) -> list[utterances.Utterance]:
  """The utterances of a part, which the encoding workers synthesise."""
  return [
      utterances.Utterance(
          speaker.speaker_id,
          f'{i:03d}',
          sentence,
          functools.partial(synthetic_voices.speak, speaker, i),
      )
      for speaker in speakers
      for i, sentence in enumerate(speaker.sentences)
  ]


def _attributes(
    speakers: Sequence[synthetic_voices.Speaker],
) -> utterances.Attributes:
  """The groups of speakers, by which error rates may differ."""
  of_each = lambda value: {
      speaker.speaker_id: frozenset([value(speaker)]) for speaker in speakers
  }
  return {
      'accent': of_each(lambda speaker: speaker.accent),
      'rate': of_each(synthetic_voices.rate_group),
  }


def main(_) -> None:
  if not _OUTPUT_DIR.value:
    raise ValueError('--output_dir is needed; see --help.')
  checks.output_folders(output_dir=_OUTPUT_DIR.value)
  found = generate(
      _OUTPUT_DIR.value,
      num_speakers={part: flag.value for part, flag in _NUM_SPEAKERS.items()},
      num_utterances={
          part: flag.value for part, flag in _NUM_UTTERANCES.items()
      },
      seed=_SEED.value,
      voices=_VOICES.value,
      word_share=_WORD_SHARE.value,
  )
  for part, summary in found.items():
    folder = os.path.join(_OUTPUT_DIR.value, part)
    print(
        f'{folder}: {summary["num_clients"]:,} speakers,'
        f' {summary["num_utterances"]:,} utterances,'
        f' {60 * summary["hours"]:.1f} minutes'
    )


if __name__ == '__main__':
  _OUTPUT_DIR = flags.DEFINE_string(
      'output_dir', None, 'Gets the four folders. Required.'
  )
  _SEED = flags.DEFINE_integer('seed', 1, 'Of everything.')
  _VOICES = flags.DEFINE_enum(
      'voices',
      'varied',
      list(synthetic_voices.VOICES),
      'clear: slower, and less different from each other.',
  )
  _WORD_SHARE = flags.DEFINE_float(
      'word_share', 1.0, 'Share of each list of words, frequent ones first.'
  )
  _DEFAULTS = {
      'public': (16, 40), 'private': (12_000, 2), 'dev': (32, 6),
      'test': (100, 10),
  }
  _NUM_SPEAKERS, _NUM_UTTERANCES = {}, {}
  for _PART, (_SPEAKERS, _UTTERANCES) in _DEFAULTS.items():
    _NUM_SPEAKERS[_PART] = flags.DEFINE_integer(
        f'num_{_PART}_speakers', _SPEAKERS, f'In {_PART}.'
    )
    _NUM_UTTERANCES[_PART] = flags.DEFINE_integer(
        f'num_{_PART}_utterances', _UTTERANCES, f'Of each speaker in {_PART}.'
    )
  launch.run(
      main, after_interrupt='the same command continues where it stopped.'
  )

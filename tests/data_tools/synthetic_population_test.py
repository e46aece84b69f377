import collections
import dataclasses
import functools
import hashlib
import pathlib
import tempfile
from unittest import mock

from absl.testing import absltest
import numpy as np

from data_tools import synthetic_population
from data_tools import synthetic_voices
from tff_asr.data import client_data
from tff_asr.data import speakers

_SPEAKERS = {'public': 2, 'private': 4, 'dev': 2, 'test': 2}
_UTTERANCES = {'public': 3, 'private': 2, 'dev': 2, 'test': 2}


def _draw(part: str, number: int, seed: int = 1) -> synthetic_voices.Speaker:
  return synthetic_voices.draw(
      f'{part}-{number:06d}', split='train', num_utterances=2, seed=seed
  )


class SyntheticPopulationTest(absltest.TestCase):

  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    cls.root = pathlib.Path(
        cls.enterClassContext(tempfile.TemporaryDirectory())
    )
    cls.generate('first')
    cls.addClassCleanup(cls.utterances.cache_clear)

  @classmethod
  def generate(cls, name, **changes):
    options = dict(
        num_speakers=_SPEAKERS, num_utterances=_UTTERANCES, num_workers=1
    )
    return synthetic_population.generate(
        cls.root / name, **(options | changes)
    )

  @classmethod
  @functools.lru_cache(maxsize=None)
  def utterances(cls, name, part):
    """Waveforms by speaker and sentence."""
    data = client_data.load(cls.root / name / part)
    return {
        (client_id, element['transcript'].numpy().decode()): (
            element['waveform'].numpy()
        )
        for client_id in data.client_ids
        for element in data.create_tf_dataset_for_client(client_id)
    }

  def test_more_speakers_on_other_cores_leave_the_others_as_they_are(self):
    # In this process: the speakers before one do not matter.
    more = dict(_SPEAKERS, private=5)
    self.generate('more', num_speakers=more, num_workers=0)
    shards = sorted(self.root.glob('first/*/shard-*'))
    self.assertLen(shards, 4)
    for path in shards:
      again = self.root / 'more' / path.relative_to(self.root / 'first')
      self.assertEqual(
          path.read_bytes() == again.read_bytes(),
          path.parent.name != 'private',
          path,
      )
    first = self.utterances('first', 'private')
    found = self.utterances('more', 'private')
    self.assertLen(first, 8)
    self.assertLen(found, 10)
    for key, waveform in first.items():
      np.testing.assert_array_equal(found[key], waveform)

  def test_speakers_are_grouped_by_accent_and_rate(self):
    corpus = client_data.load(self.root / 'first/private').corpus
    groups = speakers.read_attributes(corpus)
    self.assertLen(groups, 4)
    for number in range(4):
      speaker = _draw('private', number)
      self.assertEqual(
          groups[speaker.speaker_id],
          {
              'accent': speaker.accent,
              'rate': synthetic_voices.rate_group(speaker),
          },
      )
    for rate, expected in ((190, '180 to 209'), (210, '210 to 239')):
      changed = dataclasses.replace(speaker, rate=rate)
      self.assertEqual(
          synthetic_voices.rate_group(changed), f'{expected} words a minute'
      )

  def test_is_made_once_and_not_mixed_up(self):
    marker = self.root / 'first' / 'test' / 'corpus.json'
    before = marker.stat().st_mtime_ns
    self.generate('first')
    self.assertEqual(marker.stat().st_mtime_ns, before)
    with self.assertRaisesRegex(
        ValueError, 'holds another corpus, with other seed'
    ):
      self.generate('first', seed=2)

  def test_speech_over_noise_of_the_length_of_a_sentence(self):
    for part, number in _SPEAKERS.items():
      found = self.utterances('first', part)
      self.assertLen(found, number * _UTTERANCES[part])
      for waveform in found.values():
        self.assertBetween(len(waveform) / 16000, 0.5, 4.0)
        frames = waveform[: len(waveform) // 400 * 400].reshape(-1, 400)
        level = 10 * np.log10(np.mean(frames / 2.0**15 * frames, axis=1))
        self.assertGreater(level.max() - level.min(), 12)

  def test_no_two_parts_share_a_sentence_of_dev_or_test(self):
    said = {
        part: {text for _, text in self.utterances('first', part)}
        for part in _SPEAKERS
    }
    for part in ('dev', 'test'):
      for other in said.keys() - {part}:
        self.assertEmpty(said[part] & said[other])

  def test_voices_are_all_different(self):
    voices = collections.Counter(
        _draw(part, number).variant
        for part in ('private', 'test')
        for number in range(300)
    )
    self.assertLen(voices, 600)
    self.assertNotEqual(_draw('test', 1).variant, _draw('test', 1, 2).variant)
    # eSpeak applies the settings: the same sentence sounds different.
    speakers = [_draw('private', number) for number in range(2)]
    one, other = (
        synthetic_voices.Speaker(**dict(
            vars(speakers[0]), variant=speaker.variant
        ))
        for speaker in speakers
    )
    first = synthetic_voices.speak(one, 0)
    self.assertFalse(np.array_equal(first, synthetic_voices.speak(other, 0)))

  def test_clear_voices_are_slower_and_closer_to_each_other(self):
    def draw(voices):
      return [
          synthetic_voices.draw(
              f'private-{number:06d}', split='train', num_utterances=1, seed=1,
              voices=voices,
          )
          for number in range(100)
      ]

    def widths(speakers):
      """Widths of the first formant."""
      return [
          int(line.split()[4])
          for speaker in speakers
          for line in speaker.variant.splitlines()
          if line.startswith('formant 0 ')
      ]

    varied, clear = draw('varied'), draw('clear')
    self.assertLess(
        np.mean([speaker.rate for speaker in clear]),
        np.mean([speaker.rate for speaker in varied]) - 30,
    )
    self.assertLess(np.std(widths(clear)), 0.6 * np.std(widths(varied)))
    self.assertFalse([each for each in clear if 'breath' in each.variant])
    # The shards name what they are of.
    self.generate('clear', voices='clear')
    with self.assertRaisesRegex(ValueError, 'written before these changed'):
      self.generate('clear')

  def test_digest(self):
    # What seed 1 says does not change without _GENERATOR_VERSION.
    speak = functools.partial(synthetic_voices.speak, _draw('private', 7))
    digest = hashlib.sha256(speak(0).tobytes() + speak(1).tobytes())
    self.assertEqual(digest.hexdigest()[:16], '1bb14e054efe2ec4')

  def test_noise_is_filtered_by_powers_of_the_pole(self):
    for pole, density in ((0.0, 1.0), (0.5, 4 / 3), (0.9, 100 / 19)):
      white, noise = (
          synthetic_voices._noise(
              np.random.default_rng(3), 20_000, pole=each
          )
          for each in (0.0, pole)
      )
      self.assertEqual((noise.dtype, noise.shape), (np.float32, (20_000,)))
      # One seed draws the same white samples for each pole. The variance of
      # the filtered ones is the sum of pole^2n, which is 1 / (1 - pole^2).
      expected = np.convolve(white, pole ** np.arange(32), mode='valid')
      expected /= np.sqrt(density)
      np.testing.assert_allclose(noise[31:], expected, atol=0.005)
      self.assertBetween(np.std(noise), 0.96, 1.04)

  def test_workers_take_whole_speakers(self):
    with mock.patch.object(
        synthetic_population.shards, 'write_split'
    ) as write_split:
      self.generate('unwritten', num_utterances={
          'public': 3, 'private': 20, 'dev': 16, 'test': 1
      })
    sizes = [call.kwargs['task_size'] for call in write_split.call_args_list]
    self.assertEqual(sizes, [18, 20, 16, 16])

  def test_refuses(self):
    for changes, message in (
        (dict(seed=-1), 'seed'),
        (dict(num_speakers=dict(_SPEAKERS, dev=0)), r'num_speakers\[dev\]'),
        (dict(num_utterances=dict(_UTTERANCES, test=0)), r'\[test\]'),
        (dict(voices='loud'), "voices must be one of varied, clear, found 'lo"),
        (dict(word_share=0.0), r'word_share must be in \(0, 1\], found 0.0'),
    ):
      with self.assertRaisesRegex(ValueError, message):
        self.generate('refused', **changes)

"""Tests of generated speech: sentences, and the audio of eSpeak NG."""

import collections
import subprocess
import sys
import textwrap
import time
from unittest import mock

from absl.testing import absltest

from data_tools import synthetic_speech
from tests.bin import programs


def _sentences(split: str, *, speakers: int) -> list[tuple[str, ...]]:
  return [
      synthetic_speech.draw_sentences(
          synthetic_speech.generator(1, 'test', split, number),
          split=split,
          count=20,
      )
      for number in range(speakers)
  ]


class SentencesTest(absltest.TestCase):

  def test_splits_share_words_and_no_sentence(self):
    texts, words = collections.defaultdict(set), collections.Counter()
    for split, speakers in (('train', 60), ('dev', 8), ('test', 12)):
      for said in _sentences(split, speakers=speakers):
        self.assertLen(set(said), 20)
        texts[split].update(said)
        for sentence in said:
          self.assertBetween(len(sentence.split()), 3, 8)
          self.assertEqual(synthetic_speech.split_of(sentence), split)
          if split == 'train':
            words.update(sentence.split())
    self.assertEmpty(texts['dev'] & texts['test'])
    self.assertEmpty(texts['train'] & (texts['dev'] | texts['test']))
    self.assertGreaterEqual(len(words), 120)
    # Every word of the held-out sentences occurs in training.
    held_out = ' '.join(texts['dev'] | texts['test']).split()
    self.assertContainsSubset(held_out, words)

  def test_speakers_prefer_different_sentences(self):
    one, other = _sentences('train', speakers=2)
    self.assertLess(len(set(one) & set(other)), 10)


class EspeakTest(absltest.TestCase):

  def run_code(self, code: str) -> str:
    """What code prints, in a process that has not loaded TensorFlow."""
    code = (
        'import sys\nfrom data_tools import synthetic_speech as s\n'
        'assert "tensorflow" not in sys.modules\n' + textwrap.dedent(code)
    )
    done = subprocess.run(
        [sys.executable, '-c', code],
        cwd=programs.ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    self.assertEqual(done.returncode, 0, done.stderr)
    return done.stdout

  def test_says_what_to_install(self):
    with mock.patch.object(
        synthetic_speech.metadata,
        'version',
        side_effect=synthetic_speech.metadata.PackageNotFoundError,
    ), self.assertRaisesRegex(ValueError, 'requirements-speech-synthesis.txt'):
      synthetic_speech.espeak_version()

  def test_unknown_voices_and_silence_are_errors(self):
    espeak = synthetic_speech.Espeak()
    self.addCleanup(espeak.close)
    for text, voice, message in (
        ('hello', 'en-gb+m3', "has no voice 'en-gb[+]m3'"),
        (' ', 'en-us+m3', 'said nothing .status 0'),
    ):
      with self.assertRaisesRegex(RuntimeError, message):
        espeak.speak(text, voice=voice, rate=170, pitch=50)

  def test_variants_are_those_of_espeak(self):
    espeak = synthetic_speech.Espeak()
    self.addCleanup(espeak.close)
    for variant in synthetic_speech.VARIANTS:
      espeak.speak('two', voice=f'en-us+{variant}', rate=170, pitch=50)

  def test_breath_does_not_depend_on_the_clock(self):
    # Variant f2 has breath noise, m3 has none.
    code = """
        import hashlib
        for variant in ('f2', 'm3'):
          samples = s.Espeak().speak(
              'seven', voice='en-us+' + variant, rate=170, pitch=50)
          print(hashlib.sha256(samples.tobytes()).hexdigest())
    """
    first = self.run_code(code)
    time.sleep(1.1)
    self.assertEqual(first, self.run_code(code))
    self.assertLen(set(first.split()), 2)

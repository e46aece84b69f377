"""Tests of generated speech: the audio of eSpeak NG."""

import subprocess
import sys
import textwrap
import time
from unittest import mock

from absl.testing import absltest

from data_tools import synthetic_speech
from tests.bin import programs


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

import collections
import filecmp
import pathlib
import subprocess
import sys
import tempfile
import textwrap
import time
from unittest import mock

from absl.testing import absltest
from absl.testing import parameterized
import numpy as np
import soundfile

from data_tools import librispeech
from data_tools import synthetic_speech

_ROOT = pathlib.Path(__file__).parents[2]
_DEFAULT = dict(
    num_speakers=72, num_dev_speakers=8, num_test_speakers=12, seed=1
)


def _run(output_dir, *arguments: str) -> subprocess.CompletedProcess:
  """Runs the program: the test's own process may have loaded TensorFlow."""
  return subprocess.run(
      [
          sys.executable,
          '-m',
          'data_tools.synthetic_speech',
          f'--output_dir={output_dir}',
          '--num_speakers=5',
          '--num_dev_speakers=1',
          '--num_test_speakers=1',
          *arguments,
      ],
      cwd=_ROOT,
      capture_output=True,
      text=True,
      check=False,
  )


class SyntheticSpeechTest(parameterized.TestCase):

  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    cls.root = pathlib.Path(
        cls.enterClassContext(tempfile.TemporaryDirectory())
    )
    cls.corpus = cls.root / 'corpus'
    cls.done = _run(cls.corpus)

  def test_says_what_to_install(self):
    with mock.patch.object(
        synthetic_speech.metadata,
        'version',
        side_effect=synthetic_speech.metadata.PackageNotFoundError,
    ), self.assertRaisesRegex(ValueError, 'requirements-speech-synthesis.txt'):
      synthetic_speech.generate(str(self.root / 'without'))

  def test_is_in_librispeechs_layout(self):
    self.assertEqual((self.done.returncode, self.done.stderr), (0, ''))
    self.assertRegex(
        self.done.stdout, r'corpus: 5 speakers, \d+ utterances, .* minutes'
    )
    counts = collections.Counter()
    for split in synthetic_speech.SPLITS:
      listing = librispeech.list_utterances(self.corpus, split=split)
      counts[split] = len({u.client_id for u in listing.utterances})
      for utterance in listing.utterances:
        self.assertBetween(len(utterance.transcript.split()), 3, 8)
        info = soundfile.info(utterance.audio)
        self.assertEqual(
            (info.samplerate, info.channels, info.subtype),
            (16000, 1, 'PCM_16'),
        )
        self.assertBetween(info.duration, 0.7, 4.0)
        samples, _ = soundfile.read(utterance.audio)
        self.assertLess(np.abs(samples).max(), 0.96)
        frames = samples[: len(samples) // 400 * 400].reshape(-1, 400)
        level = 10 * np.log10(np.mean(frames**2, axis=1))
        # Speech over pauses; noise that no file is without.
        self.assertGreater(level.max() - level.min(), 12)
        self.assertGreater(level.min(), -80)
    self.assertEqual(counts, {'train': 3, 'dev': 1, 'test': 1})
    speakers = (self.corpus / synthetic_speech.SPEAKERS_FILE).read_text()
    self.assertLen(speakers.splitlines(), 6)

  def test_second_run_gives_the_same_bytes(self):
    self.assertEqual(_run(self.root / 'again').returncode, 0)
    files = [p for p in self.corpus.rglob('*') if p.is_file()]
    self.assertGreater(len(files), 60)
    for path in files:
      again = self.root / 'again' / path.relative_to(self.corpus)
      self.assertTrue(filecmp.cmp(path, again, shallow=False), path.name)

  def test_is_made_once_and_not_mixed_up(self):
    marker = self.corpus / synthetic_speech.MARKER_FILE
    before = marker.stat().st_mtime_ns
    self.assertEqual(_run(self.corpus).stdout, self.done.stdout)
    self.assertEqual(marker.stat().st_mtime_ns, before)
    other = _run(self.corpus, '--seed=2')
    self.assertEqual(other.returncode, 1)
    self.assertRegex(other.stderr, r'\Aerror: .*with seed = 1, not 2;.*\n\Z')
    mine = self.root / 'mine'
    mine.mkdir()
    (mine / 'note').write_text('mine')
    self.assertRegex(_run(mine).stderr, 'error: .* holds no generated speech')

  def test_default_corpus_keeps_its_promises(self):
    speakers = synthetic_speech.build_speakers(**_DEFAULT)
    self.assertLen({s.variant for s in speakers}, 72)
    self.assertLen({s.speaker_id for s in speakers}, 72)
    texts, words = collections.defaultdict(set), collections.Counter()
    for speaker in speakers:
      self.assertBetween(len(speaker.sentences), 14, 34)
      self.assertLen(set(speaker.sentences), len(speaker.sentences))
      texts[speaker.split].update(speaker.sentences)
      if speaker.split == 'train':
        for sentence in speaker.sentences:
          words.update(sentence.split())
    self.assertEmpty(texts['train'] & texts['test'])
    self.assertEmpty(texts['train'] & texts['dev'])
    self.assertEmpty(texts['dev'] & texts['test'])
    self.assertGreaterEqual(len(words), 120)
    # Every word of the held-out sentences is heard in training.
    held_out = ' '.join(texts['dev'] | texts['test']).split()
    self.assertContainsSubset(held_out, words)
    # More speakers than variants differ in accent; another seed in all.
    with mock.patch.object(synthetic_speech, 'draw_sentences'):
      more = synthetic_speech.build_speakers(
          **(_DEFAULT | dict(num_speakers=216))
      )
    self.assertLen({(s.variant, s.accent) for s in more}, 216)
    other = synthetic_speech.build_speakers(
        **(_DEFAULT | dict(seed=2, num_speakers=21))
    )
    said = {s.sentences for s in speakers}
    self.assertTrue(said.isdisjoint(s.sentences for s in other))

  @parameterized.parameters(
      (dict(num_speakers=20), 'num_speakers must be between 21'),
      (dict(num_speakers=217), 'between 21 .* and 216, found 217'),
      (dict(num_dev_speakers=-1), 'num_dev_speakers'),
      (dict(num_test_speakers=-1), 'num_test_speakers'),
      (dict(seed=-1), 'seed'),
  )
  def test_refuses(self, changes, message):
    with self.assertRaisesRegex(ValueError, message):
      synthetic_speech.build_speakers(**(_DEFAULT | changes))

  def test_does_not_load_tensorflow_and_refuses_to_fork_with_it(self):
    code = (
        'import sys; from data_tools import synthetic_speech as s;'
        ' assert "tensorflow" not in sys.modules;'
        ' sys.modules["tensorflow"] = None;'
        f' s.generate({str(self.root / "forked")!r})'
    )
    done = subprocess.run(
        [sys.executable, '-c', code],
        cwd=_ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    self.assertIn('RuntimeError: Generated speech is made by', done.stderr)
    self.assertFalse((self.root / 'forked').exists())


class EspeakTest(absltest.TestCase):

  def run_code(self, code: str) -> tuple[str, str]:
    """Output and errors of code in a process that has not loaded TensorFlow."""
    code = (
        'from data_tools import synthetic_speech as s\n' + textwrap.dedent(code)
    )
    done = subprocess.run(
        [sys.executable, '-c', code],
        cwd=_ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    self.assertEqual(done.returncode, 0, done.stderr)
    return done.stdout, done.stderr

  def test_failing_tasks_are_named_and_leave_no_process(self):
    printed, errors = self.run_code("""
        import os, time
        engine = s.Espeak()
        say = lambda text, voice: engine.speak(
            text, voice=voice, rate=170, pitch=50)
        for fail in (
            lambda: say('hello', 'en-gb+m3'), lambda: say(' ', 'en-us+m3')):
          tasks = [('a', fail), ('b', lambda: time.sleep(0.2))] * 3
          try:
            s.run_forked(tasks, num_workers=4)
          except RuntimeError as e:
            print(e)
          try:
            os.waitpid(-1, os.WNOHANG)
          except ChildProcessError:
            print('none left')
    """)
    self.assertEqual(
        printed, 'a ended with 1; its own error is above.\nnone left\n' * 2
    )
    self.assertIn("RuntimeError: eSpeak NG has no voice 'en-gb+m3'.", errors)
    self.assertIn('RuntimeError: eSpeak NG said nothing (status 0).', errors)

  def test_breath_does_not_depend_on_the_clock(self):
    # Variant f2 has breath noise, m3 has none.
    code = """
        import hashlib
        for variant in ('f2', 'm3'):
          samples = s.Espeak().speak(
              'seven', voice='en-us+' + variant, rate=170, pitch=50)
          print(hashlib.sha256(samples.tobytes()).hexdigest())
    """
    first, _ = self.run_code(code)
    time.sleep(1.1)
    self.assertEqual(first, self.run_code(code)[0])
    self.assertLen(set(first.split()), 2)

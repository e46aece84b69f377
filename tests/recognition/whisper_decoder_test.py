"""Tests of tff_asr.recognition.whisper_decoder.

All but the last class replace the library by a stand-in.
"""

import importlib.util
import os
import sys
from unittest import mock

from absl.testing import absltest
from absl.testing import parameterized
import numpy as np
import pytest

from data_tools import librispeech
from tests import cases
from tests.recognition import fake_whisper
from tff_asr.data import audio
from tff_asr.metrics import word_errors
from tff_asr.pretrained import sources
from tff_asr.recognition import recognizer
from tff_asr.recognition import whisper_decoder
from tools.pretrained_parity import random_folders

_SPEECH = os.environ.get('TFF_ASR_SPEECH')
_TINY_EN = 'whisper-tiny.en'
_INSTALLED = bool(
    importlib.util.find_spec('faster_whisper')
    and sources.package_folder(_TINY_EN)
)
_NUM_COMPARED = 12


class WhisperDecoderTest(cases.TestCase):

  def test_recognitions_have_what_the_library_finds(self):
    waveform = np.int16([-32768, 16384] * 16000)
    with fake_whisper.installed() as library:
      decode = whisper_decoder.load(fake_whisper.write(self.path('model')))
      found = list(decode([('a', waveform), ('b', waveform[:8000])]))
    word = recognizer.Word
    self.assertEqual(
        found[0],
        recognizer.Recognition(
            'a', 2.0, '2 Seconds.',
            [word('2', 0.0, 0.5, 0.25), word('Seconds.', 0.5, 1.0, 0.25)],
            [], 'en',
        ),
    )
    self.assertEqual((found[1].name, found[1].text), ('b', '0.5 Seconds.'))
    heard, language, word_timestamps = library.heard[0]
    # The library takes samples in [-1, 1].
    self.assertEqual(heard.dtype, np.float32)
    np.testing.assert_array_equal(heard[:2], [-1.0, 0.5])
    self.assertEqual((language, word_timestamps), (None, True))

  def test_waveforms_are_read_one_at_a_time(self):
    read = []

    def waveforms():
      for name in 'ab':
        read.append(name)
        yield name, np.int16([0] * 16000)

    with fake_whisper.installed():
      decode = whisper_decoder.load(fake_whisper.write(self.path('model')))
      next(decode(waveforms()))
    self.assertEqual(read, ['a'])

  def test_a_language_is_passed_on(self):
    with fake_whisper.installed():
      folder = fake_whisper.write(self.path('model'))
      decode = whisper_decoder.load(folder, language='de')
      (found,) = decode([('a', np.int16([0]))])
      self.assertEqual(found.language, 'de')
      with self.assertRaisesRegex(
          ValueError, "model knows en, de, not .xx."
      ):
        whisper_decoder.load(folder, language='xx')

  @parameterized.parameters(
      ('--lm', dict(language_model=object())),
      ('--hotword', dict(hotwords=['x'])),
      ('--num_best', dict(num_best=2)),
      ('--window_sec', dict(window_sec=10.0)),
      ('--lm, --num_best', dict(language_model=object(), num_best=3)),
  )
  def test_options_of_ctc_models_are_refused(self, flags, options):
    with fake_whisper.installed():
      with self.assertRaisesRegex(
          ValueError, f'^{flags} needs a model of CTC, .* is a Whisper model'
      ) as caught:
        whisper_decoder.load(fake_whisper.write(self.path('model')), **options)
    self.assertNotIn('\n', str(caught.exception))

  def test_without_the_packages_it_says_what_to_install(self):
    folder = fake_whisper.write(self.path('model'))
    for name in ('faster_whisper', 'ctranslate2'):
      with fake_whisper.installed(), mock.patch.dict(sys.modules, {name: None}):
        with self.assertRaisesRegex(
            ValueError,
            rf'needs a package .*{name}.*: `pip install --no-deps -r '
            'requirements-whisper-decoder.txt`',
        ):
          whisper_decoder.load(folder)

  def test_a_missing_file_is_named(self):
    folder = fake_whisper.write(self.path('model'))
    os.remove(os.path.join(folder, 'tokenizer.json'))
    with fake_whisper.installed():
      with self.assertRaisesRegex(ValueError, 'has no tokenizer.json: fetch'):
        whisper_decoder.load(folder)

  def test_other_models_are_those_of_ctc(self):
    os.makedirs(self.path('model'))
    with mock.patch.object(recognizer, 'load_pretrained') as load:
      found = whisper_decoder.load(self.path('model'), num_best=2)
      self.assertIs(found, load.return_value)
      load.assert_called_once_with(self.path('model'), num_best=2)
      with self.assertRaisesRegex(ValueError, '^--language is for Whisper mod'):
        whisper_decoder.load(self.path('model'), language='de')
    random_folders.write(self.path('whisper'), random_folders.TINY['whisper'])
    with self.assertRaisesRegex(
        ValueError, "whisper has no CTC head .* in CTranslate2's format"
    ):
      whisper_decoder.load(self.path('whisper'))

  def test_a_damaged_model_is_an_error_of_the_user(self):
    folder = fake_whisper.write(self.path('model'), model=b'damaged')
    with fake_whisper.installed():
      with self.assertRaisesRegex(ValueError, 'no Whisper model that can be'):
        whisper_decoder.load(folder)


@pytest.mark.slow
@pytest.mark.skipif(
    not (_INSTALLED and _SPEECH),
    reason='needs TFF_ASR_SPEECH and the packages of '
    'requirements-whisper-tiny.txt and requirements-whisper-decoder.txt',
)
class OnSpeechTest(absltest.TestCase):

  def test_errors_are_those_of_the_library_called_directly(self):
    import faster_whisper  # pylint: disable=g-import-not-at-top

    listing = librispeech.list_utterances(
        os.path.join(_SPEECH, 'LibriSpeech'), split='dev-clean'
    )
    step = len(listing.utterances) // _NUM_COMPARED
    chosen = listing.utterances[::step][:_NUM_COMPARED]
    theirs = faster_whisper.WhisperModel(
        sources.find(_TINY_EN), device='cpu'
    )
    decode = whisper_decoder.load(_TINY_EN)
    ours = decode((each.audio, audio.read(each.audio)) for each in chosen)
    totals = [word_errors.WordErrors(), word_errors.WordErrors()]
    for utterance, found in zip(chosen, ours, strict=True):
      # Times of words also decide where the next window begins.
      segments, _ = theirs.transcribe(utterance.audio, word_timestamps=True)
      texts = found.text, ''.join(each.text for each in segments)
      for number, text in enumerate(texts):
        totals[number] += word_errors.count(
            utterance.transcript.lower(), text.lower()
        )
      spoken = found.words
      self.assertEqual(' '.join(each.text for each in spoken), found.text)
      self.assertLessEqual(spoken[-1].end_sec, found.seconds + 0.1)
    self.assertGreater(totals[0].words, 100)
    self.assertLess(totals[0].rate, 0.5)
    self.assertLess(abs(totals[0].rate - totals[1].rate), 0.003)


if __name__ == '__main__':
  absltest.main()

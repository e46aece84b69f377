"""The corpora on real speech, with the counts of its README."""

import functools
import os
import pathlib
import tempfile
import unittest

from absl.testing import parameterized
import numpy as np
import pytest
import soundfile

from data_tools import an4
from data_tools import common_voice
from data_tools import conversion
from data_tools import libri_light
from data_tools import librispeech
from tff_asr.data import client_data
from tff_asr.data import speakers
from tff_asr.text import tokenizer

_SPEECH = pathlib.Path(os.environ.get('TFF_ASR_SPEECH', ''))
_CORPORA = {
    'an4': (an4.CORPUS, 'an4', 'train'),
    'librispeech': (librispeech.CORPUS, 'LibriSpeech', 'dev-clean'),
    # Four speakers of it.
    'four': (librispeech.CORPUS, 'LibriSpeech', 'dev-clean'),
    'untranscribed': (libri_light.corpus(30.0), '', 'untranscribed'),
    'en': (common_voice.corpus('en'), 'common_voice/en', 'validated'),
    'fr': (common_voice.corpus('fr'), 'common_voice/fr', 'validated'),
    'de': (common_voice.corpus('de'), 'common_voice/de', 'validated'),
}


def setUpModule():  # pylint: disable=invalid-name
  if not os.environ.get('TFF_ASR_SPEECH'):
    raise unittest.SkipTest(
        'TFF_ASR_SPEECH is not set: no real speech to read.'
    )


def tearDownModule():  # pylint: disable=invalid-name
  _convert.cache_clear()
  if _folder.cache_info().currsize:
    _folder().cleanup()


@functools.lru_cache
def _folder() -> tempfile.TemporaryDirectory:
  return tempfile.TemporaryDirectory()


@functools.lru_cache
def _convert(name: str) -> client_data.SpeechClientData:
  """Converts a corpus as FLAC; strict, so anything left out is an error."""
  corpus, source, split = _CORPORA[name]
  output = os.path.join(_folder().name, name)
  conversion.convert(
      corpus,
      source_dir=_four_speakers() if name == 'four' else _SPEECH / source,
      output_dir=output,
      splits=[split],
      encoding='flac',
      strict=True,
      # Processes take a second each to start.
      num_workers=None if name in ('four', 'librispeech') else 0,
  )
  return client_data.load(os.path.join(output, split))


def _four_speakers() -> pathlib.Path:
  """LibriSpeech with four speakers of dev-clean: all take 15 s."""
  source, copy = _SPEECH / 'LibriSpeech', pathlib.Path(_folder().name, 'source')
  (copy / 'dev-clean').mkdir(parents=True)
  (copy / 'SPEAKERS.TXT').symlink_to(source / 'SPEAKERS.TXT')
  for speaker in ('84', '174', '251', '422'):
    (copy / 'dev-clean' / speaker).symlink_to(source / 'dev-clean' / speaker)
  return copy


class RealSpeechTest(parameterized.TestCase):

  # As the README of the speech counts them: utterances, speakers, hours. Those
  # of four speakers as `find` and libsndfile do.
  @parameterized.named_parameters(
      ('an4', ['an4'], 948, 74, 0.70),
      ('four', ['four'], 235, 4, 0.54),
      ('common_voice', ['en', 'fr', 'de'], 300, 255, 0.40),
      ('untranscribed', ['untranscribed'], 126, 126, 0.43),
  )
  def test_counts(self, names, num_utterances, num_speakers, hours):
    self.check_counts(names, num_utterances, num_speakers, hours)

  @pytest.mark.slow
  def test_counts_librispeech(self):
    self.check_counts(['librispeech'], 1313, 20, 2.70)

  def test_all_of_librispeech_is_listed(self):
    listing = librispeech.list_utterances(
        str(_SPEECH / 'LibriSpeech'), split='dev-clean'
    )
    self.assertEqual(listing.problems, [])
    self.assertLen(listing.utterances, 1313)
    self.assertLen({each.client_id for each in listing.utterances}, 20)

  def check_counts(self, names, num_utterances, num_speakers, hours):
    corpora = [_convert(name).corpus for name in names]
    self.assertEqual(sum(c.num_utterances for c in corpora), num_utterances)
    self.assertEqual(sum(c.num_clients for c in corpora), num_speakers)
    found = sum(c.num_samples for c in corpora) / 16000 / 3600
    self.assertAlmostEqual(found, hours, delta=0.01)
    for corpus in corpora:
      self.assertEqual(corpus.origin['dropped'], {})

  # Counted in SPEAKERS.TXT and validated.tsv with awk; each speaker's rows agree.
  @parameterized.named_parameters(
      ('an4', 'an4', {}),
      ('four', 'four', {'gender': (4, 'female', 1)}),
      ('en', 'en', {
          'gender': (63, 'female', 18),
          'age': (62, 'twenties', 24),
          'accent': (49, 'us', 34),
      }),
  )
  def test_attributes_of_speakers_are_stored(self, name, expected):
    corpus = _convert(name).corpus
    known = list(speakers.read_attributes(corpus).values())
    self.assertEqual(
        corpus.origin.get('attributes', {}),
        {
            attribute: {'known': count, 'contradictory': 0}
            for attribute, (count, _, _) in expected.items()
        },
    )
    for attribute, (count, value, num_speakers) in expected.items():
      values = [each[attribute] for each in known if attribute in each]
      self.assertLen(values, count)
      self.assertEqual(values.count(value), num_speakers)

  @parameterized.named_parameters(
      ('sphere', 'an4', 'an4/wav/an4_clstk/{client}/{name}.sph'),
      ('flac', 'untranscribed', 'untranscribed/{name}.flac'),
  )
  def test_audio_comes_back_bit_for_bit(self, corpus, pattern):
    data = _convert(corpus)
    for client_id in data.client_ids[:5]:
      for element in data.create_tf_dataset_for_client(client_id):
        name = element['utterance_id'].numpy().decode().removesuffix('-0000')
        path = _SPEECH / pattern.format(client=client_id, name=name)
        expected, _ = soundfile.read(path, dtype='int16')
        np.testing.assert_array_equal(element['waveform'], expected)

  def test_transcripts_are_in_the_published_letters(self):
    for name in ('en', 'fr', 'de'):
      found = _convert(name).corpus.characters
      self.assertContainsSubset(found, tokenizer.for_language(name).characters)
    self.assertContainsSubset('àçéèêîô', _convert('fr').corpus.characters)
    self.assertContainsSubset('äöüß', _convert('de').corpus.characters)

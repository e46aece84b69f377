"""Tests of the grammar of generated speech."""

import collections
import functools
import re

from absl.testing import absltest
from absl.testing import parameterized
import numpy as np

from data_tools import synthetic_text
from data_tools import synthetic_voices

# Speakers, utterances of each, and their split, as in data_tools/
# synthetic_population.py, but for fewer private speakers.
_PARTS = {
    'public': (16, 40, 'train'),
    'private': (2000, 2, 'train'),
    'dev': (32, 6, 'dev'),
    'test': (100, 10, 'test'),
}
# Public speakers of bin/quickstart, who use half of the words.
_QUICKSTART_PUBLIC = (64, 20)


@functools.cache
def _sentences(part: str, word_share: float = 1.0) -> tuple[str, ...]:
  """The sentences of a part of the generated population of seed 1."""
  num_speakers, num_utterances, split = _PARTS[part]
  if word_share < 1 and part == 'public':
    num_speakers, num_utterances = _QUICKSTART_PUBLIC
  return tuple(
      sentence
      for number in range(num_speakers)
      for sentence in synthetic_voices.draw(
          f'{part}-{number:06d}',
          split=split,
          num_utterances=num_utterances,
          seed=1,
          word_share=word_share,
      ).sentences
  )


def _words(part: str, word_share: float = 1.0) -> list[str]:
  return ' '.join(_sentences(part, word_share)).split()


class SentencesTest(parameterized.TestCase):

  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    cls.addClassCleanup(_sentences.cache_clear)

  def test_dev_and_test_share_no_sentence_with_another_part(self):
    for part in ('dev', 'test'):
      for sentence in _sentences(part):
        self.assertEqual(synthetic_text.split_of(sentence), part)
      for other in _PARTS.keys() - {part}:
        self.assertEmpty(set(_sentences(part)) & set(_sentences(other)))

  def test_a_tenth_of_the_test_words_is_in_no_public_sentence(self):
    # docs/data.md states the share.
    test = np.array(_words('test'))
    unseen = ~np.isin(test, _words('public'))
    self.assertAlmostEqual(np.mean(unseen), 0.116, places=3)
    unseen = ~np.isin(test, _words('private'))
    self.assertLess(np.mean(unseen), 0.02)

  def test_half_of_the_words_are_the_frequent_ones(self):
    # docs/data.md states both numbers.
    test = np.array(_words('test', 0.5))
    unseen = ~np.isin(test, _words('public', 0.5))
    self.assertAlmostEqual(np.mean(unseen), 0.023, places=3)
    few, many = (
        collections.Counter(_words('private', share)) for share in (0.5, 1.0)
    )
    self.assertBetween(len(few), 1000, 1150)
    self.assertLess(len(few), 0.65 * len(many))

  def test_words_are_many_and_their_frequencies_follow_zipfs_law(self):
    counts = collections.Counter(_words('private'))
    self.assertGreater(len(counts), 1500)
    ranks = np.arange(1, 1001)
    frequencies = [count for _, count in counts.most_common(1000)]
    slope, _ = np.polyfit(np.log(ranks), np.log(frequencies), 1)
    # 0 if all words were equally frequent.
    self.assertBetween(slope, -1.25, -0.85)

  def test_sentences_are_words_of_letters_and_few_are_the_same(self):
    sentences = _sentences('private')
    for sentence in sentences:
      self.assertRegex(sentence, r"^[a-z']+( [a-z']+){3,}$")
      self.assertLessEqual(len(sentence.split()), 16)
    self.assertGreater(len(set(sentences)), 0.95 * len(sentences))

  def test_speakers_prefer_different_words(self):
    one, other = (
        collections.Counter(' '.join(said).split())
        for said in (_sentences('public')[:40], _sentences('public')[40:80])
    )
    common = {word for word, _ in one.most_common(25)}
    self.assertLess(len(common & set(dict(other.most_common(25)))), 20)

  def test_verbs_and_possessives_agree_with_their_subject(self):
    text = '\n'.join(_sentences('private') + _sentences('public'))
    found = collections.Counter()
    for subject, verbs in (
        ('i', "am was don't have do"),
        ('(?:we|you|they)', "are were don't have do"),
        ('(?:he|she)', "is was doesn't has does"),
    ):
      pattern = (
          rf"(?m)^{subject} (am|is|are|was|were|don't|doesn't|has|have|do|does)"
          r'\b'
      )
      for verb in re.findall(pattern, text):
        found[subject] += 1
        self.assertIn(verb, verbs.split(), subject)
    self.assertGreater(min(found.values()), 20)
    # Neither other persons' possessives nor bare verbs of the third person.
    self.assertNotRegex(text, r'(?m)^she [a-z]+ed his |^he [a-z]+ed her ')
    self.assertNotRegex(text, r"(?m)^(he|she) (want|need|like|wear|write) ")
    self.assertNotRegex(text, r'(?m)^(i|we|you|they) (wants|needs|likes) ')
    self.assertNotRegex(text, r'\ba [aeio]')
    self.assertNotRegex(text, r'\ban [^aeiouh]')


class FormsTest(parameterized.TestCase):

  @parameterized.parameters(
      ('verb', 'cook', 'cook cooks cooked cooking'),
      ('verb', 'like', 'like likes liked liking'),
      ('verb', 'carry', 'carry carries carried carrying'),
      ('verb', 'play', 'play plays played playing'),
      ('verb', 'wash', 'wash washes washed washing'),
      ('verb', 'go/went', 'go goes went going'),
      ('verb', 'drop/dropped/dropping', 'drop drops dropped dropping'),
      ('noun', 'box', 'box boxes'),
      ('noun', 'city', 'city cities'),
      ('noun', 'radio', 'radio radios'),
      ('noun', 'child/children', 'child children'),
  )
  def test_forms(self, kind, entry, expected):
    forms = synthetic_text._forms(kind, entry)
    self.assertEqual(' '.join(forms.values()), expected)

  @parameterized.parameters(
      ('a apple', 'an apple'), ('a big apple', 'a big apple'),
      ('a hour ago', 'an hour ago'), ('a uniform', 'a uniform'),
      ('a umbrella', 'an umbrella'), ('in a', 'in a'),
  )
  def test_articles(self, text, expected):
    self.assertEqual(synthetic_text._with_articles(text), expected)

  def test_every_slot_of_every_option_can_be_filled(self):
    # A rare one would otherwise fail for one speaker in thousands.
    grammar = synthetic_text._grammar(1.0)
    for name, section in grammar.items():
      self.assertNotEmpty(section.options, name)
      for option in section.options:
        for text in option.forms.values():
          for slot, form in synthetic_text._SLOT.findall(text):
            if slot not in synthetic_text._AGREEING:
              form = 's' if form == 'v' else form
              for each in grammar[slot].options:
                self.assertIn(form, each.forms, (name, text))
          self.assertNotRegex(synthetic_text._SLOT.sub('', text), '[{}|]')


if __name__ == '__main__':
  absltest.main()

"""Tests of tff_asr.reports.speakers and of the tables made of them."""

from absl.testing import absltest
import numpy as np

from tff_asr.metrics import gains
from tff_asr.metrics import word_errors
from tff_asr.reports import runs
from tff_asr.reports import speakers
from tff_asr.reports import tables


def _run(errors, attributes=None, *, name='run') -> runs.Run:
  """A run with each speaker's wrong words, words, and attributes."""
  return runs.Run(
      name=name, path=name, configuration='', settings={}, metrics={},
      evaluation={} if attributes is None else {'attributes': attributes},
      scores={
          runs.WER: {
              each: word_errors.WordErrors(substitutions=wrong, words=words)
              for each, (wrong, words) in errors.items()
          }
      },
  )


def _ones(values: dict[str, int], attribute: str, **options) -> runs.Run:
  """`values` maps each value to its number of speakers; WER is one half."""
  names = [f'{v}{i}' for v, count in values.items() for i in range(count)]
  return _run(
      {name: (1, 2) for name in names},
      {name: {attribute: name.rstrip('0123456789')} for name in names},
      **options,
  )


def _personalized(name='run', number=None) -> runs.Run:
  """A run that four people adapted; the last one had one utterance only."""
  people = {
      # Words, errors before and after, utterances adapted on.
      'a': (10, [5, 4, 2], [0, 1, 3]),
      'b': (20, [4, 4, 5], [0, 1, 2]),
      'c': (10, [1, 1, 1], [0, 1, 2]),
      'd': (40, [9, 9, 9], [0, 0, 0]),
  }
  return runs.Run(
      name=name, path=name, configuration='', settings={}, metrics={},
      personalization={
          'trained': ['.*'],
          'gains': [
              {
                  'num_utterances': 1,
                  **gains.summarize(
                      [5, 4, 1], [4, 4, 1], words=[10, 20, 10]
                  )._asdict(),
                  'difference': {'estimate': -0.025, 'low': -0.1, 'high': 0.0},
              },
              {'num_utterances': number},
          ],
          'people': {
              name: dict(words=words, errors=errors, num_adapted=adapted)
              for name, (words, errors, adapted) in people.items()
          },
          'attributes': {
              'a': {'accent': 'us'}, 'b': {'accent': 'us'},
              'c': {'accent': 'uk'}, 'd': {'accent': 'uk'},
          },
          'private': {},
      },
  )


class PersonalizationTest(absltest.TestCase):

  def test_people_without_as_many_utterances_are_left_out(self):
    for number, expected in ((None, 'abc'), (3, 'a'), (4, '')):
      found = speakers.fully_adapted_people(_personalized(number=number))
      self.assertEqual([*found], [*expected])
    self.assertEqual(speakers.fully_adapted_people(_run({})), {})

  def test_groups_by_hand(self):
    found = speakers.gains_by_group(_personalized())
    self.assertEqual([*found], [('accent', 'us'), ('accent', 'uk')])
    # 9 of 30 words before, 7 after.
    self.assertAlmostEqual(found['accent', 'us'].rate_before, 0.3)
    self.assertAlmostEqual(found['accent', 'us'].rate_after, 7 / 30)
    table = tables.gains_by_group([_run({}, name='none'), _personalized()])
    self.assertEqual(table[0][1:], ['none', 'run'])
    self.assertRegex(table[1][2], r'^30.0 to 23.3 \(-6.7 .*; 2\)$')

  def test_table_of_gains(self):
    titles, *lines = tables.personal_gains([_run({}), _personalized()])
    # No person adapted on the last number.
    self.assertLen(lines, 1)
    row = dict(zip(titles[:5], lines[0]))
    self.assertEqual(
        row,
        {
            'personalisation, %': 'run', 'utterances': '1', 'people': '3',
            'WER before': '25.0', 'after': '22.5',
        },
    )
    self.assertLen(lines[0], len(titles))
    # Of 50, 20 and 10 %; one of three is better, none is worse.
    self.assertEqual(lines[0][6], '20.0')
    self.assertEqual(lines[0][8:], ['50.0', '40.0', '33.3', '0.0', '', ''])


class SpreadTest(absltest.TestCase):

  def test_speakers_are_sorted_and_those_without_words_left_out(self):
    found = speakers.sorted_by_wer(
        _run({'a': (5, 10), 'b': (1, 10), 'c': (3, 0)})
    )
    self.assertEqual([each.rate for each in found], [0.1, 0.5])

  def test_worst_tenth_by_hand(self):
    # Two of twenty: 9 of 10 and 20 of 40 words wrong, so 29 of 50.
    many = {str(i): (1, 100) for i in range(18)} | {'x': (9, 10), 'y': (20, 40)}
    self.assertEqual(
        tables.speaker_spread([_run({}), _run(many)])[1:],
        [['run', '20', '1.0', '1.0', '58.0', '90.0']],
    )
    # One speaker at least.
    found = speakers.sorted_by_wer(_run({'a': (1, 4), 'b': (3, 4)}))
    self.assertEqual(speakers.worst_tenth(found), 0.75)


class ByAttributeTest(absltest.TestCase):

  def test_rates_by_hand(self):
    # Who has no words, e, is of no group. Accents have one group: left out.
    groups = speakers.by_attribute(_run(
        {'a': (1, 10), 'b': (5, 10), 'c': (2, 40), 'd': (3, 4), 'e': (9, 0)},
        {
            'a': {'gender': 'female', 'accent': 'us'},
            'b': {'gender': 'female', 'accent': 'us'},
            'c': {'gender': 'male'},
            'e': {'gender': 'other'},
        },
    ))
    # 6 of 20 words; either speaker may be drawn twice: 1 or 5 of 10. A group
    # of one speaker has no interval.
    self.assertEqual(list(groups), [
        ('gender', value) for value in ('female', 'male', speakers.NOT_KNOWN)
    ])
    female, male, unknown = groups.values()
    self.assertAlmostEqual(female.rate, 0.3)
    np.testing.assert_allclose(female.interval, [0.1, 0.5])
    self.assertEqual(female.num_speakers, 2)
    self.assertEqual(male, (0.05, None, 1))
    self.assertEqual(unknown, (0.75, None, 1))

  def test_attributes_with_one_group_are_left_out(self):
    for attributes in (
        None, {}, {'a': {'x': 'y'}}, {name: {'x': 'y'} for name in 'ab'}
    ):
      run = _run({'a': (1, 10), 'b': (5, 10)}, attributes)
      self.assertEqual(speakers.by_attribute(run), {})

  def test_groups_are_sorted_by_size_and_small_ones_are_merged(self):
    counts = {chr(ord('a') + i): 1 + i % 3 for i in range(14)}
    groups = speakers.by_attribute(_ones(counts, 'x'))
    # Of three speakers c, f, i, l; of two b, e, h, k, n; of one a, d, g, j, m.
    self.assertEqual(
        [value for _, value in groups], [*'cfilbehknadg', '2 smaller groups']
    )
    self.assertEqual(groups['x', '2 smaller groups'].num_speakers, 2)

  def test_table_of_runs_that_were_evaluated_on_other_speakers(self):
    table = tables.speaker_groups([
        _run({}, name='none'),
        _ones({'us': 2, 'uk': 1}, 'accent', name='a'),
        _ones({'us': 5, 'nz': 3}, 'accent', name='b'),
    ])
    self.assertEqual(table, [
        ['WER by group, % (95 %; speakers)', 'none', 'a', 'b'],
        ['accent: us', '', '50.0 (50.0 to 50.0; 2)', '50.0 (50.0 to 50.0; 5)'],
        ['accent: uk', '', '50.0 (1)', ''],
        ['accent: nz', '', '', '50.0 (50.0 to 50.0; 3)'],
    ])

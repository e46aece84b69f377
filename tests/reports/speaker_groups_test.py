"""Tests of tff_asr.reports.speaker_groups."""

from absl.testing import absltest
import numpy as np

from tff_asr.reports import run_record
from tff_asr.reports import speaker_groups


def _evaluation(speakers, attributes) -> dict:
  """Of each speaker wrong words and words; and what is known."""
  return {
      'speakers': {
          name: {
              'substitutions': wrong, 'deletions': 0, 'insertions': 0,
              'words': words,
          }
          for name, (wrong, words) in speakers.items()
      },
      'attributes': attributes,
  }


_FIVE = _evaluation(
    {'a': (1, 10), 'b': (5, 10), 'c': (2, 40), 'd': (3, 4), 'e': (9, 0)},
    {
        'a': {'gender': 'female', 'accent': 'us'},
        'b': {'gender': 'female', 'accent': 'us'},
        'c': {'gender': 'male'},
        'e': {'gender': 'other'},
    },
)


def _ones(values: dict[str, int], attribute: str) -> dict:
  """So many speakers of each value, one of two words wrong."""
  names = [f'{v}{i}' for v, count in values.items() for i in range(count)]
  return _evaluation(
      {name: (1, 2) for name in names},
      {name: {attribute: name.rstrip('0123456789')} for name in names},
  )


class ByAttributeTest(absltest.TestCase):

  def test_rates_by_hand(self):
    # Who has no words, e, is of no group. Accents have one group: left out.
    groups = speaker_groups.by_attribute(_FIVE)
    self.assertEqual(list(groups), ['gender'])
    female, male, unknown = groups['gender'].values()
    self.assertEqual(
        list(groups['gender']), ['female', 'male', speaker_groups.NOT_KNOWN]
    )
    # 6 of 20 words; either speaker may be drawn twice: 1 or 5 of 10.
    self.assertAlmostEqual(female.rate, 0.3)
    np.testing.assert_allclose(female.interval, [0.1, 0.5])
    self.assertEqual(female.num_speakers, 2)
    # One speaker: 2 of 40 words, and nobody to compare with.
    self.assertEqual(male, (0.05, None, 1))
    self.assertEqual(unknown, (0.75, None, 1))

  def test_the_interval_is_that_of_the_normal_limit(self):
    random = np.random.default_rng(0)
    wrong = {f's{i}': (int(n), 20) for i, n in
             enumerate(random.integers(0, 21, size=400))}
    evaluation = _evaluation(
        wrong | {'x': (1, 2)},
        {s: {'age': 'teens'} for s in wrong} | {'x': {'age': 'fifties'}},
    )
    group = speaker_groups.by_attribute(evaluation)['age']['teens']
    rates = np.array([n / 20 for n, _ in wrong.values()])
    half = 1.96 * rates.std() / np.sqrt(400)
    np.testing.assert_allclose(
        group.interval, [rates.mean() - half, rates.mean() + half], atol=0.003
    )

  def test_one_group_or_none_is_nothing_to_compare(self):
    speakers = {'a': (1, 10), 'b': (5, 10)}
    for attributes in (
        {}, {'a': {'gender': 'female'}}, {n: {'gender': 'x'} for n in 'ab'}
    ):
      self.assertEqual(
          speaker_groups.by_attribute(_evaluation(speakers, attributes)), {}
      )
    # Of before there were any.
    evaluation = _evaluation(speakers, {})
    del evaluation['attributes']
    self.assertEqual(speaker_groups.by_attribute(evaluation), {})

  def test_the_largest_come_first_and_small_ones_together(self):
    counts = {chr(ord('a') + i): 1 + i % 3 for i in range(14)}
    (groups,) = speaker_groups.by_attribute(_ones(counts, 'accent')).values()
    # Of three speakers c, f, i, l; of two b, e, h, k, n; of one a, d, g, j, m.
    self.assertEqual(
        list(groups), [*'cfilbehknadg', '2 smaller groups']
    )
    self.assertEqual(groups['2 smaller groups'].num_speakers, 2)

  def test_ages_come_from_young_to_old(self):
    counts = {'fifties': 3, 'teens': 1, 'unheard of': 9, 'twenties': 2}
    (groups,) = speaker_groups.by_attribute(_ones(counts, 'age')).values()
    self.assertEqual(
        list(groups), ['teens', 'twenties', 'fifties', 'unheard of']
    )


def _run(name: str) -> run_record.Run:
  return run_record.Run(
      name=name, path=name, configuration='', settings={}, metrics={},
      layers={}, results=None, privacy=None, statement='', evaluation=None,
  )


class DrawTest(absltest.TestCase):

  def test_points_and_lines_are_rates_and_intervals(self):
    groups = speaker_groups.by_attribute(_FIVE)
    runs = [_run('first'), _run('second'), _run('third')]
    figure = speaker_groups.draw(runs, [groups, {}, groups])
    (axes,) = figure.axes
    self.assertEqual(
        [label.get_text() for label in axes.get_yticklabels()],
        ['gender: female (2)', 'gender: male (1)', 'gender: not known (1)'],
    )
    # Two runs, beside each other at each group.
    first, third = axes.lines
    np.testing.assert_allclose(first.get_xdata(), [30, 5, 75])
    np.testing.assert_allclose(third.get_xdata(), [30, 5, 75])
    np.testing.assert_allclose(
        np.subtract(third.get_ydata(), first.get_ydata()), 0.35
    )
    for lines, points in zip(axes.collections, axes.lines, strict=True):
      ((start, end),) = lines.get_segments()
      np.testing.assert_allclose([start[0], end[0]], [10, 50])
      self.assertEqual(start[1], points.get_ydata()[0])

  def test_no_groups_are_no_picture(self):
    self.assertIsNone(speaker_groups.draw([_run('first')], [{}]))

  def test_labels_of_any_corpus_can_be_drawn(self):
    long = 'a$b$c ' * 20
    evaluation = _evaluation(
        {'a': (1, 2), 'b': (1, 2)},
        {'a': {'accent': long}, 'b': {'accent': r'$\x$'}},
    )
    groups = speaker_groups.by_attribute(evaluation)
    figure = speaker_groups.draw([_run('first')], [groups])
    figure.draw_without_rendering()
    labels = [label.get_text() for label in figure.axes[0].get_yticklabels()]
    self.assertStartsWith(labels[1], r'accent: a\$b\$c')
    self.assertEndsWith(labels[1], '… (1)')

  def test_rows_of_runs_that_were_evaluated_on_other_speakers(self):
    ones = [
        speaker_groups.by_attribute(_ones(counts, 'accent'))
        for counts in ({'us': 2, 'uk': 1}, {'us': 5, 'nz': 3})
    ]
    self.assertEqual(
        speaker_groups.rows([{}, *ones]),
        [('accent', 'us'), ('accent', 'uk'), ('accent', 'nz')],
    )
    self.assertEqual(speaker_groups.speakers(ones, 'accent', 'us'), '2, 5')
    self.assertEqual(speaker_groups.speakers(ones, 'accent', 'nz'), '3')


if __name__ == '__main__':
  absltest.main()

"""Tests of tff_asr.reports.summary."""

import dataclasses

from absl.testing import absltest

from tests import cases
from tests.reports import run_folders
from tff_asr.metrics import confidence
from tff_asr.reports import runs as runs_lib
from tff_asr.reports import summary
from tff_asr.reports import tables

_TEXTS = ['one', 'two', 'three', 'four', 'five', 'six']


class SummaryTest(cases.TestCase):

  def row(self, name, *wrong: int, with_lm=(), heard=(), **content):
    """A row; `wrong` are each speaker's wrong words, of ten."""
    def errors(counts):
      return {s: (count, 10) for s, count in zip('abcde', counts)} or None

    run = run_folders.read(
        self.path(name),
        errors=errors(wrong),
        errors_with_lm=errors(with_lm),
        hypotheses=[('a', f'{text} is', text) for text in heard],
        **content,
    )
    return tables.Row(name, [run])

  def test_table_by_hand(self):
    privacy = run_folders.privacy(epsilon=4.5) | {'epsilon_pld': 4.5}
    found = summary.overview(
        [
            self.row('seed', 8, 6, with_lm=(4, 4)),
            self.row('control', 7, 5, with_lm=(4, 2)),
            self.row('DP', 6, 4, with_lm=(2, 0), privacy=privacy),
        ],
        baseline='control',
    )
    plus, minus = '+10.0 (+10.0 to +10.0)', '-10.0 (-10.0 to -10.0)'
    with_lm = '-20.0 (-20.0 to -20.0)'
    difference = 'minus control'
    self.assertEqual(found, [
        ['', 'WER %', difference, '+ LM', difference, 'CER %', 'epsilon'],
        # Resamples of two speakers; the second loses two words of ten.
        ['seed', '70.0', plus, '40.0', '+10.0 (+0.0 to +20.0)', '17.5', '-'],
        ['control', '60.0', '', '30.0', '', '15.0', '-'],
        ['DP', '50.0', minus, '10.0', with_lm, '12.5', '4.5 (PLD)'],
    ])

  def test_without_a_language_model_its_columns_are_empty(self):
    rows = [self.row('control', 7, 5), self.row('DP', 6, 4)]
    _, control, private = summary.overview(rows, baseline='control')
    self.assertEqual((control[3:5], private[3:5]), (['', ''], ['', '']))
    self.assertEqual(private[2], '-10.0 (-10.0 to -10.0)')

  def test_quartiles_of_speakers(self):
    row = self.row('DP', 9, 9, 9, 9, 9, with_lm=(4, 0, 1, 8, 2))
    # Rates 0, .1, .2, .4, .8 with the language model.
    _, line = summary.quartiles([row])
    self.assertEqual(line, ['DP', '10.0', '20.0', '40.0', '15.0'])
    _, line = summary.quartiles([self.row('greedy', 5, 1, 3)])
    self.assertEqual(line, ['greedy', '20.0', '30.0', '40.0', '15.0'])

  def test_transcripts_that_differ_are_counted_and_shown(self):
    other = ['one', 'to', 'tree', 'fore', 'five', 'sicks']
    found = summary.transcripts(
        self.row('seed', 1, heard=_TEXTS), self.row('DP', 1, heard=other),
        count=2,
    )
    self.assertEqual((found.num_utterances, found.num_different), (6, 4))
    # Two, three, four and six differ: the second and the fourth of these.
    self.assertEqual(found.shown, [
        [
            f'reference       {reference} is',
            f'seed            {reference}',
            f'DP              {text}',
        ]
        for reference, text in (('three', 'tree'), ('six', 'sicks'))
    ])

  def test_equal_transcripts_and_long_ones(self):
    rows = [self.row(name, 1, heard=_TEXTS) for name in ('seed', 'DP')]
    found = summary.transcripts(*rows)
    self.assertEqual((found.num_different, found.shown), (0, []))
    long = self.row('long', 1, heard=['so ' * 60])
    found = summary.transcripts(self.row('short', 1, heard=['so']), long)
    (lines,) = found.shown
    self.assertLessEqual(max(map(len, lines)), 100)
    self.assertEndsWith(lines[2], ' so ...')

  def test_verdict_is_that_of_the_interval(self):
    for low, high, expected in (
        (-0.02, -0.001, '1.0 points ahead of x (0.1 to 2.0)'),
        (-0.02, 0.001, 'level with x (-1.0, -2.0 to +0.1)'),
        (0.001, 0.02, '1.0 points behind x (0.1 to 2.0)'),
    ):
      middle = -0.01 if low < 0 else 0.01
      self.assertEqual(
          summary.verdict(confidence.Interval(middle, low, high), 'x'),
          expected,
      )

  def test_gain_is_of_the_measure(self):
    one, two = self.row('x', 5, with_lm=(4,)), self.row('y', 9, with_lm=(1,))
    for measure, expected in (
        (runs_lib.WER, -0.4), (runs_lib.WER_WITH_LM, 0.3)
    ):
      self.assertAlmostEqual(
          summary.gain(one, two, measure).estimate, expected
      )

  def test_accounts_are_those_of_the_privacy_report(self):
    row = self.row('DP', 1, privacy=run_folders.privacy(epsilon=4.5))
    privacy = {'epsilon_pld': 4.5, 'epsilon_rdp': 'inf'}
    run = dataclasses.replace(row.first, privacy=privacy)
    self.assertEqual(
        summary.accounts(tables.Row('DP', [run])),
        '4.5 (PLD), infinite (RDP)',
    )


if __name__ == '__main__':
  absltest.main()

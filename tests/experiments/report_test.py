"""Tests of experiments.report, on folders as runs leave them."""

import dataclasses
import os
import re
import shutil
from unittest import mock

import numpy as np
from scipy import stats

from experiments import design
from experiments import report
from tests.experiments import tiny
from tests.reports import run_folders
from tff_asr.reports import plots
from tff_asr.reports import runs


class ReportTest(tiny.TestCase):

  def report(self, *studies: design.Study) -> str:
    path = self.path('results.md')
    folders = self.folders._replace(suite=tiny.suite(*studies))
    report.write(folders=folders, path=path)
    with open(path, encoding='utf-8') as f:
      return f.read()

  def cells(self, text: str) -> dict[str, list[str]]:
    """Rows of the tables by their first cell."""
    rows = [
        [cell.strip() for cell in line.split('|')[1:-1]]
        for line in text.splitlines()
        if line.startswith('| ')
    ]
    return {row[0]: row[1:] for row in rows}

  def test_claims_are_judged_by_their_intervals(self):
    self.finish('seed', 6, 8)
    self.finish('federated_1', 4, 6)
    self.finish('mixed_1', 4, 10)
    cases = [
        # Two of ten words less for both speakers: -20 points without doubt.
        ('federated', 'seed', -1, '-20.0', 'holds'),
        ('seed', 'federated', -1, r'\+20.0', 'the opposite'),
        ('federated', 'seed', 0, '-20.0', 'does not hold'),
        # Two less and two more.
        ('mixed', 'seed', 1, r'\+0.0', 'not decided'),
        ('mixed', 'seed', 0, r'\+0.0', 'no difference is seen'),
        ('absent', 'seed', 1, '', 'not run'),
    ]
    claims = tuple(
        design.Claim(f'Claim {number}.', {first: 1, second: -1}, expected)
        for number, (first, second, expected, *_) in enumerate(cases)
    )
    rows = [
        tiny.row(name, tiny.FEDERATED.but(name), seeds=(1,))
        for name in ('federated', 'mixed', 'absent')
    ]
    text = self.report(tiny.study(tiny.SEED_ROW, *rows, claims=claims))
    self.assertIn('Not run yet: absent.', text)
    for number, (*_, found, verdict) in enumerate(cases):
      # Each once, with its interval.
      self.assertEqual(text.count(f'Claim {number}'), 1)
      cell = rf'{verdict}: {found} \([^)]*\)' if found else verdict
      self.assertRegex(text, rf'\| Claim {number}\. +\| {cell} +\|')

  def test_another_seed_could_change_what_runs_differ_by(self):
    self.finish('seed', 6, 8)
    # Rates .5, .6, .7 and .5, .7, .9: variances .01 and .04. Without the means
    # of rows and seeds, .05 is left of four runs, with two degrees of freedom.
    for name, step in (('federated', 1), ('mixed', 2)):
      for seed in (1, 2, 3):
        extra = (seed - 1) * step
        self.finish(f'{name}_{seed}', 4 + extra, 6 + extra)
    self.finish('one_1', 2, 4)
    several = dict(seeds=(1, 2, 3))
    study = tiny.study(
        tiny.SEED_ROW,
        tiny.row(**several),
        tiny.row('mixed', tiny.FEDERATED.but('mixed'), **several),
        tiny.row(
            'one', tiny.FEDERATED.but('one'), seeds=(1,), against='mixed'
        ),
    )
    # Rows of another kind vary by themselves.
    other = tiny.row(
        'other', tiny.FEDERATED.but('other'), seeds=(1, 2), kind='else'
    )
    self.finish('other_1', 0, 0)
    self.finish('other_2', 9, 9)
    text = self.report(
        study,
        tiny.study(tiny.SEED_ROW, tiny.row(**several), other, name='y'),
    )
    # sqrt(.025), sqrt(.025 - .005), sqrt(.005).
    self.assertIn(
        'Standard deviation of a run over random seeds: 15.8 points (14.1 in '
        'common with runs of the same seed, 7.1 of its own); else 63.6 points '
        '(0.0 in common with runs of the same seed, 63.6 of its own).',
        ' '.join(text.split()),
    )
    # The same rows have the same interval in both studies.
    lines = [
        line for line in text.splitlines() if line.startswith('| federated ')
    ]
    self.assertLen(lines, 2)
    first, second = (
        [cell.strip() for cell in line.split('|')] for line in lines
    )
    self.assertEqual(first, second)
    cells = self.cells(text)
    self.assertEqual(cells['federated'][0], '60.0 +- 10.0')
    # Nothing but the seed. One run, minus the mean of three with its seed: own
    # .005 (1 + 3 / 9) and shared .02 (4 + 1 + 1) / 9, with two and four degrees
    # of freedom: 6 of the sum. The seed model is what it is.
    for label, gap, variance, degrees in (
        ('one', -40, 0.02, 6), ('federated', -10, 0.025 / 3, 50 / 9)
    ):
      width = 100 * stats.t.ppf(0.975, degrees) * variance**0.5
      found = [float(x) for x in re.findall(r'[-+][\d.]+', cells[label][1])]
      np.testing.assert_allclose(
          found, [gap, gap - width, gap + width], atol=0.06
      )

  def test_runs_are_paired_by_random_seed(self):
    # The second seed is better by forty points, in both rows alike.
    for name, *errors in (
        ('public_1', 6, 8), ('public_2', 2, 4),
        ('federated_1', 4, 6), ('federated_2', 0, 2), ('other_3', 4, 6),
    ):
      self.finish(name, *errors)
    text = self.report(tiny.study(
        tiny.row('public', tiny.SEED.but('public'), against=None),
        tiny.row(against='public'),
        tiny.row(
            'other', tiny.FEDERATED.but('other'), seeds=(3,), against='public'
        ),
    ))
    cells = self.cells(text)
    self.assertEqual(cells['federated'][1], '-20.0 (-20.0 to -20.0)')
    # Another seed is not: shared .08, (1 + 2 / 4) .08 with two degrees.
    width = 100 * stats.t.ppf(0.975, 2) * 0.12**0.5
    self.assertEqual(
        cells['other'][1], f'+0.0 ({-width:+.1f} to {width:+.1f})'
    )

  def test_rows_of_other_speakers_are_not_compared(self):
    self.finish('seed', 6, 8)
    self.finish('federated_1', 4)
    with self.assertRaisesRegex(ValueError, 'seed was evaluated on other'):
      self.report(tiny.study(tiny.SEED_ROW, tiny.row(seeds=(1,))))

  def test_folds_are_one_test_part(self):
    suite = dataclasses.replace(
        tiny.suite(tiny.study(tiny.SEED_ROW, tiny.row(seeds=(1,)))),
        num_folds=2,
    )
    folders = self.folders._replace(suite=suite)
    for fold, speakers, errors in (
        (0, 'ab', ((6, 8), (4, 6))), (1, 'cd', ((2, 0), (1, 0)))
    ):
      for name, counts in zip(('seed', 'federated_1'), errors):
        run_folders.write(
            self.path(f'fold_{fold}', name),
            errors={s: (n, 10) for s, n in zip(speakers, counts)},
            results={'seconds': 60.0},
        )
    path = self.path('results.md')
    report.write(folders=folders, path=path)
    with open(path, encoding='utf-8') as f:
      text = f.read()
    # 16 and 11 of 40 words; gaps of -2, -2, -1 and 0: variance
    # 4 / 3 (.75^2 + .75^2 + .25^2 + 1.25^2) / 40^2, Student's 3.182.
    cells = self.cells(text)
    self.assertEqual(cells['seed'][0], '40.0')
    self.assertEqual(cells['federated'][:2], ['27.5', '-12.5 (-27.7 to +2.7)'])
    self.assertIn('4 runs (`--studies=x`).', text)
    # A fold that is missing, and one with a speaker of another.
    shutil.rmtree(self.path('fold_1', 'federated_1'))
    report.write(folders=folders, path=path)
    with open(path, encoding='utf-8') as f:
      self.assertIn('Not run yet: federated.', f.read())
    run_folders.write(
        self.path('fold_1', 'federated_1'),
        errors={'a': (1, 10), 'd': (1, 10)}, results={'seconds': 60.0},
    )
    with self.assertRaisesRegex(ValueError, 'has test speakers of another'):
      report.write(folders=folders, path=path)

  def test_rows_of_a_kind_vary_alike_over_random_seeds(self):
    self.finish('seed', 6, 8)
    for name, step in (('federated', 1), ('mixed', 2)):
      for seed in (1, 2, 3):
        self.finish(f'{name}_{seed}', 3 + seed * step, 3 + seed * step)
    text = self.report(tiny.study(
        tiny.SEED_ROW,
        tiny.row(seeds=(1, 2, 3), kind='of one kind'),
        tiny.row(
            'mixed', tiny.FEDERATED.but('mixed'), seeds=(1, 2, 3), kind='else'
        ),
    ))
    self.assertEqual(
        re.findall(r'(?:: |; )([a-z ]*[\d.]+) points', ' '.join(text.split())),
        ['of one kind 10.0', 'else 20.0'],
    )

  def test_columns_by_hand(self):
    self.finish('seed', 6, 8)
    self.finish(
        'federated_1', 4, 6,
        privacy=run_folders.privacy(
            epsilon=12.0, noise_multiplier=0.006, cohort_size=8, rounds=80
        ),
    )
    cells = self.cells(self.report(tiny.study(
        tiny.SEED_ROW,
        tiny.row(seeds=(1,), against=None),
        columns=tuple(report.COLUMNS),
    )))
    self.assertEqual(
        dict(zip(report.COLUMNS, cells['seed'][5:])),
        dict.fromkeys(report.COLUMNS, '') | {'seconds': '60'},
    )
    # Four characters and two sentences a word, one of each wrong in a wrong
    # word.
    self.assertEqual(cells['federated'][:5], ['50.0', '', '', '12.5', '25.0'])
    self.assertEqual(
        dict(zip(report.COLUMNS, cells['federated'][5:])),
        {
            'minus seed': '-20.0 (-20.0 to -20.0)',
            'difference with LM': '',
            'LM minus greedy': '',
            'range': '',
            'dev range': '',
            'epsilon': '12',
            'seconds': '60',
        },
    )

  def test_ranges_over_random_seeds(self):
    for seed, wrong, dev in ((1, 6, 0.3), (2, 4, 0.5), (3, 5, 0.4)):
      self.finish(f'federated_{seed}', wrong, wrong, dev=dev)
    row = tiny.row(seeds=(1, 2, 3), against=None)
    text = self.report(tiny.study(row, columns=('range', 'dev range')))
    self.assertEqual(
        self.cells(text)['federated'][-2:], ['40.0 to 60.0', '30.0 to 50.0']
    )
    # A suite without claims has no table of them.
    self.assertNotIn('What holds', text)

  def test_a_margin_is_what_one_row_may_be_worse_by(self):
    self.finish('seed', 6, 8)
    self.finish('federated_1', 7, 9)
    # Ten points worse, for both speakers.
    claims = [
        design.claim(f'{m:g}.', 'federated', -1, 'seed', margin=m)
        for m in (0.15, 0.1, 0.05)
    ]
    text = self.report(tiny.study(
        tiny.SEED_ROW, tiny.row(seeds=(1,)), claims=tuple(claims)
    ))
    self.assertEqual(
        re.findall(r'\| (.*): \+10.0 \(\+10.0 to \+10.0\) +\|\n', text),
        ['0.15. | holds', '0.1.  | not decided', '0.05. | the opposite'],
    )

  def test_a_claim_may_be_of_rates_with_a_language_model(self):
    with_lm = lambda *errors: {
        'errors_with_lm': {s: (n, 10) for s, n in zip('ab', errors)}
    }
    self.finish('seed', 6, 8, **with_lm(1, 1))
    # Two words more with the language model, two less without.
    self.finish('federated_1', 4, 6, **with_lm(3, 3))
    self.finish('other_1', 4, 6)
    # Of one text, they share a row.
    claims = [
        design.claim(f'{row} helps.', row, -1, 'seed', measure=measure)
        for row in ('federated', 'other')
        for measure in (runs.WER, runs.WER_WITH_LM)
    ]
    one = dict(seeds=(1,))
    other = tiny.row('other', tiny.FEDERATED.but('other'), **one)
    text = self.report(tiny.study(
        tiny.SEED_ROW, tiny.row(**one), other, claims=tuple(claims)
    ))
    cells = self.cells(text)
    self.assertEqual(
        cells['claim'], ['WER, points (95 %)', 'WER with LM, points (95 %)']
    )
    self.assertEqual(
        [cells[f'{row} helps.'] for row in ('federated', 'other')],
        [
            [
                'holds: -20.0 (-20.0 to -20.0)',
                'the opposite: +20.0 (+20.0 to +20.0)',
            ],
            ['holds: -20.0 (-20.0 to -20.0)', 'not run'],
        ],
    )

  def test_a_claim_may_be_of_what_a_language_model_gives(self):
    with_lm = lambda *errors: {
        'errors_with_lm': {s: (n, 10) for s, n in zip('ab', errors)}
    }
    # Two of ten words less with it for each speaker and random seed, which
    # change either rate by forty points.
    self.finish('federated_1', 4, 6, **with_lm(2, 4))
    self.finish('federated_2', 8, 10, **with_lm(6, 8))
    self.finish('other_1', 4, 6)
    claim = lambda row: design.Claim(
        f'The LM helps {row}.', {row: 1}, -1, 0.0, runs.WER_WITH_LM, runs.WER
    )
    other = tiny.row('other', tiny.FEDERATED.but('other'), seeds=(1,))
    text = self.report(tiny.study(
        tiny.row(),
        other,
        columns=('LM minus greedy',),
        claims=(claim('federated'), claim('other')),
    ))
    shown = '-20.0 (-20.0 to -20.0)'
    cells = self.cells(text)
    self.assertEqual(cells['federated'][-1], shown)
    self.assertEqual(cells['other'][-1], '')
    self.assertEqual(cells['The LM helps federated.'], [f'holds: {shown}'])
    self.assertEqual(cells['The LM helps other.'], ['not run'])

  def test_a_further_test_part_has_tables_and_verdicts_of_its_own(self):
    claims = (design.claim('It helps.', 'federated', -1, 'seed'),)
    study = tiny.study(tiny.SEED_ROW, tiny.row(seeds=(1,)), claims=claims)
    for name, errors in (('seed', (6, 8)), ('federated_1', (4, 6))):
      self.finish(name, *errors)
    text = self.report(study)
    self.assertEqual(self.cells(text)['claim'], ['WER, points (95 %)'])
    self.assertRegex(text, r'\| It helps\. +\| holds: -20\.0 \(.*\) +\|\n')
    self.assertNotIn("AN4's own test part:\n\n|", text)
    for name, errors in (('seed', (3, 3)), ('federated_1', (5, 5))):
      self.finish('other', *errors)
      shutil.move(
          os.path.join(self.path('other'), 'test.json'),
          os.path.join(self.path(name), 'official.json'),
      )
    text = self.report(study)
    self.assertEqual(
        self.cells(text)['claim'],
        [
            'ten held-out speakers, WER, points (95 %)',
            "AN4's own test part, WER, points (95 %)",
        ],
    )
    self.assertRegex(
        text, r'\| It helps\. +\| holds: -20\.0 .*\| the opposite: \+20\.0 '
    )
    own = text[text.index("AN4's own test part:\n\n|"):]
    self.assertEqual(self.cells(own)['seed'][0], '30.0')

  def test_columns_of_a_run_that_keeps_its_exact_metrics(self):
    self.finish('seed', 6, 8)
    self.finish(
        'federated_1', 4, 6,
        privacy=run_folders.privacy(epsilon=12.0),
        results={},
    )
    columns = ('epsilon', 'seconds')
    cells = self.cells(self.report(tiny.study(
        tiny.SEED_ROW, tiny.row(seeds=(1,), against=None), columns=columns
    )))
    self.assertEqual(cells['federated'][5:], ['12', ''])

  def test_a_language_model_has_columns_and_is_named(self):
    self.finish('seed', 6, 8, errors_with_lm={'a': (4, 10), 'b': (2, 10)})
    self.finish('federated_1', 4, 6)
    text = self.report(tiny.study(tiny.SEED_ROW, tiny.row(seeds=(1,))))
    cells = self.cells(text)
    self.assertEqual(
        cells[''],
        [
            'WER %', 'difference (95 %)', 'from', 'CER %', 'SER %',
            'WER % with LM', 'CER % with LM', 'SER % with LM',
        ],
    )
    self.assertEqual(
        cells['seed'][3:], ['17.5', '35.0', '30.0', '7.5', '15.0']
    )
    self.assertEqual(cells['federated'][3:], ['12.5', '25.0', '', '', ''])
    self.assertIn('\nLM: words.arpa (order 2, SHA-256 01234567).\n', text)

  def test_plots_are_drawn_of_what_is_measured(self):
    self.finish('seed', 6, 8)
    self.finish('federated_1', 4, 6)
    self.finish('few_1', 5, 5)
    one = dict(seeds=(1,))
    central = tiny.row('central', series='central', x=2, **one)
    few = tiny.row(
        'few', tiny.FEDERATED.but('few'), against='central',
        series='federated', x=2, **one
    )
    self.report(
        # Numbers with a gap, words, and no point, which gives no plot.
        tiny.study(central, few, x_label='cohort', name='gap'),
        tiny.study(
            tiny.SEED_ROW, tiny.row(x='LAMB', **one), x_label='y', name='word'
        ),
        tiny.study(
            dataclasses.replace(tiny.SEED_ROW, series='from scratch', x=0.0),
            tiny.row(x=design.EPSILON, series='from scratch', **one),
            few, x_label='epsilon', name='epsilon',
        ),
        tiny.study(tiny.SEED_ROW, tiny.row(), x_label='y', name='line'),
        tiny.study(tiny.SEED_ROW, name='without'),
    )
    self.assertCountEqual(
        os.listdir(self.path('results')),
        ['epsilon.png', 'gap.png', 'word.png'],
    )

  def test_studies_that_were_not_run_are_listed_at_the_end(self):
    self.finish('seed', 6, 8)
    claims = (design.claim('It helps.', 'federated', -1, 'seed'),)
    measured = tiny.study(tiny.SEED_ROW, tiny.row(), claims=claims)
    others = [
        tiny.study(tiny.row(), claims=claims, name=name) for name in ('y', 'z')
    ]
    text = self.report(measured, *others)
    self.assertEqual(text.count('It helps.'), 1)
    self.assertEndsWith(
        ' '.join(text.split()),
        'Not run yet: X (`--studies=y`); X (`--studies=z`).',
    )

  def test_the_title_of_a_plot_is_the_first_decided_claim(self):
    self.finish('seed', 6, 8)
    self.finish('federated_1', 4, 6)
    self.finish('other_1', 2, 9)
    row = tiny.row(seeds=(1,), x=design.EPSILON)
    other = tiny.row(
        'other', tiny.FEDERATED.but('other'), seeds=(1,), x=design.EPSILON
    )
    claims = (
        design.claim('Undecided.', 'other', -1, 'seed'),
        design.claim(
            'With LM.', 'federated', -1, 'seed', measure=runs.WER_WITH_LM
        ),
        design.claim('Speakers help.', 'federated', -1, 'seed'),
        design.claim('Not so.', 'federated', 1, 'seed'),
    )
    study = tiny.study(
        tiny.SEED_ROW, row, other, claims=claims, x_label='epsilon',
        name='epsilon',
    )
    with mock.patch.object(
        plots, 'plot_over_epsilon', wraps=plots.plot_over_epsilon
    ) as drawn:
      self.report(study)
    self.assertEqual(drawn.call_args.kwargs['title'], 'Speakers help')
    study = dataclasses.replace(study, claims=claims[:1])
    with mock.patch.object(
        plots, 'plot_over_epsilon', wraps=plots.plot_over_epsilon
    ) as drawn:
      self.report(study)
    self.assertEqual(drawn.call_args.kwargs['title'], 'Undecided: not decided')

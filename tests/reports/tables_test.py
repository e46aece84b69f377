"""Tests of tff_asr.reports.tables."""

import dataclasses
import json
import os
import pathlib

from absl.testing import parameterized

from tests import cases
from tests.reports import run_folders
from tff_asr.metrics import confidence
from tff_asr.reports import tables


class TablesTest(cases.TestCase):

  def run_(self, name: str, *wrong: int, epsilon=None, **content):
    """A run; `wrong` are each speaker's wrong words, of ten."""
    if epsilon is not None:
      content['privacy'] = run_folders.privacy(epsilon=epsilon)
    return run_folders.read(
        self.path(name),
        errors={s: (count, 10) for s, count in zip('abc', wrong)} or None,
        **{'results': {'seconds': 10.0}} | content,
    )

  def overview(self, *rows: tables.Row) -> dict[str, list[str]]:
    """Its columns, by title."""
    titles, *lines = tables.overview(rows)
    return dict(zip(titles, map(list, zip(*lines))))

  def test_rows_by_hand(self):
    found = self.overview(
        tables.Row('seed', [self.run_('seed', 8, 6)]),
        tables.Row('pair', [
            self.run_('x', 4, 2, epsilon=3.5, settings={'NUM_ROUNDS': '9'}),
            self.run_('y', 6, 4, epsilon='inf', results={'seconds': 30.0}),
        ]),
        tables.Row('others', [self.run_('z', 8, results=None)]),
    )
    self.assertEqual(found, {
        '': ['seed', 'pair', 'others'],
        'kind': ['central', 'federated, DP', 'central'],
        'rounds or steps': ['0', '0', '0, not ended'],
        # Speakers' mean errors are 5 and 3: 8 of 20 words. Rates .3 and .5:
        # standard deviation .1 sqrt(2).
        'WER %': ['70.0', '40.0 +- 14.1', '80.0'],
        # Both speakers gain three words of ten: no doubt.
        'minus seed (95 %)': ['', '-30.0 (-30.0 to -30.0)', ''],
        # Four characters a word, and one wrong one in a wrong word.
        'CER %': ['17.5', '10.0 +- 3.5', '20.0'],
        # Two sentences a word, and one wrong one for a wrong word.
        'SER %': ['35.0', '20.0 +- 7.1', '40.0'],
        'SER: minus seed (95 %)': ['', '-15.0 (-15.0 to -15.0)', ''],
        'epsilon': ['', 'infinite', ''],
        'private': ['public data', 'NOT PRIVATE', 'public data'],
        'cohort of population': ['', '10 of 100', ''],
        'noise multiplier': ['', '0.1', ''],
        'noise / C a round': ['', 'not known', ''],
        'sqrt(rounds) / (noise / C)': ['', 'not known', ''],
        'seconds': ['10', '20', ''],
    })

  def test_a_public_model_without_a_run_is_a_row(self):
    folder = self.path('untrained')
    run_folders.write(folder, errors={'a': (6, 10), 'b': (4, 10)})
    path = pathlib.Path(folder, 'test.json')
    path.write_text(
        json.dumps({'public_model': 'whisper'} | json.loads(path.read_text()))
    )
    for name in ('config.gin', 'metrics.csv'):
      os.remove(os.path.join(folder, name))
    self.run_('trained', 4, 2)
    found = self.overview(*tables.parse([folder, self.path('trained')]))
    self.assertEqual(found, {
        '': ['untrained', 'trained'],
        'kind': ['public model', 'central'],
        'rounds or steps': ['', '0'],
        'WER %': ['50.0', '30.0'],
        # Both speakers gain two words of ten.
        'minus untrained (95 %)': ['', '-20.0 (-20.0 to -20.0)'],
        'CER %': ['12.5', '7.5'],
        # Twice as many sentences as words, and as many wrong ones.
        'SER %': ['25.0', '15.0'],
        'SER: minus untrained (95 %)': ['', '-10.0 (-10.0 to -10.0)'],
        'private': ['public data', 'public data'],
        'seconds': ['', '10'],
    })
    # Without an evaluation it is no folder of a run.
    path.unlink()
    with self.assertRaisesRegex(ValueError, 'untrained has no config.gin'):
      tables.parse([folder])

  def test_rows_with_a_language_model_by_hand(self):
    rows = [
        tables.Row('seed', [
            self.run_('seed', 8, 6, errors_with_lm={'a': (4, 10), 'b': (2, 10)})
        ]),
        tables.Row('ours', [
            self.run_('ours', 4, 2, errors_with_lm={'a': (3, 10), 'b': (1, 10)})
        ]),
        # Decoded greedily alone.
        tables.Row('greedy', [self.run_('greedy', 4, 2)]),
    ]
    found = self.overview(*rows)
    self.assertEqual(found['WER % with LM'], ['30.0', '20.0', ''])
    self.assertEqual(found['CER % with LM'], ['7.5', '5.0', ''])
    self.assertEqual(found['SER % with LM'], ['15.0', '10.0', ''])
    self.assertEqual(
        found['SER with LM: minus seed (95 %)'],
        ['', '-5.0 (-5.0 to -5.0)', ''],
    )
    self.assertEqual(
        found['with LM: minus seed (95 %)'],
        ['', '-10.0 (-10.0 to -10.0)', ''],
    )
    name = 'words.arpa (order 2, SHA-256 01234567)'
    self.assertEqual(tables.notes(rows), [f'LM: {name}'])

  def test_rates_under_other_rules_are_not_compared(self):
    def run(name, *rules):
      found = self.run_(name, 4, 2)
      return dataclasses.replace(
          found, evaluation=found.evaluation | {'normalization': [*rules]}
      )

    seed, other = run('seed'), run('other', 'hyphens', 'digits')
    rows = [tables.Row('seed', [seed]), tables.Row('other', [other])]
    found = self.overview(*rows)
    self.assertEqual(tables.notes(rows), ['Normalised: hyphens, digits'])
    self.assertNotIn('minus seed (95 %)', found)
    with self.assertRaisesRegex(ValueError, 'by the same rules'):
      tables.overview([tables.Row('both', [seed, other])])

  def test_pretraining_by_hand(self):
    run = self.run_(
        'pretrained',
        # The first step compiles, the evaluated ones take longer.
        metrics={
            'not_private/seconds': {1: 90.0, 2: 9.0, 3: 2.0, 4: 4.0, 5: 9.0},
            'dev_accuracy': {2: 0.04, 5: 0.125},
            'dev_most_frequent': {2: 0.05, 5: 0.05},
            'dev_loss': {2: 5.5, 5: 4.25},
            'dev_prediction_perplexity': {2: 1.0, 5: 7.5},
            'dev_label_perplexity': {2: 80.0, 5: 80.0},
        },
        results={'seconds': 1, 'trained_parameters': 1234},
    )
    found = self.overview(tables.Row('ours', [run]))
    self.assertEqual(
        {title: cell for title, (cell,) in found.items()},
        {
            '': 'ours',
            'kind': 'pre-training',
            'rounds or steps': '5',
            'dev loss': '4.250',
            'masked accuracy %': '12.5 (most frequent 5.0)',
            'private': 'public data',
            's a round or step': '3.00',
            'seconds': '1',
        },
    )


  def test_intervals_of_sentences_are_over_speakers(self):
    # Of 20 sentences each speaker has 2, 2 and 8 less wrong.
    rows = [
        tables.Row('seed', [self.run_('seed', 8, 6, 9)]),
        tables.Row('ours', [self.run_('ours', 6, 4, 1)]),
    ]
    expected = confidence.difference([6, 4, 1], [8, 6, 9], [20, 20, 20])
    self.assertEqual(round(expected.estimate, 6), -0.2)
    self.assertLess(expected.low, -0.3)
    self.assertEqual(
        self.overview(*rows)['SER: minus seed (95 %)'],
        ['', tables.interval(expected)],
    )

  def test_runs_of_a_row_must_have_the_same_speakers(self):
    for name, wrong in (('few', (1,)), ('none', ())):
      row = tables.Row('both', [self.run_(f'{name}_1', 1, 2),
                                self.run_(f'{name}_2', *wrong)])
      with self.assertRaisesRegex(ValueError, 'both were not all evaluated'):
        tables.overview([row])

  def test_rows_are_parsed_in_order(self):
    a, b, c = (self.run_(name, 1).path for name in 'abc')
    rows = tables.parse([f'{b},{a}', c], names=['z = .5', 'y'])
    self.assertEqual(
        [(row.label, [run.name for run in row.runs]) for row in rows],
        [('z = .5', ['z = .5 1', 'z = .5 2']), ('y', ['y'])],
    )
    self.assertEqual([run.path for run in rows[0].runs], [b, a])
    pair, single = tables.parse([f'{b},{a}', c])
    self.assertEqual((pair.label, single.label), ('b, a', 'c'))

  @parameterized.parameters(
      (['x', ','], (), "',' has no run"),
      (['x', 'y,z'], ['a'], '--name: 1 for 2 runs'),
      (['x'], ['a', 'b'], '--name: 2 for 1 runs'),
      (['x', 'y'], ['a', 'a'], '--name=a is given twice'),
      (['x', 'y'], ['a', ''], '--name= is empty'),
      (['x', 'y'], (), 'x has no config.gin.*\n.*y has no config.gin'),
  )
  def test_bad_rows(self, texts, names, message):
    with self.assertRaisesRegex(ValueError, message):
      tables.parse(texts, names=names)

  def test_notes_name_rows_that_differ(self):
    rows = [
        tables.Row(label, [dataclasses.replace(
            self.run_(label, 1), evaluation={'normalization': [rule]}
        )])
        for label, rule in (('a', 'x'), ('b', 'y'), ('c', 'x'))
    ]
    self.assertEqual(
        tables.notes(rows), ['Normalised of a, c: x', 'Normalised of b: y']
    )

  def test_share_of_the_gain_by_hand(self):
    def row(name, *wrong, noise=None, **settings):
      training = {'INIT_FROM_RUN': "'seed'"}
      # Without one it is trained centrally.
      training |= {} if noise is None else {'NUM_ROUNDS': '3'}
      errors = {s: (count, 20) for s, count in zip('ab', wrong)}
      greedy = {s: (count + 5, 20) for s, count in zip('ab', wrong)}
      return tables.Row(name, [run_folders.read(
          self.path(name),
          settings=training | settings,
          errors=greedy,
          errors_with_lm=errors,
          privacy=None if noise is None else run_folders.privacy(
              noise_multiplier=noise
          ),
      )])

    seed = row('seed', 12, 12, INIT_FROM_RUN="'other'")
    control, twin = row('control', 10, 10), row('no DP', 6, 6, noise=0.0)
    private = row('DP', 9, 7, noise=0.8, NOISE_MULTIPLIER='0.8')
    # Gains of 1 and 3 of 4 errors. The control is public and from the same
    # seed, wherever it stands.
    line = (
        'DP: share of the gain of no DP over control (95 %): 50 % (25 to 75) '
        'greedily, 50 % (25 to 75) with the LM'
    )
    rows = [seed, private, control, twin]
    self.assertEqual(tables.shares_of_gain(rows), [line])
    self.assertIn(line, tables.notes(rows))
    # Without a control it is over the first row: 3 and 5 of 6.
    self.assertEqual(tables.shares_of_gain([seed, private, twin]), [
        'DP: share of the gain of no DP over seed (95 %): 67 % (50 to 83) '
        'greedily, 67 % (50 to 83) with the LM'
    ])
    # Another training is no twin; without a twin there is no gain to share.
    longer = row('longer', 6, 6, noise=0.0, NUM_ROUNDS='9')
    for others in ([control, private, longer], [control, private],
                   [control, twin], [private, twin]):
      self.assertEmpty(tables.shares_of_gain(others))
    # A gain that may be 0 has no shares.
    little = row('little', 4, 12, noise=0.0)
    (line,) = tables.shares_of_gain([control, private, little])
    self.assertIn(
        'none (a gain of +10.0 (-10.0 to +30.0) points is not clear of 0) '
        'greedily', line,
    )

  def test_noise_over_the_clip(self):
    def row(name, **fields):
      privacy = run_folders.privacy() | fields.pop('privacy', {})
      privacy['groups'][0] |= fields
      run = self.run_(name, 4, 2, privacy=privacy)
      return tables.Row(name, [run])

    known = row('known', noise_over_clip=0.6342, privacy=dict(
        rounds_over_noise=7.0517, layer_noise={'a/w': 0.25, 'b': 1.5},
        has_layer_clips=True,
    ))
    whole = row('whole', noise_over_clip=2.0, privacy=dict(
        rounds_over_noise=1.0, layer_noise={'b': 0.5}, has_layer_clips=False
    ))
    rows = [known, row('old'), row('none', noise_multiplier=0), whole]
    found = self.overview(*rows)
    self.assertEqual(
        found['noise / C a round'], ['0.634', 'not known', '', '2']
    )
    self.assertEqual(
        found['sqrt(rounds) / (noise / C)'], ['7.05', 'not known', '', '1']
    )
    self.assertEqual(tables.layer_noise([each.first for each in rows]), [
        ['noise / clip of the layer, a round', 'known', 'whole (over C)'],
        ['a/w', '0.25', ''],
        ['b', '1.5', '0.5'],
    ])

  def test_tables_fit_a_terminal(self):
    wide = [['', *'abcd'], ['x', *(['0' * 30] * 4)], ['y', *(['1'] * 4)]]
    narrow = [line[:3] for line in wide]
    self.assertEqual(tables.fitted(narrow), [narrow])
    # Rows are fewer than columns.
    self.assertEqual(
        tables.fitted(wide),
        [[['', 'x', 'y'], *([name, '0' * 30, '1'] for name in 'abcd')]],
    )
    wide += [[name, *(['2' * 30] * 4)] for name in 'zuvw']
    other = [[*line[:1], *line[3:]] for line in wide]
    self.assertEqual(
        tables.fitted(wide), [[line[:3] for line in wide], other]
    )
    # A column that is too wide by itself is shown.
    self.assertLen(tables.fitted(wide, width=20), 4)

  def test_private_evaluations_by_hand(self):
    found = tables.private_evaluations([
        self.run_('plain', 1), run_folders.with_private_evaluation(
            self.run_('evaluated', 1)
        ),
    ])
    self.assertEqual(found[1:], [[
        'evaluated', '293 others', 'not known (10.0 to 90.0)',
        '25.0 (20.0 to 30.0)', '0.5', '4',
    ]])
    self.assertEqual(found[0][3], '50 % of people at most')

  def test_of_the_evaluations_in_training_the_last_is_shown(self):
    run = run_folders.with_private_evaluation(self.run_('evaluated', 1))
    (after,) = run.private_evaluations
    run = dataclasses.replace(run, private_evaluations=[
        after | {'round': 10}, after | {'round': 20}, after,
    ])
    found = tables.private_evaluations([run])
    self.assertEqual(
        [row[0] for row in found[1:]], ['evaluated, round 20', 'evaluated']
    )

  def test_epsilon_is_shown_with_its_accountant(self):
    run = self.run_('private', 1, privacy=run_folders.privacy(epsilon=4.5))
    for accounts, expected in (
        ({'epsilon_pld': 4.5, 'epsilon_rdp': 5.5}, '4.5 (PLD)'),
        ({'epsilon_pld': None, 'epsilon_rdp': 4.5}, '4.5 (RDP)'),
        ({}, '4.5'),
    ):
      row = tables.Row('private', [
          dataclasses.replace(run, privacy=run.privacy | accounts)
      ])
      self.assertEqual(tables.epsilon_by(row), expected)

  def test_settings_that_differ(self):
    runs = [
        self.run_('a', settings={'SEED': '1', 'DIM': '8'}),
        self.run_('b', settings={'SEED': '1'}),
    ]
    self.assertEqual(
        tables.differing_settings(runs), [['', 'a', 'b'], ['DIM', '8', '']]
    )

  def test_markdown_by_hand(self):
    self.assertEqual(
        tables.markdown([['', 'WER %'], ['a|b', '9']]),
        '|      | WER % |\n|------|-------|\n| a\\|b | 9     |',
    )

  @parameterized.parameters(
      ('<img src=x>', '\\<img src=x>'),
      ('![a](http://x)', '![a]\\(http://x)'),
      ('a\\|b', 'a\\\\\\|b'),
      ('a\n# b\x1b[31m\x9b1A\u2028c', 'a # b [31m 1A c'),
      ("l'été_1 50 % [1.0 to 2.0]", "l'été_1 50 % [1.0 to 2.0]"),
  )
  def test_names_are_escaped_in_markdown(self, name, expected):
    self.assertEqual(tables.plain(name), expected)
    self.assertIn(f'| {expected} |', tables.markdown([[''], [name]]))

  def test_numbers(self):
    found = list(map(tables.number, (None, float('nan'), 0.12345, 12345.6)))
    self.assertEqual(found, ['', '', '0.123', '12,346'])

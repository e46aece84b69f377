"""Tests of tff_asr.reports.report."""

import base64
import html.parser
import io
import os
import pathlib
import re

from matplotlib import image
import numpy as np

from tests import cases
from tests.reports import run_folders
from tff_asr.reports import report
from tff_asr.reports import tables

_VOID = ('br', 'hr', 'img', 'link', 'meta')


class _Page(html.parser.HTMLParser):
  """Checks that tags close in order; keeps texts and what is fetched."""

  def __init__(self, text: str):
    super().__init__()
    self.open, self.texts, self.fetched, self.tags = [], [], [], []
    self.feed(text)
    assert not self.open, self.open

  def handle_starttag(self, tag, attrs):
    self.tags.append(tag)
    if tag not in _VOID:
      self.open.append(tag)
    self.fetched += [v for k, v in attrs if k in ('src', 'href')]

  def handle_endtag(self, tag):
    assert self.open.pop() == tag, tag

  def handle_data(self, data):
    if data.strip():
      self.texts.append(data.strip())


class ReportTest(cases.TestCase):

  def setUp(self):
    super().setUp()
    self.output_dir = self.path('report')

  def row(self, name: str, **content) -> tables.Row:
    folder = self.path(name)
    return tables.Row(name, [run_folders.read(folder, **content)])

  def seed(self) -> tables.Row:
    return self.row('seed', **run_folders.SEED)

  def private(self, **content) -> tables.Row:
    return self.row('private', **dict(
        settings={'NUM_ROUNDS': '3', 'SEED': '1'},
        metrics=run_folders.PRIVATE_METRICS,
        privacy=run_folders.privacy() | {
            'rounds_over_noise': 7.0517, 'layer_noise': {'a/w': 0.25},
            'has_layer_clips': True,
        },
        results={'seconds': 10.0},
        errors={'ann': (2, 4), 'bob': (2, 8)},
        attributes={
            'ann': {'gender': 'female'}, 'bob': {'gender': 'm<a>le'},
        },
        hypotheses=[
            ('ann', 'one two', 'one two'),
            ('bob', 'three <b>four</b>', 'tree'),
            ('bob', 'five', 'six seven'),
            ('bob', '', ''),
        ],
    ) | content)

  def write(self, *rows: tables.Row, **options) -> tuple[str, _Page]:
    path = report.write(rows, output_dir=self.output_dir, **options)
    text = pathlib.Path(path).read_text()
    return text, _Page(text)

  def rows_of(self, text: str) -> dict[str, list[str]]:
    """All rows of the page's tables."""
    return {
        cells[0]: cells[1:]
        for row in re.findall('<tr>(.*?)</tr>', text, re.DOTALL)
        if (cells := re.findall('<t[hd][^>]*>(.*?)</t[hd]>', row))
    }

  def test_two_runs_side_by_side(self):
    # Drawing takes seconds: one report for all that it should be.
    text, page = self.write(self.seed(), self.private())
    self.check_pictures(page)
    rows = self.rows_of(text)
    self.assertEqual(rows['kind'], ['central', 'federated, DP'])
    # A quarter and three eighths of the words less: between -37.5 and -25.
    self.assertEqual(
        rows['minus seed (95 %)'], ['', '-33.3 (-37.5 to -25.0)']
    )
    self.assertEqual(rows['noise / C a round'], ['', 'not known'])
    self.assertEqual(rows['sqrt(rounds) / (noise / C)'], ['', '7.05'])
    self.assertEqual(rows['a/w'], ['0.25'])
    # By speaker: 1/2 and 1/4 of the words of the private run.
    self.assertEqual(rows['private'], ['2', '25.0', '37.5', '50.0', '50.0'])
    self.assertEqual(rows['gender: m&lt;a&gt;le'], ['', '25.0 (1)'])
    # Settings that differ, and no others.
    self.assertEqual(rows['LEARNING_RATE'], ['0.1', ''])
    self.assertNotIn('SEED', rows)
    self.assertIn('NOT PRIVATE: epsilon is 1000.0.', text)
    released, operator = text.split('<h2>For the operator only</h2>')
    for name in ('Runs', 'Privacy', 'Configuration'):
      self.assertIn(f'<h3>{name}</h3>', released)
    for name in ('Test speakers', 'Clipping and noise', 'Utterances with'):
      self.assertIn(f'<h3>{name}', operator)
    self.assertNotIn('(exact)', released)
    # It follows from settings, so anyone may see it.
    self.assertIn('Noise by layer, over the clip', released)
    self.assertEqual(released.count('<span class="badge">public data</s'), 1)
    self.assertIn('<span class="badge no">NOT PRIVATE</span> epsi', released)
    self.check_worst(text, page)

  def check_pictures(self, page: _Page) -> None:
    """Embedded, each with something on it, and those that there should be."""
    pictures = [name for name in os.listdir(self.output_dir) if '.png' in name]
    self.assertLen(page.fetched, len(pictures))
    for source in page.fetched:
      kind, data = source.split(',')
      self.assertEqual(kind, 'data:image/png;base64')
      pixels = image.imread(io.BytesIO(base64.b64decode(data)))
      self.assertGreater(pixels.shape[1], 500)
      self.assertGreater(np.std(pixels), 0.01)
    self.assertCountEqual(
        os.listdir(self.output_dir),
        ['report.html', *(f'{name}.png' for name in (
            'word_error_rates', 'losses', 'training_losses', 'epsilons',
            'privacy_utility', 'norms', 'clipped', 'noise', 'speakers',
        ))],
    )

  def check_worst(self, text: str, page: _Page) -> None:
    """The worst utterances come first, and what they hold is escaped."""
    order = [t for t in page.texts if re.match(r'\w+-\d \(speaker', t)]
    self.assertEqual(
        [line.split()[0] for line in order],
        ['bob-1', 'bob-2', 'ann-0', 'bob-3'],
    )
    self.assertIn('errors: 2, words: 2', order[0])
    self.assertNotIn('<b>', text)
    self.assertRegex(text, '<td class="(substitute|delete)">&lt;b&gt;four')
    self.assertIn('<td class="insert">&middot;</td>', text)
    self.assertIn('reference and hypothesis are empty', text)

  def test_names_are_not_parsed_as_formulas_or_tags(self):
    row = self.row(
        'a$\\frac{1$<b>',
        metrics={'dev_word_error_rate': {1: 0.5}},
    )
    text, _ = self.write(row)
    self.assertNotIn('<b>', text)
    self.assertIn('a$\\frac{1$&lt;b&gt;', text)

  def test_transcripts_are_left_out_if_num_worst_is_0(self):
    # A run with little else, as pictures take seconds.
    row = self.private(metrics={}, privacy=None)
    text, page = self.write(row, num_worst=1)
    self.assertIn('three', page.texts)
    self.assertNotIn('seven', page.texts)
    text, page = self.write(row, num_worst=0)
    for word in ('three', 'tree', 'seven', 'bob-1'):
      self.assertNotIn(word, text)

  def test_a_run_that_has_just_begun_has_a_report(self):
    _, page = self.write(self.row('begun', metrics={'epsilon': {}}))
    self.assertIn('0, not ended', page.texts)
    self.assertEqual(page.fetched, [])

  def test_private_evaluations_are_released(self):
    (run,) = self.row('private', metrics={}).runs
    row = tables.Row('a', [run_folders.with_private_evaluation(run)])
    text, _ = self.write(row)
    self.assertIn('<h3>Error rates of private people</h3>', text)
    rows = self.rows_of(text)
    self.assertEqual(rows['WER (95 %)'], ['not known (10.0 to 90.0)'])
    self.assertEqual(rows['epsilon of it'], ['0.5'])
    self.assertNotIn('For the operator only', text)

  def test_test_speakers_of_the_training_data_are_warned_of(self):
    row = self.private(
        metrics={}, privacy=None, hypotheses=[],
        private={'private_speakers': 2, 'is_checked': True},
    )
    text, _ = self.write(row)
    self.assertIn('<p class="warning">private: NOT PRIVATE: 2 of these', text)

  def test_bad_arguments(self):
    with self.assertRaisesRegex(ValueError, 'num_worst'):
      report.write([], output_dir=self.output_dir, num_worst=-1)
    with self.assertRaisesRegex(ValueError, 'output_dir'):
      report.write([], output_dir='')
    self.assertFalse(os.path.exists(self.output_dir))

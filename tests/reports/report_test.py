"""Tests of tff_asr.reports.report and its parts."""

import base64
import html.parser
import io
import os
import re
import tempfile

from absl.testing import absltest
from matplotlib import image
import numpy as np

from tests.reports import run_folders
from tff_asr.reports import report
from tff_asr.reports import report_page
from tff_asr.reports import report_plots
from tff_asr.reports import run_record

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


class ReportTest(absltest.TestCase):

  def setUp(self):
    super().setUp()
    self.root = self.enterContext(tempfile.TemporaryDirectory())
    self.output_dir = os.path.join(self.root, 'report')

  def run_folder(self, name: str, **content) -> str:
    return run_folders.write(os.path.join(self.root, name), **content)

  def seed(self) -> str:
    return self.run_folder(
        'seed',
        settings={'NUM_STEPS': '20', 'LEARNING_RATE': '0.1', 'SEED': '1'},
        metrics={
            'train_loss': {10: 9.0, 20: 8.0},
            'dev_word_error_rate': {10: 0.9, 20: 0.8},
        },
        errors={'ann': (3, 4), 'bob': (5, 8)},
    )

  def private(self, **content) -> str:
    rounds = range(1, 4)
    return self.run_folder(
        'private',
        **dict(
            settings={'NUM_ROUNDS': '3', 'SEED': '1', 'TARGET_EPSILON': '2000'},
            metrics={
                'not_private/train_loss': {n: 9.0 - n for n in rounds},
                'dev_word_error_rate': {3: 0.6},
                'dev_loss': {3: 5.5},
                'epsilon': {n: 400.0 * n for n in rounds},
                'not_private/delta_norm': {1: 2.0, 2: float('nan'), 3: 1.0},
                'not_private/clipped_delta_norm': {n: 0.5 for n in rounds},
                'not_private/clipped_clients': {n: 0.75 for n in rounds},
                'not_private/clipped_layers': {n: 0.25 for n in rounds},
                'not_private/signal_norm': {n: 0.2 for n in rounds},
                'aggregator/noise_norm': {n: 0.1 for n in rounds},
            },
            privacy=run_folders.privacy(),
            errors={'ann': (2, 4), 'bob': (2, 8)},
            hypotheses=[
                ('ann', 'one two', 'one two'),
                ('bob', 'three <b>four</b>', 'tree'),
                ('bob', 'five', 'six seven'),
            ],
        )
        | content,
    )

  def write(self, *folders: str, **options) -> tuple[str, _Page]:
    path = report.write(folders, output_dir=self.output_dir, **options)
    with open(path, encoding='utf-8') as f:
      text = f.read()
    return text, _Page(text)

  def test_two_runs_side_by_side(self):
    # Drawing takes seconds: one report for all that it should be.
    text, page = self.write(self.seed(), self.private())
    self.check_pictures(page)
    self.check_table(text)
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
            'word_error_rates', 'losses', 'epsilons', 'privacy_utility',
            'norms', 'clipped', 'noise', 'speakers',
        ))],
    )

  def check_table(self, text: str) -> None:
    """By hand."""
    rows = {
        cells[0]: cells[1:]
        for row in re.findall('<tr>(.*?)</tr>', text, re.DOTALL)
        if (cells := re.findall('<t[hd][^>]*>(.*?)</t[hd]>', row))
    }
    self.assertEqual(rows['kind'], ['central', 'federated, DP'])
    self.assertEqual(rows['rounds or steps'], ['20, not ended', '3'])
    # 8 and 4 of 12 words.
    self.assertEqual(rows['WER on the test set, %'], ['66.7', '33.3'])
    # A quarter and three eighths of the words less: between -37.5 and -25.
    self.assertEqual(
        rows['minus the first (95 %)'], ['', '-33.3 (-37.5 to -25.0)']
    )
    self.assertEqual(rows['WER on the dev set, %'], ['80.0', '60.0'])
    self.assertEqual(rows['epsilon'], ['', '1e+03'])
    self.assertEqual(rows['cohort of population'], ['', '10 of 100'])
    self.assertEqual(rows['noise multiplier'], ['', '0.1'])
    self.assertEqual(rows['seconds of training'], ['', '10'])
    # By speaker: 1/2 and 1/4 of the words of the private run.
    self.assertEqual(rows['private'], ['2', '25.0', '37.5', '50.0', '50.0'])
    # Settings that differ, and no others.
    self.assertEqual(rows['LEARNING_RATE'], ['0.1', ''])
    self.assertNotIn('SEED', rows)

  def check_worst(self, text: str, page: _Page) -> None:
    """The worst utterances come first, and what they hold is escaped."""
    order = [t for t in page.texts if re.match(r'\w+-\d \(speaker', t)]
    self.assertEqual(
        [line.split()[0] for line in order], ['bob-1', 'bob-2', 'ann-0']
    )
    self.assertIn('2 errors, 2 words', order[0])
    self.assertNotIn('<b>', text)
    self.assertIn('&lt;b&gt;four&lt;/b&gt;', text)

  def test_groups_of_speakers_have_their_rates(self):
    attributes = {
        'ann': {'gender': 'female'},
        'bob': {'gender': 'm<a>le'},
        'cai': {'gender': 'm<a>le'},
    }
    folder = self.run_folder(
        'known',
        settings={'NUM_ROUNDS': '1'},
        metrics={'dev_loss': {}},
        errors={'ann': (2, 4), 'bob': (2, 8), 'cai': (0, 8), 'dee': (1, 1)},
        attributes=attributes,
    )
    # Evaluated before there were groups, or on others.
    other = self.run_folder(
        'other',
        settings={'NUM_ROUNDS': '1'},
        metrics={'dev_loss': {}},
        errors={'eve': (2, 4)},
    )
    text, page = self.write(folder, other)
    rows = {
        cells[0]: cells[1:]
        for row in re.findall('<tr>(.*?)</tr>', text, re.DOTALL)
        if (cells := re.findall('<t[hd][^>]*>(.*?)</t[hd]>', row))
    }
    # 2 of 16 words; of either speaker, drawn twice, 0 or 2 of 8.
    self.assertEqual(
        rows['gender: m&lt;a&gt;le'], ['2', '12.5 (0.0 to 25.0)', '']
    )
    self.assertEqual(rows['gender: female'], ['1', '50.0', ''])
    self.assertEqual(rows['gender: not known'], ['1', '100.0', ''])
    self.assertIn('speaker_groups.png', os.listdir(self.output_dir))
    self.assertLen(page.fetched, 2)

  def test_transcripts_are_left_out_where_none_is_asked_for(self):
    # A run with little else, as pictures take seconds.
    folder = self.private(metrics={'dev_loss': {}}, privacy=None)
    text, page = self.write(folder, num_worst=1)
    self.assertIn('three', page.texts)
    self.assertNotIn('seven', page.texts)
    text, page = self.write(folder, num_worst=0)
    for word in ('three', 'tree', 'seven', 'bob-1'):
      self.assertNotIn(word, text)

  def test_a_run_that_has_just_begun_has_a_report(self):
    folder = self.run_folder(
        'begun', settings={'NUM_ROUNDS': '9'}, metrics={'epsilon': {}}
    )
    _, page = self.write(folder)
    self.assertIn('0, not ended', page.texts)
    self.assertEqual(page.fetched, [])

  def test_many_runs_have_a_report(self):
    folders = [
        self.run_folder(
            f'run{i}',
            settings={'NUM_ROUNDS': '2'},
            metrics={'dev_word_error_rate': {1: 0.9, 2: i / 20}},
        )
        for i in range(12)
    ]
    self.write(*folders)
    runs = run_record.read(folders)
    self.assertLen({report_plots.color_of(runs, run) for run in runs}, 12)

  def test_bad_arguments(self):
    with self.assertRaisesRegex(ValueError, 'no run to report on'):
      report.write([], output_dir=self.output_dir)
    with self.assertRaisesRegex(ValueError, 'num_worst'):
      report.write([self.seed()], output_dir=self.output_dir, num_worst=-1)
    with self.assertRaisesRegex(ValueError, 'output_dir'):
      report.write([self.private()], output_dir='')
    self.assertFalse(os.path.exists(self.output_dir))

  def test_curves_have_the_values_of_the_metrics(self):
    runs = run_record.read([self.seed(), self.private()])
    rounds, steps = report_plots.word_error_rates(runs).axes
    self.assertEqual(list(rounds.lines[0].get_xdata()), [3])
    self.assertEqual(list(rounds.lines[0].get_ydata()), [60])
    self.assertEqual(list(steps.lines[0].get_ydata()), [90, 80])
    (axes,) = report_plots.epsilons(runs).axes
    self.assertEqual(list(axes.lines[0].get_ydata()), [400, 800, 1200])
    self.assertEqual(list(axes.lines[1].get_ydata()), [2000, 2000])
    (axes,) = report_plots.norms(runs).axes
    # A round of nobody has no mean.
    self.assertEqual(list(axes.lines[0].get_xdata()), [1, 3])
    self.assertEqual(list(axes.lines[0].get_ydata()), [2, 1])
    (axes,) = report_plots.clipped(runs).axes
    self.assertEqual(list(axes.lines[0].get_ydata()), [75, 75, 75])
    (axes,) = report_plots.noise(runs).axes
    self.assertEqual(list(axes.lines[1].get_ydata()), [0.1, 0.1, 0.1])
    (axes,) = report_plots.speakers(runs).axes
    self.assertEqual(list(axes.lines[0].get_ydata()), [62.5, 75])
    self.assertEqual(list(axes.lines[0].get_xdata()), [25, 75])

  def test_each_run_is_in_the_legend_once(self):
    # The seed model has no loss on the dev set, the other run both.
    figure = report_plots.losses(
        run_record.read([self.seed(), self.private()])
    )
    (legend,) = figure.legends
    self.assertCountEqual(
        [text.get_text() for text in legend.get_texts()], ['seed', 'private']
    )

  def test_layers_are_means_over_rounds(self):
    (run,) = run_record.read([self.private()])
    self.assertIsNone(report_plots.layers(run))
    run.layers.update(
        layer_norm={'a': {1: 1.0, 2: 3.0}, 'b': {1: float('nan'), 2: 5.0}},
        clipped_layer_norm={'a': {1: 0.5}, 'b': {2: 2.0}},
        layer_clipped={'a': {1: 0.0, 2: 0.5}, 'b': {2: 1.0}},
    )
    left, right = report_plots.layers(run).axes
    self.assertEqual(list(left.lines[0].get_xdata()), [2.0, 5.0])
    self.assertEqual(list(left.lines[1].get_xdata()), [0.5, 2.0])
    self.assertEqual([bar.get_width() for bar in right.patches], [25, 100])
    labels = [label.get_text() for label in left.get_yticklabels()]
    self.assertEqual(labels, ['a', 'b'])

  def test_alignment_shows_each_kind(self):
    text = report_page.aligned('one two three', 'one to three four')
    self.assertIn('<td class="">one</td>', text)
    self.assertIn('<td class="substitute">to</td>', text)
    self.assertIn('<td class="insert">four</td>', text)
    self.assertIn('<td class="insert">&middot;</td>', text)
    self.assertIn('nothing was said', report_page.aligned('', ''))


if __name__ == '__main__':
  absltest.main()

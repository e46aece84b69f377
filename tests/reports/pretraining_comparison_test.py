"""Tests of tff_asr.reports.pretraining_comparison."""

import json
import os
import tempfile

from absl.testing import absltest

from tff_asr import checks
from tff_asr.reports import pretraining_comparison

_COLUMNS = (
    'round,not_private/seconds,dev_accuracy,dev_most_frequent,dev_loss,'
    'dev_prediction_perplexity,dev_label_perplexity'
)


class PretrainingComparisonTest(absltest.TestCase):

  def setUp(self):
    super().setUp()
    self.root = self.enterContext(tempfile.TemporaryDirectory())

  def write(self, name: str, *, rows, **results) -> str:
    run = os.path.join(self.root, name)
    os.makedirs(run)
    with open(os.path.join(run, 'metrics.csv'), 'w', encoding='utf-8') as f:
      f.write('\n'.join([_COLUMNS, *rows, '']))
    with open(os.path.join(run, 'results.json'), 'w', encoding='utf-8') as f:
      json.dump(results, f)
    return run

  def test_rows_by_hand(self):
    # The first step compiles, the evaluated ones take longer.
    private = self.write(
        'private',
        rows=[
            '1,90.0,,,,,',
            '2,9.0,0.04,0.05,5.5,1.0,80.0',
            '3,2.0,,,,,',
            '4,4.0,,,,,',
            '5,9.0,0.125,0.05,4.25,7.5,80.0',
        ],
        steps=5,
        trained_parameters=1234,
        privacy={'epsilon': 'inf'},
    )
    (row,) = pretraining_comparison.compare({'ours': private})
    self.assertEqual(
        row,
        pretraining_comparison.Row(
            'ours', 5, 1234, 0.125, 0.05, 4.25, 7.5, 80.0, 3.0, float('inf')
        ),
    )
    self.assertIn(
        '| 12.5 (most frequent 5.0) | 4.250 | 7.5 of 80.0',
        pretraining_comparison.to_markdown([row]),
    )

  def test_runs_without_the_figures_are_named_together(self):
    unevaluated = self.write(
        'unevaluated', rows=['1,2.0,,,,,'], steps=1, trained_parameters=5
    )
    other = self.write('other', rows=['1,2.0,,,,,'], rounds=1)
    with self.assertRaises(checks.Problems) as caught:
      pretraining_comparison.compare({
          'a': unevaluated, 'b': other, 'c': os.path.join(self.root, 'nobody'),
      })
    for message, words in zip(
        caught.exception.messages,
        ('was not evaluated', 'no run of pre-training', 'has no results.json'),
        strict=True,
    ):
      self.assertIn(words, message)


if __name__ == '__main__':
  absltest.main()

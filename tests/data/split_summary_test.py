import json
import os
import pathlib

import numpy as np

from tests import cases
from tff_asr.data import index
from tff_asr.data import split_summary

_MINUTE = 60 * 16000


def _clients(minutes) -> index.Clients:
  ones = np.ones(len(minutes), np.int64)
  return index.Clients(
      [str(i) for i in range(len(minutes))],
      0 * ones,
      0 * ones,
      2 * ones,
      np.array([m * _MINUTE for m in minutes], np.int64),
  )


class SummariesTest(cases.TestCase):

  def test_numbers(self):
    summary = split_summary.summarize(
        _clients([1, 2, 6]),
        origin=dict(
            dropped={'a': 1, 'is empty': 2},
            changed={'files y': 3, 'seconds x': 1.23456},
            attributes={'age': {'known': 2, 'contradictory': 1}},
            copies={'records': 1, 'most': 2, 'speakers': 0},
        ),
    )
    # Mean 3, variance (4 + 1 + 9) / 3.
    self.assertEqual(
        summary,
        {
            'num_clients': 3,
            'num_utterances': 6,
            'hours': 0.15,
            'minutes_per_client': {
                'min': 1.0, 'mean': 3.0, 'std': 2.1602, 'max': 6.0,
            },
            'dropped': {'a': 1, 'is empty': 2},
            'changed': {'files y': 3, 'seconds x': 1.235},
            'attributes': {'age': {'known': 2, 'contradictory': 1}},
            'copies': {'records': 1, 'most': 2, 'speakers': 0},
        },
    )

  def test_table_and_remarks(self):
    summary = split_summary.summarize(
        _clients([1, 2, 6] * 400),
        origin=dict(
            dropped={'is empty': 2},
            changed={'x': 1200},
            attributes={
                'gender': {'known': 1100, 'contradictory': 0},
                'age': {'known': 9, 'contradictory': 3},
            },
        ),
    )
    self.assertEqual(
        split_summary.table({'train': summary}).splitlines(),
        [
            '| subset | hours | utterances | speakers | min/speaker mean |  std'
            ' |  min |  max |',
            '|--------|-------|------------|----------|------------------|-----'
            '-|------|------|',
            '| train  | 60.00 |      2,400 |    1,200 |             3.00 | 2.16'
            ' | 1.00 | 6.00 |',
        ],
    )
    self.assertEqual(
        split_summary.remarks('train', summary),
        [
            'train: x: 1,200',
            'train: left out, is empty: 2 (see dropped.tsv)',
            'train: gender known for 1,100 of 1,200 speakers',
            'train: age known for 9 of 1,200 speakers; 3 left empty: several'
            ' values in the corpus',
        ],
    )

  def test_one_file_over_all_splits(self):
    summary = split_summary.summarize(_clients([1]), origin={})
    for name in 'ab':
      os.mkdir(self.path(name))
      split_summary.merge(self.root, {name: summary})
    path = self.path(split_summary.SUMMARY_FILE)
    with open(path, encoding='utf-8') as f:
      self.assertEqual(json.load(f), {'a': summary, 'b': summary})
    os.rmdir(self.path('a'))
    split_summary.merge(self.root, {'b': summary})
    self.assertEqual(json.loads(pathlib.Path(path).read_text()), {'b': summary})

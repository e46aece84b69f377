"""Tests of tff_asr.programs.run_privacy: the epsilon of a run with its unit."""

import json
import os
import tempfile

from absl.testing import absltest

from tests import fakes
from tff_asr.privacy import epsilon_report
from tff_asr.privacy import ledger
from tff_asr.privacy import parent_ledgers
from tff_asr.programs import run_privacy


class EpsilonOfRunTest(absltest.TestCase):

  def setUp(self):
    super().setUp()
    self.folder = self.enterContext(tempfile.TemporaryDirectory())
    self.path = os.path.join(self.folder, 'ledger.jsonl')

  def write(self, path: str, *, num_rounds: int, **options) -> None:
    with ledger.create(path, **options) as opened:
      for seed in range(num_rounds):
        opened.append(fakes.charged_round(seed))

  def test_a_run_of_pretraining_is_extrapolated_in_its_unit(self):
    self.write(self.path, num_rounds=2, unit='example')
    result = run_privacy.epsilon_of_run(self.folder)
    text = epsilon_report.render(
        [result, *epsilon_report.extrapolate(result, cohort_sizes=[1000])]
    )
    # 10 of 1,000 with z = 1: a hundred times as many of as many more, with as
    # much noise on the mean.
    self.assertIn('| 10 | 1,000 | 0.01 | 2 | 0.1 | 1 |', text)
    self.assertIn('| 1,000 | 100,000 | 0.01 | 2 | 0.1 | 100 |', text)
    self.assertIn('unit: example.', text)

  def test_another_unit_is_accounted_apart(self):
    other = os.path.join(self.folder, 'pretrained.jsonl')
    self.write(other, num_rounds=1, unit='example')
    parents = parent_ledgers.split((other, None), unit='speaker')
    self.write(
        self.path,
        num_rounds=3,
        unit='speaker',
        apart=parent_ledgers.carry(self.path, parents.apart),
    )
    result = run_privacy.epsilon_of_run(self.folder)
    found = json.loads(epsilon_report.render([result], output_format='json'))
    (apart,) = found['apart']
    self.assertEqual((found['unit'], found['rounds']), ('speaker', 3))
    self.assertEqual((apart['unit'], apart['rounds']), ('example', 1))
    self.assertLess(apart['epsilon'], found['epsilon'])
    self.assertRegex(
        epsilon_report.render([result]),
        r'apart +example: epsilon [\d.]+ at delta 0.0001; not added up',
    )
    table = epsilon_report.render([result], output_format='csv')
    self.assertIn('example: epsilon', table)


if __name__ == '__main__':
  absltest.main()

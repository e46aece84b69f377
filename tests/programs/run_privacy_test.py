"""Tests of tff_asr.programs.run_privacy; see also federated_test."""

import json


from tests import cases
from tests import fakes
from tff_asr.privacy import accounting
from tff_asr.privacy import epsilon_report
from tff_asr.privacy import ledger
from tff_asr.programs import run_privacy
from tff_asr.storage import run_dir


class RunPrivacyTest(cases.TestCase):

  def write(self, num_rounds, name=run_dir.LEDGER, **options):
    """A ledger of so many rounds; its path and head."""
    path = self.path(name)
    with ledger.create(path, **options) as opened:
      for number in range(num_rounds):
        opened.append(fakes.charged_round(number))
      return path, opened.head

  def test_a_run_of_pretraining_is_extrapolated_in_its_unit(self):
    self.write(2, privacy_unit='example')
    result = run_privacy.epsilon_of_run(self.root)
    text = epsilon_report.render(
        [result, *epsilon_report.extrapolate(result, cohort_sizes=[1000])]
    )
    # 10 of 1,000 with z = 1: a hundred times as many of as many more, with as
    # much noise on the mean.
    self.assertIn('| 10 | 1,000 | 0.01 | 2 | 0.1 | 1 |', text)
    self.assertIn('| 1,000 | 100,000 | 0.01 | 2 | 0.1 | 100 |', text)
    self.assertIn('unit: example.', text)

  def test_another_unit_is_accounted_apart(self):
    parent = self.write(1, 'pretrained.jsonl', privacy_unit='example')
    self.write(3, privacy_unit='speaker', parent=parent)
    result = run_privacy.epsilon_of_run(self.root)
    found = json.loads(epsilon_report.render([result], output_format='json'))
    (apart,) = found['apart']
    self.assertEqual((found['unit'], found['rounds']), ('speaker', 3))
    self.assertEqual((apart['unit'], apart['rounds']), ('example', 1))
    self.assertLess(apart['epsilon'], found['epsilon'])
    self.assertRegex(
        epsilon_report.render([result]),
        r'apart +example: epsilon [\d.]+ at delta 0.0001; not added up',
    )

  def test_the_default_delta_is_of_the_largest_population(self):
    populations = (1000, 20_000, 300)
    for number, order in enumerate(
        [populations, populations[1:] + populations[:1]]
    ):
      folder = self.path(str(number))
      with (
          run_dir.RunDir(folder, configuration='') as run,
          ledger.create(run.file(run_dir.LEDGER)) as opened,
      ):
        for round_num, population in enumerate(order):
          opened.append(fakes.charged_round(
              round_num,
              sampling=accounting.Sampling(
                  kind='poisson', cohort_size=10, population=population
              ),
          ))
        stated = run_privacy.write_statement(run, opened)
      result = run_privacy.epsilon_of_run(folder)
      self.assertEqual(stated.fields['delta'], 0.1 / 20_000)
      self.assertEqual(result.delta, 0.1 / 20_000)

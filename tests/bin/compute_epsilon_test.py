"""Tests of bin/compute_epsilon.py."""

import json
import pathlib

from tests import cases
from tests import fakes
from tests.bin import in_process
from tff_asr.privacy import accounting
from tff_asr.privacy import ledger

# The paper's first headline: epsilon 7.2.
_HEADLINE = (
    '--cohort_size=204800', '--population=69506000', '--rounds=2034',
    '--delta=1e-9',
)


class ComputeEpsilonTest(cases.TestCase):

  def run_program(self, *flags):
    return in_process.run('bin/compute_epsilon.py', *flags)

  def fields(self, *flags):
    finished = self.run_program(*flags, '--format=json')
    self.assertEqual((finished.code, finished.stderr), (0, ''))
    return json.loads(finished.stdout)

  def check_error(self, message, *flags):
    finished = self.run_program(*flags)
    self.assertEqual((finished.code, finished.stdout), (1, ''))
    self.assertRegex(finished.stderr, rf'\Aerror: .*{message}.*\n\Z')

  def test_json_of_the_paper_s_headline(self):
    found = self.fields('--sigma_mean=3e-6', *_HEADLINE)
    self.assertAlmostEqual(found['epsilon_rdp'], 7.22, delta=0.005)
    # PLD leads, and the paper's accountant can be asked for.
    self.assertAlmostEqual(found['epsilon_pld'], 6.29, delta=0.005)
    self.assertEqual(found['epsilon'], found['epsilon_pld'])
    by_rdp = self.fields('--sigma_mean=3e-6', '--accountant=rdp', *_HEADLINE)
    self.assertEqual(by_rdp['epsilon'], found['epsilon_rdp'])
    self.assertIsNone(by_rdp['epsilon_pld'])
    (group,) = found['groups']
    self.assertAlmostEqual(group['noise_multiplier'], 0.6144)
    self.assertEqual(found['neighbouring_relation'], 'add_or_remove_one')

  def test_extrapolation_prints_a_table_and_draws_it(self):
    picture = self.path('epsilon.png')
    finished = self.run_program(
        '--sigma_mean=3e-6', '--cohort_size=1024', '--population=34753',
        '--rounds=2006', '--delta=1e-9', '--extrapolate_cohorts=204800',
        '--extrapolate_populations=6950600,69506000', f'--plot={picture}',
    )
    self.assertEqual((finished.code, finished.stderr), (0, ''))
    self.assertIn('| 204,800 | 6,950,600 |', finished.stdout)
    self.assertEqual(finished.stdout.count('WER assumed, not measured'), 2)
    with open(picture, 'rb') as file:
      self.assertEqual(file.read(4), b'\x89PNG')

  def test_epsilon_of_a_run_is_that_of_its_ledger(self):
    sampling = accounting.Sampling(
        kind='fixed_size', cohort_size=1000, population=100_000
    )
    with ledger.create(self.path('ledger.jsonl')) as opened:
      for round_num in range(3):
        opened.append(fakes.charged_round(round_num, sampling=sampling))
    found = self.fields(f'--run={self.root}')
    rounds = accounting.RoundGroup(
        sampling=sampling, noise_multiplier=1.0, count=3
    )
    self.assertEqual(
        found['epsilon'],
        accounting.epsilon([rounds], delta=1e-6),
    )
    self.assertEqual(found['rounds'], 3)
    # At the delta that the run's own report has.
    pathlib.Path(self.path('privacy_report.json')).write_text(
        '{"delta": 1e-7}', 'utf-8'
    )
    found = self.fields(f'--run={self.root}')
    self.assertEqual(
        (found['delta'], found['epsilon']),
        (1e-7, accounting.epsilon([rounds], delta=1e-7)),
    )
    found = self.fields(f'--run={self.root}', '--delta=1e-6')
    self.assertEqual(found['delta'], 1e-6)
    pathlib.Path(self.path('privacy_report.json')).write_text('{}', 'utf-8')
    self.check_error(
        'is damaged .*: delete it and give --delta', f'--run={self.root}'
    )

  def test_a_run_has_the_smaller_bound_of_both_accountants(self):
    with ledger.create(self.path('ledger.jsonl')) as opened:
      opened.append(fakes.charged_round())
    found = self.fields(f'--run={self.root}')
    self.assertLess(found['epsilon_pld'], found['epsilon_rdp'])
    self.assertEqual(found['epsilon'], found['epsilon_pld'])

  def test_absurd_numbers_of_a_ledger_or_a_flag_are_one_line(self):
    path = pathlib.Path(self.path('ledger.jsonl'))
    with ledger.create(str(path)) as opened:
      opened.append(fakes.charged_round())
    header, line = map(json.loads, path.read_bytes().splitlines())
    cost = line['cost']
    for changes, name in (
        (dict(noise_multiplier=1e200), 'noise_multiplier'),
        (dict(sampler_epsilon=1e200), 'sampler_epsilon'),
        (dict(sampling=cost['sampling'] | dict(population=10**400)),
         'population'),
    ):
      path.write_bytes(
          fakes.sealed_ledger([header, line | dict(cost=cost | changes)])
      )
      self.check_error(f'{name} must be between', f'--run={self.root}')
    plan = ('--cohort_size=10', '--population=1000')
    self.check_error('noise_multiplier must be between',
                     '--noise_multiplier=1e200', '--rounds=5', *plan)
    self.check_error('count of rounds must be between',
                     '--noise_multiplier=1', f'--rounds={10**400}', *plan)
    # What is taken has an epsilon, however small.
    path.write_bytes(fakes.sealed_ledger([header, line | dict(
        cost=cost | dict(noise_multiplier=1e99, sampler_epsilon=5e-324)
    )]))
    found = self.fields(f'--run={self.root}', '--delta=5e-324')
    self.assertTrue(found['private'])
    found = self.fields('--noise_multiplier=5e-324', '--rounds=5', *plan)
    self.assertEqual(found['epsilon'], 'inf')

  def test_missing_or_impossible_arguments_are_one_line(self):
    self.check_error('two of .* must be given', *_HEADLINE)
    self.check_error(f'{self.root} has no privacy ledger',
                     f'--run={self.root}')
    self.check_error('PLD cannot be used: RDP gives', '--sigma_mean=1e-8',
                     '--accountant=pld', *_HEADLINE)

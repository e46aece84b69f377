"""Tests of bin/plan.py."""

import json

from tests import cases
from tests import fakes
from tests.bin import in_process
from tests.bin import programs
from tff_asr.privacy import planning

_KNOWN = ('--num_people=12000', '--delta=1e-5', '--epsilon=4.94')


class PlanTest(cases.TestCase):

  def run_program(self, *flags):
    return in_process.run('bin/plan.py', *flags)

  def check_error(self, message, *flags):
    finished = self.run_program(*flags)
    self.assertEqual((finished.code, finished.stdout), (1, ''))
    self.assertRegex(finished.stderr, rf'\Aerror: .*{message}.*\n\Z')

  def test_plan_without_a_model(self):
    flags = (
        *_KNOWN, '--num_parameters=628448', '--signal=0.2', '--rounds=20',
        '--cohort_sizes=1000,12000', '--clients_per_second=10',
    )
    finished = self.run_program(*flags)
    self.assertEqual((finished.code, finished.stderr), (0, ''))
    # 20,000 and 240,000 visits of a tenth of a second.
    for row in (
        r'\| 12,000 \| 1,000 +\| 20 +\| 0\.800 \| 0\.63 +\| 0\.200 +\| 1\.41 +\| 0\.56 ',
        r'\| 12,000 \| 12,000 \| 20 +\| 4\.030 \| 0\.27 +\| 0\.200 +\| 3\.36 +\| 6\.7 ',
    ):
      self.assertRegex(finished.stdout, row)
    self.assertRegex(
        finished.stdout,
        r'\n\nEpsilon 4\.94 by PLD at delta 1e-05, 12,000 people\. With 20 '
        r'rounds of 12,000, expect about .* of what training without privacy '
        r'would gain \(\d+%, \d+% to \d+%[^)]*\)\.\n\Z',
    )
    finished = self.run_program(*flags, '--max_hours=1', '--format=json')
    found = json.loads(finished.stdout)
    (run,) = found['runs']
    self.assertTrue(run['recommended'])
    self.assertAlmostEqual(run['noise_multiplier'], 0.8, delta=1e-3)
    self.assertAlmostEqual(run['hours'], 20_000 / 36_000)
    self.assertAlmostEqual(
        run['share'], planning.fit_curve().share(run['signal_to_noise'])
    )
    self.assertEqual(found['goal']['delta'], 1e-5)
    both = ('--num_people=12000,24000', '--cohort_sizes=12000')
    finished = self.run_program(*flags, *both)
    self.assertEqual(finished.stdout.count('rounds of 12,000, expect'), 2)
    # Half of the people come: less noise than if all of them did.
    self.assertRegex(finished.stdout, r'\n\| 24,000 \| 12,000 \| 20 +\| 2\.')
    found = json.loads(self.run_program(*flags, *both, '--format=json').stdout)
    self.assertEqual(
        [plan['goal']['num_people'] for plan in found], [12_000, 24_000]
    )

  def test_signal_of_a_seed_run_on_dev_people(self):
    dev = fakes.write_split(self.path('dev'), {'dan': 2, 'eve': 2, 'fay': 2})
    seed = self.path('seed')
    shards = fakes.write_split(self.path('seed_shards'), {'ann': 1, 'bob': 1})
    settings = programs.TINY + (
        f'TRAIN_DIR = {shards!r}', f'DEV_DIR = {dev!r}', 'NUM_STEPS = 1',
    )
    finished = in_process.run(
        'bin/train_central.py', f'--output_dir={seed}',
        '--gin_file=gin/experiments/quickstart_seed.gin',
        *(f'--gin_param={setting}' for setting in settings),
    )
    self.assertEqual(finished.code, 0, finished.stderr)
    flags = (
        *_KNOWN, f'--run={seed}', f'--public_dir={dev}', '--num_utterances=1',
        '--cohort_sizes=12000', '--rounds=20', '--format=json',
    )
    plain = json.loads(self.run_program(*flags).stdout)
    self.assertBetween(plain['goal']['signal'], 0, 1)
    self.assertGreater(plain['goal']['clients_per_sec'], 0)
    # The planned run's configuration trains less, and clips by one norm.
    configuration = (
        '--gin_file=gin/experiments/quickstart_federated_dp.gin',
        *(f'--gin_param={setting}' for setting in programs.TINY),
        f'--gin_param={programs.FROZEN}',
        "--gin_param=CLIP_SPLIT = 'global'",
    )
    configured = json.loads(self.run_program(*flags, *configuration).stdout)
    self.assertLess(
        configured['goal']['num_parameters'], plain['goal']['num_parameters']
    )
    self.assertNotEqual(configured['goal']['signal'], plain['goal']['signal'])
    # --dry_run says the same of two utterances, which dev people have.
    private = fakes.write_split(self.path('private'), {'gus': 1, 'hal': 1})
    finished = in_process.run(
        'bin/train_federated.py', '--dry_run', f'--output_dir={self.root}/run',
        *configuration,
        f'--gin_param=PRIVATE_DIR = {private!r}',
        f'--gin_param=DEV_DIR = {dev!r}',
        f'--gin_param=INIT_FROM_RUN = {seed!r}',
        '--gin_param=COHORT_SIZE = 2',
        '--gin_param=TARGET_EPSILON = None',
    )
    self.assertEqual(finished.code, 0, finished.stderr)
    signal = min(1.0, 2**0.5 * configured['goal']['signal'])
    noise = 0.8 * configured['goal']['num_parameters'] ** 0.5 / 2
    ratio = 20**0.5 * signal / noise
    expectation = planning.expectation(ratio).partition(' (')[0]
    for part in (
        f'noise / C:    {noise:.3g} on the mean of each round',
        f'signal / C:   {signal:.3g} for 2 utterances a person, by 3 dev ',
        f'forecast:     20 rounds have a signal to noise of {ratio:.2g}: '
        f'{expectation} (',
        f'data:         2 speakers ({private})\n',
    ):
      self.assertIn(part, finished.stdout)

  def test_bad_flags_are_one_line(self):
    self.check_error('give --run, --public_dir and --num_utterances', *_KNOWN)
    self.check_error(
        '--run needs --public_dir', *_KNOWN, f'--run={self.root}',
    )
    known = (*_KNOWN, '--num_parameters=10')
    self.check_error('signal must be between 0 and 1', *known, '--signal=2')
    known += ('--signal=0.1',)
    self.check_error(
        '--rounds must be integers of at least 1, found 5,x', *known,
        '--rounds=5,x',
    )
    self.check_error('needs the speed of this machine', *known,
                     '--max_hours=1')
    self.check_error('smaller --cohort_sizes', *known, '--cohort_sizes=13000')
    self.check_error('share must be', *known, '--share=1.5', '--rounds=10',
                     '--cohort_sizes=12000')

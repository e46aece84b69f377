"""Tests of bin/run_quickstart.py: its plan and its screen.

The programs that it starts do not run: a double writes what they would leave.
"""

import json
import os
import pathlib
import runpy
import subprocess
import sys
import time
from unittest import mock

from absl.testing import absltest
from absl.testing import parameterized

from tests import cases
from tests.bin import in_process
from tests.bin import programs
from tests.reports import run_folders
from tff_asr.privacy import accounting
from tff_asr.programs import trial

_PROGRAM = 'bin/run_quickstart.py'
_COLUMNS = 100
_PRIVACY = run_folders.privacy(
    epsilon=4.94321, noise_multiplier=0.8, cohort_size=1000, population=12_000
) | {
    'private': True, 'epsilon_pld': 4.94321, 'epsilon_rdp': 5.86123,
    'rounds_over_noise': 7.0517,
}
_PRIVACY['groups'][0]['noise_over_clip'] = 0.6342
# Longer than a line.
_TEXT = 'everyone wrote another letter ' * 6


class _Programs:
  """Stands for `subprocess.Popen`: notes the programs, and leaves their runs.

  Attributes:
    commands: The arguments of each, without Python.
  """

  def __init__(self, *, fails: str = 'nothing'):
    self.commands = []
    self._fails = fails

  def __call__(self, arguments):
    self.commands.append(arguments[1:])
    settings = dict(each.split('=', 1) for each in arguments if '=' in each)
    if 'train_' in arguments[1]:
      _write_run(settings['--output_dir'])
    code = 7 if self._fails in ' '.join(arguments) else 0
    return mock.Mock(wait=lambda *unused_timeout: code)


def _write_run(folder: str) -> None:
  """Writes a run that was evaluated with a language model."""
  # The private run has two fifths of the gain of the one without privacy.
  wrong, privacy = {
      'federated_dp': (3300, _PRIVACY),
      'federated': (3000, run_folders.privacy(noise_multiplier=0.0)),
  }.get(os.path.basename(folder), (3500, None))
  speakers = [f's{number}' for number in range(10)]
  run_folders.write(
      folder,
      settings=run_folders.SEED['settings'],
      metrics={'dev_word_error_rate': {10: 0.4}},
      results={'rounds': 20, 'seconds': 100.0},
      errors={speaker: (wrong, 10_000) for speaker in speakers},
      errors_with_lm={speaker: (wrong // 3, 10_000) for speaker in speakers},
      hypotheses=[(speaker, _TEXT, folder) for speaker in speakers],
      privacy=privacy,
  )
  path = pathlib.Path(folder, 'test.json')
  content = json.loads(path.read_text())
  for each in content['hypotheses']:
    each['text_with_lm'] = f'{each["text"]} {_TEXT}'
  path.write_text(json.dumps(content))


class QuickstartTest(cases.TestCase):

  def run_program(self, *flags, programs_started) -> programs.Finished:
    with mock.patch.object(subprocess, 'Popen', programs_started), (
        mock.patch.object(trial, 'step_sec', return_value=0.05)
    ):
      return in_process.run(
          _PROGRAM,
          f'--data_dir={self.path("data")}',
          f'--runs_dir={self.path("runs")}',
          *flags,
      )

  @parameterized.parameters([[]], [['--small', '--twin']])
  def test_no_line_is_wider_than_the_terminal(self, flags):
    finished = self.run_program(*flags, programs_started=_Programs())
    self.assertEqual(finished.code, 0, finished.stderr)
    # With the folders' default names.
    lines = finished.stdout.replace(f'{self.root}/', 'quickstart_').splitlines()
    self.assertEmpty([line for line in lines if len(line) > _COLUMNS])
    self.assertIn('\nnoise / C a round: 0.634; sqrt(rounds) / (noise / C): '
                  '7.05\n', finished.stdout)
    share = (
        'federated + DP: share of the gain of no DP over seed (95 %): 40 % (40 '
        'to 40) greedily, 40 % (40 to 40) with the LM'
    )
    self.assertEqual(
        share in ' '.join(finished.stdout.split()), '--twin' in flags
    )
    # All of the shown transcripts are cut.
    self.assertLen([line for line in lines if line.endswith(' ...')], 9)

  def test_a_second_call_keeps_what_is_there(self):
    first, second = _Programs(), _Programs()
    self.run_program(programs_started=first)
    pathlib.Path(self.path('data')).mkdir()
    pathlib.Path(self.path('data'), 'public.arpa').touch()
    finished = self.run_program(programs_started=second)
    started = [
        [os.path.basename(command[0]) for command in each.commands
         if command[0] != '-m']
        for each in (first, second)
    ]
    self.assertEqual(started, [
        ['train_central.py'] * 2 + ['train_federated.py', 'evaluate.py'],
        ['evaluate.py'],
    ])
    self.assertIn('runs/federated_dp is there.\n', finished.stdout)

  def test_full_adds_a_private_run_of_equal_epsilon(self):
    started = _Programs()
    finished = self.run_program('--full', programs_started=started)
    self.assertEqual(finished.code, 0, finished.stderr)
    runs = {}
    for command in started.commands:
      if command[0].endswith('train_federated.py'):
        settings = dict(
            each.removeprefix('--gin_param=').split(' = ', 1)
            for each in command if each.startswith('--gin_param=')
        )
        folder = command[1].removeprefix('--output_dir=')
        runs[os.path.basename(folder)] = settings
    self.assertEqual([*runs], ['federated_dp', 'federated_dp_full'])
    self.assertNotIn('COHORT_SIZE', runs['federated_dp'])
    full = runs['federated_dp_full']
    # The default run's: 1,000 of 12,000, z .8, 20 rounds.
    epsilons = [
        accounting.epsilon_by_pld(
            [accounting.RoundGroup(
                sampling=accounting.Sampling(
                    kind='poisson', cohort_size=size, population=12_000
                ),
                noise_multiplier=z,
                count=20,
            )],
            delta=1e-5,
        )[0]
        for size, z in (
            (1000, 0.8),
            (int(full['COHORT_SIZE']), float(full['NOISE_MULTIPLIER'])),
        )
    ]
    self.assertAlmostEqual(*epsilons, delta=0.01)

  def test_full_is_for_the_whole_population(self):
    finished = self.run_program(
        '--full', '--small', programs_started=_Programs()
    )
    self.assertEqual(finished.code, 1)
    self.assertIn('--full is for generated speech', finished.stderr)

  def test_a_program_that_fails_ends_it_with_its_code(self):
    started = _Programs(fails='train_federated')
    finished = self.run_program(programs_started=started)
    self.assertEqual(finished.code, 7)
    self.assertNotIn('evaluate', ' '.join(sum(started.commands, [])))

  @parameterized.parameters((130, 0), (-2, 1))
  def test_ctrl_c_is_said_once(self, code, num_lines):
    # By the program that runs, unless it was still importing.
    program = mock.Mock(wait=mock.Mock(side_effect=[KeyboardInterrupt, code]))
    finished = self.run_program(programs_started=lambda *_: program)
    self.assertEqual(finished.code, 130)
    self.assertEqual(finished.stderr.count('interrupted: '), num_lines)

  def test_time_left_is_scaled_by_the_phases_that_were_done(self):
    now = 0.0
    with in_process.own_flags(os.path.join(programs.ROOT, _PROGRAM)), (
        mock.patch.object(sys, 'argv', [_PROGRAM])
    ):
      build = runpy.run_path(os.path.join(programs.ROOT, _PROGRAM))['_Plan']
    with mock.patch.object(time, 'monotonic', lambda: now):
      plan = build({'done before': 0, 'first': 60, 'second': 180})
      self.assertEqual(plan.whole_minutes(), 4.0)
      plan.begin('done before', '')
      now = 6.0
      plan.end()
      self.assertAlmostEqual(plan.whole_minutes(), 0.1 + 4)
      plan.begin('first', '')
      now = 126.0
      plan.end()
      # It took twice as long: so will the second.
      self.assertAlmostEqual(plan.whole_minutes(), 2.1 + 6)
      self.assertEqual(plan.minutes, 2.1)


if __name__ == '__main__':
  absltest.main()

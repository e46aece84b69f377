"""Runs that are killed repeatedly end in the same bits as whole runs.

`benchmarks/kills.py` kills toy runs at random points and compares them with
whole ones (`tests/programs/run_state_test.py` at each change of a file).
Here the whole bin/train_federated.py draws its own keys and charges each round
once: a repeated round is charged again unless it gives the very same bits,
noise included, so the number of charged rounds checks both.
"""

import asyncio
import json
import os
import pathlib
import signal
import subprocess
import sys

from absl.testing import parameterized
import pytest

from benchmarks import toy_runs
from tests import cases
from tests import fakes
from tests.bin import programs
from tff_asr import files
from tff_asr.privacy import ledger as ledger_lib
from tff_asr.storage import run_dir
from tff_asr.storage import state_file

_NUM_ROUNDS = 8


class RandomKillsTest(cases.TestCase):

  @parameterized.parameters(
      ('federated', 25, 60), ('central', 10, 40), ('pretrain', 10, 40)
  )
  @pytest.mark.slow
  def test_many_kills_change_nothing(self, program, num_kills, num_rounds):
    path = self.path('figures.json')
    finished = subprocess.run(
        [
            sys.executable,
            '-m',
            'benchmarks.kills',
            f'--program={program}',
            f'--kills={num_kills}',
            f'--rounds={num_rounds}',
            f'--json={path}',
        ],
        cwd=programs.ROOT,
        env={**os.environ, 'PYTHONPATH': str(programs.ROOT)},
        capture_output=True,
        check=False,
        text=True,
    )
    self.assertEqual(
        finished.returncode, 0, finished.stdout + finished.stderr
    )
    figures = json.loads(pathlib.Path(path).read_text())
    self.assertEqual(figures['kills'], num_kills)
    self.assertEqual(figures['differences'], [])
    if program != 'central':
      self.assertEqual(figures['rounds_in_ledger'], num_rounds)
    self.assertGreater(figures['kills_while_writing'], 0)


class CompareTest(cases.TestCase):
  """Differences that the comparison with a whole run notices."""

  def write(self, name: str, *, weight=1.0, version=2, rounds=2, rows=2):
    run = self.path(name)
    with run_dir.RunDir(run, configuration='') as folder:
      asyncio.run(folder.state_manager.save({'weight': weight}, version))
      folder.write_model({'w': [weight]}, tokens='a')
      with ledger_lib.create(folder.file(run_dir.LEDGER)) as ledger:
        for number in range(rounds):
          ledger.append(fakes.charged_round(number))
      files.write_text(
          folder.file('metrics.csv'),
          'round,loss,seconds\n'
          + ''.join(f'{n},0.5,{len(name)}\n' for n in range(rows)),
      )
    return run

  def test_each_difference_is_found_and_seconds_are_none(self):
    whole = self.write('whole')
    self.assertEmpty(toy_runs.compare(whole, self.write('equal_one')))
    for change, found in (
        ({'weight': 1.5}, 'weight differs'),
        ({'version': 3}, 'hold other things'),
        ({'rounds': 3}, 'ledger'),
        ({'rows': 1}, 'metrics'),
    ):
      killed = self.write(f'killed_{"".join(change)}', **change)
      self.assertIn(found, ' '.join(toy_runs.compare(whole, killed)))


@pytest.mark.slow
class KillTest(cases.TestCase):

  def setUp(self):
    super().setUp()
    self.tiny = programs.write_tiny(self.path('shards'))
    self.run_dir = self.path('run')
    self.ledger = os.path.join(self.run_dir, 'ledger.jsonl')

  def run_program(self, **kwargs) -> programs.Ended:
    return programs.run(
        'train_federated',
        f'--output_dir={self.run_dir}',
        '--gin_file=gin/experiments/quickstart_federated_dp.gin',
        gin_params=self.tiny
        + (
            f'NUM_ROUNDS = {_NUM_ROUNDS}',
            'NOISE_MULTIPLIER = 10.0',
            # States are saved less often than rounds are charged.
            'SAVE_EVERY = 3',
        ),
        **kwargs,
    )

  def num_lines(self) -> int:
    if not os.path.exists(self.ledger):
      return 0
    return pathlib.Path(self.ledger).read_bytes().count(b'\n')

  def test_killed_at_any_round_it_charges_each_round_once(self):
    # Before the first round, ahead of the saved state, and just after it.
    for lines in (1, 3, 5, 6):
      ended = self.run_program(
          send=signal.SIGKILL, when=lambda _: self.num_lines() >= lines
      )
      self.assertEqual(ended.code, -signal.SIGKILL, ended.stderr)
      state = run_dir.newest_state_path(self.run_dir)
      if state is not None:
        # The ledger is the saved state's, and not behind it.
        leaves = state_file.read_leaves(state)
        head = leaves['ledger/count'], leaves['ledger/digest']
        ledger_lib.read(self.ledger, head=ledger_lib.Head(*head))
    ended = self.run_program()
    self.assertEqual(ended.code, 0, ended.stderr)
    self.assertNotIn('differently', ended.stderr)
    (rounds,) = ledger_lib.read(self.ledger).rounds
    self.assertEqual(rounds.count, _NUM_ROUNDS)

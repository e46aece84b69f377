"""bin/train_federated.py, killed again and again, charges each round once.

A repeated round is charged again unless it gives the very same bits, noise
included, so the number of charged rounds tells both.
"""

import os
import signal
import tempfile

from absl.testing import absltest
import pytest

from tests.bin import programs
from tff_asr.privacy import ledger as ledger_lib
from tff_asr.programs import charged

# BUILD size: large

_NUM_ROUNDS = 8


@pytest.mark.slow
class KillTest(absltest.TestCase):

  def setUp(self):
    super().setUp()
    root = self.enterContext(tempfile.TemporaryDirectory())
    self.tiny = programs.write_tiny(os.path.join(root, 'shards'))
    self.run_dir = os.path.join(root, 'run')
    self.ledger = os.path.join(self.run_dir, 'ledger.jsonl')

  def run_program(self, **kwargs) -> programs.Ended:
    return programs.run_in_session(
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
    with open(self.ledger, 'rb') as file:
      return file.read().count(b'\n')

  def test_killed_at_any_round_it_charges_each_round_once(self):
    # Before the first round, ahead of the saved state, and just after it.
    for lines in (1, 3, 5, 6):
      ended = self.run_program(
          send=signal.SIGKILL, when=lambda: self.num_lines() >= lines
      )
      self.assertEqual(ended.code, -signal.SIGKILL, ended.stderr)
      head = charged.saved_head(self.run_dir)
      if head is not None:
        # The ledger is the saved state's, and not behind it.
        ledger_lib.read(self.ledger, head=head)
    ended = self.run_program()
    self.assertEqual(ended.code, 0, ended.stderr)
    self.assertNotIn('differently', ended.stderr)
    (rounds,) = ledger_lib.read(self.ledger).rounds
    self.assertEqual(rounds.count, _NUM_ROUNDS)


if __name__ == '__main__':
  absltest.main()

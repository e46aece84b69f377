"""No process or file of bin/train_federated.py is left, however it ends."""

import os
import signal
import time

from absl.testing import parameterized
import pytest

from tests import cases
from tests import fakes
from tests.bin import programs

_RESUME = ': the same command continues from the last saved state.'
# A client's work that outlasts any test: a signal comes in the middle of it.
_ENDLESS = 'NUM_LOCAL_STEPS = 1000000'


class EndingsTest(cases.TestCase):

  def setUp(self):
    super().setUp()
    self.shards = self.path('shards')
    self.tiny = programs.write_tiny(self.shards)
    self.run_dir = self.path('run')

  def run_program(
      self, context: str, *gin_params: str, **kwargs
  ) -> programs.Ended:
    native = ('--gin_file=gin/execution/native.gin',)
    ended = programs.run(
        'train_federated',
        f'--output_dir={self.run_dir}',
        '--gin_file=gin/experiments/quickstart_federated.gin',
        *(native if context == 'native' else ()),
        gin_params=self.tiny
        + (
            'NUM_ROUNDS = 1',
            'BUILD_COHORTS = @cohorts.fixed_size',
            'SAVE_EVERY = 1',
            # TFF's worker listens on all addresses, for the test's seconds.
            *(('TRUST_NETWORK = True',) if context == 'native' else ()),
        )
        + gin_params,
        **kwargs,
    )
    self.assertEmpty(ended.left)
    return ended

  def num_rounds(self) -> int:
    """Rounds that the run has charged; each is a line after the first."""
    path = os.path.join(self.run_dir, 'ledger.jsonl')
    if not os.path.exists(path):
      return -1
    with open(path, encoding='utf-8') as f:
      return len(f.readlines()) - 1

  # Ctrl-C and kill.
  @parameterized.product(
      context=('default', 'native'),
      send_and_word=(
          (signal.SIGINT, 'interrupted'), (signal.SIGTERM, 'terminated')
      ),
  )
  @pytest.mark.slow
  def test_the_same_command_resumes_after_a_signal(
      self, context, send_and_word
  ):
    send, word = send_and_word
    ended = self.run_program(
        context,
        'NUM_ROUNDS = 1000000',
        send=send,
        when=lambda _: self.num_rounds() > 2,
    )
    self.assertEqual(ended.code, 128 + send, ended.stderr)
    # The native context chooses by itself how many clients train at once.
    self.assertRegex(ended.stdout, r'^(clients at once: .*\n)?$')
    *progress, last = ended.stderr.splitlines()
    self.assertEqual(last, word + _RESUME, ended.stderr)
    for line in progress:
      self.assertRegex(line, '^federated: round ')
    # The same command resumes, for one more round.
    done = self.num_rounds()
    resumed = self.run_program(context, f'NUM_ROUNDS = {done + 1}')
    self.assertEqual(resumed.code, 0, resumed.stderr)
    self.assertRegex(
        resumed.stderr.splitlines()[-1], f'round {done + 1} of {done + 1}, '
    )
    # It went on from the saved state, and did not start over.
    self.assertNotIn('round 1 of', resumed.stderr)

  @parameterized.parameters('default', 'native')
  @pytest.mark.slow
  def test_error_in_a_round(self, context):
    # One byte of a record's audio, which its checksum tells.
    path = os.path.join(self.shards, 'shard-00000.tfrecord')
    fakes.damage(path, offset=2000)
    ended = self.run_program(context, 'COHORT_SIZE = 3')
    self.assertEqual(ended.code, 1, ended.stderr)
    # The shard and the place in it, in one line, and no client's name.
    self.assertRegex(
        ended.stderr,
        r'\Aerror: .*the record at byte \d+ of .*shard-00000.tfrecord is '
        r'missing or damaged; .*\n\Z',
    )

  @parameterized.parameters(signal.SIGINT, signal.SIGTERM)
  @pytest.mark.slow
  def test_native_does_not_wait_for_the_end_of_a_round(self, send):
    # The native context compiles in some seconds, and is in the round then.
    seen = []

    def is_in_round(_) -> bool:
      if self.num_rounds() == 0:
        seen.append(time.monotonic())
      return bool(seen) and time.monotonic() - seen[0] > 15

    ended = self.run_program('native', _ENDLESS, send=send, when=is_in_round)
    self.assertEqual(ended.code, 128 + send, ended.stderr)
    self.assertLess(ended.seconds, 60)

"""Runs that are killed again and again end in the bits of whole ones.

A disk that stops at any change of a file shows what a kill there leaves, within
this process, so that a run's graphs are traced once. `benchmarks/kills.py`
kills toy runs at random points and compares them with whole ones.
bin/train_federated.py as a whole, with keys of its own, charges each round
once: a repeated round is charged again unless it gives the very same bits,
noise included, so the number of charged rounds tells both.
"""

import asyncio
from collections.abc import Iterator
import contextlib
import functools
import json
import os
import signal
import subprocess
import sys
import tempfile
from unittest import mock

from absl.testing import absltest
from absl.testing import parameterized
import pytest
import tensorflow_federated as tff

from benchmarks import toy_runs
from tests import fakes
from tests.bin import programs
from tff_asr.aggregators import dp_mean
from tff_asr.data import client_data
from tff_asr.data import cohorts
from tff_asr.execution import multi_device
from tff_asr.learning import client_update
from tff_asr.learning import fed_avg
from tff_asr.privacy import accounting
from tff_asr.privacy import ledger as ledger_lib
from tff_asr.privacy import queries
from tff_asr.programs import federated
from tff_asr.programs import run_privacy
from tff_asr.programs import training_loop
from tff_asr.storage import run_dir

_NUM_ROUNDS = 8
_NUM_SHORT = 5
_CHANGES = ('write', 'ftruncate', 'fsync', 'replace', 'remove')


class _Killed(BaseException):
  """Not an `Exception`: nothing is saved after it."""


@contextlib.contextmanager
def _killed_at(*places: str) -> Iterator[None]:
  """Stops the disk for good before a change.

  Args:
    *places: What changes name, one after the other; the change that names the
      last one is not made. None: it goes on.
  """
  left = list(places)
  is_dead = False

  def change(function, *arguments):
    nonlocal is_dead
    if left and left[0] in repr(arguments):
      left.pop(0)
      is_dead = not left
    if is_dead:
      raise _Killed()
    return function(*arguments)

  with contextlib.ExitStack() as stack:
    for name in _CHANGES:
      function = functools.partial(change, getattr(os, name))
      stack.enter_context(mock.patch.object(os, name, function))
    yield


class StoppedDiskTest(absltest.TestCase):

  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    cls.root = cls.enterClassContext(tempfile.TemporaryDirectory())
    data = client_data.load(fakes.write_split(
        os.path.join(cls.root, 'shards'), {'ann': 2, 'bob': 2, 'cai': 1}
    ))
    model = fakes.tiny_model(num_blocks=1)
    parts = dict(
        model=model, pipeline=fakes.tiny_pipeline(model), client_data=data
    )
    process = fed_avg.build(
        **parts,
        aggregator=dp_mean.build(
            build_query=functools.partial(
                queries.PerLayerClipSumQuery,
                l2_norm_clip=0.1,
                noise_multiplier=3.0,
            ),
            cohort_size=2,
        ),
        server_optimizer=tff.learning.optimizers.build_adam(0.01),
        local=client_update.LocalTraining(learning_rate=0.01, num_steps=1),
        seed=5,
    )
    cls.parts = parts | dict(
        configuration='SEED = 1\n',
        learning_process=process,
        build_cohorts=functools.partial(cohorts.poisson, cohort_size=2),
        context=multi_device.build_async_context(),
        settings=training_loop.RunSettings(save_every=2),
        privacy=training_loop.PrivacySettings(noise_seed=1, sampler_seed=2),
        num_rounds=_NUM_SHORT,
    )

  def train(self, run: str, *killed_at: str) -> None:
    """Trains on until it is killed."""
    with _killed_at(*killed_at), toy_runs.quiet():
      asyncio.run(training_loop.run(federated.FederatedTraining(
          output_dir=os.path.join(self.root, run), **self.parts
      )))

  def test_killed_at_changes_of_its_files_it_ends_in_the_same_bits(self):
    whole, killed = (os.path.join(self.root, n) for n in ('whole', 'killed'))
    self.train('whole')
    self.assertLen(toy_runs.ledger_rounds(whole), _NUM_SHORT)
    # Each goes on where the one before was killed; rows of metrics by number.
    # Twice a state is there and its secrets are not; then they are erased.
    for killed_at in (
        ('machine.json',),
        ('state_00000000.bin',),
        ('secrets.bin',),
        ("b'2,",),
        ('state_00000002.bin',),
        ('state_00000002.bin', "secrets.bin')"),
        ("b'4,",),
        ("/secrets.bin',)",),
        ('model.state',),
        ('results.json',),
    ):
      with self.assertRaises(_Killed):
        self.train('killed', *killed_at)
    self.train('killed')
    self.assertEmpty(toy_runs.compare(whole, killed))


class RandomKillsTest(parameterized.TestCase):

  @parameterized.parameters(
      ('federated', 25, 60), ('central', 10, 40), ('pretrain', 10, 40)
  )
  @pytest.mark.slow
  def test_many_kills_change_nothing(self, program, num_kills, num_rounds):
    folder = self.enterContext(tempfile.TemporaryDirectory())
    path = os.path.join(folder, 'figures.json')
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
    with open(path, encoding='utf-8') as f:
      figures = json.load(f)
    self.assertEqual(figures['kills'], num_kills)
    self.assertEqual(figures['differences'], [])
    if program != 'central':
      self.assertEqual(figures['rounds_in_ledger'], num_rounds)
    self.assertGreater(figures['kills_while_writing'], 0)


class CompareTest(absltest.TestCase):
  """Differences that the comparison with a whole run notices."""

  def setUp(self):
    super().setUp()
    self.root = self.enterContext(tempfile.TemporaryDirectory())

  def write(self, name: str, *, weight=1.0, version=2, rounds=2, rows=2):
    run = os.path.join(self.root, name)
    with run_dir.RunDir(run, configuration='') as folder:
      folder.state_manager.save_sync({'weight': weight}, version)
      folder.write_model({'w': [weight]}, tokens='a')
      with ledger_lib.create(folder.file(run_dir.LEDGER)) as ledger:
        for number in range(rounds):
          ledger.append(ledger_lib.Round(
              round_num=number,
              sampling=accounting.Sampling(
                  kind='poisson', cohort_size=1, population=2
              ),
              noise_multipliers=(1.0,),
              configuration='',
              identity=f'{number:064x}',
          ))
      folder.write_text(
          'metrics.csv',
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
      head = run_privacy.saved_head(self.run_dir)
      if head is not None:
        # The ledger is the saved state's, and not behind it.
        ledger_lib.read(self.ledger, head=head)
    ended = self.run_program()
    self.assertEqual(ended.code, 0, ended.stderr)
    self.assertNotIn('differently', ended.stderr)
    (rounds,) = ledger_lib.read(self.ledger).rounds
    self.assertEqual(rounds.count, _NUM_ROUNDS)

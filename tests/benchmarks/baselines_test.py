"""The benchmarks against baselines refuse baselines that do other work."""

import json
import os
import pathlib
import subprocess
import sys
import time

from absl.testing import parameterized
import numpy as np
import pytest

from benchmarks import memory
from benchmarks.baselines import job as job_lib
from benchmarks.baselines import turns
from tests import cases

_ROOT = os.path.join(os.path.dirname(__file__), '..', '..')
_OURS = turns.Baseline(venv=None, program='ours_step')
# Allocates some MB, of which a child that left its parent has half, until its
# input ends.
_HUNGRY = """
import subprocess, sys
child = 'import sys; held = bytearray(50 << 20); sys.stdin.read()'
subprocess.Popen([sys.executable, '-c', child], start_new_session=True)
held = bytearray(50 << 20)
sys.stdin.read()
"""


class JobTest(cases.TestCase):

  def test_is_the_same_after_saving_and_loading(self):
    job = _job(noise_multiplier=0.5)
    job.save(self.root)
    self.assertEqual(job_lib.load(self.root), job)
    # 3 clients x 2 steps x 4 utterances x 2.5 s.
    self.assertEqual((job.num_utterances, job.audio_sec), (8, 60.0))

  def test_a_folder_without_a_job_is_refused(self):
    with self.assertRaisesRegex(ValueError, '--job .* has no job.json'):
      job_lib.load(self.root)

  def test_figures_are_found_between_other_lines(self):
    said = (
        'INFO: Round 1\nBASELINE {"seconds": 1.5}\n'
        'BASELINES\nBASELINE {"seconds": 2}'
    )
    self.assertEqual(job_lib.read_figures(said), [{'seconds': 1.5}, {'seconds': 2}])


class CheckTest(parameterized.TestCase):

  def _check(self, loss=2.0, weight=(3.0, 4.0), name='w'):
    job_lib.check_twin(
        loss=loss,
        gradients={name: np.array(weight, np.float32)},
        expected={
            'loss': np.float32(2.0),
            'gradient/w': np.array([3.0, 4.0], np.float32),
            'features': np.zeros([1, 2, 3]),
        },
    )

  def test_accepts_differences_of_rounding(self):
    # Relative: 5e-5 of the loss; (0, 0.004) of norm 5 are 8e-4.
    self._check(loss=2.0001, weight=(3.0, 4.004))

  @parameterized.named_parameters(
      # 2e-4 of the loss.
      ('loss', {'loss': 2.0004}, "twin's loss is 0.0002 from ours"),
      ('loss_nan', {'loss': float('nan')}, "twin's loss is nan"),
      # (0, 0.01) of norm 5: 2e-3.
      ('gradient', {'weight': (3.0, 4.01)}, "twin's w is 0.002 from ours"),
      ('gradient_nan', {'weight': (np.nan, 4.0)}, "twin's w is nan"),
      ('name', {'name': 'v'}, 'other weights than ours'),
      ('shape', {'weight': (3.0,)}, r'Found shape \(1,\), expected \(2,\)'),
  )
  def test_refuses(self, changes, message):
    with self.assertRaisesRegex(ValueError, message):
      self._check(**changes)

  def test_difference_of_updates(self):
    initial = {'a': np.array([1.0, 1.0]), 'b': np.array([[2.0]])}
    ours = {'a': np.array([4.0, 1.0]), 'b': np.array([[6.0]])}
    theirs = {'a': np.array([4.0, 1.3]), 'b': np.array([[6.4]])}
    # Ours has norm |(3, 0, 4)| = 5, the difference |(0, 0.3, 0.4)| = 0.5.
    self.assertAlmostEqual(
        job_lib.update_difference(theirs, ours, initial=initial), 0.1
    )
    with self.assertRaisesRegex(ValueError, 'different names'):
      job_lib.update_difference(theirs, {'b': ours['b']}, initial=initial)


class TurnsTest(parameterized.TestCase):

  def test_selects_in_the_order_of_all_what_can_run(self):
    other = turns.Baseline(venv='no_such', program='torch_step')
    baselines = {'a': _OURS, 'b': _OURS, 'c': _OURS, 'd': other}
    selected = turns.select(['c', 'a'], baselines, flag='baselines')
    self.assertEqual(list(selected), ['a', 'c'])
    for name, message in (
        ('e', "--baselines takes a, b, c, d, found 'e'"),
        ('d', 'run benchmarks/baselines/make_venvs.sh no_such, or leave it'),
    ):
      with self.assertRaisesRegex(ValueError, message):
        turns.select([name], baselines, flag='baselines')

  def test_a_program_without_figures_is_an_error(self):
    # A module that is no program: it ends at once, and well.
    silent = turns.Baseline(venv=None, program='job')
    with self.assertRaisesRegex(
        RuntimeError, 'x ended with code 0 and 0 figures: it said nothing'
    ):
      turns.take(silent, name='x', flags=[])

  def test_memory_of_all_processes_is_counted_and_of_no_other(self):
    environment = os.environ | {memory.VARIABLE: 'baselines_test'}
    with memory.Peak('baselines_test', interval_sec=0.1) as peak:
      with memory.Peak('another', interval_sec=0.1) as other:
        with subprocess.Popen(
            [sys.executable, '-c', _HUNGRY],
            env=environment,
            stdin=subprocess.PIPE,
        ) as hungry:
          deadline = time.monotonic() + 60
          while peak.gib * 1024 < 100 and time.monotonic() < deadline:
            time.sleep(0.1)
          hungry.stdin.close()
    # Two of 50 MiB, and two interpreters of some 10 MiB.
    self.assertBetween(peak.gib * 1024, 100, 180)
    self.assertEqual(other.gib, 0)


@pytest.mark.slow
class ProgramsTest(cases.TestCase):

  @parameterized.named_parameters(
      ('PyTorch', 'local_step', 'PyTorch', 'torch'),
      ('JAX', 'local_step', 'JAX', 'jax'),
      ('native', 'rounds', 'TFF native', None),
      ('pfl', 'rounds', 'pfl', 'pfl'),
      ('pfl_tensorflow', 'rounds', 'pfl TensorFlow', 'pfl_tf'),
      ('Flower', 'rounds', 'Flower', 'flwr'),
  )
  def test_each_baseline_gives_our_result(self, program, baseline, venv):
    if venv and not os.path.exists(
        turns.Baseline(venv=venv, program='').python()
    ):
      self.skipTest(f'make_venvs.sh {venv} has not been run.')
    path = self.path('figures.json')
    flags = ('--num_blocks=2', '--dim=32', '--steps=1')
    if program == 'rounds':
      flags = ('--sizes=2x32x2x2', '--rounds=1')
    output = subprocess.run(
        [
            sys.executable,
            '-m',
            f'benchmarks.baselines.{program}',
            f'--baselines={baseline}',
            f'--json={path}',
            '--turns=1',
            *flags,
        ],
        cwd=_ROOT,
        check=True,
        stdout=subprocess.PIPE,
        text=True,
        timeout=600,
    )
    self.assertIn(f'| {baseline} |', output.stdout)
    figures = json.loads(pathlib.Path(path).read_text())
    peaks = figures.get('peak_gib')
    if program == 'rounds':
      figures = figures['2x32x2x2']
      peaks = {
          name: [turn['peak_gib'] for turn in own]
          for name, own in figures['turns'].items()
      }
    self.assertGreater(figures['ratios'][baseline][0], 0)
    self.assertGreater(peaks[baseline][0], 0.05)


def _job(**changes) -> job_lib.Job:
  return job_lib.Job(
      num_blocks=2,
      dim=32,
      vocab_size=30,
      num_clients=3,
      num_local_steps=2,
      **changes,
  )

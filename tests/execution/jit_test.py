"""A round with local steps compiled by XLA, against one without XLA."""

import os
import pathlib
import re
import subprocess
import sys
import tempfile

from absl.testing import absltest
import numpy as np
import pytest
import tensorflow_federated as tff

from tests.execution import speech_process
from tff_asr.data import buckets as buckets_lib
from tff_asr.execution import multi_device

_BUCKETS = buckets_lib.LengthBuckets([1.5, 3.0])


def compare_rounds(folder: str) -> None:
  """Runs three rounds twice, XLA compiling one time; prints what came out."""
  data = speech_process.load_data(os.path.join(folder, 'data'))
  cohorts = speech_process.draw_cohorts(data, 3)
  ends = []
  context = multi_device.build_sync_context()
  for jit in (False, True):
    process = speech_process.build(
        data, loss_kernel='scan', buckets=_BUCKETS, jit_compile=jit
    )
    with tff.framework.get_context_stack().install(context):
      state = speech_process.initial_state(process, noise_multiplier=0.0)
      start = _flat(state)
      for cohort in cohorts:
        state = process.next(state, cohort).state
      print(jit, _num_compiled(folder))
    ends.append(_flat(state) - start)
  plain, compiled = ends
  print('apart', np.linalg.norm(plain - compiled) / np.linalg.norm(plain))


def _flat(state: tff.learning.templates.LearningAlgorithmState) -> np.ndarray:
  """A state's weights."""
  weights = state.global_model_weights
  return np.concatenate([np.ravel(value) for value in weights.values()])


def _num_compiled(folder: str) -> int:
  """Local steps that XLA compiled so far, by its dumps; it has nothing else."""
  dumps = pathlib.Path(folder, 'xla').glob('*before_optimizations.txt')
  return len(list(dumps))


class RoundTest(absltest.TestCase):

  @pytest.mark.slow
  def test_xla_changes_rounding_alone_and_compiles_each_size_once(self):
    folder = self.enterContext(tempfile.TemporaryDirectory())
    finished = subprocess.run(
        [
            sys.executable,
            '-c',
            'import sys; from tests.execution import jit_test;'
            ' jit_test.compare_rounds(sys.argv[1])',
            folder,
        ],
        cwd=pathlib.Path(__file__).parents[2],
        env=os.environ
        | dict(XLA_FLAGS=f'--xla_dump_to={folder}/xla --xla_dump_hlo_as_text'),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        timeout=1200,
        check=False,
    )
    self.assertEqual(finished.returncode, 0, finished.stderr[-3000:])
    plain, compiled = re.findall(
        r'^(?:True|False) (\d+)$', finished.stdout, re.M
    )
    self.assertEqual(plain, '0')
    # Batches of up to three rows of 150 frames, or two of 300.
    self.assertIn(int(compiled), range(2, 6))
    (apart,) = re.findall(r'^apart (.*)$', finished.stdout, re.M)
    self.assertLess(float(apart), 1e-3)
    self.assertGreater(float(apart), 0)

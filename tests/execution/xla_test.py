"""Tests of tff_asr.execution.xla: a round with and without it."""

import itertools
import os
import pathlib
import re
import subprocess
import sys
import tempfile

from absl.testing import absltest
from absl.testing import parameterized
import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tests.execution import speech_process
from tff_asr.data import shapes as shapes_lib
from tff_asr.execution import graph
from tff_asr.execution import multi_device
from tff_asr.execution import xla

_SHAPES = shapes_lib.Shapes(((1, 300), (2, 150)), 10)


def compare_rounds(folder: str) -> None:
  """Runs three rounds twice, XLA compiling one time; prints what came out."""
  data = speech_process.load_data(os.path.join(folder, 'data'))
  process = speech_process.build(data, loss_kernel='scan', shapes=_SHAPES)
  cohorts = speech_process.draw_cohorts(data, 3)
  ends = []
  for jit in (False, True):
    context = multi_device.build_sync_context(multi_device.Settings(jit=jit))
    with tff.framework.get_context_stack().install(context):
      state = speech_process.initial_state(process, noise_multiplier=0.0)
      start = _flat(state)
      for number, cohort in enumerate(cohorts):
        state = process.next(state, cohort).state
        print(jit, number, _num_compiled(folder))
    ends.append(_flat(state) - start)
  plain, compiled = ends
  print('apart', np.linalg.norm(plain - compiled) / np.linalg.norm(plain))


def _flat(state: tff.learning.templates.LearningAlgorithmState) -> np.ndarray:
  """A state's weights."""
  weights = state.global_model_weights
  return np.concatenate([np.ravel(value) for value in weights.values()])


def _num_compiled(folder: str) -> int:
  """Marked functions that XLA compiled so far, by what it dumps."""
  return len([
      path
      for path in pathlib.Path(folder, 'xla').glob('*before_optimizations.txt')
      if 'compilable_by_xla' in path.name
  ])


class RoundTest(absltest.TestCase):

  @pytest.mark.slow
  def test_is_the_same_but_for_rounding_and_compiles_once_a_shape(self):
    folder = self.enterContext(tempfile.TemporaryDirectory())
    finished = subprocess.run(
        [
            sys.executable,
            '-c',
            'import sys; from tests.execution import xla_test;'
            ' xla_test.compare_rounds(sys.argv[1])',
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
    counts = re.findall(r'^(True|False) \d (\d+)$', finished.stdout, re.M)
    # A sum of gradients for each shape, and the update. Then none any more.
    most = str(len(_SHAPES.sizes) + 1)
    self.assertEqual(counts, [('False', '0')] * 3 + [('True', most)] * 3)
    (apart,) = re.findall(r'^apart (.*)$', finished.stdout, re.M)
    self.assertLess(float(apart), 1e-3)
    self.assertGreater(float(apart), 0)


class SetCompiledTest(absltest.TestCase):

  def test_marks_calls_in_loops_and_nothing_else(self):
    compilable = xla.compilable(lambda value: value * 2)
    other = tf.function(lambda value: value * 3)

    @tf.function(autograph=False)
    def run(value):
      return tf.while_loop(
          lambda value: value < 100, lambda value: other(compilable(value)),
          [compilable(value)],
      )

    graph_def = run.get_concrete_function(tf.constant(1)).graph.as_graph_def()
    xla.set_compiled(graph_def)
    nodes = [
        node
        for node in itertools.chain(*graph.bodies(graph_def))
        if node.op.endswith('PartitionedCall')
    ]
    found = {
        (
            'compilable' in node.attr['f'].func.name,
            node.attr['_XlaMustCompile'].b,
        )
        for node in nodes
    }
    self.assertEqual(found, {(True, True), (False, False)})


class WarningTest(parameterized.TestCase):

  @parameterized.parameters(
      (True, False, True), (True, True, False), (False, False, False)
  )
  def test_a_context_says_that_nothing_is_compiled(self, jit, is_marked, warns):
    double = lambda value: value * 2
    compilable = xla.compilable(double) if is_marked else double
    work = lambda value: compilable(value)  # TFF takes no varargs.

    @tff.federated_computation(tff.FederatedType(np.float32, tff.CLIENTS))
    def double_all(values):
      return tff.federated_sum(
          tff.federated_map(
              tff.tensorflow.computation(work, np.float32), values
          )
      )

    context = multi_device.build_sync_context(multi_device.Settings(jit=jit))
    with tff.framework.get_context_stack().install(context):
      with (self.assertLogs if warns else self.assertNoLogs)('absl', 'WARNING'):
        self.assertEqual(double_all([1.0, 2.0]), 6)

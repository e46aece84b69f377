"""Tests of bin/train_federated.py, most of them in a separate process."""

import os
import re
import shlex
import signal
import subprocess
import sys

import psutil
import pytest

from tests import cases
from tests import seen
from tests.bin import in_process
from tests.bin import programs
from tff_asr.recognition import recognizer
from tff_asr.storage import metrics_file
from tff_asr.storage import run_dir

_EXPERIMENT = '--gin_file=gin/experiments/quickstart_federated.gin'
# The program after it, where TensorFlow takes the CPU for a GPU. It may not be
# split once TensorFlow has begun to use it; nor may a GPU.
_CPU_AS_GPU = """
import runpy
import sys

import tensorflow as tf

list_devices = tf.config.list_physical_devices
tf.config.list_physical_devices = lambda kind=None: list_devices(
    'CPU' if kind == 'GPU' else kind
)
configuration = tf.config.LogicalDeviceConfiguration
tf.config.LogicalDeviceConfiguration = lambda memory_mb: configuration()
sys.argv.pop(0)
runpy.run_path(sys.argv[0], run_name='__main__')
"""


class TrainFederatedTest(cases.TestCase):

  def setUp(self):
    super().setUp()
    self.run_dir = self.path('run')

  def run_program(self, *gin_params: str, flags=()) -> programs.Ended:
    tiny = programs.write_tiny(self.path('shards'))
    return programs.run(
        'train_federated',
        f'--output_dir={self.run_dir}',
        _EXPERIMENT,
        *flags,
        gin_params=tiny + ('NUM_ROUNDS = 2',) + gin_params,
    )

  def test_two_rounds_show_their_progress_and_nothing_of_the_libraries(self):
    finished = self.run_program()
    self.assertEqual(finished.code, 0, finished.stderr)
    lines = finished.stderr.splitlines()
    self.assertNotEmpty(lines)
    for line in lines:
      self.assertRegex(
          line,
          r'^federated: round [12] of 2, loss .*, epsilon \(RDP\) infinite,',
      )
    self.assertRegex(lines[-1], r'round 2 of 2, .*dev WER \d')
    with open(
        os.path.join(self.run_dir, 'privacy_report.txt'), encoding='utf-8'
    ) as f:
      verdict = f.readline().removeprefix('Privacy report: ').strip()
    self.assertIn(verdict, finished.stdout)
    # What it would make of the verdict, clients at once, verdict, epsilon, rates,
    # folder, next command.
    outlook, first, *lines = finished.stdout.splitlines()
    self.assertRegex(outlook, '^privacy: epsilon infinite at .*: NOT PRIVATE')
    self.assertRegex(
        first, r'^clients at once: [1-9]\d*, threads per op: [1-9]\d*$'
    )
    self.assertLen(lines, 5)
    self.assertIn('NOT PRIVATE', finished.stdout)
    self.assertIn(run_dir.MODEL, os.listdir(self.run_dir))

  def test_devices_are_split_before_anything_uses_them(self):
    tiny = programs.write_tiny(self.path('shards'))
    settings = (
        programs.FROZEN,
        'NUM_ROUNDS = 2',
        'CLIENTS_PER_DEVICE = 2',
        'GPU_MEMORY_MB = 64',
        "DEVICES = ['CPU:0', 'CPU:1']",
    )
    finished = subprocess.run(
        [
            sys.executable, '-c', _CPU_AS_GPU, 'bin/train_federated.py',
            f'--output_dir={self.run_dir}',
            _EXPERIMENT,
            '--dry_run',
            *(f'--gin_param={param}' for param in (*tiny, *settings)),
        ],
        cwd=programs.ROOT,
        env=dict(os.environ, PYTHONPATH=f'{programs.ROOT}:{programs.ROOT}/bin'),
        capture_output=True,
        text=True,
        check=False,
    )
    self.assertEqual(finished.returncode, 0, finished.stderr)

  def test_the_page_s_evaluations_of_private_people_during_training(self):
    page = (programs.ROOT / 'docs/evaluation.md').read_text('utf-8')
    (command,) = re.findall(
        r'python (bin/train_federated\.py (?:.*\\\n)+.*)\n', page
    )
    program, *flags = shlex.split(command.replace('\\\n', ''))
    settings = (
        *programs.write_tiny(self.path('shards')),
        programs.FROZEN,
        'EVALUATOR = None',
        'NUM_ROUNDS = 4',
        'PRIVATE_EVALUATE_EVERY = 2',
        # Of two people.
        'EVALUATION_NOISE_MULTIPLIER = 0.1',
    )
    finished = in_process.run(
        program,
        *flags,
        f'--output_dir={self.run_dir}',
        *(f'--gin_param={each}' for each in settings),
    )
    self.assertEqual(finished.code, 0, finished.stderr)
    self.assertIn(', private people WER ', finished.stderr)
    self.assertEqual(
        run_dir.read_ledger(self.run_dir).releases['evaluation'][0].count, 2
    )
    rates = metrics_file.read(os.path.join(self.run_dir, run_dir.METRICS))
    self.assertEqual(list(rates['noised_word_error_rate_low']), [2, 4])

  def test_as_a_notebook_runs_it_the_model_can_be_used(self):
    page = (programs.ROOT / 'README.md').read_text('utf-8')
    (code,) = re.findall('```python\n(.*?)```', page, re.DOTALL)
    settings = [
        *programs.write_tiny(self.path('shards')),
        programs.FROZEN,
        'EVALUATOR = None',
        'NUM_ROUNDS = 1',
    ]
    for written, taken in (
        ("['NUM_ROUNDS = 20']", repr(settings)),
        ("'runs/mine'", repr(self.run_dir)),
        (
            'await training_loop.run(program)',
            '__import__("asyncio").run(training_loop.run(program))',
        ),
    ):
      self.assertEqual(code.count(written), 1, written)
      code = code.replace(written, taken)
    subprocess.run(
        [sys.executable, '-c', code],
        cwd=programs.ROOT,
        check=True,
        capture_output=True,
    )
    recognizer.load(run=self.run_dir)

  @pytest.mark.slow
  def test_nothing_listens_on_the_network(self):
    tiny = programs.write_tiny(self.path('shards'))
    looks = []

    def look(process: psutil.Process) -> bool:
      ledger = os.path.join(self.run_dir, 'ledger.jsonl')
      if not os.path.exists(ledger):
        return False
      with open(ledger, encoding='utf-8') as f:
        is_in_rounds = len(f.readlines()) > 3
      looks.append(sum(
          seen.of_processes(
              lambda each: [
                  connection.laddr
                  for connection in each.connections('inet')
                  if connection.status == psutil.CONN_LISTEN
              ],
              root=process,
          ),
          [],
      ))
      return is_in_rounds

    ended = programs.run(
        'train_federated',
        f'--output_dir={self.run_dir}',
        _EXPERIMENT,
        gin_params=tiny + ('NUM_ROUNDS = 100000',),
        send=signal.SIGTERM,
        when=look,
    )
    self.assertEqual(ended.code, 128 + signal.SIGTERM, ended.stderr)
    self.assertGreater(len(looks), 1)
    self.assertEqual([each for each in looks if each], [])

  def test_a_second_run_in_the_folder_is_one_line(self):
    os.makedirs(self.run_dir)
    lock = run_dir.RunLock(self.run_dir)
    self.addCleanup(lock.release)
    tiny = programs.write_tiny(self.path('shards'))
    finished = in_process.run(
        'bin/train_federated.py',
        f'--output_dir={self.run_dir}',
        _EXPERIMENT,
        *(f'--gin_param={param}' for param in (*tiny, programs.FROZEN)),
    )
    self.assertEqual(finished.code, 1)
    self.assertRegex(
        finished.stderr,
        rf'\Aerror: .*run is in use by process {os.getpid()} on .*\n\Z',
    )

  @pytest.mark.slow
  def test_native_runs_and_leaves_no_worker(self):
    finished = self.run_program(
        'NUM_ROUNDS = 1',
        'TRUST_NETWORK = True',
        flags=['--gin_file=gin/execution/native.gin'],
    )
    self.assertEqual(finished.code, 0, finished.stderr)
    self.assertEmpty(finished.left)
    self.assertRegex(finished.stderr, r'\Afederated: round 1 of 1, .*\n\Z')

r"""Rounds on one and on two cores of this machine, in turns.

    python -m benchmarks.scaling

Each round has 8 clients and runs in a process that is bound to its cores, with
one client at a time on each core.
"""

from tff_asr import launch  # First: quiets TensorFlow before it is loaded.

launch.install_early_sigint(__name__)

import os
import subprocess
import sys
import tempfile
import time

from absl import flags

_REPEATS = flags.DEFINE_integer('repeats', 3, 'Rounds.', lower_bound=1)
_CORES = flags.DEFINE_integer('cores', None, 'Of a process that measures.')


def main(_) -> None:
  if _CORES.value is not None:
    _measure_here(_CORES.value)
    return
  # TensorFlow counts its cores when it is loaded, so imports are late.
  from benchmarks import report  # pylint: disable=g-import-not-at-top

  report.check_json_flag()
  children = {
      cores: subprocess.Popen(
          [sys.executable, '-m', 'benchmarks.scaling', f'--cores={cores}'],
          stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
      )
      for cores in (1, 2)
  }
  seconds = {cores: [] for cores in children}
  try:
    for turn in range(_REPEATS.value + 1):
      for cores, child in children.items():
        print('go', file=child.stdin, flush=True)
        taken = float(child.stdout.readline())
        if turn:  # The first one compiles.
          seconds[cores].append(taken)
  finally:
    for child in children.values():
      child.stdin.close()
      child.wait()
  ratios = [one / two for one, two in zip(seconds[1], seconds[2], strict=True)]
  report.write(
      '8 clients of 4 steps of 10 s, 5M parameters; a client at a time on each '
      'core',
      [['', 'one core, s', 'two cores, s', 'ratio', 'efficiency'],
       ['a round', report.spread(seconds[1]), report.spread(seconds[2]),
        report.spread(ratios),
        report.spread([ratio / 2 for ratio in ratios])]],
      {'seconds': {str(key): each for key, each in seconds.items()},
       'ratios': ratios},
  )


def _measure_here(cores: int) -> None:
  """Runs a round for each line of input; prints its seconds."""
  os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:cores])
  # pylint: disable=g-import-not-at-top
  from benchmarks import workload as workload_lib
  from tff_asr.execution import multi_device

  sizes = workload_lib.Workload(
      num_blocks=6, dim=256, num_clients=8, num_local_steps=4
  )
  with tempfile.TemporaryDirectory() as folder:
    clients = sizes.write_corpus(folder)
    run = workload_lib.Round(
        multi_device.build_sync_context(
            multi_device.Settings(devices=['CPU:0'], clients_per_device=cores)
        ),
        sizes.build_process(clients, cohort_size=8),
        clients.locate_clients(clients.client_ids),
    )
    for _ in sys.stdin:
      begun = time.perf_counter()
      run()
      print(time.perf_counter() - begun, flush=True)


if __name__ == '__main__':
  launch.run(main, after_interrupt='the same command starts again.')

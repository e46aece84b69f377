r"""The driver of a Ray cluster: its cost a client, and clients a second.

    python -m benchmarks.ray_driver
    python -m benchmarks.ray_driver --client_ms=20

The driver, its rounds and its calls of Ray are real; the workers are simulated:
each answers a client group after `--client_ms` for each client, with sums and
measurements of zeros, so that the driver alone limits the pace. Many workers
share a few processes, in as many threads.

The process trains a tiny model on clients of an index whose records are never
read. `CPU` is the time of all threads of the driver, Ray's included, in rounds
after the first.
"""

from tff_asr import launch  # First: quiets TensorFlow before it is loaded.

launch.install_early_sigint(__name__)

import copy
import tempfile
import time
from unittest import mock

from absl import flags
import numpy as np
import tensorflow_federated as tff

from benchmarks import report
from benchmarks import workload as workload_lib
from tff_asr.data import client_data
from tff_asr.execution import ray_cluster

_WORKERS = flags.DEFINE_integer('workers', 100, 'Simulated.', lower_bound=1)
_PROCESSES = flags.DEFINE_integer(
    'processes', 2, 'Of the workers.', lower_bound=1
)
_COHORTS = flags.DEFINE_multi_integer(
    'cohort', [1000, 10_000], 'Clients of a round; several in turn.'
)
_CLIENT_MS = flags.DEFINE_float(
    'client_ms', 0.0, 'What a client takes a worker.', lower_bound=0.0
)
_REPEATS = flags.DEFINE_integer('repeats', 3, 'Rounds.', lower_bound=1)


def main(_) -> None:
  report.check_json_flag()
  sizes = workload_lib.Workload(
      num_blocks=1, dim=32, num_clients=max(_COHORTS.value), num_local_steps=1
  )
  with tempfile.TemporaryDirectory() as folder:
    workload_lib.write_index(folder, num_clients=sizes.num_clients)
    clients = client_data.load(folder)
  context = _build_context()
  figures = {}
  for cohort_size in _COHORTS.value:
    process = sizes.build_process(clients, cohort_size=cohort_size)
    run = workload_lib.Round(
        context,
        process,
        clients.locate_clients(clients.client_ids[:cohort_size]),
    )
    run()  # Traces and compiles.
    seconds, used = [], []
    for _ in range(_REPEATS.value):
      began, cpu = time.perf_counter(), time.process_time()
      run()
      used.append(time.process_time() - cpu)
      seconds.append(time.perf_counter() - began)
    figures[cohort_size] = {
        'clients a second': [cohort_size / each for each in seconds],
        'CPU ms a client': [1e3 * each / cohort_size for each in used],
    }
  ray_cluster.stop()
  report.write(
      f'{_WORKERS.value} simulated workers, {_CLIENT_MS.value:g} ms a client',
      [['clients', 'clients a second', 'CPU ms a client']]
      + [
          [
              f'{cohort_size:,}',
              report.spread(each['clients a second'], '.0f'),
              report.spread(each['CPU ms a client'], '.3f'),
          ]
          for cohort_size, each in figures.items()
      ],
      {str(cohort_size): each for cohort_size, each in figures.items()},
  )


def _build_context() -> tff.framework.SyncContext:
  """A context whose actors are simulated workers, many a process."""
  ray_cluster.require_token(None)  # Before Ray is imported.
  # pylint: disable-next=g-import-not-at-top
  from tff_asr.execution import ray_worker

  client_sec = _CLIENT_MS.value / 1e3

  class SimulatedWorker(ray_worker.RayWorker):
    """Answers without training."""

    def __init__(self):
      super().__init__()
      self._zeros = {}  # Exact and ordered leaves by computation.

    def train(self, key, thread, groups):
      del thread
      seconds = client_sec * sum(len(group.clients) for group in groups)
      time.sleep(seconds)
      _, ordered = self._get_zeros(key)
      return ray_worker.TrainReport(
          # Copies, which travel one by one.
          [], [list(map(np.copy, ordered)) for _ in groups], seconds
      )

    def flush(self, key):
      exact, _ = self._get_zeros(key)
      packed = ray_worker.ray_sums.pack(exact)
      return packed.num_bytes, packed

    def _get_zeros(self, key):
      with self._lock:
        if key.computation not in self._zeros:
          programs = ray_worker.ray.get(key.programs[0])
          self._zeros[key.computation] = tuple(
              map(ray_worker.pack, programs.split(programs.zero.load()()))
          )
        return self._zeros[key.computation]

  num_processes = min(_PROCESSES.value, _WORKERS.value)
  with mock.patch.object(ray_worker, 'RayWorker', SimulatedWorker):
    context = ray_cluster.build_sync_context(
        ray_cluster.Settings(
            num_workers=num_processes,
            clients_per_device=-(-_WORKERS.value // num_processes),
            op_libraries=(),
        )
    )
  runner = context.runner
  processes = list(runner.actors.values())
  runner.actors = {}
  for number in range(_WORKERS.value):
    # Another worker for the driver, with its own thread in the process.
    worker = copy.copy(processes[number % num_processes])
    worker.num_threads = 1
    runner.actors[number] = worker
  return context


if __name__ == '__main__':
  launch.run(main, after_interrupt='the same command starts again.')

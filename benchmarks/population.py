r"""A large population: what its index takes to load, and a cohort to draw.

    python -m benchmarks.population
    python -m benchmarks.population --records=40

The corpus has an index and empty shards, since training reads only records of
a round's clients. A new process loads it in each turn:

- `load`: seconds of `client_data.load`, and of the processor;
- `resident`: by how much the process's resident memory is larger afterwards,
  `private` without what is mapped from files, `peak` at most meanwhile;
- `draw` and `locate`: a cohort's ids, and where its records lie.
"""

from tff_asr import launch  # First: quiets TensorFlow before it is loaded.

launch.install_early_sigint(__name__)

import gc
import json
import subprocess
import sys
import tempfile
import time

from absl import flags
import numpy as np

from benchmarks import memory
from benchmarks import report
from benchmarks import workload
from tff_asr.data import client_data
from tff_asr.data import cohorts
from tff_asr.privacy import keys

_CLIENTS = flags.DEFINE_integer(
    'clients', 1_000_000, 'Clients.', lower_bound=1
)
_RECORDS = flags.DEFINE_integer(
    'records', 1, 'Records of each client.', lower_bound=1
)
_COHORT = flags.DEFINE_integer(
    'cohort', 1000, 'Clients of a round, expected.', lower_bound=1
)
_REPEATS = flags.DEFINE_integer('repeats', 3, 'Turns.', lower_bound=1)
_LOADED = flags.DEFINE_string(
    'loaded', None, 'Internal: measure this corpus in this process.'
)


def main(_) -> None:
  if _LOADED.value:
    print(json.dumps(_measure(_LOADED.value)))
    return
  report.check_json_flag()
  with tempfile.TemporaryDirectory() as folder:
    workload.write_index(
        folder, num_clients=_CLIENTS.value, records_each=_RECORDS.value
    )
    turns = [_measure_in_new_process(folder) for _ in range(_REPEATS.value)]
  figures = {name: [turn[name] for turn in turns] for name in turns[0]}
  report.write(
      f'{_CLIENTS.value:,} clients, {_CLIENTS.value * _RECORDS.value:,} '
      f'records, cohorts of {_COHORT.value:,}',
      [['', 'value']]
      + [[name, report.spread(each)] for name, each in figures.items()],
      figures,
  )


def _measure_in_new_process(folder: str) -> dict[str, float]:
  """What `_measure` returns in a process without memory of earlier work."""
  finished = subprocess.run(
      [
          sys.executable, '-m', 'benchmarks.population', f'--loaded={folder}',
          f'--cohort={_COHORT.value}',
      ],
      check=True,
      stdout=subprocess.PIPE,
      text=True,
  )
  return json.loads(finished.stdout.splitlines()[-1])


def _measure(folder: str) -> dict[str, float]:
  """Loads the corpus and draws cohorts."""
  gc.collect()
  memory.reset_peak()
  resident, private = memory.resident_gib(), memory.private_gib()
  began, used = time.perf_counter(), time.process_time()
  data = client_data.load(folder)
  used = time.process_time() - used
  seconds = time.perf_counter() - began
  gc.collect()
  figures = {
      'load, s': seconds,
      'load, CPU s': used,
      'resident, MiB': 1024 * (memory.resident_gib() - resident),
      'private, MiB': 1024 * (memory.private_gib() - private),
      'peak, MiB': 1024 * (memory.peak_gib() - resident),
  }
  began = time.perf_counter()
  sampler = cohorts.poisson(
      data.client_ids, cohort_size=_COHORT.value, key=keys.from_seed(1)
  )
  figures['sampler, s'] = time.perf_counter() - began
  figures['with sampler, private, MiB'] = 1024 * (
      memory.private_gib() - private
  )
  state = sampler.initial_state()
  draws, locates = [], []
  for _ in range(10):
    began = time.perf_counter()
    drawn, state = sampler.draw(state)
    draws.append(time.perf_counter() - began)
    began = time.perf_counter()
    data.locate_clients(drawn)
    locates.append(time.perf_counter() - began)
  figures['draw, ms'] = 1e3 * float(np.median(draws))
  figures['locate, ms'] = 1e3 * float(np.median(locates))
  return figures


if __name__ == '__main__':
  launch.run(main, after_interrupt='the same command starts again.')

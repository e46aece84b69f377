r"""Seconds from the command to the first round, by part.

    python -m benchmarks.start_up --sizes=1x8,12x768

Each size runs in a process of its own, on a small corpus of noise: `imports`
until the program's modules are loaded; `process` builds the learning process
(tracing the client's work, the aggregator and the optimizer); `initialize`
draws the first weights; `compile` takes TFF's computation apart into the
programs that run it (`execution.compiler`); `first round` loads, optimizes and
runs them; `second round` is what a round takes from then on. CPU seconds (of
all threads) tell what a machine with other work beside it hides. Graphs built
in the second and third round, by tracing something again, should be none.
"""

from tff_asr import launch  # First: quiets TensorFlow before it is loaded.

launch.begin(__name__)

from collections.abc import Iterator
import contextlib
import json
import tempfile
import time

from absl import flags
import psutil
import tensorflow as tf

from benchmarks import own_process
from benchmarks import report
from benchmarks import workload as workload_lib
from tff_asr.execution import compiler
from tff_asr.execution import multi_device

_SIZES = flags.DEFINE_list(
    'sizes', ['1x8', '12x768'], 'Blocks and width of each transformer.'
)
_ONE = flags.DEFINE_string(
    'one', None, 'Measure this size in this process and print its figures.'
)
_REPEATS = flags.DEFINE_integer(
    'repeats', 3, 'Processes of each size.', lower_bound=1
)

_COHORT_SIZE = 2
_PARTS = (
    'imports', 'process', 'initialize', 'compile', 'first round', 'second round'
)


def main(_) -> None:
  report.check_json_flag()
  if _ONE.value is not None:
    size = workload_lib.parse_size(_ONE.value, flag='--one')
    print(json.dumps(_measure(*size)))
    return
  for size in _SIZES.value:
    workload_lib.parse_size(size, flag='--sizes')
  found = {size: [] for size in _SIZES.value}
  for _ in range(_REPEATS.value):
    for size in _SIZES.value:
      found[size].append(json.loads(own_process.measure('start_up', one=size)))
  rows = [['model', 'part', 'seconds', 'CPU seconds']]
  for size, runs in found.items():
    label = f'{runs[0]["num_parameters"] / 1e6:.2g}M'
    rows += [
        [label, part]
        + [
            report.spread([run[unit][part] for run in runs])
            for unit in ('seconds', 'cpu_seconds')
        ]
        for part in _PARTS
    ]
    graphs = max(run['graphs'] for run in runs)
    rows.append([label, 'graphs built in later rounds', str(graphs), ''])
  report.write('Start-up', rows, found)


def _measure(num_blocks: int, dim: int) -> dict:
  """Seconds and CPU seconds by part."""
  laps = _Laps()
  laps.end('imports')
  sizes = workload_lib.Workload(
      num_blocks=num_blocks,
      dim=dim,
      num_clients=_COHORT_SIZE,
      num_local_steps=1,
      num_utterances=2,
      utterance_sec=2.0,
      batch_sec=4.0,
  )
  with tempfile.TemporaryDirectory() as folder:
    clients = sizes.write_corpus(folder)
    cohort = list(clients.client_ids)
    laps.skip()
    process = sizes.build_process(clients, cohort_size=_COHORT_SIZE)
    laps.end('process')
    multi_device.set_default_context()
    state = workload_lib.initialize(process)
    laps.end('initialize')
    compiler.compile_computation(process.next)
    laps.end('compile')
    state = process.next(state, cohort).state
    laps.end('first round')
    # It took the computation apart once more.
    for record in (laps.seconds, laps.cpu_seconds):
      record['first round'] = max(record['first round'] - record['compile'], 0)
    with _counted_graphs() as graphs:
      state = process.next(state, cohort).state
      laps.end('second round')
      process.next(state, cohort)
  return {
      'num_parameters': sizes.num_parameters(),
      'seconds': laps.seconds,
      'cpu_seconds': laps.cpu_seconds,
      # Each new thread has an empty one.
      'graphs': sum(bool(graph.get_operations()) for graph in graphs),
  }


class _Laps:
  """Seconds and CPU seconds of each part, from the process's start on."""

  def __init__(self):
    self.seconds = {}
    self.cpu_seconds = {}
    since = time.time() - psutil.Process().create_time()
    self._last = time.perf_counter() - since, 0.0

  def skip(self) -> None:
    """Ignores what was done since the last part."""
    self._last = time.perf_counter(), time.process_time()

  def end(self, part: str) -> None:
    wall, cpu = self._last
    self.skip()
    self.seconds[part] = self._last[0] - wall
    self.cpu_seconds[part] = self._last[1] - cpu


@contextlib.contextmanager
def _counted_graphs() -> Iterator[list[tf.Graph]]:
  """All graphs that are built meanwhile."""
  graphs, initialize = [], tf.Graph.__init__

  def counted(graph: tf.Graph, *args, **kwargs) -> None:
    graphs.append(graph)
    initialize(graph, *args, **kwargs)

  tf.Graph.__init__ = counted
  try:
    yield graphs
  finally:
    tf.Graph.__init__ = initialize


if __name__ == '__main__':
  launch.run(main, after_interrupt='the same command begins anew.')

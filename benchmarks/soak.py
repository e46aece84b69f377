r"""Thousands of toy rounds: memory, open files and processes must not grow.

    python -m benchmarks.soak --rounds=2000

A federated run with DP, its folder, ledger and metrics. Measured after the
first 100 rounds (or a fifth of all, if fewer) and until the last one (work at
the end of a run, such as accounting by PLD, needs extra memory); the exit code
is 1 where the memory of the last tenth is more than 5 % above that of the
first, or if the number of files or processes grew.
"""

from tff_asr import launch  # First: quiets TensorFlow before it is loaded.

launch.install_early_sigint(__name__)

import os
import statistics
import tempfile
import threading

from absl import flags
import psutil

from benchmarks import report
from benchmarks import toy_runs
from tff_asr.storage import metrics_file

_ROUNDS = flags.DEFINE_integer(
    'rounds', 2000, 'Of the run.', lower_bound=20
)

_MAX_WARM_UP = 100
_MAX_GROWTH = 1.05
_LOOK_SEC = 0.2


def main(_) -> None:
  report.check_json_flag()
  warm_up = min(_MAX_WARM_UP, _ROUNDS.value // 5)
  with tempfile.TemporaryDirectory() as root:
    corpus, run = os.path.join(root, 'corpus'), os.path.join(root, 'run')
    toy_runs.write_corpus(corpus)
    watch = _Watch(
        os.path.join(run, 'metrics.csv'),
        warm_up=warm_up,
        num_rounds=_ROUNDS.value,
    )
    with toy_runs.quiet(), watch:
      toy_runs.train_federated(corpus, run, num_rounds=_ROUNDS.value)
  tenth = max(1, len(watch.looks) // 10)
  parts = [watch.looks[:tenth], watch.looks[-tenth:]]
  tenths = [
      statistics.median(look[0] for look in watch.looks[start : start + tenth])
      for start in range(0, tenth * 10, tenth)
      if start < len(watch.looks)
  ]
  figures = {'rounds': _ROUNDS.value, 'memory by tenth, MiB': tenths}
  rows, problems = [], []
  for index, (name, growth) in enumerate([
      ('memory, MiB', _MAX_GROWTH), ('open files', 1), ('processes', 1)
  ]):
    first, last = (
        statistics.median(look[index] for look in part) for part in parts
    )
    rows.append([name, f'{first:.0f}', f'{last:.0f}', f'{last / first:.3f}'])
    figures[name] = [first, last]
    if last > growth * first:
      problems.append(f'{name} grew from {first:.0f} to {last:.0f}')
  report.write(
      f'{_ROUNDS.value} rounds, {len(watch.looks)} looks after the first '
      f'{warm_up}',
      [['', 'first tenth', 'last tenth', 'ratio'], *rows],
      figures,
  )
  if problems:
    raise ValueError(f'{"; ".join(problems)}.')


class _Watch:
  """Looks at this process every moment, from a round to the last one.

  Attributes:
    looks: Each time: resident MiB, open files, processes with this one.
  """

  def __init__(self, metrics: str, *, warm_up: int, num_rounds: int):
    self.looks = []
    self._metrics = metrics
    self._warm_up = warm_up
    self._num_rounds = num_rounds
    self._ended = threading.Event()
    self._thread = threading.Thread(target=self._run, daemon=True)

  def __enter__(self) -> '_Watch':
    self._thread.start()
    return self

  def __exit__(self, *unused_error) -> None:
    self._ended.set()
    self._thread.join()
    if not self.looks:
      raise ValueError('the run was too short to look at it: raise --rounds.')

  def _run(self) -> None:
    process = psutil.Process()
    while not self._ended.wait(_LOOK_SEC):
      if not os.path.exists(self._metrics):
        continue
      num_done = len(metrics_file.read(self._metrics).get('epsilon', ()))
      if num_done >= self._num_rounds:
        return
      if num_done < self._warm_up:
        continue
      self.looks.append((
          process.memory_info().rss / 2**20,
          process.num_fds(),
          1 + len(process.children(recursive=True)),
      ))


if __name__ == '__main__':
  launch.run(main, after_interrupt='the same command starts again.')

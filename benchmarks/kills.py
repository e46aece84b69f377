r"""Kills a training run repeatedly and compares its result with a whole run.

    python -m benchmarks.kills --program=federated --kills=25 --rounds=60

Sends SIGKILL at random points, counted in changes of the run's files, so it
also interrupts writes of a state, the ledger or the metrics (which take 20 ms
longer here, so that kills hit them). Weights, optimizer and metrics must end in
the same bits, and the ledger must have each round once; else the exit code is
1.
"""

from tff_asr import launch  # First: quiets TensorFlow before it is loaded.

launch.install_early_sigint(__name__)

import os
import random
import signal
import tempfile
import time
import traceback
from typing import Any, NoReturn, Optional

from absl import flags

from benchmarks import report
from benchmarks import toy_runs
from tff_asr.storage import run_dir

_PROGRAM = flags.DEFINE_enum(
    'program', 'federated', sorted(toy_runs.PROGRAMS), 'What is killed.'
)
_KILLS = flags.DEFINE_integer('kills', 25, 'How often.', lower_bound=1)
_ROUNDS = flags.DEFINE_integer(
    'rounds', 60, 'Rounds (or steps) of the run.', lower_bound=2
)
_SEED = flags.DEFINE_integer('seed', 1, 'Of the points.', lower_bound=0)

_SLOW_SYNC_SEC = 0.02
_POLL_SEC = 0.002
_TIMEOUT_SEC = 600
# Changes of the files that a round makes at least: ledger, metrics, and every
# other time a state's two names.
_CHANGES_A_ROUND = 3


def main(_) -> None:
  report.check_json_flag()
  chance = random.Random(_SEED.value)
  most = max(1, _CHANGES_A_ROUND * _ROUNDS.value // _KILLS.value - 1)
  with tempfile.TemporaryDirectory() as root:
    corpus, whole, killed = (
        os.path.join(root, name) for name in ('corpus', 'whole', 'killed')
    )
    # TensorFlow is used in children only: they are copies of this process.
    _wait(_start(lambda: toy_runs.write_corpus(corpus)))
    _wait(_start(lambda: _train(corpus, whole)))
    places = []
    while len(places) < _KILLS.value:
      child = _start(lambda: _train(corpus, killed))
      place = _kill(child, killed, chance.randint(1, most))
      if place is None:
        raise ValueError(
            f'the run ended after {len(places)} kills: raise --rounds.'
        )
      places.append(place)
    _wait(_start(lambda: _train(corpus, killed)))
    problems = toy_runs.compare(whole, killed)
    rounds = toy_runs.ledger_rounds(killed)
  for problem in problems:
    print(problem)
  writing = places.count('writing a state')
  report.write(
      f'{_PROGRAM.value}: {len(places)} kills over {_ROUNDS.value} rounds',
      [
          ['', ''],
          ['kills', str(len(places))],
          ['of them while a state was being written', str(writing)],
          ['rounds in the ledger', str(len(rounds))],
          ['differences from a run that was not killed', str(len(problems))],
      ],
      {
          'kills': len(places),
          'kills_while_writing': writing,
          'rounds_in_ledger': len(rounds),
          'differences': problems,
      },
  )
  if problems:
    raise ValueError('a killed run came out differently.')


def _train(corpus: str, run: str) -> None:
  """Runs in the child: the training run, with slowed-down writes."""
  sync = os.fsync

  def slow_sync(descriptor: int) -> None:
    time.sleep(_SLOW_SYNC_SEC)
    sync(descriptor)

  os.fsync = slow_sync
  with toy_runs.quiet():
    toy_runs.PROGRAMS[_PROGRAM.value](corpus, run, num_rounds=_ROUNDS.value)


def _start(work) -> int:
  """Runs a function in a child process; returns its id."""
  child = os.fork()
  if not child:
    _be_child(work)
  return child


def _be_child(work) -> NoReturn:
  code = 1
  try:
    work()
    code = 0
  except BaseException:  # pylint: disable=broad-exception-caught
    traceback.print_exc()
  finally:
    # The parent's handlers at exit are not this process's.
    os._exit(code)  # pylint: disable=protected-access


def _wait(child: int) -> None:
  """Waits for a child that must end well."""
  _, status = os.waitpid(child, 0)
  if status:
    raise ValueError(
        f'a run ended with status {os.waitstatus_to_exitcode(status)}.'
    )


def _kill(child: int, run: str, num_changes: int) -> Optional[str]:
  """Kills a child after that many changes; None: it had ended before.

  Returns:
    Where it was.
  """
  deadline = time.monotonic() + _TIMEOUT_SEC
  seen = _look(run)
  while num_changes:
    found = _look(run)
    if found != seen:
      seen, num_changes = found, num_changes - 1
      continue
    ended, status = os.waitpid(child, os.WNOHANG)
    if ended:
      if status:
        raise ValueError(f'a run failed with status {status}.')
      return None
    if time.monotonic() > deadline:
      os.kill(child, signal.SIGKILL)
      raise ValueError('a run makes no progress.')
    time.sleep(_POLL_SEC)
  os.kill(child, signal.SIGKILL)
  _, status = os.waitpid(child, 0)
  if not os.WIFSIGNALED(status):
    return None
  if any(name.endswith('.partial') for name in _look(run)[-1]):
    return 'writing a state'
  return 'elsewhere'


def _look(run: str) -> tuple[Any, ...]:
  """Files and sizes that change on disk during a run."""
  sizes = []
  for name in (run_dir.LEDGER, 'metrics.csv'):
    path = os.path.join(run, name)
    sizes.append(os.path.getsize(path) if os.path.exists(path) else -1)
  states = os.path.join(run, 'state')
  names = sorted(os.listdir(states)) if os.path.isdir(states) else []
  return *sizes, tuple(names)


if __name__ == '__main__':
  launch.run(main, after_interrupt='the same command starts again.')

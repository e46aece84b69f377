r"""Our federated round against TFF's native context, pfl and Flower.

    benchmarks/baselines/make_venvs.sh pfl pfl_tf flwr
    python -m benchmarks.baselines.rounds --json=results/baseline_rounds.json

All do the same work: the same initial weights, clients, batches and local SGD
steps with clipped gradients; each client's whole update clipped to one norm,
the sum with noise, its mean added to the weights. This is checked: in each
turn, the update of the first round must equal ours to 1e-2 of its norm (the
noise is far smaller), or the benchmark fails. All compute features from 16-bit
samples, which are in memory; ours come from shards
on disk in the first round, and TFF's native context reads them in each. By
default each program trains as many clients at the same time as it chooses
itself. Names with `N at once` set the number: ours are threads of a process,
pfl's, through PyTorch's launcher, and Flower's processes. With --bfloat16
the blocks' products of all are of bfloat16, PyTorch's by its autocast; the
updates must then agree to 1e-1.

The programs take turns, each alone on the machine; the first round of a turn
does not count, nor the second of pfl in TensorFlow. `first round` has the first
one's seconds. Peak memory is of all processes together. A busy machine
falsifies the ratios: threads of PyTorch that wait for each other wait longer,
and Ray gives Flower's clients a low priority.
"""

from tff_asr import launch  # First: quiets TensorFlow before it is loaded.

launch.install_early_sigint(__name__)

from collections.abc import Mapping, Sequence
import os
import statistics
import tempfile
from typing import Any

from absl import flags
import numpy as np

from benchmarks import report
from benchmarks import turns as clock
from benchmarks.baselines import job as job_lib
from benchmarks.baselines import ours
from benchmarks.baselines import turns as turns_lib
from tff_asr import checks
from tff_asr.models import weights as weights_lib

_BASELINES = {
    'tff_asr': turns_lib.Baseline(venv=None, program='ours_round'),
    'tff_asr 1 at once': turns_lib.Baseline(
        venv=None, program='ours_round', flags=('--at_once=1',)
    ),
    # Its own default is all clients at once, and needs their memory.
    'TFF native': turns_lib.Baseline(
        venv=None,
        program='ours_round',
        flags=('--context=native', '--at_once=1'),
    ),
    'TFF native 2 at once': turns_lib.Baseline(
        venv=None,
        program='ours_round',
        flags=('--context=native', '--at_once=2'),
    ),
    'pfl': turns_lib.Baseline(venv='pfl', program='pfl_round'),
    'pfl 2 at once': turns_lib.Baseline(
        venv='pfl',
        program='pfl_round',
        launcher=('torch.distributed.run', '--nproc_per_node=2'),
    ),
    # pfl always evaluates in the first round, so that TensorFlow traces in the
    # second as well.
    'pfl TensorFlow': turns_lib.Baseline(
        venv='pfl_tf', program='pfl_tf_round', flags=('--warm_ups=2',)
    ),
    'Flower': turns_lib.Baseline(venv='flwr', program='flwr_round'),
    'Flower 2 at once': turns_lib.Baseline(
        venv='flwr', program='flwr_round', flags=('--at_once=2',)
    ),
}
_OURS = 'tff_asr'

_SIZES = flags.DEFINE_list(
    'sizes',
    # 250,000, 5.0 and 25.8 million parameters.
    ['1x104x1000x1', '6x256x8x2', '8x512x8x2'],
    'BLOCKSxWIDTHxCLIENTSxSTEPS: of the transformer, and of a round.',
)
_BFLOAT16 = flags.DEFINE_boolean(
    'bfloat16', False, "The blocks' products in bfloat16, of all."
)
_ROUNDS = flags.DEFINE_integer(
    'rounds', 1, 'Rounds of a turn that count.', lower_bound=1
)
_TURNS = flags.DEFINE_integer('turns', 3, 'Of each baseline.', lower_bound=1)
_NAMES = flags.DEFINE_list(
    'baselines',
    ['TFF native', 'pfl', 'pfl TensorFlow', 'Flower'],
    f'Of {", ".join(_BASELINES)}.',
)


def main(_) -> None:
  report.check_json_flag()
  baselines = turns_lib.select(
      [_OURS, *_NAMES.value], _BASELINES, flag='baselines'
  )
  jobs = [_parse_job(size) for size in _SIZES.value]
  results = [_Result(job, *_take_turns(job, baselines)) for job in jobs]
  report.write(
      f'Rounds, products of {jobs[0].activation_dtype}, '
      f'{jobs[0].batch_size * jobs[0].utterance_sec:g} s of audio a step',
      [[
          'parameters, clients x steps',
          '',
          'seconds',
          'ratio to tff_asr',
          'clients/s',
          'first round, s',
          'peak GiB',
          'update differs by',
      ]]
      + [row for result in results for row in result.rows()],
      {
          size: result.figures()
          for size, result in zip(_SIZES.value, results, strict=True)
      },
  )


def _parse_job(size: str) -> job_lib.Job:
  """The job of a size of `--sizes`."""
  numbers = size.split('x')
  if len(numbers) != 4 or not all(each.isdecimal() for each in numbers):
    raise ValueError(
        f'--sizes takes BLOCKSxWIDTHxCLIENTSxSTEPS, found {size!r}.'
    )
  num_blocks, dim, num_clients, num_steps = map(int, numbers)
  checks.positive_int(blocks=num_blocks, width=dim, steps=num_steps)
  if num_clients < 2:
    raise ValueError(f'--sizes needs at least 2 clients, found {size!r}.')
  return ours.build_job(
      num_blocks=num_blocks,
      dim=dim,
      num_clients=num_clients,
      num_local_steps=num_steps,
      is_bfloat16=_BFLOAT16.value,
  )


def _take_turns(
    job: job_lib.Job, baselines: Mapping[str, turns_lib.Baseline]
) -> tuple[dict[str, list[turns_lib.Turn]], dict[str, list[float]]]:
  """Measures the baselines in turns; returns turns and update differences."""
  turns = {name: [] for name in baselines}
  differences = {name: [] for name in baselines}
  with tempfile.TemporaryDirectory() as folder:
    ours.write(job, folder)
    ours.write_clients(job, folder)
    initial = job_lib.load_arrays(folder, 'weights')
    expected = None
    for _ in range(_TURNS.value):
      for name, baseline in baselines.items():
        turn = turns_lib.take(
            baseline,
            name=name,
            flags=[
                f'--job={folder}',
                f'--count={_ROUNDS.value}',
                f'--first={os.path.join(folder, "first.npz")}',
            ],
        )
        first = job_lib.load_arrays(folder, 'first')
        expected = first if expected is None else expected
        differences[name].append(
            _check_update(
                name,
                first,
                expected,
                initial,
                tolerance=job.update_tolerance,
            )
        )
        turns[name].append(turn)
        print(
            f'{job.num_clients} clients of {job.dim} wide: {name} '
            f'{statistics.median(f["seconds"] for f in turn.figures):.2f} s a '
            f'round, {turn.total_sec:.0f} s in all',
            flush=True,
        )
  return turns, differences


class _Result:
  """The turns of all baselines at one size."""

  def __init__(
      self,
      job: job_lib.Job,
      turns: Mapping[str, Sequence[turns_lib.Turn]],
      differences: Mapping[str, Sequence[float]],
  ):
    self._job = job
    self._turns = turns
    self._differences = differences
    self._seconds = turns_lib.medians(turns)
    self._ratios = {
        name: clock.ratios(values, self._seconds[_OURS])
        for name, values in self._seconds.items()
    }
    self._num_parameters = weights_lib.num_parameters(
        ours.build_model(job).specs
    )

  def rows(self) -> list[list[str]]:
    """A row of the table for each baseline."""
    rows = []
    for name, turns in self._turns.items():
      first = [turn.figures[0]['first_seconds'] for turn in turns]
      rate = self._job.num_clients / statistics.median(self._seconds[name])
      rows.append([
          f'{self._num_parameters / 1e6:.2f}M, {self._job.num_clients} x '
          f'{self._job.num_local_steps}',
          name,
          report.spread(self._seconds[name]),
          report.spread(self._ratios[name]),
          f'{rate:.2f}',
          report.spread(first, '.1f'),
          f'{max(turn.peak_gib for turn in turns):.2f}',
          f'{max(self._differences[name]):.1g}',
      ])
    return rows

  def figures(self) -> dict[str, Any]:
    """All measurements."""
    return {
        'num_parameters': self._num_parameters,
        'job': vars(self._job),
        'seconds': self._seconds,
        'ratios': self._ratios,
        'turns': {
            name: [turn._asdict() for turn in turns]
            for name, turns in self._turns.items()
        },
        'update_differences': self._differences,
    }


def _check_update(
    name: str,
    first: dict[str, np.ndarray],
    expected: dict[str, np.ndarray],
    initial: dict[str, np.ndarray],
    *,
    tolerance: float,
) -> float:
  """Distance of a first round's update from ours; raises if too far."""
  difference = job_lib.update_difference(first, expected, initial=initial)
  # Written so that NaN fails.
  if not difference <= tolerance:
    raise ValueError(
        f'The first update of {name} is {difference:.2g} of its norm from '
        f'ours, more than {tolerance}: it does other work.'
    )
  return difference


if __name__ == '__main__':
  launch.run(main, after_interrupt='the same command starts again.')

r"""Our federated round against TFF's native context, pfl and Flower.

    benchmarks/baselines/make_venvs.sh pfl pfl_tf flwr
    python -m benchmarks.baselines.rounds --json=results/baseline_rounds.json

All do the same work: the same initial weights, clients, batches and local SGD
steps with clipped gradients; each client's whole update clipped to one norm,
the sum with noise, its mean added to the weights. This is checked: in each
turn, the update of the first round must equal ours to 1e-2 of its norm (the
noise is far smaller), or the benchmark fails. All compute features from 16-bit
samples, which are in memory; ours come from shards
on disk in the first round, and TFF's native context reads them in each. Names
with `2 at once` train two clients at the same time: we in threads of a process,
pfl, through PyTorch's launcher, and Flower in a process each. With --bfloat16
the blocks' products of all are of bfloat16, PyTorch's by its autocast; the
updates must then agree to 1e-1.

The programs take turns, each alone on the machine; the first two rounds of a
turn do not count. Peak memory is of all processes together. A busy machine
falsifies the ratios: threads of PyTorch that wait for each other wait longer,
and Ray gives Flower's clients a low priority.
"""

from tff_asr import launch  # First: quiets TensorFlow before it is loaded.

launch.install_early_sigint(__name__)

from collections.abc import Mapping, Sequence
import os
import statistics
import tempfile

from absl import flags
import numpy as np

from benchmarks import report
from benchmarks import turns as clock
from benchmarks.baselines import job as job_lib
from benchmarks.baselines import ours
from benchmarks.baselines import turns as turns_lib
from tff_asr.models import weights as weights_lib

_BASELINES = {
    'tff_asr': turns_lib.Baseline(venv=None, program='ours_round'),
    'tff_asr 2 at once': turns_lib.Baseline(
        venv=None, program='ours_round', flags=('--at_once=2',)
    ),
    'TFF native': turns_lib.Baseline(
        venv=None, program='ours_round', flags=('--context=native',)
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
    'pfl TensorFlow': turns_lib.Baseline(venv='pfl_tf', program='pfl_tf_round'),
    'Flower': turns_lib.Baseline(venv='flwr', program='flwr_round'),
    'Flower 2 at once': turns_lib.Baseline(
        venv='flwr', program='flwr_round', flags=('--at_once=2',)
    ),
}
_OURS = 'tff_asr'

_NUM_BLOCKS = flags.DEFINE_integer(
    'num_blocks', 6, 'Of the transformer.', lower_bound=1
)
_DIM = flags.DEFINE_integer('dim', 256, 'Its width.', lower_bound=4)
_COHORT = flags.DEFINE_integer('cohort', 4, 'Clients a round.', lower_bound=2)
_STEPS = flags.DEFINE_integer(
    'local_steps', 10, 'Of each client.', lower_bound=1
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
    ['tff_asr 2 at once', 'TFF native', 'pfl', 'pfl TensorFlow', 'Flower'],
    f'Of {", ".join(_BASELINES)}.',
)


def main(_) -> None:
  report.check_json_flag()
  baselines = turns_lib.select(
      [_OURS, *_NAMES.value], _BASELINES, flag='baselines'
  )
  job = ours.build_job(
      num_blocks=_NUM_BLOCKS.value,
      dim=_DIM.value,
      num_clients=_COHORT.value,
      num_local_steps=_STEPS.value,
      is_bfloat16=_BFLOAT16.value,
  )
  turns, differences = _take_turns(job, baselines)
  _report(job, turns, differences)


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
  return turns, differences


def _report(
    job: job_lib.Job,
    turns: Mapping[str, Sequence[turns_lib.Turn]],
    differences: Mapping[str, Sequence[float]],
) -> None:
  """Prints the table of the baselines."""
  seconds = turns_lib.medians(turns)
  ratios = {
      name: clock.ratios(values, seconds[_OURS])
      for name, values in seconds.items()
  }
  peaks = {
      name: [turn.peak_gib for turn in own] for name, own in turns.items()
  }
  rates = {
      name: job.num_clients / statistics.median(values)
      for name, values in seconds.items()
  }
  audio_rate = job.audio_sec / job.num_clients
  num_parameters = weights_lib.num_parameters(ours.build_model(job).specs)
  report.write(
      f'A round of {num_parameters / 1e6:.1f}M parameters, products of '
      f'{job.activation_dtype}, {_COHORT.value} '
      f'clients of {_STEPS.value} steps of '
      f'{job.batch_size * job.utterance_sec:g} s',
      [[
          '',
          'seconds',
          'ratio to tff_asr',
          'clients/s',
          'audio s/s',
          'peak GiB',
          'update differs by',
      ]]
      + [
          [
              name,
              report.spread(seconds[name]),
              report.spread(ratios[name]),
              f'{rates[name]:.2f}',
              f'{rates[name] * audio_rate:.1f}',
              f'{max(peaks[name]):.2f}',
              f'{max(differences[name]):.1g}',
          ]
          for name in turns
      ],
      {
          'num_parameters': num_parameters,
          'job': vars(job),
          'seconds': seconds,
          'ratios': ratios,
          'peak_gib': peaks,
          'update_differences': differences,
          'turn_sec': {
              name: [turn.total_sec for turn in own]
              for name, own in turns.items()
          },
      },
  )


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

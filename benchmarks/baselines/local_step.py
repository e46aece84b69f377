r"""Our compiled local step against the same model in PyTorch and JAX.

    benchmarks/baselines/make_venvs.sh torch jax
    python -m benchmarks.baselines.local_step --json=results/baseline_steps.json

A step is forward, CTC, backward, clip by global norm and SGD on a batch of
features in memory: 4 utterances of 2.5 s. Before a baseline measures, its loss
(to 1e-4) and gradients (to 1e-3 of each weight's norm) on another batch, of
utterances of several lengths, must equal ours; it fails otherwise. Nothing is
random: no dropout, no layer drop, no shift of positions.

The programs take turns, each alone on the machine; each turn starts from the
same weights, and its first step does not count. Ratios are of medians of the
same turn. A busy machine falsifies them: PyTorch's threads wait for each other
in each operation, ours and JAX's do not.
"""

from tff_asr import launch  # First: quiets TensorFlow before it is loaded.

launch.install_early_sigint(__name__)

import tempfile

from absl import flags

from benchmarks import report
from benchmarks import turns as clock
from benchmarks.baselines import ours
from benchmarks.baselines import turns as turns_lib
from tff_asr.models import weights as weights_lib

_BASELINES = {
    'tff_asr': turns_lib.Baseline(venv=None, program='ours_step'),
    'PyTorch': turns_lib.Baseline(venv='torch', program='torch_step'),
    'torch.compile': turns_lib.Baseline(
        venv='torch', program='torch_step', flags=('--compile=loss',)
    ),
    'JAX': turns_lib.Baseline(venv='jax', program='jax_step'),
}
_OURS = 'tff_asr'

_NUM_BLOCKS = flags.DEFINE_integer(
    'num_blocks', 6, 'Of the transformer.', lower_bound=1
)
_DIM = flags.DEFINE_integer('dim', 256, 'Its width.', lower_bound=4)
_STEPS = flags.DEFINE_integer(
    'steps', 10, 'Steps of a turn that count.', lower_bound=1
)
_TURNS = flags.DEFINE_integer('turns', 3, 'Of each baseline.', lower_bound=1)
_NAMES = flags.DEFINE_list(
    'baselines', ['PyTorch', 'JAX'], f'Of {", ".join(_BASELINES)}.'
)


def main(_) -> None:
  report.check_json_flag()
  baselines = turns_lib.select(
      [_OURS, *_NAMES.value], _BASELINES, flag='baselines'
  )
  job = ours.build_job(
      num_blocks=_NUM_BLOCKS.value,
      dim=_DIM.value,
      num_clients=1,
      num_local_steps=1,
  )
  turns = {name: [] for name in baselines}
  with tempfile.TemporaryDirectory() as folder:
    ours.write(job, folder)
    for _ in range(_TURNS.value):
      for name, baseline in baselines.items():
        turns[name].append(
            turns_lib.take(
                baseline,
                name=name,
                flags=[f'--job={folder}', f'--count={_STEPS.value}'],
            )
        )
  medians = turns_lib.medians(turns)
  ratios = {
      name: clock.ratios(values, medians[_OURS])
      for name, values in medians.items()
  }
  num_parameters = weights_lib.num_parameters(ours.build_model(job).specs)
  report.write(
      f'A local step of {num_parameters / 1e6:.1f}M parameters on '
      f'{job.batch_size * job.utterance_sec:g} s of audio',
      [['', 'seconds', 'ratio to tff_asr', 'peak GiB']]
      + [
          [
              name,
              report.spread(medians[name]),
              report.spread(ratios[name]),
              f'{max(turn.peak_gib for turn in turns[name]):.2f}',
          ]
          for name in baselines
      ],
      {
          'num_parameters': num_parameters,
          'job': vars(job),
          'seconds': {
              name: [turn.figures for turn in own]
              for name, own in turns.items()
          },
          'ratios': ratios,
          'peak_gib': {
              name: [turn.peak_gib for turn in own]
              for name, own in turns.items()
          },
      },
  )


if __name__ == '__main__':
  launch.run(main, after_interrupt='the same command starts again.')

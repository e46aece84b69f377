r"""A step of DP-SGD by example and a plain one: seconds and peak memory.

    python -m benchmarks.dp_sgd --json=results/dp_sgd.json

BEST-RQ over a Conformer, a batch of utterances of one length, no dropout.
`plain` is the gradient of the batch; the others clip each example's gradient by
layer and add noise, with a share of the layers frozen. Steps of all alternate
in one process, after a turn that does not count (and compiles); memory is that
of a process for each.
"""

from tff_asr import launch  # First: quiets TensorFlow before it is loaded.

launch.install_early_sigint(__name__)

import subprocess
import sys
import time
from typing import NamedTuple

from absl import flags

from benchmarks import limits
from benchmarks import memory
from benchmarks import report
from benchmarks import turns
from benchmarks import workload as workload_lib
from tff_asr.learning import dp_sgd
from tff_asr.learning import fed_avg
from tff_asr.learning import layer_freeze
from tff_asr.models import best_rq
from tff_asr.models import conformer
from tff_asr.models import quantizer
from tff_asr.models import weights as weights_lib
from tff_asr.optimizers import adam
from tff_asr.privacy import keys

_NUM_BLOCKS = flags.DEFINE_integer(
    'num_blocks', 3, 'Of the Conformer.', lower_bound=1
)
_DIM = flags.DEFINE_integer(
    'dim', 96, 'Its width, a multiple of 8.', lower_bound=8
)
_CODES = flags.DEFINE_integer('codes', 256, 'Labels.', lower_bound=2)
_BATCH = flags.DEFINE_integer('batch', 8, 'Utterances a step.', lower_bound=1)
_SEC = flags.DEFINE_float('sec', 12.0, 'Length of each.', lower_bound=1.0)
_FROZEN = flags.DEFINE_list('frozen', ['0', '0.5'], 'Shares of the layers.')
_REPEATS = flags.DEFINE_integer(
    'repeats', 5, 'Steps that count, of each.', lower_bound=1
)
_ONE = flags.DEFINE_string(
    'one', None, 'Measure this variant in this process and print GiB.'
)


class _Variant(NamedTuple):
  """A kind of step: the plain one, or by example."""

  is_private: bool
  frozen: float

  @property
  def label(self) -> str:
    kind = 'DP' if self.is_private else 'plain'
    return kind + (f', {self.frozen:.0%} frozen' if self.frozen else '')


def main(_) -> None:
  report.check_json_flag()
  if _ONE.value is not None:
    is_private, frozen = _ONE.value.split(',')
    run = _build(_Variant(is_private == 'True', float(frozen)))
    run()
    print(memory.peak_gib())
    return
  variants = _variants()
  runs = {variant: _build(variant) for variant in variants}
  compiling = {}
  for variant, run in runs.items():
    started = time.monotonic()
    run()
    compiling[variant] = time.monotonic() - started
  seconds = turns.measure(runs, repeats=_REPEATS.value)
  ratios = {
      variant: turns.ratios(values, seconds[variants[0]])
      for variant, values in seconds.items()
  }
  peaks = {variant: _peak_gib(variant) for variant in variants}
  num_parameters = weights_lib.num_parameters(_model().specs)
  report.write(
      f'{num_parameters / 1e6:.1f}M parameters, {_BATCH.value} utterances of '
      f'{_SEC.value:g} s a step',
      [['', 'seconds', 'ratio to plain', 'first step', 'peak GiB']]
      + [
          [
              variant.label,
              report.spread(seconds[variant]),
              report.spread(ratios[variant]),
              f'{compiling[variant]:.1f}',
              f'{peaks[variant]:.2f}',
          ]
          for variant in variants
      ],
      {
          'num_parameters': num_parameters,
          **{
              name: {v.label: values[v] for v in variants}
              for name, values in (
                  ('seconds', seconds),
                  ('ratios', ratios),
                  ('compiling', compiling),
                  ('peak_gib', peaks),
              )
          },
      },
  )


def _variants() -> list[_Variant]:
  """The plain step, and the variants that the flags name."""
  try:
    shares = [float(text) for text in _FROZEN.value]
  except ValueError as error:
    raise ValueError(f'--frozen: {error}.') from None
  return [_Variant(False, 0.0), *(_Variant(True, share) for share in shares)]


def _model() -> best_rq.BestRqModel:
  return best_rq.build(
      encoder=conformer.build(
          num_blocks=_NUM_BLOCKS.value,
          dim=_DIM.value,
          mlp_dim=4 * _DIM.value,
          num_heads=4,
          front_channels=16,
      ),
      quantizer=quantizer.RandomProjectionQuantizer(num_codes=_CODES.value),
  )


def _build(variant: _Variant):
  """A function that takes a step and waits for it."""
  model = _model()
  frozen = ()
  if variant.frozen:
    freeze = layer_freeze.LayerFreeze(share=variant.frozen, order='random')
    frozen = freeze.choose(
        dict.fromkeys(model.specs, 1.0), model.specs
    )
  step = dp_sgd.DpSgd(
      model=model,
      optimizer=adam.build_adam(0.001),
      batch_size=_BATCH.value,
      seed=1,
      build_query=workload_lib.build_query() if variant.is_private else None,
      frozen=frozen,
      gradient_mode='per_example' if variant.is_private else 'per_batch',
  )
  state = step.initialize()
  if variant.is_private:
    state = fed_avg.set_noise_key(state, keys.draw())
  batch = workload_lib.build_batch(_BATCH.value, seconds=_SEC.value)

  def run() -> None:
    limits.wait(step.next(state, [batch]).state.global_model_weights)

  return run


def _peak_gib(variant: _Variant) -> float:
  """Peak memory of a step, measured in a separate process."""
  sizes = (_NUM_BLOCKS, _DIM, _CODES, _BATCH, _SEC)
  output = subprocess.run(
      [
          sys.executable,
          '-m',
          'benchmarks.dp_sgd',
          f'--one={variant.is_private},{variant.frozen}',
          *(f'--{flag.name}={flag.value}' for flag in sizes),
      ],
      check=True,
      stdout=subprocess.PIPE,
      text=True,
  ).stdout
  return float(output.splitlines()[-1])


if __name__ == '__main__':
  launch.run(main, after_interrupt='the same command starts again.')

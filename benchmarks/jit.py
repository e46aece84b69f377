r"""Rounds with and without JIT: what XLA costs once, and saves in each step.

    python -m benchmarks.jit

Clients of utterances of different lengths in two shapes, the loss in tensor
ops. Each of the two runs in a process of its own. The table has CPU seconds of
all threads, which other programs on the machine disturb less than the clock:
of the first round beyond a later one, in which functions are also loaded and
optimized, and of a step in the later ones (medians with least and most); and
the peak of resident memory.
"""

from tff_asr import launch  # First: quiets TensorFlow before it is loaded.

launch.begin(__name__)

import json
import statistics
import tempfile
import time

from absl import flags

from benchmarks import own_process
from benchmarks import report
from benchmarks import workload as workload_lib
from tff_asr.data import shapes as shapes_lib
from tff_asr.execution import multi_device

_NUM_BLOCKS = flags.DEFINE_integer(
    'num_blocks', 6, 'Of the transformer.', lower_bound=1
)
_DIM = flags.DEFINE_integer('dim', 256, 'Its width.', lower_bound=1)
_REPEATS = flags.DEFINE_integer(
    'repeats', 3, 'Rounds after the first.', lower_bound=1
)
_OWN = flags.DEFINE_boolean('own', None, 'Measures here, with JIT or without.')

_NUM_CLIENTS, _NUM_STEPS = 2, 4
_SHAPES = shapes_lib.Shapes(((2, 480), (4, 256)), 40)


def main(_) -> None:
  sizes = workload_lib.Workload(
      num_blocks=_NUM_BLOCKS.value,
      dim=_DIM.value,
      num_clients=_NUM_CLIENTS,
      num_local_steps=_NUM_STEPS,
      length_range=0.5,
      shapes=_SHAPES,
  )
  if _OWN.value is not None:
    print(json.dumps(_measure_here(sizes, jit=_OWN.value)))
    return
  report.check_json_flag()
  plain, compiled = (
      json.loads(
          own_process.measure(
              'jit',
              own=own,
              num_blocks=_NUM_BLOCKS.value,
              dim=_DIM.value,
              repeats=_REPEATS.value,
          )
      )
      for own in ('false', 'true')
  )
  rows = [['', 'first round beyond a later one, CPU s', 'a step, CPU s', 'GiB']]
  for name, found in (('without', plain), ('JIT', compiled)):
    first, *later = found['cpu_sec']
    rows.append([
        name,
        f'{first - statistics.median(later):.1f}',
        report.spread([sec / _NUM_CLIENTS / _NUM_STEPS for sec in later]),
        f'{found["peak_gib"]:.2f}',
    ])
  step, memory = (
      statistics.median(compiled['cpu_sec'][1:])
      / statistics.median(plain['cpu_sec'][1:]),
      compiled['peak_gib'] / plain['peak_gib'],
  )
  rows.append(['ratio', '', f'{step:.2f}', f'{memory:.2f}'])
  report.write(
      f'{sizes.num_parameters() / 1e6:.1f}M parameters, {_NUM_CLIENTS} clients '
      f'of {_NUM_STEPS} steps of {sizes.batch_sec:g} s in two shapes',
      rows,
      {'without': plain, 'jit': compiled, 'ratios': [step, memory]},
  )


def _measure_here(sizes: workload_lib.Workload, *, jit: bool) -> dict:
  """CPU seconds of rounds, and the peak of memory, of this process."""
  with tempfile.TemporaryDirectory() as folder:
    clients = sizes.write_corpus(folder)
    run = workload_lib.Round(
        multi_device.build_sync_context(multi_device.Settings(jit=jit)),
        sizes.build_process(clients, cohort_size=_NUM_CLIENTS),
        clients.client_ids,
    )
    seconds = []
    for _ in range(_REPEATS.value + 1):
      begun = time.process_time()
      run()
      seconds.append(time.process_time() - begun)
  return {'cpu_sec': seconds, 'peak_gib': own_process.peak_gib()}


if __name__ == '__main__':
  launch.run(main, after_interrupt='the same command begins anew.')

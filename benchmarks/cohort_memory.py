r"""Peak memory of a round against the size of the cohort.

    python -m benchmarks.cohort_memory --cohorts=8,64

Each cohort runs two rounds in a process of its own; the table has that
process's largest resident memory, and its ratio to the first cohort's.
"""

from tff_asr import launch  # First: quiets TensorFlow before it is loaded.

launch.begin(__name__)

import tempfile

from absl import flags

from benchmarks import own_process
from benchmarks import report
from benchmarks import workload as workload_lib
from tff_asr.execution import multi_device

_COHORTS = flags.DEFINE_list('cohorts', ['8', '64'], 'Clients a round.')
_NUM_BLOCKS = flags.DEFINE_integer(
    'num_blocks', 6, 'Of the transformer.', lower_bound=1
)
_DIM = flags.DEFINE_integer('dim', 256, 'Its width.', lower_bound=1)
_ONE = flags.DEFINE_integer(
    'one', None, 'Measure this cohort in this process and print GiB.'
)


def main(_) -> None:
  report.check_json_flag()
  if _ONE.value is not None:
    print(_measure(_ONE.value))
    return
  for cohort in _COHORTS.value:
    if not cohort.isdecimal() or not int(cohort):
      raise ValueError(
          f'--cohorts must be positive integers such as 8,64, found {cohort!r}.'
      )
  peaks = {}
  for cohort in _COHORTS.value:
    peak = own_process.measure(
        'cohort_memory',
        one=cohort,
        num_blocks=_NUM_BLOCKS.value,
        dim=_DIM.value,
    )
    peaks[cohort] = float(peak)
  first = peaks[_COHORTS.value[0]]
  report.write(
      'Peak memory of two rounds',
      [['clients a round', 'GiB', 'ratio']]
      + [
          [cohort, f'{peak:.2f}', f'{peak / first:.3f}']
          for cohort, peak in peaks.items()
      ],
      {'peak_gib': peaks},
  )


def _measure(cohort_size: int) -> float:
  """Peak GiB of this process over two rounds."""
  sizes = workload_lib.Workload(
      num_blocks=_NUM_BLOCKS.value,
      dim=_DIM.value,
      num_clients=cohort_size,
      num_local_steps=1,
      num_utterances=4,
  )
  with tempfile.TemporaryDirectory() as folder:
    clients = sizes.write_corpus(folder)
    process = sizes.build_process(clients, cohort_size=cohort_size)
    multi_device.set_default_context()
    state = workload_lib.initialize(process)
    for _ in range(2):
      state = process.next(state, list(clients.client_ids)).state
  return own_process.peak_gib()


if __name__ == '__main__':
  launch.run(main, after_interrupt='the same command begins anew.')

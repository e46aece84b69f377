r"""Peak memory of a round against the size of the cohort.

    python -m benchmarks.cohort_memory --cohorts=8,64

Each cohort runs two rounds in a process of its own; the table has that
process's largest resident memory, and its ratio to the first cohort's.
"""

from tff_asr import launch  # First: quiets TensorFlow before it is loaded.

launch.begin(__name__)

import subprocess
import sys
import tempfile

from absl import flags

from benchmarks import workload as workload_lib
from tff_asr.execution import multi_device

_COHORTS = flags.DEFINE_list('cohorts', ['8', '64'], 'Clients a round.')
_NUM_BLOCKS = flags.DEFINE_integer(
    'num_blocks', 6, 'Of the transformer.', lower_bound=1
)
_DIM = flags.DEFINE_integer('dim', 256, 'Its width.', lower_bound=1)
_JSON = flags.DEFINE_string('json', None, 'File for the figures.')
_ONE = flags.DEFINE_integer(
    'one', None, 'Measure this cohort in this process and print GiB.'
)


def main(_) -> None:
  workload_lib.check_json_path(_JSON.value)
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
    output = subprocess.run(
        [
            sys.executable,
            '-m',
            'benchmarks.cohort_memory',
            f'--one={cohort}',
            f'--num_blocks={_NUM_BLOCKS.value}',
            f'--dim={_DIM.value}',
        ],
        check=False,
        stdout=subprocess.PIPE,
        text=True,
    )
    if output.returncode:
      sys.exit(output.returncode)  # It has said why.
    peaks[cohort] = float(output.stdout.split()[-1])
  first = peaks[_COHORTS.value[0]]
  workload_lib.report(
      'Peak memory of two rounds',
      [['clients a round', 'GiB', 'ratio']]
      + [
          [cohort, f'{peak:.2f}', f'{peak / first:.3f}']
          for cohort, peak in peaks.items()
      ],
      {'peak_gib': peaks},
      _JSON.value,
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
  return workload_lib.peak_gib()


if __name__ == '__main__':
  launch.run(main, after_interrupt='the same command begins anew.')

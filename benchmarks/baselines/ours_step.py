"""Our local steps: the compiled step of the clients.

A program of the drivers; see `local_step`.
"""

from tff_asr import launch  # First: quiets TensorFlow before it is loaded.

launch.begin(__name__)

import time

from absl import flags

from benchmarks.baselines import job as job_lib
from benchmarks.baselines import ours

_JOB = flags.DEFINE_string('job', None, 'Folder of the job.', required=True)
_STEPS = flags.DEFINE_integer('steps', 10, 'Steps that count.', lower_bound=1)


def main(_) -> None:
  job = job_lib.load(_JOB.value)
  step = ours.build_step(job)
  weights = ours.load_weights(_JOB.value)
  batch = ours.load_timed_batch(_JOB.value)
  # One more that does not count: it traces.
  for number in range(_STEPS.value + 1):
    started = time.monotonic()
    weights, loss_sum = step(weights, batch)
    # One function: its outputs are there together.
    loss = float(loss_sum) / job.batch_size
    seconds = time.monotonic() - started
    if number:
      job_lib.say(seconds=seconds, loss=loss)


if __name__ == '__main__':
  launch.run(main, after_interrupt='the same command begins anew.')

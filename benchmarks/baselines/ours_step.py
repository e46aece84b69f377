"""Our local steps: the compiled step of the clients.

A program of the drivers; see `local_step`.
"""

from tff_asr import launch  # First: quiets TensorFlow before it is loaded.

launch.install_early_sigint(__name__)

from benchmarks.baselines import job as job_lib
from benchmarks.baselines import ours
from benchmarks.baselines import program



def main(_) -> None:
  folder = program.JOB.value
  job = job_lib.load(folder)
  step = ours.build_step(job)
  weights = ours.load_weights(folder)
  batch = ours.load_timed_batch(folder)

  def take() -> float:
    nonlocal weights
    # One function: its outputs are there together.
    weights, loss_sum = step(weights, batch)
    return float(loss_sum) / job.batch_size

  program.time_steps(take)


if __name__ == '__main__':
  launch.run(main, after_interrupt='the same command starts again.')

"""Local steps of the PyTorch twin: eager, or through torch.compile.

A program of the drivers; see `local_step`.
"""

from tff_asr import launch

launch.install_early_sigint(__name__)

from absl import flags
import torch

from benchmarks.baselines import job as job_lib
from benchmarks.baselines import program
from benchmarks.baselines import torch_model

_COMPILE = flags.DEFINE_enum(
    'compile', 'none', ['none', 'loss'], 'What torch.compile compiles.'
)


def main(_) -> None:
  folder = program.JOB.value
  job = job_lib.load(folder)
  model = torch_model.CtcTransformer(job)
  initial = job_lib.load_arrays(folder, 'weights')
  torch_model.load(model, initial)
  compute_loss = model.feature_loss
  if _COMPILE.value == 'loss':
    compute_loss = torch.compile(compute_loss)

  expected = job_lib.load_arrays(folder, 'check')
  loss = compute_loss(*torch_model.batch_of(expected))
  loss.backward()
  job_lib.check_twin(
      loss=loss.item(),
      gradients=torch_model.export_gradients(model),
      expected=expected,
  )

  batch = torch_model.batch_of(job_lib.load_arrays(folder, 'timed'))
  optimizer = torch.optim.SGD(model.parameters(), lr=job.learning_rate)

  def take() -> float:
    optimizer.zero_grad()
    loss = compute_loss(*batch)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), job.max_grad_norm)
    optimizer.step()
    return loss.item()

  program.time_steps(take)


if __name__ == '__main__':
  launch.run(main, after_interrupt='the same command starts again.')

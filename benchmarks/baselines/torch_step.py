"""Local steps of the PyTorch twin: eager, or through torch.compile.

A program of the drivers; see `local_step`.
"""

from tff_asr import launch

launch.begin(__name__)

import time

from absl import flags
import torch

from benchmarks.baselines import job as job_lib
from benchmarks.baselines import torch_model

_JOB = flags.DEFINE_string('job', None, 'Folder of the job.', required=True)
_STEPS = flags.DEFINE_integer('steps', 10, 'Steps that count.', lower_bound=1)
_COMPILE = flags.DEFINE_enum(
    'compile', 'none', ['none', 'loss'], 'What torch.compile compiles.'
)


def main(_) -> None:
  job = job_lib.load(_JOB.value)
  model = torch_model.CtcTransformer(job)
  initial = job_lib.load_arrays(_JOB.value, 'weights')
  torch_model.load(model, initial)
  compute_loss = model.feature_loss
  if _COMPILE.value == 'loss':
    compute_loss = torch.compile(compute_loss)

  expected = job_lib.load_arrays(_JOB.value, 'check')
  loss = compute_loss(*torch_model.batch_of(expected))
  loss.backward()
  job_lib.check_twin(
      loss=loss.item(),
      gradients=torch_model.export_gradients(model),
      expected=expected,
  )

  batch = torch_model.batch_of(job_lib.load_arrays(_JOB.value, 'timed'))
  optimizer = torch.optim.SGD(model.parameters(), lr=job.learning_rate)
  # One more that does not count: the first of a shape costs more.
  for number in range(_STEPS.value + 1):
    started = time.monotonic()
    optimizer.zero_grad()
    loss = compute_loss(*batch)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), job.max_grad_norm)
    optimizer.step()
    seconds = time.monotonic() - started
    if number:
      job_lib.say(seconds=seconds, loss=loss.item())


if __name__ == '__main__':
  launch.run(main, after_interrupt='the same command begins anew.')

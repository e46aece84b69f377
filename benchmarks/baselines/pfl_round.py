"""Rounds of `pfl` with its PyTorch back end; see `pfl_run`.

A program of the drivers; see `rounds`.
"""

from tff_asr import launch

launch.install_early_sigint(__name__)

import functools

import numpy as np
from pfl import metrics as metrics_lib
from pfl.model import pytorch
import torch

from benchmarks.baselines import job as job_lib
from benchmarks.baselines import pfl_run
from benchmarks.baselines import program
from benchmarks.baselines import torch_model


def main(_) -> None:
  folder = program.JOB.value
  job = job_lib.load(folder)
  module = _Module(job)
  torch_model.load(module, job_lib.load_arrays(folder, 'weights'))
  clients = job_lib.load_clients(folder)
  labels = clients.labels.astype(np.int64)
  pfl_run.run(
      pytorch.PyTorchModel(
          module,
          local_optimizer_create=torch.optim.SGD,
          central_optimizer=torch.optim.SGD(module.parameters(), lr=1.0),
      ),
      job=job,
      read_client=lambda client: [clients.waveforms[client], labels[client]],
      export=functools.partial(torch_model.export, module),
  )


class _Module(torch_model.CtcTransformer):
  """The twin with the two methods that `PyTorchModel` requires."""

  @torch.no_grad()
  def metrics(
      self, waveforms: torch.Tensor, labels: torch.Tensor
  ) -> dict[str, metrics_lib.Weighted]:
    """The loss."""
    loss = self.loss(waveforms, labels).item()
    return {'loss': metrics_lib.Weighted(loss * len(labels), len(labels))}


if __name__ == '__main__':
  launch.run(main, after_interrupt='the same command starts again.')

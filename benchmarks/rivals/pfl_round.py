"""Rounds of `pfl` with its PyTorch back end, as its tutorials build them.

`FederatedAveraging` in a `SimulatedBackend` whose postprocessor is a
`CentrallyAppliedPrivacyMechanism` over a `GaussianMechanism`. Data lie in
memory. Under torch.distributed.run, pfl divides each cohort over the processes;
the first of them reports. A program of the drivers; see `rounds`.
"""

from tff_asr import launch

launch.begin(__name__)

import itertools
import os
import time

from absl import flags
import numpy as np
from pfl.aggregate import simulate
from pfl.algorithm import base as algorithm_base
from pfl.algorithm import federated_averaging
from pfl.callback import base as callback_base
from pfl.data import dataset as dataset_lib
from pfl.data import federated_dataset
from pfl.hyperparam import base as hyperparam_base
from pfl import metrics as metrics_lib
from pfl.model import pytorch
from pfl.privacy import gaussian_mechanism
from pfl.privacy import privacy_mechanism
import torch

from benchmarks.rivals import job as job_lib
from benchmarks.rivals import torch_model

_JOB = flags.DEFINE_string('job', None, 'Folder of the job.', required=True)
_ROUNDS = flags.DEFINE_integer(
    'rounds', 2, 'Rounds that count.', lower_bound=1
)
_FIRST = flags.DEFINE_string(
    'first', None, 'File for the weights after the first round.', required=True
)


def main(_) -> None:
  job = job_lib.load(_JOB.value)
  module = _Module(job)
  torch_model.load(module, job_lib.load_arrays(_JOB.value, 'weights'))
  model = pytorch.PyTorchModel(
      module,
      local_optimizer_create=torch.optim.SGD,
      central_optimizer=torch.optim.SGD(module.parameters(), lr=1.0),
  )
  mechanism = privacy_mechanism.CentrallyAppliedPrivacyMechanism(
      gaussian_mechanism.GaussianMechanism(
          clipping_bound=job.l2_norm_clip,
          relative_noise_stddev=job.noise_multiplier,
      )
  )
  users = _users(job)
  backend = simulate.SimulatedBackend(
      training_data=users, val_data=users, postprocessors=[mechanism]
  )
  num_rounds = _ROUNDS.value + 1
  algorithm = federated_averaging.FederatedAveraging()
  algorithm.run(
      algorithm_params=algorithm_base.NNAlgorithmParams(
          central_num_iterations=num_rounds,
          # Evaluates in the first round alone, which does not count.
          evaluation_frequency=num_rounds + 1,
          train_cohort_size=job.num_clients,
          val_cohort_size=0,
      ),
      backend=backend,
      model=model,
      model_train_params=hyperparam_base.NNTrainHyperParams(
          local_num_epochs=None,
          local_num_steps=job.num_local_steps,
          local_learning_rate=job.learning_rate,
          local_batch_size=job.batch_size,
          local_max_grad_norm=job.max_grad_norm,
      ),
      model_eval_params=hyperparam_base.NNEvalHyperParams(
          local_batch_size=job.batch_size
      ),
      callbacks=[_Clock(module)],
  )


class _Module(torch_model.CtcTransformer):
  """The twin with the two methods that `PyTorchModel` asks for."""

  @torch.no_grad()
  def metrics(
      self, waveforms: torch.Tensor, labels: torch.Tensor
  ) -> dict[str, metrics_lib.Weighted]:
    """The loss."""
    loss = self.loss(waveforms, labels).item()
    return {'loss': metrics_lib.Weighted(loss * len(labels), len(labels))}


class _Clock(callback_base.TrainingProcessCallback):
  """Says what each round took, and saves the weights after the first."""

  def __init__(self, module: torch_model.CtcTransformer):
    self._module = module
    self._started = time.monotonic()

  def after_central_iteration(
      self, aggregate_metrics, model, *, central_iteration
  ):
    seconds = time.monotonic() - self._started
    if os.environ.get('RANK', '0') != '0':
      return False, metrics_lib.Metrics()
    if central_iteration:
      job_lib.say(seconds=seconds)
    else:
      np.savez(_FIRST.value, **torch_model.export(self._module))
    self._started = time.monotonic()
    return False, metrics_lib.Metrics()


def _users(job: job_lib.Job) -> federated_dataset.FederatedDataset:
  """All clients' data, in memory; clients take turns."""
  clients = job_lib.load_clients(_JOB.value)
  labels = clients.labels.astype(np.int64)

  def make_user(client: int) -> dataset_lib.Dataset:
    return dataset_lib.Dataset(
        raw_data=[clients.waveforms[client], labels[client]],
        user_id=str(client),
    )

  turns = itertools.cycle(range(job.num_clients))
  return federated_dataset.FederatedDataset(make_user, lambda: next(turns))


if __name__ == '__main__':
  launch.run(main, after_interrupt='the same command begins anew.')

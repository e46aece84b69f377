"""Rounds of `pfl`: the part that all back ends share.

Runs `FederatedAveraging` in a `SimulatedBackend`. Its postprocessor is a
`CentrallyAppliedPrivacyMechanism` over a `GaussianMechanism`, as in pfl's
tutorials; each client's data are in memory. Under torch.distributed.run, pfl
divides each cohort over the processes; the first of them reports.
"""

from collections.abc import Callable
import itertools
import os
from typing import Any

import numpy as np
from pfl.aggregate import simulate
from pfl.algorithm import base as algorithm_base
from pfl.algorithm import federated_averaging
from pfl.callback import base as callback_base
from pfl.data import dataset as dataset_lib
from pfl.data import federated_dataset
from pfl.hyperparam import base as hyperparam_base
from pfl import metrics as metrics_lib
from pfl.model import base as model_base
from pfl.privacy import gaussian_mechanism
from pfl.privacy import privacy_mechanism

from benchmarks.baselines import job as job_lib
from benchmarks.baselines import program


def run(
    model: model_base.StatefulModel,
    *,
    job: job_lib.Job,
    read_client: Callable[[int], list[Any]],
    export: Callable[[], dict[str, np.ndarray]],
) -> None:
  """Runs the rounds of `program`'s flags, after those of the warm-up.

  Args:
    model: With the job's initial weights, and a central optimizer of rate 1.
    job: The job.
    read_client: From a client's number to its arrays or tensors.
    export: Gives the weights by our names.
  """
  mechanism = privacy_mechanism.CentrallyAppliedPrivacyMechanism(
      gaussian_mechanism.GaussianMechanism(
          clipping_bound=job.l2_norm_clip,
          relative_noise_stddev=job.noise_multiplier,
      )
  )
  turns = itertools.cycle(range(job.num_clients))
  users = federated_dataset.FederatedDataset(
      lambda client: dataset_lib.Dataset(
          raw_data=read_client(client), user_id=str(client)
      ),
      lambda: next(turns),
  )
  total = program.WARM_UPS.value + program.COUNT.value
  algorithm = federated_averaging.FederatedAveraging()
  algorithm.run(
      algorithm_params=algorithm_base.NNAlgorithmParams(
          central_num_iterations=total,
          # Evaluates in the first round alone, which does not count.
          evaluation_frequency=total,
          train_cohort_size=job.num_clients,
          val_cohort_size=0,
      ),
      backend=simulate.SimulatedBackend(
          training_data=users, val_data=users, postprocessors=[mechanism]
      ),
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
      callbacks=[_Clock(export)],
  )


class _Clock(callback_base.TrainingProcessCallback):
  """The clock of the rounds; of several processes the first one's."""

  def __init__(self, export: Callable[[], dict[str, np.ndarray]]):
    self._export = export
    self._clock = program.RoundClock()

  def after_central_iteration(
      self, aggregate_metrics, model, *, central_iteration
  ):
    # A round's work is done when its weights are here.
    weights = self._export()
    if os.environ.get('RANK', '0') == '0':
      self._clock.end(lambda: weights)
    return False, metrics_lib.Metrics()

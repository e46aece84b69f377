"""Running statistics of batch norm: how training moves them, who refuses them.

Training normalises by a batch's own statistics, evaluation by running averages
of them (`models.layers.batch_norm`),

    statistic <- m statistic + (1 - m) (mean of the step's batches' statistics),

batches weighed by their utterances, m = .99. The averages are among the model's
weights, so that they are saved, loaded and exported with them; what stands in
the place of their gradients is the difference that this takes.

Examples of a batch change each other's outputs, so that no gradient is of one
example, and clients with small batches of their own have no statistics to
share. Hence no differential privacy, and no federated training.
"""

import tensorflow_federated as tff

from tff_asr.models import weights as weights_lib
from tff_asr.optimizers import grouped

MOMENTUM = 0.99


def refuse(specs: weights_lib.Specs, reason: str) -> None:
  """Raises ValueError with a reason if there are running statistics."""
  found = sorted(weights_lib.statistics(specs))
  if found:
    raise ValueError(
        f'the model has batch norm ({found[0]}): {reason}. Set NORM = '
        "'group', or train centrally, without privacy, in whole batches."
    )


def with_statistics(
    optimizer: tff.learning.optimizers.Optimizer, specs: weights_lib.Specs
) -> tff.learning.optimizers.Optimizer:
  """The optimizer, beside which running statistics follow their batches'.

  Args:
    optimizer: Optimizer of the other weights. If there are no running
      statistics, it is returned as it is.
    specs: The trained weights.
  """
  statistics = weights_lib.statistics(specs)
  if not statistics:
    return optimizer
  return grouped.build_grouped(
      optimizer,
      group=statistics,
      rate=1.0,
      group_optimizer=tff.learning.optimizers.build_sgdm(1 - MOMENTUM),
  )

"""The metrics of a federated round, by name.

The rule of privacy is in the names: what is computed from clients without noise
begins with `not_private/`, for simulations, and the privacy statement does not
cover it. Everything else is of settings, noised sums, released models and the
ledger, and may be shown with the model.

docs/metrics.md has each name.
"""

from collections.abc import Mapping
import math
import re
from typing import Any

from tff_asr.learning import fed_avg
from tff_asr.storage import run_dir

_PREFIX = 'not_private/'
# Where the learning process keeps exact figures.
_EXACT = re.compile(r'client_work/|aggregator/not_private/')
# A figure for each layer of a model: TensorBoard has them, the CSV has not.
_BY_LAYER = re.compile(r'(^|/)(clipped_)?layer_(norm|clipped|clip)/')


def flatten(
    metrics: Mapping[str, Any], *, traffic: fed_avg.Traffic
) -> dict[str, float]:
  """Flat metrics of a round, with the averages that people read.

  Args:
    metrics: Of a process made by `fed_avg.build`.
    traffic: Bytes of each client.

  Returns:
    Numbers by name. A mean over clients of whom there were none is NaN.
  """
  released, exact = {}, {}
  for name, value in run_dir.flatten_metrics(metrics).items():
    is_exact = _EXACT.match(name)
    if is_exact:
      exact[name[is_exact.end() :]] = value
    else:
      released[name] = value
  trained = exact.pop('num_trained')
  finite = exact['num_clients'] - exact['num_non_finite']
  for mean, total, count in (
      ('train_loss', 'loss_sum', exact['num_utterances']),
      ('loss_before', 'first_loss_sum', trained),
      ('loss_after', 'last_loss_sum', trained),
      ('delta_norm', 'delta_norm_sum', finite),
  ):
    total = exact.pop(total)
    exact[mean] = total / count if count else math.nan
  exact['bytes_down'] = traffic.down * exact['num_clients']
  exact['bytes_up'] = traffic.up * exact['num_clients']
  return released | {f'{_PREFIX}{name}': exact[name] for name in exact}


def is_of_the_whole(name: str) -> bool:
  """Whether a metric is of the whole model, not of one of its layers."""
  return not _BY_LAYER.search(name)

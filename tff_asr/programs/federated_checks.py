"""What is checked of a federated run's settings before its first round."""

from collections.abc import Callable
from typing import Any, Optional

import tensorflow_federated as tff

from tff_asr import checks
from tff_asr.privacy import keys
from tff_asr.programs import divergence
from tff_asr.programs import evaluation
from tff_asr.programs import failures
from tff_asr.programs import preflight


def check_counts(
    num_rounds: int, evaluate_every: int, save_every: int
) -> None:
  """The counts are counts."""
  checks.positive_int(
      num_rounds=num_rounds,
      evaluate_every=evaluate_every,
      save_every=save_every,
  )


def check_cohorts(
    client_data: tff.simulation.datasets.ClientData,
    build_cohorts: Callable[..., Any],
) -> None:
  """Cohorts can be drawn from these clients."""
  build_cohorts(client_data.client_ids, key=keys.from_seed(0))


def check_faults(
    max_failed_share: Optional[float],
    on_divergence: str,
    max_norm_growth: Optional[float],
) -> None:
  """What is done about failing clients and diverging models can be done."""
  failures.check_share(max_failed_share)
  divergence.check(action=on_divergence, max_growth=max_norm_growth)


def check_fixed_seeds(
    noise_seed: Optional[int], sampler_seed: Optional[int]
) -> None:
  """Seeds are seeds."""
  if noise_seed is not None:
    checks.non_negative_int(noise_seed=noise_seed)
  if sampler_seed is not None:
    checks.non_negative_int(sampler_seed=sampler_seed)


ALL = (
    check_counts,
    check_cohorts,
    preflight.check_delta,
    check_fixed_seeds,
    check_faults,
    evaluation.check_characters,
    *preflight.TRAINING_CHECKS,
)

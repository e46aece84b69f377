"""Clients that a round did without, and how many are too many.

A client that failed (its data could not be read, its work raised) is not in the
sum, and one whose update is not finite counts as zeros: either way as if it had
sent zeros. The sum is divided by the expected cohort in any case, so noise,
sensitivity and accounting are what they were.
"""

from collections.abc import Mapping
from typing import Any, Optional

from absl import logging
import tensorflow_federated as tff

from tff_asr import checks


class TooManyFailuresError(ValueError):
  """More of a round's clients failed than the run may do without."""


def check_share(max_failed_share: Optional[float]) -> None:
  """Raises ValueError unless this is a share."""
  if max_failed_share is not None:
    checks.in_range(0, 1, max_failed_share=max_failed_share)


def count(
    context: tff.framework.AsyncContext,
    metrics: Mapping[str, Any],
    *,
    cohort_size: int,
    round_num: int,
    max_failed_share: Optional[float],
) -> int:
  """The clients that a round left out; says so in the log, without names.

  Args:
    context: Ran the round.
    metrics: Of the client work.
    cohort_size: Clients that came.
    round_num: The round, for messages.
    max_failed_share: Share of them that may fail, also by an update that is
      not finite; None: any number of those, and no other.

  Returns:
    How many failed, without those whose update was not finite.

  Raises:
    TooManyFailuresError: More failed than may.
  """
  # The native context ends a round when a client fails.
  failures = getattr(context, 'last_failures', {})
  non_finite = int(metrics['num_non_finite'])
  reasons = []
  if failures:
    reasons.append(f'the first of them: {failures[min(failures)]}')
  if non_finite:
    reasons.append(f'{non_finite} with an update that is not finite')
  failed = len(failures) + non_finite
  if not failed:
    return 0
  text = (
      f'{failed} of {cohort_size} clients of round {round_num} failed '
      f'({"; ".join(reasons)})'
  )
  if max_failed_share is not None and failed > max_failed_share * cohort_size:
    raise TooManyFailuresError(
        f'{text}, more than MAX_FAILED_SHARE = {max_failed_share:g} allows: '
        'mend the data or lower CLIENT_LEARNING_RATE, or raise it.'
    )
  logging.warning('%s and were left out.', text)
  return len(failures)

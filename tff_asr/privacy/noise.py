"""The conventions of noise, converted in this one place.

All are standard deviations over the clip C, for a public cohort size S that is
the divisor of the mean (https://arxiv.org/abs/2310.00098, appendix H.1):

  on the sum     z, the noise multiplier; what accountants take
  on the mean    the paper's sigma_DP = z / S
  at a client    z / sqrt(S), if each of S clients adds its own
"""

from collections.abc import Iterable
import dataclasses
import math

from tff_asr import checks


@dataclasses.dataclass(frozen=True, kw_only=True)
class Noise:
  """The same noise, as a standard deviation over the clip, in three places.

  on_sum is the noise multiplier z, on_mean the paper's sigma_DP, at_client the
  noise on each of cohort_size updates before they are summed.
  """

  on_sum: float
  on_mean: float
  at_client: float


def convert(value: float, *, given: str, cohort_size: int) -> Noise:
  """Converts the noise conventions, for a divisor and cohort of cohort_size.

      on_sum = on_mean * cohort_size = at_client * sqrt(cohort_size)

  Args:
    value: Standard deviation over the clip, at least 0.
    given: Where `value` is stated: 'sum', 'mean' or 'client'.
    cohort_size: The public divisor of the mean.
  """
  checks.finite(value=value)
  checks.non_negative(value=value)
  checks.one_of(('sum', 'mean', 'client'), given=given)
  checks.positive_int(cohort_size=cohort_size)
  per_place = {'sum': 1, 'mean': cohort_size, 'client': math.sqrt(cohort_size)}
  on_sum = value * per_place[given]
  return Noise(
      on_sum=on_sum,
      on_mean=on_sum / per_place['mean'],
      at_client=on_sum / per_place['client'],
  )


def combine_gaussians(noise_multipliers: Iterable[float]) -> float:
  """Returns the one noise multiplier of several Gaussians on one cohort.

  z = (sum of z_i^-2)^-1/2: https://arxiv.org/abs/1812.06210, section 3. One
  without noise leaves none: 0.
  """
  multipliers = list(noise_multipliers)
  if not multipliers:
    raise ValueError('noise_multipliers must name at least one Gaussian.')
  for noise_multiplier in multipliers:
    checks.finite(noise_multiplier=noise_multiplier)
    checks.non_negative(noise_multiplier=noise_multiplier)
  smallest = min(multipliers)  # factored out, so that squares stay in range
  if len(multipliers) == 1 or smallest == 0:
    return float(smallest)
  return smallest / math.sqrt(sum((smallest / z) ** 2 for z in multipliers))

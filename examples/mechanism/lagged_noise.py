"""Your own noise: each round takes back a share of the last round's noise.

y_t = w_t - share w_(t-1), that is y = C^-1 w, where C has the first column
c_i = share^i: a BLT whose one buffer has this scale and this decay. Its
sensitivity follows from c.
"""

import math

from tff_asr import checks
from tff_asr.privacy import strategies


def build(*, share: float) -> strategies.Toeplitz:
  """Returns the strategy of noise that takes back a share in (0, 1]."""
  checks.positive(share=share)
  # Sensitivity is that of the rounded share, which the noise is made with.
  steps = math.floor(share * 2**strategies.FRACTION_BITS)
  return strategies.Toeplitz(output_scale=(steps,), buf_decay=(steps,))

"""Rounds products of floats and counts down, despite floating-point errors.

0.29 * 100 is 28.999999999999996 in floating point, so `int` of it allows 28 of
100 where a configuration says 29 %.
"""

import math


def whole(number: float) -> int:
  """Returns the number rounded down, or to the nearest if that is its rounding.

      >>> whole(0.29 * 100), whole(28.99)
      (29, 28)

  Args:
    number: A product of a float and a count; finite. Relative errors up to 1e-9
      are taken for its rounding.
  """
  nearest = round(number)
  return nearest if math.isclose(number, nearest) else math.floor(number)

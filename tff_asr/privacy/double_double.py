"""Double-double arithmetic: pairs of float64 that stand for their sum.

A pair (hi, lo) has |lo| at most half a unit in the last place of hi, so some
106 bits. Works on NumPy arrays and tensors alike, by operations that IEEE 754
rounds correctly and without fused multiply-add. No sum here has three terms in
a row, nor is a constant added twice: TensorFlow's graph optimizer takes such
sums for associative and would lose what was rounded; differences it leaves
alone. u is 2^-53. Relative errors, as proven by Joldes, Muller and Popescu 2017
(https://doi.org/10.1145/3121432):

    add       3 u^2 + 13 u^3, of numbers of any signs
    multiply  7 u^2
    divide    16 u^2
"""

import decimal
from typing import Any

import numpy as np

# Digits of constants: far more than a pair holds.
CONTEXT = decimal.Context(prec=60)
_SPLITTER = 2.0**27 + 1

Pair = tuple[Any, Any]


def constant(value: decimal.Decimal) -> tuple[float, float]:
  """Returns the pair nearest to a number."""
  hi = float(value)
  return hi, float(CONTEXT.subtract(value, decimal.Decimal(hi)))


def two_sum(x: Any, y: Any) -> Pair:
  """x + y of float64, exactly."""
  total = x + y
  part = total - x
  return total, (x - (total - part)) - (part - y)


def _sorted_sum(x: Any, y: Any) -> Pair:
  """x + y of float64, exactly, if x is 0 or its exponent is not below y's."""
  total = x + y
  return total, y - (total - x)


def _halves(x: Any) -> Pair:
  """x of float64 as a sum of two of 26 bits (Veltkamp)."""
  shifted = x * _SPLITTER
  hi = shifted - (shifted - x)
  return hi, x - hi


def two_product(x: Any, y: Any) -> Pair:
  """x y of float64, exactly (Dekker)."""
  product = x * y
  x_hi, x_lo = _halves(x)
  y_hi, y_lo = _halves(y)
  rest = ((product - x_hi * y_hi) - x_hi * y_lo) - x_lo * y_hi
  return product, x_lo * y_lo - rest


def add(x: Pair, y: Pair) -> Pair:
  """x + y."""
  hi, hi_error = two_sum(x[0], y[0])
  lo, lo_error = two_sum(x[1], y[1])
  hi, error = _sorted_sum(hi, hi_error + lo)
  return _sorted_sum(hi, error + lo_error)


def multiply(x: Pair, y: Pair) -> Pair:
  """x y."""
  hi, lo = two_product(x[0], y[0])
  return _sorted_sum(hi, lo - (x[0] * -y[1] - x[1] * y[0]))


def divide(x: Pair, y: Pair) -> Pair:
  """x / y."""
  ratio = x[0] / y[0]
  product = multiply((ratio, 0 * ratio), y)
  rest = (x[0] - product[0]) - (product[1] - x[1])
  return _sorted_sum(ratio, rest / y[0])


def root(x: Pair, ops: Any) -> Pair:
  """Square root of x > 0, by one step of Newton's."""
  first = ops.sqrt(x[0])
  hi, lo = two_product(first, first)
  return _sorted_sum(first, ((x[0] - hi) - (lo - x[1])) / (2.0 * first))


def polynomial(
    x: Pair, coefficients: list[decimal.Decimal], ops: Any
) -> Pair:
  """Sum of coefficients[i] x^i, by Horner's rule.

  The caller sees to it that each partial sum is some power of two at least as
  large as its successor times x: then errors add up to a few u^2.
  """
  return ops.fold(
      lambda value, pair: add(multiply(value, x), (pair[0], pair[1])),
      (0.0 * x[0], 0.0 * x[0]),
      np.array([constant(value) for value in reversed(coefficients)]),
  )

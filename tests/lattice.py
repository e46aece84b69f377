"""A test that tells noise of a float32 Box-Muller from Gaussian noise."""

import numpy as np


def mean_distance(residuals: np.ndarray) -> float:
  """Mean distance of exp(-(x^2 + y^2) / 2) 2^23 to the nearest integer.

  For a Gaussian it is 1/4. TensorFlow's normal makes neighbours x, y of uniforms
  with 23 bits, which leaves 0 in float64, and little more where other float32
  operations follow.

  Args:
    residuals: Floats [n], noise in units of its standard deviation; neighbours
      are a pair. Pairs of radius below 2 or above 9 are left out.
  """
  pairs = residuals.astype(np.float64)[: len(residuals) // 2 * 2]
  squares = np.square(pairs).reshape([-1, 2]).sum(axis=1)
  squares = squares[(squares > 4) & (squares < 81)]
  on_lattice = np.exp(-squares / 2) * 2**23
  return float(np.mean(np.abs(on_lattice - np.rint(on_lattice))))

"""Norms of a transformer's layers, by part and block, as the paper plots them.

https://arxiv.org/abs/2310.00098, Figures 5, 7 to 10 and 13 to 23: a curve for
each part of a block (wqkv, wf, w1, w2, ln1, ln2) over the blocks. Tensors of a
part, such as the scale and the bias of a layer norm, count as one.
"""

import collections
from collections.abc import Mapping
import math
import re

import numpy as np

from tff_asr.privacy import clipping
from tff_asr.reports import runs as runs_lib

ByPart = Mapping[str, Mapping[int, float]]
"""Norms by part of a block, then by block."""

# Metrics of layers, and what they are of.
DELTAS = 'layer_norm'
GRADIENTS = 'layer_gradient_norm'
TITLES = {DELTAS: "clients' deltas", GRADIENTS: 'gradients'}

_IN_BLOCK = re.compile(r'(?:.*/)?block_(\d+)/(.+)')


def by_part(run: runs_lib.Run, metric: str) -> dict[str, dict[int, float]]:
  """Returns norms by part, then by block; empty without the metric or blocks.

  Args:
    run: The run; norms are means over its released rounds or steps.
    metric: A key of `TITLES`.
  """
  squares = collections.defaultdict(lambda: collections.defaultdict(float))
  for layer, norm in means(run.layers.get(metric, {})).items():
    if found := _IN_BLOCK.fullmatch(clipping.module_name(layer)):
      block, part = found.groups()
      squares[part][int(block)] += norm**2
  return {
      part: {block: math.sqrt(blocks[block]) for block in sorted(blocks)}
      for part, blocks in sorted(squares.items())
  }


def means(by_layer: Mapping[str, Mapping[int, float]]) -> dict[str, float]:
  """Returns the mean over rounds of each layer's finite values."""
  return {
      layer: float(np.mean(finite))
      for layer, values in by_layer.items()
      if (finite := [v for v in values.values() if math.isfinite(v)])
  }

"""Division of a clip C over the layers of an update.

A layer h is clipped to its own norm C_h = s_h C. The squares of the shares s_h
sum to 1, so the norm of the whole update is at most C (Pelikan et al. 2025,
https://arxiv.org/abs/2310.00098, Definition 3). With d_h elements in layer h
and its weight a_h (1 without weights):

    uniform   s_h = a_h / sqrt(sum_i a_i^2)
    dim       s_h = a_h sqrt(d_h) / sqrt(sum_i a_i^2 d_i)

The paper's weight beta of a layer's dimension is a^2 here.

  H: layers.
"""

from collections.abc import Callable, Mapping, Sequence
import dataclasses
import math
import re
from typing import Any, NamedTuple, Optional

import tensorflow as tf
import tree

from tff_asr import checks

# A nest of tensors, or of their specs, as `tf.nest` takes it.
Nest = Any
# From the layers' numbers of elements to the shares s_h.
_Split = Callable[[Sequence[int]], Sequence[float]]

# Values of `Clipping.layers` and `Clipping.rule`.
LAYERS = ('tensors', 'modules')
RULES = ('clip', 'rescale')

# Smaller layers are not scaled up: elements that a processor flushes to 0
# (below 2^-126) would matter. They are scaled down, as a clip may be smaller.
_MIN_NORM = 2.0**-90

_BLOCK = re.compile(r'(.*/)?block_\d+')


def _uniform_split(sizes: Sequence[int]) -> list[float]:
  """The same norm for each of the H layers: C_h = C / sqrt(H)."""
  return [1 / math.sqrt(len(sizes))] * len(sizes)


def _dim_split(sizes: Sequence[int]) -> list[float]:
  """Norms by the layers' sizes d_h: C_h = C sqrt(d_h / sum of d)."""
  total = sum(sizes)
  return [math.sqrt(size / total) for size in sizes]


SPLITS: dict[str, Optional[_Split]] = {
    'global': None, 'uniform': _uniform_split, 'dim': _dim_split,
}


class Layer(NamedTuple):
  """A part of an update that is clipped to its own norm.

  Attributes:
    name: Name of the tensor or module.
    indices: Indices of its tensors in the flattened update.
    share: s_h = C_h / C; None where all layers are clipped as one.
  """

  name: str
  indices: tuple[int, ...]
  share: Optional[float]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Clipping:
  """Layers that are clipped, each to its part of C.

  Attributes:
    split: `global` (one norm over all layers), `uniform` or `dim`.
    layers: What counts as a layer. `tensors`: each tensor, so the scale and the
      bias of a layer norm are two layers. `modules`: tensors of one module
      share their norm; see `module_name`.
    weights: {regular expression: a_h}. A layer takes the weight of the pattern
      that `re.search` finds in its name, else 1. None: all layers have 1.
    rule: `clip` multiplies each layer by min(1, C_h / norm_h), the paper's
      definition. `rescale` is what the paper's published code does instead. If
      the whole update's norm exceeds C, it brings every layer to exactly C_h,
      smaller layers upwards (except a layer of zeros, or of a norm up to
      2^-90). Otherwise nothing changes. With one norm over all layers, both
      rules are the same.
  """

  split: str = 'global'
  layers: str = 'tensors'
  weights: Optional[Mapping[str, float]] = None
  rule: str = 'clip'

  def __post_init__(self):
    checks.one_of(SPLITS, split=self.split)
    checks.one_of(LAYERS, layers=self.layers)
    checks.one_of(RULES, rule=self.rule)
    if self.weights is None:
      return
    if self.split == 'global':
      raise ValueError(
          "weights divide C over layers: they need split 'uniform' or 'dim', "
          "found 'global'."
      )
    for pattern, weight in self.weights.items():
      checks.in_range(1e-3, 1e3, **{f'weight of {pattern}': weight})

  def divide(self, record: Nest) -> list[Layer]:
    """Divides C over the layers of an update.

    Args:
      record: Nest of tensors, arrays or specs, their shapes fully defined.
        Names are the keys on the way to a tensor, joined by `/`.

    Returns:
      Layers in the order of their first tensors.

    Raises:
      ValueError: A pattern of `weights` is not a regular expression or is found
        in no name, or two patterns are found in one name.
    """
    tensors = tf.nest.flatten(record)
    places: dict[str, list[int]] = {}
    for place, name in enumerate(names(record)):
      if self.layers == 'modules':
        name = module_name(name)
      # The tensors of a layer need not be neighbours.
      places.setdefault(name, []).append(place)
    split = SPLITS[self.split]
    if split is None:
      shares = [None] * len(places)
    else:
      sizes = [
          sum(math.prod(tensors[place].shape) for place in members)
          for members in places.values()
      ]
      shares = self._weighted(split(sizes), list(places))
    return [
        Layer(name, tuple(members), share)
        for (name, members), share in zip(places.items(), shares)
    ]

  def _weighted(
      self, shares: Sequence[float], layers: Sequence[str]
  ) -> Sequence[float]:
    """The shares times the layers' weights, again with squares of sum 1."""
    if not self.weights:
      return shares
    weights: dict[str, float] = {}
    for pattern, weight in self.weights.items():
      for name in matching(pattern, layers, argument='weights'):
        if name in weights:
          raise ValueError(
              f'weights: {name} is found by {pattern!r} and by another pattern.'
          )
        weights[name] = weight
    weighted = [
        share * weights.get(name, 1.0) for share, name in zip(shares, layers)
    ]
    # Weights change the sum of the squares; it must be 1 for C to hold.
    norm = math.sqrt(sum(share**2 for share in weighted))
    return [share / norm for share in weighted]


def matching(
    pattern: str,
    layers: Sequence[str],
    *,
    argument: str,
    match: Callable[[str, str], Optional[re.Match[str]]] = re.search,
) -> list[str]:
  """Returns the layers with names that a regular expression matches.

  Args:
    pattern: The expression.
    layers: All names.
    argument: Name of the setting that the pattern is from, for messages.
    match: `re.search`, or `re.fullmatch` for patterns of whole names.

  Raises:
    ValueError: The pattern is not a regular expression, or matches no name.
  """
  try:
    found = [name for name in layers if match(pattern, name)]
  except re.error as error:
    raise ValueError(
        f'{argument}: {pattern!r} is not a regular expression ({error}).'
    ) from None
  if not found:
    raise ValueError(
        f'{argument}: {pattern!r} is found in none of the {len(layers)} '
        f'layers, {layers[0]} to {layers[-1]}.'
    )
  return found


def module_name(name: str) -> str:
  """The module that a tensor belongs to.

  The module is the part before the last `/` of the tensor's name: that of
  `block_07/ln1/bias` is `block_07/ln1`. A tensor directly in a block
  (`block_07/w1`), or without a `/`, is a separate module.
  """
  folder, _, _ = name.rpartition('/')
  return name if not folder or _BLOCK.fullmatch(folder) else folder


def factors(
    squared_norms: Sequence[tf.Tensor],
    *,
    layers: Sequence[Layer],
    layer_clips: Sequence[tf.Tensor],
    clip: tf.Tensor,
    rule: str,
) -> list[tf.Tensor]:
  """Returns the factor by which each tensor of an update is multiplied.

  Args:
    squared_norms: float64 [] of each tensor, finite.
    layers: H of them, as `Clipping.divide` returns them.
    layer_clips: C_h, float64 []; not used if layers have no share.
    clip: C, float64 []; used if layers have no share, and to rescale.
    rule: See `Clipping`.

  Returns:
    float64 [] for each tensor. A norm of 0 or an infinite clip gives 1.
  """
  # By tensor: those of one layer need not be neighbours.
  result = [None] * len(squared_norms)
  if layers[0].share is None:
    return [_factor(tf.add_n(squared_norms), clip)] * len(squared_norms)
  is_over = None
  # The published code rescales only updates above the whole clip.
  if rule == 'rescale':
    # Squares of layers in float64: their sum has the norm of the whole update.
    is_over = tf.sqrt(tf.add_n(squared_norms)) > clip
  for layer, layer_clip in zip(layers, layer_clips, strict=True):
    squared_norm = layer_square(squared_norms, layer)
    if is_over is None:
      factor = _factor(squared_norm, layer_clip)
    else:
      norm = tf.sqrt(squared_norm)
      # A layer below _MIN_NORM is only scaled down.
      is_scaled = is_over & (norm > tf.minimum(layer_clip, _MIN_NORM))
      factor = tf.where(
          is_scaled, layer_clip / tf.where(is_scaled, norm, 1.0), 1.0
      )
    for place in layer.indices:
      result[place] = factor
  return result


def layer_square(
    squared_norms: Sequence[tf.Tensor], layer: Layer
) -> tf.Tensor:
  """The squared norm of a layer, of those of all tensors."""
  return tf.add_n([squared_norms[place] for place in layer.indices])


def _factor(squared_norm: tf.Tensor, clip: tf.Tensor) -> tf.Tensor:
  """min(1, clip / norm), and 1 for norm 0 or an infinite clip."""
  norm = tf.sqrt(squared_norm)
  over = norm > clip
  # The inner `where` keeps a division by zero out of the branch not taken.
  return tf.where(over, clip / tf.where(over, norm, 1.0), 1.0)


def names(record: Nest) -> list[str]:
  """Names of an update's tensors, in the order of `tf.nest.flatten`."""
  count = len(tf.nest.flatten(record))
  numbered = tf.nest.pack_sequence_as(record, list(range(count)))
  found = [''] * count
  for path, place in tree.flatten_with_path(numbered):
    # An update of one tensor has no path.
    found[place] = '/'.join(map(str, path)) or 'update'
  return found

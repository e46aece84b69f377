"""LayerFreeze: chooses layers that private training does not change.

Chauhan et al. 2024, https://arxiv.org/abs/2409.13953. A public warm start adds
up the squared norms of each tensor's gradients; the layers with the smallest
scores are frozen. Fewer trained weights get less noise in total, and each
trained layer gets a larger part of the clip.

The paper does not say what a layer is, nor what a share is of. Here the share
is of the parameters: half of a Conformer's tensors hold .1 % of its parameters,
and freezing these would leave the noise as it is. A layer is a tensor, as for
clipping. Scores are shares of their sum: the paper normalises the squared norms
and does not say by what. All three are guesses.
"""

from collections.abc import Collection, Mapping
import dataclasses
import math
import re
from typing import Optional

import numpy as np

from tff_asr import checks
from tff_asr.models import weights as weights_lib
from tff_asr.privacy import clipping

ORDERS = ('lowest', 'highest', 'random')


@dataclasses.dataclass(frozen=True, kw_only=True)
class LayerFreeze:
  """Choice of the layers to freeze.

  Attributes:
    share: Share of the parameters, in [0, 1).
    order: `lowest` scores, the paper's rule; `highest` or `random` to compare.
    seed: Seed of the order `random`.
  """

  share: float
  order: str = 'lowest'
  seed: int = 1

  def __post_init__(self):
    checks.in_range(0, 1, share=self.share)
    if self.share == 1:
      raise ValueError('share must be below 1, found 1: nothing is left.')
    checks.one_of(ORDERS, order=self.order)
    checks.non_negative_int(seed=self.seed)

  def choose(
      self, scores: Mapping[str, float], specs: weights_lib.Specs
  ) -> list[str]:
    """Returns the names of the tensors to freeze, sorted.

    Tensors are taken in their order while that brings the frozen parameters
    nearer to the share; the last one is never taken.

    Args:
      scores: Squared gradient norms by tensor, or their shares; tensors with
        equal scores are ordered by name.
      specs: Specs of the same tensors.

    Raises:
      ValueError: A score is not a number.
    """
    order = sorted(specs)
    for name in order:
      if not math.isfinite(scores[name]):
        raise ValueError(
            f'the score of {name} must be finite, found {scores[name]}.'
        )
    if self.order == 'random':
      # From the sorted names, so that a seed gives one order.
      np.random.default_rng(self.seed).shuffle(order)
    else:
      sign = -1 if self.order == 'highest' else 1
      # Stable: equal scores stay in the order of their names.
      order.sort(key=lambda name: sign * scores[name])
    # The last one always stays trained.
    sizes = [_count([name], specs) for name in order[:-1]]
    # Parameters that are frozen with none, one, two ... of the layers.
    frozen = np.cumsum([0, *sizes])
    # The first of equally near ones: rather fewer layers are frozen.
    number = np.argmin(
        np.abs(frozen - self.share * weights_lib.num_parameters(specs))
    )
    return sorted(order[:number])


def describe(
    frozen: Collection[str],
    specs: weights_lib.Specs,
    *,
    plain_specs: Optional[weights_lib.Specs] = None,
) -> str:
  """Returns the frozen part of a model, and its effect on noise, in words.

  Args:
    frozen: Names of the frozen weights.
    specs: All weights.
    plain_specs: Weights of the model without subspaces (`models.subspace`), to
      which noise is compared; None: those of `specs`.
  """
  total, count = weights_lib.num_parameters(specs), _count(frozen, specs)
  if plain_specs is not None and plain_specs.keys() != specs.keys():
    trained, total = total - count, weights_lib.num_parameters(plain_specs)
    return (
        f'{trained:,} coordinates and weights are trained in place of '
        f'{total:,} parameters; the norm of noise is '
        f'{math.sqrt(trained / total):.3f} of what it is without.'
    )
  return (
      f'{len(frozen)} of {len(specs)} tensors are frozen, with {count:,} of '
      f'{total:,} parameters ({100 * count / total:.1f} %); the norm of noise '
      f'is {math.sqrt(1 - count / total):.3f} of what it is without.'
  )


def match(patterns: Collection[str], names: Collection[str]) -> list[str]:
  """The layers to freeze, sorted.

  Args:
    patterns: Names of layers, or regular expressions of whole names.
    names: Names of all layers.

  Raises:
    ValueError: A pattern is not a valid regular expression or matches no layer,
      or no layer would be left to train.
  """
  if isinstance(patterns, str):
    raise ValueError(f'frozen must be a list of names, found {patterns!r}.')
  found = set()
  for pattern in patterns:
    found.update(clipping.matching(
        pattern, sorted(names), argument='frozen', match=re.fullmatch
    ))
  # Without a trained layer there is no update to clip or to noise.
  if len(found) == len(names):
    raise ValueError('frozen names all layers: nothing is left to train.')
  return sorted(found)


def normalize_scores(squares: Mapping[str, float]) -> dict[str, float]:
  """Scores: squared norms over their sum; all 0 if that is 0."""
  total = sum(squares.values())
  return {
      name: value / total if total else 0.0 for name, value in squares.items()
  }


def _count(names: Collection[str], specs: weights_lib.Specs) -> int:
  """Parameters of these tensors."""
  return weights_lib.num_parameters({name: specs[name] for name in names})

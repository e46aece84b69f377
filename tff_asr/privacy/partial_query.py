"""Noise on some layers only, to see which layers suffer from it: NOT PRIVATE.

Pelikan et al. 2025 (https://arxiv.org/abs/2310.00098) find in this way the
layers that lose most to noise. The other layers are released without noise, so
nothing is private: a round's event is that of no noise, and statements say NOT
PRIVATE.
"""

from collections.abc import Sequence
from typing import Any

import dp_accounting
import tensorflow as tf

from tff_asr.privacy import clipping as clipping_lib
from tff_asr.privacy import queries


class PartialNoiseQuery(queries.PerLayerClipSumQuery):
  """A `PerLayerClipSumQuery` that noises some layers only: NOT PRIVATE.

  Noised layers have the same bits as with noise everywhere, so runs differ only
  in the layers that they noise. Event: GaussianDpEvent(0) for each call of
  `get_noised_result`.
  """

  def __init__(
      self,
      record_specs: Any,
      *,
      l2_norm_clip: float,
      noise_multiplier: float,
      noised: Sequence[str],
      clipping: clipping_lib.Clipping = clipping_lib.Clipping(),
      noise_kernel: str = 'host',
  ):
    """Creates the query.

    Args:
      record_specs: See the base class.
      l2_norm_clip: C; see the base class.
      noise_multiplier: z of the noised layers, over C.
      noised: Regular expressions; a tensor is noised if one of them is found
        (`re.search`) in its name, as `clipping_lib.names` gives it.
      clipping: How C is divided, over all layers.
      noise_kernel: See the base class.

    Raises:
      ValueError: An argument is out of its range, or a pattern is no regular
        expression or is found in no name.
    """
    super().__init__(
        record_specs,
        l2_norm_clip=l2_norm_clip,
        noise_multiplier=noise_multiplier,
        clipping=clipping,
        noise_kernel=noise_kernel,
    )
    if isinstance(noised, str) or not noised:
      raise ValueError(
          'noised must be a list of regular expressions that is not empty, '
          f'found {noised!r}.'
      )
    names = clipping_lib.names(record_specs)
    found = [
        clipping_lib.matching(pattern, names, argument='noised')
        for pattern in noised
    ]
    self._is_noised = [any(name in each for each in found) for name in names]

  def get_noised_result(self, sample_state, global_state):
    result, new_state, _ = super().get_noised_result(sample_state, global_state)
    event = dp_accounting.GaussianDpEvent(
        tf.zeros_like(global_state.noise_multiplier)
    )
    return result, new_state, event

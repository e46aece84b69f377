"""A query of each mechanism, for tests of their common properties."""

from collections.abc import Callable
import functools
from typing import Any

from tff_asr.privacy import adaptive_query
from tff_asr.privacy import clipping as clipping_lib
from tff_asr.privacy import correlated_noise
from tff_asr.privacy import queries
from tff_asr.privacy import strategies

CORRELATED = correlated_noise.CorrelatedNoise(
    strategy=strategies.optimize(num_rounds=9, min_sep=3),
    min_sep=3,
)


def build(
    query: Callable[..., Any] = queries.PerLayerClipSumQuery,
    *,
    clip: float = 1.0,
    multiplier: float = 0.0,
    split: str = 'global',
    **settings: Any,
) -> queries.BuildQuery:
  """From the specs of a record to a query of these settings."""
  return functools.partial(
      query,
      l2_norm_clip=clip,
      noise_multiplier=multiplier,
      clipping=clipping_lib.Clipping(split=split),
      **settings,
  )


QUERIES = dict(
    per_layer=build(clip=1.5, multiplier=2.0, split='dim'),
    adaptive=build(
        adaptive_query.AdaptiveClipSumQuery, clip=1.5, multiplier=2.0,
        split='uniform', cohort_size=4,
    ),
    correlated=build(
        clip=0.5, multiplier=2.0, noise=CORRELATED
    ),
    adaptive_correlated=build(
        adaptive_query.AdaptiveClipSumQuery, clip=1.5, multiplier=2.0,
        split='uniform', cohort_size=4, noise=CORRELATED,
    ),
)

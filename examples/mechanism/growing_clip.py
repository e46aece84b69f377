"""Your own mechanism: a clip that grows by a public factor each round."""

import tensorflow as tf

from tff_asr.privacy import grid_clipper
from tff_asr.privacy import queries


class GrowingClipQuery(queries.PerLayerClipSumQuery):
  """`PerLayerClipSumQuery` with the clip C growth^t in round t.

  Sensitivity, noise and event are the query's own, at that clip: noise is
  proportional to the clip, so a round costs what it costs at a fixed clip. The
  clip does not depend on data.
  """

  # So that buffers of correlated noise grow with the clip.
  grid_follows_clip = True

  def __init__(self, record_specs, *, growth: float, **settings):
    super().__init__(record_specs, **settings)
    self._growth = growth

  def get_noised_result(self, sample_state, global_state):
    result, state, event = super().get_noised_result(
        sample_state, global_state
    )
    clip = tf.clip_by_value(
        state.l2_norm_clip * self._growth,
        grid_clipper.MIN_CLIP,
        grid_clipper.MAX_CLIP,
    )
    return result, state._replace(l2_norm_clip=clip), event

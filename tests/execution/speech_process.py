"""The whole federated process of a run, tiny, for tests of execution.

A transformer with CTC, dropout, layer drop and SpecAugment over shards of PCM,
per-layer clipping, noise, and LAMB with a schedule at the server.
"""

import functools
import os
from typing import Any, Optional

import numpy as np
import tensorflow_federated as tff

from tests import fakes
from tff_asr.aggregators import dp_mean
from tff_asr.data import buckets as buckets_lib
from tff_asr.data import client_data
from tff_asr.data import cohorts
from tff_asr.data import records
from tff_asr.features import spec_augment
from tff_asr.learning import client_update
from tff_asr.learning import fed_avg
from tff_asr.optimizers import lamb
from tff_asr.optimizers import schedules
from tff_asr.privacy import clipping as clipping_lib
from tff_asr.privacy import keys
from tff_asr.privacy import queries

CLIP = 0.01
BETA_1 = 0.9  # Of LAMB.
_COHORT_SIZE = 4
_CLIENTS = {
    'ann': 2, 'bob': 3, 'cai': 1, 'dee': 2, 'eve': 1, 'fay': 3, 'gus': 2,
}


def load_data(root: str) -> client_data.SpeechClientData:
  """Writes seven clients as shards of PCM into a folder, and opens them."""
  return client_data.load(
      fakes.write_split(os.path.join(root, 'shards'), _CLIENTS)
  )


def build(
    data: client_data.SpeechClientData,
    *,
    noise_kernel: str = 'host',
    buckets: Optional[buckets_lib.LengthBuckets] = None,
    jit_compile: bool = False,
    **model_options: Any,
) -> tff.learning.templates.LearningProcess:
  """Builds the process; `initial_state` says how much noise it adds."""
  model = fakes.tiny_model(dropout=0.2, layer_drop=0.3, **model_options)
  return fed_avg.build(
      model=model,
      pipeline=fakes.tiny_pipeline(
          model,
          augment=spec_augment.build(max_freq_width=10, max_time_width=10),
          buckets=buckets,
      ),
      client_data=data,
      aggregator=dp_mean.build(
          build_query=functools.partial(
              queries.PerLayerClipSumQuery,
              l2_norm_clip=CLIP,
              noise_multiplier=1.0,
              clipping=clipping_lib.Clipping(split='dim'),
              noise_kernel=noise_kernel,
          ),
          cohort_size=_COHORT_SIZE,
      ),
      server_optimizer=schedules.scheduled(
          optimizer=lamb.build_lamb(0.01, beta_1=BETA_1),
          schedule=schedules.exponential_decay(
              0.01, start=1, decay_rate=0.6, transition_rounds=2
          ),
      ),
      local=client_update.LocalTraining(
          learning_rate=1.0, num_steps=2, jit_compile=jit_compile
      ),
      seed=3,
  )


def initial_state(
    process: tff.learning.templates.LearningProcess, *, noise_multiplier: float
) -> tff.learning.templates.LearningAlgorithmState:
  """The first state, with a fixed noise key."""
  state = fed_avg.set_noise_key(process.initialize(), keys.from_seed(11))
  aggregator = state.aggregator
  query_state = aggregator.query_state._replace(
      noise_multiplier=np.float32(noise_multiplier)
  )
  return tff.learning.templates.LearningAlgorithmState(
      global_model_weights=state.global_model_weights,
      distributor=state.distributor,
      client_work=state.client_work,
      aggregator=aggregator._replace(query_state=query_state),
      finalizer=state.finalizer,
  )


def draw_cohorts(
    data: client_data.SpeechClientData, num_rounds: int
) -> list[list[records.ClientRecordLocations]]:
  """Poisson cohorts, the same at every call."""
  source = cohorts.poisson(
      data.client_ids, cohort_size=_COHORT_SIZE, key=keys.from_seed(5)
  )
  found, state = [], source.initial_state()
  for _ in range(num_rounds):
    cohort, state = source.draw(state)
    found.append(data.locate_clients(cohort))
  return found

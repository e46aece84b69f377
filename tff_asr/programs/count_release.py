"""One release of people's counts under differential privacy, by a run's ledger.

Counts of a table, such as how often a word follows another, are summed over the
private speakers of a run. Each speaker's counts are scaled to an L2 norm of at
most 1 (as integers are, to exactly 1 unless they are all 0), Gaussian noise of
standard deviation z is added to the sum, and the ledger of the run is charged
for one more round, in which all speakers take part (`releases`). So the epsilon
of the ledger covers the run's models and the counts together.

Clip, grid and noise are those of training: `privacy.queries`.
"""

import asyncio
from collections.abc import Iterable, Sequence
from typing import NamedTuple, Optional

import numpy as np
import tensorflow as tf

from tff_asr import checks
from tff_asr.aggregators import aggregation
from tff_asr.data import client_data as client_data_lib
from tff_asr.data import cohorts
from tff_asr.learning import process as process_lib
from tff_asr.privacy import ledger as ledger_lib
from tff_asr.privacy import privacy_report
from tff_asr.privacy import queries
from tff_asr.programs import private_rounds
from tff_asr.programs import public_data
from tff_asr.programs import releases

# Counts are at least 1, so every speaker with one is scaled to this norm.
_CLIP = 1.0
MAX_ELEMENTS = 2**26  # A table of 512 MiB.

SpeakerCounts = tuple[str, np.ndarray, np.ndarray]
"""Client id, indices int64 [n] of its table, each once, and counts [n]."""


class Release(NamedTuple):
  """Noised counts.

  Attributes:
    counts: float64 [num_elements], in units of a speaker's norm.
    stddev: Standard deviation of the noise of each.
    delta: Delta of the epsilon that was asked for.
    head: The ledger's head with the charge.
    report: Privacy report of the ledger with the charge.
  """

  counts: np.ndarray
  stddev: float
  delta: float
  head: ledger_lib.Head
  report: privacy_report.PrivacyReport


def release(
    run: str,
    speakers: Iterable[SpeakerCounts],
    *,
    corpus: str,
    public_corpora: Sequence[str],
    num_elements: int,
    epsilon: float,
    delta: Optional[float] = None,
    allows_not_private: bool = False,
) -> Release:
  """Releases noised sums of counts, and charges them.

  When this returns, the ledger on disk has the charge, and the run's privacy
  report covers it. Each call draws other noise and is charged again.

  Args:
    run: Folder of a finished run with a privacy ledger.
    speakers: The counts of every client of the corpus, once.
    corpus: The run's private data, or a corpus of the same clients.
    public_corpora: Corpora that are taken as public, as that of the table.
    num_elements: Size of the table, at most `MAX_ELEMENTS`.
    epsilon: Of this release alone, above 0.
    delta: As for `releases.reopen`.
    allows_not_private: Whether the counts may end the run's guarantee.

  Raises:
    ValueError: The run protects other clients, a public corpus has private
      speakers, an argument is not as above, or as `releases.reopen` and
      `releases.Release.begin`. Then nothing is charged.
  """
  checks.positive(epsilon=epsilon)
  checks.positive_int(num_elements=num_elements)
  if num_elements > MAX_ELEMENTS:
    raise ValueError(
        f'a table of counts has at most {MAX_ELEMENTS:,} elements, found '
        f'{num_elements:,}.'
    )
  data = _load(run, corpus)
  public = [*map(client_data_lib.load, public_corpora)]
  for each in public:
    public_data.check(run, each, role='tuning')
  source = cohorts.full(data.client_ids)
  with releases.reopen(
      run,
      kind='counts',
      client_data=data,
      sampling=source.sampling,
      epsilon=epsilon,
      delta=delta,
      allows_not_private=allows_not_private,
  ) as opened:
    query = queries.PerLayerClipSumQuery(
        tf.TensorSpec([num_elements]),
        l2_norm_clip=_CLIP,
        noise_multiplier=opened.noise_multiplier,
    )

    async def add_up(
        state: process_lib.State, client_ids: Sequence[str]
    ) -> process_lib.Output:
      total = _clipped_sum(
          query, speakers, client_ids, num_elements=num_elements
      )
      noised, _, _ = query.get_noised_result(
          tf.constant(total), private_rounds.query_state(state)
      )
      return process_lib.Output(state._replace(finalizer=noised.numpy()), ())

    run_round = opened.begin(configuration=f'{__name__} {num_elements}')
    for each in public:
      public_data.add(run, each, role='tuning')
    result = asyncio.run(run_round(
        add_up,
        _state(query, num_elements),
        draw=source.draw,
        position=source.initial_state(),
    ))
    return Release(
        result.output.state.finalizer,
        opened.noise_multiplier * _CLIP,
        opened.delta,
        opened.head,
        opened.write_report(),
    )


def _state(
    query: queries.PerLayerClipSumQuery, num_elements: int
) -> process_lib.State:
  """A learning process's state for a round of counts, as a round is charged."""
  state = tf.nest.map_structure(np.asarray, query.initial_global_state())
  return process_lib.State(
      # As many as the noised elements, and no memory.
      global_model_weights=np.broadcast_to(np.float32(0), [num_elements]),
      distributor=(),
      client_work=(),
      aggregator=aggregation.State(state, query.event(state).to_named_tuple()),
      finalizer=(),
  )


def _load(run: str, corpus: str) -> client_data_lib.SpeechClientData:
  """Loads a corpus; raises ValueError unless the run protects them."""
  data = client_data_lib.load(corpus)
  speakers = public_data.source(data, is_private=True).speakers_sha256
  if speakers not in {
      each.speakers_sha256 for each in public_data.read(run) if each.is_private
  }:
    raise ValueError(
        f'{corpus} does not have the clients that {run} protects, so its '
        'ledger cannot be charged for them: name the private data of that run.'
    )
  return data


def _clipped_sum(
    query: queries.PerLayerClipSumQuery,
    speakers: Iterable[SpeakerCounts],
    client_ids: Iterable[str],
    *,
    num_elements: int,
) -> np.ndarray:
  """The sum of clipped counts, int64, in steps of the query's grid."""
  state = query.initial_global_state()
  params = query.derive_sample_params(state)
  # Traced once. Elements that are 0 are left out: they change no norm.
  clip = tf.function(
      lambda values: query.clip(params, values)[0],
      input_signature=[tf.TensorSpec([None])],
      autograph=False,
  )
  missing = set(client_ids)
  total = query.initial_sample_state(tf.TensorSpec([num_elements])).numpy()
  for client_id, indices, values in speakers:
    # Twice, a client would contribute twice and be charged once.
    if client_id not in missing or len(np.unique(indices)) != len(indices):
      raise ValueError(
          'a client or one of its indices comes twice, or is not of the corpus.'
      )
    missing.remove(client_id)
    total[indices] += clip(np.asarray(values, np.float32)).numpy()
  return total

"""One release of people's counts under differential privacy, by a run's ledger.

Counts of a table, such as how often a word follows another, are summed over the
private speakers of a run. Each speaker's counts are scaled to an L2 norm of at
most 1 (as integers are, to exactly 1 unless they are all 0), Gaussian noise of
standard deviation z is added to the sum, and the ledger of the run is charged
for one more round, in which all speakers take part. So the epsilon of the
ledger covers the run's models and the counts together.

Clip, grid and noise are those of training: `privacy.queries`.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple, Optional

import dp_accounting
import numpy as np
import tensorflow as tf

from tff_asr import checks
from tff_asr.data import client_data as client_data_lib
from tff_asr.privacy import accounting
from tff_asr.privacy import calibration
from tff_asr.privacy import keys
from tff_asr.privacy import ledger as ledger_lib
from tff_asr.privacy import privacy_report
from tff_asr.privacy import queries
from tff_asr.programs import private_rounds
from tff_asr.programs import public_data
from tff_asr.storage import run_dir

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
    delta: As for `private_rounds.delta_of_release`.

  Raises:
    ValueError: The run has not finished, protects other clients, or recordings
      in place of speakers; its rounds have another neighbouring relation than
      adding or removing a client; a public corpus has private speakers; or an
      argument is not as above. Then nothing is charged.
  """
  checks.positive(epsilon=epsilon)
  checks.positive_int(num_elements=num_elements)
  if num_elements > MAX_ELEMENTS:
    raise ValueError(
        f'a table of counts has at most {MAX_ELEMENTS:,} elements, found '
        f'{num_elements:,}.'
    )
  client_ids = _client_ids(run, corpus)
  _check_public(run, public_corpora)
  lock = run_dir.RunLock(run)
  try:
    # Locked: another release would add a line between reading and charging.
    with _open_ledger(run) as ledger:
      charged = ledger.contents.rounds
      sampling = accounting.Sampling(
          kind='full', cohort_size=len(client_ids), population=len(client_ids)
      )
      none = accounting.RoundGroup(
          sampling=sampling, noise_multiplier=0, count=0
      )
      # `none` has the population of this release, which is not charged yet.
      delta = private_rounds.delta_of_release(run, delta, [none, *charged])
      query = _query(
          num_elements, sampling=sampling, epsilon=epsilon, delta=delta
      )
      # Never stored: a release that fails is repeated with other noise.
      key = keys.draw()
      counts, event = _noised_sum(
          query, speakers, client_ids, num_elements=num_elements, key=key
      )
      noise_multiplier = float(event.noise_multiplier)
      cost = accounting.RoundGroup(
          sampling=sampling,
          noise_multiplier=noise_multiplier,
          sampler_epsilon=queries.sampler_epsilon(
              noise_multiplier, num_elements=num_elements
          ),
      )
      # On disk before anything can see the counts.
      ledger.append(_round(
          cost, counts, key=key, round_num=sum(each.count for each in charged)
      ))
      report = private_rounds.update_privacy_report(
          run, ledger.contents, delta=delta
      )
      return Release(
          counts, noise_multiplier * _CLIP, delta, ledger.head, report
      )
  finally:
    lock.release()


def _check_public(run: str, corpora: Sequence[str]) -> None:
  """Raises ValueError if one has speakers that are private in the run."""
  for corpus in corpora:
    found = public_data.count_overlap(run, client_data_lib.load(corpus))
    if found.private_speakers:
      raise ValueError(
          f'{corpus} is to be public, but has {found.private_speakers:,} of '
          f'the private speakers of {run}: take data without them.'
      )


def _round(
    cost: accounting.RoundGroup,
    counts: np.ndarray,
    *,
    key: np.ndarray,
    round_num: int,
) -> ledger_lib.Round:
  """The release as the ledger charges it."""
  identity = ledger_lib.round_identity(
      noise_key=key,
      noise_counter=0,
      # All clients take part: no cohort is drawn.
      sampler_key=np.zeros_like(key),
      round_num=round_num,
      configuration=f'{__name__} {counts.size}',
  )
  return ledger_lib.Round(
      round_num=round_num,
      cost=cost,
      identity=identity,
      result=private_rounds.digest(counts),
      release='counts',
  )


def _client_ids(run: str, corpus: str) -> list[str]:
  """Clients of a corpus; raises ValueError unless the run protects them."""
  data = client_data_lib.load(corpus)
  speakers = public_data.source(data, is_private=True).speakers_sha256
  if speakers not in {
      each.speakers_sha256 for each in public_data.read(run) if each.is_private
  }:
    raise ValueError(
        f'{corpus} does not have the clients that {run} protects, so its '
        'ledger cannot be charged for them: name the private data of that run.'
    )
  return data.client_ids


def _open_ledger(run: str) -> ledger_lib.Ledger:
  """The ledger of a run, to be charged; raises ValueError if it cannot be."""
  ledger = private_rounds.reopen_ledger(run, what='counts')
  relation = accounting.neighboring_relation(ledger.contents.rounds)
  if relation is not dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE:
    ledger.close()
    raise ValueError(
        f'the ledger of {run} cannot be charged for counts: its rounds are '
        f'accounted for under {relation.name}, and counts under '
        'ADD_OR_REMOVE_ONE.'
    )
  return ledger


def _query(
    num_elements: int,
    *,
    sampling: accounting.Sampling,
    epsilon: float,
    delta: float,
) -> queries.PerLayerClipSumQuery:
  """The query with as much noise as one release at this epsilon needs."""
  noise_multiplier = np.float32(
      calibration.noise_multiplier_for_epsilon(
          epsilon, sampling=sampling, rounds=1, delta=delta, accountant='pld'
      )
  )
  return queries.PerLayerClipSumQuery(
      tf.TensorSpec([num_elements]),
      l2_norm_clip=_CLIP,
      # Up: a query has float32, which may be the value below.
      noise_multiplier=float(np.nextafter(noise_multiplier, np.float32('inf'))),
  )


def _noised_sum(
    query: queries.PerLayerClipSumQuery,
    speakers: Iterable[SpeakerCounts],
    client_ids: Iterable[str],
    *,
    num_elements: int,
    key: np.ndarray,
) -> tuple[np.ndarray, dp_accounting.DpEvent]:
  """The noised sum of clipped counts, and its event."""
  state = queries.set_noise_key(query.initial_global_state(), key)
  total = _clipped_sum(
      query, speakers, client_ids, num_elements=num_elements
  )
  noised, _, event = query.get_noised_result(tf.constant(total), state)
  return noised.numpy(), event


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

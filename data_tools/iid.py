"""IID re-partition: each utterance to a random speaker, for ablation.

As in the federated ASR paper (https://arxiv.org/abs/2310.00098): an utterance's
new speaker is uniform over the speakers that there are. With few utterances a
speaker, some speakers get none.
"""

from collections.abc import Iterable
import dataclasses
import hashlib

from data_tools import utterances as utterances_lib
from tff_asr import checks


def repartition(
    utterances: Iterable[utterances_lib.Utterance], *, seed: int
) -> list[utterances_lib.Utterance]:
  """Returns the utterances with other speakers.

  The outcome depends on the seed, the set of speakers and the utterance, not on
  the order or on other utterances.

  Args:
    utterances: Of all speakers. Ids become SPEAKER/ID, by the speaker who
      spoke, so that they stay unique.
    seed: At least 0.
  """
  checks.non_negative_int(seed=seed)
  utterances = list(utterances)
  speakers = sorted({u.client_id for u in utterances})
  dealt = []
  for utterance in utterances:
    name = f'{utterance.client_id}/{utterance.utterance_id}'
    digest = hashlib.sha256(f'{seed}:{name}'.encode()).digest()
    number = int.from_bytes(digest[:16], 'big') % len(speakers)
    dealt.append(
        dataclasses.replace(
            utterance, client_id=speakers[number], utterance_id=name
        )
    )
  return dealt

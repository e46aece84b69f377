"""Word errors by speaker and by speaker group: gender, age, accent.

Speaker groups come from the corpus's attributes of speakers (`data.speakers`),
which the evaluation stores. Intervals are bootstraps over the speakers of a
group (`metrics.confidence`).
"""

from collections.abc import Sequence
from typing import NamedTuple, Optional

from tff_asr.metrics import confidence
from tff_asr.metrics import word_errors
from tff_asr.reports import runs as runs_lib

NOT_KNOWN = 'not known'
# Speaker groups of an attribute that are shown; smaller ones are merged.
MAX_SPEAKER_GROUPS = 12
_WORST_SHARE = 0.1


class SpeakerGroup(NamedTuple):
  """Word errors of the speakers with one value of an attribute.

  Attributes:
    rate: Word error rate over all their words.
    interval: Its 95 % interval; None for a single speaker.
    num_speakers: Number of speakers with words.
  """

  rate: float
  interval: Optional[tuple[float, float]]
  num_speakers: int


def sorted_by_wer(run: runs_lib.Run) -> list[word_errors.WordErrors]:
  """Returns the errors of speakers with words, by increasing WER."""
  # Without words there is no rate.
  spoken = [errors for errors in run.speakers.values() if errors.words]
  return sorted(spoken, key=lambda errors: errors.rate)


def worst_tenth(errors: Sequence[word_errors.WordErrors]) -> float:
  """Returns the WER over all words of the tenth of speakers with highest WER.

  Args:
    errors: As `sorted_by_wer` sorts them; at least one. A tenth is at least one
      speaker.
  """
  # Of fewer than ten speakers, the worst one.
  count = max(1, round(_WORST_SHARE * len(errors)))
  return word_errors.total(errors[-count:]).rate


def by_attribute(run: runs_lib.Run) -> dict[tuple[str, str], SpeakerGroup]:
  """Groups an evaluation's speakers by attribute.

  Groups of an attribute are sorted by decreasing number of speakers, followed
  by the groups beyond `MAX_SPEAKER_GROUPS`, merged, and `NOT_KNOWN`.

  Returns:
    Groups by attribute and value; empty without an evaluation. Attributes with
    fewer than two groups are left out.
  """
  attributes = (run.evaluation or {}).get('attributes', {})
  known = {
      name: attributes.get(name, {})
      for name, errors in run.speakers.items()
      if errors.words
  }
  found = {}
  for attribute in sorted(set().union(*known.values())):
    members: dict[str, list[str]] = {}
    for name, values in known.items():
      members.setdefault(values.get(attribute, NOT_KNOWN), []).append(name)
    unknown = members.pop(NOT_KNOWN, [])
    if len(members) < 2:
      continue
    # Ties by name, so that equal evaluations give equal tables.
    by_size = sorted(members, key=lambda value: (-len(members[value]), value))
    shown, rest = by_size[:MAX_SPEAKER_GROUPS], by_size[MAX_SPEAKER_GROUPS:]
    ordered = {value: members[value] for value in shown}
    if rest:
      ordered[f'{len(rest)} smaller groups'] = sum(map(members.get, rest), [])
    if unknown:
      ordered[NOT_KNOWN] = unknown
    for value, names in ordered.items():
      found[attribute, value] = _group([run.speakers[name] for name in names])
  return found


def _group(errors: Sequence[word_errors.WordErrors]) -> SpeakerGroup:
  """Computes the word errors of a group."""
  found = confidence.rate(
      [each.errors for each in errors], [each.words for each in errors]
  )
  # A single speaker has no spread to resample.
  ends = (found.low, found.high) if len(errors) > 1 else None
  return SpeakerGroup(found.estimate, ends, len(errors))

"""Word errors by speaker and by speaker group: gender, age, accent.

Speaker groups come from the corpus's attributes of speakers (`data.speakers`),
which the evaluation stores. Intervals are bootstraps over the speakers of a
group (`metrics.confidence`).
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Optional

from tff_asr.metrics import confidence
from tff_asr.metrics import gains
from tff_asr.metrics import word_errors
from tff_asr.reports import runs as runs_lib

NOT_KNOWN = 'not known'
# Speaker groups of an attribute that are shown; smaller ones are merged.
MAX_SPEAKER_GROUPS = 12


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
    errors: Of speakers with words; at least one. A tenth is at least one
      speaker.
  """
  return gains.worst_tenth(
      [each.errors for each in errors], [each.words for each in errors]
  )


def by_attribute(run: runs_lib.Run) -> dict[tuple[str, str], SpeakerGroup]:
  """Groups an evaluation's speakers by attribute; see `members`."""
  attributes = (run.evaluation or {}).get('attributes', {})
  spoken = [name for name, errors in run.speakers.items() if errors.words]
  return {
      label: _group([run.speakers[name] for name in names])
      for label, names in members(attributes, spoken).items()
  }


def fully_adapted_people(run: runs_lib.Run) -> dict[str, runs_lib.PersonResult]:
  """Returns the people who have the last number of utterances to adapt on."""
  if run.personalization is None:
    return {}
  number = run.personalization['gains'][-1]['num_utterances'] or 1
  return {
      name: each
      for name, each in run.personalization['people'].items()
      if each['words'] and each['num_adapted'][-1] >= number
  }


def gains_by_group(
    run: runs_lib.Run,
) -> dict[tuple[str, str], gains.Gains]:
  """Groups the people of a personalisation by attribute; see `members`.

  The gains are those of `fully_adapted_people`, with the last number of
  utterances.
  """
  people = fully_adapted_people(run)
  attributes = (run.personalization or {}).get('attributes', {})
  return {
      label: gains.summarize(
          [people[name]['errors'][0] for name in names],
          [people[name]['errors'][-1] for name in names],
          words=[people[name]['words'] for name in names],
      )
      for label, names in members(attributes, [*people]).items()
  }


def members(
    attributes: Mapping[str, Mapping[str, str]], names: Sequence[str]
) -> dict[tuple[str, str], list[str]]:
  """Groups speakers by attribute.

  Groups of an attribute are sorted by decreasing number of speakers, followed
  by the groups beyond `MAX_SPEAKER_GROUPS`, merged, and `NOT_KNOWN`.

  Args:
    attributes: Known attributes by speaker.
    names: The speakers.

  Returns:
    Names by attribute and value. Attributes with fewer than two groups are left
    out.
  """
  known = {name: attributes.get(name, {}) for name in names}
  found = {}
  for attribute in sorted(set().union(*known.values())):
    grouped: dict[str, list[str]] = {}
    for name, values in known.items():
      grouped.setdefault(values.get(attribute, NOT_KNOWN), []).append(name)
    unknown = grouped.pop(NOT_KNOWN, [])
    if len(grouped) < 2:
      continue
    # Ties by name, so that equal evaluations give equal tables.
    by_size = sorted(grouped, key=lambda value: (-len(grouped[value]), value))
    shown, rest = by_size[:MAX_SPEAKER_GROUPS], by_size[MAX_SPEAKER_GROUPS:]
    ordered = {value: grouped[value] for value in shown}
    if rest:
      ordered[f'{len(rest)} smaller groups'] = sum(map(grouped.get, rest), [])
    if unknown:
      ordered[NOT_KNOWN] = unknown
    for value, chosen in ordered.items():
      found[attribute, value] = chosen
  return found


def _group(errors: Sequence[word_errors.WordErrors]) -> SpeakerGroup:
  """Computes the word errors of a group."""
  found = confidence.rate(
      [each.errors for each in errors], [each.words for each in errors]
  )
  # A single speaker has no spread to resample.
  ends = (found.low, found.high) if len(errors) > 1 else None
  return SpeakerGroup(found.estimate, ends, len(errors))

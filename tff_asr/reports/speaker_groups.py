"""Word error rates of groups of speakers: by gender, age, accent.

Groups are what the corpus says of its speakers (`data.speakers`), as the
evaluation kept it. Intervals resample the speakers of a group
(`metrics.confidence`).
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Optional

from matplotlib import figure as figure_lib

from tff_asr.metrics import confidence
from tff_asr.reports import report_plots
from tff_asr.reports import run_record
from tff_asr.reports import speaker_spread

NOT_KNOWN = 'not known'
# Of an attribute; what is smaller is put together.
MAX_GROUPS = 12
# As Common Voice spells them.
_AGES = (
    'teens', 'twenties', 'thirties', 'fourties', 'fifties', 'sixties',
    'seventies', 'eighties', 'nineties',
)
_MAX_LABEL = 45
_WIDTH = 9.0
_ROW_HEIGHT = 0.3
_FRAME_HEIGHT = 1.5


class Group(NamedTuple):
  """Some of an evaluation's speakers.

  Attributes:
    rate: Word error rate over all their words.
    interval: Its 95 % interval; None for one speaker, who has none.
    num_speakers: Those with words.
  """

  rate: float
  interval: Optional[tuple[float, float]]
  num_speakers: int


# Attributes to groups, in the order to show them.
Groups = Mapping[str, Mapping[str, Group]]


def by_attribute(evaluation: Mapping[str, Any]) -> Groups:
  """The groups of an evaluation's speakers.

  Ages come from young to old, other groups from the one of most speakers, and
  last what is put together: all but `MAX_GROUPS` groups, and `NOT_KNOWN`.

  Args:
    evaluation: What an evaluation wrote.

  Returns:
    Groups of speakers by attribute and value. Attributes of which fewer than
    two groups have speakers with words are left out.
  """
  counts = {
      client_id: (speaker_spread.num_wrong(each), each['words'])
      for client_id, each in evaluation['speakers'].items()
      if each['words']
  }
  # Evaluations of before groups have none.
  attributes = evaluation.get('attributes', {})
  known = {client_id: attributes.get(client_id, {}) for client_id in counts}
  found = {}
  for name in sorted({name for values in known.values() for name in values}):
    members: dict[str, list[str]] = {}
    for client_id, values in known.items():
      members.setdefault(values.get(name, NOT_KNOWN), []).append(client_id)
    unknown = members.pop(NOT_KNOWN, [])
    if len(members) < 2:
      continue
    by_size = sorted(members, key=lambda value: (-len(members[value]), value))
    shown, rest = by_size[:MAX_GROUPS], by_size[MAX_GROUPS:]
    ordered = {value: members[value] for value in sorted(shown, key=_age)}
    if rest:
      ordered[f'{len(rest)} smaller groups'] = sum(map(members.get, rest), [])
    if unknown:
      ordered[NOT_KNOWN] = unknown
    found[name] = {
        value: _group([counts[client_id] for client_id in client_ids])
        for value, client_ids in ordered.items()
    }
  return found


def rows(by_run: Sequence[Groups]) -> list[tuple[str, str]]:
  """Attributes and groups of several runs, each once, in order."""
  names = dict.fromkeys(name for groups in by_run for name in groups)
  return [
      (name, value)
      for name in names
      for value in dict.fromkeys(
          value for groups in by_run for value in groups.get(name, {})
      )
  ]


def draw(
    runs: Sequence[run_record.Run], by_run: Sequence[Groups]
) -> Optional[figure_lib.Figure]:
  """Word error rates of groups with their intervals, a colour a run.

  Args:
    runs: The runs of the report.
    by_run: The groups of each; empty where it has none.

  Returns:
    The figure; None if no run has groups.
  """
  labels = rows(by_run)
  if not labels:
    return None
  # Rows from above, with space between attributes; runs side by side.
  places, place = {}, 0.0
  for number, label in enumerate(labels):
    if number and label[0] != labels[number - 1][0]:
      place += 0.5
    places[label] = place
    place += 1.0
  shown = [pair for pair in zip(runs, by_run, strict=True) if pair[1]]
  figure = figure_lib.Figure(
      figsize=(_WIDTH, _FRAME_HEIGHT + place * max(
          _ROW_HEIGHT, _ROW_HEIGHT * len(shown) / 2
      )),
      layout='constrained',
  )
  axes = figure.subplots()
  for number, (run, groups) in enumerate(shown):
    offset = 0.7 * ((number + 0.5) / len(shown) - 0.5)
    found = [
        (places[name, value] + offset, group)
        for name, by_value in groups.items()
        for value, group in by_value.items()
    ]
    color = report_plots.color_of(runs, run)
    axes.plot(
        [100 * group.rate for _, group in found],
        [height for height, _ in found],
        'o', color=color, label=run.name, markersize=4,
    )
    with_interval = [each for each in found if each[1].interval]
    axes.hlines(
        [height for height, _ in with_interval],
        *(
            [100 * group.interval[end] for _, group in with_interval]
            for end in (0, 1)
        ),
        color=color,
    )
  axes.set_yticks(
      list(places.values()),
      [
          f'{_label(name, value)} ({speakers(by_run, name, value)})'
          for name, value in labels
      ],
      fontsize='small',
  )
  axes.set_ylim(place - 0.3, -0.7)
  axes.set_xlabel('WER, %, with its 95 % interval (in brackets: speakers)')
  report_plots.finish(figure, axes)
  return figure


def speakers(by_run: Sequence[Groups], name: str, value: str) -> str:
  """How many speakers a group has; several numbers where runs differ."""
  counts = dict.fromkeys(
      groups[name][value].num_speakers
      for groups in by_run
      if value in groups.get(name, {})
  )
  return ', '.join(f'{count:,}' for count in counts)


def _label(name: str, value: str) -> str:
  """A group's name in a picture, where dollars would begin a formula."""
  label = f'{name}: {value}'
  if len(label) > _MAX_LABEL:
    label = f'{label[:_MAX_LABEL - 1]}…'
  return label.replace('$', r'\$')


def _age(value: str) -> int:
  """The place of an age among ages; all else is of one place."""
  return _AGES.index(value) if value in _AGES else len(_AGES)


def _group(counts: Sequence[tuple[int, int]]) -> Group:
  """A group, from its speakers' wrong words and words."""
  wrong, words = zip(*counts)
  interval = confidence.rate(wrong, words)
  ends = (interval.low, interval.high) if len(counts) > 1 else None
  return Group(interval.estimate, ends, len(counts))

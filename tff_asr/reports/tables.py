"""Tables of runs, as Markdown.

A row is a run, or several runs that differ in their random seed only: their
errors are averaged speaker by speaker. A table is a list of rows of cells; the
first row has the columns' titles.

    >>> print(markdown([['run', 'WER %'], ['seed', '27.9']]))
    | run  | WER % |
    |------|-------|
    | seed | 27.9  |
"""

from collections.abc import Callable, Mapping, Sequence
import dataclasses
import itertools
import math
import re
import statistics
from typing import NamedTuple, Optional

from tff_asr.decoding import language_model
from tff_asr.metrics import confidence
from tff_asr.metrics import word_errors
from tff_asr.privacy import privacy_report
from tff_asr.reports import layer_norms
from tff_asr.reports import runs as runs_lib
from tff_asr.reports import speakers as speakers_lib
from tff_asr.storage import tensor_file

Table = Sequence[Sequence[str]]

# In the column `private`.
PUBLIC_DATA, NOT_PRIVATE = 'public data', 'NOT PRIVATE'
UNKNOWN = 'not known'
# Columns on noise.
NOISE = ('noise / C a round', 'sqrt(rounds) / (noise / C)')
# Settings in which a private run and its run without privacy agree. Rates and
# what is trained may differ, because each run should have those that suit it.
_OF_TRAINING = (
    'PRIVATE_DIR', 'INIT_FROM_RUN', 'NUM_ROUNDS', 'COHORT_SIZE',
    'NUM_LOCAL_STEPS',
)
# Names of runs and speakers may contain them.
_CONTROL = re.compile(r'[\x00-\x1f\x7f-\x9f\u2028\u2029]+')


class Row(NamedTuple):
  """One row of a table.

  Attributes:
    label: Their common name.
    runs: At least one.
    measure: What `rates`, `words` and `errors` are of: `runs.WER` or another;
      of CER, words are characters, and of SER sentences.
  """

  label: str
  runs: Sequence[runs_lib.Run]
  measure: str = runs_lib.WER

  @property
  def first(self) -> runs_lib.Run:
    """Returns the run that represents all where they do not differ."""
    return self.runs[0]

  @property
  def rates(self) -> list[float]:
    """Returns the error rates of the evaluated runs."""
    evaluated = filter(None, self._scores)
    return [word_errors.total(found.values()).rate for found in evaluated]

  @property
  def words(self) -> dict[str, int]:
    """Returns words by evaluated speaker; empty if no run was evaluated.

    Raises:
      ValueError: Only some of the runs were evaluated, or on other speakers.
    """
    first, *others = (
        {name: errors.words for name, errors in found.items()}
        for found in self._scores
    )
    # Means over runs need the same speakers in each, and the same rules.
    rules = {run.normalization for run in self.runs}
    if any(other != first for other in others) or len(rules) > 1:
      raise ValueError(
          f'the runs of {self.label} were not all evaluated on the same '
          'speakers, by the same rules, or with a language model: evaluate '
          'them again.'
      )
    return first

  @property
  def errors(self) -> list[float]:
    """Returns mean errors of the speakers, in the order of `words`."""
    return [
        statistics.fmean(found[name].errors for found in self._scores)
        for name in self.words
    ]

  @property
  def _scores(self) -> list[Mapping[str, word_errors.WordErrors]]:
    """Returns the measured errors by speaker of each run."""
    return [run.scores.get(self.measure, {}) for run in self.runs]

  def last(self, name: str) -> Optional[float]:
    """Returns the mean of a metric's last values; None if a run has none."""
    return _mean([run.last(name) for run in self.runs])

  def result(self, name: str) -> tensor_file.Json:
    """Returns a field of the first run's results.json; None if missing."""
    return (self.first.results or {}).get(name)


def parse(
    texts: Sequence[str],
    *,
    names: Sequence[str] = (),
    evaluation: str = runs_lib.EVALUATION,
) -> list[Row]:
  """Reads the rows that command-line arguments give.

  Args:
    texts: RUN or RUN,RUN, where RUN is a folder.
    names: What tables and plots call the rows, one for each; none: the runs'
      folders.
    evaluation: Name of the file that an evaluation wrote in the folders.

  Raises:
    ValueError: An argument has no run, names are more or fewer than arguments,
      or one is empty or given twice, or as `runs.read`.
  """
  paths = [[each for each in text.split(',') if each] for text in texts]
  if not all(paths):
    raise ValueError(f'{texts[paths.index([])]!r} has no run: give a folder.')
  if names and len(names) != len(texts):
    raise ValueError(
        f'--name: {len(names)} for {len(texts)} runs. Give one for each, in '
        'order; runs joined by commas count as one.'
    )
  for number, name in enumerate(names):
    if not name or name in names[:number]:
      reason = 'given twice' if name else 'empty'
      raise ValueError(f'--name={name} is {reason}.')
  found = iter(
      runs_lib.read(
          [path for named in paths for path in named], evaluation=evaluation
      )
  )
  return [
      _row(name, [next(found) for _ in named])
      for name, named in itertools.zip_longest(names, paths, fillvalue='')
  ]


def _row(label: str, runs: Sequence[runs_lib.Run]) -> Row:
  """A row whose runs are named by its label, if it has one."""
  if not label:
    # Without a label, a run has the shortest name that tells it apart.
    return Row(', '.join(run.name for run in runs), runs)
  names = [label] if len(runs) == 1 else [
      f'{label} {number}' for number in range(1, len(runs) + 1)
  ]
  return Row(
      label,
      [dataclasses.replace(run, name=name) for run, name in zip(runs, names)],
  )


def overview(rows: Sequence[Row]) -> Table:
  """Returns the table of runs, without empty columns.

  Differences from the first row are paired bootstraps over speakers. Their
  intervals do not cover the variation over random seeds.
  """
  cells = []
  for row in rows:
    known = {title: show(row) for title, show in COLUMNS.items()}
    if row is not rows[0]:
      known |= {
          title: difference(row, rows[0], measure)
          for title, measure in _DIFFERENCES.items()
      }
    cells.append(known)
  titles = [title for title in COLUMNS if any(each[title] for each in cells)]
  return [
      ['', *(title.format(first=rows[0].label) for title in titles)],
      *(
          [row.label, *(each[title] for title in titles)]
          for row, each in zip(rows, cells)
      ),
  ]


def notes(rows: Sequence[Row]) -> list[str]:
  """Returns the rows' language models and rules of comparison, a line each."""
  lines = []
  for title, show in (
      ('LM', language_models),
      ('Normalised', lambda row: row.first.normalization),
  ):
    found: dict[str, list[str]] = {}
    for row in rows:
      if text := show(row):
        found.setdefault(text, []).append(row.label)
    for text, labels in found.items():
      whose = f' of {", ".join(labels)}' if len(found) > 1 else ''
      lines.append(f'{title}{whose}: {text}')
  return lines + shares_of_gain(rows)


def shares_of_gain(rows: Sequence[Row]) -> list[str]:
  """Returns what share of the gain without privacy each private run has.

  The gain is over a control, a row that public speakers trained from the same
  seed model, or over the first row if there is none. There is a line for each
  row with noise that has a row of the same training without noise.
  """
  lines = []
  noise = lambda row: row.first.rounds.get('noise_multiplier')
  for row, twin in itertools.permutations(rows, 2):
    if not noise(row) or noise(twin) != 0 or not _agree(row, twin):
      continue
    base = next(
        (
            each for each in rows
            if each.first.is_public and _agree(row, each, ('INIT_FROM_RUN',))
        ),
        rows[0],
    )
    found = [
        f'{share} {words}'
        for measure, words in (
            (runs_lib.WER, 'greedily'), (runs_lib.WER_WITH_LM, 'with the LM'),
        )
        if (share := _share_of_gain(row, base, twin, measure))
    ]
    if found and base not in (row, twin):
      lines.append(
          f'{row.label}: share of the gain of {twin.label} over '
          f'{base.label} (95 %): {", ".join(found)}'
      )
  return lines


def _agree(
    row: Row, other: Row, names: Sequence[str] = _OF_TRAINING
) -> bool:
  """Returns whether rows have the same settings of these names."""
  return all(
      row.first.settings.get(name) == other.first.settings.get(name)
      for name in names
  )


def _share_of_gain(row: Row, base: Row, twin: Row, measure: str) -> str:
  """Formats a share of the gain; empty if rows cannot be compared."""
  row, base, twin = (
      each._replace(measure=measure) for each in (row, base, twin)
  )
  if not (is_comparable(row, base) and is_comparable(twin, base)):
    return ''
  found = confidence.share_of_gain(
      row.errors,
      baseline_errors=base.errors,
      best_errors=twin.errors,
      words=list(row.words.values()),
  )
  if found is None:
    gain = confidence.difference(
        base.errors, twin.errors, list(row.words.values())
    )
    return f'none (a gain of {interval(gain)} points is not clear of 0)'
  share, low, high = (100 * value for value in found)
  return f'{share:.0f} % ({low:.0f} to {high:.0f})'


def is_comparable(row: Row, first: Row) -> bool:
  """Returns whether rows have rates of the same speakers, by the same rules.

  Differences are paired by speaker, so both need the same references, and the
  same normalisation.
  """
  return bool(row.words) and row.words == first.words and (
      row.first.normalization == first.first.normalization
  )


def difference(row: Row, first: Row, measure: str) -> str:
  """Formats the difference of two rows; empty unless they are comparable."""
  row, first = (each._replace(measure=measure) for each in (row, first))
  if not is_comparable(row, first):
    return ''
  return interval(
      confidence.difference(row.errors, first.errors, list(row.words.values()))
  )


def speaker_spread(runs: Sequence[runs_lib.Run]) -> Table:
  """Returns the spread of word error rates over speakers, by run."""
  titles = ('speakers', 'best', 'median', 'worst tenth', 'worst')
  cells = [['WER by speaker, %', *titles]]
  for run in runs:
    if errors := speakers_lib.sorted_by_wer(run):
      rates = [each.rate for each in errors]
      worst_tenth = speakers_lib.worst_tenth(errors)
      shown = (rates[0], statistics.median(rates), worst_tenth, rates[-1])
      cells.append([run.name, f'{len(rates)}', *map(percent, shown)])
  return cells


def speaker_groups(runs: Sequence[runs_lib.Run]) -> Table:
  """Returns word error rates of groups of speakers, one column per run."""
  by_run = [speakers_lib.by_attribute(run) for run in runs]
  labels = dict.fromkeys(label for found in by_run for label in found)
  return [
      ['WER by group, % (95 %; speakers)', *(run.name for run in runs)],
      *(
          [': '.join(label), *(_group(found.get(label)) for found in by_run)]
          # Stable: within an attribute, the order of the runs.
          for label in sorted(labels, key=lambda label: label[0])
      ),
  ]


def personal_gains(runs: Sequence[runs_lib.Run]) -> Table:
  """Returns what people gain whose copy of the model adapts to them."""
  titles = (
      'utterances', 'people', 'WER before', 'after', 'difference (95 %)',
      'median before', 'after', 'worst tenth before', 'after', 'better',
      'worse', 'SER before', 'after',
  )
  cells = [['personalisation, %', *titles]]
  for run in runs:
    for row in (run.personalization or {}).get('gains', ()):
      if 'num_people' not in row:
        continue  # No person has that many utterances.
      # The fifth decile is the median.
      rates = (
          row['deciles_before'][4], row['deciles_after'][4],
          row['worst_tenth_before'], row['worst_tenth_after'],
          row['share_better'], row['share_worse'],
          # Not in files that were written before sentences were counted.
          row.get('sentence_rate_before'), row.get('sentence_rate_after'),
      )
      cells.append([
          run.name,
          f'{row["num_utterances"] or "all"}',
          f'{row["num_people"]}',
          percent(row['rate_before']),
          percent(row['rate_after']),
          interval(confidence.Interval(**row['difference'])),
          *map(percent, rates),
      ])
  return cells


def private_evaluations(runs: Sequence[runs_lib.Run]) -> Table:
  """Returns the private evaluations of runs, and the epsilon that each cost.

  Of those between the rounds of a training, the last.
  """
  found = [(run, each) for run in runs for each in run.final_evaluations]
  shares = sorted({share for _, each in found for share in each['quantiles']})
  cells = [[
      'private evaluation, %',
      'people',
      'WER (95 %)',
      *(f'{100 * float(share):.0f} % of people at most' for share in shares),
      'epsilon of it',
      'with the training',
  ]]
  for run, each in found:
    people = each['num_people']['estimate']
    after = f', round {each["round"]}' if 'round' in each else ''
    cells.append([
        f'{run.name}{after}',
        f'{people:,.0f} ' + (
            'it was trained on' if each['trained_on'] else 'others'
        ),
        _noised(each['word_error_rate']),
        *(_noised(each['quantiles'].get(share)) for share in shares),
        privacy_report.format_epsilon(float(each['epsilon'])),
        privacy_report.format_epsilon(float(each['total_epsilon'])),
    ])
  return cells


def _noised(found: Optional[Mapping[str, Optional[float]]]) -> str:
  """A noised rate in percent with its interval; empty for None."""
  if found is None:
    return ''
  low, high = (percent(found[end]) for end in ('low', 'high'))
  return f'{percent(found["estimate"]) or "not known"} ({low} to {high})'


def gains_by_group(runs: Sequence[runs_lib.Run]) -> Table:
  """Returns WER before and after adapting by group, one column per run."""
  by_run = [speakers_lib.gains_by_group(run) for run in runs]
  labels = dict.fromkeys(label for found in by_run for label in found)
  show = lambda found: '' if found is None else (
      f'{percent(found.rate_before)} to {percent(found.rate_after)} '
      f'({interval(found.difference)}; {found.num_people})'
  )
  return [
      ['before to after by group, % (difference; people)',
       *(run.name for run in runs)],
      *(
          [': '.join(label), *(show(found.get(label)) for found in by_run)]
          for label in sorted(labels, key=lambda label: label[0])
      ),
  ]


def norms_by_block_part(runs: Sequence[runs_lib.Run]) -> Table:
  """Returns mean norms of the parts of blocks, a column for each run."""
  cells = [['norm', *(run.name for run in runs)]]
  for metric, title in layer_norms.TITLES.items():
    by_run = [layer_norms.by_part(run, metric) for run in runs]
    for part in sorted({part for parts in by_run for part in parts}):
      cells.append([
          f'{title}: {part}',
          *(
              f'{statistics.mean(parts[part].values()):.2g}'
              if part in parts else ''
              for parts in by_run
          ),
      ])
  return cells


def differing_settings(runs: Sequence[runs_lib.Run]) -> Table:
  """Returns the settings in which runs differ."""
  found = {
      name: [run.settings.get(name, '') for run in runs]
      for name in sorted({name for run in runs for name in run.settings})
  }
  return [
      ['', *(run.name for run in runs)],
      *([name, *v] for name, v in found.items() if len(set(v)) > 1),
  ]


def plain(text: str) -> str:
  """Escapes Markdown and HTML, and removes control characters."""
  # Control characters would steer the terminal.
  shown = _CONTROL.sub(' ', text)
  return re.sub(r'[\\|<]', r'\\\g<0>', shown).replace('](', ']\\(')


def markdown(table: Table) -> str:
  """Formats a table as Markdown with aligned columns; escapes the cells."""
  cells = [list(map(plain, line)) for line in table]
  widths = [max(map(len, column)) for column in zip(*cells)]
  lines = [
      '| ' + ' | '.join(map(str.ljust, line, widths)) + ' |' for line in cells
  ]
  lines.insert(1, '|' + '|'.join('-' * (width + 2) for width in widths) + '|')
  return '\n'.join(lines)


def fitted(table: Table, *, width: int = 100) -> list[Table]:
  """Returns a table as tables whose Markdown fits a terminal, if possible.

  Args:
    table: The table.
    width: Columns of the terminal.

  Returns:
    The table; or the table with rows and columns exchanged; or tables of some
    of its columns each, which begin with the first column.
  """
  # A table that fits is shown as it is; turned round it may be narrower.
  for each in (table, list(map(list, zip(*table)))):
    if _width(each) <= width:
      return [each]
  columns = list(zip(*table))
  parts = [columns[:1]]
  for column in columns[1:]:
    if len(parts[-1]) > 1 and _width(list(zip(*parts[-1], column))) > width:
      parts.append(columns[:1])
    parts[-1] = [*parts[-1], column]
  return [list(map(list, zip(*part))) for part in parts]


def _width(table: Table) -> int:
  """Characters in a line of a table's Markdown."""
  return len(markdown(table).partition('\n')[0])


def percent(rate: Optional[float]) -> str:
  """Formats a rate in percent; empty for None."""
  return '' if rate is None else f'{100 * rate:.1f}'


def number(value: Optional[float]) -> str:
  """Formats a number with three digits; empty for None."""
  if value is None or math.isnan(value):
    return ''
  return f'{value:.3g}' if abs(value) < 1000 else f'{value:,.0f}'


def interval(found: confidence.Interval) -> str:
  """Formats a difference of rates in points, with its interval."""
  estimate, low, high = (100 * value for value in found)
  return f'{estimate:+.1f} ({low:+.1f} to {high:+.1f})'


def epsilon(row: Row) -> str:
  """Formats the largest epsilon of a row's runs; empty without any."""
  known = [run.epsilon for run in row.runs if run.epsilon is not None]
  # The largest: each run of a row was released.
  return privacy_report.format_epsilon(max(known)) if known else ''


def epsilon_by(row: Row) -> str:
  """Formats epsilon with the accountant that computed it, as '4.94 (PLD)'."""
  shown = epsilon(row)
  for name in ('pld', 'rdp'):
    known = [
        (run.privacy or {}).get(f'epsilon_{name}') for run in row.runs
    ]
    if shown and known == [run.epsilon for run in row.runs]:
      return f'{shown} ({name.upper()})'
  return shown


def rate(row: Row, measure: str = runs_lib.WER) -> str:
  """Formats the mean error rate, with its deviation over the runs."""
  row = row._replace(measure=measure)
  if not row.words:
    return ''
  shown = percent(sum(row.errors) / sum(row.words.values()))
  if len(row.rates) > 1:
    # Over random seeds; the interval over speakers is a column of its own.
    shown += f' +- {percent(statistics.stdev(row.rates))}'
  return shown


def language_models(row: Row) -> str:
  """Formats the language models of a row's evaluations; empty without any."""
  return ', '.join(
      dict.fromkeys(
          language_model.label(run.with_lm) for run in row.runs if run.with_lm
      )
  )


def seconds(row: Row) -> str:
  """Formats the mean seconds of training; empty if unknown."""
  found = _mean([(run.results or {}).get('seconds') for run in row.runs])
  return _show(found, ',.0f')


def _kind(row: Row) -> str:
  if row.first.public_model:
    return 'public model'
  if row.result('trained_parameters'):
    kind = 'pre-training'
  else:
    kind = 'federated' if row.first.unit == 'round' else 'central'
  return kind + (', DP' if row.first.rounds.get('noise_multiplier') else '')


def _progress(row: Row) -> str:
  """Rounds or steps that all runs have completed."""
  if row.first.public_model:
    return ''
  # The slowest run says how far the row is.
  least = min(run.num_done for run in row.runs)
  # results.json is written when a run ends.
  is_over = all(run.results for run in row.runs)
  return f'{least:,}' if is_over else f'{least:,}, not ended'


def _private(row: Row) -> str:
  if all(run.is_public for run in row.runs):
    return PUBLIC_DATA
  if not any(run.privacy_report for run in row.runs):
    return ''
  is_private = all(run.privacy and run.privacy['private'] for run in row.runs)
  return 'yes' if is_private else NOT_PRIVATE


def _cohort(row: Row) -> str:
  """Cohort size and population."""
  rounds = row.first.rounds
  if not rounds:
    return ''
  return f'{rounds["cohort_size"]:,} of {rounds["population"]:,}'


def _noise_over_clip(row: Row) -> str:
  """(noise norm) / C of a round's mean; empty without noise."""
  rounds = row.first.rounds
  if not rounds.get('noise_multiplier'):
    return ''
  found = rounds.get('noise_over_clip')
  return UNKNOWN if found is None else number(found)


def _rounds_over_noise(row: Row) -> str:
  if not row.first.rounds.get('noise_multiplier'):
    return ''
  found = (row.first.privacy or {}).get('rounds_over_noise')
  return UNKNOWN if found is None else number(float(found))


def layer_noise(runs: Sequence[runs_lib.Run]) -> Table:
  """Returns (noise norm) / clip by layer, a column for each run with noise."""
  found = {
      run.name + ('' if run.privacy.get('has_layer_clips') else ' (over C)'):
      run.privacy['layer_noise']
      for run in runs
      if run.privacy is not None and run.rounds.get('noise_multiplier')
      and run.privacy.get('layer_noise')
  }
  layers = dict.fromkeys(name for noise in found.values() for name in noise)
  return [
      ['noise / clip of the layer, a round', *found],
      *(
          [layer, *(number(noise.get(layer)) for noise in found.values())]
          for layer in layers
      ),
  ]


def _masked_accuracy(row: Row) -> str:
  """Accuracy of pre-training, and of always predicting one label."""
  accuracy, other = row.last('dev_accuracy'), row.last('dev_most_frequent')
  if accuracy is None or other is None:
    return ''
  return f'{percent(accuracy)} (most frequent {percent(other)})'


def _step_seconds(row: Row) -> str:
  """Median seconds of the first run, without step 1 and evaluations."""
  by_step = row.first.metric('seconds')
  evaluated = row.first.metric('dev_loss')
  # Step 1 includes tracing; others, the time of an evaluation.
  plain = [v for k, v in by_step.items() if k > 1 and k not in evaluated]
  return f'{statistics.median(plain):.2f}' if plain else ''


def _group(group: Optional[speakers_lib.SpeakerGroup]) -> str:
  """A group's word error rate with its interval and number of speakers."""
  if group is None:
    return ''
  ends = '' if group.interval is None else (
      ' to '.join(map(percent, group.interval)) + '; '
  )
  return f'{percent(group.rate)} ({ends}{group.num_speakers:,})'


def _show(value: Optional[float], form: str) -> str:
  """A value in a format; empty for None."""
  return '' if value is None else format(value, form)


def _mean(values: Sequence[Optional[float]]) -> Optional[float]:
  """The mean; None if one is missing."""
  return None if None in values else statistics.fmean(values)


# `overview` fills them in.
_DIFFERENCES = {
    'minus {first} (95 %)': runs_lib.WER,
    'SER: minus {first} (95 %)': runs_lib.SER,
    'with LM: minus {first} (95 %)': runs_lib.WER_WITH_LM,
    'SER with LM: minus {first} (95 %)': runs_lib.SER_WITH_LM,
}
# Columns of `overview`: titles to functions that format a row's cell.
COLUMNS: Mapping[str, Callable[[Row], str]] = {
    'kind': _kind,
    'rounds or steps': _progress,
    'WER %': rate,
    'minus {first} (95 %)': lambda row: '',
    'CER %': lambda row: rate(row, runs_lib.CER),
    'SER %': lambda row: rate(row, runs_lib.SER),
    'SER: minus {first} (95 %)': lambda row: '',
    'WER % with LM': lambda row: rate(row, runs_lib.WER_WITH_LM),
    'with LM: minus {first} (95 %)': lambda row: '',
    'CER % with LM': lambda row: rate(row, runs_lib.CER_WITH_LM),
    'SER % with LM': lambda row: rate(row, runs_lib.SER_WITH_LM),
    'SER with LM: minus {first} (95 %)': lambda row: '',
    'dev WER %': lambda row: percent(row.last('dev_word_error_rate')),
    'dev loss': lambda row: _show(row.last('dev_loss'), '.3f'),
    'masked accuracy %': _masked_accuracy,
    'epsilon': epsilon_by,
    'private': _private,
    'cohort of population': _cohort,
    'noise multiplier': lambda row: number(
        row.first.rounds.get('noise_multiplier')
    ),
    **dict(zip(NOISE, (_noise_over_clip, _rounds_over_noise))),
    's a round or step': _step_seconds,
    'seconds': seconds,
}

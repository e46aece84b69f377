"""A report of runs: pictures as PNG, and all of it as one HTML file.

It shows transcripts, those of the worst utterances, because a user who
evaluated a run on a data set asks for them; nothing else of a run's outputs but
the evaluation's own file does. With `num_worst` 0 it shows none.
"""

from collections.abc import Sequence
import io
import os
import re
import statistics
from typing import Any, Optional

from matplotlib import figure as figure_lib

from tff_asr import checks
from tff_asr import files
from tff_asr.metrics import confidence
from tff_asr.metrics import word_errors
from tff_asr.reports import privacy_utility
from tff_asr.reports import report_page as page_lib
from tff_asr.reports import report_plots
from tff_asr.reports import run_record
from tff_asr.reports import speaker_groups
from tff_asr.reports import speaker_spread

PAGE = 'report.html'
_DPI = 110


def write(
    paths: Sequence[str],
    *,
    output_dir: str,
    evaluation: str = 'test.json',
    num_worst: int = 10,
) -> str:
  """Writes the report of runs.

  Args:
    paths: The runs' folders, at least one; the first is what the others'
      word error rates are compared with.
    output_dir: Gets report.html and the PNGs; may exist.
    evaluation: The file that an evaluation wrote in the runs' folders.
    num_worst: Utterances of each run to show with their transcripts, those with
      the most errors; 0 shows no transcript.

  Returns:
    The path of the HTML file.

  Raises:
    ValueError: There is no run, or as `run_record.read`.
  """
  if not paths:
    raise ValueError('no run to report on: name the folder of at least one.')
  checks.non_negative_int(num_worst=num_worst)
  checks.output_folders(output_dir=output_dir)
  runs = run_record.read(paths, evaluation=evaluation)
  os.makedirs(output_dir, exist_ok=True)
  pictures = _Pictures(output_dir)
  sections = [
      ('Runs', _overview(runs)),
      ('Word errors and loss', [
          *pictures.add(
              'word_error_rates', report_plots.word_error_rates(runs)
          ),
          *pictures.add('losses', report_plots.losses(runs)),
      ]),
      ('Privacy', [
          *pictures.add('epsilons', report_plots.epsilons(runs)),
          *pictures.add('privacy_utility', privacy_utility.draw(runs)),
          *(part for run in runs for part in page_lib.statement_of(run)),
      ]),
      ('Clipping and noise (not private)', [
          *pictures.add('norms', report_plots.norms(runs)),
          *pictures.add('clipped', report_plots.clipped(runs)),
          *pictures.add('noise', report_plots.noise(runs)),
      ]),
      ('Layers (not private)', [
          part
          for run in runs
          for part in pictures.add(
              f'layers_{re.sub("[^A-Za-z0-9_.-]", "_", run.name)}',
              report_plots.layers(run),
          )
      ]),
      ('Speakers', _speakers(runs, pictures)),
      ('Utterances with the most errors', _worst(runs, num_worst)),
      ('Configuration', page_lib.configuration(runs)),
  ]
  title = 'Report of ' + ', '.join(run.name for run in runs)
  path = os.path.join(output_dir, PAGE)
  files.write_text(path, page_lib.page(title=title, sections=sections))
  return path


class _Pictures:
  """Writes figures as PNG and gives them back as HTML."""

  def __init__(self, folder: str):
    self._folder = folder

  def add(self, name: str, figure: Optional[figure_lib.Figure]) -> list[str]:
    """The HTML of a figure, or nothing without one."""
    if figure is None:
      return []
    png = io.BytesIO()
    figure.savefig(png, format='png', dpi=_DPI)
    with open(os.path.join(self._folder, f'{name}.png'), 'wb') as f:
      f.write(png.getvalue())
    return [page_lib.picture(png.getvalue(), name=name)]


def _overview(runs: Sequence[run_record.Run]) -> list[str]:
  """The table of all runs, a column a run."""
  compared = _differences(runs)
  rows = [
      ['kind', *(_kind(run) for run in runs)],
      ['rounds or steps', *(_progress(run) for run in runs)],
      ['WER on the test set, %', *(
          page_lib.percent(run.evaluation and run.evaluation['word_error_rate'])
          for run in runs
      )],
      ['minus the first (95 %)', *compared],
      ['WER on the dev set, %', *(
          page_lib.percent(run.last('dev_word_error_rate')) for run in runs
      )],
      ['epsilon', *(page_lib.epsilon(run.epsilon) for run in runs)],
      ['delta', *(
          page_lib.number(run.privacy and run.privacy['delta']) for run in runs
      )],
      ['verdict', *(
          run.privacy['verdict'] if run.privacy else '' for run in runs
      )],
      ['cohort of population', *(_cohort(run) for run in runs)],
      ['noise multiplier', *(_noise(run) for run in runs)],
      ['seconds of training', *(
          page_lib.number(run.results and run.results['seconds'])
          for run in runs
      )],
  ]
  rows = [row for row in rows if any(row[1:])]
  colors = [(run.name, report_plots.color_of(runs, run)) for run in runs]
  return [
      page_lib.table(['', *(run.name for run in runs)], rows),
      page_lib.legend(colors) if len(runs) > 1 else '',
  ]


def _kind(run: run_record.Run) -> str:
  """What kind of training it was."""
  if run.unit == 'step':
    return 'central'
  groups = (run.privacy or {}).get('groups', ())
  noises = [group['noise_multiplier'] for group in groups]
  return 'federated, DP' if any(noises) else 'federated'


def _progress(run: run_record.Run) -> str:
  """How far it came, and whether it has ended."""
  last = max((max(v) for v in run.metrics.values() if v), default=0)
  return f'{last:,}' if run.results else f'{last:,}, not ended'


def _cohort(run: run_record.Run) -> str:
  """Clients a round, of how many."""
  groups = (run.privacy or {}).get('groups')
  if not groups:
    return ''
  return f'{groups[-1]["cohort_size"]:,} of {groups[-1]["population"]:,}'


def _noise(run: run_record.Run) -> str:
  """Noise multiplier of the last rounds."""
  groups = (run.privacy or {}).get('groups')
  return page_lib.number(groups[-1]['noise_multiplier']) if groups else ''


def _differences(runs: Sequence[run_record.Run]) -> list[str]:
  """Each run's test WER minus the first run's, where speakers are the same."""
  cells = []
  first = runs[0].evaluation
  for run in runs:
    here = run.evaluation
    words = _words(here)
    if run is runs[0] or not words or words != _words(first):
      cells.append('')
      continue
    estimate, low, high = confidence.difference(
        *(
            [speaker_spread.num_wrong(each['speakers'][name]) for name in words]
            for each in (here, first)
        ),
        list(words.values()),
    )
    cells.append(
        f'{100 * estimate:+.1f} ({100 * low:+.1f} to {100 * high:+.1f})'
    )
  return cells


def _words(evaluated: Optional[dict[str, Any]]) -> dict[str, int]:
  """Words of each speaker of an evaluation, sorted; none without one."""
  speakers = {} if evaluated is None else evaluated['speakers']
  return {name: counts['words'] for name, counts in sorted(speakers.items())}


def _speakers(
    runs: Sequence[run_record.Run], pictures: _Pictures
) -> list[str]:
  """How word error rates spread over speakers."""
  rows = []
  for run in runs:
    if run.evaluation is not None:
      speakers = speaker_spread.by_rate(run.evaluation['speakers'])
      rows.append([
          run.name,
          f'{len(speakers)}',
          page_lib.percent(speakers[0].rate),
          page_lib.percent(statistics.median(s.rate for s in speakers)),
          page_lib.percent(speaker_spread.worst_tenth(speakers)),
          page_lib.percent(speakers[-1].rate),
      ])
  if not rows:
    return []
  return [
      *pictures.add('speakers', report_plots.speakers(runs)),
      page_lib.table(
          ['WER by speaker, %', 'speakers', 'best', 'median', 'worst tenth',
           'worst'],
          rows,
      ),
      page_lib.note(
          'Worst tenth: all words of the tenth of speakers (at least one) with '
          'the highest rates.'
      ),
      *_groups(runs, pictures),
  ]


def _groups(
    runs: Sequence[run_record.Run], pictures: _Pictures
) -> list[str]:
  """Word error rates of groups of speakers, where there are groups."""
  by_run = [
      speaker_groups.by_attribute(run.evaluation) if run.evaluation else {}
      for run in runs
  ]
  labels = speaker_groups.rows(by_run)
  if not labels:
    return []
  rows = [
      [
          f'{name}: {value}',
          speaker_groups.speakers(by_run, name, value),
          *(_group(groups.get(name, {}).get(value)) for groups in by_run),
      ]
      for name, value in labels
  ]
  return [
      *pictures.add('speaker_groups', speaker_groups.draw(runs, by_run)),
      page_lib.table(
          ['WER by group, % (95 %)', 'speakers', *(run.name for run in runs)],
          rows,
      ),
      page_lib.note(
          'Groups are what the corpus says of its speakers. Intervals are from '
          'a bootstrap over the speakers of a group; one speaker has none, and '
          'of a few they are too narrow. Groups may also differ in what was '
          'said and how it was recorded.'
      ),
  ]


def _group(group: Optional[speaker_groups.Group]) -> str:
  """A group's word error rate with its interval."""
  if group is None:
    return ''
  if group.interval is None:
    return page_lib.percent(group.rate)
  low, high = map(page_lib.percent, group.interval)
  return f'{page_lib.percent(group.rate)} ({low} to {high})'


def _worst(runs: Sequence[run_record.Run], num_worst: int) -> list[str]:
  """The utterances with the most errors, aligned."""
  if not num_worst or all(run.evaluation is None for run in runs):
    return []
  parts = [page_lib.note(
      'These are words that people of the evaluated data set said: do not pass '
      'the page on unless the data set may be. --num_worst=0 leaves them out.'
  )]
  for run in runs:
    if run.evaluation is None:
      continue
    counted = []
    for each in run.evaluation['hypotheses']:
      errors = word_errors.count(each['reference'], each['text'])
      counted.append((errors.errors, errors.words, each))
    counted.sort(key=lambda row: (-row[0], row[2]['utterance_id']))
    parts.append(page_lib.heading(run.name))
    for errors, words, each in counted[:num_worst]:
      parts.append(page_lib.note(
          f'{each["utterance_id"]} (speaker {each["client_id"]}): {errors} '
          f'errors, {words} words'
      ))
      parts.append(page_lib.aligned(each['reference'], each['text']))
  return parts

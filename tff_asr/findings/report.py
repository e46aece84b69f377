"""The report of all groups of findings: docs/results.md and its plots."""

from collections.abc import Mapping, Sequence
import os
import textwrap

from tff_asr import files
from tff_asr.findings import experiments
from tff_asr.findings import plot
from tff_asr.findings import table
from tff_asr.reports import comparison

_PLOTS = 'results'
_INTRODUCTION = """\
# The paper's findings in miniature

Written by `bin/run_findings.py` from what its runs' folders hold:

    python bin/run_findings.py --source=AN4_FOLDER             # all, 2 hours
    python bin/run_findings.py --source=AN4_FOLDER --groups=a,c

What was run is kept, and what is not there yet is run; with `--groups=` alone
the report is written anew. The groups of runs are data, in
`tff_asr/findings`. What self-supervised pre-training gives in miniature, with
and without differential privacy: [pretraining.md](pretraining.md#in-miniature).

The speech is AN4's training part: 74 people spelling words and reading numbers
and commands, of whom 28 are public, 32 private, 4 for tuning (dev) and 10 for
testing, whom no run heard. The model has 0.44 million parameters. A word error
rate (WER) with a standard deviation is the mean over three runs that differ in
their random seed, any other is of one run. Differences come with a 95 %
interval over the test speakers and random seeds (`tff_asr/metrics/confidence.py`;
{deviation}; seed models are the ones that they are). Claims are judged by that
interval: where it holds 0, nothing is decided; they are not corrected for their
number. Noise is (noise norm) / C of the noise on the mean, sqrt(D) z / S: .05
and .16 are what the paper's 3e-6 and 10e-6 come to. Epsilon is at delta 1 / (10
population); at 32 speakers it is no guarantee (NOT PRIVATE). Noise / signal is
the norm of the noise on the mean over that of the clipped mean. Bytes are of a
client and round, as float32. Seconds are those of a run, in whatever company it
had on its machine. Bars of plots are standard deviations over seeds.
"""


def write(
    groups: Sequence[experiments.Group], *, runs_dir: str, path: str
) -> None:
  """Writes the report, and a plot for each group into a folder beside it.

  Args:
    groups: All of them; what is not run is said to be so.
    runs_dir: The folder of all runs.
    path: The report's file, in a folder that exists.

  Raises:
    ValueError: A run is damaged, or was run with other settings.
  """
  plots = os.path.join(os.path.dirname(os.path.abspath(path)), _PLOTS)
  os.makedirs(plots, exist_ok=True)
  deviation = table.pool_deviation(groups, runs_dir=runs_dir)
  claims = [['', 'claim', 'here']]
  sections = []
  for group in groups:
    measured, absent = table.measure(
        group, runs_dir=runs_dir, deviation=deviation
    )
    verdicts = table.verdicts(group, measured)
    claims += _summary(group, verdicts)
    sections.append(
        _section(
            group, measured, absent, verdicts, runs_dir=runs_dir, plots=plots
        )
    )
  summary = f'## What holds\n\n{comparison.markdown(claims)}\n'
  introduction = _introduction(deviation)
  files.write_text(path, '\n'.join([introduction, summary, *sections]))


def _introduction(deviation: table.Deviation) -> str:
  """What the report is, and how it judges."""
  known = (
      f'a seed changes a run by {100 * deviation.value:.1f} points, the '
      f'standard deviation of {deviation.num_rows} rows together'
  )
  if not deviation.num_rows:
    known = 'what a seed changes is not known yet and left out'
  *paragraphs, last = _INTRODUCTION.split('\n\n')
  last = _wrap(last.format(deviation=known))
  return '\n\n'.join([*paragraphs, last]) + '\n'


def _summary(
    group: experiments.Group, verdicts: Sequence[table.Verdict]
) -> list[list[str]]:
  """A line a claim: the group, the claim and whether it holds."""
  found = {verdict.claim.text: verdict.text for verdict in verdicts}
  return [
      [group.name, claim.text, found.get(claim.text, 'not run')]
      for claim in group.claims
  ]


def _section(
    group: experiments.Group,
    measured: Mapping[str, table.Measured],
    absent: Sequence[str],
    verdicts: Sequence[table.Verdict],
    *,
    runs_dir: str,
    plots: str,
) -> str:
  """One group's: its table, plot, claims and remark."""
  parts = [
      f'## {group.title}',
      _wrap(group.question),
      f'    python bin/run_findings.py --source=AN4_FOLDER '
      f'--groups={group.name}',
  ]
  if not measured:
    return _join([*parts, 'Not run.'])
  parts.append(table.to_markdown(group, measured))
  if absent:
    parts.append(_wrap(f'Not run yet: {"; ".join(absent)}.'))
  points = any(each.row.series is not None for each in measured.values())
  if group.x_label is not None and points:
    name = f'{group.name}.png'
    plot.draw(group, measured, path=os.path.join(plots, name))
    parts.append(f'![{group.title}]({_PLOTS}/{name})')
  claims = [
      _wrap(
          f'{verdict.claim.text} {comparison.show_difference(verdict.found)}: '
          f'**{verdict.text}**.',
          initial_indent='- ',
          subsequent_indent='  ',
      )
      for verdict in verdicts
  ]
  if claims:
    parts.append('\n'.join(claims))
  if group.remark:
    parts.append(_wrap(group.remark))
  parts.append(_wrap(_times(group, runs_dir=runs_dir)))
  return _join(parts)


def _times(group: experiments.Group, *, runs_dir: str) -> str:
  """How many runs the group has, and how long they took."""
  runs = {
      run.name: experiments.results(run, runs_dir=runs_dir)['seconds']
      for row in group.rows
      for run in experiments.wanted(row, runs_dir=runs_dir)
      if experiments.is_trained(run, runs_dir=runs_dir)
  }
  hours = sum(runs.values()) / 3600
  return f'{len(runs)} runs, {hours:.1f} hours of training.'


def _join(parts: Sequence[str]) -> str:
  return '\n\n'.join(parts) + '\n'


def _wrap(text: str, **options: str) -> str:
  return textwrap.fill(
      text, width=80, break_long_words=False, break_on_hyphens=False, **options
  )

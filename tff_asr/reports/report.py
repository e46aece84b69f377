"""Writes a report of runs: plots as PNG files, and one HTML file with all.

Plots are embedded and nothing is fetched, so the file can be sent. Texts of
runs are escaped. The report shows transcripts of the utterances with the most
errors, unless `num_worst` is 0.
"""

import base64
from collections.abc import Iterator, Sequence
import html
import io
import os
import re
from typing import Optional

from tff_asr import checks
from tff_asr import files
from tff_asr.metrics import word_errors
from tff_asr.reports import plots
from tff_asr.reports import runs as runs_lib
from tff_asr.reports import tables

PAGE = 'report.html'

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; color: #222; margin: 2em auto;
  max-width: 64em; padding: 0 1em; }
h1 { font-size: 1.5em; } h2 { font-size: 1.2em; margin-top: 2em;
  border-bottom: 1px solid #ccc; } h3 { font-size: 1em; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-size: 0.9em; }
th, td { padding: 0.25em 0.6em; border-bottom: 1px solid #ddd; }
th, td { text-align: left; vertical-align: top; }
td.number { white-space: nowrap; }
img { max-width: 100%; }
pre { background: #f6f6f6; padding: 0.8em; overflow-x: auto;
  font-size: 0.85em; }
.bad { color: #a00; font-weight: bold; }
.words { border-collapse: separate; border-spacing: 0.3em 0; }
.words td { border: 0; padding: 0 0.2em; text-align: center; }
.substitute { background: #fbe3b5; } .delete { background: #f6c4c4; }
.insert { background: #c9dcf7; }
.note { color: #555; font-size: 0.9em; overflow-wrap: anywhere; }
"""
_NORMS = (
    'Means over rounds and blocks. Deltas are before clipping, gradients '
    'before the clip of a step; in central training of the step before an '
    'evaluation.'
)
_GROUPS = (
    'Groups come from the attributes of speakers in the corpus. Intervals are '
    'bootstraps over the speakers of a group; those of few speakers are too '
    'narrow. Groups may also differ in their sentences and recordings.'
)
_TRANSCRIPTS = (
    'These are transcripts of the evaluated data set: share this page only if '
    'you may share the data set. --num_worst=0 leaves them out.'
)


def write(
    rows: Sequence[tables.Row], *, output_dir: str, num_worst: int = 10
) -> str:
  """Writes the report of runs.

  Args:
    rows: The runs, at least one row; word error rates are compared with those
      of the first.
    output_dir: Receives report.html and the PNG files; may exist.
    num_worst: Number of utterances of each run to show with their transcripts,
      those with the most errors.

  Returns:
    The path of the HTML file.

  Raises:
    ValueError: The output_dir cannot be written, or num_worst is negative.
  """
  checks.non_negative_int(num_worst=num_worst)
  checks.output_folders(output_dir=output_dir)
  # After the checks of arguments.
  os.makedirs(output_dir, exist_ok=True)
  sections = _sections(rows, output_dir=output_dir, num_worst=num_worst)
  path = os.path.join(output_dir, PAGE)
  title = 'Report of ' + ', '.join(row.label for row in rows)
  files.write_text(path, _page(html.escape(title), sections))
  return path


def _sections(
    rows: Sequence[tables.Row], *, output_dir: str, num_worst: int
) -> dict[str, list[str]]:
  """Returns the sections in HTML by heading, and writes their plots."""
  runs = [run for row in rows for run in row.runs]

  def picture(name: str, figure: Optional[plots.Figure]) -> str:
    return '' if figure is None else _picture(output_dir, name, figure)

  return {
      # A column for each run: properties are many, and runs are few.
      'Runs': [_table([list(line) for line in zip(*tables.overview(rows))])],
      'Word errors and loss': [
          picture('word_error_rates', plots.word_error_rates(runs)),
          picture('losses', plots.losses(runs)),
      ],
      'Privacy': [
          picture('epsilons', plots.epsilons(runs)),
          picture('privacy_utility', plots.privacy_utility(runs)),
          *map(_privacy_report, runs),
      ],
      'Clipping and noise': [
          picture('norms', plots.norms(runs)),
          picture('clipped', plots.clipped(runs)),
          picture('noise', plots.noise(runs)),
      ],
      'Layers (not private)': [
          picture('norms_by_block', plots.norms_by_block(runs)),
          _table(tables.norms_by_block_part(runs), note=_NORMS),
          *(
              picture(
                  # Names of runs may have slashes.
                  f'layers_{re.sub("[^A-Za-z0-9_.-]", "_", run.name)}',
                  plots.layers(run),
              )
              for run in runs
          ),
      ],
      'Speakers': [
          picture('speakers', plots.speakers(runs)),
          _table(tables.speaker_spread(runs)),
          _table(tables.speaker_groups(runs), note=_GROUPS),
      ],
      'Personalisation (exact)': [
          picture('personalization', plots.personalization(runs)),
          _table(tables.personal_gains(runs)),
          _table(tables.gains_by_group(runs), note=_GROUPS),
      ],
      'Utterances with the most errors': list(_worst(runs, num_worst)),
      'Configuration': [
          _table(
              tables.differing_settings(runs),
              note='Settings in which runs differ.',
          ),
          *map(_configuration, runs),
      ],
  }


def _page(title: str, sections: dict[str, list[str]]) -> str:
  """Returns the HTML; sections without content are left out."""
  body = [f'<h1>{title}</h1>']
  for heading, parts in sections.items():
    if any(parts):
      body += [f'<h2>{heading}</h2>', *filter(None, parts)]
  return '\n'.join([
      '<!DOCTYPE html>',
      '<html lang="en"><head><meta charset="utf-8">',
      '<meta name="viewport" content="width=device-width">',
      f'<title>{title}</title>',
      f'<style>{_STYLE}</style></head><body>',
      *body,
      '</body></html>\n',
  ])


def _picture(folder: str, name: str, figure: plots.Figure) -> str:
  """Writes a plot to the folder as PNG; returns it as an HTML image."""
  # Drawn once, for the file and for the page.
  png = io.BytesIO()
  plots.save(figure, png)
  with open(os.path.join(folder, f'{name}.png'), 'wb') as f:
    f.write(png.getvalue())
  # Embedded, so that the page is one file that can be sent.
  data = base64.b64encode(png.getvalue()).decode()
  return f'<p><img alt="{name}" src="data:image/png;base64,{data}"></p>'


def _note(text: str) -> str:
  return f'<p class="note">{html.escape(text)}</p>'


def _table(table: tables.Table, *, note: str = '') -> str:
  """Returns a table with a note; empty without rows below the titles."""
  titles, *lines = table
  if not lines:
    return ''
  shown = [''.join(f'<th>{html.escape(cell)}</th>' for cell in titles)]
  for first, *cells in lines:
    shown.append(f'<th>{html.escape(first)}</th>' + ''.join(map(_cell, cells)))
  inside = '\n'.join(f'<tr>{line}</tr>' for line in shown)
  return f'<div class="wide"><table>{inside}</table></div>' + (
      _note(note) if note else ''
  )


def _cell(text: str) -> str:
  """Returns a table cell; one that begins with a number is not wrapped."""
  kind = 'number' if re.match(r'[-+.\d]', text) else ''
  return f'<td class="{kind}">{html.escape(text)}</td>'


def _privacy_report(run: runs_lib.Run) -> str:
  """Returns a run's privacy report; empty without one."""
  if not run.privacy_report:
    return ''
  # A report without its JSON is of a run whose end is not written yet.
  is_private = run.privacy is not None and run.privacy['private']
  words = '' if is_private else ' <span class="bad">NOT PRIVATE</span>'
  return (
      f'<h3>{html.escape(run.name)}{words}</h3>'
      f'<pre>{html.escape(run.privacy_report)}</pre>'
  )


def _configuration(run: runs_lib.Run) -> str:
  return (
      f'<details><summary>config.gin of {html.escape(run.name)}</summary>'
      f'<pre>{html.escape(run.configuration)}</pre></details>'
  )


def _worst(runs: plots.Runs, num_worst: int) -> Iterator[str]:
  """Yields the utterances with the most errors, aligned."""
  evaluated = [run for run in runs if run.evaluation is not None]
  # Transcripts may be private: 0 leaves out all of them.
  if not num_worst or not evaluated:
    return
  yield _note(_TRANSCRIPTS)
  for run in evaluated:
    counted = [
        (word_errors.count(each['reference'], each['text']), each)
        for each in run.evaluation['hypotheses']
    ]
    # Ties in the order of ids, so that equal runs give equal pages.
    counted.sort(key=lambda pair: (-pair[0].errors, pair[1]['utterance_id']))
    yield f'<h3>{html.escape(run.name)}</h3>'
    for errors, each in counted[:num_worst]:
      yield _note(
          f'{each["utterance_id"]} (speaker {each["client_id"]}): '
          f'errors: {errors.errors}, words: {errors.words}'
      )
      yield _aligned(each['reference'], each['text'])


def _aligned(reference: str, hypothesis: str) -> str:
  """Returns a table of an utterance's aligned words, errors in colour."""
  pairs = word_errors.align(reference, hypothesis)
  if not pairs:
    return _note('(reference and hypothesis are empty)')
  lines = {
      name: ''.join(
          f'<td class="{pair.kind}">'
          f'{html.escape(getattr(pair, name)) or "&middot;"}</td>'
          for pair in pairs
      )
      for name in ('reference', 'hypothesis')
  }
  inside = ''.join(
      f'<tr><th>{name}</th>{line}</tr>' for name, line in lines.items()
  )
  return f'<div class="wide"><table class="words">{inside}</table></div>'

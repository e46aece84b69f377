"""A report as one HTML file: tables, pictures, statements, aligned errors.

Pictures are embedded and nothing is fetched, so that the file can be sent and
kept. Whatever comes from runs is escaped.
"""

import base64
from collections.abc import Sequence
import html
import math
from typing import Optional

from tff_asr.metrics import word_errors
from tff_asr.privacy import statement
from tff_asr.reports import run_record

Runs = Sequence[run_record.Run]

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; color: #222; margin: 2em auto;
  max-width: 64em; padding: 0 1em; }
h1 { font-size: 1.5em; } h2 { font-size: 1.2em; margin-top: 2em;
  border-bottom: 1px solid #ccc; } h3 { font-size: 1em; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-size: 0.9em; }
th, td { padding: 0.25em 0.6em; border-bottom: 1px solid #ddd; }
th, td { text-align: left; vertical-align: top; }
td.figure { white-space: nowrap; }
img { max-width: 100%; }
pre { background: #f6f6f6; padding: 0.8em; overflow-x: auto;
  font-size: 0.85em; }
.bad { color: #a00; font-weight: bold; }
.words { border-collapse: separate; border-spacing: 0.3em 0; }
.words td { border: 0; padding: 0 0.2em; text-align: center; }
.substitute { background: #fbe3b5; } .delete { background: #f6c4c4; }
.insert { background: #c9dcf7; }
.note { color: #555; font-size: 0.9em; overflow-wrap: anywhere; }
.swatch { display: inline-block; width: 0.8em; height: 0.8em; }
"""


def page(*, title: str, sections: Sequence[tuple[str, Sequence[str]]]) -> str:
  """The whole file.

  Args:
    title: Of the page.
    sections: Headings and the HTML under them; those without any are left out.
  """
  body = [f'<h1>{html.escape(title)}</h1>']
  for heading, parts in sections:
    if parts:
      body += [f'<h2>{html.escape(heading)}</h2>', *parts]
  return '\n'.join([
      '<!DOCTYPE html>',
      '<html lang="en"><head><meta charset="utf-8">',
      '<meta name="viewport" content="width=device-width">',
      f'<title>{html.escape(title)}</title>',
      f'<style>{_STYLE}</style></head><body>',
      *body,
      '</body></html>\n',
  ])


def picture(png: bytes, *, name: str) -> str:
  """An embedded PNG."""
  data = base64.b64encode(png).decode()
  text = html.escape(name)
  return f'<p><img alt="{text}" src="data:image/png;base64,{data}"></p>'


def note(text: str) -> str:
  """A remark."""
  return f'<p class="note">{html.escape(text)}</p>'


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
  """A table of texts; the first of each row is its heading."""
  lines = [''.join(f'<th>{html.escape(cell)}</th>' for cell in header)]
  for first, *rest in rows:
    lines.append(
        f'<th>{html.escape(first)}</th>'
        + ''.join(
            f'<td class="{"figure" if _is_figure(cell) else ""}">'
            f'{html.escape(cell)}</td>'
            for cell in rest
        )
    )
  inside = '\n'.join(f'<tr>{line}</tr>' for line in lines)
  return f'<div class="wide"><table>{inside}</table></div>'


def legend(colors: Sequence[tuple[str, str]]) -> str:
  """Names beside their colours."""
  return '<p>' + ' &emsp; '.join(
      f'<span class="swatch" style="background: {color}"></span> '
      f'{html.escape(name)}'
      for name, color in colors
  ) + '</p>'


def statement_of(run: run_record.Run) -> list[str]:
  """A run's privacy statement, or what stands in its place."""
  if not run.statement:
    return []
  is_private = run.privacy is not None and run.privacy['private']
  words = '' if is_private else ' <span class="bad">NOT PRIVATE</span>'
  return [
      f'<h3>{html.escape(run.name)}{words}</h3>',
      f'<pre>{html.escape(run.statement)}</pre>',
  ]


def configuration(runs: Runs) -> list[str]:
  """The settings in which runs differ, and each run's configuration."""
  names = sorted({name for run in runs for name in run.settings})
  rows = []
  for name in names:
    found = [run.settings.get(name) for run in runs]
    if len(set(found)) > 1:
      rows.append([name, *('' if text is None else text for text in found)])
  parts = []
  if rows:
    parts.append(note('Settings in which the runs differ:'))
    parts.append(table(['', *(run.name for run in runs)], rows))
  for run in runs:
    parts.append(
        f'<details><summary>config.gin of {html.escape(run.name)}</summary>'
        f'<pre>{html.escape(run.configuration)}</pre></details>'
    )
  return parts


def aligned(reference: str, heard: str) -> str:
  """An utterance's words above what was heard of them, errors in colour."""
  pairs = word_errors.align(reference, heard)
  if not pairs:
    return note('(nothing was said, and nothing heard)')
  rows = ['', '']
  for pair in pairs:
    kind = '' if pair.kind == 'equal' else pair.kind
    for row, word in enumerate((pair.reference, pair.heard)):
      text = html.escape(word) or '&middot;'
      rows[row] += f'<td class="{kind}">{text}</td>'
  inside = ''.join(
      f'<tr><th>{name}</th>{row}</tr>'
      for name, row in zip(('said', 'heard'), rows)
  )
  return f'<div class="wide"><table class="words">{inside}</table></div>'


def heading(text: str) -> str:
  """A small heading."""
  return f'<h3>{html.escape(text)}</h3>'


def percent(rate: Optional[float]) -> str:
  """A rate in percent; empty for None."""
  return '' if rate is None else f'{100 * rate:.1f}'


def epsilon(value: Optional[float]) -> str:
  """An epsilon; empty for None."""
  return '' if value is None else statement.number(value)


def number(value: Optional[float]) -> str:
  """A figure with three digits; empty for None."""
  if value is None or math.isnan(value):
    return ''
  return f'{value:.3g}' if abs(value) < 1000 else f'{value:,.0f}'


def _is_figure(cell: str) -> bool:
  """Whether a cell begins with a number, and so stays on one line."""
  return bool(cell) and (cell[0].isdigit() or cell[0] in '+-.')

"""Writes a report of runs: plots as PNG files, and one HTML file with all.

Plots are embedded and nothing is fetched, so the file can be sent. Texts of
runs are escaped. The first part of the page shows what runs release; the second
is for the operator only: exact metrics of training, speakers of the test set,
and transcripts of the utterances with the most errors, unless `num_worst` is 0.
"""

import base64
from collections.abc import Callable, Iterator, Sequence
import functools
import html
import os
import re
from typing import Optional

from tff_asr import checks
from tff_asr import files
from tff_asr.metrics import word_errors
from tff_asr.programs import public_data
from tff_asr.reports import plots
from tff_asr.reports import runs as runs_lib
from tff_asr.reports import tables

PAGE = 'report.html'

# Writes a figure under a name; returns it in HTML, or '' for None.
_Draw = Callable[[str, Optional[plots.Figure]], str]

_STYLE = os.path.join(os.path.dirname(__file__), 'page.css')
_OWN_STYLE = """
h2 { font-size: 1.5rem; margin: 3rem 0 .3rem; }
h3 { font-size: 1.15rem; margin: 2rem 0 .7rem; }
h4 { font-size: 1rem; margin: 1.2rem 0 .4rem; overflow-wrap: anywhere; }
.cards { margin-top: 1.2rem; }
.card h3 { font-size: 1.05rem; margin: 0; }
.wide { overflow-x: auto; margin: .7rem 0; }
table { border-collapse: collapse; font-size: .9rem; }
th, td { padding: .3rem .8rem .3rem 0; border-bottom: 1px solid var(--line);
  text-align: left; vertical-align: top; }
td.number { white-space: nowrap; }
.card p { margin-bottom: .5rem; }
img { display: block; max-width: 100%; margin: 1rem 0;
  mix-blend-mode: multiply; }
/* A plot is white with dark text; on a dark page its light is turned over, and
its colours stay. */
@media (prefers-color-scheme: dark) {
  img { filter: invert(1) hue-rotate(180deg); mix-blend-mode: screen; }
}
pre { background: var(--card); border: 1px solid var(--line);
  border-radius: .5rem; padding: .8rem; overflow-x: auto; font-size: .8rem; }
summary { cursor: pointer; margin: .5rem 0; font-weight: 600; }
.warning { color: var(--bad); font-weight: 600; margin: .7rem 0; }
.words { border-collapse: separate; border-spacing: .3rem 0; }
.words td { border: 0; padding: 0 .2rem; text-align: center;
  border-radius: .2rem; }
.words th { border: 0; padding: 0 .8rem 0 0; color: var(--soft);
  font-weight: 400; }
.substitute { background: var(--bad-soft); color: var(--bad); }
.delete { background: var(--bad-soft); color: var(--bad);
  text-decoration: line-through; }
.insert { background: var(--bad-soft); color: var(--bad); }
.note { color: var(--soft); font-size: .9rem; overflow-wrap: anywhere;
  margin: .5rem 0; }
"""
_RELEASED = (
    'What these runs release, and test error rates. Metrics are noised, or '
    'computed from settings and from data that count as public.'
)
_FOR_THE_OPERATOR = (
    'Exact figures of training data and test speakers. No guarantee covers '
    'them: share this part only if you may share these data.'
)
_LAYER_NOISE = (
    'Norm of the noise on the mean of a round over the clip of the layer, or '
    'over C where all layers are clipped as one; correlated noise before it is '
    'correlated. It follows from settings and from clips that were released.'
)
_PRIVATE_EVALUATION = (
    "Released with privacy, and charged to each run's ledger. Brackets and "
    'bars: 95 %, of the noise and, where people were drawn, of the draw.'
)
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
  draw = functools.partial(_picture, output_dir)
  runs = [run for row in rows for run in row.runs]
  title = 'Report of ' + ', '.join(row.label for row in rows)
  path = os.path.join(output_dir, PAGE)
  files.write_text(path, _page(html.escape(title), [
      '<h1>Report</h1>',
      _cards(rows),
      *_part('Released', _RELEASED, _released(rows, runs, draw=draw)),
      *_part(
          'For the operator only', _FOR_THE_OPERATOR,
          _for_the_operator(runs, draw=draw, num_worst=num_worst),
      ),
  ]))
  return path


def _released(
    rows: Sequence[tables.Row], runs: plots.Runs, *, draw: _Draw
) -> dict[str, list[str]]:
  """Returns sections in HTML by heading, and writes their plots."""
  return {
      # A column for each run: properties are many, and runs are few.
      'Runs': [
          _table(_transposed(tables.overview(rows))),
          *map(_note, tables.notes(rows)),
          *map(_warning, runs),
      ],
      'Word errors and loss': [
          draw('word_error_rates', plots.word_error_rates(runs)),
          draw('losses', plots.losses(runs)),
      ],
      'Privacy': [
          draw('epsilons', plots.epsilons(runs)),
          draw('privacy_utility', plots.privacy_utility(runs)),
          _details(
              'Noise by layer, over the clip',
              _table(tables.layer_noise(runs), note=_LAYER_NOISE),
          ),
          *map(_privacy_report, runs),
      ],
      'Error rates of private people': [
          _table(
              _transposed(tables.private_evaluations(runs)),
              note=_PRIVATE_EVALUATION,
          ),
          draw('noised_word_error_rates', plots.noised_word_error_rates(runs)),
          draw('private_evaluations', plots.private_evaluations(runs)),
      ],
      'Configuration': [
          _details(
              'Settings in which runs differ',
              _table(tables.differing_settings(runs)),
          ),
          *map(_configuration, runs),
      ],
  }


def _for_the_operator(
    runs: plots.Runs, *, draw: _Draw, num_worst: int
) -> dict[str, list[str]]:
  """Returns sections in HTML by heading, and writes their plots."""
  return {
      'Test speakers': [
          draw('speakers', plots.speakers(runs)),
          _table(tables.speaker_spread(runs)),
          _table(
              tables.speaker_groups([run for run in runs if run.speakers]),
              note=_GROUPS,
          ),
      ],
      'Personalisation': [
          draw('personalization', plots.personalization(runs)),
          _table(tables.personal_gains(runs)),
          _table(
              tables.gains_by_group(
                  [run for run in runs if run.personalization]
              ),
              note=_GROUPS,
          ),
      ],
      'Loss in training': [
          draw('training_losses', plots.training_losses(runs)),
      ],
      'Clipping and noise': [
          draw('norms', plots.update_norms(runs)),
          draw('clipped', plots.clipped(runs)),
          draw('noise', plots.noise(runs)),
      ],
      'Layers': [
          draw('norms_by_block', plots.norms_by_block(runs)),
          _table(tables.norms_by_block_part(runs), note=_NORMS),
          *(
              draw(
                  # Names of runs may have slashes.
                  f'layers_{re.sub("[^A-Za-z0-9_.-]", "_", run.name)}',
                  plots.layers(run),
              )
              for run in runs
          ),
      ],
      'Utterances with the most errors': list(_worst(runs, num_worst)),
  }


def _part(
    title: str, note: str, sections: dict[str, list[str]]
) -> Iterator[str]:
  """Yields a part; it and its sections only if they have content."""
  filled = {name: parts for name, parts in sections.items() if any(parts)}
  if filled:
    yield f'<h2>{title}</h2>'
    yield _note(note)
  for name, parts in filled.items():
    yield f'<h3>{name}</h3>'
    yield from filter(None, parts)


def _page(title: str, body: Sequence[str]) -> str:
  """Returns the HTML."""
  style = files.read(_STYLE).decode() + _OWN_STYLE
  return '\n'.join([
      '<!DOCTYPE html>',
      '<html lang="en"><head><meta charset="utf-8">',
      '<meta name="viewport" content="width=device-width">',
      f'<title>{title}</title>',
      f'<style>{style}</style></head><body>',
      *body,
      '</body></html>\n',
  ])


def _cards(rows: Sequence[tables.Row]) -> str:
  """Returns what a reader asks first of each row, as on the demo's page."""
  cards = []
  for row in rows:
    greedy, with_lm = (
        tables.rate(row, measure)
        for measure in (runs_lib.WER, runs_lib.WER_WITH_LM)
    )
    dev = tables.COLUMNS['dev WER %'](row)
    facts = {
        'WER': greedy and f'{greedy} %',
        'WER with LM': with_lm and f'{with_lm} %',
        'WER on the dev set': '' if greedy or not dev else f'{dev} %',
        'Training': tables.COLUMNS['kind'](row),
    }
    inside = ''.join(
        f'<dt>{name}</dt><dd>{html.escape(text)}</dd>'
        for name, text in facts.items() if text
    ) + f'<dt>Privacy</dt><dd>{_badge(row)}</dd>'
    cards.append(
        f'<li class="card"><h3>{html.escape(row.label)}</h3>'
        f'<dl class="facts small">{inside}</dl></li>'
    )
  return f'<ul class="cards">{"".join(cards)}</ul>'


def _badge(row: tables.Row) -> str:
  """Returns the privacy of a row in HTML."""
  state = tables.COLUMNS['private'](row)
  if state in ('', tables.PUBLIC_DATA):
    return f'<span class="badge">{state or "not known yet"}</span>'
  epsilon = f'epsilon {tables.epsilon_by(row)}'
  if state == tables.NOT_PRIVATE:
    return f'<span class="badge no">{state}</span> {epsilon}'
  return f'<span class="badge yes">{epsilon}</span>'


def _warning(run: runs_lib.Run) -> str:
  """Returns a warning if the test set has speakers of the training data."""
  if run.evaluation is None:
    return ''
  counts = public_data.OverlapCounts(**run.evaluation['private'])
  return '' if not counts.private_speakers else (
      f'<p class="warning">{html.escape(run.name)}: '
      f'{html.escape(counts.words)}</p>'
  )


def _picture(folder: str, name: str, figure: Optional[plots.Figure]) -> str:
  """Writes a plot to the folder as PNG; returns it as an HTML image."""
  if figure is None:
    return ''
  path = os.path.join(folder, f'{name}.png')
  plots.save(figure, path)
  # Embedded, so that the page is one file that can be sent.
  data = base64.b64encode(files.read(path)).decode()
  return f'<img alt="{name}" src="data:image/png;base64,{data}">'


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


def _transposed(table: tables.Table) -> tables.Table:
  """Returns a table with a column for each row; empty without any row."""
  # Titles alone would look like a run without results.
  if len(table) == 1:
    return [[]]
  return [list(line) for line in zip(*table)]


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
  words = '' if is_private else ' <span class="badge no">NOT PRIVATE</span>'
  return _details(
      f'Privacy report of {html.escape(run.name)}{words}',
      f'<pre>{html.escape(run.privacy_report)}</pre>',
  )


def _configuration(run: runs_lib.Run) -> str:
  return _details(
      f'config.gin of {html.escape(run.name)}',
      f'<pre>{html.escape(run.configuration)}</pre>',
  )


def _details(summary: str, inside: str) -> str:
  """Returns HTML that opens by a click; empty without content."""
  return inside and (
      f'<details><summary>{summary}</summary>{inside}</details>'
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
    yield f'<h4>{html.escape(run.name)}</h4>'
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

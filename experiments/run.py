r"""Runs a suite of experiments, and reports it.

Makes the shards, trains the runs that the studies lack, several at a time,
decodes the test speakers and writes the report. Finished work is kept, so it
can be stopped and started again; a run that was stopped continues.

  an4             recorded voices, of AN4: with and without a public encoder,
                  with and without noise
  an4_folds       the same from a public encoder, cross-validated over all
                  speakers of AN4's training part
  population      what private training gains on generated speech, in simulated
                  cohorts
  layer_clipping  what clipping and noise leave of the server's step, with the
                  population's speech and models; its studies are states of
                  models
  pretraining     private pre-training in miniature; its studies are rows

Example:
  python -m experiments.run --suite=an4 --source=AN4_FOLDER --test=AN4_TEST
  python -m experiments.run --suite=an4 --studies=noise,trained
  python -m experiments.run --suite=an4 --studies=     # only writes the report
"""

from tff_asr import launch

launch.install_early_sigint(__name__)

from collections.abc import Sequence
import os
from typing import Optional

from absl import flags

from experiments import an4
from experiments import an4_folds
from experiments import jobs
from experiments import layer_clipping
from experiments import population
from experiments import pretraining
from experiments import report as report_lib
from tff_asr import checks

_SUITES = {
    suite.name: suite
    for suite in (an4.SUITE, an4_folds.SUITE, population.SUITE)
}

_LAYER_CLIPPING = 'layer_clipping'
_SUITE = flags.DEFINE_enum(
    'suite',
    'an4',
    [*_SUITES, _LAYER_CLIPPING, pretraining.NAME],
    'What to run.',
)
_SOURCE = flags.DEFINE_string(
    'source',
    None,
    "AN4's folder (with etc/ and wav/); None: shards are there, or the suite "
    'generates its speech.',
)
_TEST = flags.DEFINE_string(
    'test',
    None,
    "Folder with AN4's own test part, which is then decoded as well.",
)
_STUDIES = flags.DEFINE_list(
    'studies',
    None,
    'Studies to run, by default all; none: only the report is written.',
)
_DATA_DIR = flags.DEFINE_string(
    'data_dir', None, 'Where the shards are or go; by default data/SUITE.'
)
_RUNS_DIR = flags.DEFINE_string(
    'runs_dir', None, 'Where the runs go; by default runs/SUITE.'
)
_REPORT = flags.DEFINE_string(
    'report',
    None,
    "The report, by default the suite's in docs/; plots go to its folder.",
)
_LANGUAGE_MODEL = flags.DEFINE_string(
    'language_model',
    None,
    'KenLM model of public text, to decode the test speakers with, too '
    '(data_tools.ngram makes one; its weights are tuned on the dev speakers). '
    "By default the suite's own, if it makes one.",
)
_NUM_AT_ONCE = flags.DEFINE_integer(
    'num_at_once',
    len(os.sched_getaffinity(0)),
    'Runs at a time, among which the processors are divided.',
    lower_bound=1,
)


def run(
    names: Optional[Sequence[str]],
    *,
    folders: jobs.Folders,
    report: str,
    source: Optional[str],
    test: Optional[str] = None,
    num_at_once: int,
) -> None:
  """Makes the missing runs of studies, and writes the report of all.

  Args:
    names: Studies to run; none: only the report is written; None: all.
    folders: Folders of the suite, where things are and go.
    report: The report's file.
    source: The corpus' folder; None: its shards are there, or it has none.
    test: Where a further test part is; None: nowhere, or its shards are there.
    num_at_once: Runs at a time.

  Raises:
    ValueError: An argument is wrong, before anything is written; or something
      that was run failed, after all else.
  """
  suite = folders.suite
  studies = {study.name: study for study in suite.studies}
  names = list(studies) if names is None else names
  report_dir = os.path.dirname(os.path.abspath(report))
  model = folders.language_model
  errors = [
      ValueError(f'unknown study {name!r}: choose from {", ".join(studies)}.')
      for name in names
      if name not in studies
  ]
  for name, folder in (('source', source), ('test', test)):
    if folder is not None and not os.path.isdir(folder):
      errors.append(ValueError(f'{name} {folder} is not a folder.'))
  if model is not None and not os.path.isfile(model):
    errors.append(ValueError(f'the language model {model} does not exist.'))
  try:
    checks.output_folders(
        data_dir=folders.data_dir, runs_dir=folders.runs_dir, report=report_dir
    )
  except ValueError as e:
    errors.append(e)
  checks.raise_errors(errors)
  has_shards = all(
      os.path.isdir(each.shards('test')) for each in folders.folds()
  )
  if names and suite.needs_source and source is None and not has_shards:
    raise ValueError(
        f"{folders.data_dir} has no shards of AN4: give AN4's folder with "
        '--source.'
    )
  if not names and not os.path.isdir(folders.runs_dir):
    raise ValueError(f'{folders.runs_dir} holds no runs to report.')
  os.makedirs(report_dir, exist_ok=True)
  if names and (source is not None or not has_shards):
    jobs.make_shards(source, test=test, folders=folders)
  failures = [(fold, set()) for fold in folders.folds()]
  for study in [study for study in suite.studies if study.name in names]:
    for fold, failed in failures:
      while todo := jobs.missing(study, folders=fold, failed=failed):
        where = '' if fold == folders else f' in {fold.runs_dir}'
        started = ', '.join(job.name for job in todo)
        print(f'{study.name}{where}: {started}', flush=True)
        failed.update(
            jobs.run_all(todo, folders=fold, num_at_once=num_at_once)
        )
    report_lib.write(folders=folders, path=report)
  if not names:
    report_lib.write(folders=folders, path=report)
  print(f'{report} is written.')
  logs = [fold.log(name) for fold, failed in failures for name in failed]
  if logs:
    raise ValueError(
        f'{len(logs)} of what was run failed: see {", ".join(sorted(logs))}.'
    )


def _check_flags() -> None:
  """Raises ValueError for flags that the suite does not take."""
  name, errors = _SUITE.value, []
  readers = [each.name for each in _SUITES.values() if each.needs_source]
  if _SOURCE.value is not None and name not in readers:
    errors.append(ValueError(
        f'the suite {name} takes no --source, since its speech is generated: '
        f'leave it out; {", ".join(readers)} takes one.'
    ))
  if _TEST.value is not None and (name != an4.SUITE.name or not _SOURCE.value):
    errors.append(ValueError('--test is for the suite an4, with --source.'))
  if _NUM_AT_ONCE.present and name == pretraining.NAME:
    errors.append(ValueError(
        f'the suite {name} takes no --num_at_once, since its rows run one by '
        'one: leave it out.'
    ))
  checks.raise_errors(errors)


def main(_) -> None:
  _check_flags()
  if _SUITE.value == pretraining.NAME:
    pretraining.run(
        _STUDIES.value,
        data_dir=_DATA_DIR.value or os.path.join('data', pretraining.NAME),
        runs_dir=_RUNS_DIR.value or os.path.join('runs', pretraining.NAME),
        report_path=_REPORT.value or pretraining.REPORT,
    )
    return
  is_layer_clipping = _SUITE.value == _LAYER_CLIPPING
  # It has the corpus and the models of the population.
  suite = population.SUITE if is_layer_clipping else _SUITES[_SUITE.value]
  folders = jobs.Folders(
      _DATA_DIR.value or os.path.join('data', suite.name),
      _RUNS_DIR.value or os.path.join('runs', suite.name),
      suite,
      _LANGUAGE_MODEL.value,
  )
  if is_layer_clipping:
    layer_clipping.run(
        _STUDIES.value,
        folders=folders,
        report=_REPORT.value or layer_clipping.REPORT,
        num_at_once=_NUM_AT_ONCE.value,
    )
    return
  run(
      _STUDIES.value,
      folders=folders,
      report=_REPORT.value or suite.report,
      source=_SOURCE.value,
      test=_TEST.value,
      num_at_once=_NUM_AT_ONCE.value,
  )


if __name__ == '__main__':
  launch.run(main)

r"""Runs the federated paper's findings in miniature on AN4, and reports them.

Makes AN4's shards, trains what is missing of the groups, several runs at a
time, decodes the test speakers and writes the report. What is there is kept, so
it can be stopped and started again; a run that was stopped goes on.

Example:
  python -m experiments.run --source=AN4_FOLDER --groups=table,c
  python -m experiments.run --groups=     # only writes the report anew
"""

from tff_asr import launch

launch.begin(__name__)

from collections.abc import Sequence
import os
from typing import Optional

from absl import flags

from experiments import an4
from experiments import jobs
from experiments import report as report_lib
from tff_asr import checks

_SOURCE = flags.DEFINE_string(
    'source', None, "AN4's folder (with etc/ and wav/); None: shards are there."
)
_GROUPS = flags.DEFINE_list(
    'groups',
    [group.name for group in an4.GROUPS],
    'Groups to run; none: only the report is written.',
)
_DATA_DIR = flags.DEFINE_string(
    'data_dir', 'data/an4', 'Where the shards are or go.'
)
_RUNS_DIR = flags.DEFINE_string('runs_dir', 'runs/an4', 'Where the runs go.')
_REPORT = flags.DEFINE_string(
    'report', 'docs/results.md', 'The report; its plots go beside it.'
)
_NUM_AT_ONCE = flags.DEFINE_integer(
    'num_at_once',
    len(os.sched_getaffinity(0)),
    'Runs at a time, among which the processors are divided.',
    lower_bound=1,
)


def run(
    names: Sequence[str],
    *,
    folders: jobs.Folders,
    report: str,
    source: Optional[str],
    num_at_once: int,
) -> None:
  """Runs what is missing of groups, and writes the report of all groups.

  Args:
    names: Groups to run; none: only the report is written.
    folders: Where things are and go.
    report: The report's file.
    source: AN4's folder; None: its shards are there.
    num_at_once: Runs at a time.

  Raises:
    ValueError: An argument is wrong, before anything is written; or something
      that was run failed, after all else.
  """
  groups = {group.name: group for group in an4.GROUPS}
  report_dir = os.path.dirname(os.path.abspath(report))
  errors = [
      ValueError(f'there is no group {name!r}: take {", ".join(groups)}.')
      for name in names
      if name not in groups
  ]
  if source is not None and not os.path.isdir(source):
    errors.append(ValueError(f'source {source} is not a folder.'))
  try:
    checks.output_folders(**folders._asdict(), report=report_dir)
  except ValueError as e:
    errors.append(e)
  checks.raise_together(errors)
  if names and source is None and not os.path.isdir(folders.shards('test')):
    raise ValueError(
        f"{folders.data_dir} has no shards of AN4: give AN4's folder with "
        '--source.'
    )
  if not names and not os.path.isdir(folders.runs_dir):
    raise ValueError(f'{folders.runs_dir} holds no runs to report.')
  os.makedirs(report_dir, exist_ok=True)
  failed = set()
  if names and source is not None:
    job = jobs.shards(source, folders=folders)
    if jobs.run_all([job], folders=folders, num_at_once=1):
      raise ValueError(
          f'AN4 could not be converted: see {folders.log(job.name)}.'
      )
  for group in [group for group in an4.GROUPS if group.name in names]:
    while todo := jobs.missing(group, folders=folders, failed=failed):
      print(f'{group.name}: {", ".join(job.name for job in todo)}', flush=True)
      failed |= jobs.run_all(todo, folders=folders, num_at_once=num_at_once)
    report_lib.write(an4.GROUPS, folders=folders, path=report)
  if not names:
    report_lib.write(an4.GROUPS, folders=folders, path=report)
  print(f'{report} is written.')
  if failed:
    logs = ', '.join(map(folders.log, sorted(failed)))
    raise ValueError(f'{len(failed)} of what was run failed: see {logs}.')


def main(_) -> None:
  run(
      _GROUPS.value,
      folders=jobs.Folders(_DATA_DIR.value, _RUNS_DIR.value),
      report=_REPORT.value,
      source=_SOURCE.value,
      num_at_once=_NUM_AT_ONCE.value,
  )


if __name__ == '__main__':
  launch.run(main)

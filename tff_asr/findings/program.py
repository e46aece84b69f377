"""The findings as a program: shards, runs, decoding, report."""

from collections.abc import Sequence
import os
from typing import Optional

from tff_asr import checks
from tff_asr.findings import experiments
from tff_asr.findings import groups as groups_lib
from tff_asr.findings import job_queue
from tff_asr.findings import jobs
from tff_asr.findings import report as report_lib


def run(
    *,
    group_names: Sequence[str],
    folders: jobs.Folders,
    report: str,
    source: Optional[str] = None,
    num_at_once: Optional[int] = None,
) -> None:
  """Runs what is missing of groups, and writes the report of all groups.

  The report is brought up to date after each decoding, too.

  Args:
    group_names: Groups to run; none: only the report is written.
    folders: Where things are and go.
    report: The report's file.
    source: AN4's folder; None: its shards are there.
    num_at_once: Runs at a time; None: as many as there are processors.

  Raises:
    ValueError: An argument is wrong, before anything is written; or something
      that was run failed, after all else.
  """
  groups = experiments.select(groups_lib.ALL, group_names)
  report_dir = os.path.dirname(os.path.abspath(report))
  _check(source, num_at_once, folders, report_dir)
  if groups and source is None and not os.path.isdir(folders.shards('test')):
    raise ValueError(
        f"{folders.data_dir} has no shards of AN4: give AN4's folder with "
        '--source.'
    )
  if not groups and not os.path.isdir(folders.runs_dir):
    raise ValueError(f'{folders.runs_dir} holds no runs to report.')
  os.makedirs(report_dir, exist_ok=True)

  def write_report() -> None:
    report_lib.write(
        groups_lib.IN_REPORT, runs_dir=folders.runs_dir, path=report
    )

  def on_end(ended: job_queue.Ended) -> None:
    left, total = jobs.num_left(groups, runs_dir=folders.runs_dir)
    outcome = f'failed ({ended.status})' if ended.status else 'ended'
    print(
        f'{outcome} {ended.job.name} after {ended.seconds:.0f} s; {left} of '
        f'{total} runs are left.',
        flush=True,
    )
    if jobs.is_evaluation(ended.job):
      write_report()

  failed = []
  if groups and source is not None:
    job = jobs.shards_job(source, folders=folders)
    if job_queue.run(lambda unused_failed: [job], num_at_once=1):
      raise ValueError(f'AN4 could not be converted: see {job.log}.')
  if groups:
    failed = job_queue.run(
        jobs.missing(groups, folders=folders),
        num_at_once=num_at_once or len(os.sched_getaffinity(0)),
        on_start=lambda job: print(f'begun {job.name}', flush=True),
        on_end=on_end,
    )
  write_report()
  print(f'{report} is written.')
  if failed:
    logs = ', '.join(map(folders.log, failed))
    raise ValueError(f'{len(failed)} of what was run failed: see {logs}.')


def _check(
    source: Optional[str],
    num_at_once: Optional[int],
    folders: jobs.Folders,
    report_dir: str,
) -> None:
  """Raises ValueError for all that is wrong, together."""
  errors = []
  if source is not None and not os.path.isdir(source):
    errors.append(ValueError(f'source {source} is not a folder.'))
  try:
    if num_at_once is not None:
      checks.positive_int(num_at_once=num_at_once)
  except ValueError as e:
    errors.append(e)
  try:
    checks.output_folders(
        data_dir=folders.data_dir, runs_dir=folders.runs_dir, report=report_dir
    )
  except ValueError as e:
    errors.append(e)
  checks.raise_together(errors)

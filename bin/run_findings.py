r"""Runs the federated paper's findings in miniature on AN4, and reports them.

Makes AN4's shards, trains what is missing of the groups, several runs at a
time, decodes the test speakers and writes the report. What is there is kept, so
it can be stopped and started again; a run that was stopped goes on.

Example:
  python bin/run_findings.py --source=AN4_FOLDER --groups=table,c
  python bin/run_findings.py --groups=     # only writes the report anew
"""

from tff_asr import launch

launch.begin(__name__)

import os

from absl import flags

from tff_asr.findings import groups
from tff_asr.findings import jobs
from tff_asr.findings import program

_SOURCE = flags.DEFINE_string(
    'source', None, "AN4's folder (with etc/ and wav/); None: shards are there."
)
_GROUPS = flags.DEFINE_list(
    'groups',
    [group.name for group in groups.ALL],
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
    None,
    'Runs at a time, among which the processors are divided; by default as '
    'many as there are processors.',
)


def main(_) -> None:
  program.run(
      group_names=_GROUPS.value,
      folders=jobs.Folders(
          bin_dir=os.path.dirname(os.path.abspath(__file__)),
          data_dir=_DATA_DIR.value,
          runs_dir=_RUNS_DIR.value,
      ),
      report=_REPORT.value,
      source=_SOURCE.value,
      num_at_once=_NUM_AT_ONCE.value,
  )


if __name__ == '__main__':
  launch.run(main)

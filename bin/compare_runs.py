r"""Prints a table of evaluated runs with differences from the first.

Each --group is one row: a label and the runs (say, of several seeds) whose
errors are averaged. Differences come with a 95 % interval from a paired
bootstrap over speakers, which does not hold what another seed would change.

Example:
  python bin/compare_runs.py --group="seed=runs/seed" \
      --group="federated=runs/federated_1,runs/federated_2"
"""

from tff_asr import launch

launch.begin(__name__)

from absl import flags

from tff_asr.reports import comparison
from tff_asr.reports import labels

_GROUP = flags.DEFINE_multi_string(
    'group', None, 'LABEL=RUN,RUN,...; the first is the baseline.'
)
_OUTPUT_NAME = flags.DEFINE_string(
    'output_name', 'test.json', 'What the evaluation wrote in each run.'
)
flags.mark_flag_as_required('group')


def main(_) -> None:
  parsed = labels.parse('group', _GROUP.value, form='LABEL=RUN,RUN')
  groups = {
      label: [run for run in runs.split(',') if run]
      for label, runs in parsed.items()
  }
  rows = comparison.compare(groups, output_name=_OUTPUT_NAME.value)
  print(comparison.to_markdown(rows))


if __name__ == '__main__':
  launch.run(main, after_interrupt='the same command begins anew.')

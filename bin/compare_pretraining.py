r"""Prints a table of pre-training runs: masked accuracy, labels used, cost.

Example:
  python bin/compare_pretraining.py --run="warm start=runs/pretrain/public" \
      --run="private=runs/pretrain/private"
"""

from tff_asr import launch

launch.begin(__name__)

from absl import flags

from tff_asr.reports import labels
from tff_asr.reports import pretraining_comparison

_RUN = flags.DEFINE_multi_string('run', None, 'LABEL=FOLDER; a row each.')
flags.mark_flag_as_required('run')


def main(_) -> None:
  runs = labels.parse('run', _RUN.value, form='LABEL=FOLDER')
  rows = pretraining_comparison.compare(runs)
  print(pretraining_comparison.to_markdown(rows))


if __name__ == '__main__':
  launch.run(main, after_interrupt='the same command begins anew.')

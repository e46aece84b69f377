r"""Prints a table of pre-training runs: masked accuracy, labels used, cost.

Example:
  python bin/compare_pretraining.py --run="warm start=runs/pretrain/public" \
      --run="private=runs/pretrain/private"
"""

from tff_asr import launch

launch.begin(__name__)

from absl import flags

from tff_asr.reports import pretraining_comparison

_RUN = flags.DEFINE_multi_string('run', None, 'LABEL=FOLDER; a row each.')
flags.mark_flag_as_required('run')


def main(_) -> None:
  runs = {}
  for text in _RUN.value:
    label, separator, folder = text.rpartition('=')
    if not separator:
      raise ValueError(f'--run must look like LABEL=FOLDER, found {text!r}.')
    if label in runs:
      raise ValueError(f'--run has the label {label!r} twice.')
    runs[label] = folder
  rows = pretraining_comparison.compare(runs)
  print(pretraining_comparison.to_markdown(rows))


if __name__ == '__main__':
  launch.run(main, after_interrupt='the same command begins anew.')

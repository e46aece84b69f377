r"""Shows runs side by side: as a table, and with pictures as one HTML file.

RUN is a run's folder; RUN,RUN averages the errors of runs that differ in their
random seed. --name, once for each argument in order, is its name in tables and
plots. Word error rates are compared with the first one's by a paired bootstrap
over speakers (95 %), which does not cover the effect of another seed.

With --output_dir it also writes an HTML file that needs no network: first what
the runs released, then, for the operator only, exact figures of training, test
speakers and the utterances with the most errors with their transcripts;
--num_worst=0 leaves these out.

Example:
  python bin/report.py runs/seed runs/federated_1,runs/federated_2 --name=seed \
      --name=federated
  python bin/report.py runs/seed runs/private --output_dir=report
"""

from tff_asr import launch

launch.install_early_sigint(__name__)

from absl import flags

from tff_asr.reports import report
from tff_asr.reports import tables

_OUTPUT_DIR = flags.DEFINE_string(
    'output_dir', None, 'Folder for report.html and the PNGs; None: no page.'
)
_NAMES = flags.DEFINE_multi_string(
    'name', [], 'Name of a run, by default its folder; one for each, in order.'
)
_EVALUATION = flags.DEFINE_string(
    'evaluation', 'test.json', 'What bin/evaluate.py wrote in each run.'
)
_NUM_WORST = flags.DEFINE_integer(
    'num_worst',
    10,
    'Utterances with the most errors to show, with their transcripts.',
    lower_bound=0,
)


def main(argv) -> None:
  rows = tables.parse(
      argv[1:], names=_NAMES.value, evaluation=_EVALUATION.value
  )
  found = tables.fitted(tables.overview(rows))
  print('\n\n'.join(map(tables.markdown, found)))
  for line in tables.notes(rows):
    print(tables.plain(line))
  if _OUTPUT_DIR.value is not None:
    print(
        report.write(
            rows, output_dir=_OUTPUT_DIR.value, num_worst=_NUM_WORST.value
        )
    )


if __name__ == '__main__':
  launch.run(
      main, arguments='RUN', after_interrupt='the same command starts again.'
  )

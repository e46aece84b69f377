r"""Shows runs as one HTML file with pictures, several side by side.

Word errors, loss, epsilon, clipping and noise, layers, speakers, privacy
statements and configurations; the file needs no network. Figures marked `not
private` are exact and not covered by a privacy statement. The utterances with
the most errors are shown with their transcripts; --num_worst=0 leaves them out.

Example:
  python bin/report.py runs/seed runs/private --output_dir=report
"""

from tff_asr import launch  # First: quiets TensorFlow before it is loaded.

launch.begin(__name__)

from absl import flags

from tff_asr.reports import report

_OUTPUT_DIR = flags.DEFINE_string(
    'output_dir', None, 'Folder for report.html and the PNGs.'
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
flags.mark_flag_as_required('output_dir')


def main(argv) -> None:
  print(
      report.write(
          argv[1:],
          output_dir=_OUTPUT_DIR.value,
          evaluation=_EVALUATION.value,
          num_worst=_NUM_WORST.value,
      )
  )


if __name__ == '__main__':
  launch.run(
      main, arguments='RUN', after_interrupt='the same command begins anew.'
  )

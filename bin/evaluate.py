r"""Decodes a data set with a trained model and prints its word error rate.

Example:
  python bin/evaluate.py --output_file=runs/NAME/test.json \
      --gin_file=gin/experiments/quickstart_evaluate.gin \
      --gin_param="RUN = 'runs/NAME'"
"""

from tff_asr import launch  # First: quiets TensorFlow before it is loaded.

from absl import flags

from tff_asr import config
from tff_asr.programs import evaluate

_OUTPUT_FILE = flags.DEFINE_string(
    'output_file', None, 'JSON file for figures and hypotheses.'
)
_GIN_FILE = flags.DEFINE_multi_string(
    'gin_file', [], 'Configuration file; may be repeated.'
)
_GIN_PARAM = flags.DEFINE_multi_string(
    'gin_param', [], "Override such as 'RUN = \"runs/x\"'; may be repeated."
)
flags.mark_flag_as_required('output_file')


def main(_) -> None:
  evaluate_run = config.bind(
      evaluate.evaluate, gin_files=_GIN_FILE.value, gin_params=_GIN_PARAM.value
  )
  evaluate_run(output_file=_OUTPUT_FILE.value)


if __name__ == '__main__':
  launch.run(main)

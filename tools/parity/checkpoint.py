"""A checkpoint of the authors as a run's folder, to start from or to evaluate.

    python -m tools.parity.checkpoint --checkpoint=jax-model.bin \\
        --python=authors_env/bin/python --output_dir=runs/ls_central_100

`--python` is as in `tools.parity`. What follows takes the folder for a finished
run: `INIT_FROM_RUN = 'runs/ls_central_100'`, or `RUNS` of an evaluation.
"""

from tff_asr import launch  # First: quiets TensorFlow before it is loaded.

launch.install_early_sigint(__name__)

import os
import subprocess
import tempfile

from absl import app
from absl import flags
import numpy as np

from tools.parity import flax_weights

_CHECKPOINT = flags.DEFINE_string('checkpoint', None, "The authors' .bin file.")
_PYTHON = flags.DEFINE_string(
    'python', None, 'Python with the packages of requirements-parity.txt.'
)
_OUTPUT_DIR = flags.DEFINE_string('output_dir', None, 'A new folder.')
_ADDITIONAL_CHARS = flags.DEFINE_string(
    'additional_chars', '-', 'As in the configuration of their run.'
)


def main(unused_argv) -> None:
  """Converts a checkpoint."""
  for flag in (_CHECKPOINT, _PYTHON, _OUTPUT_DIR):
    if not flag.value:
      raise app.UsageError(f'--{flag.name} is needed.')
  script = os.path.join(os.path.dirname(__file__), 'jax_side.py')
  with tempfile.TemporaryDirectory() as temporary:
    arrays = os.path.join(temporary, 'model.npz')
    subprocess.run(
        [_PYTHON.value, script, 'checkpoint', _CHECKPOINT.value, arrays],
        check=True,
    )
    flax_weights.write_run(
        dict(np.load(arrays)),
        output_dir=_OUTPUT_DIR.value,
        additional_chars=_ADDITIONAL_CHARS.value,
    )


if __name__ == '__main__':
  app.run(main)

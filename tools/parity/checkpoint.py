"""A checkpoint of the authors as a run's folder, to start from or to evaluate.

    python -m tools.parity.checkpoint --checkpoint=jax-model.bin \\
        --python=authors_env/bin/python --output_dir=runs/ls_central_100

`--python` is as in `tools.parity`. What follows takes the folder for a finished
run: `INIT_FROM_RUN = 'runs/ls_central_100'`, or `RUNS` of an evaluation.
"""

from tff_asr import launch  # First: quiets TensorFlow before it is loaded.

launch.begin(__name__)

from collections.abc import Mapping
import os
import string
import subprocess
import tempfile
from typing import Any

from absl import app
from absl import flags
import numpy as np

from tff_asr.storage import run_dir
from tools.parity import flax_weights

_CHECKPOINT = flags.DEFINE_string('checkpoint', None, "The authors' .bin file.")
_PYTHON = flags.DEFINE_string(
    'python', None, 'Python with the packages of requirements-parity.txt.'
)
_OUTPUT_DIR = flags.DEFINE_string('output_dir', None, 'A new folder.')
_ADDITIONAL_CHARS = flags.DEFINE_string(
    'additional_chars', '-', 'As in the configuration of their run.'
)


def write_run(
    tree: Mapping[str, Any], *, output_dir: str, additional_chars: str = '-'
) -> None:
  """Writes the authors' parameters as a finished run's model.

  Args:
    tree: As in `flax_weights.from_flax`.
    output_dir: A new folder.
    additional_chars: Their tokens after space, apostrophe and a to z.

  Raises:
    ValueError: The head has another number of outputs than tokens and blank.
  """
  weights = flax_weights.from_flax(tree)
  tokens = f" '{string.ascii_lowercase}{additional_chars}"
  num_outputs = weights['head/kernel'].shape[1]
  if num_outputs != len(tokens) + 1:
    raise ValueError(
        f'the checkpoint has {num_outputs} outputs, not {len(tokens) + 1}: set '
        '--additional_chars.'
    )
  folder = run_dir.RunDir(output_dir, configuration='')
  folder.write_model(weights, tokens=tokens)


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
    write_run(
        dict(np.load(arrays)),
        output_dir=_OUTPUT_DIR.value,
        additional_chars=_ADDITIONAL_CHARS.value,
    )


if __name__ == '__main__':
  app.run(main)

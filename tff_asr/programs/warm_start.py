"""The model that training starts from: another run's, or the encoder of one.

A run of `central` or `federated` gives its whole model. One of `pretrain` gives
its encoder, whose weights are taken by name; the head is new, as drawn from the
run's seed, and what only pre-training needs is left behind.
"""

import os
from typing import NamedTuple

from tff_asr.models import ctc
from tff_asr.models import weights as weights_lib
from tff_asr.storage import run_dir
from tff_asr.storage import state_file


class Seed(NamedTuple):
  """Weights to start from.

  Attributes:
    weights: float32 arrays by name; of all of the model or of its encoder.
    summary: What is taken and what is new, in a line.
  """

  weights: weights_lib.Weights
  summary: str


def read(run: str, *, model: ctc.CtcModel, tokens: str) -> Seed:
  """Reads what a finished run has for a model.

  Args:
    run: The run's folder.
    model: What the weights are for.
    tokens: The characters of its tokens.

  Raises:
    ValueError: As `check`, or the file is damaged.
  """
  check(run, model=model, tokens=tokens)
  leaves = state_file.read_leaves(_path(run))
  if not run_dir.is_pretrained(run):
    return Seed(
        weights_lib.Weights(sorted(leaves.items())),
        f'{run}: all of its model is taken, {_size(model.specs)}.',
    )
  taken = model.encoder.specs
  new = weights_lib.without(taken, model.specs)
  left = weights_lib.without(taken, leaves)
  return Seed(
      weights_lib.Weights(
          (name, leaves[name]) for name in sorted(taken)
      ),
      f'{run} is pre-trained: of it the encoder is taken, {_size(taken)}; new: '
      f'{", ".join(sorted(new))} ({weights_lib.count(new):,} parameters); left '
      f'behind: {", ".join(sorted(left))}.',
  )


def check(run: str, *, model: ctc.CtcModel, tokens: str) -> None:
  """Checks that a run has weights for a model, without reading them.

  Raises:
    ValueError: As `run_dir.check_model`; or the run is pre-trained, and its
      encoder has other names or shapes: the message says which.
  """
  if not os.path.exists(_path(run)) or not run_dir.is_pretrained(run):
    run_dir.check_model(run, model=model, tokens=tokens)
    return
  shapes = run_dir.shapes(run)
  specs = model.encoder.specs
  run_dir.check_shapes(
      {name: shapes[name] for name in shapes.keys() & specs.keys()},
      specs,
      of=f'the encoder of {run}',
  )


def _path(run: str) -> str:
  return os.path.join(run, run_dir.MODEL)


def _size(specs: weights_lib.Specs) -> str:
  return f'{len(specs)} tensors with {weights_lib.count(specs):,} parameters'

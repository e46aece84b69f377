"""The model that training starts from: another run's, or the encoder of one.

A run of `central` or `federated` gives its whole model. One of `pretrain` gives
its encoder, whose weights are taken by name; the head is new, as drawn from the
run's seed, and what only pre-training needs is left behind.
"""

import os

from tff_asr.models import ctc
from tff_asr.models import weights as weights_lib
from tff_asr.storage import run_dir
from tff_asr.storage import state_file


def updated(
    weights: weights_lib.Weights,
    *,
    run: str,
    model: ctc.CtcModel,
    tokens: str,
) -> weights_lib.Weights:
  """Returns a model's first weights, with what another run has for it.

  Says in a line what is taken and what is new.

  Args:
    weights: As drawn, float32 by name.
    run: Folder of a finished run.
    model: What the weights are for.
    tokens: The characters of its tokens.

  Returns:
    Tensors by name.

  Raises:
    ValueError: As `check`, or the file is damaged.
  """
  check(run, model=model, tokens=tokens)
  leaves = state_file.read_leaves(_path(run))
  if not run_dir.is_pretrained(run):
    taken = leaves
    print(f'seed: {run}: all of its model is taken, {_size(model.specs)}.')
  else:
    specs = model.encoder.specs
    taken = {name: leaves[name] for name in specs}
    new = weights_lib.without(specs, model.specs)
    left = weights_lib.without(specs, leaves)
    print(
        f'seed: {run} is pre-trained: of it the encoder is taken, '
        f'{_size(specs)}; new: {", ".join(sorted(new))} '
        f'({weights_lib.count(new):,} parameters); left behind: '
        f'{", ".join(sorted(left))}.'
    )
  return weights_lib.to_tensors(weights_lib.updated(weights, taken))


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

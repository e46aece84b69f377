"""Warm start: the weights of another run, and the scores of its layers.

A run of `central` or `federated` gives its whole model. Adapters, low-rank
changes and public weights (`pretrained.adapted`) that it lacks begin without an
effect, so that a head that was trained on a public encoder can be trained
further with parts of that encoder. A run of `pretraining` gives its encoder,
matched by the names of the weights: the head is drawn from the new run's seed,
and weights that only pre-training needs are dropped.

A public pre-training run also writes two tables into its folder: scores of its
layers, by which `learning.layer_freeze` chooses the layers to freeze, and norms
of gradients by example, from which to choose the clip.
"""

from collections.abc import Mapping, Sequence
import csv
import dataclasses
import io
import math
import os

import numpy as np
import tensorflow as tf

from tff_asr import files
from tff_asr.learning import client_update
from tff_asr.learning import layer_freeze
from tff_asr.models import ctc
from tff_asr.models import weights as weights_lib
from tff_asr.pretrained import adapted
from tff_asr.privacy import clipping
from tff_asr.storage import model_file
from tff_asr.storage import run_dir

_SCORES = 'layer_scores.csv'
_NORMS = 'gradient_norms.csv'


def replace_weights(
    weights: weights_lib.Weights,
    *,
    run: str,
    model: ctc.CtcModel,
    tokens: str,
    public_sha256: str = '',
) -> weights_lib.Weights:
  """Returns initial weights with those that another run provides.

  A printed line says which weights are taken and which are new.

  Args:
    weights: Randomly initialized weights, float32 by name.
    run: Folder of a finished run.
    model: The model to initialize.
    tokens: Identity of its tokens; '' for further pre-training.
    public_sha256: Digest of the public model that it is built on; '': none.

  Returns:
    Tensors by name.

  Raises:
    ValueError: As `check`, or the file is damaged.
  """
  check(run, model=model, tokens=tokens, public_sha256=public_sha256)
  # `check` has compared names and shapes with the header.
  leaves = model_file.read(_path(run))
  # The line is printed: a reader of the log must see what was not trained yet.
  if not _is_of_encoder(run, tokens):
    taken = leaves
    added = _without_effect(run, model)
    of_run = weights_lib.without(added, model.specs)
    new = f'; new, and without effect at first: {_size(added)}' if added else ''
    print(f'seed: {run}: the whole model is taken, {_size(of_run)}{new}.')
  else:
    specs = model.encoder.specs
    taken = {name: leaves[name] for name in specs}
    new = weights_lib.without(specs, model.specs)
    left = weights_lib.without(specs, leaves)
    print(
        f'seed: {run} is a pre-trained encoder without a CTC head: the encoder '
        f'is taken, {_size(specs)}; new: {", ".join(sorted(new))} '
        f'({weights_lib.num_parameters(new):,} parameters); dropped: '
        f'{", ".join(sorted(left))}.'
    )
  return weights_lib.to_tensors(weights_lib.updated(weights, taken))


def extend_weights(
    run: str,
    *,
    model: ctc.CtcModel,
    tokens: str,
    public_sha256: str = '',
    seed: int = 1,
) -> weights_lib.Weights:
  """Reads a run's weights for a model that may adapt more of its encoder.

  A head that was trained on a public encoder thus gets adapters, low-rank
  changes or trained blocks (`pretrained.adapted`), which have no effect before
  they are trained. A printed line counts them.

  Args:
    run: Folder of a finished run.
    model: The model.
    tokens: Identity of its tokens.
    public_sha256: Digest of the public model that it is built on; '': none.
    seed: Seed of the initial values of the weights that the run lacks.

  Returns:
    Arrays or tensors by name.

  Raises:
    ValueError: As `run_dir.read_model`: also if the run lacks another weight.
  """
  new = _without_effect(run, model)
  weights = run_dir.read_model(
      run,
      model=_without(new, model),
      tokens=tokens,
      public_sha256=public_sha256,
  )
  if not new:
    return weights
  print(f'{run}: new, and without effect at first: {_size(new)}.')
  # Of all weights, as a weight's value depends on its name alone.
  initial = weights_lib.initialize(
      model.specs, tf.constant(weights_lib.seed_pair(seed))
  )
  return weights_lib.to_tensors(weights_lib.updated(initial, weights))


def check(
    run: str, *, model: ctc.CtcModel, tokens: str, public_sha256: str = ''
) -> None:
  """Checks that a run has weights for a model, without reading them.

  It may lack those that begin without an effect.

  Raises:
    ValueError: As `run_dir.check_model`; or a weight of the pre-trained encoder
      has another name or shape, which the message names.
  """
  if not os.path.exists(_path(run)) or not _is_of_encoder(run, tokens):
    run_dir.check_model(
        run,
        model=_without(_without_effect(run, model), model),
        tokens=tokens,
        public_sha256=public_sha256,
    )
    return
  run_dir.check_public_model(run, public_sha256)
  shapes = model_file.read_header(_path(run)).shapes
  specs = model.encoder.specs
  # Only the encoder's: pre-training has weights that the model does not take.
  run_dir.check_shapes(
      {name: shapes[name] for name in shapes.keys() & specs.keys()},
      specs,
      of=f'the encoder of {run}',
  )


def write_scores(
    run: str, squares: Mapping[str, float], *, specs: weights_lib.Specs
) -> None:
  """Writes the table of layer scores.

  Args:
    run: The run's folder.
    squares: Accumulated squared gradient norms by layer.
    specs: Specs of the layers.
  """
  scores = layer_freeze.normalize_scores(squares)
  # The table starts with the layers that change most.
  names = sorted(scores, key=scores.get, reverse=True)
  text = io.StringIO()
  table = csv.writer(text, lineterminator='\n')
  table.writerow(['layer', 'score', 'squared_norms', 'parameters'])
  for name in names:
    size = weights_lib.num_parameters({name: specs[name]})
    table.writerow([name, scores[name], squares[name], size])
  files.write_text(os.path.join(run, _SCORES), text.getvalue())


def write_norms(
    run: str,
    norms: Mapping[str, np.ndarray],
    *,
    specs: weights_lib.Specs,
    clips: Sequence[float],
) -> list[str]:
  """Writes the table of gradient norms, and the shares that clips would clip.

  The first row covers the whole model: its `global` shares are shares of
  examples, the others means over layers.

  Args:
    run: The run's folder.
    norms: float64 [N] by layer, for N examples.
    specs: Specs of the layers; none is frozen.
    clips: Values of C.

  Returns:
    The first row in words, one sentence for each clip.
  """
  names = sorted(specs)
  sizes = [math.prod(specs[name].shape) for name in names]
  # [layers, N]
  by_layer = np.stack([norms[name] for name in names])
  # Norms of layers are components of the norm of the whole gradient.
  all_norms = np.linalg.norm(by_layer, axis=0)
  # For each way to divide C, before one is chosen.
  shares = _clipped_shares(by_layer, sizes=sizes, clips=clips)
  text = io.StringIO()
  table = csv.writer(text, lineterminator='\n')
  table.writerow(
      ['layer', 'parameters', 'median', 'p90']
      + [f'global_{clip:g}' for clip in clips]
      + [f'{split}_{clip:g}' for split, clip in shares]
  )
  # The median shows the usual gradient; the p90 shows how long the tail is.
  quantiles = lambda values: list(np.quantile(values, [0.5, 0.9]))
  of_all = [float(np.mean(all_norms > clip)) for clip in clips]
  table.writerow(
      ['all', sum(sizes), *quantiles(all_norms), *of_all]
      + [np.mean(found) for found in shares.values()]
  )
  for index, name in enumerate(names):
    table.writerow(
        [name, sizes[index], *quantiles(by_layer[index])]
        # One norm of the whole model clips no single layer.
        + [''] * len(clips)
        + [found[index] for found in shares.values()]
    )
  files.write_text(os.path.join(run, _NORMS), text.getvalue())
  return [
      f'C = {clip:g} clips {share:.0%} of {len(all_norms)} public gradients; '
      + ', '.join(
          f'{np.mean(found):.0%} of their layers by {split}'
          for (split, clip_of), found in shares.items()
          if clip_of == clip
      )
      + f' (median norm {np.median(all_norms):.3g}).'
      for clip, share in zip(clips, of_all)
  ]


def _clipped_shares(
    norms: np.ndarray, *, sizes: Sequence[int], clips: Sequence[float]
) -> dict[tuple[str, float], np.ndarray]:
  """Shares of examples clipped [layers] of norms [layers, N]."""
  return {
      (split, clip): np.mean(
          norms > clip * np.array(divide(sizes))[:, np.newaxis], axis=1
      )
      for clip in clips
      for split, divide in clipping.SPLITS.items()
      # One norm of the whole model has no shares by layer.
      if divide is not None
  }


def read_scores(run: str, *, specs: weights_lib.Specs) -> dict[str, float]:
  """Returns the scores of the layers of `specs`.

  Raises:
    ValueError: The run has no table, or a layer is missing from it.
  """
  path = os.path.join(run, _SCORES)
  if not os.path.exists(path):
    raise ValueError(
        f'{run} has no {_SCORES}: layers are frozen by the scores of a public '
        'warm start that has ended.'
    )
  try:
    # The csv module needs line ends as they are.
    table = io.StringIO(files.read(path).decode(), newline='')
    rows = csv.DictReader(table, strict=True)
    scores = {row['layer']: float(row['score']) for row in rows}
  except (csv.Error, KeyError, TypeError, UnicodeDecodeError) as e:
    raise ValueError(f'{path} is damaged ({e!r}): write it again.') from e
  # The table may have more layers: those that only pre-training has.
  missing = sorted(specs.keys() - scores.keys())
  if missing:
    raise ValueError(
        f'{path} has no score of {missing[0]}: it is of another model.'
    )
  return {name: scores[name] for name in specs}


def choose_frozen_layers(
    *,
    run: str,
    model: client_update.Model,
    freeze: layer_freeze.LayerFreeze,
) -> list[str]:
  """Returns the encoder layers to freeze while clients train the model.

  Args:
    run: Folder of the public warm start of this encoder.
    model: The model; layers outside of its encoder are trained.
    freeze: Chooses among the encoder's layers.

  Raises:
    ValueError: As `read_scores`.
  """
  # Heads are new, and so have no scores.
  specs = model.encoder.specs
  return freeze.choose(read_scores(run, specs=specs), specs)


def _without_effect(run: str, model: ctc.CtcModel) -> weights_lib.Specs:
  """Specs of weights that a run lacks and that begin without an effect."""
  shapes = {}
  if os.path.exists(_path(run)):
    shapes = model_file.read_header(_path(run)).shapes
  return {
      name: spec
      for name, spec in model.specs.items()
      if name not in shapes and adapted.keeps_outputs(name, spec)
  }


def _without(specs: weights_lib.Specs, model: ctc.CtcModel) -> ctc.CtcModel:
  """The model as if it had fewer weights, to compare a run with."""
  return dataclasses.replace(
      model, specs=weights_lib.without(specs, model.specs)
  )


def _is_of_encoder(run: str, tokens: str) -> bool:
  """Whether to load the encoder only."""
  # A model without tokens is a pre-trained one: it has no CTC head.
  return bool(tokens) and not model_file.read_header(_path(run)).tokens


def _path(run: str) -> str:
  return os.path.join(run, run_dir.MODEL)


def _size(specs: weights_lib.Specs) -> str:
  size = weights_lib.num_parameters(specs)
  return f'{len(specs)} tensors with {size:,} parameters'

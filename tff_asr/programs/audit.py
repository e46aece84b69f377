"""An audit as a program: a federated run with canaries, and its epsilon.

The run is that of `federated`, with its sampling, clipping, noise and ledger.
But canary clients are among the people. They make the model useless, so it is
removed in the end.
"""

from collections.abc import Callable, Mapping
import dataclasses
import math
import os
from typing import Any

import numpy as np
import tensorflow as tf

from tff_asr import files
from tff_asr.learning import canaries as canaries_lib
from tff_asr.models import weights as weights_lib
from tff_asr.privacy import audit as audit_lib
from tff_asr.privacy import clipping as clipping_lib
from tff_asr.programs import training_loop
from tff_asr.storage import run_dir
from tff_asr.storage import state_file

# Limits how many canaries are scored at once: their directions take memory.
_VALUES_AT_ONCE = 2**26
_SUM = 'process/finalizer/gradient_sum'


async def audit(
    *,
    output_dir: str,
    configuration: str,
    build: Callable[..., training_loop.TrainingRun],
    canaries: canaries_lib.Canaries,
    clipping: clipping_lib.Clipping,
) -> dict[str, Any]:
  """Trains, and estimates epsilon from the canaries in it.

  Args:
    output_dir: The run's folder; the audit is written to audit.json in it.
    configuration: Text of the configuration.
    build: `federated.FederatedTraining` with all but the two arguments above:
      on client data by `canaries.add_canaries`, with these canaries in
      `fed_avg.build` and a server optimizer by `summing.build_summing`.
    canaries: The canaries.
    clipping: How the clip is divided over layers.

  Returns:
    What is in audit.json.

  Raises:
    ValueError: A setting is unusable, or the estimate is above the accounted
      epsilon: the run does not keep its promise.
  """
  results = await training_loop.run(
      build(output_dir=output_dir, configuration=configuration)
  )
  model = os.path.join(output_dir, run_dir.MODEL)
  if os.path.exists(model):
    os.remove(model)
  leaves = state_file.read_leaves(
      run_dir.newest_state(output_dir), prefix=_SUM
  )
  both = score(
      {name.removeprefix(f'{_SUM}/'): leaves[name] for name in leaves},
      canaries=canaries,
      clipping=clipping,
  )
  # Scores with layer weights hide a layer that is not clipped, so take the
  # larger of two bounds. Each fails one time in 40, so one of them fails at
  # most one time in 20.
  found = max(
      (
          audit_lib.estimate(each, delta=results['privacy']['delta'])
          for each in both
      ),
      key=lambda estimate: estimate.low,
  )
  accounted = float(results['privacy']['epsilon'])
  fields = {
      **dataclasses.asdict(found),
      'accounted_epsilon': results['privacy']['epsilon'],
      'exceeds_accounted': found.low > accounted,
      'rounds': results['rounds'],
      'cohort_size': results['cohort_size'],
      'population': results['population'],
  }
  files.write_json(os.path.join(output_dir, 'audit.json'), fields)
  print(
      f'audit: epsilon {found.epsilon:.3g} ({found.low:.3g} to '
      f'{found.high:.3g}) at delta {found.delta:g} by {found.num_canaries} '
      f'canaries; accounted: {accounted:.3g}'
  )
  if fields['exceeds_accounted']:
    raise ValueError(
        f'the audit found epsilon {found.low:.3g} or more, but {accounted:.3g} '
        'is accounted: clipping, noise or sampling is broken. Do not publish '
        'models of this configuration.'
    )
  return fields


def score(
    released: Mapping[str, np.ndarray],
    *,
    canaries: canaries_lib.Canaries,
    clipping: clipping_lib.Clipping,
) -> np.ndarray:
  """Returns the canaries' scores (`audit.scores`), float64 [2, num_canaries].

  With layers weighted, and without.

  Args:
    released: Sum of the released means, by the weights' names.
    canaries: All canaries of the run.
    clipping: See `audit`. A canary's tensors have equal norms before clipping.
      After it, each of a layer's K tensors has norm C_h / sqrt(K); with one
      global clip, each of all K tensors has norm C / sqrt(K).
  """
  # In the order of the model's weights.
  specs = weights_lib.Weights(
      (name, tf.TensorSpec(value.shape, tf.float32))
      for name, value in sorted(released.items())
  )
  shapes = [spec.shape for spec in specs.values()]
  # Norms after clipping, over C. Not computed by the query, which is audited.
  norms = [1 / math.sqrt(len(shapes))] * len(shapes)
  for layer in clipping.divide(specs):
    for place in layer.indices:
      if layer.share is not None:
        norms[place] = layer.share / math.sqrt(len(layer.indices))
  factors = [norm / canaries_lib.LAYER_NORM for norm in norms]

  @tf.function(autograph=False)
  def contribution(client_id):
    return [
        tf.reshape(layer * factor, [-1])
        for layer, factor in zip(canaries.update(client_id, shapes), factors)
    ]

  flat = [np.ravel(released[name]) for name in specs]
  at_once = max(1, _VALUES_AT_ONCE // sum(layer.size for layer in flat))
  ids = canaries.client_ids
  scores = []
  for start in range(0, len(ids), at_once):
    updates = [
        [layer.numpy() for layer in contribution(tf.constant(client_id))]
        for client_id in ids[start : start + at_once]
    ]
    layers = [np.stack(layer) for layer in zip(*updates)]
    scores.append([
        audit_lib.scores(flat, layers, weigh_layers=weigh_layers)
        for weigh_layers in (True, False)
    ])
  return np.concatenate(scores, axis=1)

"""What pre-training begins with: draws, frozen layers, the step and its state.

A run (`pretrain`) and the description of one (`dry_run`) begin alike.
"""

from typing import Any, NamedTuple, Optional

from absl import logging
import tensorflow_federated as tff

from tff_asr.data import client_data as client_data_lib
from tff_asr.data import examples as examples_lib
from tff_asr.data import pipeline as pipeline_lib
from tff_asr.execution import devices as devices_lib
from tff_asr.learning import dp_sgd
from tff_asr.learning import layer_freeze
from tff_asr.models import best_rq
from tff_asr.models import weights as weights_lib
from tff_asr.privacy import keys
from tff_asr.privacy import ledger as ledger_lib
from tff_asr.privacy import queries
from tff_asr.privacy import statement as statement_lib
from tff_asr.programs import layer_scores
from tff_asr.programs import private_rounds
from tff_asr.storage import run_dir


UNIT = 'example'


class Setup(NamedTuple):
  """The beginning of a run.

  Attributes:
    examples: What batches are drawn from.
    step: Takes a step.
    state: The steps' first state, with the weights of init_from_run.
    frozen: Names of the layers that stay as they are, sorted.
    devices: That share a batch.
    delta: Of epsilon.
    parent: Ledger of init_from_run's model, with its head, or None.
    inherited: What it charges.
  """

  examples: examples_lib.Examples
  step: dp_sgd.DpSgd
  state: tff.learning.templates.LearningAlgorithmState
  frozen: list[str]
  devices: tuple[str, ...]
  delta: float
  parent: Optional[tuple[str, Optional[ledger_lib.Head]]]
  inherited: ledger_lib.Charges


def build(
    *,
    model: best_rq.BestRqModel,
    pipeline: pipeline_lib.Pipeline,
    client_data: client_data_lib.SpeechClientData,
    optimizer: tff.learning.optimizers.Optimizer,
    batch_size: int,
    seed: int,
    build_query: Optional[queries.BuildQuery],
    num_vectorized: int,
    devices: Optional[list[str]],
    freeze: Optional[layer_freeze.LayerFreeze],
    init_from_run: Optional[str],
    delta: Optional[float],
    target_epsilon: Optional[float],
    sampler_seed: Optional[int],
    **unused_settings: Any,
) -> Setup:
  """Builds it from arguments of `pretrain.train`, which has checked them.

  Raises:
    ValueError: No step can be taken within the target epsilon, or the seed
      run's model or ledger is damaged.
  """
  is_private = build_query is not None
  examples = examples_lib.Examples(
      client_data,
      pipeline=pipeline,
      batch_size=batch_size,
      key=(
          keys.draw_or_fix(sampler_seed) if is_private else keys.from_seed(seed)
      ),
  )
  if delta is None:
    delta = statement_lib.default_delta(examples.sampling.population)
  frozen = []
  if freeze is not None:
    frozen = freeze.choose(layer_scores.read(init_from_run, specs=model.specs))
    logging.info('%d layers are frozen.', len(frozen))
  found_devices = devices_lib.find(devices)
  step = dp_sgd.DpSgd(
      model=model,
      optimizer=optimizer,
      batch_size=batch_size,
      seed=seed,
      build_query=build_query,
      num_vectorized=num_vectorized,
      frozen=frozen,
      devices=found_devices,
  )
  state = step.initialize()
  parent = None
  if init_from_run is not None:
    weights = run_dir.read_model(init_from_run, model=model, tokens='')
    state = state._replace(global_model_weights=weights_lib.to_tensors(weights))
    parent = run_dir.ledger_of_model(init_from_run)
  inherited = ledger_lib.inherited_charges(parent, unit=UNIT)
  if is_private:
    private_rounds.check_first_round(
        state,
        sampling=examples.sampling,
        delta=delta,
        target_epsilon=target_epsilon,
        inherited=inherited,
    )
  return Setup(
      examples, step, state, frozen, found_devices, delta, parent, inherited
  )

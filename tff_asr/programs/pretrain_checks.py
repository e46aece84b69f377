"""What is checked of pre-training's settings before its first step."""

from typing import Optional


from tff_asr import checks
from tff_asr.data import client_data as client_data_lib
from tff_asr.data import examples as examples_lib
from tff_asr.data import pipeline as pipeline_lib
from tff_asr.execution import devices as devices_lib
from tff_asr.learning import layer_freeze
from tff_asr.models import best_rq
from tff_asr.privacy import keys
from tff_asr.privacy import queries
from tff_asr.programs import layer_scores
from tff_asr.programs import preflight
from tff_asr.storage import run_dir


def _check_counts(
    batch_size: int,
    num_steps: int,
    num_vectorized: int,
    evaluate_every: int,
    save_every: int,
) -> None:
  checks.positive_int(**locals())


def _check_seeds(
    seed: int, noise_seed: Optional[int], sampler_seed: Optional[int]
) -> None:
  given = dict(seed=seed, noise_seed=noise_seed, sampler_seed=sampler_seed)
  checks.non_negative_int(
      **{name: value for name, value in given.items() if value is not None}
  )


def _check_target(
    build_query: Optional[queries.BuildQuery],
    target_epsilon: Optional[float],
) -> None:
  """What is charged can come to a target."""
  if build_query is None and target_epsilon is not None:
    raise ValueError(
        f'target_epsilon is {target_epsilon}, but without a query nothing is '
        'private or charged: add a file of gin/privacy, or set it to None.'
    )


def _check_devices(devices: Optional[list[str]]) -> None:
  devices_lib.find(devices)


def _check_batch_size(
    client_data: client_data_lib.SpeechClientData,
    pipeline: pipeline_lib.Pipeline,
    batch_size: int,
) -> None:
  """Batches can be drawn from these speakers."""
  examples_lib.Examples(
      client_data,
      pipeline=pipeline,
      batch_size=batch_size,
      key=keys.from_seed(0),
  )


def _check_freeze(
    freeze: Optional[layer_freeze.LayerFreeze],
    init_from_run: Optional[str],
    model: best_rq.BestRqModel,
) -> None:
  """There are scores to freeze by."""
  if freeze is None:
    return
  if init_from_run is None:
    raise ValueError(
        'freeze needs the scores of a public warm start: set init_from_run to its '
        'folder.'
    )
  freeze.choose(layer_scores.read(init_from_run, specs=model.specs))


def _check_seed_run(
    init_from_run: Optional[str], model: best_rq.BestRqModel
) -> None:
  """The model that training starts from is there and fits."""
  if init_from_run is not None:
    run_dir.check_model(init_from_run, model=model, tokens='')


CHECKS = (
    _check_counts,
    _check_seeds,
    _check_target,
    _check_devices,
    _check_batch_size,
    _check_freeze,
    _check_seed_run,
    preflight.check_delta,
    preflight.check_durations,
    preflight.check_keeping,
    preflight.check_seed_run_is_another,
    preflight.check_output_dir,
)

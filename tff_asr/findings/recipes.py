"""How the runs of the findings on AN4 are trained: what their groups share.

Noise is stated as (noise norm) / C of the noise on the mean, sqrt(D) z / S, for
D parameters, S clients a round and noise multiplier z: the 3e-6 and 10e-6 of
https://arxiv.org/abs/2310.00098 come to .05 and .16.
"""

from collections.abc import Callable, Iterable, Sequence
import math

from tff_asr.findings import experiments

# Parameters of gin/experiments/an4_common.gin's model, and the recipe's cohort.
NUM_PARAMETERS = 443_744
COHORT_SIZE = 8
# Names of clips to the ends of experiments' names.
CLIPS = {
    'global': 'global',
    'uniform': 'per_layer_uniform',
    'dim': 'per_layer_dim',
}
THREE = (1, 2, 3)

SEED = experiments.Recipe(
    name='seed',
    program=experiments.CENTRAL,
    experiment='an4_seed',
    speakers='public',
)
FEDERATED = experiments.Recipe(
    name='federated',
    program=experiments.FEDERATED,
    experiment='an4_federated',
    parent=SEED,
)
SHORT_SEED = SEED.having('seed_300', NUM_STEPS=300)
FROM_SHORT_SEED = FEDERATED.but('from_seed_300', parent=SHORT_SEED)
SEED_ROW = experiments.Row(
    label='seed', recipe=SEED, seeds=(None,), series=None
)
NO_DP_ROW = experiments.Row(
    label='no DP', recipe=FEDERATED, seeds=THREE, against='seed', series=None
)
SHORT_SEED_ROW = experiments.Row(
    label='short seed', recipe=SHORT_SEED, seeds=(None,), series=None
)


def text(noise: float) -> str:
  """'.05' of 0.05, '1.6' of 1.6."""
  return f'{noise:g}'.removeprefix('0')


def noise_multiplier(
    noise: float, *, num_parameters: int = NUM_PARAMETERS
) -> float:
  """z of a (noise norm) / C at the recipe's cohort, to two digits."""
  return float(f'{noise * COHORT_SIZE / math.sqrt(num_parameters):.2g}')


def private(clip: str, noise: float) -> experiments.Recipe:
  """Federated training with a clip and noise."""
  return FEDERATED.but(
      f'{CLIPS[clip]}_{noise:g}',
      experiment=f'an4_dp_{CLIPS[clip]}',
      settings={'NOISE_MULTIPLIER': noise_multiplier(noise)},
  )


def private_rows(
    noises: Iterable[float],
    *,
    recipe: Callable[[str, float], experiments.Recipe] = private,
) -> tuple[experiments.Row, ...]:
  """A row a noise and clip, three seeds; per-layer ones beside the global one.

  To be had with a row called 'no DP'.

  Args:
    noises: (noise norm) / C.
    recipe: Makes the recipe of a clip and noise.
  """
  return tuple(
      experiments.Row(
          label=f'{clip}, {text(noise)}',
          recipe=recipe(clip, noise),
          seeds=THREE,
          against='no DP' if clip == 'global' else f'global, {text(noise)}',
          series=clip,
          x=noise,
      )
      for noise in noises
      for clip in CLIPS
  )


def minus(first: Sequence[str], second: Sequence[str]) -> dict[str, float]:
  """Weights of a claim: the mean of some rows minus that of others."""
  return {label: 1 / len(first) for label in first} | {
      label: -1 / len(second) for label in second
  }

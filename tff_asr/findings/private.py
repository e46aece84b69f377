"""Findings about privacy: the table of the README, and groups c, h and i."""

from tff_asr.findings import experiments
from tff_asr.findings import recipes as recipes

TABLE = experiments.Group(
    name='table',
    title='Without and with differential privacy',
    question=(
        'A seed model learns from 28 public speakers; from it, 32 private '
        'speakers train federatedly (80 rounds of 8 expected clients, 2 local '
        'steps each) without DP, and with global and per-layer clipping at '
        'equal noise.'
    ),
    rows=(
        recipes.SEED_ROW,
        recipes.NO_DP_ROW,
        *recipes.private_rows((0.05, 0.16)),
    ),
    columns=('minus seed', 'epsilon', 'MB', 'seconds'),
    claims=(
        experiments.Claim(
            'Federated training improves on the seed model.',
            recipes.minus(['no DP'], ['seed']),
            -1,
        ),
    ),
)

_NOISES = (0.05, 0.16, 0.5, 1.6)
# (C / sqrt(D)) / epsilon is .63 in the paper; with this epsilon, here, too.
_LARGE_EPSILON = 2.4e-5


def _labels(clip: str) -> list[str]:
  return [f'{clip}, {recipes.text(noise)}' for noise in _NOISES]


def _large_epsilon_row(clip: str) -> experiments.Row:
  """A row with LAMB in the regime that it has in the paper."""
  recipe = recipes.private(clip, 0.5)
  return experiments.Row(
      label=f'{clip}, .5, large epsilon',
      recipe=recipe.having(
          f'{recipe.name}_large_epsilon', LAMB_EPSILON=_LARGE_EPSILON
      ),
      against=None if clip == 'global' else 'global, .5, large epsilon',
      series=f'{clip}, large epsilon',
      x=0.5,
  )


NOISE = experiments.Group(
    name='c',
    title='(c) Noise and clipping',
    question=(
        'The paper: with global clipping, noise of .05 and .16 costs much of '
        'the gain; with per-layer clipping, far less. Here: three clips at '
        'equal noise multipliers, from .05 to 1.6.'
    ),
    rows=(
        recipes.SEED_ROW,
        recipes.NO_DP_ROW,
        *recipes.private_rows(_NOISES),
        *map(_large_epsilon_row, recipes.CLIPS),
    ),
    x_label='(noise norm) / C',
    columns=('noise / signal', 'epsilon'),
    claims=(
        experiments.Claim(
            'With global clipping, noise of .16 costs.',
            recipes.minus(['global, .16'], ['no DP']),
            1,
        ),
        experiments.Claim(
            'With global clipping, noise of 1.6 costs.',
            recipes.minus(['global, 1.6'], ['no DP']),
            1,
        ),
        experiments.Claim(
            'Uniform clipping is ahead of global, all noises together.',
            recipes.minus(_labels('uniform'), _labels('global')),
            -1,
        ),
        experiments.Claim(
            'Dim clipping is ahead of global, all noises together.',
            recipes.minus(_labels('dim'), _labels('global')),
            -1,
        ),
        experiments.Claim(
            'Dim clipping is ahead of global with a large LAMB epsilon.',
            recipes.minus(
                ['dim, .5, large epsilon'], ['global, .5, large epsilon']
            ),
            -1,
        ),
    ),
    remark=(
        'Of sizes: a delta clipped to C = .01 has at most C / sqrt(D) = 1.5e-5 '
        "a coordinate (root mean square) here, 15 times LAMB's epsilon of "
        "1e-6; at the paper's 255M parameters it has 6.3e-7, less than "
        'epsilon. There LAMB is nearly momentum with a norm per tensor, here '
        'it divides each coordinate by its own size. The rows with a large '
        "epsilon, 2.4e-5, have the paper's ratio. Of gains: noise can only "
        'take away what training gains without it, two points here, hardly '
        'more than a seed changes; (i) has more.'
    ),
)

_MORE_NOISES = (0.5, 1.6)


def _from_short_seed(clip: str, noise: float) -> experiments.Recipe:
  """Federated training with a clip and noise, from the short seed model."""
  recipe = recipes.private(clip, noise)
  return recipe.but(
      f'{recipes.FROM_SHORT_SEED.name}_{recipe.name}',
      parent=recipes.SHORT_SEED,
  )


_FROM_SHORT_SEED_ROW = experiments.Row(
    label='no DP',
    recipe=recipes.FROM_SHORT_SEED,
    seeds=recipes.THREE,
    against='short seed',
    series=None,
)
MORE_TO_LEARN = experiments.Group(
    name='i',
    title='(i) Noise and clipping where there is more to learn',
    question=(
        'As (c), with the larger noises, from a seed model of 300 instead of '
        '1,500 steps, from which training without DP gains several times as '
        'much: the seed model of (c) leaves little that noise could take away.'
    ),
    rows=(
        recipes.SHORT_SEED_ROW,
        _FROM_SHORT_SEED_ROW,
        *recipes.private_rows(_MORE_NOISES, recipe=_from_short_seed),
    ),
    x_label='(noise norm) / C',
    columns=('noise / signal', 'epsilon'),
    claims=(
        *(
            experiments.Claim(
                f'From a short seed, noise of {recipes.text(n)} with global '
                'clipping costs.',
                recipes.minus([f'global, {recipes.text(n)}'], ['no DP']),
                1,
            )
            for n in _MORE_NOISES
        ),
        *(
            experiments.Claim(
                f'From a short seed, {clip} clipping is ahead of global, both '
                'noises together.',
                recipes.minus(
                    [f'{clip}, {recipes.text(n)}' for n in _MORE_NOISES],
                    [f'global, {recipes.text(n)}' for n in _MORE_NOISES],
                ),
                -1,
            )
            for clip in ('uniform', 'dim')
        ),
    ),
)

# Noise on the mean, and clients a round by their local steps.
_SIGMAS = (0.00024, 0.00075, 0.0024)
_SPLITS = ((2, 8), (4, 4), (8, 2), (16, 1))


def _split_row(
    sigma: float, cohort_size: int, num_steps: int
) -> experiments.Row:
  """A row of a cohort and local steps at a noise on the mean."""
  label = f'{cohort_size} x {num_steps}'
  return experiments.Row(
      label=f'{label}, {sigma:g}',
      recipe=recipes.FEDERATED.but(
          f'split_{cohort_size}x{num_steps}_{sigma:g}',
          experiment='an4_dp_per_layer_dim',
          settings={
              'COHORT_SIZE': cohort_size,
              'BUILD_COHORTS': '@cohorts.fixed_size',
              'NUM_LOCAL_STEPS': num_steps,
              'NOISE_MULTIPLIER': float(f'{sigma * cohort_size:.3g}'),
          },
      ),
      against=None if cohort_size == 2 else f'2 x 8, {sigma:g}',
      series=f'{sigma:g} on the mean',
      x=cohort_size,
  )


SPLIT = experiments.Group(
    name='h',
    title='(h) Cohort against local steps at one epsilon',
    question=(
        'The paper: larger cohorts always help, and epsilon is that of a '
        'deployment with the same noise on the mean. Here: 16 local steps a '
        'round, by few clients or by many, with dim clipping and the same '
        'noise on the mean, so at the same extrapolated epsilon. Cohorts have '
        'a fixed size, since large ones hardly vary.'
    ),
    rows=(
        recipes.SEED_ROW,
        recipes.NO_DP_ROW,
        *(
            _split_row(sigma, *split)
            for sigma in _SIGMAS
            for split in _SPLITS
        ),
    ),
    x_label='clients a round, among whom 16 local steps are divided',
    columns=('noise / signal', 'deployed', 'MB'),
    deployment=(2_000, 1_000_000),
    claims=(
        *(
            experiments.Claim(
                f'At a noise on the mean of {sigma:g}, 16 clients of a step '
                'are ahead of 2 of eight.',
                recipes.minus([f'16 x 1, {sigma:g}'], [f'2 x 8, {sigma:g}']),
                -1,
            )
            for sigma in _SIGMAS
        ),
        experiments.Claim(
            'All noises together, 8 and 16 clients are ahead of 2.',
            recipes.minus(
                [f'{n}, {sigma:g}' for sigma in _SIGMAS
                 for n in ('8 x 2', '16 x 1')],
                [f'2 x 8, {sigma:g}' for sigma in _SIGMAS],
            ),
            -1,
        ),
    ),
)

"""Findings about other architectures and sizes: groups f and g."""

from collections.abc import Sequence

from tff_asr.findings import experiments
from tff_asr.findings import recipes as recipes


def _family(
    name: str,
    model: experiments.Model,
    *,
    clips: Sequence[str],
    noises: Sequence[float],
    num_parameters: int = recipes.NUM_PARAMETERS,
) -> tuple[experiments.Row, ...]:
  """Rows of a model: its seed, no DP, and clips with noise.

  Args:
    name: The model's.
    model: The model.
    clips: The clips.
    noises: (noise norm) / C, if the model has `num_parameters`.
    num_parameters: By default the base model's: noise multipliers are its.
  """
  seed = recipes.SEED.but(f'{name}_seed', model=model)
  base = recipes.FEDERATED.but(f'{name}_federated', model=model, parent=seed)
  rows = [
      experiments.Row(
          label=f'{name}, seed',
          recipe=seed,
          seeds=(None,),
          series='seed',
          x=name,
      ),
      experiments.Row(
          label=f'{name}, no DP',
          recipe=base,
          against=f'{name}, seed',
          series='no DP',
          x=name,
      ),
  ]
  for noise in noises:
    multiplier = recipes.noise_multiplier(noise, num_parameters=num_parameters)
    for clip in clips:
      other = recipes.private(clip, noise)
      series = f'{clip}, {recipes.text(noise)}'
      rows.append(
          experiments.Row(
              label=f'{name}, {series}',
              recipe=other.but(
                  f'{name}_{other.name}',
                  model=model,
                  parent=seed,
                  settings={'NOISE_MULTIPLIER': multiplier},
              ),
              against=(
                  f'{name}, no DP'
                  if clip == 'global'
                  else f'{name}, global, {recipes.text(noise)}'
              ),
              series=series,
              x=name,
          )
      )
  return tuple(rows)


# About as many parameters as the transformer.
_CONV = experiments.Model(
    gin_files=('gin/models/conv.gin',), settings={'DIM': 80, 'NUM_BLOCKS': 4}
)
_ARCHITECTURE_NOISES = (0.16, 1.6)


def _ahead(name: str) -> experiments.Claim:
  """The claim that dim clipping is ahead of global at a model."""
  labels = [recipes.text(noise) for noise in _ARCHITECTURE_NOISES]
  return experiments.Claim(
      f'{name}: dim clipping is ahead of global, both noises together.',
      recipes.minus(
          [f'{name}, dim, {label}' for label in labels],
          [f'{name}, global, {label}' for label in labels],
      ),
      -1,
  )


ARCHITECTURES = experiments.Group(
    name='f',
    title='(f) Clipping other architectures',
    question=(
        "The paper's open question: does per-layer clipping help models other "
        'than transformers? Here: gated convolutions (4 blocks of width 80, '
        '452,032 parameters) with a seed model of their own, at the same '
        '(noise norm) / C.'
    ),
    rows=_family(
        'conv',
        _CONV,
        clips=('global', 'dim'),
        noises=_ARCHITECTURE_NOISES,
        num_parameters=452_032,
    ),
    x_label='architecture',
    columns=('noise / signal', 'MB', 'seconds'),
    claims=(_ahead('conv'),),
)

_SIZES = {
    'narrow': {'DIM': 64, 'MLP_DIM': 256},
    'shallow': {'NUM_BLOCKS': 1},
    'wide': {'DIM': 144, 'MLP_DIM': 576},
    'deep': {'NUM_BLOCKS': 7},
}
_SIZE_NOISE = 0.5
_SIZE_CLIPS = ('global', 'uniform')


def _base_rows() -> tuple[experiments.Row, ...]:
  """The rows of the base model, whose runs other groups have, too."""
  rows = {'seed': recipes.SEED, 'no DP': recipes.FEDERATED}
  for clip in _SIZE_CLIPS:
    series = f'{clip}, {recipes.text(_SIZE_NOISE)}'
    rows[series] = recipes.private(clip, _SIZE_NOISE)
  against = {
      'no DP': 'base, seed',
      'global, .5': 'base, no DP',
      'uniform, .5': 'base, global, .5',
  }
  return tuple(
      experiments.Row(
          label=f'base, {series}',
          recipe=recipe,
          seeds=(None,) if recipe is recipes.SEED else (1,),
          against=against.get(series),
          series=series,
          x='base',
      )
      for series, recipe in rows.items()
  )


SIZES = experiments.Group(
    name='g',
    title='(g) Width and depth',
    question=(
        'The paper: at one noise multiplier, wide and deep models lose less to '
        'global clipping than the base model, and per-layer clipping is ahead '
        'but for the deep one. Here: half and twice the parameters by width '
        'and by depth (narrow 222,112, shallow 221,792, base 443,744, wide '
        "914,432, deep 887,648), at the base model's noise multiplier for .5."
    ),
    rows=(
        *_base_rows(),
        *(
            row
            for name, settings in _SIZES.items()
            for row in _family(
                name,
                experiments.Model(settings=settings),
                clips=_SIZE_CLIPS,
                noises=(_SIZE_NOISE,),
            )
        ),
    ),
    x_label='size',
    columns=('noise / signal', 'MB', 'seconds'),
    claims=(
        *(
            experiments.Claim(
                f'{name}: noise with global clipping costs less than at base.',
                {
                    f'{name}, global, .5': 1,
                    f'{name}, no DP': -1,
                    'base, global, .5': -1,
                    'base, no DP': 1,
                },
                -1,
            )
            for name in ('wide', 'deep')
        ),
        experiments.Claim(
            'Uniform clipping is ahead of global, all sizes together.',
            recipes.minus(
                [f'{name}, uniform, .5' for name in ('base', *_SIZES)],
                [f'{name}, global, .5' for name in ('base', *_SIZES)],
            ),
            -1,
        ),
    ),
)

"""The federated paper's findings in miniature on AN4: its runs and claims.

Noise is stated as (noise norm) / C of the noise on the mean, sqrt(D) z / S, for
D parameters, S clients a round and noise multiplier z: the 3e-6 and 10e-6 of
https://arxiv.org/abs/2310.00098 come to .05 and .16.
"""

from collections.abc import Callable, Iterable, Sequence
import math

from experiments import design

# How the speakers are divided.
_PARTITION = 'public=28,private=rest,dev=4,test=10'

# Parameters of gin/experiments/an4_common.gin's model, and the recipe's cohort.
_NUM_PARAMETERS = 443_744
_COHORT_SIZE = 8
_FIXED = {'BUILD_COHORTS': '@cohorts.fixed_size'}
# Names of clips to the ends of experiments' names.
_CLIPS = {
    'global': 'global',
    'uniform': 'per_layer_uniform',
    'dim': 'per_layer_dim',
}
_THREE = (1, 2, 3)

_SEED = design.Recipe(
    name='seed',
    program=design.CENTRAL,
    experiment='an4_seed',
    speakers='public',
)
_FEDERATED = design.Recipe(
    name='federated',
    program=design.FEDERATED,
    experiment='an4_federated',
    parent=_SEED,
)
_SHORT_SEED = _SEED.but('seed_300', {'NUM_STEPS': 300})
_FROM_SHORT_SEED = _FEDERATED.but('from_seed_300', parent=_SHORT_SEED)
_SEED_ROW = design.Row('seed', _SEED, seeds=(None,), series=None)
_NO_DP_ROW = design.Row(
    'no DP', _FEDERATED, seeds=_THREE, against='seed', series=None
)
_SHORT_SEED_ROW = design.Row(
    'short seed', _SHORT_SEED, seeds=(None,), series=None
)


def _text(noise: float) -> str:
  """'.05' of 0.05, '1.6' of 1.6."""
  return f'{noise:g}'.removeprefix('0')


def noise_multiplier(
    noise: float, *, num_parameters: int = _NUM_PARAMETERS
) -> float:
  """z of a (noise norm) / C at the recipe's cohort, to two digits."""
  return float(f'{noise * _COHORT_SIZE / math.sqrt(num_parameters):.2g}')


def _private(clip: str, noise: float) -> design.Recipe:
  """Federated training with a clip and noise."""
  return _FEDERATED.but(
      f'{_CLIPS[clip]}_{noise:g}',
      {'NOISE_MULTIPLIER': noise_multiplier(noise)},
      experiment=f'an4_dp_{_CLIPS[clip]}',
  )


def _private_rows(
    noises: Iterable[float],
    *,
    recipe: Callable[[str, float], design.Recipe] = _private,
) -> list[design.Row]:
  """A row a noise and clip, beside a row called 'no DP'.

  Args:
    noises: (noise norm) / C.
    recipe: Makes the recipe of a clip and noise.
  """
  return [
      design.Row(
          f'{clip}, {_text(noise)}',
          recipe(clip, noise),
          seeds=_THREE,
          against='no DP' if clip == 'global' else f'global, {_text(noise)}',
          series=clip,
          x=noise,
      )
      for noise in noises
      for clip in _CLIPS
  ]


def _claim(
    text: str,
    first: str | Sequence[str],
    expected: int,
    second: str | Sequence[str],
) -> design.Claim:
  """The mean of some rows minus that of others has the expected sign."""
  first, second = (
      [each] if isinstance(each, str) else each for each in (first, second)
  )
  weights = {label: 1 / len(first) for label in first} | {
      label: -1 / len(second) for label in second
  }
  return design.Claim(text, weights, expected)


_TABLE = design.Group(
    name='table',
    title='Without and with differential privacy',
    question=(
        'A seed model learns from 28 public speakers; from it, 32 private '
        'speakers train federatedly (80 rounds of 8 expected clients, 2 local '
        'steps each) without DP, and with global and per-layer clipping at '
        'equal noise.'
    ),
    rows=(_SEED_ROW, _NO_DP_ROW, *_private_rows((0.05, 0.16))),
    columns=('minus seed', 'epsilon', 'MB', 'seconds'),
    claims=(
        _claim(
            'Federated training improves on the seed model.',
            'no DP', -1, 'seed',
        ),
    ),
)

_COHORTS = (1, 2, 4, 8, 16)
# Utterances of 80 rounds of one client, in central batches.
_STEPS_PER_CLIENT = 74


def _cohort_rows(cohort_size: int) -> tuple[design.Row, design.Row]:
  """Central training, and federated training with a cohort beside it."""
  num_steps = _STEPS_PER_CLIENT * cohort_size
  central = design.Row(
      f'central, as {cohort_size}',
      design.Recipe(
          name=f'central_{cohort_size}',
          program=design.CENTRAL,
          experiment='an4_central',
          settings={
              'NUM_STEPS': num_steps,
              'EVALUATE_EVERY': num_steps,
              'DECAY_START': num_steps // 2,
              'DECAY_STEPS': num_steps // 4,
          },
          parent=_SEED,
      ),
      seeds=_THREE,
      rates=(0.0003, 0.001, 0.003),
      against='seed',
      series='central',
      x=cohort_size,
  )
  federated = design.Row(
      f'federated, {cohort_size}',
      _FEDERATED.but(
          f'cohort_{cohort_size}', {'COHORT_SIZE': cohort_size, **_FIXED}
      ),
      seeds=_THREE,
      against=central.label,
      series='federated',
      x=cohort_size,
  )
  return central, federated


_FIRST_GAP = {'federated, 1': 1, 'central, as 1': -1}
_LAST_GAP = {'federated, 16': 1, 'central, as 16': -1}
_COHORT = design.Group(
    name='a',
    title='(a) Federated training approaches central training',
    question=(
        'The paper: without DP the gap to central training is large at 8 '
        'clients a round and gone at 256. Here: cohorts of fixed size from 1 '
        'to 16 (half of them), against central training (Adam) continued from '
        'the same seed model on the same 32 speakers for about as many '
        'utterances. The federated recipe is the same for all cohorts; central '
        'training takes the best of three rates on the dev speakers at each '
        'length.'
    ),
    rows=(
        _SEED_ROW,
        *(row for size in _COHORTS for row in _cohort_rows(size)),
    ),
    x_label='clients a round',
    columns=('rate', 'utterances', 'MB', 'seconds'),
    claims=(
        design.Claim('Federated training is behind at 1.', _FIRST_GAP, 1),
        design.Claim('The gap is gone at 16.', _LAST_GAP, 0),
        design.Claim(
            'The gap at 1 is larger than at 16.',
            _FIRST_GAP | {label: -n for label, n in _LAST_GAP.items()},
            1,
        ),
        _claim(
            'Federated training at 1 is behind the longest central training.',
            'federated, 1', 1, 'central, as 16',
        ),
        _claim(
            'That gap is larger at 1 than at 4.',
            'federated, 1', 1, 'federated, 4',
        ),
        _claim(
            'That gap is larger at 1 than at 16.',
            'federated, 1', 1, 'federated, 16',
        ),
    ),
    remark=(
        'Two gaps: to central training after as many utterances, and to the '
        'longest central training, as in the paper, whose central model is one '
        'for all cohorts. The second one can only shrink as the cohort grows. '
        'The first one need not: federated training takes 80 steps of the '
        'server whatever its cohort, central training 74 steps more with each '
        'client, 1,184 at 16.'
    ),
)


def _optimizer_row(label: str, *rates: float) -> design.Row:
  """A server optimizer with rates to choose from."""
  name = label.lower()
  return design.Row(
      label,
      _FEDERATED.but(
          f'server_{name}', gin_files=(f'gin/optimizers/{name}.gin',)
      ),
      rates=rates,
      against=None if label == 'LAMB' else 'LAMB',
      x=label,
  )


_OPTIMIZERS = design.Group(
    name='b',
    title='(b) Server optimizers',
    question=(
        'The paper: from scratch LAMB is far ahead; from a seed model Adam and '
        'LARS come out level with it, SGD behind. Here: from the seed model, '
        'without DP, each at the best of four rates on the dev speakers.'
    ),
    rows=(
        _optimizer_row('LAMB', 0.003, 0.006, 0.012, 0.024),
        _optimizer_row('LARS', 0.5, 1.0, 2.0, 4.0),
        _optimizer_row('Adam', 0.0001, 0.0003, 0.001, 0.003),
        _optimizer_row('SGD', 0.5, 1.0, 2.0, 4.0),
    ),
    x_label='server optimizer',
    columns=('rate', 'tried', 'seconds'),
    claims=(
        _claim('LAMB is ahead of SGD.', 'LAMB', -1, 'SGD'),
        _claim('LAMB and Adam are level.', 'LAMB', 0, 'Adam'),
        _claim('LAMB and LARS are level.', 'LAMB', 0, 'LARS'),
    ),
)

_NOISES = (0.05, 0.16, 0.5, 1.6)
# (C / sqrt(D)) / epsilon is .63 in the paper; with this epsilon, here, too.
_LARGE_EPSILON = 2.4e-5


def _labels(clip: str, noises: Sequence[float]) -> list[str]:
  return [f'{clip}, {_text(noise)}' for noise in noises]


def _large_epsilon_row(clip: str) -> design.Row:
  """A row with LAMB in the regime that it has in the paper."""
  recipe = _private(clip, 0.5)
  return design.Row(
      f'{clip}, .5, large epsilon',
      recipe.but(
          f'{recipe.name}_large_epsilon', {'LAMB_EPSILON': _LARGE_EPSILON}
      ),
      against=None if clip == 'global' else 'global, .5, large epsilon',
      series=f'{clip}, large epsilon',
      x=0.5,
  )


_NOISE = design.Group(
    name='c',
    title='(c) Noise and clipping',
    question=(
        'The paper: with global clipping, noise of .05 and .16 costs much of '
        'the gain; with per-layer clipping, far less. Here: three clips at '
        'equal noise multipliers, from .05 to 1.6.'
    ),
    rows=(
        _SEED_ROW,
        _NO_DP_ROW,
        *_private_rows(_NOISES),
        *map(_large_epsilon_row, _CLIPS),
    ),
    x_label='(noise norm) / C',
    columns=('noise / signal', 'epsilon'),
    claims=(
        _claim(
            'With global clipping, noise of .16 costs.',
            'global, .16', 1, 'no DP',
        ),
        _claim(
            'With global clipping, noise of 1.6 costs.',
            'global, 1.6', 1, 'no DP',
        ),
        *(
            _claim(
                f'{clip.capitalize()} clipping is ahead of global, all noises '
                'together.',
                _labels(clip, _NOISES), -1, _labels('global', _NOISES),
            )
            for clip in ('uniform', 'dim')
        ),
        _claim(
            'Dim clipping is ahead of global with a large LAMB epsilon.',
            'dim, .5, large epsilon', -1, 'global, .5, large epsilon',
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


def _work_row(
    label: str,
    *,
    steps: int | None = None,
    epochs: int | None = None,
    against: str | None = None,
) -> design.Row:
  """A row of local steps or epochs."""
  recipe = _FEDERATED.but(
      f'work_{label.replace(" ", "_")}',
      {'NUM_LOCAL_STEPS': steps, 'NUM_LOCAL_EPOCHS': epochs},
  )
  return design.Row(label, recipe, against=against, x=label)


_WORK = design.Group(
    name='d',
    title='(d) Local steps against local epochs',
    question=(
        'The paper: at 64 clients a round, 10 epochs are ahead of 10 steps. '
        'Here: without DP, steps against epochs of about as much work (an '
        'epoch is 2 to 4 batches of 20 s).'
    ),
    rows=(
        _work_row('3 steps', steps=3),
        _work_row('1 epoch', epochs=1, against='3 steps'),
        _work_row('6 steps', steps=6),
        _work_row('2 epochs', epochs=2, against='6 steps'),
    ),
    x_label='local work',
    columns=('utterances', 'seconds'),
    claims=(
        _claim(
            'Epochs are ahead of steps.',
            ['1 epoch', '2 epochs'], -1, ['3 steps', '6 steps'],
        ),
    ),
    remark=(
        "AN4's speakers have about equal amounts of speech (21 to 61 s, 9 to "
        '14 utterances), so both do about the same; those of Common Voice have '
        'seconds to hours.'
    ),
)

_SCRATCH = _FEDERATED.but(
    'scratch',
    {'INIT_FROM_RUN': None, 'CLIENT_LEARNING_RATE': 0.4},
    parent=None,
)
_SEEDS = design.Group(
    name='e',
    title='(e) With and without a seed model',
    question=(
        'The paper: without a seed model, training is far behind after as many '
        'rounds; an under-trained one already helps. Here, without DP: from '
        'the seed model, from one of 300 instead of 1,500 steps, and from '
        "scratch with the clients' rate doubled, as in the paper."
    ),
    rows=(
        _SEED_ROW,
        _NO_DP_ROW,
        _SHORT_SEED_ROW,
        design.Row(
            'from short seed',
            _FROM_SHORT_SEED,
            seeds=_THREE,
            against='short seed',
            x='short seed,\n80 rounds',
        ),
        design.Row(
            'from scratch', _SCRATCH, against='no DP', x='scratch,\n80 rounds'
        ),
        design.Row(
            'from scratch, 320 rounds',
            _SCRATCH.but(
                'scratch_320',
                {'NUM_ROUNDS': 320, 'DECAY_START': 160, 'DECAY_ROUNDS': 80},
            ),
            against='no DP',
            x='scratch,\n320 rounds',
        ),
    ),
    x_label='start',
    columns=('utterances', 'seconds'),
    claims=(
        _claim(
            'After as many rounds, a seed model is ahead of none.',
            'no DP', -1, 'from scratch',
        ),
        _claim(
            'And of none after four times as many.',
            'no DP', -1, 'from scratch, 320 rounds',
        ),
        _claim(
            'An under-trained seed model is ahead of none.',
            'from short seed', -1, 'from scratch',
        ),
    ),
)


def _family(
    name: str,
    model: design.Model,
    *,
    clips: Sequence[str],
    noises: Sequence[float],
    num_parameters: int = _NUM_PARAMETERS,
) -> list[design.Row]:
  """Rows of a model: its seed, no DP, and clips with noise.

  Args:
    name: The model's.
    model: The model.
    clips: The clips.
    noises: (noise norm) / C, if the model has `num_parameters`.
    num_parameters: By default the base model's: noise multipliers are its.
  """
  seed = _SEED.but(f'{name}_seed', model=model)
  base = _FEDERATED.but(f'{name}_federated', model=model, parent=seed)
  rows = [
      design.Row(
          f'{name}, seed', seed, seeds=(None,), series='seed', x=name
      ),
      design.Row(
          f'{name}, no DP', base, against=f'{name}, seed', series='no DP',
          x=name,
      ),
  ]
  for noise in noises:
    multiplier = noise_multiplier(noise, num_parameters=num_parameters)
    for clip in clips:
      other = _private(clip, noise)
      recipe = other.but(
          f'{name}_{other.name}',
          {'NOISE_MULTIPLIER': multiplier},
          model=model,
          parent=seed,
      )
      against = 'no DP' if clip == 'global' else f'global, {_text(noise)}'
      series = f'{clip}, {_text(noise)}'
      rows.append(
          design.Row(
              f'{name}, {series}', recipe, against=f'{name}, {against}',
              series=series, x=name,
          )
      )
  return rows


# About as many parameters as the transformer.
_CONV = design.Model(
    gin_files=('gin/models/conv.gin',), settings={'DIM': 80, 'NUM_BLOCKS': 4}
)
_ARCHITECTURE_NOISES = (0.16, 1.6)
_ARCHITECTURES = design.Group(
    name='f',
    title='(f) Clipping other architectures',
    question=(
        "The paper's open question: does per-layer clipping help models other "
        'than transformers? Here: gated convolutions (4 blocks of width 80, '
        '452,032 parameters) with a seed model of their own, at the same '
        '(noise norm) / C.'
    ),
    rows=tuple(
        _family(
            'conv',
            _CONV,
            clips=('global', 'dim'),
            noises=_ARCHITECTURE_NOISES,
            num_parameters=452_032,
        )
    ),
    x_label='architecture',
    columns=('noise / signal', 'MB', 'seconds'),
    claims=(
        _claim(
            'conv: dim clipping is ahead of global, both noises together.',
            _labels('conv, dim', _ARCHITECTURE_NOISES),
            -1,
            _labels('conv, global', _ARCHITECTURE_NOISES),
        ),
    ),
    remark=(
        'A bidirectional GRU of 448,448 parameters, which the project no '
        'longer has, was measured, too: 36.4 % without DP, and with both '
        'noises together dim clipping minus global -1.3 (-4.8 to +2.1): not '
        'decided.'
    ),
)

_SIZE_MODELS = {
    'narrow': {'DIM': 64, 'MLP_DIM': 256},
    'shallow': {'NUM_BLOCKS': 1},
    'wide': {'DIM': 144, 'MLP_DIM': 576},
    'deep': {'NUM_BLOCKS': 7},
}
_SIZE_NOISE = 0.5
_SIZE_CLIPS = ('global', 'uniform')


def _base_rows() -> list[design.Row]:
  """The rows of the base model, whose runs other groups have, too."""
  recipes = {'seed': _SEED, 'no DP': _FEDERATED}
  recipes |= {
      f'{clip}, .5': _private(clip, _SIZE_NOISE) for clip in _SIZE_CLIPS
  }
  against = [None, 'base, seed', 'base, no DP', 'base, global, .5']
  return [
      design.Row(
          f'base, {series}',
          recipe,
          seeds=(None,) if recipe is _SEED else (1,),
          against=other,
          series=series,
          x='base',
      )
      for (series, recipe), other in zip(recipes.items(), against, strict=True)
  ]


_SIZES = design.Group(
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
            for name, settings in _SIZE_MODELS.items()
            for row in _family(
                name,
                design.Model(settings=settings),
                clips=_SIZE_CLIPS,
                noises=(_SIZE_NOISE,),
            )
        ),
    ),
    x_label='size',
    columns=('noise / signal', 'MB', 'seconds'),
    claims=(
        *(
            design.Claim(
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
        _claim(
            'Uniform clipping is ahead of global, all sizes together.',
            [f'{name}, uniform, .5' for name in ('base', *_SIZE_MODELS)],
            -1,
            [f'{name}, global, .5' for name in ('base', *_SIZE_MODELS)],
        ),
    ),
)

# Noise on the mean, and clients a round by their local steps.
_SIGMAS = (0.00024, 0.00075, 0.0024)
_SPLITS = ((2, 8), (4, 4), (8, 2), (16, 1))


def _split_row(
    sigma: float, cohort_size: int, num_steps: int
) -> design.Row:
  """A row of a cohort and local steps at a noise on the mean."""
  settings = {
      'COHORT_SIZE': cohort_size,
      **_FIXED,
      'NUM_LOCAL_STEPS': num_steps,
      'NOISE_MULTIPLIER': float(f'{sigma * cohort_size:.3g}'),
  }
  return design.Row(
      f'{cohort_size} x {num_steps}, {sigma:g}',
      _FEDERATED.but(
          f'split_{cohort_size}x{num_steps}_{sigma:g}',
          settings,
          experiment='an4_dp_per_layer_dim',
      ),
      against=None if cohort_size == 2 else f'2 x 8, {sigma:g}',
      series=f'{sigma:g} on the mean',
      x=cohort_size,
  )


_SPLIT = design.Group(
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
        _SEED_ROW,
        _NO_DP_ROW,
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
            _claim(
                f'At a noise on the mean of {sigma:g}, 16 clients of a step '
                'are ahead of 2 of eight.',
                f'16 x 1, {sigma:g}', -1, f'2 x 8, {sigma:g}',
            )
            for sigma in _SIGMAS
        ),
        _claim(
            'All noises together, 8 and 16 clients are ahead of 2.',
            [
                f'{split}, {sigma:g}'
                for sigma in _SIGMAS for split in ('8 x 2', '16 x 1')
            ],
            -1,
            [f'2 x 8, {sigma:g}' for sigma in _SIGMAS],
        ),
    ),
)

_MORE_NOISES = (0.5, 1.6)


def _from_short_seed(clip: str, noise: float) -> design.Recipe:
  """Federated training with a clip and noise, from the short seed model."""
  recipe = _private(clip, noise)
  return recipe.but(
      f'{_FROM_SHORT_SEED.name}_{recipe.name}', parent=_SHORT_SEED
  )


_MORE_TO_LEARN = design.Group(
    name='i',
    title='(i) Noise and clipping where there is more to learn',
    question=(
        'As (c), with the larger noises, from a seed model of 300 instead of '
        '1,500 steps, from which training without DP gains several times as '
        'much: the seed model of (c) leaves little that noise could take away.'
    ),
    rows=(
        _SHORT_SEED_ROW,
        design.Row(
            'no DP',
            _FROM_SHORT_SEED,
            seeds=_THREE,
            against='short seed',
            series=None,
        ),
        *_private_rows(_MORE_NOISES, recipe=_from_short_seed),
    ),
    x_label='(noise norm) / C',
    columns=('noise / signal', 'epsilon'),
    claims=(
        *(
            _claim(
                f'From a short seed, noise of {_text(noise)} with global '
                'clipping costs.',
                f'global, {_text(noise)}', 1, 'no DP',
            )
            for noise in _MORE_NOISES
        ),
        *(
            _claim(
                f'From a short seed, {clip} clipping is ahead of global, both '
                'noises together.',
                _labels(clip, _MORE_NOISES),
                -1,
                _labels('global', _MORE_NOISES),
            )
            for clip in ('uniform', 'dim')
        ),
    ),
)

_INTRODUCTION = """\
# The paper's findings in miniature

Written by `experiments/run.py` from what its runs' folders hold:

    python -m experiments.run --source=AN4_FOLDER             # all, 2 hours
    python -m experiments.run --source=AN4_FOLDER --groups=a,c

What was run is kept, and what is not there yet is run; with `--groups=` alone
the report is written anew. The groups of runs are data, in
`experiments/an4.py`. What self-supervised pre-training gives in miniature, with
and without differential privacy: [pretraining.md](pretraining.md#in-miniature).

The speech is AN4's training part: 74 people spelling words and reading numbers
and commands, of whom 28 are public, 32 private, 4 for tuning (dev) and 10 for
testing, whom no run heard. The model has 0.44 million parameters. A word error
rate (WER) with a standard deviation is the mean over three runs that differ in
their random seed, any other is of one run. Differences come with a 95 %
interval over the test speakers and random seeds (`contrast` in
`tff_asr/metrics/confidence.py`; {deviation}; seed models are the ones that they
are). Claims are judged by that interval: where it holds 0, nothing is decided;
they are not corrected for their number. Noise is (noise norm) / C of the noise
on the mean, sqrt(D) z / S: .05 and .16 are what the paper's 3e-6 and 10e-6 come
to. Epsilon is at delta 1 / (10 population); at 32 speakers it is no guarantee
(NOT PRIVATE). Noise / signal is the norm of the noise on the mean over that of
the clipped mean. Bytes are of a client and round, as float32. Seconds are
wall-clock time; other jobs were running. Bars of plots are standard deviations
over seeds.
"""

SUITE = design.Suite(
    name='an4',
    groups=(
        _TABLE,
        _COHORT,
        _OPTIMIZERS,
        _NOISE,
        _WORK,
        _SEEDS,
        _ARCHITECTURES,
        _SIZES,
        _SPLIT,
        _MORE_TO_LEARN,
    ),
    introduction=_INTRODUCTION,
    evaluation='an4_evaluate',
    shards='train.{}',
    data=(
        'data_tools.an4',
        '--splits=train',
        f'--partition={_PARTITION}',
        # Every run reads the same few speakers many times.
        '--encoding=log_mel',
    ),
    needs_source=True,
    command='python -m experiments.run --source=AN4_FOLDER',
    report='docs/results.md',
)

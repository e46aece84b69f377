"""The federated paper's findings on generated speech, at population scale.

Rows of the first study are runs with the guarantee that they show: nothing is
extrapolated. The other studies have a tenth of the clients and of the noise on
their sum: they compare recipes at equal noise on the mean.
"""

from collections.abc import Mapping
import dataclasses
from typing import Any, Optional

from experiments import design
from experiments import heads

# Noise multipliers; with gin/experiments/quickstart_federated_dp.gin's cohorts
# and rounds the largest epsilon is under its TARGET_EPSILON.
_NOISES = (1.2, 0.8, 0.7)
_MAIN = 0.8
_SEEDS = (1, 2, 3)

SEED = design.Recipe(
    name='seed',
    program=design.CENTRAL,
    experiment='quickstart_seed',
    # The quickstart trains longer, on four times as many speakers.
    settings={
        'NUM_STEPS': 500,
        'EVALUATE_EVERY': 250,
        'DECAY_START': 250,
        'DECAY_STEPS': 75,
    },
    speakers='public',
)
_CONTROL = design.Recipe(
    name='control',
    program=design.CENTRAL,
    experiment='quickstart_control',
    speakers='public',
    parent=SEED,
)
TWIN = design.Recipe(
    name='federated',
    program=design.FEDERATED,
    experiment='quickstart_federated',
    parent=SEED,
)
SHORT = SEED.but(
    'seed_100', {'NUM_STEPS': 100, 'EVALUATE_EVERY': 100, 'DECAY_START': 100}
)


def conv_seed(num_blocks: int, dim: int) -> design.Recipe:
  """Convolutions of another size, trained as the seed model is."""
  settings = {'NUM_BLOCKS': num_blocks, 'DIM': dim}
  return SEED.but(
      f'seed_conv_{num_blocks}_{dim}', model=design.Model(settings=settings)
  )


def _private(noise: float, clip: str) -> design.Recipe:
  """Federated training with differential privacy."""
  return TWIN.but(
      f'federated_{clip}_{noise:g}',
      {'NOISE_MULTIPLIER': noise, 'CLIP_SPLIT': repr(clip)},
      experiment='quickstart_federated_dp',
  )


def _row(
    noise: float, clip: str, against: Optional[str], series: str = ''
) -> design.Row:
  """A row that shows epsilon; by default in the clip's series."""
  return design.Row(
      f'DP, {clip}, z = {noise:g}',
      _private(noise, clip),
      seeds=_SEEDS[:1],
      against=against,
      series=series or clip,
      x=design.EPSILON,
  )


_ONE_RUN = (
    'A row is one run, so intervals cover speakers only: other cohorts and '
    'noise change a run, too, by some .6 points (next sections).'
)

_PRIVACY = design.Study(
    name='privacy',
    title='Word error rate and epsilon',
    question=(
        'A seed model learns from 16 public speakers; from it, 12,000 private '
        'speakers train federatedly with three noise multipliers, by layer, at '
        'one of them with one norm over all layers, and without clipping and '
        'noise. The control is the seed model trained on.'
    ),
    rows=(
        design.Row('seed', SEED, seeds=(None,), series=None),
        design.Row(
            'control',
            _CONTROL,
            seeds=(None,),
            against='seed',
            series=None,
        ),
        *(_row(noise, 'dim', 'control') for noise in _NOISES),
        _row(_MAIN, 'global', f'DP, dim, z = {_MAIN:g}'),
        design.Row(
            'no DP',
            TWIN,
            seeds=_SEEDS[:1],
            against=f'DP, dim, z = {_MAIN:g}',
            series=None,
        ),
    ),
    x_label='epsilon (PLD) at delta 1e-5',
    columns=('minus seed', 'epsilon', 'epsilon (RDP)'),
    claims=(
        *(
            design.Claim(
                f'With noise of {noise:g}, private speakers help more than '
                'training on.',
                {f'DP, dim, z = {noise:g}': 1, 'control': -1},
                -1,
            )
            for noise in _NOISES
        ),
        design.Claim(
            'Noise and clipping cost.',
            {f'DP, dim, z = {_MAIN:g}': 1, 'no DP': -1},
            1,
        ),
        design.Claim(
            'Clipping by layer is ahead of global clipping.',
            {f'DP, dim, z = {_MAIN:g}': 1, f'DP, global, z = {_MAIN:g}': -1},
            -1,
        ),
    ),
    remark=_ONE_RUN,
)

_HEADS = heads.recipes('quickstart', shards='whisper/{}')
# Noise multipliers of gin/experiments/quickstart_whisper_dp.gin by epsilon.
_HEAD_NOISES = {0.5: 3.03, 1: 1.86, 2: 1.24, 4: 0.884, 8: 0.644}


def _private_head(noise: float) -> design.Recipe:
  """Federated training of the head with differential privacy."""
  return _HEADS.private.but(
      f'head_dp_{noise:g}', {'NOISE_MULTIPLIER': noise}
  )


def _by_epsilon(
    model: str,
    *,
    seed: design.Recipe,
    control: design.Recipe,
    private: Mapping[str, design.Recipe],
    twin: design.Recipe,
) -> tuple[design.Row, ...]:
  """Rows of one model: the public speakers', with DP and without it."""
  control_label = f'{model}, control'
  shared = dict(against=control_label, series=model)
  return (
      design.Row(f'{model}, seed', seed, seeds=(None,), series=None),
      design.Row(
          control_label, control, seeds=(None,), against=f'{model}, seed',
          series=model, x=0.0,
      ),
      *(
          design.Row(
              f'{model}, {name}', recipe, seeds=_SEEDS[:1], x=design.EPSILON,
              **shared,
          )
          for name, recipe in private.items()
      ),
      design.Row(
          f'{model}, no DP', twin, seeds=_SEEDS[:1], x=design.EPSILON, **shared
      ),
  )


_SCRATCH, _ENCODER = 'from scratch', 'public encoder'
_START = design.Study(
    name='start',
    title='From scratch and from a public encoder, at real epsilons',
    question=(
        'The model of the other sections, and a head on the encoder of Whisper '
        'tiny.en: trained by the public speakers (seed), trained on by them '
        '(control), by the private speakers with DP, and without. In the '
        'figure the control is at epsilon 0.'
    ),
    rows=(
        *_by_epsilon(
            _SCRATCH,
            seed=SEED,
            control=_CONTROL,
            private={
                f'z = {noise:g}': _private(noise, 'dim') for noise in _NOISES
            },
            twin=TWIN,
        ),
        *_by_epsilon(
            _ENCODER,
            seed=_HEADS.seed,
            control=_HEADS.seed.but(
                'head_control',
                experiment='quickstart_whisper_control',
                parent=_HEADS.seed,
            ),
            private={
                f'z = {noise:g}': _private_head(noise)
                for noise in _HEAD_NOISES.values()
            },
            twin=_HEADS.federated,
        ),
    ),
    x_label='epsilon',
    columns=('epsilon',),
    claims=tuple(
        design.claim(
            f'{model}: with noise of {noise:g}, private speakers help more '
            'than training on.',
            f'{model}, z = {noise:g}', -1, f'{model}, control',
        )
        for model, noise in ((_SCRATCH, _MAIN), (_ENCODER, _HEAD_NOISES[4]))
    ),
    remark=_ONE_RUN,
)


def _deployable(label: str, name: str) -> design.Row:
  """A row of an experiment that sets its own noise."""
  return design.Row(
      label,
      TWIN.but(f'federated_{name}', experiment=f'quickstart_federated_{name}'),
      seeds=_SEEDS[:1],
      against=f'DP, dim, z = {_MAIN:g}',
      series=label,
      x=design.EPSILON,
  )


_DISTRIBUTED = _deployable('distributed, 16 bits', 'distributed')


def _bits(bits: int, settings: Mapping[str, Any]) -> design.Row:
  """That row in sums of that many bits."""
  label = f'distributed, {bits} bits'
  recipe = _DISTRIBUTED.recipe
  return dataclasses.replace(
      _DISTRIBUTED,
      label=label,
      recipe=recipe.but(f'{recipe.name}_{bits}', {'BITS': bits, **settings}),
      against=_DISTRIBUTED.label,
      series=label,
  )


DEPLOYMENT = design.Study(
    name='deployment',
    title='Mechanisms that devices can be asked for',
    question=(
        'Poisson sampling of devices is not possible in deployment. At about '
        'the same epsilon: independent noise with Poisson sampling, which a '
        'trusted server adds; correlated noise (BLT) for devices that wait 12 '
        'rounds; banded noise with cyclic Poisson sampling; and noise of the '
        'devices themselves, who wait 12 rounds, in secure sums of 16 bits. '
        'Then sums of other widths: at 12 bits sums must be within 3 standard '
        'deviations of the noise (MODULUS_STDDEVS), else within 4.'
    ),
    rows=(
        *(_row(noise, 'dim', None, 'Poisson') for noise in _NOISES),
        _deployable('BLT', 'blt'),
        _deployable('banded', 'banded'),
        _DISTRIBUTED,
        _bits(12, {'MODULUS_STDDEVS': 3.0}),
        _bits(20, {}),
    ),
    x_label='epsilon (PLD) at delta 1e-5',
    columns=('epsilon', 'epsilon (RDP)'),
    claims=(
        design.Claim(
            'Without sampling, independent noise of the devices costs more.',
            {_DISTRIBUTED.label: 1, f'DP, dim, z = {_MAIN:g}': -1},
            1,
        ),
        design.Claim(
            'BLT is ahead of noise of the devices.',
            {'BLT': 1, _DISTRIBUTED.label: -1},
            -1,
        ),
    ),
    remark=_ONE_RUN,
)

# What follows costs a tenth: as many rounds, of 100 clients. With a tenth of
# the noise on their sum, the noise on the mean is that of 1,000 clients.
_COHORT_SIZE = 100
_NUM_PARAMETERS = 628_448
_FIVE = (1, 2, 3, 4, 5)
_NO_NOISE = 'no DP'
_SMALL = TWIN.but(
    'small', {'COHORT_SIZE': _COHORT_SIZE, 'EVALUATE_EVERY': 20}
)
_SEED_ROW = design.Row('seed', SEED, seeds=(None,), series=None)


def _noised(
    name: str,
    noise: float,
    clip: str,
    *,
    settings: Mapping[str, Any] = {},
    base: design.Recipe = _SMALL,
    num_parameters: int = _NUM_PARAMETERS,
    cohort_size: int = _COHORT_SIZE,
) -> design.Recipe:
  """Training with a (noise norm) / C, whatever its epsilon."""
  return base.but(
      f'{name}_{clip}_{noise:g}',
      {
          'COHORT_SIZE': cohort_size,
          'NOISE_MULTIPLIER': design.noise_multiplier(
              noise, num_parameters=num_parameters, cohort_size=cohort_size
          ),
          'CLIP_SPLIT': repr(clip),
          'TARGET_EPSILON': None,
          **settings,
      },
      experiment='quickstart_federated_dp',
  )


def _small_row(recipe: design.Recipe = _SMALL, **changes: Any) -> design.Row:
  """100 clients a round, without clipping and noise."""
  return design.Row(
      _NO_NOISE,
      recipe,
      seeds=_FIVE,
      **{'against': 'seed', 'series': None, **changes},
  )


_CLIP_NOISES = (0.05, 0.16, 0.63, 2.5)
# The paper's larger one, and the quickstart's.
_MAIN_NOISES = (0.16, 0.63)


def _clip_row(
    clip: str,
    noise: float,
    *,
    name: str = 'small',
    against: str = 'global',
    **options: Any,
) -> design.Row:
  """Training with noise, compared with another clip at the same noise."""
  return design.Row(
      f'{clip}, {noise:g}',
      _noised(name, noise, clip, **options),
      seeds=_FIVE if noise in _MAIN_NOISES else _SEEDS,
      against=_NO_NOISE if clip == against else f'{against}, {noise:g}',
      series=clip,
      x=noise,
  )


def _both(clip: str, start: int) -> list[str]:
  """Labels of a clip at two noises."""
  return [f'{clip}, {noise:g}' for noise in _CLIP_NOISES[start : start + 2]]


_CLIPPING = design.Study(
    name='clipping',
    title='Clipping by layer, by noise',
    question=(
        'The paper: with one norm over all layers, noise of .05 and .16 costs '
        'much of the gain; with clips by layer, far less. '
        '[layer_clipping.md](layer_clipping.md) predicts, for these models: a '
        'little better at .05 and .16, worse at .63 and 2.5, and `uniform` far '
        'behind. Here: runs which differ in cohorts and noise, five each at '
        '.16 and .63, else three.'
    ),
    rows=(
        _SEED_ROW,
        _small_row(),
        *(
            _clip_row(clip, noise)
            for noise in _CLIP_NOISES
            for clip in ('global', 'dim')
        ),
        _clip_row('uniform', 0.16, against='dim'),
    ),
    x_label='(noise norm) / C on the mean',
    columns=('minus seed',),
    remark=(
        'Claims that take two noises together were added when those of single '
        'noises had come out undecided.'
    ),
    claims=(
        *(
            design.claim(
                f'With one norm, noise of {noise:g} costs.',
                f'global, {noise:g}', 1, _NO_NOISE,
            )
            for noise in _CLIP_NOISES[:2]
        ),
        *(
            design.claim(
                f'At {noise:g}, clipping by layer (dim) is ahead of one norm.',
                f'dim, {noise:g}', -1, f'global, {noise:g}',
            )
            for noise in _CLIP_NOISES
        ),
        design.claim(
            'At 0.05 and 0.16 together, dim is ahead of one norm.',
            _both('dim', 0), -1, _both('global', 0),
        ),
        design.claim(
            'At 0.63 and 2.5 together, dim is behind one norm.',
            _both('dim', 2), 1, _both('global', 2),
        ),
        design.claim(
            'Clipping by layer (dim) does better at the smaller two noises '
            'than at the larger two.',
            _both('dim', 0) + _both('global', 2),
            -1,
            _both('global', 0) + _both('dim', 2),
        ),
        design.claim(
            'At 0.16, equal clips (uniform) are behind dim.',
            'uniform, 0.16', 1, 'dim, 0.16',
        ),
    ),
)

_DEEP = conv_seed(12, 96)
_DEEP_SMALL = _SMALL.but('deep', model=_DEEP.model, parent=_DEEP)
_DEEP_PARAMETERS = 1_663_712
_DEPTH = design.Study(
    name='depth',
    title='Clipping by layer in a deeper model',
    question=(
        'Three times as many blocks (12, 1.66 million parameters), where '
        '[layer_clipping.md](layer_clipping.md) sees more of clipping by layer '
        'at small noise.'
    ),
    rows=(
        design.Row('seed', _DEEP, seeds=(None,), series=None),
        _small_row(_DEEP_SMALL),
        *(
            _clip_row(
                clip,
                0.16,
                name='deep',
                base=_DEEP_SMALL,
                num_parameters=_DEEP_PARAMETERS,
            )
            for clip in ('global', 'dim')
        ),
    ),
    columns=('minus seed',),
    claims=(
        design.claim(
            'At 0.16, clipping by layer (dim) is ahead of one norm.',
            'dim, 0.16', -1, 'global, 0.16',
        ),
    ),
)

_SPLITS = ((100, 1), (50, 2), (25, 4))
_SPLIT_NOISE = 0.63


def _split_row(cohort_size: int, num_steps: int) -> design.Row:
  """100 client-steps a round, and the same noise on the mean."""
  label = f'{cohort_size} x {num_steps}'
  first = f'{_SPLITS[0][0]} x {_SPLITS[0][1]}'
  recipe = _noised(
      'small' if label == first else f'split_{cohort_size}x{num_steps}',
      _SPLIT_NOISE,
      'dim',
      cohort_size=cohort_size,
      settings={} if label == first else {'NUM_LOCAL_STEPS': num_steps},
  )
  return design.Row(
      label,
      recipe,
      seeds=_FIVE,
      against=None if label == first else first,
      x=label,
  )


_SPLIT = design.Study(
    name='split',
    title='Many clients or many local steps',
    question=(
        'The paper: larger cohorts always help. Here: 100 client-steps a '
        f'round, with noise of {_SPLIT_NOISE:g} C on the mean, `dim`.'
    ),
    rows=(_SEED_ROW, *(_split_row(*split) for split in _SPLITS)),
    x_label='clients a round x local steps',
    columns=('minus seed', 'MB'),
    claims=tuple(
        design.claim(
            f'100 clients of a step are ahead of {size} of {steps}.',
            '100 x 1', -1, f'{size} x {steps}',
        )
        for size, steps in _SPLITS[1:]
    ),
)

_COHORTS = (25, 100, 400)
# Steps of some 12 utterances: as many in all as clients have in 20 rounds.
_CENTRAL_STEPS = {25: 82, 100: 328, 400: 1312}


def _cohort_rows(cohort_size: int) -> tuple[design.Row, design.Row]:
  """Central training on as many utterances, and federated training."""
  num_steps = _CENTRAL_STEPS[cohort_size]
  central = design.Row(
      f'central, as {cohort_size}',
      design.Recipe(
          name=f'central_{cohort_size}',
          program=design.CENTRAL,
          experiment='quickstart_control',
          settings={
              'NUM_STEPS': num_steps,
              'EVALUATE_EVERY': num_steps,
              'DECAY_START': num_steps // 2,
              'DECAY_STEPS': num_steps // 4,
          },
          speakers='private',
          parent=SEED,
      ),
      rates=(0.001, 0.003),
      seeds=_SEEDS,
      against='seed',
      series='central',
      x=cohort_size,
  )
  federated = design.Row(
      f'federated, {cohort_size}',
      _SMALL
      if cohort_size == _COHORT_SIZE
      else _SMALL.but(f'cohort_{cohort_size}', {'COHORT_SIZE': cohort_size}),
      seeds=_FIVE if cohort_size == _COHORT_SIZE else _SEEDS,
      against=central.label,
      series='federated',
      x=cohort_size,
  )
  return central, federated


_LAST = {'federated, 400': 1, 'central, as 400': -1}
_COHORT = design.Study(
    name='cohort',
    title='Federated training approaches central training',
    question=(
        'The paper: without DP the gap to central training is large at 8 '
        'clients a round, and gone at 256 only from LS-960. Here: 20 rounds of '
        '25 to 400 clients, against central training (Adam, the better of two '
        'rates on the dev speakers) on the same speakers, from the same seed '
        'model, for about as many utterances.'
    ),
    rows=(
        _SEED_ROW, *(row for size in _COHORTS for row in _cohort_rows(size))
    ),
    x_label='clients a round',
    columns=('rate', 'utterances', 'MB'),
    claims=(
        design.claim(
            'More clients a round help.',
            'federated, 400', -1, 'federated, 25',
        ),
        design.claim(
            'Federated training at 25 is behind the longest central training.',
            'federated, 25', 1, 'central, as 400',
        ),
        design.Claim('That gap is gone at 400.', _LAST, 0),
    ),
)


def _optimizer_row(label: str, *rates: float) -> design.Row:
  """A server optimizer with rates to choose from."""
  name = label.lower()
  return design.Row(
      label,
      _SMALL.but(
          f'server_{name}', gin_files=(f'gin/optimizers/{name}.gin',)
      ),
      rates=rates,
      seeds=_SEEDS,
      against=None if label == 'LAMB' else 'LAMB',
      x=label,
  )


_OPTIMIZERS = design.Study(
    name='optimizers',
    title='Server optimizers',
    question=(
        'The paper: from scratch LAMB is far ahead; from a seed model Adam and '
        'LARS come out level with it, SGD behind. Here: from the seed model, '
        'without DP, each at the best of three rates on the dev speakers.'
    ),
    rows=(
        _optimizer_row('LAMB', 0.01, 0.02, 0.04),
        _optimizer_row('Adam', 0.0003, 0.001, 0.003),
        _optimizer_row('LARS', 1.0, 3.0, 10.0),
        _optimizer_row('SGD', 1.0, 3.0, 10.0),
    ),
    x_label='server optimizer',
    columns=('rate', 'tried'),
    claims=(
        design.claim('LAMB is ahead of SGD.', 'LAMB', -1, 'SGD'),
        design.claim('LAMB and Adam are level.', 'LAMB', 0, 'Adam'),
        design.claim('LAMB and LARS are level.', 'LAMB', 0, 'LARS'),
    ),
)

_SCRATCH = _SMALL.but(
    'scratch', {'INIT_FROM_RUN': None, 'CLIENT_LEARNING_RATE': 0.4}, parent=None
)
_SEED_MODELS = design.Study(
    name='seeds',
    title='With and without a seed model',
    question=(
        'The paper: without a seed model, training is far behind after as many '
        'rounds; an under-trained one already helps. Here, without DP: from '
        'the seed model, from one of 100 instead of 500 steps, and from '
        "scratch with the clients' rate doubled, as in the paper."
    ),
    rows=(
        _SEED_ROW,
        _small_row(),
        design.Row('short seed', SHORT, seeds=(None,), series=None),
        design.Row(
            'from short seed',
            _SMALL.but('from_seed_100', parent=SHORT),
            seeds=_SEEDS,
            against='short seed',
        ),
        design.Row('from scratch', _SCRATCH, seeds=_SEEDS, against=_NO_NOISE),
        design.Row(
            'from scratch, 80 rounds',
            _SCRATCH.but(
                'scratch_80',
                {'NUM_ROUNDS': 80, 'DECAY_START': 40, 'DECAY_ROUNDS': 40},
            ),
            seeds=_SEEDS,
            against=_NO_NOISE,
        ),
    ),
    columns=('utterances',),
    claims=(
        design.claim(
            'After as many rounds, a seed model is ahead of none.',
            _NO_NOISE, -1, 'from scratch',
        ),
        design.claim(
            'And of none after four times as many.',
            _NO_NOISE, -1, 'from scratch, 80 rounds',
        ),
        design.claim(
            'An under-trained seed model is ahead of none.',
            'from short seed', -1, 'from scratch',
        ),
    ),
)


SUITE = design.Suite(
    name='population',
    studies=(
        _PRIVACY,
        _START,
        DEPLOYMENT,
        _CLIPPING,
        _DEPTH,
        _SPLIT,
        _COHORT,
        _OPTIMIZERS,
        _SEED_MODELS,
    ),
    introduction="""\
# The federated paper on generated speech

Word error rates and epsilon of the paper's questions on generated speech: how
much privacy costs, and when clipping by layer, more clients, a seed model and
LAMB help. `experiments/run.py` writes this page from the folders of its runs:

    python -m experiments.run --suite=population

The speech is generated ([data.md](data.md#generated-speech)): eSpeak NG says
short sentences in 12,000 private, 16 public, 32 dev and 100 test voices, which
all differ in formants, pitch, rate, roughness and breath. It is not human
speech. All figures are of generator version 1, whose sentences had 128 words.
The model, gated convolutions, has 0.63 million parameters.
The test speakers were decoded once a run. The recipe was tuned on corpora of
other generator seeds, with a tenth of the speakers a round and of the noise on
their sum, so the same noise on the mean. All that was tried:

| public | rounds | server's rate | z of 1,000 a round | dev WER % | then |
|---|---|---|---|---|---|
| 64 of 16 utterances | 20 | .01 | .8 | 14.8 | 11.2 |
| 16 of 40 utterances | 20 | .01 | .8 | 24.4 | 17.1 |
| 16 of 40 utterances | 20 | .02, from round 10 less | .8 | 24.4 | 15.7 |
| 16 of 40 utterances | 12 | .04, from round 6 less | .7 | 24.4 | 20.3 |
| 16 of 40 utterances | control: 150 steps | .001 | none | 24.4 | 24.5 |

Epsilon is that of the run itself, at delta 1e-5, for a speaker with all
recordings: the smaller one of PLD's and RDP's. After the first section cohorts
have 100 clients of 12,000 and a tenth of the noise on their sum, which leaves
the noise on the mean as it is and takes a tenth of the time; those runs have no
meaningful epsilon, and stand for runs with ten times the clients. They differ
from these in that a mean of 100 clients varies more by itself.

A WER with a standard deviation is the mean over runs of other random seeds:
other cohorts, batches and noise from one seed model. Differences come with a
95 % interval over the test speakers and, where there are several, random seeds.
Claims are judged by that interval; they are not corrected for their number.
""",
    evaluation='quickstart_evaluate',
    shards='{}',
    data=('data_tools.synthetic_population',),
    language_model='public.arpa',
    needs_source=False,
    command='python -m experiments.run --suite=population',
    report='docs/population.md',
)

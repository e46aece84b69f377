"""The quickstart's claim at several epsilons, on generated speech.

Each row with an epsilon is a run with that guarantee: nothing is extrapolated.
"""

from experiments import design

# Noise multipliers; with gin/experiments/quickstart_federated_dp.gin's cohorts
# and rounds the largest epsilon is under its TARGET_EPSILON.
_NOISES = (1.2, 0.8, 0.7)
_MAIN = 0.8
_SEEDS = (1, 2, 3)

SEED = design.Recipe(
    name='seed',
    program=design.CENTRAL,
    experiment='quickstart_seed',
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


def _private(noise: float, clip: str) -> design.Recipe:
  """Federated training with differential privacy."""
  return TWIN.but(
      f'federated_{clip}_{noise:g}',
      {'NOISE_MULTIPLIER': noise, 'CLIP_SPLIT': repr(clip)},
      experiment='quickstart_federated_dp',
  )


def _row(noise: float, clip: str, against: str) -> design.Row:
  return design.Row(
      f'DP, {clip}, z = {noise:g}',
      _private(noise, clip),
      seeds=_SEEDS if noise == _MAIN else _SEEDS[:1],
      against=against,
      series=clip,
      x=design.EPSILON,
  )


_PRIVACY = design.Group(
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
)

SUITE = design.Suite(
    name='population',
    groups=(_PRIVACY,),
    introduction="""\
# Word error rate at real epsilons

Written by `experiments/run.py` from what its runs' folders hold:

    python -m experiments.run --suite=population

The speech is generated (`data_tools/synthetic_population.py`): eSpeak NG says
short sentences of some 120 words, in 12,000 private, 16 public, 32 dev and 100
test voices, which all differ in formants, pitch, rate, roughness and breath. It
is not human speech. The model, gated convolutions, has 0.63 million parameters.
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
recordings: the smaller one of PLD's and RDP's. Differences come with a 95 %
interval over the test speakers ({deviation}). Claims are judged by that
interval; they are not corrected for their number.
""",
    evaluation='quickstart_evaluate',
    shards='{}',
    data=('data_tools.synthetic_population',),
    needs_source=False,
    command='python -m experiments.run --suite=population',
    report='docs/population.md',
)

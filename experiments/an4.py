"""Federated training with and without privacy on AN4's recorded voices.

Some 70 speakers are far too few for a guarantee, and ten test speakers decide
little: the page shows that what `population.py` finds on generated speech is
not at odds with recordings.
"""

from experiments import design

# How the speakers are divided.
_PARTITION = 'public=28,private=rest,dev=4,test=10'
_COHORT_SIZE = 8
_NUM_PARAMETERS = 628_448
_NOISES = (0.05, 0.63)
_SEEDS = (1, 2, 3)

SEED = design.Recipe(
    name='seed',
    program=design.CENTRAL,
    experiment='an4_seed',
    speakers='public',
)
FEDERATED = design.Recipe(
    name='federated',
    program=design.FEDERATED,
    experiment='an4_federated',
    parent=SEED,
)


def _row(clip: str, noise: float) -> design.Row:
  """Federated training with a clip and noise."""
  multiplier = design.noise_multiplier(
      noise, num_parameters=_NUM_PARAMETERS, cohort_size=_COHORT_SIZE
  )
  return design.Row(
      f'{clip}, {noise:g}',
      FEDERATED.but(
          f'{clip}_{noise:g}',
          {'NOISE_MULTIPLIER': multiplier, 'CLIP_SPLIT': repr(clip)},
          experiment='an4_dp',
      ),
      seeds=_SEEDS,
      against='no DP' if clip == 'global' else f'global, {noise:g}',
      series=clip,
      x=noise,
  )


_TABLE = design.Group(
    name='voices',
    title='Without and with clipping and noise',
    question=(
        'A seed model learns from 28 public speakers; from it, 32 private '
        'speakers train federatedly (80 rounds of 8 expected clients, 2 local '
        'steps each) without DP, and with one norm over all layers and clips '
        'by layer at equal noise.'
    ),
    rows=(
        design.Row('seed', SEED, seeds=(None,), series=None),
        design.Row(
            'no DP', FEDERATED, seeds=_SEEDS, against='seed', series=None
        ),
        *(_row(clip, noise) for noise in _NOISES for clip in ('global', 'dim')),
    ),
    x_label='(noise norm) / C on the mean',
    columns=('minus seed', 'epsilon', 'MB', 'seconds'),
    claims=(
        design.claim(
            'Federated training improves on the seed model.',
            'no DP', -1, 'seed',
        ),
        *(
            design.claim(
                f'At {noise:g}, clipping by layer (dim) is ahead of one norm.',
                f'dim, {noise:g}', -1, f'global, {noise:g}',
            )
            for noise in _NOISES
        ),
    ),
)

_INTRODUCTION = """\
# Recorded voices in miniature

Federated training of recorded voices, with and without differential privacy:
does it help, and does clipping by layer? `experiments/run.py` writes this page
from the folders of its runs:

    python -m experiments.run --suite=an4 --source=AN4_FOLDER

The speech is AN4's training part: 74 people spelling words and reading numbers
and commands; 28 are public, 32 private, 4 for tuning (dev) and 10 for testing,
outside all training data. The model, gated convolutions, has 0.63
million parameters. AN4's own test part is not used.

A word error rate (WER) with a standard deviation is the mean over three runs
that differ in their random seed. Differences come with a 95 % interval over the
test speakers and random seeds (`contrast` in `tff_asr/metrics/confidence.py`;
the seed model is fixed). Claims are judged by that interval: if it contains 0,
the claim is not decided. Noise is (noise norm) / C of the noise on the mean,
sqrt(D) z / S. Epsilon is at delta 1 / (10 population); at 32 speakers it is not
a guarantee (NOT PRIVATE). Bytes are per client and round, as float32. Seconds
are wall-clock time; other jobs were running.
"""

SUITE = design.Suite(
    name='an4',
    groups=(_TABLE,),
    introduction=_INTRODUCTION,
    evaluation='an4_evaluate',
    shards='train.{}',
    data=(
        'data_tools.an4',
        '--splits=train',
        f'--partition={_PARTITION}',
    ),
    needs_source=True,
    command='python -m experiments.run --suite=an4 --source=AN4_FOLDER',
    report='docs/an4.md',
)

"""AN4's comparison of seed, federated and central training, cross-validated.

Ten test speakers decide little. Here each of AN4's 74 training speakers is a
test speaker of one of six folds, whose models are trained by others; a row's
error rate is that of all speakers together. AN4's own test part is not used.
"""

import dataclasses

from experiments import an4
from experiments import an4_data
from experiments import design
from tff_asr.reports import runs as runs_lib

_NUM_FOLDS = 6
_SEEDS = (1, 2, 3)
_NOISE = 0.4
_PRIVATE = f'dim, {_NOISE:g}'


def _claims(
    text: str, first: str, second: str, *, margin: float = 0.0
) -> list[design.Claim]:
  """That a row is ahead of another one, in words and in sentences."""
  return [
      design.claim(text, first, -1, second, margin=margin, measure=measure)
      for measure in (runs_lib.WER, runs_lib.SER)
  ]


_STUDY = design.Study(
    name='folds',
    title='Private speakers, cross-validated',
    question=(
        'A head of one convolution, with .25 million weights, on Whisper '
        'tiny.en. The seed is trained by 28 public speakers; "no DP" is '
        'trained further by the private speakers, and "dim" with clips by '
        f'layer, C = .1, and noise of {_NOISE:g}; "central" trains one head on '
        'the public and the private speakers together, in as many steps as '
        'the seed. The recipes are those of the suite an4.'
    ),
    rows=(
        an4.row('seed', an4.HEAD_SEED, seeds=_SEEDS),
        an4.row('central', an4.HEAD_CENTRAL, 'seed', seeds=_SEEDS),
        an4.row('no DP', an4.HEAD_FEDERATED, 'seed', seeds=_SEEDS),
        dataclasses.replace(
            an4.noise_row('dim', _NOISE), seeds=_SEEDS, series=None
        ),
    ),
    columns=('minus seed',),
    claims=(
        *_claims('Private speakers improve on the seed.', 'no DP', 'seed'),
        *_claims(
            f'With noise of {_NOISE:g}, private speakers improve on the seed.',
            _PRIVATE, 'seed',
        ),
        *_claims(
            'Central training on private speakers improves on the seed.',
            'central', 'seed',
        ),
        *_claims(
            'Federated training is within 1 point of central training.',
            'no DP', 'central', margin=0.01,
        ),
        *_claims(
            f'Noise of {_NOISE:g} costs less than 1 point.',
            _PRIVATE, 'no DP', margin=0.01,
        ),
    ),
)

_INTRODUCTION = f"""\
# Recorded voices, cross-validated

Whether private speakers improve a model, on all 74 people of AN4's training
part. This makes everything and writes this page; what is there is kept:

    python -m experiments.run --suite=an4_folds --source=AN4_FOLDER

The 74 people are divided into {_NUM_FOLDS} folds. The models of a fold are
tested on its 12 or 13 people and trained by others: 28 public ones, 4 for
tuning (dev) and the rest private, 29 or 30, drawn anew in each fold. A rate is
that of all 74 people together. Whisper's training data may contain AN4. With
so few speakers no epsilon is a guarantee: all runs are NOT PRIVATE.

Rates are means over {len(_SEEDS)} random seeds, with the standard deviation.
Differences have 95 % intervals over test speakers and seeds, paired by both. A
claim is not decided if its interval contains 0, or its margin. Intervals do not
contain that the training sets of folds overlap, for which no estimate is
unbiased (Bengio and Grandvalet 2004, "No unbiased estimator of the variance of
k-fold cross-validation"). Noise is the norm of the noise on the mean over C.
"""

SUITE = design.Suite(
    name='an4_folds',
    studies=(_STUDY,),
    introduction=_INTRODUCTION,
    evaluation='an4_whisper_evaluate',
    shards=an4_data.FEATURES,
    data=('experiments.an4_data', f'--num_folds={_NUM_FOLDS}'),
    needs_source=True,
    tests={'test': 'all speakers'},
    num_folds=_NUM_FOLDS,
    command='python -m experiments.run --suite=an4_folds --source=AN4_FOLDER',
    report='docs/an4_folds.md',
)

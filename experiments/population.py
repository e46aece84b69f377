"""Study of what private training gains on generated speech, and of its causes.

The rows with noise are simulations: 100 of 800 people are drawn a round, and
the noise on their mean is what the stated cohort of 12,000 people has at the
stated epsilon. A whole run of such a cohort takes up to half an hour, and its
noise is all that differs much. bin/quickstart makes whole runs with guarantees.
"""

from collections.abc import Mapping
from typing import Any

from experiments import design
from tff_asr.reports import runs as runs_lib

# Of the rows that claims are about; the others have the first.
_SEEDS = (1, 2, 3)
_CLAIMED = (
    '2 utterances',
    '8 utterances',
    '8, no masks or dropout',
    '8, of 96 directions',
    '16, of 192, 3,000 a round',
    'epsilon 1, 16, 3,000 a round',
)
_POPULATION = 12_000
_NUM_DRAWN = 100
_NUM_UTTERANCES = 16


# Noise on the mean over C, z / S, by epsilon of 20 rounds (PLD, delta 1e-5).
# `bin/compute_epsilon.py --cohort_size=... --population=12000 --rounds=20
# --delta=1e-5 --accountant=pld --target_epsilon=...` finds z.
_QUICK = {
    1: 1.8482 / 1000, 2: 1.2376 / 1000, 4.94: 0.8 / 1000, 8: 0.642 / 1000,
}
_FULL = {1: 4.49 / 3000, 4.94: 1.356 / 3000}

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
    settings={'COHORT_SIZE': _NUM_DRAWN, 'CHUNK_SIZE': _NUM_UTTERANCES},
    parent=SEED,
)


def _private(
    name: str,
    sigma_mean: float,
    *,
    num_utterances: int,
    **settings: Any,
) -> design.Recipe:
  """The quickstart's private run with a cohort's noise on the mean.

  Args:
    name: Its name.
    sigma_mean: The noise on the mean over C.
    num_utterances: Of each person in a round, of 16.
    **settings: Macros to gin values.
  """
  return TWIN.but(
      name,
      {
          # With the same noise on the mean of those who are drawn.
          'NOISE_MULTIPLIER': float(f'{sigma_mean * _NUM_DRAWN:.4g}'),
          # The simulation has no guarantee to watch.
          'TARGET_EPSILON': None,
          # A step's utterances come from one chunk, and fit into one batch.
          'CHUNK_SIZE': num_utterances,
          **settings,
      },
      experiment='quickstart_federated_subspace',
  )


_ALL = {'TRAINED_MODEL': '%MODEL'}
# The former recipe trained clients as the seed model is trained.
_FORMER = {
    **_ALL,
    'AUGMENT': '@spec_augment.build()',
    'DROPOUT': 0.05,
    'LAMB_BETA_1': 0.9,
}
_PRIVATE = {
    '2 utterances': _private(
        'two_utterances', _QUICK[4.94], num_utterances=2, **_FORMER
    ),
    '8 utterances': _private(
        'eight_utterances', _QUICK[4.94], num_utterances=8, **_FORMER
    ),
    '8, no masks or dropout': _private(
        'no_masks', _QUICK[4.94], num_utterances=8, **_ALL
    ),
    '8, of 96 directions': _private(
        'quickstart', _QUICK[4.94], num_utterances=8
    ),
    '16, of 192, 3,000 a round': _private(
        'full', _FULL[4.94], num_utterances=16, SUBSPACE_RANK=192
    ),
    'epsilon 8, as the quickstart': _private(
        'quickstart_8', _QUICK[8], num_utterances=8
    ),
    'epsilon 2, as the quickstart': _private(
        'quickstart_2', _QUICK[2], num_utterances=8
    ),
    'epsilon 1, as the quickstart': _private(
        'quickstart_1', _QUICK[1], num_utterances=8
    ),
    'epsilon 1, 16, 3,000 a round': _private(
        'full_1', _FULL[1], num_utterances=16
    ),
}


def _both(
    text: str, first: str, expected: int, second: str
) -> tuple[design.Claim, ...]:
  """`design.claim`, decoded greedily and with the language model."""
  return tuple(
      design.claim(text, first, expected, second, measure=measure)
      for measure in (runs_lib.WER, runs_lib.WER_WITH_LM)
  )


def _rows(private: Mapping[str, design.Recipe]) -> tuple[design.Row, ...]:
  """Rows of the public models, of private training, and of no DP."""
  shared = dict(against='control', kind='federated')
  return (
      design.Row('seed', SEED, seeds=(None,), kind='central'),
      design.Row(
          'control', _CONTROL, seeds=(None,), against='seed', kind='central'
      ),
      *(
          design.Row(
              label,
              recipe,
              seeds=_SEEDS if label in _CLAIMED else _SEEDS[:1],
              **shared,
          )
          for label, recipe in private.items()
      ),
      design.Row('no DP', TWIN, seeds=_SEEDS, **shared),
  )


_GAIN = design.Study(
    name='gain',
    title='What private training gains',
    question=(
        'From the seed model, private speakers train in 20 rounds. Labels '
        'give the utterances of a person in a round, and the directions in '
        'which a kernel may change. Where no epsilon is given it is 4.94, and '
        'where no cohort is given it is 1,000 a round.'
    ),
    rows=_rows(_PRIVATE),
    columns=('difference with LM',),
    claims=(
        *_both(
            'Private speakers help at epsilon 4.94, as in the quickstart.',
            '8, of 96 directions', -1, 'control',
        ),
        *_both(
            'More utterances a person help.',
            '8 utterances', -1, '2 utterances',
        ),
        *_both(
            'Leaving out masks and dropout helps.',
            '8, no masks or dropout', -1, '8 utterances',
        ),
        *_both(
            'Training in a public subspace helps.',
            '8, of 96 directions', -1, '8, no masks or dropout',
        ),
        *_both(
            'Larger cohorts and twice the utterances help.',
            '16, of 192, 3,000 a round', -1, '8, of 96 directions',
        ),
        *_both(
            'Private speakers help at epsilon 1.',
            'epsilon 1, 16, 3,000 a round', -1, 'control',
        ),
    ),
    remark=(
        "Of what no DP gains over the control, the quickstart's recipe "
        'keeps 33 % greedily and 48 % with the LM, 3,000 a round with 16 '
        'utterances 65 and 72 %; at epsilon 1 these are 17 and 6 %, and '
        '26 and 44 %. Noise does not depend on how much a person says, '
        'and the signal of a person grows about as the root of it; so the '
        'former recipe, with 4 s of speech a person, gained nothing '
        'greedily. What did not help, in a simulator of this model at '
        'epsilon 4.94, 1,000 a round, 10 utterances and without masks '
        '(one run each, loss on 100 dev speakers; all parameters 9.21, 96 '
        'directions 8.81, 192 of them 8.75): 96 random directions (9.39); '
        "the leading singular vectors of the seed's kernels (96: 8.97, "
        '192: 9.23); more rounds of fewer utterances (40 of 5: 9.45); a '
        'larger first moment or rate (LAMB .045, with masks: 11.3); more '
        'public training after the private rounds (with masks 10.5, '
        'before it 10.2); rates of .07 with everyone in 5 rounds '
        '(diverged). In earlier trials at 2 utterances (greedy WER; 35.2 '
        'without): a Wiener filter on 1,000 public directions of '
        'gradients 37.8, a natural gradient from public data 36.6.'
    ),
)


# What a model learns from its own labels by (docs/mechanisms.md).
_SELF_TAUGHT = {
    'PSEUDO_LABELS': True,
    'AUGMENT': '@spec_augment.build()',
    'DROPOUT': 0.05,
    # Its signal is weak, and LAMB's steps are as long as the rate.
    'SERVER_LEARNING_RATE': 0.005,
}
_PSEUDO = design.Study(
    name='pseudo',
    title='Without transcripts',
    question=(
        'Clients train on what the model of the round transcribes of their '
        'utterances, with SpecAugment, dropout and, where none is given, a '
        'server rate of .005 (with transcripts .02, without the others). A '
        'gate is the confidence below which an utterance is left out. Private '
        'rows have epsilon 4.94, 8 utterances a person and 96 directions.'
    ),
    rows=(
        design.Row('control', _CONTROL, seeds=(None,), kind='central'),
        *(
            design.Row(label, recipe, against='control', kind='federated')
            for label, recipe in {
                'private, transcripts': _PRIVATE['8, of 96 directions'],
                'private, gate .9': _private(
                    'private_pseudo_90',
                    _QUICK[4.94],
                    num_utterances=8,
                    **_SELF_TAUGHT,
                    MIN_CONFIDENCE=0.9,
                ),
                'no DP, transcripts': TWIN,
                'no DP, every utterance': TWIN.but('pseudo', _SELF_TAUGHT),
                'no DP, gate .9': TWIN.but(
                    'pseudo_90', {**_SELF_TAUGHT, 'MIN_CONFIDENCE': 0.9}
                ),
                'no DP, gate .9, rate .02': TWIN.but(
                    'pseudo_90_fast',
                    {
                        **_SELF_TAUGHT,
                        'MIN_CONFIDENCE': 0.9,
                        'SERVER_LEARNING_RATE': 0.02,
                    },
                ),
            }.items()
        ),
    ),
    columns=('difference with LM',),
    claims=_both(
        'Without transcripts or noise, private speakers help.',
        'no DP, gate .9', -1, 'control',
    ),
)


SUITE = design.Suite(
    name='population',
    studies=(_GAIN, _PSEUDO),
    introduction=f"""\
# What private training gains on generated speech

This makes everything and writes this page, in about half an hour:

    python -m experiments.run --suite=population

eSpeak NG speaks everyday sentences of 1,147 words ([Generated
speech](data.md#generated-speech)). It is not human speech. 64 public speakers
of 20 utterances train a seed model of .63 million weights; the control is the
seed trained further by them. 32 dev speakers tune the language model, a trigram
model (LM) of the public transcripts; 100 others are the test.

**Rows with noise are simulations without a guarantee.** Each round draws
{_NUM_DRAWN} of 800 private speakers, and adds to their mean the noise that the
mean of the stated cohort of {_POPULATION:,} speakers has at the stated epsilon
(PLD, delta 1e-5). What is left is that 100 speakers vary more than a thousand.
Each row is one run.
""",
    evaluation='quickstart_evaluate',
    shards='{}',
    data=(
        'data_tools.synthetic_population',
        '--voices=clear',
        '--word_share=0.5',
        '--num_public_speakers=64',
        '--num_public_utterances=20',
        '--num_private_speakers=800',
        f'--num_private_utterances={_NUM_UTTERANCES}',
    ),
    language_model='public.arpa',
    needs_source=False,
    command='python -m experiments.run --suite=population',
    report='docs/population.md',
)

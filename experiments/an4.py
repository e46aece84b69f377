"""Federated training with and without privacy on AN4's recorded voices.

Some 70 speakers are far too few for a guarantee, and ten test speakers decide
little: claims are few, and rows have several random seeds. What a run starts
from has the run's random seed, too.
"""

from typing import Optional

from experiments import an4_data
from experiments import design
from tff_asr.reports import runs as runs_lib

_COHORT_SIZE = 8
_NOISES = (0.4, 1.6, 3.1)
_SEEDS = (1, 2, 3, 4, 5)
_LANGUAGE_MODEL = 'public.arpa'

# Kinds of rows.
_SCRATCH, _PUBLIC = 'from scratch', 'from a public encoder'

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
    parent_by_seed=True,
)
_SEED_SPEED = SEED.but(
    'seed_speed',
    {'REVERB_PROB': 0.0, 'NOISE_PROB': 0.0},
    gin_files=('gin/data/augment_waveform.gin',),
)
_HEAD = 'head'
# The head has one convolution; NUM_BLOCKS is 0 in its experiments.
_HEAD_PARAMETERS = 249_762
# Heads are trained on stored features.
HEAD_SEED = design.Recipe(
    name=_HEAD,
    program=design.CENTRAL,
    experiment='an4_whisper_seed',
    model=design.Model(
        evaluation='an4_whisper_evaluate',
        shards=an4_data.FEATURES,
        pretrained=an4_data.PRETRAINED,
    ),
    speakers='public',
)
HEAD_FEDERATED = design.Recipe(
    name='head_federated',
    program=design.FEDERATED,
    experiment='an4_whisper_federated',
    model=HEAD_SEED.model,
    parent=HEAD_SEED,
    parent_by_seed=True,
)
# Rows set its noise, and name it.
_HEAD_PRIVATE = HEAD_FEDERATED.but(
    'head_private', experiment='an4_whisper_dp'
)
HEAD_CENTRAL = HEAD_SEED.but('head_central', speakers='all')
_HEAD_SPEED = HEAD_SEED.but('head_speed', speeds=(0.9, 1.0, 1.1))


# Fewer rounds than elsewhere: without stored features they take long.
_SHORT = {
    'SERVER_LEARNING_RATE': 0.0005,
    'NUM_ROUNDS': 20,
    'DECAY_START': 10,
    'DECAY_ROUNDS': 5,
}
# Not LAMB: its steps are shares of a tensor's norm, and some begin as 0.
_ADAM = 'gin/optimizers/adam.gin'


def _multiplier(noise: float) -> float:
  """The noise multiplier of a norm of the noise on the head's mean, over C."""
  return design.noise_multiplier(
      noise, num_parameters=_HEAD_PARAMETERS, cohort_size=_COHORT_SIZE
  )


def _short(part: str, noise: float) -> design.Recipe:
  """The head, or it and a part of the encoder, trained in few rounds."""
  suffix = '' if noise == _NOISES[0] else f'_{noise:g}'
  recipe = _HEAD_PRIVATE.but(
      f'short_{part}{suffix}',
      {**_SHORT, 'NOISE_MULTIPLIER': _multiplier(noise)},
      gin_files=(_ADAM,),
  )
  if part == _HEAD:
    return recipe
  return recipe.but(
      recipe.name,
      # Frames of 10 ms; features have 20.
      {'MAX_TIME_WIDTH': 20},
      # Audio: what is below the weights that are trained is not stored.
      model=design.Model(
          gin_files=(f'gin/models/public_{part}.gin',),
          # These files have the defaults of another head than the seed's.
          settings={
              'PRETRAINED': repr(an4_data.PRETRAINED),
              'NUM_BLOCKS': 0,
              'DIM': 128,
          },
          evaluation=recipe.model.evaluation,
      ),
  )


def row(
    label: str,
    recipe: design.Recipe,
    against: Optional[str] = None,
    *,
    seeds: tuple[int, ...] = _SEEDS,
    kind: str = _PUBLIC,
) -> design.Row:
  """A row that is in the table and not in the figure."""
  return design.Row(
      label, recipe, seeds=seeds, against=against, series=None, kind=kind
  )


def _claims(
    text: str, first: str, second: str, *, margin: float = 0.0
) -> tuple[design.Claim, design.Claim]:
  """That a row is ahead of another one, without and with a language model."""
  make = lambda text, measure: design.claim(
      text, first, -1, second, margin=margin, measure=measure
  )
  return (
      make(f'{text}.', runs_lib.WER),
      make(f'{text}.', runs_lib.WER_WITH_LM),
  )


def _helped_by_lm(text: str, row: str) -> design.Claim:
  """That the language model is ahead of greedy decoding, in a row."""
  return design.Claim(
      text, {row: 1}, -1, measure=runs_lib.WER_WITH_LM, baseline=runs_lib.WER
  )


_ENCODER = design.Study(
    name='encoder',
    title='What a public encoder, augmentation and a language model give',
    question=(
        '28 public speakers train a model centrally, from scratch (gated '
        'convolutions of .63 million weights) or from a public encoder (a head '
        'of one convolution, NUM_BLOCKS = 0, with .25 million on Whisper '
        'tiny.en). Augmented: at .9, 1 and 1.1 of the speed of each utterance, '
        'in as many steps. Federated: 32 private speakers train the model '
        'further, without DP, in 80 rounds (from scratch) or 40.'
    ),
    rows=(
        row('from scratch', SEED, kind=_SCRATCH),
        row(
            'from scratch, augmented', _SEED_SPEED, 'from scratch',
            kind=_SCRATCH,
        ),
        row(
            'from scratch, federated', FEDERATED, 'from scratch',
            kind=_SCRATCH,
        ),
        row('public encoder', HEAD_SEED, 'from scratch'),
        row('public encoder, augmented', _HEAD_SPEED, 'public encoder'),
        row('public encoder, federated', HEAD_FEDERATED, 'public encoder'),
    ),
    columns=('LM minus greedy', 'seconds'),
    claims=(
        *_claims(
            'A public encoder improves on the model from scratch',
            'public encoder', 'from scratch',
        ),
        *_claims(
            'From scratch, augmentation improves on the model without',
            'from scratch, augmented', 'from scratch',
        ),
        *_claims(
            'From a public encoder, augmentation improves on the model without',
            'public encoder, augmented', 'public encoder',
        ),
        _helped_by_lm(
            'From scratch, the LM improves on greedy decoding.', 'from scratch'
        ),
        _helped_by_lm(
            'From a public encoder, the LM improves on greedy decoding.',
            'public encoder',
        ),
        *_claims(
            'From scratch, private speakers improve on the seed',
            'from scratch, federated', 'from scratch',
        ),
        *_claims(
            'From a public encoder, private speakers improve on the seed',
            'public encoder, federated', 'public encoder',
        ),
    ),
    remark=(
        "ESPnet's recipe (https://github.com/espnet/espnet, egs2/an4/asr1) "
        'reports 7.6 %, and 7.4 % with an LM, of a transformer with CTC and an '
        'attention decoder from scratch, on 848 utterances with speed '
        "perturbation and AN4's own test part of 773 words: a seed here has "
        '362 utterances, a federated run 407 more.'
    ),
)


def noise_row(clip: str, noise: float) -> design.Row:
  """Federated training of the head with a clip and noise."""
  return design.Row(
      f'{clip}, {noise:g}',
      _HEAD_PRIVATE.but(
          f'head_{clip}_{noise:g}',
          {'NOISE_MULTIPLIER': _multiplier(noise), 'CLIP_SPLIT': repr(clip)},
      ),
      seeds=_SEEDS,
      against='no DP',
      series=clip,
      x=noise,
      kind=_PUBLIC,
  )


_NOISE = design.Study(
    name='noise',
    title='Clipping and noise, from the public encoder',
    question=(
        'The head is trained further by the 32 private speakers without DP, '
        'and with one norm over all layers (global) or clips by layer (dim), '
        'both C = .1, and noise. "central" trains one head on the 28 public '
        'and the 32 private speakers together, in as many steps as the seed.'
    ),
    rows=(
        row('seed', HEAD_SEED),
        row('central', HEAD_CENTRAL, 'seed'),
        row('no DP', HEAD_FEDERATED, 'central'),
        *(noise_row(clip, n) for n in _NOISES for clip in ('global', 'dim')),
    ),
    x_label='(noise norm) / C on the mean',
    columns=('minus seed',),
    claims=(
        *_claims(
            'Noise of .4 is within 1.5 points of central',
            'dim, 0.4', 'central', margin=0.015,
        ),
        *(
            claim
            for noise in (_NOISES[0], _NOISES[-1])
            for claim in _claims(
                f'With noise of {noise:g}, private speakers improve on the '
                'seed',
                f'dim, {noise:g}', 'seed',
            )
        ),
        design.claim(
            'Over all noises, clipping by layer is ahead of one norm.',
            [f'dim, {noise:g}' for noise in _NOISES], -1,
            [f'global, {noise:g}' for noise in _NOISES],
        ),
    ),
)

# What is trained, and its name in the table.
_PARTS = {
    _HEAD: 'head',
    'adapters': 'adapters',
    'lora': 'LoRA',
    'last_blocks': 'last block',
}


def _part_row(part: str, noise: float) -> design.Row:
  """Training of the head, or of it and a part of the encoder, with noise."""
  against = 'seed' if part == _HEAD else f'{_PARTS[_HEAD]}, {noise:g}'
  return row(f'{_PARTS[part]}, {noise:g}', _short(part, noise), against)


_TRAINED = design.Study(
    name='trained',
    title='What is trained',
    question=(
        'The 32 private speakers train the seed head, alone or with parts of '
        'the encoder, in 20 rounds of Adam with clips by layer, C = .1. Rows '
        'named by the same noise have one noise multiplier, which at real '
        'cohorts would cost each of them the same epsilon: .4 and 3.1 are '
        '(noise norm) / C of the head; it is 1.2 times that for adapters, 1.1 '
        'times for LoRA, 2.8 times for the last block, with more weights.'
    ),
    rows=(
        row('seed', HEAD_SEED),
        *(_part_row(p, n) for n in (_NOISES[0], _NOISES[-1]) for p in _PARTS),
    ),
    columns=('minus seed', 'seconds'),
)

_INITIALISATIONS = design.Study(
    name='heads',
    title='Ten initialisations of the head',
    question=(
        'The seed head, from ten random seeds of its initial weights, order '
        'and dropout; and two of them without the warm-up of the learning rate.'
    ),
    rows=(
        row('head', HEAD_SEED, seeds=tuple(range(1, 11))),
        row(
            'without warm-up',
            HEAD_SEED.but('head_cold', {'WARMUP_STEPS': 0}),
            'head',
            seeds=_SEEDS[:2],
        ),
    ),
    columns=('range', 'dev range'),
)

_INTRODUCTION = """\
# Recorded voices in miniature

What federated training on recorded voices gives, with noise and without, from
random weights and from a public encoder. This makes everything and writes this
page; `--test=FOLDER` adds AN4's own test part:

    python -m experiments.run --suite=an4 --source=AN4_FOLDER

The speech is AN4's training part: 74 people spelling words and reading numbers
and commands; 28 are public, 32 private, 4 for tuning (dev) and 10 for testing
(718 words), outside all training data. The language model (LM) is of the public
speakers' transcripts. Whisper's training data may contain AN4. At 32 speakers
no epsilon is a guarantee: all runs are NOT PRIVATE.

Rates are means over random seeds, with the standard deviation. Differences have
95 % intervals over test speakers and seeds, paired by both: what a seed model
changes in all runs that start from it cancels. How runs vary over seeds is
estimated from all rows of this page with the same kind of model, so two rows
have the same interval in every table. A claim is not decided if its interval
contains 0, or its margin. Noise is the norm of the noise on the mean over C,
sqrt(D) z / S for D weights and S people a round. Seconds are on a busy machine.
"""

SUITE = design.Suite(
    name='an4',
    studies=(_ENCODER, _NOISE, _TRAINED, _INITIALISATIONS),
    introduction=_INTRODUCTION,
    evaluation='an4_evaluate',
    shards=an4_data.AUDIO,
    data=('experiments.an4_data',),
    needs_source=True,
    tests={
        'test': 'ten held-out speakers',
        an4_data.OFFICIAL: "AN4's own test part",
    },
    language_model=_LANGUAGE_MODEL,
    command='python -m experiments.run --suite=an4 --source=AN4_FOLDER',
    report='docs/an4.md',
)

"""Findings about federated training without privacy: groups a, b, d and e."""

from tff_asr.findings import experiments
from tff_asr.findings import recipes as recipes

_COHORTS = (1, 2, 4, 8, 16)
# Utterances of 80 rounds of one client, in central batches.
_STEPS_PER_CLIENT = 74


def _cohort_rows(cohort_size: int) -> tuple[experiments.Row, experiments.Row]:
  """Central training, and federated training with a cohort beside it."""
  num_steps = _STEPS_PER_CLIENT * cohort_size
  central = experiments.Row(
      label=f'central, as {cohort_size}',
      recipe=experiments.Recipe(
          name=f'central_{cohort_size}',
          program=experiments.CENTRAL,
          experiment='an4_central',
          settings={
              'NUM_STEPS': num_steps,
              'EVALUATE_EVERY': num_steps,
              'DECAY_START': num_steps // 2,
              'DECAY_STEPS': num_steps // 4,
          },
          parent=recipes.SEED,
      ),
      seeds=recipes.THREE,
      rates=(0.0003, 0.001, 0.003),
      against='seed',
      series='central',
      x=cohort_size,
  )
  federated = experiments.Row(
      label=f'federated, {cohort_size}',
      recipe=recipes.FEDERATED.having(
          f'cohort_{cohort_size}',
          COHORT_SIZE=cohort_size,
          BUILD_COHORTS='@cohorts.fixed_size',
      ),
      seeds=recipes.THREE,
      against=central.label,
      series='federated',
      x=cohort_size,
  )
  return central, federated


_FIRST_GAP = {'federated, 1': 1, 'central, as 1': -1}
_LAST_GAP = {'federated, 16': 1, 'central, as 16': -1}
COHORT = experiments.Group(
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
        recipes.SEED_ROW,
        *(row for size in _COHORTS for row in _cohort_rows(size)),
    ),
    x_label='clients a round',
    columns=('rate', 'utterances', 'MB', 'seconds'),
    claims=(
        experiments.Claim('Federated training is behind at 1.', _FIRST_GAP, 1),
        experiments.Claim('The gap is gone at 16.', _LAST_GAP, 0),
        experiments.Claim(
            'The gap at 1 is larger than at 16.',
            _FIRST_GAP | {label: -n for label, n in _LAST_GAP.items()},
            1,
        ),
        experiments.Claim(
            'Federated training at 1 is behind the longest central training.',
            recipes.minus(['federated, 1'], ['central, as 16']),
            1,
        ),
        experiments.Claim(
            'That gap is larger at 1 than at 4.',
            recipes.minus(['federated, 1'], ['federated, 4']),
            1,
        ),
        experiments.Claim(
            'That gap is larger at 1 than at 16.',
            recipes.minus(['federated, 1'], ['federated, 16']),
            1,
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


def _optimizer_row(label: str, *rates: float) -> experiments.Row:
  """A server optimizer with rates to choose from."""
  name = label.lower()
  return experiments.Row(
      label=label,
      recipe=recipes.FEDERATED.but(
          f'server_{name}', gin_files=(f'gin/optimizers/{name}.gin',)
      ),
      rates=rates,
      against=None if label == 'LAMB' else 'LAMB',
      x=label,
  )


OPTIMIZERS = experiments.Group(
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
        experiments.Claim(
            'LAMB is ahead of SGD.', recipes.minus(['LAMB'], ['SGD']), -1
        ),
        experiments.Claim(
            'LAMB and Adam are level.', recipes.minus(['LAMB'], ['Adam']), 0
        ),
        experiments.Claim(
            'LAMB and LARS are level.', recipes.minus(['LAMB'], ['LARS']), 0
        ),
    ),
)


def _work_row(
    label: str,
    *,
    steps: int | None = None,
    epochs: int | None = None,
    against: str | None = None,
) -> experiments.Row:
  """A row of local steps or epochs."""
  return experiments.Row(
      label=label,
      recipe=recipes.FEDERATED.having(
          f'work_{label.replace(" ", "_")}',
          NUM_LOCAL_STEPS=steps,
          NUM_LOCAL_EPOCHS=epochs,
      ),
      against=against,
      x=label,
  )


WORK = experiments.Group(
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
        experiments.Claim(
            'Epochs are ahead of steps.',
            recipes.minus(['1 epoch', '2 epochs'], ['3 steps', '6 steps']),
            -1,
        ),
    ),
    remark=(
        "AN4's speakers have about equal amounts of speech (21 to 61 s, 9 to "
        '14 utterances), so both do about the same; those of Common Voice have '
        'seconds to hours.'
    ),
)

_SCRATCH = recipes.FEDERATED.having(
    'scratch', INIT_FROM_RUN=None, CLIENT_LEARNING_RATE=0.4
).but('scratch', parent=None)
SEEDS = experiments.Group(
    name='e',
    title='(e) With and without a seed model',
    question=(
        'The paper: without a seed model, training is far behind after as many '
        'rounds; an under-trained one already helps. Here, without DP: from '
        'the seed model, from one of 300 instead of 1,500 steps, and from '
        "scratch with the clients' rate doubled, as in the paper."
    ),
    rows=(
        recipes.SEED_ROW,
        recipes.NO_DP_ROW,
        recipes.SHORT_SEED_ROW,
        experiments.Row(
            label='from short seed',
            recipe=recipes.FROM_SHORT_SEED,
            seeds=recipes.THREE,
            against='short seed',
            x='short seed,\n80 rounds',
        ),
        experiments.Row(
            label='from scratch',
            recipe=_SCRATCH,
            against='no DP',
            x='scratch,\n80 rounds',
        ),
        experiments.Row(
            label='from scratch, 320 rounds',
            recipe=_SCRATCH.having(
                'scratch_320', NUM_ROUNDS=320, DECAY_START=160, DECAY_ROUNDS=80
            ),
            against='no DP',
            x='scratch,\n320 rounds',
        ),
    ),
    x_label='start',
    columns=('utterances', 'seconds'),
    claims=(
        experiments.Claim(
            'After as many rounds, a seed model is ahead of none.',
            recipes.minus(['no DP'], ['from scratch']),
            -1,
        ),
        experiments.Claim(
            'And of none after four times as many.',
            recipes.minus(['no DP'], ['from scratch, 320 rounds']),
            -1,
        ),
        experiments.Claim(
            'An under-trained seed model is ahead of none.',
            recipes.minus(['from short seed'], ['from scratch']),
            -1,
        ),
    ),
)

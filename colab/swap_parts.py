# %% [markdown]
# # 2. Another model, another optimizer, another clip
#
# How to swap the clip, the optimizer and the model of a training run, and how
# to use your own optimizer. gin files name the parts. It takes minutes on two
# CPU cores, and needs Python 3.11. It uses notebook 1's people and first model,
# or makes them.

# %%
import pathlib
import subprocess
import sys

if sys.version_info[:2] != (3, 11):
  raise RuntimeError(
      f'This kernel is Python {sys.version.split()[0]}; 3.11 is needed, see '
      'notebook 1.'
  )
WORK = pathlib.Path('notebook_data')  # What is there already is used again.
SPEECH = WORK / 'population'


def run(program, *flags):
  """Runs a program of tff_asr, as `tff-asr PROGRAM FLAG ...` in a terminal."""
  subprocess.run(
      [sys.executable, '-m', 'tff_asr', program, *map(str, flags)],
      stderr=subprocess.STDOUT, check=True,
  )


def train_seed(name, *flags):
  """Trains a first model on the public speakers; returns its folder."""
  run('train_central', f'--output_dir={WORK / name}',
      '--gin_file=gin/experiments/quickstart_seed.gin', *flags,
      *(f'--gin_param={setting}' for setting in (
          f'TRAIN_DIR = "{SPEECH / "public"}"', f'DEV_DIR = "{SPEECH / "dev"}"',
          'NUM_STEPS = 500', 'DECAY_START = 250', 'DECAY_STEPS = 75',
          'EVALUATE_EVERY = 500',
      )))
  return str(WORK / name)


run('synthetic_population', f'--output_dir={SPEECH}',
    '--num_private_speakers=600', '--num_test_speakers=40')
seed = train_seed('seed')

# %% [markdown]
# ## A run is a list of files
#
# `train` builds an experiment, runs some rounds and returns the error rate on
# the dev set after each. A swap is another file, or a setting.

# %%
from tff_asr import launch  # First: quiets TensorFlow before it is loaded.
from matplotlib import pyplot as plt
from tff_asr import config
from tff_asr.data import cohorts
from tff_asr.execution import multi_device
from tff_asr.learning import fed_avg
from tff_asr.models import weights as weights_lib
from tff_asr.privacy import keys
from tff_asr.programs import federated
from tff_asr.programs import warm_start
from tff_asr.reports import style

plt.style.use(style.PATH)  # The look of all figures.

multi_device.set_default_context()  # All GPUs, else the CPU.
NUM_ROUNDS = 12
curves = {}


def train(label, *gin_files, **settings):
  """Trains for some rounds; the dev set's WER in % goes into `curves`."""
  settings = {
      'PRIVATE_DIR': str(SPEECH / 'private'), 'DEV_DIR': str(SPEECH / 'dev'),
      'INIT_FROM_RUN': seed, 'COHORT_SIZE': 200, 'NOISE_MULTIPLIER': 0.04,
      'NUM_ROUNDS': NUM_ROUNDS, 'TARGET_EPSILON': None,
  } | settings
  training = config.bind(
      federated.FederatedTraining,
      gin_files=['gin/experiments/quickstart_federated_dp.gin', *gin_files],
      gin_params=[f'{name} = {value!r}' for name, value in settings.items()],
  )(output_dir=str(WORK / 'unused'), configuration=config.text())
  process = training.learning_process
  # The same people and the same noise in the same rounds, for a fair
  # comparison, so NOT PRIVATE: a real run draws its keys.
  source = cohorts.poisson(
      training.client_data.client_ids, cohort_size=settings['COHORT_SIZE'],
      key=keys.from_seed(1),
  )
  cohort_state = source.initial_state()
  state = fed_avg.set_noise_key(process.initialize(), keys.from_seed(2))
  state = state._replace(global_model_weights=warm_start.replace_weights(
      state.global_model_weights, run=settings['INIT_FROM_RUN'],
      model=training.model, tokens=training.tokens,
  ))
  rates = [100 * training.evaluator(state.global_model_weights).word_error_rate]
  for _ in range(NUM_ROUNDS):
    cohort, cohort_state = source.draw(cohort_state)
    clients = training.client_data.locate_clients(cohort)
    state, _ = process.next(state, clients)
    rates.append(
        100 * training.evaluator(state.global_model_weights).word_error_rate
    )
  curves[label] = rates
  size = weights_lib.num_parameters(training.model.specs)
  print(f'{label}: {size:,} parameters, '
        f'WER {rates[0]:.1f} -> {rates[-1]:.1f} %')


def show(*labels):
  """Draws some curves, each in its colour, with their names at their ends."""
  _, axes = plt.subplots(figsize=(6.5, 3.2))
  for number, (label, rates) in enumerate(curves.items()):
    if label in labels:
      axes.plot(rates, 'o-', color=f'C{number}', markersize=4, label=label)
  axes.set(xlabel='round', ylabel='WER on the dev set, %')
  style.name_curves(axes)
  plt.show()


train('as it is')

# %% [markdown]
# ## The clip
#
# The experiment clips each layer of a client's update separately, in proportion
# to the root of its size. Another file clips the update as a whole; noise and
# epsilon do not change. The second change is a setting, a tenth of the clip: it
# reduces noise and clipped updates by the same factor, and LAMB's steps do not
# depend on the length of the mean update.

# %%
train('one clip for all layers', 'gin/privacy/global.gin')
train('a tenth of the clip', L2_NORM_CLIP=0.001)
show('as it is', 'one clip for all layers', 'a tenth of the clip')

# %% [markdown]
# ## The server's optimizer
#
# LAMB takes steps in proportion to each layer's weights. SGD and Adam do not,
# and each needs another learning rate.

# %%
train('SGD', 'gin/optimizers/sgd.gin', SERVER_LEARNING_RATE=50.0)
train('Adam', 'gin/optimizers/adam.gin', SERVER_LEARNING_RATE=0.001)
show('as it is', 'SGD', 'Adam')

# %% [markdown]
# ## The model
#
# Gated convolutions of half the width, with a new first model. A file
# such as `gin/models/transformer_toy.gin` swaps the kind of model in the same
# way; transformers need more than these 500 steps on sixteen people.

# %%
train('half as wide', DIM=48, INIT_FROM_RUN=train_seed(
    'seed_half', '--gin_param=DIM = 48'
))
show('as it is', 'half as wide')

# %% [markdown]
# ## Your own part
#
# Write a Python file and a gin file, in a folder of yours. This server
# optimizer takes steps of fixed size against the sign of a running mean.

# %%
MINE = WORK / 'mine'
MINE.mkdir(exist_ok=True)
(MINE / 'sign_mean.py').write_text('''
import tensorflow as tf
from tff_asr.optimizers import per_tensor


def build(learning_rate, *, beta):

  def update(weight, gradient, slots, scalars):
    mean = beta * slots['mean'] + (1 - beta) * gradient
    return weight - scalars['learning_rate'] * tf.sign(mean), dict(mean=mean)

  return per_tensor.build(
      update, hparams=dict(learning_rate=learning_rate), slots=('mean',)
  )
''')
(MINE / 'sign_mean.gin').write_text('''
from __gin__ import dynamic_registration
import sign_mean

BETA = 0.9
BASE_OPTIMIZER = @sign_mean.build()
sign_mean.build:
  learning_rate = %LEARNING_RATE
  beta = %BETA
''')
train('mine', str(MINE / 'sign_mean.gin'), SERVER_LEARNING_RATE=0.001)
show('as it is', 'Adam', 'mine')

# %% [markdown]
# All of this is the same on the command line, with a ledger and a privacy
# report:
#
#     tff-asr train_federated --output_dir=runs/mine \
#         --gin_file=gin/experiments/quickstart_federated_dp.gin \
#         --gin_file=notebook_data/mine/sign_mean.gin
#
# docs/runs.md lists parts and settings, docs/extending.md says what each part
# must do, and which of them carry the guarantee.

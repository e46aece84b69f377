# %% [markdown]
# # Federated training of a speech recogniser, round by round
#
# **Kernel: Python 3.11 with what `requirements.txt` pins.** TensorFlow 2.14, on
# which TensorFlow Federated 0.87 is built, has no wheels for newer ones, and
# Colab's own kernels are newer: there, this notebook needs a local runtime. In
# this project's folder
#
#     tools/make_venv.sh
#     .venv/bin/python -m pip install ipykernel notebook
#     .venv/bin/python -m notebook colab/tff_simulation.ipynb
#
# (Colab's "connect to a local runtime" takes the address that the last line
# prints; that was not tried.) It generates its own small corpus of speech, and
# runs for some minutes on two CPU cores.

# %%
import sys

if sys.version_info[:2] != (3, 11):
  raise RuntimeError(
      f'This kernel is Python {sys.version.split()[0]}; 3.11 is needed, see '
      'above.'
  )

# %% [markdown]
# ## A corpus
#
# Of thirteen generated speakers eight are private and four watch; one is left
# for a test.

# %%
import os
import pathlib
import subprocess
import tempfile

PROJECT = next(
    folder
    for folder in [pathlib.Path.cwd(), *pathlib.Path.cwd().parents]
    if (folder / 'tff_asr').is_dir()
)
sys.path.insert(0, str(PROJECT))
WORK = tempfile.TemporaryDirectory()
SPEECH = os.path.join(WORK.name, 'speech')
SHARDS = os.path.join(WORK.name, 'shards')


def run(module, *flags):
  subprocess.run(
      [sys.executable, '-m', module, *flags], cwd=PROJECT, check=True
  )


run('data_tools.synthetic_speech', f'--output_dir={SPEECH}',
    '--num_speakers=13', '--num_dev_speakers=4', '--num_test_speakers=1')
run('data_tools.librispeech', f'--source_dir={SPEECH}',
    f'--output_dir={SHARDS}', '--splits=train,dev')

# %% [markdown]
# ## The learning process, and what executes it
#
# gin names the parts of a training run; its process is a `tff.learning` one.
# The rounds run on all devices of this machine.

# %%
from tff_asr import launch  # First: quiets TensorFlow before it is loaded.
from tff_asr import config
from tff_asr.data import client_data
from tff_asr.data import cohorts
from tff_asr.execution import multi_device
from tff_asr.learning import fed_avg
from tff_asr.privacy import epsilon_report
from tff_asr.privacy import keys
from tff_asr.programs import evaluation
from tff_asr.programs import federated

multi_device.set_default_context()

COHORT_SIZE, NUM_ROUNDS, NOISE_MULTIPLIER = 3, 4, 0.00144
private = client_data.load(os.path.join(SHARDS, 'train'))
dev = client_data.load(os.path.join(SHARDS, 'dev'))


def experiment(*gin_files, **settings):
  """The training run that these files and settings configure, not begun."""
  settings = {
      'PRIVATE_DIR': os.path.join(SHARDS, 'train'),
      'DEV_DIR': os.path.join(SHARDS, 'dev'),
      'INIT_FROM_RUN': None,
      'COHORT_SIZE': COHORT_SIZE,
      'NUM_LOCAL_STEPS': 2,
      'NOISE_MULTIPLIER': NOISE_MULTIPLIER,
  } | settings
  return config.bind(
      federated.FederatedTraining,
      gin_files=['gin/experiments/quickstart_federated_dp.gin', *gin_files],
      gin_params=[f'{name} = {value!r}' for name, value in settings.items()],
  )(output_dir=os.path.join(SHARDS, 'run'), configuration=config.text())


training = experiment()
process = training.learning_process
print(process.next.type_signature.parameter[1])

# %% [markdown]
# ## Rounds
#
# `process.next` takes the state and the ids of a cohort, drawn by Poisson
# sampling; each client's data are opened where the client runs.

# %%
evaluator = evaluation.Evaluator(
    model=training.model, pipeline=training.pipeline, client_data=dev
)


def train(process, num_rounds):
  """Runs rounds; returns the last state and each round's metrics."""
  cohort = cohorts.poisson(
      private.client_ids, cohort_size=COHORT_SIZE
  ).iterator()
  state = fed_avg.set_noise_key(process.initialize(), keys.draw())
  rounds = []
  for number in range(1, num_rounds + 1):
    state, metrics = process.next(state, cohort.select())
    exact = metrics['aggregator']['not_private']
    rounds.append({
        'clients': float(metrics['client_work']['num_clients']),
        'signal': float(exact['signal_norm']),
        'noise': float(metrics['aggregator']['noise_norm']),
        'clipped layers': float(exact['clipped_layers']),
        'WER': evaluator(state.global_model_weights).word_error_rate,
    })
    print(number, rounds[-1])
  return state, rounds


state, per_layer = train(process, NUM_ROUNDS)

# %% [markdown]
# ## Another way of clipping
#
# A swap is another gin file: here one clip of the whole update in place of one
# for each layer.

# %%
_, whole = train(
    experiment('gin/privacy/global.gin').learning_process, NUM_ROUNDS
)

# %% [markdown]
# ## Norms, word error rate and epsilon
#
# With so few speakers no noise that lets a model learn gives a useful epsilon;
# that needs thousands of people.

# %%
from matplotlib import figure

epsilons = [
    epsilon_report.solve(
        cohort_size=COHORT_SIZE,
        population=len(private.client_ids),
        noise_multiplier=NOISE_MULTIPLIER,
        rounds=number,
    ).epsilon
    for number in range(1, NUM_ROUNDS + 1)
]
picture = figure.Figure(figsize=(12, 3.5), layout='constrained')
norms, errors, spent = picture.subplots(1, 3)
numbers = range(1, NUM_ROUNDS + 1)
for label, rounds in (('per layer', per_layer), ('whole update', whole)):
  signal = [r['signal'] for r in rounds]
  norms.plot(numbers, signal, 'o-', label=f'signal, {label}')
  errors.plot(numbers, [100 * r['WER'] for r in rounds], 'o-', label=label)
norms.plot(numbers, [r['noise'] for r in per_layer], 'k:', label='noise')
spent.plot(numbers, epsilons, 'o-')
norms.set_yscale('log')
spent.set_yscale('log')
for axes, label in (
    (norms, 'norm'),
    (errors, 'WER on the dev set, %'),
    (spent, 'epsilon (RDP)'),
):
  axes.set_xlabel('round')
  axes.set_ylabel(label)
norms.legend()
errors.legend()
picture.savefig(os.path.join(WORK.name, 'rounds.png'))
picture

# %% [markdown]
# ## An utterance and what the model hears
#
# After a few rounds from nothing it hears next to nothing; `bin/quickstart`
# trains one for minutes.

# %%
heard = evaluator(state.global_model_weights).hypotheses[0]
print('said: ', heard.reference)
print('heard:', heard.text)
example = next(iter(dev.create_tf_dataset_for_client(heard.client_id)))
try:
  from IPython import display

  sound = display.Audio(example['waveform'].numpy(), rate=16000)
except ImportError:  # Run as a script.
  sound = None
sound

# %% [markdown]
# # 1. Federated training, round by round
#
# A speech recogniser learns from six hundred generated people who keep their
# recordings: in each round some of them train it a little, and the model changes
# only by the noised mean of their updates. It takes minutes on two CPU cores.
#
# **It needs Python 3.11**, for TensorFlow 2.14, on which TensorFlow Federated
# 0.87 is built. From a checkout:
#
#     tools/make_venv.sh speech-synthesis notebooks
#     .venv/bin/python -m jupytext --to ipynb --set-kernel python3 \
#         --execute colab/tff_simulation.py
#     .venv/bin/python -m ipykernel install --user --name tff_asr
#
# The second command runs this notebook; the third makes the environment a
# kernel of your own Jupyter or editor. With the wheel, install the same extras
# (docs/installing.md).
#
# Hosted Colab cannot run it cell by cell, because its kernels are newer (3.13
# since August 2026). There, make an environment of Python 3.11 with uv
# (docs/installing.md, With a newer Python), and run the second command in it.
# Neither this nor Colab's local runtime was tried.

# %%
import pathlib
import subprocess
import sys

if sys.version_info[:2] != (3, 11):
  raise RuntimeError(
      f'This kernel is Python {sys.version.split()[0]}; 3.11 is needed, see '
      'above.'
  )
WORK = pathlib.Path('notebook_data')  # What is there already is used again.


def run(program, *flags):
  """Runs a program of tff_asr, as `tff-asr PROGRAM FLAG ...` in a terminal."""
  subprocess.run(
      [sys.executable, '-m', 'tff_asr', program, *map(str, flags)],
      stderr=subprocess.STDOUT, check=True,
  )


# %% [markdown]
# ## People, and a first model
#
# eSpeak NG speaks short sentences in many voices. A *seed* model is trained in
# the usual way on sixteen public people. The private ones are the clients.
# Thirty-two others, the dev set, are for evaluation.

# %%
SPEECH = WORK / 'population'
run('synthetic_population', f'--output_dir={SPEECH}',
    '--num_private_speakers=600', '--num_test_speakers=40')
run('train_central', f'--output_dir={WORK / "seed"}',
    '--gin_file=gin/experiments/quickstart_seed.gin',
    *(f'--gin_param={setting}' for setting in (
        f'TRAIN_DIR = "{SPEECH / "public"}"', f'DEV_DIR = "{SPEECH / "dev"}"',
        'NUM_STEPS = 500', 'DECAY_START = 250', 'DECAY_STEPS = 75',
        'EVALUATE_EVERY = 500',
    )))

# %%
from tff_asr import launch  # First: quiets TensorFlow before it is loaded.
from matplotlib import pyplot as plt
from tff_asr import config
from tff_asr.data import client_data
from tff_asr.data import cohorts
from tff_asr.execution import multi_device
from tff_asr.features import log_mel
from tff_asr.privacy import privacy_report
from tff_asr.programs import evaluation
from tff_asr.programs import federated
from tff_asr.programs import warm_start
from tff_asr.reports import style

plt.style.use(style.PATH)  # The look of all figures.

multi_device.set_default_context()  # All GPUs, else the CPU.
private = client_data.load(str(SPEECH / 'private'))
dev = client_data.load(str(SPEECH / 'dev'))
example = next(iter(dev.create_tf_dataset_for_client(dev.client_ids[0])))
waveform = example['waveform'].numpy()

picture, axes = plt.subplots(figsize=(8, 2.6))
axes.imshow(
    log_mel.log_mel_numpy(waveform).T, origin='lower', aspect='auto',
    extent=(0, len(waveform) / log_mel.SAMPLE_RATE_HZ, 0, log_mel.NUM_MEL_BINS),
)
axes.set(
    title=f'"{example["transcript"].numpy().decode()}", as the model sees it',
    xlabel='seconds', ylabel='mel bin',
)
axes.grid(False)
plt.show()

# %% [markdown]
# ## The learning process
#
# gin files name the parts of a training run; `config.bind` builds the run from
# them, with its learning process of TensorFlow Federated.

# %%
COHORT_SIZE, NUM_ROUNDS, NOISE_MULTIPLIER = 200, 12, 0.04
SETTINGS = {
    'PRIVATE_DIR': str(SPEECH / 'private'),
    'DEV_DIR': str(SPEECH / 'dev'),
    'INIT_FROM_RUN': str(WORK / 'seed'),
    'COHORT_SIZE': COHORT_SIZE,
    'NUM_ROUNDS': NUM_ROUNDS,
    'NOISE_MULTIPLIER': NOISE_MULTIPLIER,
    'TARGET_EPSILON': None,
}
training = config.bind(
    federated.FederatedTraining,
    gin_files=['gin/experiments/quickstart_federated_dp.gin'],
    gin_params=[f'{name} = {value!r}' for name, value in SETTINGS.items()],
)(output_dir=str(WORK / 'unused'), configuration=config.text())
process = training.learning_process
print('A round takes', process.next.type_signature.parameter[1])

# %% [markdown]
# ## Rounds
#
# A round takes the locations of a cohort's records: each of the 600 clients
# joins independently with probability 1/3. The records are read where the
# client runs. Its update is clipped, layer by layer, before the server adds
# noise, which each round draws anew.

# %%
evaluator = evaluation.Evaluator(
    model=training.model, pipeline=training.pipeline, client_data=dev
)
source = cohorts.poisson(private.client_ids, cohort_size=COHORT_SIZE)
cohort_state = source.initial_state()
state = process.initialize()
state = state._replace(
    global_model_weights=warm_start.replace_weights(
        state.global_model_weights, run=SETTINGS['INIT_FROM_RUN'],
        model=training.model, tokens=training.tokens,
    )
)
before = evaluator(state.global_model_weights)
rounds = []
print('round  clients  dev WER %')
print(f'    0           {100 * before.word_error_rate:9.1f}')
for number in range(1, NUM_ROUNDS + 1):
  cohort, cohort_state = source.draw(cohort_state)
  state, metrics = process.next(state, private.locate_clients(cohort))
  after = evaluator(state.global_model_weights)
  rounds.append({
      'clients': int(metrics['client_work']['num_clients']),
      'signal': float(metrics['aggregator']['not_private']['signal_norm']),
      'noise': float(metrics['aggregator']['noise_norm']),
      'WER': 100 * after.word_error_rate,
  })
  print(f'{number:5} {rounds[-1]["clients"]:8} {rounds[-1]["WER"]:10.1f}')

# %% [markdown]
# ## What the rounds did
#
# Left: the error rate falls, although no recording left its owner. Right: the
# noise is larger than the mean update. The model still learns, because the
# noise has another direction in each round, and the updates agree more.

# %%
picture, (errors, norms) = plt.subplots(1, 2, figsize=(9, 3.2))
numbers = range(1, NUM_ROUNDS + 1)
errors.plot(
    [0, *numbers],
    [100 * before.word_error_rate, *(each['WER'] for each in rounds)], 'o-',
)
errors.set(title='Word error rate', ylabel='% on the dev set')
norms.plot(numbers, [each['signal'] for each in rounds], 'o-', label='update')
norms.plot(numbers, [each['noise'] for each in rounds], 's--', label='noise')
norms.set(title='Mean update and noise', ylabel='norm')
norms.legend()
for axes in (errors, norms):
  axes.set(xlabel='round', ylim=0)
plt.show()

# %% [markdown]
# ## What the model transcribes

# %%
for old, new in list(zip(before.hypotheses, after.hypotheses))[:160:40]:
  print(f'said    {old.reference}\nbefore  {old.text}\nafter   {new.text}\n')

# %% [markdown]
# ## Is it private?
#
# Not yet. The noise gives a useful guarantee *with cohorts of 4,000 out of
# 48,000 people*; the same noise on the mean is too weak to hide a person among
# 600. The cell below prints NOT PRIVATE. Notebook 3 shows how epsilon depends
# on the population. A hand-written loop, as here, also has no ledger. For a
# guarantee use `tff-asr train_federated`, which charges each round before its
# model is seen.

# %%
print(privacy_report.plan(
    cohort_size=COHORT_SIZE, population=len(private.client_ids),
    noise_multiplier=NOISE_MULTIPLIER, rounds=NUM_ROUNDS, delta=1e-5,
))

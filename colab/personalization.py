# %% [markdown]
# # 5. How well does it work for each person?
#
# One error rate for all people hides for whom a model fails. This notebook
# looks at each person, and at what they gain if a copy of the model learns from
# their own speech, on their own device. It takes minutes on two CPU cores, and
# needs Python 3.11 (notebook 1 describes the setup).

# %%
import json
import pathlib
import subprocess
import sys

from matplotlib import pyplot as plt

from tff_asr.reports import plots
from tff_asr.reports import runs
from tff_asr.reports import tables

if sys.version_info[:2] != (3, 11):
  raise RuntimeError(
      f'This kernel is Python {sys.version.split()[0]}; 3.11 is needed, see '
      'notebook 1.'
  )
WORK = pathlib.Path('notebook_data') / 'people'
RUN = WORK / 'model'


def run(program, *flags):
  """Runs a program of tff_asr, as `tff-asr PROGRAM FLAG ...` in a terminal."""
  subprocess.run(
      [sys.executable, '-m', 'tff_asr', program, *map(str, flags)],
      stderr=subprocess.STDOUT, check=True,
  )


# %% [markdown]
# ## People, and a model for all of them
#
# eSpeak NG speaks for 16 people whose recordings train a model, and for 40
# others who will use it. Each has a voice, one of three accents and a rate of
# speech. Generated speech is not human speech: the figures are those of a
# demonstration.

# %%
run('synthetic_population', f'--output_dir={WORK / "data"}',
    '--num_private_speakers=1', '--num_dev_speakers=4',
    '--num_test_speakers=40', '--num_test_utterances=20')
run('train_central', f'--output_dir={RUN}',
    '--gin_file=gin/experiments/quickstart_seed.gin',
    f'--gin_param=TRAIN_DIR = "{WORK / "data" / "public"}"',
    f'--gin_param=DEV_DIR = "{WORK / "data" / "dev"}"',
    '--gin_param=NUM_STEPS = 500', '--gin_param=DECAY_START = 350',
    '--gin_param=DECAY_STEPS = 75', '--gin_param=EVALUATE_EVERY = 250')

# %% [markdown]
# ## The error rate of each person
#
# Half of each person's sentences evaluate the model. A copy of it then learns
# from 2, from 5 and from all ten sentences of the other half, and the first
# half evaluates each copy. No copy leaves its person: the command gets three
# counts of each evaluation (errors, words, sentences that the copy learned
# from).

# %%
run('personalize', '--gin_file=gin/programs/personalize.gin',
    '--gin_file=gin/experiments/quickstart_common.gin',
    '--gin_file=gin/models/conv_quickstart.gin',
    f'--gin_param=RUNS = ["{RUN}"]',
    f'--gin_param=PERSONAL_DIR = "{WORK / "data" / "test"}"',
    '--gin_param=NUM_UTTERANCES = [2, 5, None]',
    '--gin_param=NUM_LOCAL_STEPS = 40', '--gin_param=AUGMENT = None',
    '--gin_param=CLIENT_LEARNING_RATE = 0.03')

# %% [markdown]
# People from the best to the worst, before and after. The shaded tenth is whom
# the model serves worst: a mean does not show them.

# %%
found = runs.read([str(RUN)])
picture = WORK / 'people.png'
plots.save(plots.personalization(found), str(picture))
plt.figure(figsize=(9, 4.2))
plt.imshow(plt.imread(picture))
plt.axis('off')
plt.show()

# %%
gains = tables.personal_gains(found)
print(tables.markdown([list(row) for row in zip(*gains)]))  # Rows as columns.

# %% [markdown]
# ## Groups
#
# Which groups does the model serve worse, and does a personal copy close the
# gap? Intervals are over the people of a group; small groups say little.

# %%
print(tables.markdown(tables.gains_by_group(found)))

# %% [markdown]
# ## What may adapt
#
# A copy is as large as the model unless only a part of it may change. Here only
# the output layer does: a few kilobytes for each person.

# %%
run('personalize', '--gin_file=gin/programs/personalize.gin',
    '--gin_file=gin/experiments/quickstart_common.gin',
    '--gin_file=gin/models/conv_quickstart.gin',
    f'--gin_param=RUNS = ["{RUN}"]',
    f'--gin_param=PERSONAL_DIR = "{WORK / "data" / "test"}"',
    "--gin_param=TRAINED = ['head/.*']",
    "--gin_param=OUTPUT_NAME = 'head.json'",
    '--gin_param=NUM_LOCAL_STEPS = 40', '--gin_param=AUGMENT = None',
    '--gin_param=CLIENT_LEARNING_RATE = 0.03')
result = json.loads((RUN / 'head.json').read_text('utf-8'))
first = [*result['people'].items()][0]
print(len(result['people']), 'people; the first:', first)

# %% [markdown]
# ## Whose figures are these?
#
# Nothing was trained for others, so no model spends privacy. The figures
# themselves are exact. Figures of a person whose recordings trained the model
# with a guarantee would break that guarantee: the command refuses such people
# unless `EXACT_METRICS` allows it. `docs/personalization.md` says more.

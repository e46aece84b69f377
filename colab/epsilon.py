# %% [markdown]
# # 3. What epsilon means
#
# What an attacker can guess at a given epsilon, how epsilon depends on noise,
# people and rounds, and measured error rates. Nothing is trained: it takes a
# minute on two CPU cores. It needs Python 3.11 (notebook 1 describes the
# setup).

# %%
import itertools
import pathlib
import sys

if sys.version_info[:2] != (3, 11):
  raise RuntimeError(
      f'This kernel is Python {sys.version.split()[0]}; 3.11 is needed, see '
      'notebook 1.'
  )

from tff_asr import launch  # First: quiets TensorFlow before it is loaded.
from matplotlib import pyplot as plt
import numpy as np
import tensorflow as tf
from tff_asr.privacy import privacy_report
from tff_asr.privacy import keys
from tff_asr.privacy import noise
from tff_asr.reports import plots
from tff_asr.reports import style

plt.style.use(style.PATH)

DELTA = 1e-5


def epsilon(**plan):
  """Epsilon of a plan; more than 10 is called NOT PRIVATE everywhere."""
  return privacy_report.plan(delta=DELTA, **plan).epsilon


# %% [markdown]
# ## A guess
#
# An attacker sees a released sum and knows every contribution except Anna's.
# *Is she in it?* Clipping limits her contribution to 1, and noise of standard
# deviation z is added. An attacker who says "yes" above some threshold is right
# for some sums with her and wrong for some without her. Epsilon limits
# **every** attack: none can reach the grey region. The pictures show 20,000
# sums of each kind, with this library's noise; the curve goes through all
# thresholds.

# %%
GRID = 2**20  # Steps of the integer grid on which noise is drawn.
NUM_SUMS = 20_000


def sums(contribution, *, noise_multiplier):
  """Released sums to which Anna contributes this much."""
  (drawn,) = noise.gaussian(
      [tf.TensorShape([NUM_SUMS])],
      key=tf.constant(keys.draw()),
      release=tf.constant(0, tf.int64),
      stddev=tf.constant(noise_multiplier * GRID, tf.float64),
  )
  return contribution + drawn.numpy() / GRID


picture, panels = plt.subplots(1, 3, figsize=(10, 3.6), sharey=True)
wrong = np.linspace(0, 1, 400)
for axes, noise_multiplier in zip(panels, (8, 4, 2)):
  limit = privacy_report.plan(
      cohort_size=1, population=1, noise_multiplier=noise_multiplier, rounds=1,
      delta=DELTA, accountant='pld',
  ).epsilon
  highest = np.minimum.reduce([
      np.ones_like(wrong),
      np.exp(limit) * wrong + DELTA,
      1 - np.exp(-limit) * (1 - wrong - DELTA),
  ])
  without = np.sort(sums(0, noise_multiplier=noise_multiplier))
  with_anna = np.sort(sums(1, noise_multiplier=noise_multiplier))
  thresholds = np.quantile(np.concatenate([without, with_anna]), wrong)
  above = lambda values: 1 - np.searchsorted(values, thresholds) / NUM_SUMS
  axes.fill_between(wrong, highest, 1, color='0.8', label='impossible')
  axes.plot(above(without), above(with_anna), label='these guesses')
  axes.plot([0, 1], [0, 1], 'k:', label='a coin')
  axes.set(
      title=f'z = {noise_multiplier:g}: epsilon {privacy_report.format_epsilon(limit)}',
      xlabel='wrong "yes"', aspect='equal', xlim=(0, 1), ylim=(0, 1),
  )
panels[0].set(ylabel='right "yes"')
panels[0].legend(loc='lower right')
plt.show()

# %% [markdown]
# ## Noise, people, rounds
#
# A run has many rounds, and each person joins only a few of them. A round
# reveals nothing about people who were not drawn. The star is the quickstart:
# 1,000 expected of 12,000 people in each of 20 rounds, z = 0.8. Each picture
# changes one setting.

# %%
plan = dict(
    cohort_size=1000, population=12_000, noise_multiplier=0.8, rounds=20
)
star = epsilon(**plan)
changes = {
    'noise_multiplier': ('noise multiplier z', np.geomspace(0.5, 8, 14)),
    'population': (
        'people, 1,000 of them a round', np.geomspace(1000, 1e6, 14).astype(int)
    ),
    'rounds': ('rounds', np.geomspace(1, 2000, 14).astype(int)),
}
picture, panels = plt.subplots(1, 3, figsize=(10, 3.3), sharey=True)
for axes, (name, (label, values)) in zip(panels, changes.items()):
  curve = [epsilon(**plan | {name: value.item()}) for value in values]
  axes.axhspan(10, 200, color='0.9')
  axes.loglog(values, curve, 'o-', markersize=3)
  axes.plot(plan[name], star, '*', markersize=14)
  axes.set(xlabel=label, ylim=(0.1, 200))
panels[0].set_xticks([0.5, 1, 2, 4, 8], ['0.5', '1', '2', '4', '8'])
panels[0].minorticks_off()
panels[0].set(ylabel=f'epsilon (RDP), delta {DELTA:g}')
panels[0].text(0.75, 60, 'NOT PRIVATE')
plt.show()

# %% [markdown]
# ## Why it takes many people
#
# The noise on the *mean* of a round, z over the cohort size, decides how well a
# model learns. Keep that noise fixed, and let a twelfth of the people join each
# round: with more people z grows without a loss of accuracy, and epsilon falls.
# The same training gives no guarantee to 600 people and a useful one to 12,000
# (the star).

# %%
NOISE_ON_MEAN = plan['noise_multiplier'] / plan['cohort_size']
small = privacy_report.plan(
    cohort_size=50, population=600, noise_multiplier=50 * NOISE_ON_MEAN,
    rounds=plan['rounds'], delta=DELTA,
)
cohort_sizes = [100, 250, 500, 1000, 2500, 5000, 10_000]
grown = [small] + privacy_report.extrapolate(small, cohort_sizes=cohort_sizes)
populations = [each.rounds[0].sampling.population for each in grown]

picture, axes = plt.subplots(figsize=(6, 3.4))
axes.axhspan(10, 1e4, color='0.9')
axes.loglog(populations, [each.epsilon for each in grown], 'o-')
axes.plot(plan['population'], star, '*', markersize=14)
axes.text(4000, 2000, 'NOT PRIVATE')
axes.set(
    xlabel='people, a twelfth of them a round',
    ylabel=f'epsilon (RDP), delta {DELTA:g}', ylim=(0.1, 1e4),
    title=f'z / cohort = {NOISE_ON_MEAN:g}, {plan["rounds"]} rounds',
)
plt.show()

# %% [markdown]
# ## What was measured
#
# Accounting does not tell how well a model learns under that noise. These are
# complete runs with 12,000 generated speakers, each with its own ledger. The
# cell reads them from docs/population.md of the repository; a wheel contains no
# docs. At epsilon 0 is the control, which was trained on public speakers only:
# a useful model lies *below* it. LM: a language model of public transcripts.

# %%
page = next(
    (
        folder / 'docs' / 'population.md'
        for folder in [pathlib.Path.cwd(), *pathlib.Path.cwd().parents]
        if (folder / 'docs' / 'population.md').is_file()
    ),
    None,
)
picture = None
if page is None:
  print('docs/population.md is not here: run this cell in a checkout.')
else:
  rows = [
      [cell.strip() for cell in line.split('|')[1:-1]]
      for line in page.read_text('utf-8').splitlines()
  ]
  titles = next(row for row in rows if 'epsilon' in row and 'WER %' in row)
  # Below a line of dashes, up to the end of that table.
  measured = list(itertools.takewhile(
      len, rows[rows.index(titles) + 2 :]
  ))
  curves = {}
  for row in measured:
    cells = dict(zip(titles, row))
    model, _, name = row[0].partition(', ')
    if name == 'seed':
      continue
    epsilon = 0.0 if name == 'control' else float(
        cells['epsilon'].replace('infinite', 'inf')
    )
    for column, suffix in (('WER %', ''), ('WER % with LM', ', with LM')):
      curves.setdefault(model + suffix, []).append(
          (epsilon, float(cells[column]))
      )
  picture = plots.plot_over_epsilon(curves, value_label='word error rate, %')
picture  # Not pyplot's: a notebook shows the last value of a cell.

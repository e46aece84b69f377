"""Experiments as data: runs, the rows of tables that they make, and claims.

A group is what one table shows. Its rows name a recipe (how a run is trained)
and the random seeds of the runs that are averaged. What has been run is what
the folders below a runs folder hold, so that groups can be continued after any
stop, and share runs: equal recipes have equal names.
"""

from collections.abc import Mapping, Sequence
import dataclasses
import json
import os
import re
from typing import Any, NamedTuple, Optional

from tff_asr.storage import run_dir

CENTRAL, FEDERATED = 'train_central', 'train_federated'
# The name of the learning rate that a row with rates tries.
_RATE = {CENTRAL: 'LEARNING_RATE', FEDERATED: 'SERVER_LEARNING_RATE'}
_EVALUATION = 'test.json'
_CONFIG = 'config.gin'


@dataclasses.dataclass(frozen=True, kw_only=True)
class Model:
  """What training and evaluation must agree on.

  Attributes:
    gin_files: After the experiment's.
    settings: Macros to gin values.
  """

  gin_files: tuple[str, ...] = ()
  settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Recipe:
  """How runs are trained, but for their random seed.

  Attributes:
    name: Begins the names of their folders.
    program: `CENTRAL` or `FEDERATED`.
    experiment: Name of a file of gin/experiments.
    gin_files: Further files.
    settings: Macros to gin values.
    model: The experiment's own, or another one.
    speakers: 'private' or 'public': whom it is trained on.
    parent: Whose (only) run's model training starts from; None: from scratch.
  """

  name: str
  program: str
  experiment: str
  gin_files: tuple[str, ...] = ()
  settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  model: Model = Model()
  speakers: str = 'private'
  parent: Optional['Recipe'] = None

  def but(self, name: str, /, **changes: Any) -> 'Recipe':
    """A recipe of another name that differs in some attributes."""
    return dataclasses.replace(self, name=name, **changes)

  def having(self, name: str, /, **settings: Any) -> 'Recipe':
    """A recipe of another name with more settings."""
    return self.but(name, settings={**self.settings, **settings})


class Run(NamedTuple):
  """One run: a recipe with a random seed, and perhaps a learning rate.

  Attributes:
    recipe: How.
    seed: None: the recipe's only run, with the experiment's own seed.
    rate: None: the recipe's own.
  """

  recipe: Recipe
  seed: Optional[int] = None
  rate: Optional[float] = None

  @property
  def name(self) -> str:
    """Its folder's."""
    name = self.recipe.name
    if self.rate is not None:
      name += f'_rate{self.rate:g}'
    return name if self.seed is None else f'{name}_{self.seed}'

  @property
  def settings(self) -> dict[str, Any]:
    """All its macros to gin values."""
    settings = {**self.recipe.model.settings, **self.recipe.settings}
    if self.seed is not None:
      settings['SEED'] = self.seed
    if self.rate is not None:
      settings[_RATE[self.recipe.program]] = self.rate
    return settings


@dataclasses.dataclass(frozen=True, kw_only=True)
class Row:
  """A row of a table.

  Attributes:
    label: Unlike those of the other rows.
    recipe: Of its runs.
    seeds: Of its runs.
    rates: Learning rates of which the one with the lowest word error rate on
      the dev speakers, with the first seed, is taken; none: the recipe's own.
    against: Label of the row that it is compared with; None: with none.
    series: The curve that it is a point of; None: a line across the plot.
    x: Where on the plot: a number, or a word of a scale of words.
  """

  label: str
  recipe: Recipe
  seeds: tuple[int | None, ...] = (1,)
  rates: tuple[float, ...] = ()
  against: Optional[str] = None
  series: Optional[str] = ''
  x: float | str | None = None


class Claim(NamedTuple):
  """What the paper finds, as a sum of word error rates with weights.

  Attributes:
    text: In words.
    weights: Labels of rows to their weights.
    expected: The sign that the sum has if the claim holds: +1, -1, or 0 if it
      is to be none.
  """

  text: str
  weights: Mapping[str, float]
  expected: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class Group:
  """A table and its plot.

  Attributes:
    name: Of one word.
    title: Of its section.
    question: What the paper finds, and what is run here.
    rows: The table.
    x_label: Of the plot; None: no plot.
    columns: Names of further columns (`table`).
    claims: What the table is to show.
    remark: What follows from sizes alone; empty: nothing.
    deployment: Cohort and population that epsilons are extrapolated to.
  """

  name: str
  title: str
  question: str
  rows: tuple[Row, ...]
  x_label: Optional[str] = None
  columns: tuple[str, ...] = ()
  claims: tuple[Claim, ...] = ()
  remark: str = ''
  deployment: Optional[tuple[int, int]] = None


def wanted(row: Row, *, runs_dir: str) -> list[Run]:
  """The runs of a row that are known to be needed, trained or not."""
  if not row.rates:
    return [Run(row.recipe, seed) for seed in row.seeds]
  first, *others = row.seeds
  runs = [Run(row.recipe, first, rate) for rate in row.rates]
  rate = best_wer(row, runs_dir=runs_dir)
  if rate is not None:
    runs += [Run(row.recipe, seed, rate) for seed in others]
  return runs


def averaged(row: Row, *, runs_dir: str) -> list[Run]:
  """The runs that a row shows; none while its learning rate is not known."""
  if not row.rates:
    return [Run(row.recipe, seed) for seed in row.seeds]
  rate = best_wer(row, runs_dir=runs_dir)
  if rate is None:
    return []
  return [Run(row.recipe, seed, rate) for seed in row.seeds]


def best_wer(row: Row, *, runs_dir: str) -> float | None:
  """The rate with the lowest dev WER; None before all of them are trained."""
  rates = dev_rates(row, runs_dir=runs_dir)
  if len(rates) < len(row.rates):
    return None
  return min(rates, key=rates.get)


def dev_rates(row: Row, *, runs_dir: str) -> dict[float, float]:
  """Learning rates of a row that are trained to dev WERs, at the end."""
  rates = {}
  for rate in row.rates:
    run = Run(row.recipe, row.seeds[0], rate)
    if is_trained(run, runs_dir=runs_dir):
      found = results(run, runs_dir=runs_dir)['dev_word_error_rate']
      rates[rate] = found[max(found, key=int)]
  return rates


def folder(run: Run, *, runs_dir: str) -> str:
  """Where a run is."""
  return os.path.join(runs_dir, run.name)


def results(run: Run, *, runs_dir: str) -> dict[str, Any]:
  """What a trained run wrote at its end."""
  return read_results(folder(run, runs_dir=runs_dir))


def read_results(path: str) -> dict[str, Any]:
  """The same of a run's folder."""
  with open(os.path.join(path, run_dir.RESULTS), encoding='utf-8') as f:
    return json.load(f)


def is_trained(run: Run, *, runs_dir: str) -> bool:
  """Whether a run has ended.

  Raises:
    ValueError: It was run with other settings of its recipe than these. What
      an experiment's own files or a seed model were then is not compared.
  """
  path = folder(run, runs_dir=runs_dir)
  if not os.path.exists(os.path.join(path, run_dir.RESULTS)):
    return False
  with open(os.path.join(path, _CONFIG), encoding='utf-8') as f:
    text = f.read()
  found = dict(re.findall(r'^(\w+) = (.+)$', text, re.MULTILINE))
  for name, value in run.settings.items():
    if name in found and found[name] != str(value):
      raise ValueError(
          f'{path} was run with {name} = {found[name]}, which is {value} now: '
          'move it away, or take another runs_dir.'
      )
  return True


def is_evaluated(run: Run, *, runs_dir: str) -> bool:
  """Whether a run has been decoded on the test speakers."""
  return os.path.exists(
      os.path.join(folder(run, runs_dir=runs_dir), _EVALUATION)
  )


def select(groups: Sequence[Group], names: Sequence[str]) -> list[Group]:
  """The groups of these names, in their own order.

  Raises:
    ValueError: A name is of no group.
  """
  known = [group.name for group in groups]
  for name in names:
    if name not in known:
      raise ValueError(f'there is no group {name!r}: take {", ".join(known)}.')
  return [group for group in groups if group.name in names]

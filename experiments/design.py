"""Experiments as data: runs, the rows of tables that they make, and claims.

A study answers one question with one table of runs. Its rows name a recipe (how
a run is trained) and the random seeds of the runs that are averaged. Equal
recipes have equal names, so studies share runs.
"""

from collections.abc import Mapping, Sequence
import dataclasses
import math
from typing import Any, NamedTuple, Optional

from tff_asr.reports import runs as runs_lib

CENTRAL, FEDERATED = 'train_central', 'train_federated'
EPSILON = 'epsilon'
"""As a row's x: the epsilon of its runs."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Model:
  """Settings that training and evaluation must agree on.

  Attributes:
    gin_files: After the experiment's.
    settings: Macros to gin values.
    evaluation: Name of the experiment that decodes; None: the suite's.
    shards: Names of the folders of its data, as `Suite.shards`; None: the
      suite's.
    pretrained: Public model whose features `shards` are, which are made from
      the suite's; None: they are there.
  """

  gin_files: tuple[str, ...] = ()
  settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  evaluation: Optional[str] = None
  shards: Optional[str] = None
  pretrained: Optional[str] = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Recipe:
  """Settings of the training of runs, without their random seed.

  Attributes:
    name: Begins the names of their folders.
    program: `CENTRAL` or `FEDERATED`.
    experiment: Name of a file of gin/experiments.
    gin_files: Further files.
    settings: Macros to gin values.
    model: The experiment's own, or another one.
    speakers: The part to train on: 'private', 'public' or another.
    speeds: Speeds at which its utterances are stored, as features of the
      model's `pretrained`; none: as they are.
    parent: Recipe of the run to start from; None: from scratch.
    parent_by_seed: Whether a run starts from the parent's run with the same
      random seed, and not from the parent's only run.
  """

  name: str
  program: str
  experiment: str
  gin_files: tuple[str, ...] = ()
  settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  model: Model = Model()
  speakers: str = 'private'
  speeds: tuple[float, ...] = ()
  parent: Optional['Recipe'] = None
  parent_by_seed: bool = False

  def but(
      self, name: str, /, settings: Mapping[str, Any] = {}, **changes: Any
  ) -> 'Recipe':
    """A recipe of another name, with more settings and other attributes."""
    settings = {**self.settings, **settings}
    return dataclasses.replace(self, name=name, settings=settings, **changes)

  @property
  def part(self) -> str:
    """Names the folder of what it is trained on, as `Suite.shards`."""
    return f'{self.speakers}_speeds' if self.speeds else self.speakers

  @property
  def lineage(self) -> list['Recipe']:
    """The recipes that it starts from, the first one first, and itself."""
    return [*(self.parent.lineage if self.parent else ()), self]


class Run(NamedTuple):
  """One run: a recipe with a random seed.

  Attributes:
    recipe: How.
    seed: None: the recipe's only run, with the experiment's own seed.
  """

  recipe: Recipe
  seed: Optional[int] = None

  @property
  def name(self) -> str:
    """Its folder's."""
    name = self.recipe.name
    return name if self.seed is None else f'{name}_{self.seed}'

  @property
  def parent(self) -> Optional['Run']:
    """The run that it starts from; None: from scratch."""
    recipe = self.recipe
    if recipe.parent is None:
      return None
    return Run(recipe.parent, self.seed if recipe.parent_by_seed else None)

  @property
  def lineage(self) -> list['Run']:
    """The runs that it starts from, the first one first, and itself."""
    return [*(self.parent.lineage if self.parent else ()), self]

  @property
  def settings(self) -> dict[str, Any]:
    """All its macros to gin values."""
    settings = {**self.recipe.model.settings, **self.recipe.settings}
    if self.seed is not None:
      settings['SEED'] = self.seed
    return settings


@dataclasses.dataclass(frozen=True)
class Row:
  """A row of a table.

  Attributes:
    label: Unlike those of the other rows.
    recipe: Recipe of its runs.
    seeds: Random seeds of its runs.
    against: Label of the row that it is compared with; None: with none.
    series: The curve that it is a point of; None: a line across the plot.
    x: Where on the plot: a number, a word of an axis of words, or `EPSILON`.
    kind: Rows of a suite with equal kinds are taken to vary alike over random
      seeds.
  """

  label: str
  recipe: Recipe
  _: dataclasses.KW_ONLY
  seeds: tuple[int | None, ...] = (1,)
  against: Optional[str] = None
  series: Optional[str] = ''
  x: float | str | None = None
  kind: str = ''

  @property
  def runs(self) -> list[Run]:
    """The runs that it averages."""
    return [Run(self.recipe, seed) for seed in self.seeds]


class Claim(NamedTuple):
  """A finding of the paper, as a sum of word error rates with weights.

  Attributes:
    text: The claim in words.
    weights: Labels of rows to their weights.
    expected: The sign that the sum has if the claim holds: +1, -1, or 0 if it
      is to be none.
    margin: Subtracted from the sum before its sign is taken.
    measure: The error rates that are summed: `runs.WER` or another.
    baseline: Error rates of the same runs that are subtracted from these; None:
      none are.
  """

  text: str
  weights: Mapping[str, float]
  expected: int
  margin: float = 0.0
  measure: str = runs_lib.WER
  baseline: Optional[str] = None


def claim(
    text: str,
    first: str | Sequence[str],
    expected: int,
    second: str | Sequence[str],
    *,
    margin: float = 0.0,
    measure: str = runs_lib.WER,
) -> Claim:
  """The mean of some rows minus that of others has the expected sign."""
  first, second = (
      [each] if isinstance(each, str) else each for each in (first, second)
  )
  weights = {label: 1 / len(first) for label in first} | {
      label: -1 / len(second) for label in second
  }
  return Claim(text, weights, expected, margin, measure)


def noise_multiplier(
    noise: float, *, num_parameters: int, cohort_size: int
) -> float:
  """z = noise S / sqrt(D), to three digits.

  Args:
    noise: Norm of the noise on the mean over the clip C. The 3e-6 and 10e-6 of
      https://arxiv.org/abs/2310.00098 come to .05 and .16.
    num_parameters: D.
    cohort_size: S, clients a round.
  """
  return float(f'{noise * cohort_size / math.sqrt(num_parameters):.3g}')


@dataclasses.dataclass(frozen=True, kw_only=True)
class Study:
  """One question, the table of runs that answers it, and its plot.

  Attributes:
    name: Name of one word.
    title: Title of its section.
    question: The finding of the paper, and the runs here.
    rows: The table.
    x_label: Label of the plot's x axis; None: no plot.
    columns: Names of further columns (`report.COLUMNS`).
    claims: What the table is to show.
    remark: What else is to be said; empty: nothing.
  """

  name: str
  title: str
  question: str
  rows: tuple[Row, ...]
  x_label: Optional[str] = None
  columns: tuple[str, ...] = ()
  claims: tuple[Claim, ...] = ()
  remark: str = ''

  @property
  def runs(self) -> list[Run]:
    """The runs of its rows, each once."""
    runs = {run.name: run for row in self.rows for run in row.runs}
    return list(runs.values())


@dataclasses.dataclass(frozen=True, kw_only=True)
class Suite:
  """Studies on one corpus, and their report.

  Attributes:
    name: Name of one word.
    studies: Studies, in the order of the report and of their runs.
    introduction: The report's, Markdown.
    evaluation: Name of the experiment that decodes test speakers.
    shards: Name of the folder of each part's shards, by part: 'public',
      'private', 'dev' and 'test'.
    data: The module that makes the shards, and its flags.
    needs_source: Whether it reads a corpus, from --source.
    tests: Parts that models are decoded on, each with its title. Those after
      the first are left out where they have no shards.
    language_model: File of a language model that `data` makes; None: none.
    num_folds: Folds of a cross-validation: every run is trained once for each
      fold, on shards in a folder of its own. `data` makes them.
    command: What runs it, for its report.
    report: The report's file.
  """

  name: str
  studies: tuple[Study, ...]
  introduction: str
  evaluation: str
  shards: str
  data: tuple[str, ...]
  needs_source: bool
  command: str
  report: str
  tests: Mapping[str, str] = dataclasses.field(
      default_factory=lambda: {'test': 'here'}
  )
  language_model: Optional[str] = None
  num_folds: int = 1

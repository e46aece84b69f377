"""A small study of experiments, and folders as its runs leave them."""

import dataclasses
import functools
import shutil
from typing import Optional

from experiments import an4
from experiments import design
from experiments import jobs
from tests import cases
from tests.reports import run_folders

SEED = an4.SEED
# From the only run of its parent.
FEDERATED = an4.FEDERATED.but('federated', parent_by_seed=False)
SEED_ROW = design.Row('seed', SEED, seeds=(None,), series=None)


def row(label: str = 'federated', recipe=FEDERATED, **changes) -> design.Row:
  """Two seeds, compared with the seed model."""
  return design.Row(
      label, recipe, **{'against': 'seed', 'seeds': (1, 2), **changes}
  )


def study(*rows: design.Row, **changes) -> design.Study:
  return design.Study(**{
      'name': 'x', 'title': 'X', 'question': 'Why?', 'rows': rows, **changes
  })


def suite(*studies: design.Study) -> design.Suite:
  """AN4's, of other studies, decoded greedily."""
  return dataclasses.replace(an4.SUITE, studies=studies, language_model=None)


class TestCase(cases.TestCase):
  """A test of a suite's folders, with its runs in a temporary folder."""

  @functools.cached_property
  def folders(self) -> jobs.Folders:
    return jobs.Folders('data', self.root, suite())

  def finish(
      self,
      name: str,
      *errors: int,
      dev: float = 0.5,
      settings: Optional[dict[str, str]] = None,
      **content,
  ) -> None:
    """Replaces a run's folder; evaluated if it has errors (of ten words)."""
    folder = self.path(name)
    shutil.rmtree(folder, ignore_errors=True)
    run_folders.write(
        folder,
        settings=settings,
        metrics={
            # 9 < 80, though not as text.
            'dev_word_error_rate': {9: 0.9, 80: dev},
            **content.pop('metrics', {}),
        },
        errors={s: (n, 10) for s, n in zip('ab', errors)} or None,
        **{'results': {'seconds': 60.0}} | content,
    )

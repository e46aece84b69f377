"""The suites of experiments/: rows, claims and settings fit together."""

import re

from absl.testing import parameterized

from experiments import an4
from experiments import an4_folds
from experiments import design
from experiments import population
from experiments import report
from tests import experiment_files
from tff_asr import config


_STUDIES = (
    *an4.SUITE.studies, *an4_folds.SUITE.studies, *population.SUITE.studies
)


def _runs(study: design.Study) -> list[design.Run]:
  """All that could be run of a study, with what the runs start from."""
  parents = [run.recipe.parent for run in study.runs if run.recipe.parent]
  return [*study.runs, *map(design.Run, parents)]


class SuitesTest(parameterized.TestCase):

  @parameterized.parameters(*_STUDIES)
  def test_rows_and_claims_name_each_other(self, study):
    labels = [row.label for row in study.rows]
    self.assertCountEqual(labels, set(labels))
    for row in study.rows:
      self.assertIn(row.against, {None, *labels} - {row.label})
    for claim in study.claims:
      self.assertContainsSubset(claim.weights, labels)
      # A difference of rates: what all rows have in common falls out.
      if claim.baseline is None:
        self.assertAlmostEqual(sum(claim.weights.values()), 0)
    self.assertContainsSubset(study.columns, report.COLUMNS)

  def test_runs_of_a_name_are_trained_alike(self):
    known = {}
    for study in population.SUITE.studies:
      for run in _runs(study):
        self.assertEqual(known.setdefault(run.name, run), run)

  @parameterized.parameters(*_STUDIES)
  def test_the_settings_of_all_runs_are_known(self, study):
    for run in {run.recipe.name: run for run in _runs(study)}.values():
      experiment = f'gin/experiments/{run.recipe.experiment}.gin'
      config.bind(
          experiment_files.program(experiment),
          gin_files=[
              experiment, *run.recipe.model.gin_files, *run.recipe.gin_files
          ],
          gin_params=[f'{k} = {v}' for k, v in run.settings.items()],
      )
      # As they are found in the saved configuration of a run.
      found = dict(re.findall(r'^(\w+) = (.+)$', config.text(), re.MULTILINE))
      for name, value in run.settings.items():
        self.assertEqual(found[name], str(value))

  def test_noise_multipliers_by_hand(self):
    # sqrt(443744) = 666.1; .05 * 8 / 666.1 = .00060048.
    self.assertEqual(
        design.noise_multiplier(0.05, num_parameters=443_744, cohort_size=8),
        0.0006,
    )
    # The quickstart's: .8 sqrt(628448) / 1000 = .6342.
    self.assertEqual(
        design.noise_multiplier(
            0.6342, num_parameters=628_448, cohort_size=1000
        ),
        0.8,
    )

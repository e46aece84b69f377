"""The paper's extrapolated epsilons, row by row, as in docs/epsilon.md."""

import pathlib
import re

from absl.testing import parameterized
import pytest

from tff_asr.privacy import accounting

_DOCS = pathlib.Path(__file__).parents[2] / 'docs' / 'epsilon.md'
_DELTA = 1e-9
_COLUMNS = (
    'data', 'sigma_mean', 'cohort_size', 'population', 'rounds',
    'noise_multiplier', 'printed', 'order', 'at_order', 'best', 'pld',
)
# Printed as 1.3, where cells of the same noise, q and rounds say 13.
_MISPRINTED = {('en', 2e-05, 51_200): 13.0}


def _rows() -> list[dict[str, str]]:
  rows = []
  for line in _DOCS.read_text(encoding='utf-8').splitlines():
    if re.match(r'\| (en|fr|de) \|', line):
      cells = [cell.strip().replace(',', '') for cell in line[1:-1].split('|')]
      rows.append(dict(zip(_COLUMNS, cells, strict=True)))
  return rows


def _number(cell: str) -> float:
  """A figure without its footnote or order."""
  return float(cell.split()[0])


def _named_rows():
  for row in _rows():
    name = '_'.join(row[key] for key in _COLUMNS[:4])
    yield re.sub(r'\W', '_', name), row


def _rounds(row: dict[str, str]) -> list[accounting.RoundGroup]:
  """All rounds of a row, from its noise on the mean."""
  cohort_size = int(row['cohort_size'])
  return [
      accounting.RoundGroup(
          sampling=accounting.Sampling(
              kind='poisson',
              cohort_size=cohort_size,
              population=int(row['population']),
          ),
          noise_multiplier=float(row['sigma_mean']) * cohort_size,
          count=int(row['rounds']),
      )
  ]


class PublishedTablesTest(parameterized.TestCase):

  def test_all_rows_are_there(self):
    self.assertEqual(
        [sum(row['data'] == data for row in _rows())
         for data in ('en', 'fr', 'de')],
        [30, 6, 6],
    )

  @parameterized.named_parameters(*_named_rows())
  def test_rdp_at_the_printed_order_is_the_printed_epsilon(self, row):
    self.assertAlmostEqual(
        float(row['sigma_mean'])
        * int(row['cohort_size'])
        / float(row['noise_multiplier']),
        1,
        places=3,
    )
    rounds = _rounds(row)
    found, _ = accounting.rdp_epsilon_and_order(
        rounds, delta=_DELTA, orders=[_number(row['order'])]
    )
    printed = _number(row['printed'])
    key = row['data'], float(row['sigma_mean']), int(row['cohort_size'])
    printed = _MISPRINTED.get(key, printed)
    # Two figures are printed.
    self.assertAlmostEqual(found / printed, 1, delta=0.055)
    # And the other columns are as computed.
    self.assertAlmostEqual(found / _number(row['at_order']), 1, delta=0.01)
    best, order = accounting.rdp_epsilon_and_order(rounds, delta=_DELTA)
    self.assertAlmostEqual(best / _number(row['best']), 1, delta=0.01)
    self.assertIn(f'({order:g})', row['best'])
    self.assertLessEqual(best, found * (1 + 1e-9))
    self.assertEqual(
        row['pld'] == '-', bool(accounting.pld_obstacle(rounds, delta=_DELTA))
    )


@pytest.mark.slow
class PldTest(parameterized.TestCase):

  @parameterized.named_parameters(*_named_rows())
  def test_pld_is_below_rdp_and_as_stated(self, row):
    if row['pld'] == '-':
      self.skipTest('PLD would not end.')
    found = accounting.epsilon(
        _rounds(row), delta=_DELTA, accountant='pld'
    )
    self.assertAlmostEqual(found / _number(row['pld']), 1, delta=0.01)
    self.assertLess(found, _number(row['best']))

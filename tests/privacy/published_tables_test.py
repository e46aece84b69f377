"""The paper's epsilons, row by row: those of docs/epsilon.md, and larger."""

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
# Rows with an epsilon above 1,000. The order of fr, 1e-05, is printed as 1.3;
# that of the last three is the one that gives the printed epsilon.
_LARGE = """
en 0.0001 1024 34753 2006 0.1024 3.3e4 1.1 3.21e+04 3.21e+04_(1.1) -
en 5e-05 1024 34753 2006 0.0512 3.5e5 1.1 3.43e+05 3.43e+05_(1.1) -
en 3e-05 1024 34753 2006 0.03072 1.1e6 1.1 1.09e+06 1.09e+06_(1.1) -
en 2e-05 1024 34753 2006 0.02048 2.6e6 1.1 2.55e+06 2.55e+06_(1.1) -
en 1e-05 1024 34753 2006 0.01024 1.1e7 1.1 1.04e+07 1.04e+07_(1.1) -
en 5e-06 1024 34753 2006 0.00512 4.2e7 1.1 4.2e+07 4.2e+07_(1.1) -
en 3e-06 1024 34753 2006 0.003072 1.2e8 1.1 1.17e+08 1.17e+08_(1.1) -
en 1.8e-06 1024 34753 2006 0.001843 4.5e8 1.5 4.43e+08 3.25e+08_(1.1) -
en 1e-06 1024 34753 2006 0.001024 1.1e9 1.1 1.05e+09 1.05e+09_(1.1) -
en 6e-07 1024 34753 2006 0.0006144 4.0e9 1.5 3.99e+09 2.92e+09_(1.1) -
en 1.8e-06 102400 3475300 2006 0.1843 2.3e4 1.5 2.31e+04 1.61e+03_(1.1) -
en 1e-06 102400 3475300 2006 0.1024 3.2e4 1.1 3.21e+04 3.21e+04_(1.1) -
en 1e-06 204800 6950600 2006 0.2048 1.1e3 1.1 1.09e+03 1.09e+03_(1.1) -
en 6e-07 102400 3475300 2006 0.06144 3.8e5 1.5 3.77e+05 2.15e+05_(1.1) -
en 6e-07 204800 6950600 2006 0.1229 7.9e4 1.5 7.85e+04 1.15e+04_(1.1) -
fr 1e-05 1024 6171 2002 0.01024 1.1e7 1.1 1.05e+07 1.05e+07_(1.1) -
fr 3e-06 1024 6171 2002 0.003072 1.2e8 1.1 1.17e+08 1.17e+08_(1.1) -
de 1e-05 1024 6415 2002 0.01024 1.1e7 1.1 1.05e+07 1.05e+07_(1.1) -
de 3e-06 1024 6415 2002 0.003072 1.2e8 1.1 1.17e+08 1.17e+08_(1.1) -
"""
# Printed as 1.3, where cells of the same noise, q and rounds say 13.
_MISPRINTED = {('en', 2e-05, 51_200): 13.0}


def _rows() -> list[dict[str, str]]:
  rows = []
  for line in _DOCS.read_text(encoding='utf-8').splitlines():
    if re.match(r'\| (en|fr|de) \|', line):
      cells = [cell.strip().replace(',', '') for cell in line[1:-1].split('|')]
      rows.append(dict(zip(_COLUMNS, cells, strict=True)))
  for line in _LARGE.strip().splitlines():
    cells = [cell.replace('_', ' ') for cell in line.split()]
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

"""tools/reaccount.py agrees with the ledger's own accounting, without it."""

import json
import os
import pathlib
import subprocess
import sys
import tempfile

from absl.testing import parameterized

from tools import layers
from tools import reaccount
from tff_asr.privacy import accounting
from tff_asr.privacy import ledger as ledger_lib
from tff_asr.privacy import strategies

_POISSON = accounting.Sampling(kind='poisson', cohort_size=20, population=900)
_FIXED = accounting.Sampling(kind='fixed', cohort_size=20, population=900)
_FULL = accounting.Sampling(kind='full', cohort_size=9, population=9)
_SEPARATED = accounting.Sampling(
    kind='separated', cohort_size=3, population=10, min_separation=3
)
_CYCLIC = accounting.Sampling(
    kind='cyclic', cohort_size=3, population=20, min_separation=4
)
_STRATEGIES = {
    _SEPARATED: strategies.optimize(num_rounds=9, min_separation=3),
    _CYCLIC: strategies.optimize_banded(num_rounds=9, num_bands=3),
}


class ReaccountTest(parameterized.TestCase):

  def setUp(self):
    super().setUp()
    folder = self.enter_context(tempfile.TemporaryDirectory())
    self.path = os.path.join(folder, 'ledger.jsonl')

  def write(self, rounds, *, voids=()) -> ledger_lib.Contents:
    """Charges rounds: (number, sampling, noise multipliers)."""
    with ledger_lib.create(self.path, voids=voids) as ledger:
      for index, (number, sampling, noises) in enumerate(rounds):
        ledger.append(ledger_lib.Round(
            round_num=number, sampling=sampling, noise_multipliers=noises,
            configuration='c', identity=f'{index:064x}',
            sampler_epsilon=1e-11,
            strategy=_STRATEGIES.get(sampling),
        ))
        if index == 1:
          ledger.note('copied')
      return ledger.contents

  @parameterized.named_parameters(
      ('poisson', [(n, _POISSON, (0.8,)) for n in range(40)]),
      ('two_gaussians', [(n, _POISSON, (1.2, 3.0)) for n in range(9)]),
      ('full', [(n, _FULL, (5.0,)) for n in range(3)]),
      ('fixed', [(n, _FIXED, (1.5,)) for n in range(12)]),
      ('fixed_and_full',
       [(0, _FIXED, (4.0,)), (1, _FULL, (8.0,)), (2, _FIXED, (4.0,))]),
      ('noise_changes',
       [(0, _POISSON, (1.0,)), (1, _POISSON, (2.0,)), (2, _POISSON, (1.0,))]),
      ('correlated', [(n, _SEPARATED, (4.0,)) for n in range(7)]),
      ('cyclic', [(n, _CYCLIC, (2.0,)) for n in range(9)]),
      # A round done again, another run.
      ('again', [(n, _SEPARATED, (4.0,)) for n in (0, 1, 1, 2, 3, 0, 1, 5)]),
  )
  def test_agrees(self, rounds):
    contents = self.write(rounds)
    found = reaccount.account(self.path, 1e-5)
    event = accounting.compose(contents.rounds)
    expected = accounting.epsilon(event, delta=1e-5)
    self.assertAlmostEqual(found['rdp_epsilon'] / expected, 1, places=6)
    self.assertEqual(found['rounds'], len(rounds))
    obstacle = accounting.pld_obstacle(event, delta=1e-5)
    self.assertEqual(found['pld_epsilon'] is None, bool(obstacle))
    if not obstacle:
      expected = accounting.epsilon(event, delta=1e-5, accountant='pld')
      self.assertAlmostEqual(found['pld_epsilon'] / expected, 1, places=6)

  def test_no_noise_is_infinite_and_voids_are_told(self):
    self.write([(0, _POISSON, (0.0,))], voids=('NOISE_SEED fixes a key',))
    found = reaccount.account(self.path)
    self.assertEqual(found['rdp_epsilon'], float('inf'))
    self.assertEqual(found['not_private'], ['NOISE_SEED fixes a key'])
    self.assertAlmostEqual(found['delta'], 1 / 9000)

  def test_a_changed_line_is_refused(self):
    self.write([(n, _POISSON, (0.8,)) for n in range(3)])
    path = pathlib.Path(self.path)
    text = path.read_text('utf-8')
    path.write_text(text.replace('[0.8]', '[8.8]', 1), 'utf-8')
    with self.assertRaisesRegex(reaccount.LedgerError, 'line 2 was changed'):
      reaccount.account(self.path)
    path.write_text('{}\n', 'utf-8')
    with self.assertRaisesRegex(reaccount.LedgerError, 'line 1 was changed'):
      reaccount.account(self.path)

  def test_a_program_that_needs_neither_tensorflow_nor_the_package(self):
    self.write([(0, _POISSON, (0.8,))])
    program = (
        'import runpy, sys\n'
        'for name in ("tensorflow", "tensorflow_federated", "tff_asr",'
        ' "tensorflow_privacy"):\n'
        '  sys.modules[name] = None\n'
        f'sys.argv = ["reaccount.py", {self.path!r}]\n'
        f'runpy.run_path({str(layers.ROOT / "tools" / "reaccount.py")!r},'
        ' run_name="__main__")\n'
    )
    finished = subprocess.run(
        [sys.executable, '-c', program],
        capture_output=True, text=True, check=False,
    )
    self.assertEqual(finished.returncode, 0, finished.stderr)
    found = json.loads(finished.stdout)
    self.assertEqual((found['unit'], found['rounds']), ('speaker', 1))
    self.assertGreater(found['rdp_epsilon'], 0)

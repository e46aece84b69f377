"""tools/reaccount.py reads every kind of ledger with dp-accounting alone."""

import json
import pathlib
import subprocess
import sys

from absl import flags
from absl.testing import flagsaver

from tests import cases
from tests import fakes
from tools import layers
from tools import reaccount
from tff_asr.privacy import accounting
from tff_asr.privacy import privacy_report
from tff_asr.privacy import ledger as ledger_lib
from tff_asr.privacy import strategies

_ROUNDS = 7
_POISSON = accounting.Sampling(kind='poisson', cohort_size=20, population=900)
_FIXED = accounting.Sampling(kind='fixed_size', cohort_size=20, population=900)
_FULL = accounting.Sampling(kind='full', cohort_size=9, population=9)
_SEPARATED = accounting.Sampling(
    kind='min_sep', cohort_size=3, population=10, min_sep=3
)
_CYCLIC = accounting.Sampling(
    kind='cyclic', cohort_size=3, population=20, min_sep=4
)
_BLT = strategies.optimize(num_rounds=9, min_sep=3)
_BANDED = strategies.optimize_banded(num_rounds=9, num_bands=3)
_ERROR = 1e-11  # Of a round's sampler.


def _secure_sum(num_clients, survivors):
  return accounting.SecureSumParams(
      bits=16, num_clients=num_clients, min_clients=survivors
  )


# Each kind that the project writes: noise multiplier, other fields of a cost.
_KINDS = {
    'poisson': (0.8, dict(sampling=_POISSON)),
    'fixed_size': (3.0, dict(sampling=_FIXED)),
    'full': (5.0, dict(sampling=_FULL)),
    'blt': (4.0, dict(sampling=_SEPARATED, strategy=_BLT)),
    'banded': (2.0, dict(sampling=_CYCLIC, strategy=_BANDED)),
    'distributed': (
        4.0, dict(sampling=_SEPARATED, secure_sum=_secure_sum(3, 2))
    ),
    'distributed_fixed': (
        3.0, dict(sampling=_FIXED, secure_sum=_secure_sum(20, 15))
    ),
}


class ReaccountTest(cases.TestCase):

  def write(self, kind, name='ledger.jsonl', num_rounds=_ROUNDS, **options):
    """Writes a ledger; returns its path and head."""
    noise, changes = _KINDS[kind]
    with ledger_lib.create(self.path(name), **options) as ledger:
      for number in range(num_rounds):
        ledger.append(fakes.charged_round(
            number, noise_multiplier=noise, sampler_epsilon=_ERROR, **changes
        ))
      return self.path(name), ledger.head

  def test_each_privacy_unit_has_a_separate_line(self):
    parent = self.write('full', 'before.jsonl', privacy_unit='example')
    for num_rounds, units in ((_ROUNDS, ['speaker', 'example']),
                              (0, ['example'])):
      path, _ = self.write(
          'blt', f'{num_rounds}.jsonl', num_rounds, parents=[parent],
          privacy_unit='speaker',
      )
      found = list(reaccount.accounts(path))
      self.assertEqual([each['privacy_unit'] for each in found], units)
      self.assertEqual(found[-1]['delta'], 0.1 / 9)

  def test_invalidations_are_reported(self):
    path, _ = self.write('poisson', invalidations=('NOISE_SEED fixes a key',))
    (found,) = reaccount.accounts(path)
    self.assertEqual((found['epsilon'], found['private']), ('inf', False))
    self.assertIn('NOISE_SEED', str(found['reasons']))

  def test_bad_input_is_told_on_one_line(self):
    flags.FLAGS.mark_as_parsed()
    good, _ = self.write('poisson')
    empty, _ = self.write('poisson', 'empty.jsonl', 0)
    text = pathlib.Path(good).read_text('utf-8')
    lines = [json.loads(line) for line in text.splitlines()]
    lines[1]['cost']['sampling']['population'] = 10**400
    huge = self.path('huge')
    pathlib.Path(huge).write_bytes(fakes.sealed_ledger(lines))
    texts = {
        'changed': text.replace('0.8', '8.8', 1),
        'none': '{}\n',
        'noise': '\x00\xff',
    }
    for name, each in texts.items():
      pathlib.Path(self.path(name)).write_text(each, 'utf-8')
    for arguments, delta, message in (
        ([], None, 'no LEDGER was given'),
        ([self.path('changed')], None, 'line 2 does not follow'),
        ([self.path('none')], None, 'line 1 does not follow'),
        ([self.path('noise')], None, 'has no header'),
        ([self.path('missing')], None, 'is missing'),
        ([self.root], None, 'Is a directory'),
        ([empty], None, 'charges no rounds'),
        ([huge], None, 'population must be between'),
        ([good], 1.0, 'delta must be below 1'),
    ):
      with (
          self.subTest(message),
          flagsaver.flagsaver(delta=delta),
          self.assertRaisesRegex(SystemExit, f'^error: .*{message}.*$'),
      ):
        reaccount.main(['reaccount', *arguments])

  def test_the_program_needs_dp_accounting_alone(self):
    paths = [self.write(kind, kind)[0] for kind in _KINDS]
    program = (
        'import json, runpy, sys\n'
        'before = set(sys.modules)\n'
        f'sys.argv = ["reaccount", "--delta=1e-5", *{paths}]\n'
        'try:\n'
        '  runpy.run_module("tools.reaccount", run_name="__main__",'
        ' alter_sys=True)\n'
        'finally:\n'
        '  print(json.dumps([str(getattr(module, "__file__", ""))'
        ' for name, module in sys.modules.items() if name not in before]))\n'
    )
    finished = subprocess.run(
        [sys.executable, '-c', program], cwd=layers.ROOT,
        capture_output=True, text=True, check=False,
    )
    self.assertEqual(finished.returncode, 0, finished.stderr)
    *lines, files = map(json.loads, finished.stdout.splitlines())
    libraries = {
        file.partition('/site-packages/')[2].split('/')[0] for file in files
    }
    self.assertIn('dp_accounting', libraries)
    # What is installed for dp-accounting, and none else.
    self.assertLessEqual(libraries - {''}, {
        'absl', 'attr', 'attrs', 'dp_accounting', 'mpmath', 'numpy', 'scipy',
        'tree', 'wrapt',
    })
    self.assertEqual([line['ledger'] for line in lines], paths)
    for kind, line in zip(_KINDS, lines, strict=True):
      ledger = ledger_lib.read(line['ledger'])
      report = privacy_report.of_ledger(ledger, delta=1e-5)
      with self.subTest(kind):
        self.assertEqual(line['epsilon_rdp'], report.epsilon_rdp)
        self.assertEqual(line['epsilon_pld'], report.epsilon_pld)
        self.assertEqual(report.epsilon_pld is None, 'fixed' in kind)
        self.assertEqual(
            (line['privacy_unit'], line['rounds']), ('speaker', _ROUNDS)
        )
        self.assertEqual((line['delta'], line['private']), (1e-5, True))

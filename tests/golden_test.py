"""Whole configurations of a dozen experiments, against files in tests/golden.

A file holds what gin binds, and the defaults of the code where it binds
nothing. Whoever changes a gin file or a default sees in the diff what becomes
of them. To rewrite the files after an intended change:

    TFF_ASR_WRITE_GOLDENS=1 .venv/bin/python -m pytest tests/golden_test.py
"""

import os

from absl.testing import parameterized

from tests import experiment_files
from tff_asr import config

_FOLDER = experiment_files.ROOT / 'tests' / 'golden' / 'experiments'
_WRITE = 'TFF_ASR_WRITE_GOLDENS'
# Each axis has each kind of its swaps in one of them.
_NAMES = (
    'cv_de_evaluate',
    'cv_en_central_10',
    'cv_en_dp_dim_from_ls_960',
    'cv_en_dp_global_90_from_10',
    'cv_en_dp_uniform_from_ls_100',
    'cv_en_federated_steps_from_ls_100',
    'finetune_mini_an4',
    'ls_central_960_from_cv_en',
    'ls_federated_960',
    'quickstart_federated_dp',
    'ssl_private',
    'ssl_warm_start',
)


class GoldenTest(parameterized.TestCase):

  @parameterized.named_parameters(
      (experiment_files.name(path), path)
      for path in experiment_files.paths()
      if experiment_files.name(path) in _NAMES
  )
  def test_configuration_is_the_golden_one(self, path):
    experiment_files.bind_complete(path)
    found = config.text()
    found += f'\n# Defaults of the code:\n{experiment_files.defaults(found)}'
    golden = _FOLDER / f'{experiment_files.name(path)}.gin'
    if os.environ.get(_WRITE):
      golden.parent.mkdir(parents=True, exist_ok=True)
      golden.write_text(found, encoding='utf-8')
      self.skipTest(f'{golden.name} written, as {_WRITE} is set.')
    self.assertTrue(golden.exists(), f'{golden} is missing: set {_WRITE}=1.')
    self.maxDiff = None
    self.assertMultiLineEqual(
        golden.read_text(encoding='utf-8'),
        found,
        f'{path} configures something else than {golden.name}; if that is '
        f'intended, set {_WRITE}=1 and run this test once.',
    )

  def test_golden_files_are_those_of_the_list(self):
    self.assertCountEqual(
        [path.stem for path in _FOLDER.glob('*')], _NAMES
    )

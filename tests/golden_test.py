"""Resolved configurations of a dozen experiments, against tests/golden.

A configuration is what gin binds, and, as comments, the defaults of the code
where it binds nothing: a setting a line. A file holds the whole of it, or what
differs from the whole one of another experiment, which its first line names.
Whoever changes a gin file or a default sees in the diff what becomes of them.
To rewrite the files after an intended change:

    TFF_ASR_WRITE_GOLDENS=1 .venv/bin/python -m pytest tests/golden_test.py
"""

import difflib
import os
import pathlib
import re

from absl.testing import parameterized

from tests import experiment_files
from tff_asr import config

_FOLDER = experiment_files.ROOT / 'tests' / 'golden' / 'experiments'
_WRITE = 'TFF_ASR_WRITE_GOLDENS'
# An experiment, and the one that its file has the differences from; None: its
# file is whole.
_GOLDENS = (
    ('cv_de_evaluate', None),
    ('cv_en_central_10', None),
    ('cv_en_dp_dim_from_ls_960', 'cv_en_dp_global_90_from_10'),
    ('cv_en_dp_global_90_from_10', None),
    ('cv_en_dp_uniform_from_ls_100', 'cv_en_dp_global_90_from_10'),
    ('cv_en_federated_steps_from_ls_100', 'cv_en_dp_global_90_from_10'),
    ('finetune_mini_an4', 'cv_en_central_10'),
    ('ls_central_960_from_cv_en', 'cv_en_central_10'),
    ('ls_federated_960', 'cv_en_dp_global_90_from_10'),
    ('quickstart_federated_blt', 'cv_en_dp_global_90_from_10'),
    ('quickstart_federated_distributed', 'cv_en_dp_global_90_from_10'),
    ('quickstart_federated_dp', 'cv_en_dp_global_90_from_10'),
    ('ssl_private', 'ssl_warm_start'),
    ('ssl_warm_start', None),
)
# In gin's text: headings, and the breaks of a value over several lines.
_HEADING = re.compile('#(?!.* = )')
_BREAK = re.compile(r'(?: \\)?\n +')


def _golden(name: str) -> pathlib.Path:
  return _FOLDER / f'{name}.gin'


def _resolved(name: str) -> list[str]:
  """The settings of an experiment."""
  experiment_files.bind_complete(f'gin/experiments/{name}.gin')
  text = config.text()
  return _settings(text + experiment_files.defaults(text))


def _settings(text: str) -> list[str]:
  """The settings of gin's text, each on one line."""
  lines = _BREAK.sub(' ', text).splitlines()
  return [line for line in lines if line and not _HEADING.match(line)]


def _name(setting: str) -> str:
  return setting.partition(' = ')[0]


def _differences(settings: list[str], base: list[str]) -> list[str]:
  """The settings that base has not or otherwise; then names that it has more.

  As a name occurs once, these and base determine the settings.
  """
  names = set(map(_name, settings))
  dropped = [name for name in map(_name, base) if name not in names]
  return [
      *(setting for setting in settings if setting not in base),
      *(f'# Without {name}' for name in dropped),
  ]


class GoldenTest(parameterized.TestCase):

  @parameterized.named_parameters(
      (name, name, base) for name, base in _GOLDENS
  )
  def test_configuration_is_the_golden_one(self, name, base):
    golden, writes = _golden(name), bool(os.environ.get(_WRITE))
    found = _resolved(name)
    self.assertLen(set(map(_name, found)), len(found))
    if base:
      whole = (
          _resolved(base) if writes
          else _golden(base).read_text(encoding='utf-8').splitlines()
      )
      found = [f'# As {base}.gin, but:', *_differences(found, whole)]
    if writes:
      golden.parent.mkdir(parents=True, exist_ok=True)
      golden.write_text('\n'.join([*found, '']), encoding='utf-8')
      self.skipTest(f'{golden.name} written, as {_WRITE} is set.')
    self.assertTrue(golden.exists(), f'{golden} is missing: set {_WRITE}=1.')
    changes = list(difflib.unified_diff(
        golden.read_text(encoding='utf-8').splitlines(), found,
        f'tests/golden/experiments/{golden.name}', 'found', n=0, lineterm='',
    ))
    if changes:
      self.fail('\n'.join([
          f'{name} configures something else than its golden file; if that is '
          f'intended, set {_WRITE}=1 and run this test once.',
          *changes,
      ]))

  def test_golden_files_are_those_of_the_list(self):
    self.assertCountEqual(
        [path.name for path in _FOLDER.glob('*')],
        [_golden(name).name for name, _ in _GOLDENS],
    )

  def test_a_setting_that_is_changed_added_or_dropped_is_a_difference(self):
    base = _settings(
        'from tff_asr.models import conv\n\n# Macros:\n# =====\n'
        "DIM = 8\nNAME = 'a = b'\nSIZES = \\\n    [(1, 2),\n     (3, 4)]\n"
        '# Parameters for conv.build:\n# =====\nconv.build.dim = %DIM\n'
        '# conv.build.dropout = 0.0\n'
    )
    self.assertEqual(base, [
        'from tff_asr.models import conv', 'DIM = 8', "NAME = 'a = b'",
        'SIZES = [(1, 2), (3, 4)]', 'conv.build.dim = %DIM',
        '# conv.build.dropout = 0.0',
    ])
    self.assertEqual(_differences(base, base), [])
    for i, setting in enumerate(base):
      dropped = [*base[:i], *base[i + 1 :]]
      self.assertEqual(
          _differences(dropped, base), [f'# Without {_name(setting)}']
      )
      self.assertEqual(_differences(base, dropped), [setting])
    for i, changed in (
        (1, 'DIM = 9'), (2, "NAME = 'a = c'"), (3, 'SIZES = [(1, 2)]'),
        (5, '# conv.build.dropout = 0.1'),
    ):
      self.assertEqual(
          _differences([*base[:i], changed, *base[i + 1 :]], base), [changed]
      )

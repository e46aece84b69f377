"""The notebooks of colab/: their sources, their outputs, and that they run."""

import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile

from absl.testing import parameterized
import pytest

from tools import layers

_COLAB = layers.ROOT / 'colab'
_SOURCES = sorted(path.stem for path in _COLAB.glob('*.py'))
_TIMEOUT_SEC = 1200
# Each has a few pictures, and no recorded voice.
_MAX_BYTES = 400_000
_COMMAND = (
    'cd colab; ../.venv/bin/python -m jupytext --to ipynb --set-kernel python3'
    ' --execute {}.py'
)


def _cells(name: str) -> list[dict]:
  text = (_COLAB / f'{name}.ipynb').read_text('utf-8')
  return json.loads(text)['cells']


def _source(cells: list[dict]) -> str:
  """Cells in Jupytext's percent format, a blank line between them."""
  found = []
  for cell in cells:
    text = ''.join(cell['source'])
    title = '# %%'
    if cell['cell_type'] == 'markdown':
      title = '# %% [markdown]'
      text = '\n'.join(f'# {line}'.rstrip() for line in text.split('\n'))
    found.append(f'{title}\n{text.strip()}')
  return '\n\n'.join(found)


class NotebooksTest(parameterized.TestCase):

  def test_each_notebook_has_a_source(self):
    self.assertLen(_SOURCES, 5)
    self.assertEqual(
        sorted(path.stem for path in _COLAB.glob('*.ipynb')), _SOURCES
    )

  @parameterized.parameters(*_SOURCES)
  def test_a_notebook_is_that_of_its_source(self, name):
    source = (_COLAB / f'{name}.py').read_text('utf-8').strip()
    self.assertEqual(
        _source(_cells(name)),
        re.sub(r'\n+(?=# %%)', '\n\n', source),
        'out of date: ' + _COMMAND.format(name),
    )

  @parameterized.parameters(*_SOURCES)
  def test_a_notebook_has_the_outputs_of_one_run(self, name):
    code = [cell for cell in _cells(name) if cell['cell_type'] == 'code']
    outputs = [output for cell in code for output in cell['outputs']]
    again = 'not of one run from start to end: ' + _COMMAND.format(name)
    self.assertEqual(
        [cell['execution_count'] for cell in code],
        [*range(1, len(code) + 1)],
        again,
    )
    self.assertNotIn('error', [each['output_type'] for each in outputs], again)
    kinds = {kind for each in outputs for kind in each.get('data', ())}
    self.assertContainsSubset(
        {'image/png'} if name != 'own_recordings' else set(), kinds
    )
    size = (_COLAB / f'{name}.ipynb').stat().st_size
    self.assertBetween(size, 10_000, _MAX_BYTES)
    self.assertNotIn('<audio', json.dumps(outputs))  # It holds a recording.

  def test_a_notebook_changed_by_hand_is_found(self):
    cells = _cells(_SOURCES[0])
    before = _source(cells)
    cells[-1]['source'] = ['changed']
    self.assertNotEqual(_source(cells), before)


@pytest.mark.slow
class NotebooksRunTest(parameterized.TestCase):
  """The cells one after the other, in a folder that the notebooks share."""

  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    cls.folder = cls.enterClassContext(tempfile.TemporaryDirectory())

  def run_notebook(self, name: str, folder: pathlib.Path | None = None) -> str:
    """Runs a notebook's source; returns what it prints."""
    finished = subprocess.run(
        [sys.executable, str(_COLAB / f'{name}.py')],
        cwd=folder or self.folder,
        env=os.environ
        | {'PYTHONPATH': str(layers.ROOT), 'MPLBACKEND': 'agg'},
        capture_output=True,
        text=True,
        timeout=_TIMEOUT_SEC,
        check=False,
    )
    self.assertEqual(finished.returncode, 0, finished.stderr[-3000:])
    return finished.stdout

  def test_the_simulation(self):
    printed = self.run_notebook('tff_simulation')
    rates = re.findall(r'^ +\d+ [ \d]+ (\d+\.\d)$', printed, re.MULTILINE)
    self.assertLen(rates, 13, printed)
    self.assertLess(float(rates[-1]), float(rates[0]))
    self.assertIn('NOT PRIVATE', printed)

  def test_swapped_parts(self):
    printed = self.run_notebook('swap_parts')
    found = dict(re.findall(r'^(.+): [\d,]+ parameters, WER .* -> (.*) %$',
                            printed, re.MULTILINE))
    self.assertLen(found, 7, printed)
    self.assertLen(set(found.values()), 7, 'two parts do the same')

  def test_epsilon(self):
    self.assertIn('run this cell in a checkout', self.run_notebook('epsilon'))
    self.assertEqual(self.run_notebook('epsilon', folder=_COLAB), '')

  def test_own_recordings(self):
    printed = self.run_notebook('own_recordings')
    self.assertIn('recordings of', printed)
    self.assertIn('NOT PRIVATE', printed)
    self.assertIn('+ private', printed)
    self.assertTrue(
        pathlib.Path(self.folder, 'notebook_data/own/private/model.safetensors')
        .exists()
    )

  def test_personalization(self):
    printed = self.run_notebook('personalization')
    # Three numbers of sentences, and the output layer alone.
    self.assertLen(re.findall('WER .* of 40 people', printed), 4, printed)
    self.assertRegex(printed, r'\| accent: ')

"""Tests of tools/notebooks.py, and of the notebooks themselves."""

import json
import os
import subprocess
import sys

from absl.testing import absltest
import pytest

from tools import layers
from tools import notebooks

_TIMEOUT_SEC = 900
# What a kernel does: the cells one after the other, in one module.
_EXECUTE = '''
import json, sys
cells = json.load(open(sys.argv[1], encoding='utf-8'))['cells']
names = {'__name__': '__main__'}
for cell in cells:
  if cell['cell_type'] == 'code':
    exec(compile(''.join(cell['source']), cell['id'], 'exec'), names)
assert len(names['per_layer']) == len(names['whole']) == names['NUM_ROUNDS']
assert names['epsilons'] == sorted(names['epsilons'])
for rounds in (names['per_layer'], names['whole']):
  assert all(0 <= each['WER'] < 5 for each in rounds), rounds
  assert any(each['signal'] > 0 for each in rounds), rounds
import os
assert os.path.getsize(os.path.join(names['WORK'].name, 'rounds.png')) > 10_000
'''


class NotebooksTest(absltest.TestCase):

  def test_cells_by_hand(self):
    self.assertEqual(
        notebooks.cells(
            '# %% [markdown]\n# # Title\n#\n# words\n\n# %%\nx = 1\n\n\n'
            '# %%\n# a comment\ny = 2\n'
        ),
        [
            ('markdown', '# Title\n\nwords'),
            ('code', 'x = 1'),
            ('code', '# a comment\ny = 2'),
        ],
    )
    with self.assertRaisesRegex(ValueError, 'line 1 is before'):
      notebooks.cells('x = 1\n')
    with self.assertRaisesRegex(ValueError, 'line 2 is text and no comment'):
      notebooks.cells('# %% [markdown]\nwords\n')

  def test_every_notebook_is_that_of_its_python_file(self):
    self.assertCountEqual(
        notebooks.files(), sorted((layers.ROOT / 'colab').glob('*.ipynb'))
    )
    for path, text in notebooks.files().items():
      self.assertEqual(
          path.read_text('utf-8'), text,
          f'{path.name} is out of date: python -m tools.notebooks',
      )

  @pytest.mark.slow
  def test_the_simulation_runs_from_its_first_cell_to_its_last(self):
    path = layers.ROOT / 'colab' / 'tff_simulation.ipynb'
    json.loads(path.read_text('utf-8'))
    finished = subprocess.run(
        [sys.executable, '-c', _EXECUTE, str(path)],
        cwd=layers.ROOT / 'colab',
        env=os.environ | {'PYTHONPATH': str(layers.ROOT)},
        capture_output=True,
        text=True,
        timeout=_TIMEOUT_SEC,
        check=False,
    )
    self.assertEqual(finished.returncode, 0, finished.stderr)
    self.assertIn('heard:', finished.stdout)

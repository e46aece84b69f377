"""The sizes of gin/models, as in docs/runs.md. Allocates no weights."""

import re

from absl.testing import parameterized

from tests import experiment_files
from tff_asr import config
from tff_asr.models import ctc
from tff_asr.models import weights

_ROW = re.compile(
    r'^\| `(gin/models/\w+\.gin)` \|[^|]*\|[^|]*\|[^|]*\| ([\d,]+) \| (.*?) ?\|$',
    re.MULTILINE,
)


def _rows() -> list[tuple[str, str, int, str]]:
  """The documented table: name, file, parameters, what the paper prints."""
  text = experiment_files.read('docs/runs.md')
  return [
      (experiment_files.name(path), path, int(count.replace(',', '')), printed)
      for path, count, printed in _ROW.findall(text)
  ]


def _count(path: str, **settings: str) -> int:
  model = config.bind(
      ctc.build,
      gin_files=['gin/data/pipeline.gin', 'gin/execution/gpu.gin', path],
      gin_params=[f'{name} = {value}' for name, value in settings.items()],
  )()
  return weights.num_parameters(model.specs)


class SizesTest(parameterized.TestCase):

  @parameterized.named_parameters(*_rows())
  def test_counted_is_what_is_documented(self, path, expected, printed):
    # By hand, of 255,800,864: front end 861,698; 36 blocks of 7,080,960; norm
    # 1,536; head 768 * 30 + 30.
    del printed
    self.assertEqual(_count(path), expected)

  @parameterized.named_parameters(*(row for row in _rows() if row[3]))
  def test_the_paper_s_figures_are_those_counted(self, path, _, printed):
    # 244M is in units of 2^20. 450M for 454M is the furthest off.
    count = _count(path)
    for figure in re.findall(r'(\d+)M', printed):
      unit = 2**20 if figure == '244' else 10**6
      # 250M is the introduction's round figure.
      tolerance = 0.025 if figure == '250' else 0.01
      self.assertAlmostEqual(
          count / unit / int(figure), 1.0, delta=tolerance, msg=figure
      )

  def test_every_model_is_in_the_table(self):
    files = {
        str(path.relative_to(experiment_files.ROOT))
        for path in (experiment_files.ROOT / 'gin' / 'models').glob('*.gin')
        # Their sizes depend on the public model.
        if not path.name.startswith('public_')
    }
    # What the others include; and what is trained of a model, which is no model.
    files -= {
        f'gin/models/{name}.gin'
        for name in ('conformer', 'transformer', 'subspace')
    }
    self.assertCountEqual(files, [row[1] for row in _rows()])

  def test_outputs_and_norms_add_their_parameters(self):
    # 49 outputs for 30: 19 * (768 + 1). Norm 'post' has no last norm: 2 * 768.
    path = 'gin/models/transformer_255m.gin'
    before = _count(path)
    self.assertEqual(_count(path, LANGUAGE="'fr'") - before, 19 * 769)
    self.assertEqual(_count(path, NORM="'post'") - before, -2 * 768)

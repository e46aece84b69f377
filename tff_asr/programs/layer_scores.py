"""The scores of a warm start's layers in its folder."""

from collections.abc import Mapping
import csv
import io
import os

from tff_asr import files
from tff_asr.learning import layer_freeze
from tff_asr.models import ctc
from tff_asr.models import weights as weights_lib

TABLE = 'layer_scores.csv'


def write(
    run: str, squares: Mapping[str, float], *, specs: weights_lib.Specs
) -> None:
  """Writes the table.

  Args:
    run: The run's folder.
    squares: Accumulated squared gradient norms by layer.
    specs: Of the layers.
  """
  scores = layer_freeze.normalized(squares)
  names = sorted(scores, key=scores.get, reverse=True)
  text = io.StringIO()
  table = csv.writer(text, lineterminator='\n')
  table.writerow(['layer', 'score', 'squared_norms', 'parameters'])
  for name in names:
    size = weights_lib.count({name: specs[name]})
    table.writerow([name, scores[name], squares[name], size])
  files.write_text(os.path.join(run, TABLE), text.getvalue())


def read(run: str, *, specs: weights_lib.Specs) -> dict[str, float]:
  """The scores of the layers of `specs`.

  Raises:
    ValueError: The run has no table, or it is of other layers.
  """
  scores = _read_table(run)
  if scores.keys() != specs.keys():
    raise ValueError(
        f'{os.path.join(run, TABLE)} is of other layers than the model: '
        f'{sorted(scores.keys() ^ specs.keys())[0]} is in one of them only.'
    )
  return scores


def frozen(
    *, run: str, model: ctc.CtcModel, freeze: layer_freeze.LayerFreeze
) -> list[str]:
  """The layers of an encoder to freeze while the model is fine-tuned.

  Args:
    run: Folder of the public warm start of this encoder.
    model: Its head has no scores, and is trained.
    freeze: Chooses among the encoder's layers.

  Raises:
    ValueError: The run has no table, or without one of the encoder's layers.
  """
  scores = _read_table(run)
  specs = model.encoder.specs
  missing = sorted(specs.keys() - scores.keys())
  if missing:
    raise ValueError(
        f'{os.path.join(run, TABLE)} has no score of {missing[0]}: it is of '
        'another encoder.'
    )
  return freeze.choose({name: scores[name] for name in specs})


def _read_table(run: str) -> dict[str, float]:
  """All scores of a run's table."""
  path = os.path.join(run, TABLE)
  if not os.path.exists(path):
    raise ValueError(
        f'{run} has no {TABLE}: layers are frozen by the scores of a public '
        'warm start that has ended.'
    )
  with open(path, encoding='utf-8', newline='') as f:
    return {row['layer']: float(row['score']) for row in csv.DictReader(f)}

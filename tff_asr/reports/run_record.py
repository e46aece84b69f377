"""What the folder of a run says about it: settings, metrics, errors, privacy.

For reports and model cards. A run that goes on, or that was not evaluated, has
less to say: what is missing is None or empty.
"""

from collections.abc import Mapping, Sequence
import dataclasses
import glob
import json
import os
import re
from typing import Any, Optional

import tensorflow as tf

from tff_asr import checks
from tff_asr.storage import metrics_file
from tff_asr.storage import run_dir

_SETTING = re.compile(r'^([A-Z][A-Z0-9_]*) = ((?:.|\n +)*)$', re.MULTILINE)
_BY_LAYER = re.compile(r'(?:^|/)((?:clipped_)?layer_norm|layer_clipped)/(.*)')


@dataclasses.dataclass(frozen=True, kw_only=True)
class Run:
  """A run, as its folder has it.

  Attributes:
    name: What to call it beside other runs.
    path: Its folder.
    configuration: The text of its config.gin.
    settings: The macros set there, as text, by name.
    metrics: The released metrics of the whole model: by name, by round or step.
    layers: Those of layers, from TensorBoard: by name (`layer_norm`), by layer,
      by round.
    results: Its results.json, or None.
    privacy: Its privacy.json, or None.
    statement: Its privacy.txt, or empty.
    evaluation: What an evaluation wrote, or None.
  """

  name: str
  path: str
  configuration: str
  settings: Mapping[str, str]
  metrics: Mapping[str, Mapping[int, float]]
  layers: Mapping[str, Mapping[str, Mapping[int, float]]]
  results: Optional[dict[str, Any]]
  privacy: Optional[dict[str, Any]]
  statement: str
  evaluation: Optional[dict[str, Any]]

  @property
  def unit(self) -> str:
    """What its metrics are by: 'round' or 'step'."""
    return 'round' if 'NUM_ROUNDS' in self.settings else 'step'

  def metric(self, name: str) -> Mapping[int, float]:
    """A metric by round or step; of exact ones the prefix may be left out."""
    for full in (name, f'not_private/{name}'):
      if full in self.metrics:
        return self.metrics[full]
    return {}

  def last(self, name: str) -> Optional[float]:
    """The last value of a metric, or None if it was never released."""
    values = self.metric(name)
    return values[max(values)] if values else None

  @property
  def epsilon(self) -> Optional[float]:
    """Epsilon of its statement; None without one."""
    return None if self.privacy is None else float(self.privacy['epsilon'])


def read(paths: Sequence[str], *, evaluation: str = 'test.json') -> list[Run]:
  """Reads the folders of runs.

  Args:
    paths: The folders.
    evaluation: The file that an evaluation wrote there.

  Raises:
    ValueError: A folder is none of a run, is named twice, or a file in it is
      damaged; for several of them together.
  """
  paths = [os.path.normpath(path) for path in paths]
  twice = sorted({path for path in paths if paths.count(path) > 1})
  if twice:
    raise ValueError(f'{", ".join(twice)} is given more than once.')
  runs, errors = [], []
  for path, name in zip(paths, _names(paths), strict=True):
    try:
      runs.append(_read(path, name=name, evaluation=evaluation))
    except ValueError as e:
      errors.append(e)
  checks.raise_together(errors)
  return runs


def _read(path: str, *, name: str, evaluation: str) -> Run:
  """Reads a folder."""
  config = os.path.join(path, 'config.gin')
  metrics = os.path.join(path, 'metrics.csv')
  for needed in (config, metrics):
    if not os.path.isfile(needed):
      raise ValueError(
          f'{path} has no {os.path.basename(needed)}: is it the folder of a '
          'run (the output_dir of a training program)?'
      )
  configuration = _text(config)
  results = _json(path, run_dir.RESULTS)
  evaluated = _json(path, evaluation)
  if evaluated is not None and not {
      'word_error_rate', 'speakers', 'hypotheses'
  } <= evaluated.keys():
    raise ValueError(
        f'{os.path.join(path, evaluation)} is not what an evaluation writes: '
        'evaluate the run again.'
    )
  return Run(
      name=name,
      path=path,
      configuration=configuration,
      settings=dict(_SETTING.findall(configuration)),
      metrics=metrics_file.read_all(metrics),
      layers=_layers(os.path.join(path, 'tensorboard')),
      results=results,
      privacy=_json(path, 'privacy.json'),
      statement=_text(os.path.join(path, 'privacy.txt')),
      evaluation=evaluated,
  )


def _names(paths: Sequence[str]) -> list[str]:
  """The shortest ends of the paths that tell them apart."""
  parts = [os.path.abspath(path).split(os.sep) for path in paths]
  for count in range(1, max(map(len, parts), default=0) + 1):
    names = ['/'.join(each[-count:]) for each in parts]
    if len(set(names)) == len(names):
      return names
  return list(paths)


def _text(path: str) -> str:
  """A file's text; empty without the file."""
  if not os.path.exists(path):
    return ''
  with open(path, encoding='utf-8', errors='replace') as f:
    return f.read()


def _json(folder: str, name: str) -> Optional[dict[str, Any]]:
  """A JSON file of a folder, or None without it."""
  path = os.path.join(folder, name)
  if not os.path.exists(path):
    return None
  try:
    content = json.loads(_text(path))
  except ValueError as e:
    raise ValueError(
        f'{path} is damaged ({e}): train or evaluate the run again.'
    ) from None
  if not isinstance(content, dict):
    raise ValueError(f'{path} is not what a program of this project writes.')
  return content


def _layers(folder: str) -> dict[str, dict[str, dict[int, float]]]:
  """The metrics of layers among TensorBoard's files.

  A run that was resumed has released some rounds twice; the later counts. The
  last record of a run that goes on may not be whole yet.
  """
  found = {}
  for path in sorted(
      glob.glob(os.path.join(folder, 'events.*')), key=os.path.getmtime
  ):
    try:
      for record in tf.data.TFRecordDataset(path).as_numpy_iterator():
        event = tf.compat.v1.Event.FromString(record)
        for value in event.summary.value:
          if of_layer := _BY_LAYER.search(value.tag):
            metric, layer = of_layer.groups()
            by_layer = found.setdefault(metric, {}).setdefault(layer, {})
            by_layer[event.step] = float(tf.make_ndarray(value.tensor))
    except tf.errors.DataLossError:
      pass
  return found

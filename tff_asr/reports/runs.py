"""Runs as their folders describe them: settings, metrics, errors, privacy.

A run that goes on, or that was not evaluated, has less to say: what is missing
is None or empty.
"""

from collections.abc import Iterator, Mapping, Sequence
import dataclasses
import functools
import glob
import os
import re
import struct
from typing import Any, Optional

from google.protobuf import message
import tensorflow as tf

from tff_asr import checks
from tff_asr import files
from tff_asr.metrics import word_errors
from tff_asr.storage import metrics_file
from tff_asr.storage import run_dir

EVALUATION = 'test.json'

_BY_LAYER = re.compile(r'(?:^|/)((?:clipped_)?layer_norm|layer_clipped)/(.*)')

# Kinds of JSON: a type, several types, a list of one kind, or a kind by field.
_Kind = Any
_ANY = '*'  # Of all fields.
_MAY_MISS = frozenset({
    'attributes', 'bytes_per_client_and_round', 'seconds', 'trained_parameters',
})
_NUMBER = (int, float)
_RESULTS: _Kind = {
    'ended_by': str,
    'seconds': _NUMBER,
    'trained_parameters': int,
    'bytes_per_client_and_round': {'down': _NUMBER, 'up': _NUMBER},
}
_PRIVACY: _Kind = {
    'private': bool,
    'delta': _NUMBER,
    'epsilon': (int, float, str),  # JSON has no infinity.
    'groups': [{
        'kind': str,
        'cohort_size': int,
        'population': int,
        'noise_multiplier': _NUMBER,
        'rounds': int,
    }],
}
_EVALUATION: _Kind = {
    'speakers': {_ANY: {_ANY: int}},
    'attributes': {_ANY: {_ANY: str}},
    'hypotheses': [
        dict.fromkeys(('client_id', 'utterance_id', 'reference', 'text'), str)
    ],
}

# Length and its checksum; after the record comes the record's checksum.
_RECORD_HEAD = struct.Struct('<QI')
_CHECKSUM_BYTES = 4


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Run:
  """A run, as its folder has it.

  Attributes:
    name: What to call it beside other runs.
    path: Its folder.
    configuration: The text of its config.gin.
    settings: The macros set there, as text, by name.
    metrics: The released metrics of the whole model: by name, by round or step.
    results: Its results.json; None: it has not ended. The seconds that it took
      are private where an epsilon is claimed.
    privacy: Its privacy.json, or None.
    statement: Its privacy.txt, or empty.
    evaluation: What an evaluation wrote, or None.
    speakers: Word errors of the evaluated speakers by name, in order.
  """

  name: str
  path: str
  configuration: str
  settings: Mapping[str, str]
  metrics: Mapping[str, Mapping[int, float]]
  results: Optional[Mapping[str, Any]] = None
  privacy: Optional[Mapping[str, Any]] = None
  statement: str = ''
  evaluation: Optional[Mapping[str, Any]] = None
  speakers: Mapping[str, word_errors.WordErrors] = dataclasses.field(
      default_factory=dict
  )

  @property
  def unit(self) -> str:
    """Unit of its metrics: 'round' or 'step'."""
    return 'round' if 'NUM_ROUNDS' in self.settings else 'step'

  @property
  def num_done(self) -> int:
    """Rounds or steps with metrics."""
    return max((max(v) for v in self.metrics.values() if v), default=0)

  @property
  def epsilon(self) -> Optional[float]:
    """Epsilon of its statement; None without one."""
    return None if self.privacy is None else float(self.privacy['epsilon'])

  @property
  def rounds(self) -> Mapping[str, Any]:
    """The last group of rounds of its statement; empty without one."""
    groups = (self.privacy or {}).get('groups')
    return groups[-1] if groups else {}

  @property
  def test_errors(self) -> word_errors.WordErrors:
    """Word errors of all speakers of the evaluation."""
    return word_errors.total(self.speakers.values())

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

  @functools.cached_property
  def layers(self) -> dict[str, dict[str, dict[int, float]]]:
    """Metrics of layers, from TensorBoard: by name, by layer, by round.

    A run that was resumed has released some rounds twice; the later counts. The
    last record of a run that goes on may not be whole yet.
    """
    paths = glob.glob(os.path.join(self.path, run_dir.TENSORBOARD, 'events.*'))
    found = {}
    for path in sorted(paths, key=os.path.getmtime):
      for event in _events(path):
        for value in event.summary.value:
          of_layer = _BY_LAYER.search(value.tag)
          tensor = value.tensor
          is_number = tensor.dtype == tf.float32.as_datatype_enum
          if of_layer and is_number and not tensor.tensor_shape.dim:
            metric, layer = of_layer.groups()
            by_layer = found.setdefault(metric, {}).setdefault(layer, {})
            by_layer[event.step] = float(tf.make_ndarray(tensor))
    return found


def read(
    paths: Sequence[str], *, evaluation: str = EVALUATION
) -> list[Run]:
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
  checks.raise_errors(errors)
  return runs


def _read(path: str, *, name: str, evaluation: str) -> Run:
  """Reads a folder."""
  configuration = _text(run_dir.file_of(path, run_dir.CONFIG))
  metrics = os.path.join(path, run_dir.METRICS)
  if not os.path.isfile(metrics):
    raise ValueError(f'{path} has no {run_dir.METRICS}: has the run begun?')
  results = _json(path, run_dir.RESULTS, _RESULTS)
  privacy = _json(path, run_dir.PRIVACY, _PRIVACY)
  evaluated = _json(path, evaluation, _EVALUATION)
  return Run(
      name=name,
      path=path,
      configuration=configuration,
      settings=run_dir.settings(configuration),
      metrics=metrics_file.read_all(metrics),
      results=results,
      privacy=privacy,
      statement=_text(os.path.join(path, run_dir.STATEMENT)),
      evaluation=evaluated,
      speakers=_speakers(evaluated, os.path.join(path, evaluation)),
  )


def _speakers(
    evaluation: Optional[Mapping[str, Any]], path: str
) -> dict[str, word_errors.WordErrors]:
  """Word errors of an evaluation's speakers, by name in order."""
  if evaluation is None:
    return {}
  try:
    speakers = {
        name: word_errors.WordErrors(**counts)
        for name, counts in sorted(evaluation['speakers'].items())
    }
    if not word_errors.total(speakers.values()).words > 0:
      raise ValueError('no words')
  except (AttributeError, TypeError, ValueError) as e:
    raise ValueError(f'{path} is damaged ({e}): evaluate the run again.') from e
  return speakers


def _names(paths: Sequence[str]) -> list[str]:
  """The shortest ends of the paths that tell them apart."""
  parts = [os.path.abspath(path).split(os.sep) for path in paths]
  for count in range(1, max(map(len, parts), default=0) + 1):
    names = ['/'.join(each[-count:]) for each in parts]
    if len(set(names)) == len(names):
      return names
  return list(paths)


def _events(path: str) -> Iterator[tf.compat.v1.Event]:
  """The whole events of a TFRecord file, up to a damaged one.

  TensorFlow's reader ends the process where a record claims a length beyond the
  memory. Checksums are not looked at.
  """
  with open(path, 'rb') as f:
    size = os.fstat(f.fileno()).st_size
    while len(head := f.read(_RECORD_HEAD.size)) == _RECORD_HEAD.size:
      length, _ = _RECORD_HEAD.unpack(head)
      if length > size - f.tell() - _CHECKSUM_BYTES:
        return
      try:
        yield tf.compat.v1.Event.FromString(f.read(length))
      except message.DecodeError:
        return
      f.seek(_CHECKSUM_BYTES, os.SEEK_CUR)


def _text(path: str) -> str:
  """A file's text; empty without the file."""
  if not os.path.exists(path):
    return ''
  return files.read(path).decode(errors='replace')


def _json(folder: str, name: str, kind: _Kind) -> Optional[dict[str, Any]]:
  """A JSON file of a folder that is of a kind, or None without the file."""
  path = os.path.join(folder, name)
  if not os.path.exists(path):
    return None
  try:
    content = files.parse_json(_text(path))
  except ValueError as e:
    raise ValueError(
        f'{path} is damaged ({e}): train or evaluate the run again.'
    ) from None
  if problem := _problem(content, kind):
    raise ValueError(
        f'{path} is damaged, or a program of another project wrote it: '
        f'{problem}. Train or evaluate the run again.'
    )
  return content


def _problem(value: Any, kind: _Kind) -> str:
  """The problem that keeps a value from being of a kind; empty for none."""
  types = kind if isinstance(kind, (type, tuple)) else type(kind)
  # To Python a bool is an int.
  if not isinstance(value, types) or isinstance(value, bool) != (kind is bool):
    return f'it has a {type(value).__name__} in a wrong place'
  inside = []
  if isinstance(kind, list):
    inside = [(each, kind[0]) for each in value]
  elif isinstance(kind, dict) and _ANY in kind:
    inside = [(each, kind[_ANY]) for each in value.values()]
  elif isinstance(kind, dict):
    missing = kind.keys() - value.keys() - _MAY_MISS
    if missing:
      return f'it has no {" or ".join(sorted(missing))}'
    inside = [(value[name], kind[name]) for name in kind if name in value]
  return next(filter(None, (_problem(*each) for each in inside)), '')

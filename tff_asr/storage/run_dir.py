"""The folder of a run: the files that programs write there and read back.

The folder has mode 0700. Its files:

  config.gin      the configuration, as text to show and to compare; gin never
                  parses it
  parts.json      model and pipeline, as data (`recognition.parts`)
  run.lock        held while a run is in progress; names its process
  machine.json    threads and devices that it began with
                  (`hardware_fingerprint`)
  state/          program states, to resume from (owner only)
  secrets.safetensors   keys and unreleased noise of the newest state, until
                  the run has ended (owner only)
  model.safetensors   the trained weights, for evaluation and as a seed
  ledger.jsonl    what the model's rounds cost in privacy (federated runs, and
                  runs that start from one), by `privacy.ledger`
  trained_on.json   corpora that the model was trained on (owner only), by
                  `programs.public_data`
  metrics.csv     released metrics, one row per round or step
  tensorboard/    the same for TensorBoard
  results.json    the figures at the end
  privacy.txt, privacy.json   the privacy statement (federated runs)
"""

import ast
from collections.abc import Mapping
import difflib
import hashlib
import os
import re
import socket
from typing import Any, Optional

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_asr import checks
from tff_asr import files
from tff_asr.models import ctc
from tff_asr.models import weights as weights_lib
from tff_asr.privacy import ledger as ledger_lib
from tff_asr.storage import checkpoints
from tff_asr.storage import hardware_fingerprint
from tff_asr.storage import metrics_file
from tff_asr.storage import model_file

# Settings that may change when a run is resumed: they decide how far the run
# goes and what it shows, not what a round does.
_MAY_CHANGE = re.compile(
    r'^(NUM_ROUNDS|NUM_STEPS|EVALUATE_EVERY|SAVE_EVERY|KEEP_LAST|KEEP_EVERY'
    r'|TARGET_EPSILON|MAX_FAILED_SHARE|CLIENT_TIMEOUT_SEC|ON_DIVERGENCE'
    r'|EXACT_METRICS|TRACKERS) *='
)
# Those of these that decide where a run ends.
_LENGTH = ('NUM_ROUNDS', 'NUM_STEPS', 'TARGET_EPSILON')
# A macro; values may have several lines.
_SETTING = re.compile(r'^([A-Z][A-Z0-9_]*) = ((?:.|\n +)*)$', re.MULTILINE)
# Metrics of single layers: TensorBoard has them, the CSV does not.
_BY_LAYER = re.compile(r'(^|/)(clipped_)?layer_(norm|clipped|clip)/')
LEDGER = 'ledger.jsonl'
MODEL = 'model.safetensors'
CONFIG = 'config.gin'
PARTS = 'parts.json'
_LOCK = 'run.lock'
METRICS = 'metrics.csv'
RESULTS = 'results.json'
PRIVACY = 'privacy.json'
STATEMENT = 'privacy.txt'
TENSORBOARD = 'tensorboard'
_STATES = 'state'
SECRETS = 'secrets.safetensors'
# What a run writes besides its configuration and its states.
FILES = (
    MODEL,
    SECRETS,
    LEDGER,
    METRICS,
    RESULTS,
    STATEMENT,
    PRIVACY,
)


class RunLock:
  """Holds a folder until `release`, or until this process ends.

  The lock's file stays, and names the process that held the folder last.
  """

  def __init__(self, folder: str):
    """Takes the lock.

    Args:
      folder: Exists.

    Raises:
      ValueError: Another process (or this one) holds it; names it.
    """
    path = os.path.join(folder, _LOCK)
    # Unbuffered. Child processes do not inherit the file.
    self._file = open(path, 'a+b', buffering=0)
    if not files.try_lock(self._file.fileno()):
      self._file.close()
      raise _in_use(folder)
    self._file.truncate(0)
    self._file.write(f'{os.getpid()} on {socket.gethostname()}\n'.encode())

  def release(self) -> None:
    """Lets go of the folder."""
    self._file.close()


class RunDir:
  """One run's folder; created with its parents if it is missing, mode 0700.

  A folder that is there keeps its mode.

  A context manager: until its end, no other run can open the folder.

  Attributes:
    path: The folder.
    state_manager: Manager of its saved states.
    length_changed: Whether a setting that decides where the run ends is not
      what it was when the run began.
  """

  def __init__(
      self,
      path: str,
      *,
      configuration: str,
      parts: str = '',
      keep_last: int = 3,
      keep_every: int = 0,
  ):
    """Opens or creates the folder.

    Args:
      path: The folder.
      configuration: The configuration's text; kept in `config.gin`.
      parts: Model and pipeline, by `config.model_spec`; kept in `parts.json`.
        Empty: the model cannot transcribe or be exported.
      keep_last: Saved states to keep, the newest ones; at least 1.
      keep_every: States of rounds that are multiples of this are kept too; 0:
        none.

    Raises:
      ValueError: As `check_folder`.
    """
    check_folder(path, configuration=configuration)
    self.path = path
    macros = settings(configuration)
    self._settings = {name: _plain(text) for name, text in macros.items()}
    # Names and sizes of files are the owner's alone, too.
    with files.for_owner_only():
      os.makedirs(path, exist_ok=True)
    self._lock = RunLock(path)
    try:
      # The states' folder comes first: it marks the folder as a run's.
      self.state_manager = checkpoints.StateManager(
          self.file(_STATES),
          secrets_path=self.file(SECRETS),
          keep_last=keep_last,
          keep_every=keep_every,
      )
      self.length_changed = False
      if _has_begun(path):
        begun = settings(_read_configuration(path))
        self.length_changed = any(
            begun.get(name) != macros.get(name) for name in _LENGTH
        )
        hardware_fingerprint.check(path)
      else:
        files.write_text(self.file(CONFIG), configuration)
        if parts:
          files.write_text(self.file(PARTS), parts)
        files.write_json(
            hardware_fingerprint.path(path), hardware_fingerprint.describe()
        )
    except BaseException:
      self._lock.release()
      raise

  def __enter__(self) -> 'RunDir':
    return self

  def __exit__(self, *unused_error: Any) -> None:
    self._lock.release()

  def file(self, name: str) -> str:
    """Path of a file in the folder."""
    return os.path.join(self.path, name)

  def read_metrics(self) -> dict[str, dict[int, float]]:
    """Released metrics of the whole run by name, then by round or step.

    A run that was resumed has released some of them before it was stopped.
    """
    return metrics_file.read_all(self.file(METRICS))

  def release_managers(
      self, *, last: int, with_times: bool = True
  ) -> list[tff.program.ReleaseManager]:
    """Targets of metrics: TensorBoard; CSV without those of single layers.

    TensorBoard gets the settings, too.

    Args:
      last: Round or step that the run goes on from; metrics of later ones, of
        a run that was stopped, are released again.
      with_times: Whether TensorBoard gets the time of each release.
    """
    return [
        tff.program.FilteringReleaseManager(
            metrics_file.MetricsFile(self.file(METRICS), last=last),
            lambda path: not _BY_LAYER.search(path[0]),
        ),
        metrics_file.TensorBoardFile(
            self.file(TENSORBOARD),
            with_times=with_times,
            settings=self._settings,
        ),
    ]

  def write_model(
      self,
      weights: Mapping[str, np.ndarray | tf.Tensor],
      *,
      tokens: str,
      ledger: Optional[ledger_lib.Head] = None,
  ) -> None:
    """Writes the trained weights.

    Args:
      weights: Weights by name.
      tokens: Identity of the tokens that they write; '' for none.
      ledger: Head of the run's privacy ledger, so that a run that starts from
        these weights finds what they cost; None: they cost nothing.
    """
    content = {} if ledger is None else {'ledger': list(ledger)}
    model_file.write(self.file(MODEL), weights, tokens=tokens, **content)


def newest_state(run: str) -> Optional[str]:
  """The file of the newest state that a run saved, or None without any."""
  found = checkpoints.saved(os.path.join(run, _STATES))
  return found[max(found)] if found else None


def erase_secrets(run: str) -> str:
  """Erases the keys and the unreleased noise of a run that was abandoned.

  Nothing else is changed. If the run is resumed nevertheless, it continues
  under new keys (`programs.run_state`).

  Args:
    run: The run's folder.

  Returns:
    What was done, in one line.

  Raises:
    ValueError: It is not the folder of a run, or the run is in progress.
  """
  file_of(run, CONFIG)
  lock = RunLock(run)
  try:
    path = os.path.join(run, SECRETS)
    found = os.path.exists(path)
    # Also without the file: a killed program may have left a part of one.
    files.erase(path)
  finally:
    lock.release()
  if not found:
    return f'{run} has no {SECRETS}: there is nothing to erase.'
  return (
      f'{path} is erased; everything else in {run} is kept. If the run is '
      'resumed, it continues from its last saved state under new keys, and '
      'rounds after that state are charged again.'
  )


def check_folder(path: str, *, configuration: str) -> None:
  """Checks that a run can begin or go on in a folder; writes nothing.

  Args:
    path: The folder; need not exist.
    configuration: The configuration's text.

  Raises:
    ValueError: It is no folder or cannot be written; a run goes on in it; it
      holds a run of another configuration (the message shows the first
      difference); or it holds files that a run would overwrite, and is not the
      folder of a run.
  """
  checks.output_folders(output_dir=path)
  _check_free(path)
  if _has_begun(path):
    if not os.path.isfile(os.path.join(path, CONFIG)):
      raise ValueError(
          f'{path} holds a run without its {CONFIG}: put the file back, or '
          'take another output_dir.'
      )
    _check_same(_read_configuration(path), configuration, path=path)
    return
  # A run that stopped before its first state has nothing to go on from, so its
  # settings need not match. Other files are never overwritten.
  marks = [CONFIG, *FILES]
  if os.path.isdir(os.path.join(path, _STATES)):
    marks = [MODEL, RESULTS]
  found = [name for name in marks if os.path.exists(os.path.join(path, name))]
  if found:
    raise ValueError(
        f'{path} holds {", ".join(found)} but no saved state to go on from: '
        'take another output_dir.'
    )


def _check_free(folder: str) -> None:
  """Raises ValueError if a run holds the folder; writes nothing."""
  try:
    descriptor = os.open(os.path.join(folder, _LOCK), os.O_RDONLY)
  except OSError:
    return  # Nobody ever held it.
  try:
    if not files.try_lock(descriptor):
      raise _in_use(folder)
  finally:
    os.close(descriptor)


def _in_use(folder: str) -> ValueError:
  """The error that names who holds the folder."""
  with open(os.path.join(folder, _LOCK), encoding='utf-8') as f:
    holder = f.read().strip() or 'unknown'
  return ValueError(
      f'{folder} is in use by process {holder}: wait until it has ended, end '
      'it, or take another output_dir.'
  )


def file_of(run: str, name: str) -> str:
  """The path of a file that every run has.

  Raises:
    ValueError: The folder does not have the file.
  """
  path = os.path.join(run, name)
  if not os.path.isfile(path):
    raise ValueError(
        f'{run} has no {name}: is it the folder of a run (the output_dir of '
        'a training program)?'
    )
  return path


def _has_begun(path: str) -> bool:
  """True once the run in a folder has saved a state or charged a round."""
  states = os.path.join(path, _STATES)
  if os.path.isdir(states) and any(
      not name.endswith('.partial') for name in os.listdir(states)
  ):
    return True
  ledger = os.path.join(path, LEDGER)
  if not os.path.isdir(states) or not os.path.isfile(ledger):
    return False
  with open(ledger, 'rb') as f:
    f.readline()  # The header.
    return bool(f.read(1))


def read_model(
    run: str, *, model: ctc.CtcModel, tokens: str
) -> weights_lib.Weights:
  """Reads the weights of a finished run for a model.

  Args:
    run: The run's folder.
    model: What the weights are for.
    tokens: Identity of its tokens.

  Returns:
    float32 arrays by name.

  Raises:
    ValueError: As `check_model`, or the file is damaged.
  """
  check_model(run, model=model, tokens=tokens)
  return weights_lib.Weights(model_file.read(os.path.join(run, MODEL)))


def check_model(run: str, *, model: ctc.CtcModel, tokens: str) -> None:
  """Checks that a run's weights fit a model, without reading them.

  Raises:
    ValueError: The run has no model, its tokens differ, or its weights have
      other names or shapes; the message says which.
  """
  path = os.path.join(run, MODEL)
  if not os.path.exists(path):
    raise ValueError(
        f'{run} holds no trained model ({MODEL}): is it the folder of a run '
        'that has ended?'
    )
  header = model_file.read_header(path)
  if tokens and not header.tokens:
    raise ValueError(
        f'the model of {run} is pre-trained and spells nothing yet: fine-tune '
        'it first, by a training run with INIT_FROM_RUN.'
    )
  if header.tokens != tokens:
    raise ValueError(
        f'the model of {run} spells {header.tokens!r} but this configuration '
        f'{tokens!r}: use the tokenizer of that run.'
    )
  check_shapes(header.shapes, model.specs, of=f'the model of {run}')


def check_shapes(
    found: Mapping[str, tuple[int, ...]], specs: weights_lib.Specs, *, of: str
) -> None:
  """Raises ValueError, with the first differences, for shapes of other specs.

  Args:
    found: Shapes by name.
    specs: What they should be.
    of: What they are of, for the message.
  """
  problems = weights_lib.differences(found, specs)
  if problems:
    raise ValueError(
        f'{of} does not fit this configuration: {"; ".join(problems[:3])}'
        + (f'; and {len(problems) - 3} more.' if len(problems) > 3 else '.')
    )


def ledger_of_model(run: str) -> tuple[str, Optional[ledger_lib.Head]] | None:
  """The privacy ledger that a run's model belongs to.

  Args:
    run: The run's folder.

  Returns:
    The ledger's path and the head kept with the model (None: it has no model
    yet), or None for a run without a ledger.

  Raises:
    ledger.LedgerError: The model has a ledger, and it is missing.
  """
  path, head = os.path.join(run, LEDGER), None
  if os.path.exists(os.path.join(run, MODEL)):
    content = model_file.read_header(os.path.join(run, MODEL)).content
    if 'ledger' in content:
      head = ledger_lib.Head(*content['ledger'])
  if os.path.exists(path):
    return path, head
  if head is None:
    return None
  raise ledger_lib.LedgerError(
      f'The model of {run} was trained on private clients, but its privacy '
      f'ledger {path} is missing: put it back.'
  )


def settings(configuration: str) -> dict[str, str]:
  """The macros that a configuration's text sets, with their values as text."""
  return dict(_SETTING.findall(configuration))


def _plain(text: str) -> metrics_file.Setting:
  """A value as a number, a truth value or a text."""
  try:
    value = ast.literal_eval(text.replace('\\\n', ''))
  except (ValueError, SyntaxError):
    return text
  return value if isinstance(value, (bool, int, float, str)) else text


def lasting(configuration: str) -> str:
  """The configuration's text without the settings that a resume may change."""
  lines = configuration.splitlines()
  return '\n'.join(line for line in lines if not _MAY_CHANGE.match(line))


def digest(configuration: str) -> str:
  """SHA-256 of what is `lasting` in a configuration, in hex."""
  return hashlib.sha256(lasting(configuration).encode()).hexdigest()


def flatten_metrics(metrics: Any, *, prefix: str = '') -> dict[str, float]:
  """Nested metrics to a flat dict with names joined by `/`."""
  flat = {}
  for name, value in metrics.items():
    if isinstance(value, Mapping):
      flat |= flatten_metrics(value, prefix=f'{prefix}{name}/')
    elif np.size(value) == 1:
      flat[prefix + name] = float(value)
  return flat


def _read_configuration(path: str) -> str:
  """The text that a run's folder was begun with."""
  config = os.path.join(path, CONFIG)
  with open(config, encoding='utf-8', errors='replace') as f:
    return f.read()


def _check_same(old: str, new: str, *, path: str) -> None:
  """Raises ValueError if the configurations differ in what must stay."""
  difference = _difference(lasting(old), lasting(new))
  if difference is not None:
    raise ValueError(
        f'{path} holds a run of another configuration ({difference}): resume '
        'it with its own settings, or take another output_dir.'
    )


def _difference(old: str, new: str) -> Optional[str]:
  """The first line that differs."""
  lines = difflib.unified_diff(
      old.splitlines(), new.splitlines(), lineterm='', n=0
  )
  for line in lines:
    if line.startswith(('---', '+++', '@@')):
      continue
    where = 'there' if line[0] == '-' else 'here'
    return f'{where}: {line[1:].strip()}'
  return None

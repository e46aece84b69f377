"""The folder of a run: the files that programs write there and read back.

The folder has mode 0700. Its files:

  config.gin      the configuration, as text to show and to compare; gin never
                  parses it
  model_spec.json   model and pipeline, as data (`recognition.model_spec`)
  run.lock        held while a run is in progress; names its process
  machine.json    threads and devices that it began with
                  (`environment_fingerprint`)
  state/          program states, to resume from (owner only)
  secrets.safetensors   keys and unreleased noise of the newest state, until
                  the run has ended (owner only)
  model.safetensors   the trained weights, for evaluation and as a seed
  ledger.jsonl    what the model's rounds cost in privacy (federated runs, and
                  runs that start from one), by `privacy.ledger`
  trained_on.json   people of the run by role: who trained the model, dev sets,
                  and whoever was evaluated (owner only), by
                  `programs.public_data`
  metrics.csv     released metrics, one row per round or step
  tensorboard/    the same for TensorBoard
  results.json    the metrics at the end
  decoding.json   weights of language models, tuned on dev speakers, by
                  `programs.lm_tuning`; written after training
  privacy_report.txt, privacy_report.json   the privacy report (federated runs)
"""

import ast
from collections.abc import Mapping
import contextlib
import difflib
import hashlib
import os
import re
import socket
from typing import Any, BinaryIO, Union

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_asr import checks
from tff_asr import files
from tff_asr.models import ctc
from tff_asr.models import weights as weights_lib
from tff_asr.privacy import ledger as ledger_lib
from tff_asr.privacy import privacy_report
from tff_asr.storage import checkpoints
from tff_asr.storage import environment_fingerprint
from tff_asr.storage import metrics_file
from tff_asr.storage import model_file

# Numbers, tensors and arrays by name, nested.
Metrics = Union[float, np.ndarray, tf.Tensor, Mapping[str, 'Metrics']]

# Settings that may change when a run is resumed: they decide where the run ends
# and what it shows, not what a round does.
_MAY_CHANGE = re.compile(
    r'^(NUM_ROUNDS|NUM_STEPS|EVALUATE_EVERY|SAVE_EVERY|KEEP_LAST|KEEP_EVERY'
    r'|TARGET_EPSILON|MAX_FAILED_SHARE|CLIENT_TIMEOUT_SEC|ON_DIVERGENCE'
    r'|EXACT_METRICS|TRACKERS) *='
)
# In a model's header: the digest of the public model it was trained with.
_PUBLIC = 'public_model'
# Of these, the ones that decide where a run ends.
_LENGTH = ('NUM_ROUNDS', 'NUM_STEPS', 'TARGET_EPSILON')
# A macro; values may span several lines.
_SETTING = re.compile(r'^([A-Z][A-Z0-9_]*) = ((?:.|\n +)*)$', re.MULTILINE)
# Metrics of single layers, for TensorBoard only: the CSV would get hundreds of
# columns.
_BY_LAYER = re.compile(
    r'(^|/)(clipped_)?layer_(gradient_norm|norm|clipped|clip)/'
)
LEDGER = 'ledger.jsonl'
MODEL = 'model.safetensors'
CONFIG = 'config.gin'
MODEL_SPEC = 'model_spec.json'
DECODING = 'decoding.json'
_LOCK = 'run.lock'
METRICS = 'metrics.csv'
RESULTS = 'results.json'
PRIVACY_REPORT = 'privacy_report.txt'
PRIVACY_REPORT_JSON = 'privacy_report.json'
PRIVATE_EVALUATION = 'private_evaluation.json'
TENSORBOARD = 'tensorboard'
_STATES = 'state'
SECRETS = 'secrets.safetensors'
# Files that a run writes besides its configuration and its states.
FILES = (
    MODEL,
    SECRETS,
    LEDGER,
    METRICS,
    RESULTS,
    PRIVACY_REPORT,
    PRIVACY_REPORT_JSON,
    PRIVATE_EVALUATION,
)


class RunLock:
  """Holds a folder until `release`, or until this process ends.

  The lock file stays, and names the process that held the folder last.
  """

  def __init__(self, folder: str):
    """Takes the lock.

    Args:
      folder: The folder; it exists.

    Raises:
      ValueError: Another process (or this one) holds it; the message names it.
        Or the lock file is a link, or no regular file.
    """
    path = os.path.join(folder, _LOCK)
    # Unbuffered. Child processes do not inherit the file.
    self._file = open(path, 'a+b', buffering=0, opener=files.open_own)
    _lock(self._file, folder)
    # Only once it is locked: until then the file names the holder.
    self._file.truncate(0)
    self._file.write(f'{os.getpid()} on {socket.gethostname()}\n'.encode())

  def release(self) -> None:
    """Releases the folder."""
    self._file.close()


def _lock(file: BinaryIO, folder: str) -> None:
  """Locks a folder's lock file; closes it and raises if another has it."""
  if files.try_lock(file.fileno()):
    return
  file.seek(0)
  holder = file.read().decode().strip() or 'unknown'
  file.close()
  raise ValueError(
      f'{folder} is in use by process {holder}: wait until it has ended, end '
      'it, or use another output_dir.'
  )


class RunDir:
  """One run's folder; created with its parents if it is missing, mode 0700.

  An existing folder keeps its mode. The object is a context manager: until its
  end, no other run can open the folder.

  Attributes:
    path: The folder.
    state_manager: Manager of its saved states.
    length_changed: Whether a setting that decides where the run ends was
      changed after the run began.
  """

  def __init__(
      self,
      path: str,
      *,
      configuration: str,
      model_spec: str = '',
      keep_last: int = 3,
      keep_every: int = 0,
  ):
    """Opens or creates the folder.

    Args:
      path: The folder.
      configuration: The configuration's text; kept in `config.gin`.
      model_spec: Model and pipeline, by `config.model_spec`; kept in
        `model_spec.json`. Empty: the model cannot transcribe or be exported.
      keep_last: Saved states to keep, the newest ones; at least 1.
      keep_every: States of rounds that are multiples of this are kept too; 0:
        none.

    Raises:
      ValueError: As `check_folder`.
    """
    check_folder(path, configuration=configuration)
    self.path = path
    macros = macros_of_text(configuration)
    self._settings = {name: _plain(text) for name, text in macros.items()}
    # Names and sizes of files are private, too.
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
        begun = macros_of_text(_read_configuration(path))
        self.length_changed = any(
            begun.get(name) != macros.get(name) for name in _LENGTH
        )
        # A warning only: other hardware changes bits, and no guarantee.
        environment_fingerprint.check(path)
      else:
        # Once: resumed runs are compared with what the run began with.
        files.write_text(self.file(CONFIG), configuration)
        if model_spec:
          files.write_text(self.file(MODEL_SPEC), model_spec)
        files.write_json(
            environment_fingerprint.path(path),
            environment_fingerprint.current_properties(),
        )
    # An interrupt must release the folder, too.
    except BaseException:
      self._lock.release()
      raise

  def __enter__(self) -> 'RunDir':
    return self

  def __exit__(self, *unused_error: object) -> None:
    self._lock.release()

  def file(self, name: str) -> str:
    """Returns the path of a file in the folder."""
    return os.path.join(self.path, name)

  def read_metrics(self) -> dict[str, dict[int, float]]:
    """Returns released metrics of the whole run by name, by round or step."""
    return metrics_file.read(self.file(METRICS))

  def release_managers(
      self, *, last: int, with_times: bool = True
  ) -> list[tff.program.ReleaseManager]:
    """Returns the managers of the CSV file and of TensorBoard.

    Args:
      last: Round or step that the run continues from; metrics of later ones
        are released again.
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
      public_sha256: str = '',
      ledger: ledger_lib.Head | None = None,
  ) -> None:
    """Writes the trained weights.

    Args:
      weights: Weights by name.
      tokens: Identity of the model's vocabulary; '' for a pre-trained encoder.
      public_sha256: Digest of the public model that the weights were trained
        with; '': none.
      ledger: Head of the run's privacy ledger, so that a run that starts from
        these weights finds their privacy loss; None: they have none.
    """
    content = {} if ledger is None else {'ledger': list(ledger)}
    if public_sha256:
      content[_PUBLIC] = public_sha256
    model_file.write(self.file(MODEL), weights, tokens=tokens, **content)


def newest_state_path(run: str) -> str | None:
  """Returns the file of the newest state of a run, or None without any."""
  found = checkpoints.state_paths(os.path.join(run, _STATES))
  return found[max(found)] if found else None


def erase_secrets(run: str) -> str:
  """Erases the keys and the unreleased noise of an abandoned run.

  Nothing else changes. If the run is resumed nevertheless, it continues under
  new keys (`programs.run_state`).

  Args:
    run: The run's folder.

  Returns:
    One line that says what was done.

  Raises:
    ValueError: The folder is not a run's, or the run is in progress.
  """
  file_of(run, CONFIG)
  lock = RunLock(run)
  try:
    path = os.path.join(run, SECRETS)
    found = os.path.exists(path)
    # Even if it does not exist: a killed program may have left a part of it.
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
  """Checks that a run can start or continue in a folder; writes nothing.

  Args:
    path: The folder; need not exist.
    configuration: The configuration's text.

  Raises:
    ValueError: The path is not a folder or cannot be written; a run is in
      progress there; the folder contains a run of another configuration (the
      message shows the first difference); or it contains files that a run would
      overwrite, and is not a run's.
  """
  checks.output_folders(output_dir=path)
  with contextlib.suppress(FileNotFoundError):  # It was never locked.
    lock = os.path.join(path, _LOCK)
    with open(lock, 'rb', opener=files.open_own) as file:
      _lock(file, path)
  if _has_begun(path):
    _check_same(_read_configuration(path), configuration, path=path)
    return
  # A run that stopped before its first state has nothing to continue from, so
  # its settings need not match. Other files are never overwritten.
  marks = [CONFIG, *FILES]
  if os.path.isdir(os.path.join(path, _STATES)):
    marks = [MODEL, RESULTS]
  found = [name for name in marks if os.path.exists(os.path.join(path, name))]
  if found:
    raise ValueError(
        f'{path} contains {", ".join(found)} but no saved state to continue '
        'from: use another output_dir.'
    )


def file_of(run: str, name: str) -> str:
  """Returns the path of a file that every run has.

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
  """Returns whether the run has saved a state."""
  return bool(checkpoints.state_paths(os.path.join(path, _STATES)))


def read_model(
    run: str, *, model: ctc.CtcModel, tokens: str, public_sha256: str = ''
) -> weights_lib.Weights:
  """Reads the weights of a finished run for a model.

  Args:
    run: The run's folder.
    model: The model that the weights are for.
    tokens: Identity of its vocabulary.
    public_sha256: Digest of the public model that it is built on; '': none.

  Returns:
    float32 arrays by name.

  Raises:
    ValueError: As `check_model`, or the file is damaged.
  """
  check_model(run, model=model, tokens=tokens, public_sha256=public_sha256)
  return weights_lib.Weights(model_file.read(os.path.join(run, MODEL)))


def check_model(
    run: str, *, model: ctc.CtcModel, tokens: str, public_sha256: str = ''
) -> None:
  """Checks that a run's weights fit a model, without reading them.

  Raises:
    ValueError: The run has no model, its vocabulary or its public model
      differs, or its weights have other names or shapes; the message says
      which.
  """
  path = os.path.join(run, MODEL)
  if not os.path.exists(path):
    raise ValueError(
        f'{run} contains no trained model ({MODEL}): is it the folder of a run '
        'that has ended?'
    )
  header = model_file.read_header(path)
  # Before names are compared, as every name of the head would be missing.
  if tokens and not header.tokens:
    raise ValueError(
        f'{run} is a pre-trained encoder without a CTC head: fine-tune it '
        'first, by a training run with INIT_FROM_RUN.'
    )
  if header.tokens != tokens:
    raise ValueError(
        f'the vocabulary of {run} is {header.tokens!r}, that of this '
        f'configuration {tokens!r}: use the tokenizer of that run.'
    )
  check_public_model(run, public_sha256)
  check_shapes(header.shapes, model.specs, of=f'the model of {run}')


def check_public_model(run: str, sha256: str) -> None:
  """Raises ValueError if a run's weights were trained with another model.

  Args:
    run: The run's folder, which has a model.
    sha256: Digest of the public model to use them with; '': none.
  """
  content = model_file.read_header(os.path.join(run, MODEL)).content
  trained_with = content.get(_PUBLIC, sha256)
  if trained_with != sha256:
    raise ValueError(
        f'{run} was trained with the public model of SHA-256 {trained_with}, '
        f'and {f"this one has {sha256}" if sha256 else "here is none"}: set '
        'PRETRAINED to the model of that run.'
    )


def check_shapes(
    found: Mapping[str, tuple[int, ...]], specs: weights_lib.Specs, *, of: str
) -> None:
  """Checks the shapes of weights.

  Args:
    found: Shapes by name.
    specs: The specs that they should match.
    of: The subject of the message.

  Raises:
    ValueError: Names or shapes differ; shows the first.
  """
  problems = weights_lib.shape_mismatches(found, specs)
  if problems:
    # Three of them: a model of another size differs in hundreds of weights.
    raise ValueError(
        f'{of} does not fit this configuration: {"; ".join(problems[:3])}'
        + (f'; and {len(problems) - 3} more.' if len(problems) > 3 else '.')
    )


def ledger_of_model(run: str) -> tuple[str, ledger_lib.Head | None] | None:
  """Finds the privacy ledger that a run's model belongs to.

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
    # Absent if no private data trained the model.
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


def read_ledger(run: str) -> ledger_lib.Contents:
  """Reads a run's ledger.

  If the run has ended, lines missing at the ledger's end are noticed, because
  the model names the last one.

  Args:
    run: The run's folder.

  Raises:
    ledger.LedgerError: The ledger is missing or was changed.
    ValueError: The folder has no ledger, or it charges no rounds.
  """
  path = os.path.join(run, LEDGER)
  if not os.path.exists(path):
    raise ValueError(
        f'{run} has no privacy ledger ({LEDGER}): is it the folder of a run on '
        'private data, or of one that started from its model?'
    )
  # The chain of digests shows changed lines; the head, those that were cut off.
  contents = ledger_lib.read(path, head=ledger_of_model(run)[1])
  if not contents.rounds:
    raise ValueError(f'the privacy ledger of {run} charges no rounds yet.')
  return contents


def read_delta(run: str) -> float | None:
  """Delta of a run's privacy report; None before a run has written it.

  Args:
    run: The run's folder.

  Raises:
    ValueError: The file is damaged.
  """
  fields = read_privacy_report(run)
  return None if fields is None else fields['delta']


def read_privacy_report(run: str) -> dict[str, Any] | None:
  """The fields of a run's privacy report; None if there is none.

  Args:
    run: The run's folder.

  Raises:
    ValueError: The file is damaged.
  """
  try:
    return files.read_json(
        os.path.join(run, PRIVACY_REPORT_JSON),
        lambda fields: fields | {'delta': float(fields['delta'])},
        remedy='delete it and give --delta',
    )
  except FileNotFoundError:
    return None


def write_privacy_report(
    run: str, report: privacy_report.PrivacyReport
) -> None:
  """Writes a run's privacy report, to read and as data.

  Args:
    run: The run's folder.
    report: The report.
  """
  files.write_text(os.path.join(run, PRIVACY_REPORT), f'{report}\n')
  # Last: programs read this one.
  files.write_json(os.path.join(run, PRIVACY_REPORT_JSON), report.fields)


def macros_of_text(configuration: str) -> dict[str, str]:
  """Returns the macros that a configuration sets, with values as text."""
  return dict(_SETTING.findall(configuration))


def _plain(text: str) -> metrics_file.Setting:
  """Parses a macro's value where TensorBoard has a type for it."""
  try:
    # gin ends the lines of a long string with a backslash.
    value = ast.literal_eval(text.replace('\\\n', ''))
  except (ValueError, SyntaxError):
    return text
  # Lists and tuples are shown as they are written.
  return value if isinstance(value, (bool, int, float, str)) else text


def resume_invariant(configuration: str) -> str:
  """Returns the text without the settings that a resume may change."""
  lines = configuration.splitlines()
  return '\n'.join(line for line in lines if not _MAY_CHANGE.match(line))


def config_digest(configuration: str) -> str:
  """Returns the SHA-256 of the `resume_invariant` settings, in hex."""
  return hashlib.sha256(resume_invariant(configuration).encode()).hexdigest()


def flatten_metrics(
    metrics: Mapping[str, 'Metrics'], *, prefix: str = ''
) -> dict[str, float]:
  """Flattens nested metrics: names are joined by `/`.

  Values other than single numbers are left out.
  """
  flat = {}
  for name, value in metrics.items():
    if isinstance(value, Mapping):
      flat |= flatten_metrics(value, prefix=f'{prefix}{name}/')
    # Vectors have no column in a table of metrics.
    elif np.size(value) == 1:
      flat[prefix + name] = float(value)
  return flat


def _read_configuration(path: str) -> str:
  """Reads the configuration that a run began with."""
  # A damaged character counts as a difference, not as an error.
  return files.read(os.path.join(path, CONFIG)).decode(errors='replace')


def _check_same(old: str, new: str, *, path: str) -> None:
  """Raises ValueError if settings differ that a resume must not change."""
  lines = difflib.unified_diff(
      resume_invariant(old).splitlines(),
      resume_invariant(new).splitlines(),
      lineterm='',
      n=0,
  )
  changes = [
      line for line in lines if not line.startswith(('---', '+++', '@@'))
  ]
  if changes:
    where = 'there' if changes[0].startswith('-') else 'here'
    raise ValueError(
        f'{path} contains a run of another configuration ({where}: '
        f'{changes[0][1:].strip()}): resume it with its own settings, or use '
        'another output_dir.'
    )

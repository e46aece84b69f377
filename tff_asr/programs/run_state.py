"""State of a run: what is saved of it, and what must not outlive it.

A round's noise key is a function of the run's key and of the round's identity,
which is public (`private_rounds`). So whoever gets a run's key removes the
noise of every round under it. Therefore

- the run's keys change with each round, by a function that cannot be turned
  back: a key tells the rounds after it and none before it;
- saved states hold no secrets. One file, `secrets.safetensors`, has those of
  the newest state alone: the noise key, the sampler's key, and correlated noise
  that later rounds take up again. It is erased when the run has ended, or by
  `bin/erase_secrets.py`. With correlated noise it is as sensitive as clients'
  updates: released sums less its buffers are earlier sums without noise.

Writing a state, in this order, each step on disk before the next:

    1  the state
    2  secrets.safetensors, which names the state that it belongs to
    3  older states are removed

What a run goes on from, wherever that was cut:

- the state that the secrets name. All is as it was, so the same rounds come in
  the same bits. A newer state (cut between 1 and 2) is removed and written
  again by the same rounds.
- If that state is damaged or gone, or the secrets are: the newest good state,
  under new keys. Rounds after it that the ledger has stay charged, and are run
  and charged anew. This also holds for a copy of the folder, because the
  original may go on under the old keys, and for a run that had ended and is to
  do more rounds.
"""

from typing import Any, NamedTuple, Optional

import numpy as np

from tff_asr.data import cohorts
from tff_asr.privacy import accounting
from tff_asr.privacy import ledger as ledger_lib
from tff_asr.programs import private_rounds
from tff_asr.storage import run_dir
from tff_asr.storage import tensor_file


class RunState(NamedTuple):
  """All that a run needs to continue; its keys are () in a saved state.

  Attributes:
    process: The process's state; with noise it holds the noise counter.
    source: State of the draws; holds their key.
    ledger: Head of the privacy ledger.
    noise: The noise key, and the ledger file that it belongs to. The key is ()
      where nothing is charged, and then nothing is secret.
    record: Values that the kind of training keeps from round to round.
  """

  process: Any
  source: Any
  ledger: ledger_lib.Head
  noise: private_rounds.NoiseState
  record: Any


class Secrets(NamedTuple):
  """Content of secrets.safetensors.

  Attributes:
    number: Number of the saved state that they belong to.
    ledger: Its head, which tells it from others of that number.
    noise: The noise key, and the ledger file that it belongs to.
    sampler_key: The key of the draws; () where nothing is drawn by one.
    groups: `cohorts.CohortState.groups` of the draws.
    buffers: Buffers of correlated noise; () without.
  """

  number: int
  ledger: ledger_lib.Head
  noise: private_rounds.NoiseState
  sampler_key: Any
  groups: str
  buffers: Any


async def save(folder: run_dir.RunDir, state: RunState, number: int) -> None:
  """Saves a state and its secrets, as the module says.

  Args:
    folder: The run's.
    state: After so many rounds; it does not change meanwhile.
    number: Number of rounds so far.

  Raises:
    OSError: There is too little room on the disk.
  """
  public, secrets = _split(state, number)
  await folder.state_manager.save(
      public, number, secrets=secrets if _has_secrets(state) else None
  )


async def load(
    folder: run_dir.RunDir, initial: RunState
) -> tuple[Optional[RunState], int, str]:
  """Finds the state to go on from.

  Args:
    folder: The run's.
    initial: The state before the first round; its keys are those of a new run.

  Returns:
    The state, or None if none was saved; its number; and what is the matter
    with secrets.safetensors, or ''. If something is, the keys are those of
    `initial`: see `renewed`.

  Raises:
    DamagedFileError: There are states, and all are damaged.
    StateMismatchError: A state is of another configuration.
  """
  manager = folder.state_manager
  structure, new_secrets = _split(initial, 0)
  secrets = None
  if _has_secrets(initial):
    secrets = manager.read_secrets(new_secrets)
  versions = await manager.get_versions() or []
  if secrets is not None and secrets.number in versions:
    try:
      saved = await manager.load(secrets.number, structure)
    except tensor_file.DamagedFileError:
      pass  # `load_latest` says so.
    else:
      if saved.ledger == secrets.ledger:
        for version in versions[versions.index(secrets.number) + 1 :]:
          manager.remove(version)
        return _joined(saved, secrets), secrets.number, ''
  saved, number = await manager.load_latest(structure)
  if saved is None:
    return None, 0, ''
  if secrets is None:
    problem = 'is missing, as after the end of a run, or damaged'
  else:
    problem = f'belongs to state {secrets.number}'
  noise = new_secrets.noise._replace(file_identity=saved.noise.file_identity)
  return _joined(saved, new_secrets._replace(noise=noise)), number, problem


def renewed(
    folder: run_dir.RunDir,
    state: RunState,
    number: int,
    *,
    initial: RunState,
    sampling: accounting.Sampling,
    file_identity: int,
) -> RunState:
  """Returns a loaded state under new keys, which are on disk from now on.

  Correlated noise whose buffers are lost is given up: the run goes on with
  round 0 of the sampler and empty buffers, another mechanism, charged in
  addition.

  Args:
    folder: The run's.
    state: As saved.
    number: Its number.
    initial: A state with new keys.
    sampling: How cohorts are drawn.
    file_identity: Identity of the ledger file beside it.
  """
  _, secrets = _split(initial, number)
  state = _joined(state, secrets._replace(
      noise=secrets.noise._replace(file_identity=np.int64(file_identity))
  ))
  if sampling.min_sep is not None:
    state = state._replace(
        process=private_rounds.without_noise(state.process),
        source=state.source._replace(round_num=np.int64(0)),
    )
  _, secrets = _split(state, number)
  folder.state_manager.write_secrets(secrets)
  return state


def _has_secrets(state: RunState | Secrets) -> bool:
  """True if rounds are charged; else seeds that are public decide all."""
  return len(state.noise.key) > 0


def _split(state: RunState, number: int) -> tuple[RunState, Secrets]:
  """The state without secrets, and the secrets."""
  buffers, sampler_key, groups = (), (), ''
  process, source = state.process, state.source
  if _has_secrets(state):
    buffers = private_rounds.query_state(process).buffers
    process = private_rounds.with_query_state(process, buffers=())
  if isinstance(source, cohorts.CohortState):
    sampler_key, groups = source.key, source.groups
    source = source._replace(key=(), groups='')
  public = state._replace(
      process=process, source=source, noise=state.noise._replace(key=())
  )
  return public, Secrets(
      number, state.ledger, state.noise, sampler_key, groups, buffers
  )


def _joined(state: RunState, secrets: Secrets) -> RunState:
  """Inverse of `_split`."""
  process, source = state.process, state.source
  if _has_secrets(secrets):
    process = private_rounds.with_query_state(process, buffers=secrets.buffers)
  if isinstance(source, cohorts.CohortState):
    source = source._replace(
        key=secrets.sampler_key, groups=secrets.groups
    )
  return state._replace(
      process=process, source=source, noise=secrets.noise
  )

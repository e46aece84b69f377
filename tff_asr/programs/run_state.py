"""State of a run, and the secrets that must not outlive it.

A round's noise key is a function of the run's key and of the round's identity,
which is public (`private_rounds`). So someone who gets a run's key can remove
the noise of every round under it. Therefore

- the run's keys change after each round, by a one-way function: a key reveals
  later rounds but no earlier one;
- saved states hold no secrets. One file, `secrets.safetensors`, holds those of
  the newest state alone: the noise key, the sampler's key, and correlated noise
  that later rounds use. It is erased when the run ends, or by
  `bin/erase_secrets.py`. With correlated noise it is as sensitive as clients'
  updates: released sums minus its buffers are earlier sums without noise.

A state is written in this order, each step on disk before the next: (1) the
state, (2) secrets.safetensors, which names its state, (3) older states are
removed. After a crash at any point, a run resumes from the state that secrets
name, and repeats the same rounds in the same bits. If that state or the secrets
are lost, it resumes from the newest state under new keys, and later rounds that
the ledger contains stay charged. docs/reliability.md lists the cases.
"""

from collections.abc import Mapping
from typing import Generic, NamedTuple, Optional, TypeVar

import numpy as np

from tff_asr.data import cohorts
from tff_asr.learning import process as process_lib
from tff_asr.privacy import accounting
from tff_asr.privacy import ledger as ledger_lib
from tff_asr.programs import private_rounds
from tff_asr.storage import run_dir


Position = TypeVar('Position')
LoopState = TypeVar('LoopState')


class RunState(NamedTuple, Generic[Position, LoopState]):
  """All that a run needs to continue; its keys are () in a saved state.

  Attributes:
    process: The learning process's state; with noise it holds its counter.
    data_position: Where the next round's data come from; holds the sampler's
      key where rounds are sampled at random.
    ledger: Head of the privacy ledger.
    noise: The noise key, and the ledger file that it belongs to. Without
      charges the key is (), and nothing is secret.
    loop_state: What the training keeps from round to round besides.
  """

  process: process_lib.State
  data_position: Position
  ledger: ledger_lib.Head
  noise: private_rounds.NoiseState
  loop_state: LoopState


class Secrets(NamedTuple):
  """Content of secrets.safetensors.

  Attributes:
    number: Number of the saved state that they belong to.
    ledger: Its head, which differs between states of the same number.
    noise: The noise key, and the ledger file that it belongs to.
    sampler_key: The sampler's key; () without a sampler.
    groups: `cohorts.CohortState.groups` of the sampler.
    buffers: Buffers of correlated noise; () without.
  """

  number: int
  ledger: ledger_lib.Head
  noise: private_rounds.NoiseState
  sampler_key: np.ndarray | tuple[()]
  groups: str
  buffers: Mapping[str, np.ndarray] | tuple[()]


async def save(folder: run_dir.RunDir, state: RunState, number: int) -> None:
  """Saves a state, and its secrets in their own file.

  Args:
    folder: The run's folder.
    state: The state; it must not change meanwhile.
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
  """Finds the state to resume from.

  Args:
    folder: The run's folder.
    initial: The state before the first round; its keys are those of a new run.

  Returns:
    The state, or None if none was saved; its number; and the problem with
    secrets.safetensors, or ''. With a problem, the keys are those of
    `initial`: see `with_new_keys`.

  Raises:
    DamagedFileError: A saved state is damaged.
    StateMismatchError: A state belongs to another configuration.
  """
  manager = folder.state_manager
  structure, new_secrets = _split(initial, 0)
  secrets = None
  if _has_secrets(initial):
    secrets = manager.read_secrets(new_secrets)
  versions = await manager.get_versions() or []
  # First choice: the state that the secrets name, under its own keys.
  if secrets is not None and secrets.number in versions:
    saved = await manager.load(secrets.number, structure)
    # Another run may have saved a state of the same number.
    if saved.ledger == secrets.ledger:
      # A newer state was cut off before its secrets: its rounds are repeated.
      for version in versions[versions.index(secrets.number) + 1 :]:
        manager.remove(version)
      return _joined(saved, secrets), secrets.number, ''
  # Second choice: the newest state, under new keys.
  saved, number = await manager.load_latest(structure)
  if saved is None:
    return None, 0, ''
  if secrets is None:
    problem = 'is missing, as after the end of a run, or damaged'
  else:
    problem = f'belongs to state {secrets.number}'
  # Of the saved state, so that a copied folder is still recognised.
  noise = new_secrets.noise._replace(file_identity=saved.noise.file_identity)
  return _joined(saved, new_secrets._replace(noise=noise)), number, problem


def with_new_keys(
    folder: run_dir.RunDir,
    state: RunState,
    number: int,
    *,
    initial: RunState,
    sampling: accounting.Sampling,
    file_identity: int,
) -> RunState:
  """Returns a loaded state under new keys, which are written to disk.

  If buffers of correlated noise are lost, the run continues with round 0 of the
  sampler and empty buffers: another sequence of rounds, charged in addition.

  Args:
    folder: The run's folder.
    state: The state, as saved.
    number: Its number.
    initial: A state with new keys.
    sampling: How cohorts are drawn.
    file_identity: Identity of the ledger file in the folder.
  """
  _, secrets = _split(initial, number)
  state = _joined(state, secrets._replace(
      noise=secrets.noise._replace(file_identity=np.int64(file_identity))
  ))
  if sampling.min_sep is not None:
    # The old keys and buffers are lost, so the sequence cannot continue.
    state = state._replace(
        process=private_rounds.start_sequence(state.process),
        data_position=state.data_position._replace(round_num=np.int64(0)),
    )
  # Split again: the secrets must name the head that the state was saved with.
  _, secrets = _split(state, number)
  # On disk before a round uses them: after a crash, the repeated round must
  # draw the same noise.
  folder.state_manager.write_secrets(secrets)
  return state


def _has_secrets(state: RunState | Secrets) -> bool:
  """Whether rounds are charged; otherwise public seeds decide everything."""
  return len(state.noise.key) > 0


def _split(state: RunState, number: int) -> tuple[RunState, Secrets]:
  """The state without secrets, and the secrets."""
  buffers, sampler_key, groups = (), (), ''
  process, position = state.process, state.data_position
  if _has_secrets(state):
    # With released sums, buffers reveal earlier sums without noise.
    buffers = private_rounds.query_state(process).buffers
    process = private_rounds.with_query_state(process, buffers=())
  if isinstance(position, cohorts.CohortState):
    sampler_key, groups = position.key, position.groups
    position = position._replace(key=(), groups='')
  public = state._replace(
      process=process,
      data_position=position,
      noise=state.noise._replace(key=()),
  )
  return public, Secrets(
      number, state.ledger, state.noise, sampler_key, groups, buffers
  )


def _joined(state: RunState, secrets: Secrets) -> RunState:
  """Inverse of `_split`."""
  process, position = state.process, state.data_position
  if _has_secrets(secrets):
    process = private_rounds.with_query_state(process, buffers=secrets.buffers)
  if isinstance(position, cohorts.CohortState):
    position = position._replace(
        key=secrets.sampler_key, groups=secrets.groups
    )
  return state._replace(
      process=process, data_position=position, noise=secrets.noise
  )

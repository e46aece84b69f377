"""The interface of a learning process to a training loop.

Federated rounds (`fed_avg`), central steps (`central_step`) and private steps
by example (`dp_sgd`) have the same interface and the same state:

    global_model_weights  float32 tensors by name
    distributor           `SeedState`
    client_work           names of frozen weights, one a line, or ()
    aggregator            of the DP query, or ()
    finalizer             of the optimizer

The state holds the frozen names, so that freezing other weights changes a
round's digest.
"""

from collections.abc import Iterable
from typing import NamedTuple, Protocol

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

State = tff.learning.templates.LearningAlgorithmState
Output = tff.learning.templates.LearningProcessOutput


class SeedState(NamedTuple):
  """All randomness of the next round or step follows from it, except noise.

  Attributes:
    seed: int32 [2], the run's.
    round_num: int32, rounds or steps done so far.
  """

  seed: tf.Tensor | np.ndarray
  round_num: tf.Tensor | np.ndarray


class Process(Protocol):
  """The interface, also of `tff.learning.templates.LearningProcess`."""

  def initialize(self) -> State:
    """Returns the state before the first round."""

  def next(self, state: State, data: Iterable[object]) -> Output:
    """Runs a round.

    Args:
      state: State that `initialize` or the last round returned; it is not
        changed. If it holds a noise key (`fed_avg.set_noise_key`), a second
        call on it, on other data, needs another one.
      data: Clients' ids (`fed_avg`), a batch (`central_step`) or physical
        batches (`dp_sgd`).

    Returns:
      The new state, and metrics, exact and therefore not private.
    """


def frozen_layers(state: State) -> list[str]:
  """The names of the weights that a process does not train, sorted."""
  # The empty structure: nothing is frozen.
  if not tf.nest.flatten(state.client_work):
    return []
  names = np.asarray(state.client_work).item()
  # Bytes from TFF or a checkpoint; a string from `DpSgd`.
  names = names.decode() if isinstance(names, bytes) else names
  return names.split('\n') if names else []

"""Rounds under a privacy ledger: keys, charging and a budget.

A round's noise key is derived from the run's noise key and the round's
identity: a digest of everything that decides its noisy sum (both keys,
counters, the server state that clients get, the cohort's draw and the
configuration). So the same noise comes back only for the identical round, as
after a crash. A repeated round may still come out differently (other data or
code, or another machine's rounding). The ledger notices that by the released
bits; the round is then repeated under a new key and charged in addition.

Identities are public, so both keys of the run change with each charged round,
by a function that cannot be turned back: a later key tells no earlier round.
`run_state` says where keys are kept.

A new noise key also changes the sampler's key.
Each round is charged as a draw of its own; two sums over one draw of clients
would tell more than two such rounds.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
import concurrent.futures
import dataclasses
import hashlib
import math
import os
from typing import Any, NamedTuple, Optional

from absl import logging
import dp_accounting
import numpy as np
import tree

from tff_asr import checks
from tff_asr.data import cohorts
from tff_asr.learning import fed_avg
from tff_asr.privacy import accounting
from tff_asr.privacy import correlated_noise
from tff_asr.privacy import distributed
from tff_asr.privacy import keys
from tff_asr.privacy import ledger as ledger_lib
from tff_asr.privacy import queries
from tff_asr.privacy import statement
from tff_asr.privacy import strategies
from tff_asr.storage import run_dir


class NoiseState(NamedTuple):
  """The part of a run's noise that is saved.

  Attributes:
    key: The run's 256-bit noise key, int32 [8]. Secret.
    file_identity: `Ledger.file_identity` when the key was drawn, int64.
  """

  key: np.ndarray
  file_identity: np.int64


@dataclasses.dataclass(frozen=True, kw_only=True)
class PrivacySettings:
  """Budget and keys of a private run.

  Attributes:
    delta: Delta of epsilon; None: 1 / (10 * population), of the largest one
      that the ledger charges. Nothing is private at 1 / population or above.
    target_epsilon: The run ends before the round after which the ledger's
      epsilon (RDP) would exceed this; None: no such end. Needs a delta.
    noise_seed: Fixes the noise key, for tests: NOT PRIVATE.
    sampler_seed: Fixes the sampler's key, for tests: NOT PRIVATE.
    exact_metrics: Whether metrics without noise are shown and written, and the
      causes of clients' failures, although an epsilon is claimed: no statement
      covers them. They always are where none is claimed.
  """

  delta: Optional[float] = None
  target_epsilon: Optional[float] = None
  noise_seed: Optional[int] = None
  sampler_seed: Optional[int] = None
  exact_metrics: bool = False

  def check(self) -> None:
    """Raises ValueError for all that is wrong with the settings."""
    seeds = dict(noise_seed=self.noise_seed, sampler_seed=self.sampler_seed)
    with checks.collect_errors() as collect:
      with collect:
        if self.delta is not None:
          accounting.check_delta(self.delta)
      with collect:
        self._check_target()
      with collect:
        checks.non_negative_int(
            **{name: seed for name, seed in seeds.items() if seed is not None}
        )

  def _check_target(self) -> None:
    """Raises ValueError for a target that is not above 0 or has no delta."""
    if self.target_epsilon is None:
      return
    checks.positive(target_epsilon=self.target_epsilon)
    if self.delta is None:
      raise ValueError(
          f'target_epsilon is {self.target_epsilon:g} at no delta: set '
          'DELTA, well below 1 / population.'
      )

  def delta_of(
      self,
      sampling: accounting.Sampling,
      charged: Sequence[accounting.RoundGroup],
  ) -> float:
    """Returns delta of a run, which may inherit rounds of a larger population.

    Args:
      sampling: Sampling of the run's rounds.
      charged: What the ledger charges already.
    """
    own = accounting.RoundGroup(sampling=sampling, noise_multiplier=0, count=0)
    return statement.delta_or_default(self.delta, [own, *charged])

  @property
  def invalidations(self) -> list[str]:
    """Reasons for which no guarantee holds: keys that a seed fixed."""
    seeds = {'NOISE_SEED': self.noise_seed, 'SAMPLER_SEED': self.sampler_seed}
    return [
        f'{name} fixes a key, so anyone can compute what it draws'
        for name, seed in seeds.items()
        if seed is not None
    ]


class Done(NamedTuple):
  """A round that was run, and charged if it is private.

  Attributes:
    output: What the learning process's `next` returned, materialized; without
      the round's key.
    drawn: What the round trained on: the clients' ids (federated), the numbers
      of the examples (pre-training) or one batch (central).
    after: State of the draws after this one.
  """

  output: Any
  drawn: Any
  after: Any


class PrivateRoundRunner:
  """Runs and charges the rounds of one run.

  Attributes:
    noise: The `NoiseState` to save with the run's state.
  """

  def __init__(
      self,
      *,
      ledger: ledger_lib.Ledger,
      noise: NoiseState,
      sampling: accounting.Sampling,
      configuration: str,
      settings: PrivacySettings,
  ):
    """Takes over a ledger.

    Args:
      ledger: The run's ledger, opened at the saved state.
      noise: The noise state to go on from.
      sampling: How cohorts are drawn.
      configuration: Digest of the configuration.
      settings: Budget and keys.
    """
    self._ledger = ledger
    self._sampling = sampling
    self._configuration = configuration
    self._settings = settings
    self._delta = settings.delta_of(sampling, ledger.contents.rounds)
    # The last weights and their digest, which the next round needs again.
    self._digested = (None, '')
    self.noise = noise

  @property
  def head(self) -> ledger_lib.Head:
    """The ledger's head after the rounds so far."""
    return self._ledger.head

  def fits_budget(self, state: Any, cohort_state: Any) -> bool:
    """True if the next round stays within the target epsilon."""
    if self._settings.target_epsilon is None:
      return True
    charged = self._ledger.contents.rounds
    if not self._ledger.holds(self._identity(state, cohort_state)):
      charged = self._ledger.charges.after(
          [int(cohort_state.round_num)], _cost(state, self._sampling)
      )
    spent = _epsilon(charged, self._delta)
    return spent <= self._settings.target_epsilon

  def claims_epsilon(self, state: Any) -> bool:
    """True if a finite epsilon holds for the next round and those before."""
    charged = self._ledger.charges.after([0], _cost(state, self._sampling))
    return not self._ledger.contents.invalidations and all(
        group.noise_multiplier >= accounting.MIN_NOISE_MULTIPLIER
        for group in charged
    )

  async def run(
      self,
      next_fn: Callable[..., Awaitable[Any]],
      state: Any,
      *,
      draw: Callable[[cohorts.CohortState], tuple[Any, cohorts.CohortState]],
      cohort_state: cohorts.CohortState,
  ) -> Done:
    """Runs a round and charges it.

    When this returns, the round is in the ledger on disk, and the keys that it
    was drawn by are gone, from this runner and from the states.

    Args:
      next_fn: The learning process's `next`.
      state: The learning process's state.
      draw: Takes a state of cohorts; returns the clients (or examples) of the
        next one, and the state after it.
      cohort_state: The state to draw from.

    Raises:
      ValueError: The cohort names a client twice.
      BudgetError: The round had to be repeated under a new key, and charging
        it again would exceed the target epsilon.
    """
    while True:
      drawn, after = draw(cohort_state)
      if len(set(drawn)) != len(drawn):
        raise ValueError(
            'a cohort names a client twice: it would count twice in the sum '
            'and pay for once.'
        )
      identity = self._identity(state, cohort_state)
      keyed = fed_avg.set_noise_key(
          state, keys.derive(self.noise.key, purpose=identity)
      )
      output = await next_fn(keyed, drawn)
      cost = _cost(output.state, self._sampling)
      try:
        self._ledger.append(ledger_lib.Round(
            round_num=int(cohort_state.round_num),
            sampling=cost.sampling,
            noise_multipliers=(cost.noise_multiplier,),
            sampler_epsilon=cost.sampler_epsilon,
            strategy=cost.strategy,
            secure_sum=cost.secure_sum,
            configuration=self._configuration,
            identity=identity,
            result=self._result(output),
        ))
        self.noise = self.noise._replace(key=_next_key(self.noise.key))
        state = with_query_state(
            output.state, noise_key=np.zeros_like(self.noise.key)
        )
        return Done(
            output._replace(state=state),
            drawn,
            after._replace(key=_next_key(after.key)),
        )
      except ledger_lib.NoiseReuseError as error:
        logging.warning('%s It is repeated under one and charged again.', error)
        self._renew_key()
        cohort_state = cohort_state._replace(
            key=keys.derive(self.noise.key, purpose='cohorts')
        )
        if self._sampling.min_sep is not None:
          # Another mechanism: it shares no noise and no draw with this one.
          cohort_state = cohort_state._replace(round_num=np.int64(0))
          state = without_noise(state)
        if not self.fits_budget(state, cohort_state):
          raise BudgetError(
              'A round came out differently when it was repeated, and to '
              'charge it again would exceed TARGET_EPSILON = '
              f'{self._settings.target_epsilon}: raise it, or end with the '
              'states that are saved.'
          ) from None

  def epsilon(self) -> float:
    """Epsilon by RDP of all charged rounds; infinite if it is void."""
    contents = self._ledger.contents
    if contents.invalidations:
      return math.inf
    return _epsilon(contents.rounds, self._delta)

  def is_private(self, epsilon: float) -> bool:
    """False if all charged rounds are NOT PRIVATE; epsilon is theirs."""
    contents = self._ledger.contents
    return not statement.why_not_private(
        contents.rounds,
        epsilon=epsilon,
        delta=self._delta,
        invalidations=contents.invalidations,
    )

  def _renew_key(self) -> None:
    """Replaces the noise key by a new draw, or derives it if it is fixed."""
    key = (
        keys.derive(self.noise.key, purpose='renewed')
        if self._settings.noise_seed is not None
        else keys.draw()
    )
    self.noise = self.noise._replace(key=key)

  def _identity(self, state: Any, cohort_state: Any) -> str:
    """Digest of all that decides a round's noisy sum."""
    rest = (state.distributor, state.client_work, state.aggregator)
    return ledger_lib.round_identity(
        noise_key=np.asarray(self.noise.key),
        noise_counter=int(query_state(state).counter),
        sampler_key=np.asarray(cohort_state.key),
        round_num=int(cohort_state.round_num),
        configuration=self._configuration,
        state_digest=self._weights_digest(state) + digest(rest),
    )

  def _result(self, output: Any) -> str:
    """Digest of all that shows a round's noised sum.

    The weights may not: at a learning rate of 0 they stay as they are, while
    the optimizer's state, adaptive clips and metrics follow the sum.
    """
    state = output.state
    # Buffers of noise follow from keys and counters, and are large.
    keyless = with_query_state(
        state, noise_key=np.zeros_like(self.noise.key), buffers=()
    )
    metrics = output.metrics
    if isinstance(metrics, Mapping):
      metrics = metrics.get('finalizer', ())
    shown = digest((state.finalizer, keyless.aggregator, metrics))
    parts = self._weights_digest(state) + shown
    return hashlib.sha256(parts.encode()).hexdigest()

  def _weights_digest(self, state: Any) -> str:
    """Digest of the model's weights, kept for the next round."""
    weights = state.global_model_weights
    if self._digested[0] is not weights:
      self._digested = (weights, digest(weights))
    return self._digested[1]


def keep_noise(state: Any, *, after: Any) -> Any:
  """A state that goes back by a round, with the noise of the round after it.

  Correlated noise goes on where a round is undone: what the round released can
  be taken back in part by later ones only, and its clients wait as long.

  Args:
    state: A learning process's, before the round.
    after: That after it.
  """
  noise = query_state(after)
  if not noise.is_correlated:
    return state
  return with_query_state(state, buffers=noise.buffers, counter=noise.counter)


def without_noise(state: Any) -> Any:
  """A learning process's state at the start of another mechanism."""
  return _replace_query_state(state, query_state(state).restarted())


def query_state(state: Any) -> queries.MechanismState:
  """The query's state within a learning process's."""
  return state.aggregator.query_state


def with_query_state(state: Any, **changes: Any) -> Any:
  """A learning process's state with other fields of its query's."""
  return _replace_query_state(state, query_state(state)._replace(**changes))


def _replace_query_state(
    state: Any, new_query_state: queries.MechanismState
) -> Any:
  """A learning process's state with another state of its query."""
  aggregator = state.aggregator._replace(query_state=new_query_state)
  return state._replace(aggregator=aggregator)


def _next_key(key: np.ndarray) -> np.ndarray:
  """The key of the round after; it does not tell the one given."""
  return keys.derive(key, purpose='next round')


def digest(values: Any) -> str:
  """Returns SHA-256, in hex, over a nest of arrays, tensors and strings.

  It covers paths, types, shapes and every byte. Leaves are hashed in parallel.
  """
  leaves = tree.flatten_with_path(values)
  with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
    digests = list(pool.map(_leaf_digest, [value for _, value in leaves]))
  whole = hashlib.sha256()
  for (path, _), leaf_digest in zip(leaves, digests):
    whole.update(repr(path).encode() + b'\0' + leaf_digest)
  return whole.hexdigest()


def _leaf_digest(value: Any) -> bytes:
  """SHA-256 of a leaf."""
  if isinstance(value, (str, bytes)):
    return hashlib.sha256(repr(value).encode()).digest()
  array = np.asarray(value.numpy() if hasattr(value, 'numpy') else value)
  if array.dtype.hasobject:  # strings of TensorFlow
    return hashlib.sha256(repr(array.tolist()).encode()).digest()
  header = f'{array.dtype.str}{array.shape}'.encode()
  hashed = hashlib.sha256(header)
  hashed.update(np.ascontiguousarray(array).view(np.uint8).data
                if array.size and array.ndim else array.tobytes())
  return hashed.digest()


class BudgetError(ValueError):
  """A round cannot be charged within the target epsilon."""


def check_first_round(
    state: Any,
    *,
    sampling: accounting.Sampling,
    settings: PrivacySettings,
    inherited: ledger_lib.Charges,
) -> None:
  """Checks that a new run can do a round at all.

  Args:
    state: The learning process's initial state.
    sampling: How cohorts are drawn.
    settings: The run's budget.
    inherited: Charges of the runs that it starts from.

  Raises:
    ValueError: Sampling and noise do not go together or do not compose with the
      inherited rounds, or one round exceeds the target.
  """
  rounds = inherited.after([0], _cost(state, sampling))
  accounting.neighbouring(rounds)
  target = settings.target_epsilon
  if target is None:
    return
  found = _epsilon(rounds, settings.delta)
  if not found <= target:
    before = sum(group.count for group in inherited.rounds)
    raise ValueError(
        f'TARGET_EPSILON is {target:g}, but after the first round epsilon would'
        f' be {found:.4g} at delta {settings.delta:g}'
        + (f', with {before} rounds of INIT_FROM_RUN' if before else '')
        + ': add noise that the aggregator accounts for, take smaller cohorts'
        ' of a larger population, or train NOT PRIVATE: TARGET_EPSILON = None.'
    )


def check_devices_noise(saved: Any, built: Any) -> None:
  """Checks that the noise of devices is made as when the run began.

  It is made for the share of them that may fail, which other runs may change
  when they are resumed.

  Args:
    saved: The learning process's state to go on from.
    built: The initial state of the process that is to go on.

  Raises:
    ValueError: It is not.
  """
  before, now = map(_event, (saved, built))
  if isinstance(now, distributed.DistributedGaussianDpEvent) and not (
      before.to_named_tuple() == now.to_named_tuple()
  ):
    raise ValueError(
        'MAX_FAILED_SHARE is not what the run began with: the noise of '
        f'{int(before.min_clients)} of {int(before.num_clients)} devices '
        'was to suffice, and with these settings it would be that of '
        f'{int(now.min_clients)} of {int(now.num_clients)}. Put it back, or '
        'take another output_dir.'
    )


def rounds_of_plan(
    state: Any,
    *,
    sampling: accounting.Sampling,
    num_rounds: int,
    inherited: ledger_lib.Charges,
) -> list[accounting.RoundGroup]:
  """What a run that does `num_rounds` in all charges.

  The other arguments are as in `check_first_round`.
  """
  return inherited.after(range(num_rounds), _cost(state, sampling))


def create_ledger(
    run: run_dir.RunDir,
    parent: Optional[ledger_lib.Parent],
    *,
    invalidations: Sequence[str] = (),
    privacy_unit: Optional[str] = 'speaker',
) -> ledger_lib.Ledger:
  """Starts the ledger of a new run; refuses if an old one was taken away.

  Args:
    run: The run's folder.
    parent: The ledger of the model that it starts from, or None.
    invalidations: Reasons for which no guarantee holds, see `ledger.Contents`.
    privacy_unit: What one client is; None: as in the parent.

  Raises:
    ledger.LedgerError: The folder holds a model with a ledger but no state; or
      `ledger.create` raises it.
  """
  before = run_dir.ledger_of_model(run.path)
  if before is not None and before[1] is not None:
    raise ledger_lib.LedgerError(
        f'{run.path} holds a trained model but no saved state: put its states '
        'back, or take another output_dir.'
    )
  return ledger_lib.create(
      run.file(run_dir.LEDGER),
      privacy_unit=privacy_unit,
      invalidations=invalidations,
      parent=parent,
  )


def _event(state: Any) -> dp_accounting.DpEvent:
  """The event of a round, of a learning process's state."""
  return dp_accounting.DpEvent.from_named_tuple(state.aggregator.dp_event)


def _cost(
    state: Any, sampling: accounting.Sampling
) -> accounting.RoundGroup:
  """A round as the ledger charges it.

  From the event that the aggregator reports, and the model's size.
  """
  event = _event(state)
  weights = tree.flatten(state.global_model_weights)
  num_elements = sum(math.prod(weight.shape) for weight in weights)
  noise_multiplier = in_steps = float(event.noise_multiplier)
  strategy, secure_sum = None, None
  if isinstance(event, strategies.CorrelatedGaussianDpEvent):
    strategy = event.strategy
    in_steps = correlated_noise.noise_resolution(event)
    # Counts of adaptive clips have elements of their own.
    num_counts = np.size(query_state(state).layer_clips)
    noise_multiplier = correlated_noise.charged_noise_multiplier(
        event, num_elements=num_elements + num_counts
    )
  if isinstance(event, distributed.DistributedGaussianDpEvent):
    secure_sum = accounting.SecureSum(
        bits=int(event.bits),
        num_clients=int(event.num_clients),
        min_clients=int(event.min_clients),
    )
    sampler_epsilon = distributed.sampler_epsilon(event)
  else:
    sampler_epsilon = queries.sampler_epsilon(
        in_steps, num_elements=num_elements
    )
  accounting.check_noise(sampling, strategy, secure_sum)
  if strategy and int(event.min_sep) != sampling.min_sep:
    raise ValueError(
        f'the noise is made for clients {int(event.min_sep)} rounds '
        f'apart, the cohorts keep {sampling.min_sep}: set both by '
        'MIN_SEP.'
    )
  return accounting.RoundGroup(
      sampling=sampling,
      noise_multiplier=noise_multiplier,
      sampler_epsilon=sampler_epsilon,
      strategy=strategy,
      secure_sum=secure_sum,
  )


def _epsilon(rounds: list[accounting.RoundGroup], delta: float) -> float:
  return accounting.epsilon(accounting.compose(rounds), delta=delta)

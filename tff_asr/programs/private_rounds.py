"""Rounds under a privacy ledger: keys, charges and a budget.

A round's noise key is derived from the run's noise key and the round's
identity: a digest of everything that decides its noisy sum (both keys, the
counters, the server state that clients get, the cohort's draw and the
configuration). So only the identical round, as after a crash, gets the same
noise again. Other data, code or hardware may still change a repeated round's
sum. The ledger detects this by the released bits; the round is then repeated
under a new key and charged again.

Identities are public. Therefore both keys of the run change after each charged
round by a one-way function: a later key reveals no earlier round. `run_state`
describes where keys are kept.

Each round is charged as a separate draw: two sums over the same cohort would
reveal more than two such rounds.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
import concurrent.futures
import dataclasses
import hashlib
import math
import os
from typing import Any, Generic, NamedTuple, Optional, TypeAlias, TypeVar

from absl import logging
import dp_accounting
import numpy as np
import tree

from tff_asr import checks
from tff_asr.data import cohorts
from tff_asr.learning import fed_avg
from tff_asr.learning import process as process_lib
from tff_asr.models import weights as weights_lib
from tff_asr.privacy import accounting
from tff_asr.privacy import clipping
from tff_asr.privacy import correlated_noise
from tff_asr.privacy import distributed
from tff_asr.privacy import keys
from tff_asr.privacy import ledger as ledger_lib
from tff_asr.privacy import queries
from tff_asr.privacy import privacy_report
from tff_asr.privacy import strategies
from tff_asr.storage import run_dir


Cohort = TypeVar('Cohort', list[str], list[int])
Batch = TypeVar('Batch')
Position = TypeVar('Position')

Step: TypeAlias = Callable[
    [process_lib.State, Cohort], Awaitable[process_lib.Output]
]
"""A round of a learning process on a cohort."""


class NoiseState(NamedTuple):
  """Noise key of a run, saved apart from its state (`run_state`).

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
    delta: Delta of epsilon, below 1 / population. None: 1 / (10 population),
      for the largest population that the ledger charges.
    target_epsilon: The run ends before the round after which the ledger's
      epsilon (`accounting.leading_epsilon`) would exceed this; None: no target.
      Needs a delta.
    noise_seed: Fixes the noise key, for tests: NOT PRIVATE.
    sampler_seed: Fixes the sampler's key, for tests: NOT PRIVATE.
    exact_metrics: Whether to show and write metrics without noise and the
      causes of clients' failures although an epsilon is claimed, which does
      not cover them. Without such a claim they are always shown.
  """

  delta: Optional[float] = None
  target_epsilon: Optional[float] = None
  noise_seed: Optional[int] = None
  sampler_seed: Optional[int] = None
  exact_metrics: bool = False

  def validate(self) -> None:
    """Raises ValueError that lists everything wrong with the settings."""
    seeds = dict(noise_seed=self.noise_seed, sampler_seed=self.sampler_seed)
    checks.check_all(
        self._check_target,
        lambda: checks.non_negative_int(
            **{name: seed for name, seed in seeds.items() if seed is not None}
        ),
    )

  def _check_target(self) -> None:
    """Raises ValueError for a delta or a target that is out of range."""
    if self.delta is not None:
      accounting.check_delta(self.delta)
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
    # A group of no rounds: only its population matters here.
    own = accounting.RoundGroup(sampling=sampling, noise_multiplier=0, count=0)
    return privacy_report.delta_or_default(self.delta, [own, *charged])

  def allow(
      self, rounds: Sequence[accounting.RoundGroup], *, delta: float
  ) -> bool:
    """Whether the epsilon of rounds is within the target."""
    target = self.target_epsilon
    # Not `epsilon > target`, which lets NaN pass.
    return target is None or (
        accounting.leading_epsilon(rounds, delta=delta, target=target) <= target
    )

  @property
  def invalidations(self) -> list[str]:
    """Reasons for which no guarantee holds: keys that a seed fixed."""
    seeds = {'NOISE_SEED': self.noise_seed, 'SAMPLER_SEED': self.sampler_seed}
    return [
        f'{name} fixes a key, so anyone can compute what it draws'
        for name, seed in seeds.items()
        if seed is not None
    ]


class RoundResult(NamedTuple, Generic[Batch, Position]):
  """A round that was run, and charged if it is private.

  Attributes:
    output: What the learning process's `next` returned, materialized; without
      the round's noise key.
    batch: What the round trained on: the clients' ids (federated), numbers of
      examples (pre-training) or one batch a loader (central).
    next_position: Data position of the next round.
  """

  output: process_lib.Output
  batch: Batch
  next_position: Position


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
    """Creates a runner.

    Args:
      ledger: The run's ledger, opened at the saved state.
      noise: The noise state to continue from.
      sampling: How cohorts are drawn.
      configuration: Digest of the configuration.
      settings: Budget and keys.
    """
    self._ledger = ledger
    self._sampling = sampling
    self._configuration = configuration
    self._settings = settings
    # Fixed at the start: all later rounds have this sampling's population.
    self._delta = settings.delta_of(sampling, ledger.contents.rounds)
    # The last weights and their digest, which the next round needs again.
    self._digested = (None, '')
    self.noise = noise

  @property
  def head(self) -> ledger_lib.Head:
    """The ledger's head after the rounds so far."""
    return self._ledger.head

  @property
  def delta(self) -> float:
    """Delta of the epsilon of all charged rounds."""
    return self._delta

  def fits_budget(
      self,
      state: process_lib.State,
      cohort_state: cohorts.CohortState,
      *,
      releases: Sequence[accounting.RoundGroup] = (),
  ) -> bool:
    """Whether the next round stays within the target epsilon.

    Args:
      state: The learning process's state.
      cohort_state: State of the sampler.
      releases: Cost of what else is due after the round.
    """
    if self._settings.target_epsilon is None:
      return True
    charged = self._ledger.contents.rounds
    # A repeated round is in the ledger already and is not charged again; what
    # follows it was within the target, too.
    if not self._ledger.holds(self._identity(state, cohort_state)):
      charged = self._ledger.charges.after(
          [int(cohort_state.round_num)], cost(state, self._sampling)
      )
      charged += releases
    return self._settings.allow(charged, delta=self._delta)

  def claims_epsilon(self, state: process_lib.State) -> bool:
    """Whether a finite epsilon holds for the next round and those before."""
    # The round's number does not matter: only noise multipliers are read.
    charged = self._ledger.charges.after([0], cost(state, self._sampling))
    return not self._ledger.contents.invalidations and all(
        # With less noise, epsilon counts as infinite.
        group.noise_multiplier >= accounting.MIN_NOISE_MULTIPLIER
        for group in charged
    )

  async def run(
      self,
      step: Step[Cohort],
      state: process_lib.State,
      *,
      draw: Callable[
          [cohorts.CohortState], tuple[Cohort, cohorts.CohortState]
      ],
      position: cohorts.CohortState,
      release: Optional[str] = None,
  ) -> RoundResult[Cohort, cohorts.CohortState]:
    """Draws a cohort, runs a round on it and charges it.

    When this returns, the round is in the ledger on disk, and the keys that it
    was drawn by are gone from this runner and from the states. A round that was
    charged before with another sum is run again under new keys, on another
    cohort, and charged in addition.

    Args:
      step: Runs the round.
      state: The learning process's state.
      draw: Draws the clients (or examples) of a round from the sampler's state,
        and returns the sampler's next state with them.
      position: State of the sampler before this draw.
      release: What the round releases; see `ledger.Round`.

    Raises:
      ValueError: A client appears twice in the cohort.
      BudgetError: The additional charge would exceed the target epsilon.
    """
    while True:
      cohort, next_position = draw(position)
      if len(set(cohort)) != len(cohort):
        raise ValueError(
            'a client appears twice in the cohort: it would contribute twice '
            'and be charged once.'
        )
      try:
        output = await self._charged(
            step, state, cohort, position=position, release=release
        )
      except ledger_lib.NoiseReuseError as error:
        logging.warning(
            '%s It is run again under a new key and charged again.', error
        )
        state, position = self._restart(state, position)
        continue
      return RoundResult(
          output,
          cohort,
          # One-way, so that a key on disk reveals no earlier cohort.
          next_position._replace(key=_next_key(next_position.key)),
      )

  async def _charged(
      self,
      step: Step[Cohort],
      state: process_lib.State,
      cohort: Cohort,
      *,
      position: cohorts.CohortState,
      release: Optional[str],
  ) -> process_lib.Output:
    """The output of a round, without its key, once the round is charged."""
    identity = self._identity(state, position)
    # The key depends on the identity: a repeated round has the same noise, and
    # any other round has noise that is independent of it.
    keyed = fed_avg.set_noise_key(
        state, keys.derive(self.noise.key, purpose=identity)
    )
    output = await step(keyed, cohort)
    # On disk before anything can see the new model.
    self._ledger.append(ledger_lib.Round(
        round_num=int(position.round_num),
        # The state that a round returns holds the event of that round.
        cost=cost(output.state, self._sampling),
        configuration=self._configuration,
        identity=identity,
        result=self._result(output),
        release=release,
    ))
    # Only now: a round that is not charged is repeated under the same key.
    self.noise = self.noise._replace(key=_next_key(self.noise.key))
    # The state is saved with the model; the key is kept apart.
    return output._replace(
        state=with_query_state(
            output.state, noise_key=np.zeros_like(self.noise.key)
        )
    )

  def _restart(
      self, state: process_lib.State, position: cohorts.CohortState
  ) -> tuple[process_lib.State, cohorts.CohortState]:
    """Renews both keys; the states from which to repeat a round under them."""
    # The old key has already drawn the noise of another sum.
    self._renew_key()
    # Another cohort: amplification by sampling holds for one sum a draw.
    position = position._replace(
        key=keys.derive(self.noise.key, purpose='cohorts')
    )
    if self._sampling.min_sep is not None:
      # Another sequence of rounds shares no noise and no draw with this one.
      position = position._replace(round_num=np.int64(0))
      state = start_sequence(state)
    if not self.fits_budget(state, position):
      raise BudgetError(
          'A round came out differently when it was repeated, and charging it '
          'again would exceed TARGET_EPSILON = '
          f'{self._settings.target_epsilon}: raise it, or keep the states that '
          'are saved.'
      )
    return state, position

  def epsilons(self) -> tuple[float, float]:
    """The leading epsilon of all charged rounds, and RDP's; infinite if void.
    """
    contents = self._ledger.contents
    if contents.invalidations:
      return math.inf, math.inf
    return (
        accounting.leading_epsilon(contents.rounds, delta=self._delta),
        accounting.epsilon(contents.rounds, delta=self._delta),
    )

  def outlook(
      self, before: Sequence[accounting.RoundGroup]
  ) -> privacy_report.Outlook:
    """What the rounds charged after these have made of the verdict."""
    contents = self._ledger.contents
    return privacy_report.outlook(
        before,
        contents.rounds,
        delta=self._delta,
        invalidations=contents.invalidations,
    )

  def is_private(self, epsilon: float) -> bool:
    """False if all charged rounds are NOT PRIVATE; epsilon is theirs."""
    contents = self._ledger.contents
    return not privacy_report.why_not_private(
        contents.rounds,
        epsilon=epsilon,
        delta=self._delta,
        invalidations=contents.invalidations,
    )

  def _renew_key(self) -> None:
    """Draws a new noise key, or derives one if a seed fixes the key."""
    # A seeded run stays reproducible; it is NOT PRIVATE anyway.
    key = (
        keys.derive(self.noise.key, purpose='renewed')
        if self._settings.noise_seed is not None
        else keys.draw()
    )
    self.noise = self.noise._replace(key=key)

  def _identity(
      self, state: process_lib.State, cohort_state: cohorts.CohortState
  ) -> str:
    """Digest of everything that decides a round's noisy sum."""
    # Without the finalizer, which acts on the sum after its release.
    rest = (state.distributor, state.client_work, state.aggregator)
    return ledger_lib.round_identity(
        noise_key=np.asarray(self.noise.key),
        noise_counter=int(query_state(state).counter),
        sampler_key=np.asarray(cohort_state.key),
        round_num=int(cohort_state.round_num),
        configuration=self._configuration,
        state_digest=self._weights_digest(state) + digest(rest),
    )

  def _result(self, output: process_lib.Output) -> str:
    """Digest of everything that reveals a round's noised sum."""
    # Not of the weights alone: with a learning rate of 0 they do not change,
    # but the optimizer's state, adaptive clips and metrics depend on the sum.
    state = output.state
    # Buffers of noise follow from keys and counters, and are large.
    keyless = with_query_state(
        state, noise_key=np.zeros_like(self.noise.key), buffers=()
    )
    # Of the metrics, the finalizer's are computed from the noised sum.
    metrics = output.metrics
    if isinstance(metrics, Mapping):
      metrics = metrics.get('finalizer', ())
    shown = digest((state.finalizer, keyless.aggregator, metrics))
    parts = self._weights_digest(state) + shown
    return hashlib.sha256(parts.encode()).hexdigest()

  def _weights_digest(self, state: process_lib.State) -> str:
    """Digest of the model's weights, kept for the next round."""
    weights = state.global_model_weights
    # By identity: the next round starts with the very weights of the last.
    if self._digested[0] is not weights:
      self._digested = (weights, digest(weights))
    return self._digested[1]


def roll_back_state(
    state: process_lib.State, *, after: process_lib.State
) -> process_lib.State:
  """Undoes a round, but keeps the correlated noise of the round.

  Correlated noise continues where a round is undone: the round was released,
  so later rounds must cancel part of its noise, and its clients must wait for
  their next turn.

  Args:
    state: The learning process's state before the round.
    after: Its state after the round.
  """
  noise = query_state(after)
  # Independent noise has no later rounds that cancel it.
  if not noise.is_correlated:
    return state
  return with_query_state(state, buffers=noise.buffers, counter=noise.counter)


def start_sequence(state: process_lib.State) -> process_lib.State:
  """Returns the state at the start of a sequence of rounds (`ledger.Charges`).

  Args:
    state: A learning process's state.
  """
  # No earlier round's noise is left to cancel.
  buffers = tree.map_structure(np.zeros_like, query_state(state).buffers)
  return with_query_state(state, counter=np.int64(0), buffers=buffers)


def query_state(state: process_lib.State) -> queries.QueryState:
  """Returns the DP query's state within a learning process's state."""
  return state.aggregator.query_state


def with_query_state(
    state: process_lib.State, **changes: Any
) -> process_lib.State:
  """Returns the state with other values of fields of its DP query's state."""
  changed = query_state(state)._replace(**changes)
  return state._replace(
      aggregator=state.aggregator._replace(query_state=changed)
  )


def _next_key(key: np.ndarray) -> np.ndarray:
  """The key of the next round, from which this one cannot be computed."""
  return keys.derive(key, purpose='next round')


def digest(values: Any) -> str:
  """Returns the SHA-256, in hex, of a nest of arrays, tensors and strings.

  It covers paths, types, shapes and every byte. Leaves are hashed in parallel.

  >>> digest({'a': np.zeros([2])}) == digest({'a': np.zeros([2, 1])})
  False
  """
  leaves = tree.flatten_with_path(values)
  # Threads help: hashlib releases Python's lock while it hashes.
  with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
    digests = list(pool.map(_leaf_digest, [value for _, value in leaves]))
  whole = hashlib.sha256()
  for (path, _), leaf_digest in zip(leaves, digests):
    # Digests have one length and paths end in \0, so that no two nests are the
    # same text.
    whole.update(repr(path).encode() + b'\0' + leaf_digest)
  return whole.hexdigest()


def _leaf_digest(value: Any) -> bytes:
  """SHA-256 of a leaf."""
  if isinstance(value, (str, bytes)):
    # repr keeps 'a' and b'a' apart.
    return hashlib.sha256(repr(value).encode()).digest()
  array = np.asarray(value.numpy() if hasattr(value, 'numpy') else value)
  if array.dtype.hasobject:  # strings of TensorFlow
    return hashlib.sha256(repr(array.tolist()).encode()).digest()
  # Otherwise arrays of the same bytes but other shapes would be the same.
  header = f'{array.dtype.str}{array.shape}'.encode()
  hashed = hashlib.sha256(header)
  # Hashed in place, since tobytes copies. Scalars and empty arrays cannot be
  # viewed as bytes.
  hashed.update(np.ascontiguousarray(array).view(np.uint8).data
                if array.size and array.ndim else array.tobytes())
  return hashed.digest()


class BudgetError(ValueError):
  """A round cannot be charged within the target epsilon."""


def check_first_round(
    state: process_lib.State,
    *,
    sampling: accounting.Sampling,
    settings: PrivacySettings,
    inherited: ledger_lib.Charges,
    releases: Sequence[accounting.RoundGroup] = (),
) -> None:
  """Checks that the budget of a new run allows a round.

  Args:
    state: The learning process's initial state.
    sampling: How cohorts are drawn.
    settings: The run's budget.
    inherited: Charges of the runs that it starts from.
    releases: Cost of what else is due after the round.

  Raises:
    ValueError: Sampling and noise do not go together or do not compose with the
      inherited rounds, or one round exceeds the target.
  """
  rounds = [*inherited.after([0], cost(state, sampling)), *releases]
  # Raises if the inherited rounds have another neighbouring relation.
  accounting.neighboring_relation(rounds)
  if not settings.allow(rounds, delta=settings.delta):
    target = settings.target_epsilon
    found = accounting.leading_epsilon(rounds, delta=settings.delta)
    before = sum(group.count for group in inherited.rounds)
    raise ValueError(
        f'TARGET_EPSILON is {target:g}, but after the first round epsilon would'
        f' be {found:.4g} at delta {settings.delta:g}'
        + (f', with those of INIT_FROM_RUN ({before})' if before else '')
        + ': add noise that the aggregator accounts for, take smaller cohorts'
        ' of a larger population, or train NOT PRIVATE: TARGET_EPSILON = None.'
    )


def check_client_noise(
    saved: process_lib.State, built: process_lib.State
) -> None:
  """Checks that devices draw as much noise as when the run began.

  How much depends on MAX_FAILED_SHARE, which runs without distributed noise
  may change when they are resumed.

  Args:
    saved: The learning process's state to resume from.
    built: The initial state of the learning process that resumes.

  Raises:
    ValueError: They draw another amount.
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


def has_secret_noise(
    state: process_lib.State, settings: PrivacySettings
) -> bool:
  """Whether noise under secret keys protects what a run trains on."""
  return not settings.invalidations and bool(_event(state).noise_multiplier > 0)


def create_ledger(
    run: run_dir.RunDir,
    parents: Sequence[ledger_lib.Parent],
    *,
    invalidations: Sequence[str] = (),
    privacy_unit: Optional[str] = 'speaker',
) -> ledger_lib.Ledger:
  """Starts the ledger of a new run; refuses if an old one was taken away.

  Args:
    run: The run's folder.
    parents: The ledgers of the models that it starts from.
    invalidations: Reasons for which no guarantee holds, see `ledger.Contents`.
    privacy_unit: What one client is; None: as in the first parent.

  Raises:
    ledger.LedgerError: The folder holds a model with a ledger but no state; or
      `ledger.create` raises it.
  """
  before = run_dir.ledger_of_model(run.path)
  # A model stores the head of its ledger when the run ends.
  if before is not None and before[1] is not None:
    raise ledger_lib.LedgerError(
        f'{run.path} holds a trained model but no saved state: put its states '
        'back, or take another output_dir.'
    )
  return ledger_lib.create(
      run.file(run_dir.LEDGER),
      privacy_unit=privacy_unit,
      invalidations=invalidations,
      parents=parents,
  )


def _event(state: process_lib.State) -> dp_accounting.DpEvent:
  """The event of a round, as the aggregator reports it."""
  return dp_accounting.DpEvent.from_named_tuple(state.aggregator.dp_event)


def cost(
    state: process_lib.State, sampling: accounting.Sampling
) -> accounting.RoundGroup:
  """Returns a round as the ledger charges it: its event, the model's size.

  Args:
    state: The learning process's state; its weights are at least as many as the
      noised elements.
    sampling: How cohorts are drawn.

  Raises:
    ValueError: Event, noise and cohorts do not go together.
  """
  event = _event(state)
  weights = tree.flatten(state.global_model_weights)
  num_elements = sum(math.prod(weight.shape) for weight in weights)
  noise_multiplier = in_steps = float(event.noise_multiplier)
  strategy, secure_sum = None, None
  if isinstance(event, strategies.CorrelatedGaussianDpEvent):
    strategy = event.strategy
    # Correlated noise is drawn in finer steps than the grid's, and the
    # sampler's error depends on the steps of a draw.
    in_steps = correlated_noise.noise_resolution(event)
    # Counts of adaptive clips are noised elements, too.
    num_counts = np.size(query_state(state).layer_clips)
    noise_multiplier = correlated_noise.charged_noise_multiplier(
        event, num_elements=num_elements + num_counts
    )
  if isinstance(event, distributed.DistributedGaussianDpEvent):
    secure_sum = accounting.SecureSumParams(
        bits=int(event.bits),
        num_clients=int(event.num_clients),
        min_clients=int(event.min_clients),
    )
    # A sum of discrete Gaussians has another bound than rounded ones.
    sampler_epsilon = distributed.sampler_epsilon(event)
  else:
    # Laplace noise has a noise multiplier, too, and another cost.
    if strategy is None and type(event) is not dp_accounting.GaussianDpEvent:
      raise ValueError(
          f'the aggregator reports a {type(event).__name__}, which the ledger '
          'cannot charge: it charges Gaussian noise alone, independent or '
          'correlated by a strategy. CONTRIBUTING.md (A mechanism of '
          'differential privacy) says why.'
      )
    # Charged one by one, rounds that share noise would cost too little.
    if noise_multiplier and not strategy and query_state(state).is_correlated:
      raise ValueError(
          'the noise has buffers, so that rounds share it, but its event has '
          'no strategy: report a strategies.CorrelatedGaussianDpEvent.'
      )
    sampler_epsilon = queries.sampler_epsilon(
        in_steps, num_elements=num_elements
    )
  accounting.check_noise_fits_sampling(sampling, strategy, secure_sum)
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
      # Without noise there may be no query.
      noise_norm=_noise_norm(query_state(state)) if noise_multiplier else 0.0,
  )


def _noise_norm(state: queries.QueryState) -> Optional[float]:
  """Norm of a round's noise on the sum over C; None if it is not known."""
  if not np.size(state.layer_noise):
    return None
  noise = np.asarray(state.layer_noise, np.float64)
  return float(state.noise_multiplier) * float(np.linalg.norm(noise))


def noise_by_layer(
    state: process_lib.State, sampling: accounting.Sampling
) -> tuple[dict[str, float], bool]:
  """Returns the noise on each layer of a round's mean over the layer's clip.

  Args:
    state: The learning process's state.
    sampling: How cohorts are drawn.

  Returns:
    Norms of independent noise by name of the layer, {} if they are not known,
    and whether they are over the layer's own clip: else all layers are clipped
    as one, and the norms are over C. Clips that adapt are those of the coming
    round.
  """
  query = query_state(state)
  noise = np.asarray(query.layer_noise, np.float64) * (
      float(query.noise_multiplier) / sampling.cohort_size
  )
  shares = np.asarray(query.layer_shares, np.float64)
  if shares.size and np.size(query.layer_clips):
    shares = np.asarray(query.layer_clips, np.float64) / query.l2_norm_clip
  trained = clipping.names(weights_lib.without(
      process_lib.frozen_layers(state), state.global_model_weights
  ))
  modules = dict.fromkeys(map(clipping.module_name, trained))
  # A layer is a tensor or a module; the query's state has no names.
  names = next(
      (each for each in (trained, modules) if len(each) == noise.size), ()
  )
  if shares.size:
    noise /= shares
  return dict(zip(names, noise.tolist())), bool(shares.size)

"""An audit as a program: a federated run with canaries, tested and measured.

The run is that of `federated`, with its sampling, clipping, noise and ledger.
But canaries are among the people, and everybody else sends zeros. So what each
round should have released is known, and nobody's data are in it. What is kept
of each round lies in the run's folder (`audit/`), so an audit resumes like any
run. In the end all rounds are tested (`privacy.known_sums`), and epsilon is
estimated and bounded from what the canaries' scores give away
(`privacy.audit`). The model is of no use, and is removed.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
import dataclasses
import functools
import math
import os
from typing import Any

import numpy as np
import tensorflow as tf

from tff_asr import files
from tff_asr.learning import canaries as canaries_lib
from tff_asr.models import weights as weights_lib
from tff_asr.privacy import audit as audit_lib
from tff_asr.privacy import clipping as clipping_lib
from tff_asr.privacy import ledger as ledger_lib
from tff_asr.privacy import known_sums
from tff_asr.privacy import strategies
from tff_asr.programs import federated
from tff_asr.programs import private_rounds
from tff_asr.programs import training_loop
from tff_asr.storage import run_dir
from tff_asr.storage import state_file

# Canaries' directions take memory: so many values are held at once, and up to
# so many are kept for the next round.
_VALUES_AT_ONCE = 2**26
_MOST_KEPT = 2**27
# The fewest canaries that join, and the fewest that are held out.
_MIN_EACH = 10
_SUM = 'process/finalizer/sum'
_FOLDER = 'audit'
_SIZE = 'size/'


class AuditError(ValueError):
  """A run does not keep its promise."""


async def audit(
    *,
    output_dir: str,
    configuration: str,
    parts: str,
    build: Callable[..., federated.FederatedTraining],
    canaries: canaries_lib.Canaries,
    clipping: clipping_lib.Clipping,
    cohort_size: float,
) -> dict[str, Any]:
  """Runs the rounds, tests them, and measures epsilon by the canaries in them.

  Args:
    output_dir: The run's folder; the audit is written to audit.json in it.
    configuration: Text of the configuration.
    parts: As in `training_loop.TrainingRun`.
    build: `federated.FederatedTraining` with all but the arguments above:
      on client data by `canaries.add_canaries`, with these canaries in
      `fed_avg.build` and a server optimizer by `recording.build_recording`.
    canaries: The canaries.
    clipping: How the clip is divided over layers.
    cohort_size: What sums are divided by.

  Returns:
    What is in audit.json.

  Raises:
    AuditError: A test fails: the run does not keep its promise.
    ValueError: A setting is unusable.
  """
  included = int(canaries.included.sum())
  if min(included, canaries.num_canaries - included) < _MIN_EACH:
    raise ValueError(
        f'{included} of {canaries.num_canaries} canaries join and the others '
        f'are held out: raise NUM_CANARIES until both are {_MIN_EACH} or more.'
    )
  training = build(
      output_dir=output_dir, configuration=configuration, parts=parts
  )
  recorder = _Recorder(
      os.path.join(output_dir, _FOLDER),
      canaries=canaries,
      clipping=clipping,
      cohort_size=cohort_size,
      client_ids=training.client_data.client_ids,
  )
  training.observer = recorder.record
  results = await training_loop.run(training)
  model = os.path.join(output_dir, run_dir.MODEL)
  if os.path.exists(model):
    os.remove(model)

  epsilon = float(results['privacy']['epsilon'])
  delta = results['privacy']['delta']
  ledger = ledger_lib.read(os.path.join(output_dir, run_dir.LEDGER))
  audited = recorder.read(
      results['rounds'],
      sampling=training.sampling,
      charged=max(group.noise_multiplier for group in ledger.rounds),
      epsilon=epsilon,
      delta=delta,
  )
  tests = known_sums.run_tests(audited)
  fails = known_sums.decide(tests)
  bound = audit_lib.lower_bound(
      audited.likelihood_ratios(), canaries.included, delta=delta
  )
  estimate = audit_lib.estimate(
      recorder.total_scores(output_dir)[canaries.included], delta=delta
  )
  fields = {
      'accounted_epsilon': results['privacy']['epsilon'],
      'delta': delta,
      'bound': dataclasses.asdict(bound),
      'estimate': dataclasses.asdict(estimate),
      'tests': [
          {**test._asdict(), 'fails': failed}
          for test, failed in zip(tests, fails, strict=True)
      ],
      'fails': any(fails),
      'rounds': results['rounds'],
      'cohort_size': results['cohort_size'],
      'population': results['population'],
  }
  files.write_json(os.path.join(output_dir, 'audit.json'), fields)
  print(_table(tests, fails))
  print(
      f'epsilon at delta {delta:g}: accounted {epsilon:.3g}; at least '
      f'{bound.epsilon:.3g} with {bound.confidence:.0%} confidence '
      f'({bound.num_correct} of {bound.num_guesses} guesses right); estimate '
      f'{estimate.epsilon:.3g} ({estimate.low:.3g} to {estimate.high:.3g})'
  )
  if any(fails):
    names = ', '.join(
        test.name for test, failed in zip(tests, fails, strict=True) if failed
    )
    raise AuditError(
        f'the audit fails ({names}): clipping, noise, sampling or accounting '
        'is broken. Do not publish models of this configuration.'
    )
  return fields


class _Recorder:
  """Keeps what the tests need of each round, in files."""

  def __init__(
      self,
      folder: str,
      *,
      canaries: canaries_lib.Canaries,
      clipping: clipping_lib.Clipping,
      cohort_size: float,
      client_ids: Sequence[str],
  ):
    self._folder = folder
    self._canaries = canaries
    self._clipping = clipping
    self._cohort_size = cohort_size
    self._places = {name: place for place, name in enumerate(client_ids)}
    # Norms of the canaries' layers, and the blocks that have them.
    self._kept: tuple[list[float], list[Any]] = ([], [])

  def record(self, done: private_rounds.Done, number: int) -> None:
    """Writes what the tests need of a round, in place of an older one's."""
    metrics = done.output.metrics['aggregator']['dp_query_metrics']
    clip = float(metrics['l2_norm_clip'])
    query_state = private_rounds.query_state(done.output.state)
    is_correlated = hasattr(query_state, 'buffers')
    stddev = float(metrics[
        'noise_stddev_before_correlation'
        if is_correlated else 'noise_stddev_on_sum'
    ])
    if not stddev > 0:
      raise ValueError(
          'nothing is noised, so nothing is promised that could be audited: '
          'include a file of gin/privacy and set NOISE_MULTIPLIER.'
      )
    released = {
        name: np.asarray(layer, np.float64) * (self._cohort_size / clip)
        for name, layer in done.output.state.finalizer['last'].items()
    }
    cohort = np.array(sorted(
        self._places[tf.compat.as_text(name)] for name in done.drawn
    ), np.int64)
    shares = {
        name: float(layer_clip) / clip
        for name, layer_clip in metrics.get('layer_clip', {}).items()
    }
    observation = known_sums.observe(
        [np.ravel(released[name]) for name in sorted(released)],
        joined=np.isin(self._canary_places, cohort) & self._canaries.included,
        blocks=self._blocks(released, shares),
        noise_ratio=stddev / clip,
    )
    os.makedirs(self._folder, exist_ok=True)
    with files.replacing(self._path('noise', number, 'npy')) as file:
      np.save(file, observation.noise)
    with files.replacing(self._path('round', number, 'npz')) as file:
      np.savez(
          file,
          cohort=cohort,
          scales=query_state.scales if is_correlated else (),
          decays=query_state.decays if is_correlated else (),
          **{
              name: value
              for name, value in observation._asdict().items()
              if name != 'noise'
          },
          **{
              f'{_SIZE}{name}': released[name].size
              for name in sorted(released)
          },
      )

  def read(self, num_rounds: int, **stated: Any) -> known_sums.Audited:
    """Returns the rounds; `stated` are fields that the run states."""
    rounds, cohorts = [], []
    for number in range(1, num_rounds + 1):
      noise = np.load(self._path('noise', number, 'npy'), mmap_mode='r')
      with np.load(self._path('round', number, 'npz')) as file:
        fields = dict(file)
      cohorts.append(fields.pop('cohort'))
      scales, decays = fields.pop('scales'), fields.pop('decays')
      sizes = {
          name.removeprefix(_SIZE): int(fields.pop(name))
          for name in list(fields)
          if name.startswith(_SIZE)
      }
      rounds.append(known_sums.Observation(noise=noise, **fields))
    covariance = np.eye(num_rounds)
    if len(scales):
      blt = strategies.Toeplitz(scales=scales, decays=decays)
      covariance = blt.covariance(num_rounds)
    return known_sums.Audited(
        rounds=rounds,
        layers=sizes,
        covariance=covariance,
        cohorts=cohorts,
        canaries=self._canary_places,
        included=self._canaries.included,
        **stated,
    )

  def total_scores(self, output_dir: str) -> np.ndarray:
    """The canaries' scores by the sum of all that was released, float64 [K].

    If clips adapt, layers have the first round's shares here, which makes an
    estimate lower.
    """
    leaves = state_file.read_leaves(
        run_dir.newest_state(output_dir), prefix=_SUM
    )
    total = {name.removeprefix(f'{_SUM}/'): leaves[name] for name in leaves}
    released = [np.ravel(total[name]) for name in sorted(total)]
    blocks = self._blocks(total, {})
    return np.concatenate(
        [audit_lib.scores(released, layers)[0] for _, layers in blocks()]
    )

  def _path(self, kind: str, number: int, suffix: str) -> str:
    return os.path.join(self._folder, f'{kind}_{number:06d}.{suffix}')

  @functools.cached_property
  def _canary_places(self) -> np.ndarray:
    """The canaries' places in the population, int64 [K]."""
    return np.array(
        [self._places[name] for name in self._canaries.client_ids]
    )

  def _blocks(
      self, released: Mapping[str, np.ndarray], shares: Mapping[str, float]
  ) -> known_sums.Blocks:
    """Canaries' parts of a sum, over the clip; `shares` as `layer_norms`."""
    # In the order of the model's weights.
    specs = weights_lib.Weights(
        (name, tf.TensorSpec(released[name].shape, tf.float32))
        for name in sorted(released)
    )
    norms = layer_norms(specs, clipping=self._clipping, shares=shares)
    build = lambda: _build_blocks(self._canaries, specs, norms)
    num_values = self._canaries.num_canaries * sum(
        spec.shape.num_elements() for spec in specs.values()
    )
    if num_values > _MOST_KEPT:
      return build
    if self._kept[0] != norms:
      self._kept = norms, list(build())
    return lambda: self._kept[1]


def layer_norms(
    specs: weights_lib.Weights,
    *,
    clipping: clipping_lib.Clipping,
    shares: Mapping[str, float],
) -> list[float]:
  """Returns the norms of a canary's tensors after clipping, over the clip.

  Not computed by the query, which is audited. A canary's tensors have equal
  norms before: each of a layer's K tensors has C_h / sqrt(K) after it; with one
  global clip, each of all K tensors has C / sqrt(K).

  Args:
    specs: Specs of the tensors, by name.
    clipping: How the clip is divided over layers.
    shares: C_h / C of layers whose clips adapt; others have `clipping`'s.
  """
  norms = [1 / math.sqrt(len(specs))] * len(specs)
  for layer in clipping.divide(specs):
    for place in layer.indices:
      if layer.share is not None:
        share = shares.get(layer.name, layer.share)
        norms[place] = share / math.sqrt(len(layer.indices))
  return norms


def _build_blocks(
    canaries: canaries_lib.Canaries,
    specs: weights_lib.Weights,
    norms: Sequence[float],
) -> Iterator[tuple[slice, list[np.ndarray]]]:
  """See `_Recorder._blocks`."""
  shapes = [spec.shape for spec in specs.values()]
  factors = [norm / canaries_lib.LAYER_NORM for norm in norms]

  @tf.function(autograph=False)
  def contribution(client_id):
    return [
        tf.reshape(layer * factor, [-1])
        for layer, factor in zip(
            canaries.directions(client_id, shapes), factors, strict=True
        )
    ]

  size = sum(shape.num_elements() for shape in shapes)
  at_once = max(1, _VALUES_AT_ONCE // size)
  ids = canaries.client_ids
  for start in range(0, len(ids), at_once):
    places = slice(start, min(start + at_once, len(ids)))
    updates = [
        [layer.numpy() for layer in contribution(tf.constant(client_id))]
        for client_id in ids[places]
    ]
    yield places, [np.stack(layer) for layer in zip(*updates)]


def _table(
    tests: Sequence[known_sums.Test], fails: Sequence[bool]
) -> str:
  """The tests, one a line."""
  lines = [f'{"test":<11}{"p":<9}{"":<7}most unlikely in it']
  for test, failed in zip(tests, fails, strict=True):
    verdict = 'FAILS' if failed else 'holds'
    lines.append(
        f'{test.name:<11}{test.p_value:<9.2g}{verdict:<7}{test.finding}'
    )
  return '\n'.join(lines)

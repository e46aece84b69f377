"""An audit as a program: a federated run with canaries, tested and measured.

The run is that of `federated`, with its sampling, clipping, noise and ledger.
But canaries are added to the clients, and all others send zeros: the sum that
each round should have released is known, and contains no data. At the end the
releases are tested (`privacy.noise_residuals`), and epsilon is estimated and
bounded from the canaries' scores (`privacy.audit`). The model is useless and is
removed. Releases are kept in memory, so an audit cannot be resumed.

  D: elements of a layer. H: layers. K: canaries. T: rounds.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
import math
import os
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tff_asr import files
from tff_asr.data import cohorts
from tff_asr.learning import canaries as canaries_lib
from tff_asr.models import weights as weights_lib
from tff_asr.privacy import accounting
from tff_asr.privacy import audit as audit_lib
from tff_asr.privacy import clipping as clipping_lib
from tff_asr.privacy import ledger as ledger_lib
from tff_asr.privacy import noise_residuals
from tff_asr.programs import federated
from tff_asr.programs import private_rounds
from tff_asr.programs import training_loop
from tff_asr.storage import run_dir

_Result = private_rounds.RoundResult[list[str], cohorts.CohortState]

# Values of canaries' directions that are held at once.
_VALUES_AT_ONCE = 2**26  # 256 MiB of float32.
# The fewest canaries that join, and the fewest that are held out: with fewer, a
# bound has too few coins to guess.
_MIN_EACH = 10


class AuditError(ValueError):
  """A run does not keep its promise."""


async def audit(
    *,
    output_dir: str,
    configuration: str,
    model_spec: str,
    build: Callable[..., federated.FederatedTraining],
    canaries: canaries_lib.Canaries,
    clipping: clipping_lib.Clipping,
    cohort_size: float,
) -> dict[str, Any]:
  """Runs the rounds, tests them, and measures epsilon by the canaries in them.

  Args:
    output_dir: The run's folder; the audit is written to audit.json in it.
    configuration: Text of the configuration.
    model_spec: As in `training_loop.TrainingRun`.
    build: `federated.FederatedTraining` with all but the arguments above:
      on `canaries.add_canaries`, with these canaries in `fed_avg.build`, and
      `gradient_tracing.build_gradient_tracing` as server optimizer.
    canaries: The canaries.
    clipping: How the clip is divided over layers.
    cohort_size: What sums are divided by.

  Returns what is in audit.json.

  Raises:
    AuditError: A test fails: the run does not keep its promise.
  """
  _check(output_dir, canaries)
  rounds = {}

  def observe(result: _Result, number: int) -> None:
    # In place of an undone round of this number.
    rounds[number] = _release(
        result, canaries=canaries, clipping=clipping, cohort_size=cohort_size
    )

  training = build(
      output_dir=output_dir, configuration=configuration, model_spec=model_spec
  )
  results = await training_loop.run(training, observer=observe)
  # It was trained on canaries only.
  os.remove(os.path.join(output_dir, run_dir.MODEL))
  # Undone rounds at the end of a run have higher numbers.
  released = _Released(
      [rounds[number] for number in range(1, results['rounds'] + 1)], canaries
  )
  fields = _examine(released, canaries, training=training, results=results)
  files.write_json(os.path.join(output_dir, 'audit.json'), fields)
  print(_summary(fields))
  failed = [test['name'] for test in fields['tests'] if test['fails']]
  if failed:
    raise AuditError(
        f'the audit fails ({", ".join(failed)}): clipping, noise or accounting '
        'is broken. Do not publish models of this configuration.'
    )
  return fields


def _check(output_dir: str, canaries: canaries_lib.Canaries) -> None:
  """Raises ValueError for too few canaries, or a folder that is in use."""
  included = int(canaries.included.sum())
  if min(included, canaries.num_canaries - included) < _MIN_EACH:
    raise ValueError(
        f'{included} of {canaries.num_canaries} canaries join and the others '
        f'are held out: raise NUM_CANARIES until both are {_MIN_EACH} or more.'
    )
  if os.path.exists(os.path.join(output_dir, run_dir.LEDGER)):
    raise ValueError(
        f'{output_dir} has the ledger of a run, and an audit cannot be '
        'resumed: take another output_dir.'
    )


def _examine(
    released: '_Released',
    canaries: canaries_lib.Canaries,
    *,
    training: federated.FederatedTraining,
    results: Mapping[str, Any],
) -> dict[str, Any]:
  """Returns the tests, the bound and the estimate, for JSON."""
  charged = ledger_lib.read(
      os.path.join(training.output_dir, run_dir.LEDGER)
  ).rounds
  covariance = noise_covariance(charged, num_rounds=results['rounds'])
  tests = [
      charged_noise_test(
          released.noise_ratios,
          # The largest charge: the noise of every round must reach it.
          charged=max(group.noise_multiplier for group in charged),
      ),
      *noise_residuals.run_tests(released.layers(), covariance=covariance),
  ]
  # After the tests: they collect from `layers` what scores need.
  places = {
      name: place for place, name in enumerate(training.client_data.client_ids)
  }
  ratios = audit_lib.likelihood_ratios(
      *released.scores(),
      sampling=training.sampling,
      covariance=covariance,
      places=np.array([places[name] for name in canaries.client_ids]),
  )
  delta = results['privacy']['delta']
  bound, guesses = audit_lib.epsilon_lower_bound(
      ratios, canaries.included, delta=delta
  )
  estimate = audit_lib.estimate_epsilon(
      # The held-out ones are not in any sum.
      released.total_scores()[canaries.included], delta=delta
  )
  return {
      'accounted_epsilon': results['privacy']['epsilon'],
      'delta': delta,
      'bound': {
          'epsilon': bound,
          'confidence': audit_lib.CONFIDENCE,
          **guesses._asdict(),
      },
      'estimate': estimate._asdict(),
      'tests': [{**test._asdict(), 'fails': test.fails} for test in tests],
      'fails': any(test.fails for test in tests),
      'rounds': results['rounds'],
      'cohort_size': results['cohort_size'],
      'population': results['population'],
  }


def charged_noise_test(
    noise_ratios: Sequence[float], *, charged: float
) -> noise_residuals.ResidualTest:
  """Compares the stated noise over the clip with the ledger's: certain."""
  least = min(noise_ratios)
  return noise_residuals.ResidualTest(
      'charged',
      f'noise / clip is {least:.4g}, charged is {charged:.4g}',
      # Both were rounded to float32.
      float(least >= charged * (1 - 1e-6)),
  )


def noise_covariance(
    rounds: Sequence[accounting.RoundGroup], *, num_rounds: int
) -> np.ndarray:
  """Returns the covariance that the noise of rounds should have over z^2 C^2.

  Args:
    rounds: What the ledger charges.
    num_rounds: Rounds that were released, T.

  Returns:
    float64 [T, T].

  Raises:
    ValueError: Correlated noise was restarted.
  """
  # Independent rounds need no order, so repeated ones may be charged too.
  if all(group.strategy is None for group in rounds):
    return np.eye(num_rounds)
  counts = [group.count for group in rounds]
  if counts != [num_rounds]:
    raise ValueError(
        f'{num_rounds} rounds were released, but the ledger charges {counts}: '
        'correlated noise was restarted, which an audit does not follow. Audit '
        'again in another output_dir.'
    )
  # One group, so one strategy.
  return rounds[0].strategy.covariance(num_rounds)


class _Release(NamedTuple):
  """The release of a round.

  Attributes:
    joined: Which canaries joined, bool [K].
    norms: Norms of a canary's layers in the sum over the clip, [H].
    noise_ratio: Stated deviation of the noise on the sum over the clip.
    scale: Cohort size over the clip.
    layers: The released mean, by layer.
  """

  joined: np.ndarray
  norms: np.ndarray
  noise_ratio: float
  scale: float
  layers: Mapping[str, np.ndarray]


def _release(
    result: _Result,
    *,
    canaries: canaries_lib.Canaries,
    clipping: clipping_lib.Clipping,
    cohort_size: float,
) -> _Release:
  """The release of a round, and what its query states about it."""
  metrics = result.output.metrics['aggregator']['dp_query_metrics']
  clip = float(metrics['l2_norm_clip'])
  is_correlated = private_rounds.query_state(result.output.state).is_correlated
  stddev = float(metrics[
      'noise_stddev_before_correlation'
      if is_correlated else 'noise_stddev_on_sum'
  ])
  if not stddev > 0:
    raise ValueError(
        'nothing is noised, so nothing is promised that could be audited: '
        'include a file of gin/privacy and set NOISE_MULTIPLIER.'
    )
  released = result.output.state.finalizer['last']
  # In the order of the model's weights.
  specs = weights_lib.Weights(
      (name, tf.TensorSpec(np.shape(released[name]), tf.float32))
      for name in sorted(released)
  )
  shares = {
      name: float(layer_clip) / clip
      for name, layer_clip in metrics.get('layer_clip', {}).items()
  }
  drawn = {tf.compat.as_text(name) for name in result.batch}
  is_drawn = [name in drawn for name in canaries.client_ids]
  return _Release(
      joined=is_drawn & canaries.included,
      norms=np.array(layer_norms(specs, clipping=clipping, shares=shares)),
      noise_ratio=stddev / clip,
      # From the mean to the sum, in clips.
      scale=cohort_size / clip,
      layers={name: np.asarray(released[name]) for name in specs},
  )


class _Released:
  """All rounds' releases, in units of their clips; see `layers`."""

  def __init__(
      self,
      rounds: Sequence[_Release],
      canaries: canaries_lib.Canaries,
  ):
    self._rounds = rounds
    self._canaries = canaries
    self._joined = np.stack([each.joined for each in rounds])  # [T, K]
    self._norms = np.stack([each.norms for each in rounds])  # [T, H]
    self.noise_ratios = np.array([each.noise_ratio for each in rounds])  # [T]
    # By layers: <canaries' unit directions, releases>, [T, K], and the
    # releases' mean squares, [T]; and the mean square of their sum, [].
    self._inner, self._squares, self._sum_square = [], [], []

  def layers(self) -> Iterator[noise_residuals.NoiseResiduals]:
    """Yields the layers of all rounds, and keeps what `scores` need of them."""
    for place, (name, first) in enumerate(self._rounds[0].layers.items()):
      released = np.stack([
          each.layers[name].astype(np.float64).ravel() * each.scale
          for each in self._rounds
      ])
      # float64 throughout, as sums over millions of elements are tested.
      known = np.zeros_like(released)
      inner = np.zeros(self._joined.shape)
      for canaries, directions in _directions(
          self._canaries, place, tf.TensorShape(first.shape)
      ):
        weights = self._joined[:, canaries] * self._norms[:, place, None]
        # Products in float32: canaries by elements is the largest array here.
        known += weights.astype(np.float32) @ directions
        inner[:, canaries] = released.astype(np.float32) @ directions.T
      self._inner.append(inner)
      self._squares.append(np.mean(released**2, axis=1))
      self._sum_square.append(np.mean(released.sum(axis=0) ** 2))
      ratios = self.noise_ratios[:, None]
      yield noise_residuals.NoiseResiduals(
          name, (released - known) / ratios, known / ratios
      )

  def scores(self) -> tuple[np.ndarray, np.ndarray]:
    """Returns the canaries' `audit.scores` by rounds, after `layers`."""
    return audit_lib.scores(
        np.stack(self._inner, axis=-1),
        norms=self._norms[:, None],
        mean_squares=np.stack(self._squares, axis=-1)[:, None],
    )

  def total_scores(self) -> np.ndarray:
    """Returns their scores by the sum of all releases, after `layers`.

    If clips adapt, layers have their mean shares here, which makes an estimate
    lower.
    """
    scores, _ = audit_lib.scores(
        np.stack(self._inner, axis=-1).sum(axis=0),
        norms=self._norms.mean(axis=0),
        mean_squares=np.stack(self._sum_square),
    )
    return scores


def _directions(
    canaries: canaries_lib.Canaries, place: int, shape: tf.TensorShape
) -> Iterator[tuple[slice, np.ndarray]]:
  """Slices of canaries, and a layer of their unit directions, [k, D]."""

  @tf.function(autograph=False)
  def draw(client_id):
    layer = canaries.direction(client_id, place, shape)
    return tf.reshape(layer / canaries_lib.LAYER_NORM, [-1])

  # At least one, however large the layer is.
  at_once = max(1, _VALUES_AT_ONCE // max(1, shape.num_elements()))
  ids = canaries.client_ids
  for start in range(0, len(ids), at_once):
    some = ids[start : start + at_once]
    yield slice(start, start + len(some)), np.stack(
        [draw(tf.constant(client_id)).numpy() for client_id in some]
    )


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
    shares: C_h / C of layers with adaptive clips; others take `clipping`'s.
  """
  # Of one global clip; layers with a share replace it.
  norms = [1 / math.sqrt(len(specs))] * len(specs)
  for layer in clipping.divide(specs):
    for place in layer.indices:
      if layer.share is not None:
        share = shares.get(layer.name, layer.share)
        norms[place] = share / math.sqrt(len(layer.indices))
  return norms


def _summary(fields: Mapping[str, Any]) -> str:
  """The tests, one a line, and epsilon."""
  lines = [f'{"test":<11}{"p":<9}{"":<7}most unlikely in it']
  for test in fields['tests']:
    verdict = 'FAILS' if test['fails'] else 'holds'
    lines.append(
        f'{test["name"]:<11}{test["p_value"]:<9.2g}{verdict:<7}'
        f'{test["finding"]}'
    )
  bound, estimate = fields['bound'], fields['estimate']
  return '\n'.join([
      *lines,
      f'epsilon at delta {fields["delta"]:g}: accounted '
      f'{float(fields["accounted_epsilon"]):.3g}; at least '
      f'{bound["epsilon"]:.3g} with {bound["confidence"]:.0%} confidence '
      f'({bound["num_correct"]} of {bound["num_guesses"]} guesses right); '
      f'estimate {estimate["epsilon"]:.3g} ({estimate["low"]:.3g} to '
      f'{estimate["high"]:.3g})',
  ])

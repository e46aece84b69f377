"""Power of an audit: how many simulated runs with a planted defect it finds.

    python -m benchmarks.audit_power --num_runs=100 --json=results/power.json

A run is simulated by its definition, in NumPy: cohorts are drawn, canaries add
their directions, and noise is added; no code of the mechanism takes part. The
tests and their verdict are those of an audit (`privacy.known_sums`), with its
level. The first table has a row a defect and a column a setting, in percent of
runs; the second the accounted epsilon, and what the bound and the estimate make
of honest runs.
"""

from tff_asr import launch  # First: quiets TensorFlow before it is loaded.

launch.begin(__name__)

from collections.abc import Callable
import functools
from typing import NamedTuple

from absl import flags
import numpy as np

from benchmarks import report
from tff_asr.privacy import accounting
from tff_asr.privacy import audit
from tff_asr.privacy import known_sums

_NUM_RUNS = flags.DEFINE_integer(
    'num_runs', 100, 'Simulated runs of each defect.', lower_bound=1
)

DELTA = 1e-5
POPULATION = 1000
NUM_CANARIES = 200
SIZES = {'bias': 16, 'scale': 64, 'kernel': 1024, 'matrix': 8192}


class Setting(NamedTuple):
  """Sampling probability, noise multiplier, rounds."""

  sampling_prob: float
  noise_multiplier: float
  num_rounds: int


SETTINGS = (
    Setting(1.0, 1.0, 5),
    Setting(1.0, 4.0, 5),
    Setting(0.1, 1.0, 5),
    Setting(0.1, 1.0, 20),
    Setting(0.1, 0.3, 20),
    Setting(0.02, 1.0, 20),
)


class Run:
  """A simulated run; a defect changes one of its parts before `observe`.

  T: rounds. K: canaries. D: elements of a layer.

  Attributes:
    noise: By layers, float64 [T, D], in units of the clip.
    cohorts: Ascending places in the population; canaries come first.
    counts: How often a canary counts in a sum it joins, and a layer of it,
      float64 [K] and by layers.
    charged: The noise multiplier in the ledger.
  """

  def __init__(self, setting: Setting, *, seed: int):
    """Draws an honest run."""
    self.setting = setting
    self.generator = np.random.default_rng(seed)
    self.included = self.generator.random(NUM_CANARIES) < 0.5
    self.noise = {
        name: setting.noise_multiplier
        * self.generator.standard_normal([setting.num_rounds, size])
        for name, size in SIZES.items()
    }
    self.cohorts = [
        np.flatnonzero(
            self.generator.random(POPULATION) < setting.sampling_prob
        )
        for _ in range(setting.num_rounds)
    ]
    self.counts = np.ones(NUM_CANARIES)
    self.layer_counts = {name: 1.0 for name in SIZES}
    self.charged = setting.noise_multiplier

  @property
  def sampling(self) -> accounting.Sampling:
    return accounting.Sampling(
        kind='poisson',
        cohort_size=round(self.setting.sampling_prob * POPULATION),
        population=POPULATION,
    )

  def observe(self) -> known_sums.Audited:
    """Releases the sums and takes from them what an audit keeps."""
    directions = _directions()
    canaries = np.arange(NUM_CANARIES)
    rounds = []
    for number, cohort in enumerate(self.cohorts):
      joined = np.isin(canaries, cohort) & self.included
      released = [
          self.layer_counts[name] * ((joined * self.counts) @ directions[name])
          + self.noise[name][number]
          for name in SIZES
      ]
      rounds.append(
          known_sums.observe(
              released,
              joined=joined,
              blocks=lambda: [
                  (slice(0, NUM_CANARIES), [*directions.values()])
              ],
              noise_ratio=self.setting.noise_multiplier,
          )
      )
    return known_sums.Audited(
        rounds=rounds,
        layers=SIZES,
        covariance=np.eye(len(rounds)),
        charged=self.charged,
        sampling=self.sampling,
        cohorts=self.cohorts,
        canaries=canaries,
        included=self.included,
        epsilon=accounted_epsilon(self.setting),
        delta=DELTA,
    )


@functools.cache
def _directions() -> dict[str, np.ndarray]:
  """What canaries add, float64 [K, D] by layers: clips by dimension."""
  generator = np.random.default_rng(0)
  total = sum(SIZES.values())
  directions = {}
  for name, size in SIZES.items():
    drawn = generator.standard_normal([NUM_CANARIES, size])
    norms = np.linalg.norm(drawn, axis=1, keepdims=True)
    directions[name] = drawn / norms * np.sqrt(size / total)
  return directions


@functools.cache
def accounted_epsilon(setting: Setting) -> float:
  """Epsilon (PLD) of a setting."""
  rounds = accounting.RoundGroup(
      sampling=accounting.Sampling(
          kind='poisson',
          cohort_size=round(setting.sampling_prob * POPULATION),
          population=POPULATION,
      ),
      noise_multiplier=setting.noise_multiplier,
      count=setting.num_rounds,
  )
  return accounting.epsilon(
      accounting.compose([rounds]), delta=DELTA, accountant='pld'
  )


def _reuse_noise(run: Run) -> None:
  for noise in run.noise.values():
    noise[:] = noise[0]


def _reuse_noise_in_smallest(run: Run) -> None:
  run.noise['bias'][:] = run.noise['bias'][0]


def _share_noise(run: Run) -> None:
  for noise in run.noise.values():
    noise[:] = np.sqrt(0.9) * noise + np.sqrt(0.1) * noise[0]


def _scale_noise(factor: float) -> Callable[[Run], None]:
  def apply(run: Run) -> None:
    for noise in run.noise.values():
      noise *= factor

  return apply


def _leave_out(name: str) -> Callable[[Run], None]:
  def apply(run: Run) -> None:
    run.noise[name][:] = 0

  return apply


def _copy_layer(run: Run) -> None:
  run.noise['kernel'][:, : SIZES['scale']] = run.noise['scale']


def _float32_noise(run: Run) -> None:
  """Box-Muller from two uniforms of 23 bits a pair, as TensorFlow's."""
  for noise in run.noise.values():
    words = run.generator.integers(2**23, size=[noise.size // 2, 2])
    first, second = (words * np.float64(2**-23)).astype(np.float32).T
    first = np.maximum(first, np.float32(1e-7))
    radius = np.sqrt(np.float32(-2) * np.log(first))
    angle = np.float32(2 * np.pi) * second
    pairs = np.stack([radius * np.sin(angle), radius * np.cos(angle)], axis=1)
    deviation = np.float32(run.setting.noise_multiplier)
    noise[:] = (pairs * deviation).reshape(noise.shape)


def _exceed_clip(name: str, factor: float) -> Callable[[Run], None]:
  def apply(run: Run) -> None:
    run.layer_counts[name] = factor

  return apply


def _count_twice(how_many: int) -> Callable[[Run], None]:
  def apply(run: Run) -> None:
    run.counts[np.flatnonzero(run.included)[:how_many]] = 2

  return apply


def _repeat_a_cohort(run: Run) -> None:
  run.cohorts[1] = run.cohorts[0]


def _fix_sizes(run: Run) -> None:
  size = run.sampling.cohort_size
  run.cohorts = [
      np.sort(run.generator.permutation(POPULATION)[:size])
      for _ in run.cohorts
  ]


def _overcharge(run: Run) -> None:
  run.charged *= 1.01


DEFECTS: dict[str, Callable[[Run], None]] = {
    'none': lambda run: None,
    'noise of round 1 in every round': _reuse_noise,
    'the same in the layer of 16 elements': _reuse_noise_in_smallest,
    'a tenth of the variance shared by all rounds': _share_noise,
    'noise halved': _scale_noise(0.5),
    'noise 2 % too small': _scale_noise(0.98),
    'no noise in the layer of 16 elements': _leave_out('bias'),
    'no noise in the layer of 8,192': _leave_out('matrix'),
    '64 elements with the noise of another layer': _copy_layer,
    'float32 noise': _float32_noise,
    'the layer of 1,024 not clipped': _exceed_clip('kernel', 1e6),
    'the clip of the layer of 1,024 doubled': _exceed_clip('kernel', 2.0),
    'all clients counted twice': _count_twice(NUM_CANARIES),
    'one client counted twice': _count_twice(1),
    'a cohort used in two rounds': _repeat_a_cohort,
    'cohorts of fixed size charged as Poisson': _fix_sizes,
    'a noise multiplier charged 1 % too large': _overcharge,
}
# With everyone in each round, nothing is drawn.
NEEDS_SAMPLING = (
    'a cohort used in two rounds', 'cohorts of fixed size charged as Poisson'
)


def found(defect: str, setting: Setting, *, seed: int) -> list[str]:
  """Returns the names of the tests that a simulated run fails."""
  run = Run(setting, seed=seed)
  DEFECTS[defect](run)
  tests = known_sums.run_tests(run.observe())
  return [
      test.name
      for test, failed in zip(tests, known_sums.decide(tests), strict=True)
      if failed
  ]


def measured(setting: Setting, *, seed: int) -> tuple[float, float]:
  """Returns the bound and the estimate of an honest run."""
  run = Run(setting, seed=seed)
  observed = run.observe()
  bound = audit.lower_bound(
      observed.likelihood_ratios(), observed.included, delta=DELTA
  )
  directions = _directions()
  total = [
      ((observed.joined.sum(axis=0) @ directions[name])
       + run.noise[name].sum(axis=0))
      for name in SIZES
  ]
  scores, _ = audit.scores(total, [*directions.values()])
  estimate = audit.estimate(scores[run.included], delta=DELTA)
  return bound.epsilon, estimate.epsilon


def main(_) -> None:
  report.check_json_flag()
  seeds = range(_NUM_RUNS.value)
  heading = [
      f'q = {setting.sampling_prob:g}, z = {setting.noise_multiplier:g}, '
      f'{setting.num_rounds} rounds'
      for setting in SETTINGS
  ]
  power = {}
  for defect in DEFECTS:
    power[defect] = [
        None
        if defect in NEEDS_SAMPLING and setting.sampling_prob == 1
        else 100 * np.mean(
            [bool(found(defect, setting, seed=seed)) for seed in seeds]
        )
        for setting in SETTINGS
    ]
  means = np.array([
      np.mean([measured(setting, seed=seed) for seed in seeds], axis=0)
      for setting in SETTINGS
  ])
  epsilon = {
      'accounted (PLD)': [accounted_epsilon(setting) for setting in SETTINGS],
      'mean bound': means[:, 0].tolist(),
      'mean estimate': means[:, 1].tolist(),
  }
  report.write(
      f'Defects found, percent of {len(seeds)} runs',
      [
          ['defect', *heading],
          *(
              [name, *('-' if x is None else f'{x:.0f}' for x in cells)]
              for name, cells in power.items()
          ),
      ],
      {'power': power, 'epsilon': epsilon},
  )
  report.write(
      'Epsilon of honest runs',
      [
          ['', *heading],
          *(
              [name, *(f'{x:.2f}' for x in row)]
              for name, row in epsilon.items()
          ),
      ],
      {'power': power, 'epsilon': epsilon},
  )


if __name__ == '__main__':
  launch.run(main)

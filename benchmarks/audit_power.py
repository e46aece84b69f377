"""Power of an audit: how many simulated runs with a planted defect it finds.

    python -m benchmarks.audit_power --num_runs=100 --json=results/power.json

A run is simulated by its definition, in NumPy: cohorts are drawn, canaries add
their directions, and noise is added; no code of the mechanism takes part. The
tests and their verdict are those of an audit (`privacy.noise_residuals`), at
its level. The first table has a row a defect and a column a setting, in percent
of runs; the second the accounted epsilon, and what the bound and the estimate
make of honest runs.
"""

from tff_asr import launch  # First: quiets TensorFlow before it is loaded.

launch.install_early_sigint(__name__)

from collections.abc import Callable, Iterator
import functools
from typing import NamedTuple

from absl import flags
import numpy as np

from benchmarks import report
from tff_asr.privacy import accounting
from tff_asr.privacy import audit
from tff_asr.privacy import noise_residuals

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
  """A simulated run; a defect changes its parts before `releases` is called.

  T: rounds. K: canaries. D: elements of a layer.

  Attributes:
    noise: By layers, float64 [T, D], in units of the stated deviation.
    joined: Canaries that count in each round, bool [T, K].
    counts: How often a canary counts in a sum that it joins, float64 [K].
    layer_counts: How often a layer of a canary does, by layers.
  """

  def __init__(self, setting: Setting, *, seed: int):
    """Draws an honest run."""
    self.setting = setting
    self.generator = np.random.default_rng(seed)
    self.included = self.generator.random(NUM_CANARIES) < 0.5
    self.noise = {
        name: self.generator.standard_normal([setting.num_rounds, size])
        for name, size in SIZES.items()
    }
    is_drawn = (
        self.generator.random([setting.num_rounds, NUM_CANARIES])
        < setting.sampling_prob
    )
    self.joined = is_drawn & self.included
    self.counts = np.ones(NUM_CANARIES)
    self.layer_counts = {name: 1.0 for name in SIZES}

  def releases(self) -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
    """Yields each layer's name, release and known sum, float64 [T, D].

    Both are in units of the stated deviation of the noise.
    """
    for name, directions in _directions().items():
      known, summed = (
          joined @ directions / self.setting.noise_multiplier
          for joined in (self.joined, self.joined * self.counts)
      )
      released = self.layer_counts[name] * summed + self.noise[name]
      yield name, released, known


@functools.cache
def _directions() -> dict[str, np.ndarray]:
  """Canaries' contributions, float64 [K, D] by layers: clips by dimension."""
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
      sampling=_sampling(setting),
      noise_multiplier=setting.noise_multiplier,
      count=setting.num_rounds,
  )
  return accounting.epsilon([rounds], delta=DELTA, accountant='pld')


def _sampling(setting: Setting) -> accounting.Sampling:
  return accounting.Sampling(
      kind='poisson',
      cohort_size=round(setting.sampling_prob * POPULATION),
      population=POPULATION,
  )


def _share_noise(run: Run) -> None:
  for noise in run.noise.values():
    noise[:] = np.sqrt(0.9) * noise + np.sqrt(0.1) * noise[0]


def _reuse(*names: str) -> Callable[[Run], None]:
  def apply(run: Run) -> None:
    for name in names:
      run.noise[name][:] = run.noise[name][0]

  return apply


def _scale(
    factor: float, *names: str, places: slice = slice(None)
) -> Callable[[Run], None]:
  def apply(run: Run) -> None:
    for name in names:
      run.noise[name][:, places] *= factor

  return apply


def _silence_means(run: Run) -> None:
  for noise in run.noise.values():
    noise -= noise.mean(axis=1, keepdims=True)


def _float32_noise(run: Run) -> None:
  """Box-Muller from two uniforms of 23 bits a pair, as TensorFlow's."""
  for noise in run.noise.values():
    words = run.generator.integers(2**23, size=[noise.size // 2, 2])
    first, second = (words * np.float64(2**-23)).astype(np.float32).T
    first = np.maximum(first, np.float32(1e-7))
    radius = np.sqrt(np.float32(-2) * np.log(first))
    angle = np.float32(2 * np.pi) * second
    pairs = np.stack([radius * np.sin(angle), radius * np.cos(angle)], axis=1)
    noise[:] = pairs.reshape(noise.shape)


def _short_seed(run: Run) -> None:
  """Noise of each round from a seed of 16 bits."""
  for number in range(run.setting.num_rounds):
    generator = np.random.default_rng(run.generator.integers(2**16))
    for noise in run.noise.values():
      noise[number] = generator.standard_normal(noise.shape[1])


def _exceed_clip(name: str, factor: float) -> Callable[[Run], None]:
  def apply(run: Run) -> None:
    run.layer_counts[name] = factor

  return apply


def _count_twice(how_many: int) -> Callable[[Run], None]:
  def apply(run: Run) -> None:
    run.counts[np.flatnonzero(run.included)[:how_many]] = 2

  return apply


DEFECTS: dict[str, Callable[[Run], None]] = {
    'none': lambda run: None,
    'noise halved': _scale(0.5, *SIZES),
    'noise 2 % too small': _scale(0.98, *SIZES),
    'no noise in the layer of 16 elements': _scale(0, 'bias'),
    'no noise in the layer of 8,192': _scale(0, 'matrix'),
    'no noise in 1 element of 8,192': _scale(0, 'matrix', places=slice(1)),
    'no noise in 64 elements of 8,192': _scale(0, 'matrix', places=slice(64)),
    'a tenth of the noise in 16 elements of 8,192': _scale(
        0.1, 'matrix', places=slice(16)
    ),
    'half the noise in 64 elements of 8,192': _scale(
        0.5, 'matrix', places=slice(64)
    ),
    'no noise in the mean of each layer': _silence_means,
    'noise of round 1 in every round': _reuse(*SIZES),
    'the same in the layer of 16 elements': _reuse('bias'),
    'a tenth of the variance shared by all rounds': _share_noise,
    'the layer of 1,024 not clipped': _exceed_clip('kernel', 1e6),
    'the clip of the layer of 1,024 doubled': _exceed_clip('kernel', 2.0),
    'all clients counted twice': _count_twice(NUM_CANARIES),
    'one client counted twice': _count_twice(1),
    'a seed of 16 bits for the noise of a round': _short_seed,
    'float32 noise': _float32_noise,
}


def found(defect: str, setting: Setting, *, seed: int) -> list[str]:
  """Returns the names of the tests that a simulated run fails."""
  run = Run(setting, seed=seed)
  DEFECTS[defect](run)
  tests = noise_residuals.run_tests(
      (
          noise_residuals.NoiseResiduals(name, released - known, known)
          for name, released, known in run.releases()
      ),
      covariance=np.eye(setting.num_rounds),
  )
  return [test.name for test in tests if test.fails]


def measured(setting: Setting, *, seed: int) -> tuple[float, float]:
  """Returns the bound and the estimate of an honest run."""
  run = Run(setting, seed=seed)
  inner, squares, total_squares = [], [], []
  for name, released, _ in run.releases():
    released = setting.noise_multiplier * released
    units = _directions()[name]
    units = units / np.linalg.norm(units, axis=1, keepdims=True)
    inner.append(released @ units.T)
    squares.append(np.mean(released**2, axis=1))
    total_squares.append(np.mean(released.sum(axis=0) ** 2))
  inner = np.stack(inner, axis=-1)  # [T, K, H]
  norms = np.sqrt([size / sum(SIZES.values()) for size in SIZES.values()])
  ratios = audit.likelihood_ratios(
      *audit.scores(
          inner,
          norms=norms,
          mean_squares=np.stack(squares, axis=-1)[:, None],
      ),
      sampling=_sampling(setting),
      covariance=np.eye(setting.num_rounds),
      places=np.arange(NUM_CANARIES),
  )
  bound, _ = audit.epsilon_lower_bound(ratios, run.included, delta=DELTA)
  scores, _ = audit.scores(
      inner.sum(axis=0), norms=norms, mean_squares=np.array(total_squares)
  )
  estimate = audit.estimate_epsilon(scores[run.included], delta=DELTA)
  return bound, estimate.epsilon


def main(_) -> None:
  report.check_json_flag()
  seeds = range(_NUM_RUNS.value)
  heading = [
      f'q = {setting.sampling_prob:g}, z = {setting.noise_multiplier:g}, '
      f'{setting.num_rounds} rounds'
      for setting in SETTINGS
  ]
  power = {
      defect: [
          100 * np.mean(
              [bool(found(defect, setting, seed=seed)) for seed in seeds]
          )
          for setting in SETTINGS
      ]
      for defect in DEFECTS
  }
  means = np.array([
      np.mean([measured(setting, seed=seed) for seed in seeds], axis=0)
      for setting in SETTINGS
  ])
  epsilon = {
      'accounted (PLD)': [accounted_epsilon(setting) for setting in SETTINGS],
      'mean bound': means[:, 0].tolist(),
      'mean estimate': means[:, 1].tolist(),
  }
  for title, table, form in (
      (f'Defects found, percent of {len(seeds)} runs', power, '.0f'),
      ('Epsilon of honest runs', epsilon, '.2f'),
  ):
    report.write(
        title,
        [
            ['', *heading],
            *(
                [name, *(format(x, form) for x in row)]
                for name, row in table.items()
            ),
        ],
        {'power': power, 'epsilon': epsilon},
    )


if __name__ == '__main__':
  launch.run(main)

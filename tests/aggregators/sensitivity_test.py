"""Brute force: how far one client's update can move the released sum.

The update is the result of a client's training, and the client clips it. A
client that runs other code is not bounded (docs/privacy.md).

Attacks run through the executed TFF computation, on several devices and
threads. A release is a function of a sum of integers, which these tests read:
its norm is compared with C in whole numbers. Noise is not added, as it does not
depend on the updates (`dp_mean_test`). privacy/adaptive_query_test covers the
counts of adaptive clips.
"""

import collections
import fractions
import functools
import math
from unittest import mock

from absl.testing import parameterized
import numpy as np
import tensorflow_federated as tff

from tests import logical_devices
from tests.privacy import mechanisms
from tff_asr.aggregators import dp_mean
from tff_asr.execution import multi_device
from tff_asr.privacy import adaptive_query
from tff_asr.privacy import clipping as clipping_lib
from tff_asr.privacy import queries

_SHAPES = {'a': (4,), 'b': (), 'm/c': (2, 3), 'm/d': (1,)}
_CLIPPINGS = {
    **{split: dict(split=split) for split in clipping_lib.SPLITS},
    'rescaled_uniform': dict(split='uniform', rule='rescale'),
    'rescaled_dim': dict(split='dim', rule='rescale'),
    'modules': dict(split='dim', layers='modules'),
    'weighted': dict(split='uniform', weights={'^[ab]$': 3.0}),
    'weighted_modules': dict(
        split='dim', layers='modules', weights={'m': 0.1}, rule='rescale'
    ),
    # Of the first round; those of later ones differ in their clips alone.
    'adaptive': dict(split='dim'),
    'adaptive_modules': dict(split='uniform', layers='modules'),
    'adaptive_correlated': dict(split='uniform'),
}
_ADAPTIVE = {
    'adaptive': {},
    'adaptive_modules': {},
    # Correlated noise has a different grid: C / g is a power of two.
    'adaptive_correlated': dict(noise=mechanisms.CORRELATED),
}
_VALUE_TYPE = tff.to_type(collections.OrderedDict(
    (name, tff.TensorType(np.float32, shape))
    for name, shape in _SHAPES.items()
))
_COHORT_SIZE = 4
_NUM_ATTACKS = 20
_CONTEXTS = (
    ('one_device', dict(devices=['CPU:0'])),
    (
        'devices_and_threads',
        dict(devices=logical_devices.CPUS, clients_per_device=2),
    ),
)
_MAGNITUDES = (0.0, 1e-45, 1e-40, 1e-38, 1e-20, 1e-3, 1.0, 1e10, 1e30, 3e38)
_INVALID = (math.nan, math.inf, -math.inf)


@functools.lru_cache
def _process(name: str, clip: float) -> tff.templates.AggregationProcess:
  settings = dict(
      l2_norm_clip=clip,
      noise_multiplier=1.0,
      clipping=clipping_lib.Clipping(**_CLIPPINGS[name]),
  )
  build_query = functools.partial(queries.PerLayerClipSumQuery, **settings)
  if name in _ADAPTIVE:
    build_query = functools.partial(
        adaptive_query.AdaptiveClipSumQuery,
        cohort_size=_COHORT_SIZE,
        **settings | _ADAPTIVE[name],
    )
  factory = dp_mean.build(build_query=build_query, cohort_size=_COHORT_SIZE)
  with mock.patch.multiple(
      adaptive_query.AdaptiveClipSumQuery, get_noised_result=_release_sum
  ), mock.patch.multiple(
      queries.PerLayerClipSumQuery, get_noised_result=_release_sum
  ), mock.patch.object(
      queries, 'divide_by_cohort_size', lambda total, cohort_size: total
  ):
    return factory.create(_VALUE_TYPE, tff.TensorType(np.float32))


def _release_sum(self, sample_state, global_state):
  """Releases the integers that a noised result is a function of."""
  return (
      self.updates_of(sample_state), global_state, self.event(global_state)
  )


def _clip_in_steps(name: str, clip: float) -> fractions.Fraction:
  """C / g of the first round."""
  if name in _ADAPTIVE:
    return fractions.Fraction(2**24)
  query = _process(name, clip).initialize().query_state
  clip = float(query.l2_norm_clip)
  # The grid by hand: a power of two of at most 2^-24 C.
  grid = 2.0 ** (math.frexp(clip * 2.0**-24)[1] - 1)
  return fractions.Fraction(clip) / fractions.Fraction(grid)


def _attack(generator: np.random.Generator) -> dict[str, np.ndarray]:
  """An update of layers of wildly different sizes, some with NaN or inf."""
  layers = collections.OrderedDict()
  for name, shape in _SHAPES.items():
    size = generator.choice(_MAGNITUDES)
    kind = generator.integers(4)
    if kind == 0:
      values = np.full(shape, size)
    elif kind == 1:  # Every element of another size.
      values = generator.choice(_MAGNITUDES, shape) * generator.choice(
          [-1, 1], shape
      )
    else:
      values = size * generator.uniform(-1, 1, shape)
    layers[name] = np.asarray(values, np.float32)
  if generator.random() < 0.2:
    name = generator.choice(list(_SHAPES))
    flat = layers[name].reshape(-1)
    flat[generator.integers(flat.size)] = generator.choice(_INVALID)
    layers[name] = flat.reshape(_SHAPES[name])
  return layers


def _square(difference: np.ndarray) -> int:
  """The squared norm of integers."""
  return sum(int(step) ** 2 for step in difference)


@logical_devices.absent
class OwnProcessTest(logical_devices.OwnProcessTestCase):
  MODULE = 'tests.aggregators.sensitivity_test'


@logical_devices.needed
class SensitivityTest(parameterized.TestCase):

  def release(self, clipping: str, clip: float, updates) -> np.ndarray:
    """The sum that these clients' updates come to, int64."""
    process = _process(clipping, clip)
    output = process.next(
        process.initialize(), updates, [1.0] * len(updates)
    )
    flat = [np.ravel(layer) for layer in output.result.values()]
    return np.concatenate(flat)

  def use(self, **context) -> None:
    self.enterContext(
        tff.framework.get_context_stack().install(
            multi_device.build_sync_context(multi_device.Settings(**context))
        )
    )

  @parameterized.named_parameters(
      (f'{clipping}_{clip}_{name}', clipping, clip, context)
      for clipping in _CLIPPINGS
      for clip, (name, context) in zip((0.01, 1.0), _CONTEXTS)
      if clipping in clipping_lib.SPLITS or clip == 1.0
  )
  def test_no_update_moves_the_sum_by_more_than_the_clip(
      self, clipping, clip, context
  ):
    self.use(**context)
    generator = np.random.default_rng(sum(clipping.encode()))
    bound = _clip_in_steps(clipping, clip) ** 2
    largest = 0
    for attack in range(_NUM_ATTACKS):
      others = [_attack(generator) for _ in range(generator.integers(3))]
      first, second = _attack(generator), _attack(generator)
      if not attack:  # Beyond the clip in every layer, so up to the bound.
        second = {name: np.full(shape, 1e30, np.float32)
                  for name, shape in _SHAPES.items()}
      without = self.release(clipping, clip, others)
      place = generator.integers(len(others) + 1)
      moved = [
          self.release(
              clipping, clip, [*others[:place], one, *others[place:]]
          )
          for one in (first, second)
      ]
      for total in moved:
        added = _square(total - without)
        self.assertLessEqual(added, bound)
        largest = max(largest, added)
      self.assertLessEqual(_square(moved[0] - moved[1]), 4 * bound)
    # The attacks do come to the bound, so a larger one would have been seen.
    self.assertGreater(largest, (1 - 1e-6) * bound)

    # Twice the clip is reached, too.
    huge = {
        name: np.full(shape, 1e30, np.float32)
        for name, shape in _SHAPES.items()
    }
    opposite = {name: -value for name, value in huge.items()}
    sums = [self.release(clipping, clip, [one]) for one in (huge, opposite)]
    farthest = _square(sums[0] - sums[1])
    self.assertAlmostEqual(float(farthest / bound), 4.0, delta=1e-5)
    self.assertLessEqual(farthest, 4 * bound)

"""Tests of tff_asr.aggregators: dp_mean with each query, and its metrics."""

import collections
import functools
import math

from absl.testing import absltest
from absl.testing import parameterized
import dp_accounting
import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tests import fakes
from tests.privacy import mechanisms
from tff_asr.aggregators import dp_mean
from tff_asr.execution import client_round
from tff_asr.execution import multi_device
from tff_asr.privacy import queries
from tff_asr.privacy import strategies

_KEY = np.arange(1, 9, dtype=np.int32)
_VALUE_TYPE = tff.to_type(
    collections.OrderedDict(
        a=tff.TensorType(np.float32, [2]), b=tff.TensorType(np.float32)
    )
)
_WEIGHT_TYPE = tff.TensorType(np.float32)

_STATE = """
  query_state=<
    l2_norm_clip=float32,
    noise_multiplier=float32,
    noise_key=int32[8],
    counter=int64,
    layer_clips=<>,
    layer_noise=float32[2],
    layer_shares=<>,
    output_scale=<>,
    buf_decay=<>,
    buffers=<>
  >,
  dp_event=<
    module_name=str,
    class_name=str,
    noise_multiplier=float32
  >,
  inner=<>
"""
_NEXT = f"""
(<
  state=<{_STATE}>@SERVER,
  value={{<
    a=float32[2],
    b=float32
  >}}@CLIENTS,
  weight={{float32}}@CLIENTS
> -> <
  state=<{_STATE}>@SERVER,
  result=<
    a=float32[2],
    b=float32
  >@SERVER,
  measurements=<
    dp_query_metrics=<
      l2_norm_clip=float32,
      noise_stddev_on_sum=float32
    >,
    noise_norm=float32,
    not_private=<
      clipped_clients=float32,
      clipped_delta_norm=float32,
      clipped_layer_norm=<
        a=float32,
        b=float32
      >,
      clipped_layers=float32,
      layer_clipped=<
        a=float32,
        b=float32
      >,
      layer_norm=<
        a=float32,
        b=float32
      >,
      signal_norm=float32
    >
  >@SERVER
>)
"""


_QUERIES = mechanisms.QUERIES | dict(
    partial=mechanisms.build(
        clip=1.5, multiplier=2.0, noise_factors={'a': 1.0, '': 0.0}
    ),
)
_BLT = mechanisms.CORRELATED.strategy
_CORRELATED = strategies.CorrelatedGaussianDpEvent(
    2.0, 3, np.array(_BLT.output_scale), np.array(_BLT.buf_decay)
)
_EVENTS = dict(
    per_layer=dp_accounting.GaussianDpEvent(2.0),
    partial=dp_accounting.GaussianDpEvent(0.0),
    adaptive=dp_accounting.GaussianDpEvent(2.0),
    correlated=_CORRELATED,
    adaptive_correlated=_CORRELATED,
)
# Numbers with noise in the first round, and its stddev on the sum. That of
# correlated noise is not measured.
_NOISE = dict(
    per_layer=(3, 3.0),
    partial=(2, 3.0),
    # z_u / z = 1 / sqrt(1 - 5^-2).
    adaptive=(3, 3.0 / math.sqrt(0.96)),
)


def _numbers(event) -> list[list[float]]:
  """The numbers of an event, in order."""
  return [np.ravel(each).tolist() for each in event.to_named_tuple()[2:]]


def _create(build_query, *, cohort_size=4.0, value_type=_VALUE_TYPE):
  factory = dp_mean.build(build_query=build_query, cohort_size=cohort_size)
  return factory.create(value_type, _WEIGHT_TYPE)


@functools.lru_cache
def _context():
  """Compiles each process once."""
  return multi_device.build_sync_context(
      multi_device.Settings(devices=['CPU:0'], clients_per_device=2)
  )


@functools.lru_cache
def _clipping():
  """A process that clips at 1, without noise, for cohorts of 2.5."""
  return _create(mechanisms.build(), cohort_size=2.5)


@functools.lru_cache
def _noising():
  """A process with noise that clips each layer at 10 / sqrt(2) = 7.07."""
  return _create(mechanisms.build(clip=10.0, multiplier=2.0, split='uniform'))


def tearDownModule():
  for cached in (_context, _clipping, _noising):
    cached.cache_clear()


def _value(*numbers: float):
  return collections.OrderedDict(
      a=np.float32(numbers[:2]), b=np.float32(numbers[2])
  )


def _without_spaces(text: str) -> str:
  return ''.join(text.split())


class TypesTest(absltest.TestCase):

  def test_type_signatures(self):
    for multiplier in (0.0, 1.0):
      process = _create(mechanisms.build(multiplier=multiplier))
      self.assertEqual(
          _without_spaces(str(process.next.type_signature)),
          _without_spaces(_NEXT),
      )
    self.assertEqual(
        _without_spaces(str(process.initialize.type_signature)),
        _without_spaces(f'(-><{_STATE}>@SERVER)'),
    )

  def test_bad_arguments_are_named(self):
    # An update [1] would be broadcast over another's [1000].
    with self.assertRaisesRegex(ValueError, r'b/1 has the shape \(None,\)'):
      _create(
          mechanisms.build(),
          value_type=tff.to_type(collections.OrderedDict(
              a=tff.TensorType(np.float32, [2]),
              b=[np.float32, tff.TensorType(np.float32, [None])],
          )),
      )
    for cohort_size in (0, -1, math.nan, '4'):
      with self.assertRaisesRegex(ValueError, 'cohort_size must be positive'):
        dp_mean.build(build_query=mechanisms.build(), cohort_size=cohort_size)


class ExecutionTest(parameterized.TestCase):

  def setUp(self):
    super().setUp()
    self.enterContext(
        tff.framework.get_context_stack().install(_context())
    )

  def start(self, process):
    return fakes.set_noise_key(process.initialize(), _KEY)

  @parameterized.parameters(*_QUERIES)
  def test_rounds_are_the_query_s_over_the_cohort_size(self, name):
    process = _create(_QUERIES[name])
    state = self.start(process)
    query = _QUERIES[name](tff.types.type_to_tf_tensor_specs(_VALUE_TYPE))
    query_state = queries.set_noise_key(query.initial_global_state(), _KEY)

    @tf.function
    def release(values, query_state):
      params = query.derive_sample_params(query_state)
      total = query.initial_sample_state(values[0])
      for value in values:
        total = query.accumulate_record(params, total, value)
      result, new_state, _ = query.get_noised_result(total, query_state)
      return result, new_state, query.derive_metrics(query_state)

    for round_num in range(5):
      values = [_value(0.1, 0.2, 0.3 * round_num), _value(3, 4, 5)]
      output = process.next(state, values, [1.0] * 2)
      expected, query_state, metrics = release(values, query_state)
      np.testing.assert_allclose(
          fakes.flat(output.result),
          fakes.flat(expected) / 4,
          rtol=1e-5,
          atol=1e-6,
      )
      # Metrics are of this round's clips, not of the next one's.
      tf.nest.map_structure(
          functools.partial(np.testing.assert_allclose, rtol=1e-5),
          output.measurements['dp_query_metrics'], metrics,
      )
      state = output.state
      self.assertEqual(
          int(state.query_state.counter), round_num + 1
      )
      event = dp_accounting.DpEvent.from_named_tuple(state.dp_event)
      self.assertEqual(
          _numbers(event),
          _numbers(_EVENTS[name]),
      )
      self.assertIsInstance(event, type(_EVENTS[name]))
    # The norm of the noise is that of the layers with noise.
    measured = process.next(self.start(process), [], []).measurements
    self.assertEqual('noise_norm' in measured, name in _NOISE)
    if name in _NOISE:
      num_noised, stddev = _NOISE[name]
      self.assertAlmostEqual(
          measured['noise_norm'], stddev * math.sqrt(num_noised) / 4, places=5
      )
    # Without clients there is nothing else to measure.
    exact = measured['not_private']
    self.assertTrue(math.isnan(exact['clipped_clients']))
    self.assertEqual(exact['signal_norm'], 0)

  def test_no_clip_and_no_noise_is_the_plain_mean_in_any_order(self):
    process = _create(mechanisms.build(clip=math.inf), cohort_size=3)
    values = [_value(1, 2, 3), _value(10, 20, 30), _value(100, 200, 300)]
    for order in (values, values[::-1], values[1:] + values[:1]):
      output = process.next(process.initialize(), order, [1.0] * 3)
      np.testing.assert_allclose(fakes.flat(output.result), [37, 74, 111])

  def test_divides_by_the_public_cohort_size_not_the_clients_that_came(self):
    # One client of norm 5 clipped to 1: (.6, 0, .8). The expectation of a
    # Poisson sample is no integer.
    process = _clipping()
    for num_clients in (0, 1, 3, 9):
      output = process.next(
          process.initialize(), [_value(3, 0, 4)] * num_clients,
          [1.0] * num_clients,
      )
      np.testing.assert_allclose(
          fakes.flat(output.result), num_clients * np.array([0.24, 0, 0.32]),
          rtol=1e-6,
      )

  def test_weights_are_ignored(self):
    process = _noising()
    state = self.start(process)
    values = [_value(1, 2, 3), _value(-1, 0, 5)]
    first, *others = [
        fakes.flat(process.next(state, values, weights).result)
        for weights in ([1.0, 1.0], [0.0, 1e6], [math.nan, -1.0])
    ]
    for other in others:
      np.testing.assert_array_equal(first, other)

  def test_an_update_of_another_shape_is_refused(self):
    process = _clipping()
    bad = collections.OrderedDict(a=np.float32([1, 2, 3]), b=np.float32(0))
    with self.assertRaisesRegex(
        client_round.ClientError,
        r'Client 1 .* shape \(2,\), found .* \(3,\)',
    ):
      process.next(process.initialize(), [_value(1, 2, 3), bad], [1.0] * 2)

  def test_noise_depends_on_the_state_and_not_on_the_cohort(self):
    process = _noising()
    state = self.start(process)
    empty = fakes.flat(process.next(state, [], []).result)
    self.assertTrue(np.all(np.isfinite(empty) & (empty != 0)))
    one = process.next(state, [_value(1, 2, 3)], [1.0])
    full = fakes.flat(one.result)
    np.testing.assert_allclose(full - empty, [0.25, 0.5, 0.75], atol=1e-5)
    # Another key, another round, and no key: then noise of its own each time.
    other = fakes.set_noise_key(state, _KEY + 1)
    unkeyed = process.initialize()
    for changed in (
        other, process.next(state, [], []).state, unkeyed, unkeyed
    ):
      found = fakes.flat(process.next(changed, [], []).result)
      self.assertTrue(np.all(np.isfinite(found) & (found != empty)))
      empty = found

  def test_measures_what_clipping_did_by_hand(self):
    # C_h = 10 / sqrt(2) = 7.07 each. Norms of a: 5, 10, 0; of b: 12, 1, 0. An
    # update that is not finite is left out of all means.
    process = _noising()
    values = [
        _value(3, 4, 12), _value(6, 8, -1), _value(0, 0, 0),
        _value(math.nan, 1, 1),
    ]
    measured = process.next(
        self.start(process), values, [1.0] * 4
    ).measurements
    exact = measured['not_private']
    self.assertAlmostEqual(exact['clipped_clients'], 2 / 3, places=6)
    # Two of six layers.
    self.assertAlmostEqual(exact['clipped_layers'], 1 / 3, places=6)
    self.assertAlmostEqual(exact['layer_norm']['a'], 15 / 3, places=5)
    self.assertAlmostEqual(exact['layer_norm']['b'], 13 / 3, places=5)
    # a: 5, 7.07, 0; b: 7.07, 1, 0.
    after = exact['clipped_layer_norm']
    self.assertAlmostEqual(after['a'], (5 + 5 * math.sqrt(2)) / 3, places=5)
    self.assertAlmostEqual(after['b'], (5 * math.sqrt(2) + 1) / 3, places=5)
    self.assertAlmostEqual(exact['layer_clipped']['a'], 1 / 3, places=6)
    self.assertAlmostEqual(exact['layer_clipped']['b'], 1 / 3, places=6)
    # (5, 7.07), (7.07, 1), 0: norms sqrt(75) and sqrt(51).
    self.assertAlmostEqual(
        exact['clipped_delta_norm'],
        (math.sqrt(75) + math.sqrt(51)) / 3,
        places=5,
    )
    # a: (3, 4) + 7.07 (.6, .8) = (3 + 3 sqrt(2), 4 + 4 sqrt(2)), norm
    # 5 + 5 sqrt(2); b: 5 sqrt(2) - 1. Over 4.
    root = math.sqrt(2)
    self.assertAlmostEqual(
        exact['signal_norm'],
        math.hypot(5 + 5 * root, 5 * root - 1) / 4,
        places=5,
    )
    # z C sqrt(D) / 4 of D = 3.
    self.assertAlmostEqual(
        measured['noise_norm'], 2 * 10 * math.sqrt(3) / 4, places=5
    )

import collections
import math

from absl.testing import absltest
from absl.testing import parameterized
import dp_accounting
import numpy as np
import scipy.stats
import tensorflow_federated as tff
import tensorflow_privacy as tfp

from tff_asr.aggregators import dp_mean
from tff_asr.execution import multi_device
from tff_asr.privacy import clipping as clipping_lib
from tff_asr.privacy import partial_query
from tff_asr.privacy import queries

_KEY = np.array([1, 2, 3, 4], np.int32)
_VALUE_TYPE = tff.to_type(
    collections.OrderedDict(
        a=tff.TensorType(np.float32, [2]), b=tff.TensorType(np.float32)
    )
)
_WEIGHT_TYPE = tff.TensorType(np.float32)

_STATE = """
  query_state=<
    numerator_state=<
      l2_norm_clip=float32,
      noise_multiplier=float32,
      noise_key=int32[4],
      counter=int64
    >,
    denominator=float32
  >,
  agg_state=<>,
  dp_event=<
    module_name=str,
    class_name=str,
    noise_multiplier=float32
  >,
  is_init_state=bool
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


def _query(*, clip=1.0, multiplier=0.0, split='global'):
  return queries.PerLayerClipSumQuery(
      l2_norm_clip=clip,
      noise_multiplier=multiplier,
      clipping=clipping_lib.Clipping(split=split),
  )


def _create(query, *, cohort_size=4.0, value_type=_VALUE_TYPE):
  factory = dp_mean.build(query=query, cohort_size=cohort_size)
  return factory.create(value_type, _WEIGHT_TYPE)


def _value(*numbers: float):
  return collections.OrderedDict(
      a=np.float32(numbers[:2]), b=np.float32(numbers[2])
  )


def _flat(result) -> np.ndarray:
  return np.concatenate([np.ravel(result['a']), np.ravel(result['b'])])


def _without_spaces(text: str) -> str:
  return ''.join(text.split())


class TypesTest(absltest.TestCase):

  def test_type_signatures(self):
    process = _create(_query(multiplier=1.0))
    self.assertEqual(
        _without_spaces(str(process.next.type_signature)),
        _without_spaces(_NEXT),
    )
    self.assertEqual(
        _without_spaces(str(process.initialize.type_signature)),
        _without_spaces(f'(-><{_STATE}>@SERVER)'),
    )

  def test_noise_does_not_change_the_types(self):
    with_noise, without = _create(_query(multiplier=1.0)), _create(_query())
    self.assertEqual(
        str(with_noise.next.type_signature), str(without.next.type_signature)
    )

  def test_is_a_weighted_factory_of_an_aggregation_process(self):
    factory = dp_mean.build(query=_query(), cohort_size=3)
    self.assertIsInstance(factory, tff.aggregators.WeightedAggregationFactory)
    self.assertIsInstance(
        factory.create(_VALUE_TYPE, _WEIGHT_TYPE),
        tff.templates.AggregationProcess,
    )

  def test_open_dimensions_are_refused(self):
    # An update [1] would be broadcast over another's [1000].
    with self.assertRaisesRegex(ValueError, r'b/1 has the shape \(None,\)'):
      _create(
          _query(),
          value_type=tff.to_type(collections.OrderedDict(
              a=tff.TensorType(np.float32, [2]),
              b=[np.float32, tff.TensorType(np.float32, [None])],
          )),
      )

  def test_bad_cohort_sizes_are_named(self):
    for cohort_size in (0, -1, math.nan, '4'):
      with self.assertRaisesRegex(ValueError, 'cohort_size must be positive'):
        dp_mean.build(query=_query(), cohort_size=cohort_size)


class ExecutionTest(parameterized.TestCase):

  def setUp(self):
    super().setUp()
    self.enterContext(
        tff.framework.get_context_stack().install(
            multi_device.build_sync_context(devices=['CPU:0'])
        )
    )

  def start(self, process):
    return dp_mean.set_noise_key(process.initialize(), _KEY)

  def test_no_clip_and_no_noise_is_the_plain_mean(self):
    process = _create(_query(clip=math.inf), cohort_size=3)
    values = [_value(1, 2, 3), _value(10, 20, 30), _value(100, 200, 300)]
    output = process.next(process.initialize(), values, [1.0] * 3)
    np.testing.assert_allclose(_flat(output.result), [37, 74, 111])

  def test_divides_by_the_public_cohort_size_not_the_clients_that_came(self):
    # One client of norm 5 clipped to 1: (.6, 0, .8); the size says 4.
    process = _create(_query(), cohort_size=4)
    for num_clients in (1, 3, 9):
      output = process.next(
          process.initialize(), [_value(3, 0, 4)] * num_clients,
          [1.0] * num_clients,
      )
      np.testing.assert_allclose(
          _flat(output.result), num_clients * np.array([0.15, 0, 0.2]),
          rtol=1e-6,
      )

  def test_the_cohort_size_may_be_fractional(self):
    # The expectation of a Poisson sample is no integer.
    process = _create(_query(clip=math.inf), cohort_size=2.5)
    output = process.next(process.initialize(), [_value(5, 10, 0)], [1.0])
    np.testing.assert_allclose(_flat(output.result), [2, 4, 0])

  @parameterized.parameters('uniform', 'dim')
  def test_clips_layers_by_the_query_s_split(self, split):
    process = _create(_query(clip=2.0, split=split), cohort_size=1)
    output = process.next(process.initialize(), [_value(30, 40, 0.1)], [1.0])
    share = {'uniform': math.sqrt(1 / 2), 'dim': math.sqrt(2 / 3)}[split]
    np.testing.assert_allclose(
        _flat(output.result), [1.2 * share, 1.6 * share, 0.1], rtol=1e-6
    )

  def test_weights_are_ignored(self):
    process = _create(_query(multiplier=1.0))
    state = self.start(process)
    values = [_value(1, 2, 3), _value(-1, 0, 5)]
    results = [
        _flat(process.next(state, values, weights).result)
        for weights in ([1.0, 1.0], [0.0, 1e6], [math.nan, -1.0])
    ]
    np.testing.assert_array_equal(results[0], results[1])
    np.testing.assert_array_equal(results[0], results[2])

  def test_a_non_finite_update_counts_as_zeros(self):
    process = _create(_query(clip=10.0))
    values = [_value(1, 2, 3), _value(math.nan, 0, 0), _value(0, math.inf, 0)]
    output = process.next(process.initialize(), values, [1.0] * 3)
    np.testing.assert_allclose(_flat(output.result), [0.25, 0.5, 0.75])

  def test_an_update_of_another_shape_is_refused(self):
    process = _create(_query())
    bad = collections.OrderedDict(a=np.float32([1, 2, 3]), b=np.float32(0))
    with self.assertRaisesRegex(
        multi_device.ClientError, r'Client 1 .* shape \(2,\), found .* \(3,\)'
    ):
      process.next(process.initialize(), [_value(1, 2, 3), bad], [1.0] * 2)

  def test_an_empty_cohort_gives_the_noise_alone(self):
    process = _create(_query(clip=0.5, multiplier=2.0), cohort_size=4)
    state = self.start(process)
    empty = _flat(process.next(state, [], []).result)
    self.assertTrue(np.all(np.isfinite(empty)))
    self.assertTrue(np.all(empty != 0))
    # The same state draws the same noise whoever comes.
    full = _flat(process.next(state, [_value(0.1, 0.2, 0.3)], [1.0]).result)
    np.testing.assert_allclose(full - empty, [0.025, 0.05, 0.075], atol=1e-6)
    without_noise = _create(_query())
    np.testing.assert_array_equal(
        _flat(without_noise.next(without_noise.initialize(), [], []).result), 0
    )

  def test_noise_on_the_mean_is_z_times_c_over_the_cohort_size(self):
    # Of a fixed key; a new one would fail 1 time in 1,000.
    process = _create(
        _query(clip=0.5, multiplier=2.0),
        cohort_size=8,
        value_type=tff.TensorType(np.float32, [5000]),
    )
    noise = process.next(self.start(process), [], []).result
    p_value = lambda stddev: scipy.stats.kstest(
        noise, scipy.stats.norm(scale=stddev).cdf
    ).pvalue
    self.assertGreater(p_value(1 / 8), 1e-3)
    self.assertLess(p_value(2 / 3 / 8), 1e-9)
    self.assertLess(p_value(3 / 2 / 8), 1e-9)

  def test_rounds_draw_new_noise_and_a_resumed_one_draws_its_own_again(self):
    process = _create(_query(multiplier=1.0))
    first = process.next(self.start(process), [], [])
    second = process.next(first.state, [], [])
    self.assertFalse(
        np.array_equal(_flat(first.result), _flat(second.result))
    )
    counters = [
        int(output.state.query_state.numerator_state.counter)
        for output in (first, second)
    ]
    self.assertEqual(counters, [1, 2])
    again = process.next(first.state, [], [])
    np.testing.assert_array_equal(_flat(again.result), _flat(second.result))

  def test_the_key_stays_in_the_state(self):
    process = _create(_query(multiplier=1.0))
    state = self.start(process)
    np.testing.assert_array_equal(
        state.query_state.numerator_state.noise_key, _KEY
    )
    state = process.next(state, [], []).state
    np.testing.assert_array_equal(
        state.query_state.numerator_state.noise_key, _KEY
    )
    other = dp_mean.set_noise_key(state, _KEY + 1)
    self.assertFalse(
        np.array_equal(
            _flat(process.next(state, [], []).result),
            _flat(process.next(other, [], []).result),
        )
    )

  def test_without_a_key_noised_results_are_nan(self):
    process = _create(_query(multiplier=1.0))
    output = process.next(process.initialize(), [_value(1, 2, 3)], [1.0])
    self.assertTrue(np.all(np.isnan(_flat(output.result))))

  def test_the_state_holds_the_round_s_event(self):
    process = _create(_query(multiplier=1.5), cohort_size=7)
    state = self.start(process)
    # What `initialize` traced is no round.
    self.assertTrue(state.is_init_state)
    state = process.next(state, [_value(1, 2, 3)], [1.0]).state
    self.assertFalse(state.is_init_state)
    event = dp_accounting.DpEvent.from_named_tuple(state.dp_event)
    self.assertEqual(event, dp_accounting.GaussianDpEvent(1.5))

  def test_measurements_name_the_clip_and_the_noise(self):
    process = _create(_query(clip=0.5, multiplier=2.0))
    output = process.next(self.start(process), [], [])
    self.assertEqual(
        output.measurements['dp_query_metrics'],
        collections.OrderedDict(l2_norm_clip=0.5, noise_stddev_on_sum=1.0),
    )

  def test_measures_what_clipping_did_by_hand(self):
    # C_h = 10 / sqrt(2) = 7.07 each. Norms of a: 5, 10, 0; of b: 12, 1, 0. An
    # update that is not finite is left out of all means.
    process = _create(
        _query(clip=10.0, multiplier=2.0, split='uniform'), cohort_size=4
    )
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

  def test_noise_on_some_layers_is_measured_and_charged_as_none(self):
    query = partial_query.PartialNoiseQuery(
        l2_norm_clip=10.0, noise_multiplier=2.0, noised=['a']
    )
    process = _create(query, cohort_size=4)
    start = self.start(process)
    output = process.next(start, [_value(3, 4, 8)], [1.0])
    # b is the clip of nothing, without noise; a has two of three elements.
    self.assertEqual(output.result['b'], 8 / 4)
    self.assertNotEqual(output.result['a'][0], 3 / 4)
    self.assertAlmostEqual(
        output.measurements['noise_norm'], 2 * 10 * math.sqrt(2) / 4, places=5
    )
    for state in (start, output.state):
      event = dp_accounting.DpEvent.from_named_tuple(state.dp_event)
      self.assertEqual(event, dp_accounting.GaussianDpEvent(0.0))

  def test_the_signal_has_no_noise_in_it(self):
    process = _create(_query(clip=1.0, multiplier=1e6))
    measured = process.next(
        self.start(process), [_value(0.3, 0, 0.4)], [1.0]
    ).measurements
    self.assertAlmostEqual(
        measured['not_private']['signal_norm'], 0.5 / 4, places=6
    )

  def test_without_clients_there_is_nothing_to_measure(self):
    process = _create(_query())
    measured = process.next(process.initialize(), [], []).measurements
    self.assertTrue(math.isnan(measured['not_private']['clipped_clients']))
    self.assertEqual(measured['not_private']['signal_norm'], 0)

  def test_any_sum_query_does(self):
    # Delegation: TFP's own query, whose sum of clipped values is known.
    factory = dp_mean.build(
        query=tfp.GaussianSumQuery(l2_norm_clip=5.0, stddev=0.0), cohort_size=2
    )
    process = factory.create(_VALUE_TYPE, _WEIGHT_TYPE)
    output = process.next(process.initialize(), [_value(6, 0, 8)], [1.0])
    np.testing.assert_allclose(_flat(output.result), [1.5, 0, 2], rtol=1e-6)


if __name__ == '__main__':
  absltest.main()

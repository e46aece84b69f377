"""Tests of tff_asr.aggregators.distributed_mean, executed on devices."""

import collections
import functools

from absl.testing import parameterized
import dp_accounting
import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tests import fakes
from tff_asr.aggregators import dp_mean
from tff_asr.aggregators import aggregation
from tff_asr.execution import multi_device
from tff_asr.privacy import clipping as clipping_lib
from tff_asr.privacy import distributed

_VALUE_TYPE = tff.to_type(collections.OrderedDict(
    a=tff.TensorType(np.float32, [30]), b=tff.TensorType(np.float32)
))
_NUMBER = tff.TensorType(np.int64)
_KEY = np.arange(1, 9, dtype=np.int32)


def _factory(*, cohort_size=4, noise_multiplier=0.7):
  build_query = functools.partial(
      distributed.DistributedSumQuery,
      l2_norm_clip=2.0,
      noise_multiplier=noise_multiplier,
      num_clients=4,
      max_failed_share=0.25,
      bits=17,
      clipping=clipping_lib.Clipping(split='dim'),
  )
  return dp_mean.build_distributed(
      build_query=build_query, cohort_size=cohort_size
  )


@functools.lru_cache
def _process(**settings):
  """A process, traced once for all tests of these settings."""
  return _factory(**settings).create(_VALUE_TYPE, _NUMBER)


@functools.lru_cache
def _context():
  """Compiles each process once."""
  return multi_device.build_sync_context(
      multi_device.Settings(devices=['CPU:0'], clients_per_device=2)
  )


def tearDownModule():
  _process.cache_clear()
  _context.cache_clear()


def _update(value):
  return collections.OrderedDict(
      a=np.full(30, value, np.float32), b=np.float32(value)
  )


class DistributedMeanTest(parameterized.TestCase):

  def setUp(self):
    super().setUp()
    self.enterContext(
        tff.framework.get_context_stack().install(_context())
    )

  def run_rounds(self, process, *rounds, numbers=None):
    state = fakes.set_noise_key(process.initialize(), _KEY)
    outputs = []
    for updates in rounds:
      given = range(len(updates)) if numbers is None else numbers
      output = process.next(
          state, updates, [np.int64(number) for number in given]
      )
      state = output.state
      outputs.append(output)
    return outputs

  def test_type_signature(self):
    process = _process()
    parameter, result = (
        process.next.type_signature.parameter,
        process.next.type_signature.result,
    )
    self.assertEqual(str(parameter.value.member), str(_VALUE_TYPE))
    self.assertEqual(str(parameter.weight.member), 'int64')
    self.assertEqual(str(result.result.member), str(_VALUE_TYPE))
    self.assertEqual(str(result.result.placement), 'SERVER')
    query_state = parameter.state.member.query_state
    self.assertEqual(str(query_state.noise_key), 'int32[8]')

  def test_updates_reach_the_server_in_a_modular_sum_only(self):
    process = _process()

    @tff.federated_computation(
        process.next.type_signature.parameter.state,
        tff.FederatedType((_VALUE_TYPE, _NUMBER), tff.CLIENTS),
    )
    def comp(state, clients):
      output = process.next(state, clients[0], clients[1])
      return output.state, (output.result, output.measurements)

    form = tff.backends.mapreduce.get_map_reduce_form_for_computation(comp)
    moduli = form.secure_modular_sum_modulus()
    self.assertEqual({int(modulus) for modulus in np.ravel(moduli)}, {2**17})
    plain, *_, modular = form.work.type_signature.result
    self.assertEqual(str(modular), '<int64[32]>')
    # The rest is single numbers, or one for each layer.
    self.assertEqual(
        tff.types.count(
            plain,
            lambda part: isinstance(part, tff.TensorType)
            and np.prod(part.shape) > 2,
        ),
        0,
    )

  def test_the_mean_is_that_of_clipped_updates(self):
    process = _process(noise_multiplier=0.01)
    (output,) = self.run_rounds(
        process, [_update(x) for x in (0.1, -0.2, 100.0, np.nan)]
    )
    # Norms of all ones: sqrt(31); 100 is clipped to 2 / sqrt(31) an element,
    # which is .359; NaN counts as zeros: (.1 - .2 + .359) / 4.
    np.testing.assert_allclose(
        fakes.flat(output.result), (0.1 - 0.2 + 2 / np.sqrt(31)) / 4, atol=0.03
    )
    exact = output.measurements['not_private']
    # One of three finite updates was clipped.
    self.assertAlmostEqual(exact['clipped_clients'], 1 / 3, places=6)

  def test_noise_follows_clients_and_rounds(self):
    process = _process()
    zeros = [_update(0.0)] * 4
    first, second = self.run_rounds(process, zeros, zeros)
    again, _ = self.run_rounds(process, zeros, zeros)
    (others,) = self.run_rounds(process, zeros, numbers=[0, 1, 2, 7])
    np.testing.assert_array_equal(
        fakes.flat(first.result), fakes.flat(again.result)
    )
    for other in (second, others):
      self.assertGreater(
          np.abs(fakes.flat(other.result) - fakes.flat(first.result)).min(), 0
      )
    stated = first.measurements['dp_query_metrics']['noise_stddev_on_sum'] / 4
    # 62 draws: within 45 %, except for 1 in 10^6 keys.
    found = np.std([fakes.flat(first.result), fakes.flat(second.result)])
    self.assertBetween(found / stated, 0.55, 1.45)

  def test_the_event_and_the_counter_are_in_the_state(self):
    process = _process()
    first, second = self.run_rounds(process, *[[_update(0.0)] * 4] * 2)
    for number, output in enumerate((first, second), start=1):
      event = dp_accounting.DpEvent.from_named_tuple(output.state.dp_event)
      self.assertIsInstance(event, distributed.DistributedGaussianDpEvent)
      self.assertEqual(event.noise_multiplier, np.float32(0.7))
      self.assertEqual((event.num_clients, event.min_clients), (4, 3))
      self.assertEqual(
          output.state.query_state.counter, number
      )

  def test_a_round_is_charged_by_its_noise_and_not_by_its_state(self):
    # The state of other settings: it would be charged as 70 times the noise.
    strong, weak = _process(), _process(noise_multiplier=0.01)
    state = fakes.set_noise_key(strong.initialize(), _KEY)
    zeros = [_update(0.0)] * 4
    output = weak.next(state, zeros, [np.int64(n) for n in range(4)])
    event = dp_accounting.DpEvent.from_named_tuple(output.state.dp_event)
    self.assertEqual(event.noise_multiplier, np.float32(0.01))

  def test_with_too_few_clients_nothing_is_released(self):
    process = _process()
    (three,) = self.run_rounds(process, [_update(0.0)] * 3)
    self.assertTrue(np.all(np.isfinite(fakes.flat(three.result))))
    with self.assertRaisesRegex(
        tf.errors.InvalidArgumentError, 'Too few clients .*MAX_FAILED_SHARE'
    ):
      self.run_rounds(process, [_update(0.0)] * 2)

  def test_it_is_accounted_for_as_it_is(self):
    process = aggregation.create_weighted_process(
        _factory(), value_type=_VALUE_TYPE, weight_type=_NUMBER
    )
    state = process.initialize()
    event = dp_accounting.DpEvent.from_named_tuple(state.dp_event)
    self.assertEqual(event.noise_multiplier, np.float32(0.7))

  def test_bad_arguments(self):
    with self.assertRaisesRegex(TypeError, 'number of each client'):
      _factory().create(_VALUE_TYPE, tff.TensorType(np.float32))
    with self.assertRaisesRegex(ValueError, 'set both by COHORT_SIZE'):
      _factory(cohort_size=5).create(_VALUE_TYPE, _NUMBER)

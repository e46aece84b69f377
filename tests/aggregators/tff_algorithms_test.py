"""TFF's own algorithms train with the DP means of tff_asr, in both contexts."""

import functools

from absl.testing import absltest
from absl.testing import parameterized
import numpy as np
from scipy import stats
import tensorflow as tf
import tensorflow_federated as tff

from tests import fakes
from tests.execution import toys
from tests.privacy import mechanisms
from tff_asr.aggregators import dp_mean
from tff_asr.execution import native
from tff_asr.privacy import queries

_CLIP, _COHORT_SIZE = 0.5, 4
_CLIENTS = [toys.build_dataset(seed) for seed in (1, 2, 3)]
_OUTPUTS = 200  # 800 weights.
# Each of some twenty tests of a variance fails 1 time in 10^6.
_TAIL = 5e-7


def _model(num_outputs: int):
  """A linear model whose outputs are all to be the label."""
  model = tf.keras.Sequential([
      tf.keras.layers.Input((3,)),
      tf.keras.layers.Dense(num_outputs, kernel_initializer='zeros'),
  ])
  return tff.learning.models.from_keras_model(
      model,
      input_spec=toys.ELEMENT_SPEC,
      loss=tf.keras.losses.MeanSquaredError(),
  )


def _build(name: str, *, noise: float, num_outputs: int = 1, **query):
  """A process of TFF, and with which noise."""
  aggregator = dict(
      build_query=mechanisms.build(clip=_CLIP, multiplier=noise, **query),
      cohort_size=_COHORT_SIZE,
  )
  build = getattr(tff.learning.algorithms, f'build_{name}')
  optimizers = dict(
      server_optimizer_fn=tff.learning.optimizers.build_sgdm(1.0)
  )
  if name != 'fed_sgd':
    optimizers['client_optimizer_fn'] = tff.learning.optimizers.build_sgdm(0.1)
  is_weighted = not name.startswith('unweighted')
  return build(
      functools.partial(_model, num_outputs),
      model_aggregator=(
          dp_mean.build if is_weighted else dp_mean.build_unweighted
      )(**aggregator),
      **optimizers,
  )


_NAMES = ('weighted_fed_avg', 'unweighted_fed_avg', 'fed_sgd')


@functools.lru_cache
def _contexts(name: str):
  if name == 'native':
    return native.build_sync_context(trust_network=True)
  return toys.build_context()


def tearDownModule():  # pylint: disable=invalid-name
  native.stop()
  _contexts.cache_clear()


_IN_EACH = parameterized.named_parameters(
    (f'{name}_{context}', name, context)
    for name in _NAMES
    for context in ('native', 'multi_device')
)


class _TestCase(parameterized.TestCase):
  """Installs contexts, and tests variances."""

  def install(self, context: str) -> dict[str, str]:
    """Installs a context; what a query needs in it."""
    self.enterContext(
        tff.framework.get_context_stack().install(_contexts(context))
    )
    # The worker has TensorFlow's ops only.
    return {'noise_kernel': 'tensorflow'} if context == 'native' else {}

  def assert_variance(self, values: np.ndarray, stddev: float):
    """Independent Gaussian values have this deviation, from both sides."""
    low, high = stats.chi2.ppf([_TAIL, 1 - _TAIL], values.size)
    self.assertBetween(np.sum((values / stddev) ** 2), low, high)


class AlgorithmsTest(_TestCase):

  @parameterized.parameters(*_NAMES)
  def test_loss_falls(self, name):
    self.install('multi_device')
    process = _build(name, noise=0.05)
    state, losses = process.initialize(), []
    for _ in range(15):
      output = process.next(state, _CLIENTS)
      state = output.state
      losses.append(float(output.metrics['client_work']['train']['loss']))
      self.assertEqual(output.metrics['finalizer']['update_non_finite'], 0)
    self.assertLess(losses[-1], 0.8 * losses[0])

  @_IN_EACH
  def test_rounds_from_one_state_have_independent_noise_of_the_stated_size(
      self, name, context
  ):
    process = _build(
        name, noise=100.0, num_outputs=_OUTPUTS, **self.install(context)
    )
    state = process.initialize()
    first, second, third = (
        fakes.flat(process.get_model_weights(
            process.next(state, _CLIENTS).state
        ).trainable)
        for _ in range(3)
    )
    # Each is the same mean and its noise, of z C / S.
    stddev = 100.0 * _CLIP / _COHORT_SIZE
    for one, other in ((first, second), (first, third), (second, third)):
      self.assert_variance((one - other) / np.sqrt(2), stddev)
    # The second round of a run, too.
    state = process.next(state, _CLIENTS).state
    before = fakes.flat(process.get_model_weights(state).trainable)
    after = fakes.flat(process.get_model_weights(
        process.next(state, _CLIENTS).state
    ).trainable)
    # Means are at most C and far below the noise.
    self.assert_variance(after - before, stddev)


class ProcessTest(_TestCase):

  @parameterized.parameters('native', 'multi_device')
  def test_tff_s_dp_factory_takes_the_queries(self, context):
    value_type = tff.TensorType(np.float32, [1000])
    query = queries.PerLayerClipSumQuery(
        tf.TensorSpec([1000]), l2_norm_clip=_CLIP, noise_multiplier=2.0,
        **self.install(context),
    )
    process = tff.aggregators.DifferentiallyPrivateFactory(query).create(
        value_type
    )
    state = process.initialize()
    first, second = (
        process.next(state, [np.zeros(1000, np.float32)] * 2).result
        for _ in range(2)
    )
    # On the sum, z C.
    for noise in (first, second, (first - second) / np.sqrt(2)):
      self.assert_variance(np.asarray(noise), 2.0 * _CLIP)

  @parameterized.product(
      context=('native', 'multi_device'), name=tuple(mechanisms.QUERIES)
  )
  def test_what_is_released_has_the_noise_that_the_state_cancels(
      self, context, name
  ):
    value_type = tff.TensorType(np.float32, [50])
    build = functools.partial(
        mechanisms.QUERIES[name], **self.install(context)
    )
    process = dp_mean.build(
        build_query=build, cohort_size=_COHORT_SIZE
    ).create(value_type, tff.TensorType(np.float32))
    state = process.initialize()
    outputs = [process.next(state, [], []) for _ in range(2)]
    released = [fakes.flat(output.result) for output in outputs]
    self.assertTrue(np.all(np.isfinite(released)))
    self.assertTrue(np.all(released[0] != released[1]))
    self.assertLess(abs(np.corrcoef(*released)[0, 1]), 0.7)
    if 'correlated' not in name:
      return
    step = float(build(tf.TensorSpec([50])).grid_step(state.query_state))
    for output in outputs:
      buffers = tf.nest.flatten(output.state.query_state.buffers)[0]
      # After the first round each buffer is the noise, in steps of 2^-16.
      for buffer in np.asarray(buffers):
        np.testing.assert_allclose(
            fakes.flat(output.result) * _COHORT_SIZE,
            buffer * 2.0**-16 * step,
            rtol=1e-5,
        )


if __name__ == '__main__':
  absltest.main()

"""Tests of tff_asr.learning.dp_sgd."""

import functools

from absl.testing import parameterized
import dp_accounting
import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tests import logical_devices
from tests import reference
from tests.learning import tiny
from tests.models import calls
from tff_asr.data import buckets as buckets_lib
from tff_asr.data import pipeline as pipeline_lib
from tff_asr.learning import dp_sgd
from tff_asr.learning import fed_avg
from tff_asr.models import best_rq
from tff_asr.models import conformer
from tff_asr.models import quantizer as quantizer_lib
from tff_asr.models import transformer
from tff_asr.privacy import clipping as clipping_lib
from tff_asr.privacy import distributed
from tff_asr.privacy import keys
from tff_asr.privacy import queries

_CLIP = 0.3
_NUM_EXAMPLES = 5
_SIZES = dict(num_blocks=1, dim=8, mlp_dim=8, num_heads=2)
_LENGTHS = (40, 61, 24, 52, 33)


@functools.lru_cache
def _model(kind: str) -> best_rq.BestRqModel:
  """With every kind of layer: 2-D and depthwise or 1-D convolutions, norms,
  matrices, attention with and without biases of position, a head."""
  if kind == 'conformer':
    encoder = conformer.build(
        num_groups=2, front_channels=2, dropout=0.1, **_SIZES
    )
  else:
    encoder = transformer.build(dropout=0.1, **_SIZES)
  num_stacked = 4 if kind == 'conformer' else 3
  return best_rq.build(
      encoder=encoder,
      quantizer=quantizer_lib.RandomProjectionQuantizer(
          num_codes=16, num_stacked=num_stacked
      ),
      span_sec=0.1,
      start_prob=0.1,
  )


_TINY = tiny.predictor(dropout=0.1)
_FROZEN = tuple(sorted(_TINY.specs)[::2])


def _batch(
    *rows: int, client_id: str = 'ann', name: str = ''
) -> pipeline_lib.Batch:
  """These of five fake examples, perhaps under another name."""
  size = max((_LENGTHS[row] for row in rows), default=8)
  features = np.zeros([len(rows), size, 80], np.float32)
  for place, row in enumerate(rows):
    shape = [_LENGTHS[row], 80]
    features[place, : shape[0]] = np.random.default_rng(row).normal(size=shape)
  strings = lambda texts: tf.constant(texts, tf.string)
  return pipeline_lib.Batch(
      client_id=strings([client_id] * len(rows)),
      example_weights=tf.zeros([len(rows)]),
      feature_lengths=tf.constant([_LENGTHS[row] for row in rows]),
      features=tf.constant(features),
      label_lengths=tf.zeros([len(rows)], tf.int32),
      labels=tf.zeros([len(rows), 0], tf.int32),
      seed=tf.zeros([2], tf.int32),
      transcript=strings([''] * len(rows)),
      utterance_id=strings([name or f'u{row}' for row in rows]),
  )


_of_devices = functools.partial(
    distributed.DistributedSumQuery,
    l2_norm_clip=1.0,
    noise_multiplier=1.0,
    num_clients=10,
    max_failed_share=0.0,
    bits=20,
)


def _build_query(*, split='dim', **options) -> queries.BuildQuery:
  return functools.partial(
      queries.PerLayerClipSumQuery,
      clipping=clipping_lib.Clipping(split=split),
      **(dict(l2_norm_clip=_CLIP, noise_multiplier=0.0) | options),
  )


_SGD = tff.learning.optimizers.build_sgdm(1.0)
_ADAM = tff.learning.optimizers.build_adam(0.01)


@functools.lru_cache
def _build(
    *, clip=_CLIP, noise=0.0, split='dim', is_public=False, **options
) -> dp_sgd.DpSgd:
  """At a rate of 1 weights move by minus the mean. Each is traced once."""
  build_query = _build_query(
      l2_norm_clip=clip, noise_multiplier=noise, split=split
  )
  defaults = dict(model=_TINY, optimizer=_SGD, batch_size=4, seed=3)
  return dp_sgd.DpSgd(
      **(
          dict(build_query=None if is_public else build_query)
          | defaults
          | options
      )
  )


def _weights(state) -> dict[str, np.ndarray]:
  return {
      name: np.asarray(value)
      for name, value in state.global_model_weights.items()
  }


def _keyed(state):
  return fed_avg.set_noise_key(state, keys.from_seed(1))


def _moves(step: dp_sgd.DpSgd, *batches) -> dict[str, np.ndarray]:
  """What a first step subtracts from each weight, times the batch size."""
  state = _keyed(step.initialize()) if step._is_private else step.initialize()
  after = _weights(step.next(state, batches).state)
  return {
      name: 4 * (before - after[name])
      for name, before in _weights(state).items()
  }


def _norm(moves) -> float:
  return np.sqrt(sum(np.sum(np.square(part)) for part in moves.values()))


def _difference(one, other) -> dict[str, np.ndarray]:
  return {name: one[name] - other[name] for name in one}


def tearDownModule():
  _build.cache_clear()
  _model.cache_clear()


class ExampleGradientsTest(parameterized.TestCase):

  @parameterized.parameters(('conformer', 'dim'), ('transformer', 'global'))
  def test_gradients_by_example_equal_a_loop_over_single_examples(
      self, kind, split
  ):
    model = _model(kind)
    weights = model.initialize(tf.constant([1, 2]))
    batch = _batch(0, 1, 2, 3, 4)
    numbers = tf.stack([tf.range(5), tf.range(5)], axis=1)
    masked = model.mask(batch['features'], batch['feature_lengths'], numbers)
    query = _build_query(split=split)(weights)
    query_state = query.initial_global_state()

    @tf.function(autograph=False)
    def run(weights):
      return dp_sgd._sum_by_example(
          weights,
          (masked, numbers),
          query=query,
          params=query.derive_sample_params(query_state),
          prepare=lambda example: example,
          gradient_of=dp_sgd._build_gradient(model, {}),
      )

    @tf.function(autograph=False)
    def run_alone(weights, alone, seed):
      with tf.GradientTape() as tape:
        tape.watch(weights)
        (loss,) = tf.unstack(model.masked_loss(weights, alone, seed), 1)
      return tape.gradient(loss, weights), loss

    found = run(weights)
    expected = {name: 0.0 for name in weights}
    norms, losses, num_clipped = [], [], 0
    for row in range(5):
      alone = best_rq.Masked(*(part[row : row + 1] for part in masked))
      gradient, loss = run_alone(weights, alone, numbers[row])
      gradient = {
          name: np.asarray(part, np.float64) for name, part in gradient.items()
      }
      norms.append(_norm(gradient))
      losses.append(loss.numpy())
      if split == 'global':
        factor = min(1.0, _CLIP / norms[-1])
        clipped = {name: factor * part for name, part in gradient.items()}
      else:
        clipped = reference.clip_layers(gradient, clip=_CLIP)
      for name, part in clipped.items():
        num_clipped += np.any(part != gradient[name])
        expected[name] = expected[name] + part
    self.assertGreater(num_clipped, 10)
    unit = float(query.sum_unit(query_state))
    for name, value in expected.items():
      np.testing.assert_allclose(
          unit * np.asarray(found.records[name]),
          value,
          rtol=1e-5,
          atol=1e-5 * _CLIP,
          err_msg=name,
      )
    np.testing.assert_allclose(found.norm, np.sum(norms), rtol=1e-4)
    np.testing.assert_allclose(found.loss, np.sum(losses), rtol=1e-4)


class DpSgdTest(parameterized.TestCase):

  @parameterized.parameters('global', 'dim')
  def test_an_example_moves_the_sum_by_at_most_the_clip(self, split):
    step = _build(split=split)
    whole = _moves(step, _batch(0, 1, 2, 3, 4))
    self.assertGreater(_norm(whole), _CLIP)
    for row in range(_NUM_EXAMPLES):
      rest = [other for other in range(_NUM_EXAMPLES) if other != row]
      removed = _norm(_difference(whole, _moves(step, _batch(*rest))))
      # The sum is read from weights of some 1, to float32.
      self.assertBetween(removed, 0.1 * _CLIP, _CLIP * 1.001)

  @parameterized.parameters(
      None, buckets_lib.LengthBuckets([0.42, 0.55, 0.7])
  )
  def test_no_example_changes_what_another_adds(self, buckets):
    step = dp_sgd.DpSgd(
        model=_model('transformer'),
        optimizer=_SGD,
        batch_size=4,
        seed=3,
        build_query=_build_query(),
        buckets=buckets,
    )
    state = step.initialize()

    params = step._clipping_params(state.aggregator.query_state)

    def records(*rows):
      sums = step._sum(
          (state.global_model_weights, params, tf.constant([1, 2])),
          [_batch(*rows)],
      )
      return np.concatenate([np.ravel(part) for part in sums.records.values()])

    # Next to a longer example, and to a shorter one.
    for other in (1, 2):
      np.testing.assert_array_equal(
          records(0, other), records(0) + records(other)
      )

  def test_packing_and_devices_change_neither_the_sum_nor_its_one_noise(self):
    whole = _moves(_build(), _batch(0, 1, 2, 3, 4))
    packed = (_batch(3, 0), _batch(4), _batch(2, 1))
    for num_devices, options in (
        (1, {}), (3, dict(devices=tuple(logical_devices.CPUS[:3])))
    ):
      step = _build(noise=2.0, **options)
      alone = _moves(step)
      for batches in (packed, packed[::-1]):
        for name, value in _difference(_moves(step, *batches), alone).items():
          np.testing.assert_allclose(
              value, whole[name], atol=1e-5, err_msg=f'{name} {num_devices}'
          )

  # Masks alone are drawn, then dropout alone.
  @parameterized.parameters(
      (0.0, dict(start_prob=0.1)), (0.3, dict(start_prob=1, noise_stddev=0.0))
  )
  def test_each_step_client_and_utterance_draws_independently(
      self, dropout, options
  ):
    model = tiny.predictor(dropout=dropout, **options)
    step = _build.__wrapped__(clip=1e3, model=model)
    # Biases that are not 0, or features of 0 would stay 0.
    state = step.initialize()._replace(
        global_model_weights=calls.perturbed(model.specs)
    )

    def gradient(round_num, client_id, name):
      seeded = state._replace(
          distributor=state.distributor._replace(round_num=np.int32(round_num))
      )
      batch = _batch(0, client_id=client_id, name=name)
      after = step.next(seeded, [batch]).state.global_model_weights
      return after['prediction/kernel'].numpy().tobytes()

    keys = [
        (round_num, client_id, name)
        for round_num in (0, 1, 2)
        for client_id in ('ann', 'bob')
        for name in ('u0', 'u1', 'u2')
    ]
    found = [gradient(*key) for key in keys]
    self.assertLen(set(found), len(keys))
    self.assertEqual(found[4], gradient(*keys[4]))

  def test_masks_noise_and_dropout_draw_independently(self):
    model = tiny.predictor()
    batch = _batch(0, 1, 2)
    with calls.recorded_seeds() as fixed:
      model.quantizer.labels(batch['features'], batch['feature_lengths'])
    with calls.recorded_seeds() as seeds:
      for step in ([1, 2], [1, 3]):
        _, of_dropout = dp_sgd._masked(
            model, dp_sgd._examples(batch, tf.constant(step))
        )
        seeds += map(tuple, of_dropout.numpy().tolist())
    seeds = [seed for seed in seeds if seed not in fixed]
    # An example's own seed and that of masks are split; then there are those of
    # masks, of noise and of dropout.
    self.assertLen(seeds, 2 * 3 * 5)
    self.assertLen(set(seeds), len(seeds))

  def test_a_step_without_examples_is_noise_and_is_charged(self):
    step = _build(noise=2.0)
    moves = _moves(step)
    values = np.concatenate([part.ravel() for part in moves.values()])
    # z C = .6 on the sum, on every element; some 3,000 values: stddev of the
    # stddev .008.
    self.assertAlmostEqual(values.std(), 0.6, delta=0.05)
    self.assertAlmostEqual(values.mean(), 0, delta=0.07)

  def test_xla_needs_buckets(self):
    with self.assertRaisesRegex(ValueError, 'jit_compile needs .*buckets'):
      dp_sgd.DpSgd(
          model=_TINY, optimizer=_SGD, batch_size=4, seed=3, jit_compile=True
      )

  def test_without_a_key_each_step_has_its_own_noise(self):
    step = _build(noise=2.0)
    state = step.initialize()
    first, second = (
        np.concatenate([
            part.ravel()
            for part in _weights(step.next(state, []).state).values()
        ])
        for _ in range(2)
    )
    # Both add noise of z C over the batch size to the same weights.
    noise = 4 * (first - second) / np.sqrt(2)
    self.assertAlmostEqual(noise.std() / (2.0 * _CLIP), 1, delta=0.1)

  def test_frozen_layers_have_no_change_no_noise_and_no_part_of_the_clip(self):
    frozen, live = _FROZEN, sorted(_TINY.specs.keys() - set(_FROZEN))
    step = _build(noise=2.0, frozen=frozen)
    moves = _moves(step, _batch(0, 1))
    for name in frozen:
      self.assertTrue(np.all(moves[name] == 0), name)
    for name in live:
      self.assertTrue(np.all(moves[name] != 0), name)
    # The clip is divided among the remaining layers: an example with all layers
    # above their norms has norm C.
    exact = _moves(_build(frozen=frozen, clip=1e-3), _batch(1))
    sizes = {name: moves[name].size for name in live}
    for name in live:
      share = np.sqrt(sizes[name] / sum(sizes.values()))
      self.assertLessEqual(np.linalg.norm(exact[name]), 1.01e-3 * share)
    self.assertAlmostEqual(_norm(exact) / 1e-3, 1, delta=0.05)
    # Neither the sum nor the optimizer has frozen layers.
    state = _build(frozen=frozen, optimizer=_ADAM).initialize()
    self.assertEqual(list(state.finalizer['accumulator']), live)

  def test_a_restored_state_continues_with_the_same_bits(self):
    batches = [_batch(0, 1, 2)], [_batch(3), _batch(4)]
    step = _build(noise=1.0, optimizer=_ADAM)
    state = half = step.next(_keyed(step.initialize()), batches[0]).state
    state = step.next(state, batches[1]).state
    arrays = tf.nest.map_structure(
        lambda value: value.numpy() if tf.is_tensor(value) else value, half
    )
    # Another process traces again.
    other = _build.__wrapped__(noise=1.0, optimizer=_ADAM)
    resumed = other.next(arrays, batches[1]).state
    for name, value in _weights(state).items():
      self.assertEqual(value.tobytes(), _weights(resumed)[name].tobytes(), name)
    self.assertEqual(int(resumed.distributor.round_num), 2)
    query_state = resumed.aggregator.query_state
    self.assertEqual(int(query_state.counter), 2)

  def test_the_state_holds_the_event_and_the_frozen_names(self):
    step = _build(noise=2.0, frozen=_FROZEN)
    before = _keyed(step.initialize())
    after = step.next(before, [_batch(0)]).state
    for state in (before, after):
      self.assertEqual(
          dp_accounting.DpEvent.from_named_tuple(state.aggregator.dp_event),
          dp_accounting.GaussianDpEvent(2.0),
      )
      self.assertEqual(state.client_work, '\n'.join(_FROZEN))

  def test_by_batch_the_gradient_is_the_same_without_dropout(self):
    build = _build.__wrapped__  # Models are no keys of a cache.
    options = dict(is_public=True, model=tiny.predictor())
    one = _moves(build(**options), _batch(0, 1), _batch(2))
    other = _moves(build(**options, gradient_mode='per_batch'), _batch(2, 1, 0))
    for name, value in one.items():
      np.testing.assert_allclose(
          other[name], value, atol=1e-5 * _norm(one), err_msg=name
      )

  def test_a_step_sums_the_gradients_of_its_examples(self):
    step = _build(is_public=True)
    weights = step.initialize().global_model_weights
    gradients = dp_sgd.build_example_gradients(_TINY, seed=3)
    found = list(gradients(weights, _batch(0, 1, 2)))
    self.assertLen(found, 3)
    # However they are packed, their draws are independent.
    moves = _moves(step, _batch(2), _batch(1, 0))
    for name, move in moves.items():
      np.testing.assert_allclose(
          sum(gradient[name].numpy() for gradient in found),
          move,
          atol=1e-5 * _norm(moves),
          err_msg=name,
      )

  def test_without_a_query_it_is_the_gradient_of_the_sum(self):
    steps = _build(is_public=True), _build(clip=np.inf, split='global')
    one, other = (_moves(step, _batch(0, 1, 2)) for step in steps)
    for name, value in one.items():
      np.testing.assert_allclose(
          other[name], value, atol=1e-5 * _norm(one), err_msg=name
      )
    one, other = (
        step.next(step.initialize(), [_batch(0, 1, 2)]).metrics
        for step in steps
    )
    np.testing.assert_allclose(one['loss_sum'], other['loss_sum'], rtol=1e-4)

  def test_public_steps_measure_each_layer_s_squared_gradient_norm(self):
    step = _build(is_public=True)
    state = step.initialize()
    output = step.next(state, [_batch(0, 1), _batch(2)])
    moved = _difference(_weights(state), _weights(output.state))
    for name, square in output.metrics['layer_squares'].items():
      np.testing.assert_allclose(
          square, np.sum(np.square(moved[name])), rtol=1e-2, atol=1e-7
      )
    self.assertEqual(float(output.metrics['num_examples']), 3)

  @parameterized.parameters(
      (dict(batch_size=0), 'batch_size'),
      (dict(seed=-1), 'seed'),
      (dict(frozen=('nothing',)), "'nothing' is found in none"),
      (dict(frozen=tuple(_TINY.specs)), 'nothing is left to train'),
      (dict(gradient_mode='by_step'), 'gradient_mode'),
      (dict(gradient_mode='per_batch'), "'per_batch' cannot be clipped"),
      (dict(build_query=_of_devices), 'DistributedSumQuery is not for exam'),
  )
  def test_bad_arguments_are_named(self, options, message):
    with self.assertRaisesRegex(ValueError, message):
      _build(**options)

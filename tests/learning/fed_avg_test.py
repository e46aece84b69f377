"""Tests of tff_asr.learning.fed_avg against a plain federated average."""

import dataclasses
import functools
import math
import os
import pathlib
import tempfile
from unittest import mock

from absl.testing import parameterized
import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

# TensorFlow's public API does not return optimized graphs.
from tensorflow.python.eager import context as eager_context

from tests import cases
from tests import fakes
from tests import reference
from tests.learning import federated_twin
from tests.learning import tiny
from tff_asr.aggregators import dp_mean
from tff_asr.data import client_data
from tff_asr.data import cohorts as cohorts_lib
from tff_asr.execution import client_round
from tff_asr.execution import graph
from tff_asr.execution import multi_device
from tff_asr.execution import native
from tff_asr.learning import client_update
from tff_asr.learning import fed_avg
from tff_asr.learning import process as process_lib
from tff_asr.models import weights as weights_lib
from tff_asr.optimizers import lamb
from tff_asr.optimizers import schedules
from tff_asr.privacy import distributed
from tff_asr.privacy import keys

_SEED = 7
_CLIENT_RATE = 0.01
_SERVER_RATE = 0.7
_MAX_GRAD_NORM = 40.0
_PROXIMAL_WEIGHT = 20.0
_COHORT_SIZE = 4
_NUM_STEPS = 3
_COHORTS = (('ann', 'bob', 'cai'), ('bob', 'dee'))
_LOCAL = dict(
    learning_rate=_CLIENT_RATE,
    max_grad_norm=_MAX_GRAD_NORM,
    proximal_weight=_PROXIMAL_WEIGHT,
)


def _model():
  return fakes.tiny_model(num_blocks=1)


def _build(
    *, server_optimizer=None, aggregator=None, data=None, frozen=(),
    augment=None, model=None, seed=_SEED, **local
) -> tff.learning.templates.LearningProcess:
  model = model or _model()
  if server_optimizer is None:
    server_optimizer = tff.learning.optimizers.build_sgdm(1.0)
  settings = dict(
      model=model,
      pipeline=fakes.tiny_pipeline(model, augment=augment),
      client_data=data or fakes.client_data(),
      aggregator=aggregator or fakes.clipped_mean(
          cohort_size=_COHORT_SIZE, clip=math.inf, split='global'
      ),
      server_optimizer=server_optimizer,
      seed=seed,
      frozen=frozen,
  )
  return fed_avg.build(
      local=client_update.LocalTraining(**_LOCAL | local), **settings
  )


@functools.lru_cache
def _plain() -> tff.learning.templates.LearningProcess:
  """A process that tests share: SGD at the server and at the clients."""
  return _build(
      server_optimizer=tff.learning.optimizers.build_sgdm(_SERVER_RATE),
      num_steps=_NUM_STEPS,
  )


@functools.lru_cache
def _load_shards(num_clients: int) -> client_data.SpeechClientData:
  clients = {'ann': 3, 'bob': 5, 'cai': 1} | {
      f'client{i:02d}': 1 for i in range(3, num_clients)
  }
  return client_data.load(fakes.shared_split(**clients))


@functools.lru_cache
def _of_shards(num_clients: int) -> tff.learning.templates.LearningProcess:
  """A process that tests share: over shards of 3 clients or of more."""
  return _build(
      # With noise sums are of integers.
      aggregator=fakes.clipped_mean(
          cohort_size=_COHORT_SIZE, clip=0.1, noise=1.0
      ),
      data=_load_shards(num_clients),
      model=tiny.recognizer(dropout=0.2),
      num_steps=2,
  )


@functools.lru_cache
def _distributed(claimed: str) -> tff.learning.templates.LearningProcess:
  """A process of three clients a round that draw noise themselves.

  All records say that they are of the client `claimed`; '': the truth.
  """
  data = fakes.client_data({'ann': 2, 'bob': 1, 'cai': 1, 'dee': 0, 'eve': 0})
  if claimed:
    data = data.preprocess(
        lambda examples: examples.map(
            lambda element: element | {'client_id': claimed}
        )
    )
  return _build(
      aggregator=dp_mean.build_distributed(
          build_query=functools.partial(
              distributed.DistributedSumQuery,
              l2_norm_clip=1.0,
              noise_multiplier=1.0,
              num_clients=3,
              max_failed_share=0.0,
              bits=20,
          ),
          cohort_size=3,
      ),
      data=data,
      model=tiny.recognizer(dropout=0.2),
      num_steps=1,
  )


def _distributed_round(cohort, claimed='') -> np.ndarray:
  """The weights after a round of `_distributed`."""
  process = _distributed(claimed)
  context = multi_device.build_sync_context()
  with tff.framework.get_context_stack().install(context):
    state = fed_avg.set_noise_key(process.initialize(), keys.from_seed(1))
    after = process.next(state, cohort).state
  return fakes.flat(after.global_model_weights)


def tearDownModule():
  _distributed.cache_clear()
  _load_shards.cache_clear()
  _of_shards.cache_clear()
  _plain.cache_clear()
  _twin.cache_clear()


@functools.lru_cache
def _twin():
  """A twin that tests share."""
  return federated_twin.Twin(
      model=_model(),
      cohorts=_COHORTS,
      seed=_SEED,
      num_steps=_NUM_STEPS,
      **_LOCAL,
  )


class PlainFederatedAverageTest(parameterized.TestCase):
  """Rounds of the whole process against NumPy.

  Tolerance: 2e-6 of the tensor's norm plus 2e-6 of the whole change's. The twin
  computes all but the gradients in float64, the process in float32, which
  rounds at 6e-8 of a value. A tensor that starts at zero is not larger than its
  change, and the change is rounded relative to the sums over frames it came
  from: hence the second part.
  """

  def assert_weights(self, actual, round_num, expected) -> float:
    """That a round gave these weights; returns the norm of its change."""
    weights, found = actual[round_num : round_num + 2]
    change = federated_twin.norm(
        {name: expected[name] - weights[name] for name in weights}
    )
    self.assertEqual(list(found), list(expected))
    for name, value in expected.items():
      self.assertLessEqual(
          np.linalg.norm(found[name] - value),
          2e-6 * (np.linalg.norm(value) + change),
          name,
      )
    return change

  def test_sgd_server_and_local_steps(self):
    twin = _twin()
    actual, metrics = federated_twin.run(_plain(), _COHORTS)
    for round_num, cohort in enumerate(_COHORTS):
      # From the process's own weights: the same bits at the start of a round.
      weights = actual[round_num]
      trained = [
          twin.train(weights, client_id=client_id, round_num=round_num)
          for client_id in cohort
      ]
      mean = {
          name: sum(one.delta[name] for one in trained) / _COHORT_SIZE
          for name in weights
      }
      self.assert_weights(
          actual,
          round_num,
          {
              name: weights[name] - _SERVER_RATE * part
              for name, part in mean.items()
          },
      )
      losses = [loss for one in trained for loss in one.losses]
      grad_norms = [norm for one in trained for norm in one.grad_norms]
      # Some gradients are clipped and some not, or the test shows little.
      self.assertGreater(max(grad_norms), _MAX_GRAD_NORM)
      self.assertLess(min(grad_norms), _MAX_GRAD_NORM)
      work = metrics[round_num]['client_work']
      for name, expected in dict(
          loss_sum=sum(losses),
          delta_norm_sum=sum(
              federated_twin.norm(one.delta) for one in trained
          ),
          first_loss_sum=sum(one.batch_losses[0] for one in trained),
          last_loss_sum=sum(one.batch_losses[-1] for one in trained),
          num_trained=len(cohort),
          num_utterances=len(losses),
          num_steps=len(grad_norms),
          num_clients=len(cohort),
          num_left_out=0,
          num_non_finite=0,
      ).items():
        np.testing.assert_allclose(
            work[name], expected, rtol=1e-5, err_msg=name
        )
      self.assertNotAlmostEqual(
          work['first_loss_sum'], work['last_loss_sum'], places=2
      )

  def test_lamb_with_a_schedule_epochs_clips_and_drawn_cohorts(self):
    # A private run without noise; one cohort is empty.
    clip, cohort_size, seed = 0.3, 2, 11
    client_ids = fakes.client_data().client_ids
    key = keys.from_seed(8363)  # Chosen for these cohorts.
    cohorts = [['ann', 'bob'], [], ['bob', 'cai', 'dee']]
    source = cohorts_lib.poisson(client_ids, cohort_size=cohort_size, key=key)
    cohort_state = source.initial_state()
    for round_num, cohort in enumerate(cohorts):
      found, cohort_state = source.draw(cohort_state)
      self.assertEqual(found, cohort)
      drawn = reference.poisson_cohort(
          client_ids,
          sampling_prob=cohort_size / len(client_ids),
          key=key,
          round_num=round_num,
      )
      self.assertEqual(drawn, cohort)
    local = dict(_LOCAL, max_grad_norm=20.0, proximal_weight=0.0, num_epochs=2)
    process = _build(
        aggregator=fakes.clipped_mean(cohort_size=cohort_size, clip=clip),
        server_optimizer=schedules.scheduled(
            lamb.build_lamb(1.0, epsilon=1e-2),
            schedule=schedules.exponential_decay(
                0.05, start=1, decay_rate=0.5, transition_rounds=1
            ),
        ),
        model=tiny.recognizer(),
        seed=seed,
        **local,
    )
    actual, metrics = federated_twin.run(process, cohorts)
    twin = federated_twin.Twin(
        model=tiny.recognizer(), cohorts=cohorts, seed=seed, **local
    )
    optimizer = reference.Lamb(0.0, epsilon=1e-2)
    num_clipped = num_layers = 0
    # .05, then times .5 a round from round 1 on: by hand.
    for round_num, rate in enumerate((0.05, 0.05, 0.025)):
      # The moments are the twin's own.
      weights = actual[round_num]
      mean = {name: np.zeros(value.shape) for name, value in weights.items()}
      for client_id in cohorts[round_num]:
        delta = twin.train(
            weights, client_id=client_id, round_num=round_num
        ).delta
        for name, layer in reference.clip_layers(delta, clip=clip).items():
          # The divisor is the expected cohort size.
          mean[name] += layer / cohort_size
          num_clipped += np.any(layer != delta[name])
          num_layers += 1
      optimizer.learning_rate = rate
      stepped = optimizer.step(list(weights.values()), list(mean.values()))
      expected = dict(zip(weights, stepped, strict=True))
      # In the empty round, too: LAMB continues along its first moment.
      self.assertGreater(
          self.assert_weights(actual, round_num, expected), 1e-3
      )
      measured = metrics[round_num]
      for found, value in (
          (measured['client_work']['num_clients'], len(cohorts[round_num])),
          (measured['finalizer']['update_norm'], federated_twin.norm(mean)),
          (measured['finalizer']['learning_rate'], rate),
      ):
        np.testing.assert_allclose(found, value, rtol=1e-5)
    # Some layers are clipped and some not, or the test shows little.
    self.assertBetween(num_clipped, num_layers / 10, num_layers * 9 / 10)

  def test_rounds_and_clients_have_different_seeds(self):
    twin = _twin()
    orders = {
        key: [list(batch['utterance_id'].numpy()) for batch in batches]
        for key, batches in twin.batches.items()
    }
    self.assertNotEqual(orders[0, 'bob'], orders[1, 'bob'])
    expected = [
        tuple(batch['seed'].numpy().tolist())
        for batches in twin.batches.values()
        for batch in batches
    ]
    # And those of the process, as they reach the model and the masks.
    folder = self.enter_context(tempfile.TemporaryDirectory())
    files = [os.path.join(folder, name) for name in ('model', 'masks')]

    def told(features, seed, file):
      told_seed = tf.print(seed, output_stream=f'file://{file}')
      with tf.control_dependencies([told_seed]):
        return tf.identity(features)

    model = tiny.recognizer()

    def apply(weights, features, feature_lengths, seed):
      return model.encoder.apply(
          weights, told(features, seed, files[0]), feature_lengths, seed
      )

    process = _build(
        model=dataclasses.replace(
            model, encoder=dataclasses.replace(model.encoder, apply=apply)
        ),
        augment=lambda features, _, seed: told(features, seed, files[1]),
        num_steps=_NUM_STEPS,
    )
    federated_twin.run(process, _COHORTS)
    of_model, of_masks = (
        [
            tuple(map(int, line.strip('[]').split()))
            for line in pathlib.Path(file).read_text('utf-8').splitlines()
        ]
        for file in files
    )
    self.assertCountEqual(of_model, expected)
    self.assertLen(of_masks, len(expected))
    seeds = set(of_model + of_masks)
    self.assertLen(seeds, 2 * len(expected))

  def test_spec_augment_begins_after_the_unaugmented_rounds(self):
    def spoil(features, lengths, seed):
      del lengths, seed
      return features * np.nan

    process = _build(
        augment=spoil,
        model=tiny.recognizer(),
        num_steps=1,
        unaugmented_rounds=2,
    )
    _, metrics = federated_twin.run(process, [_COHORTS[0]] * 4)
    self.assertEqual(
        [each['client_work']['num_non_finite'] for each in metrics],
        [0, 0, 3, 3],
    )
    self.assertEqual(
        [each['client_work']['num_trained'] for each in metrics], [3, 3, 0, 0]
    )


class ProcessTest(cases.TestCase):

  def test_clients_of_a_corpus_are_given_by_where_their_records_lie(self):
    _, clients_type = _of_shards(3).next.type_signature.parameter
    self.assertEqual(
        str(clients_type),
        '{<client_id=str,shard=int64,offsets=int64[?]>}@CLIENTS',
    )

  def test_type_signature(self):
    process = _plain()
    self.assertIsInstance(process, tff.learning.templates.LearningProcess)
    state_type, clients_type = process.next.type_signature.parameter
    self.assertEqual(str(clients_type), '{str}@CLIENTS')
    self.assertEqual(state_type, process.initialize.type_signature.result)
    result_type = process.next.type_signature.result
    self.assertEqual(result_type.state, state_type)
    weights_type = state_type.member.global_model_weights
    self.assertEqual(
        {name: str(weights_type[name]) for name in dir(weights_type)},
        {
            name: f'float32[{",".join(map(str, spec.shape))}]'
            for name, spec in _model().specs.items()
        },
    )
    self.assertEqual(
        str(state_type.member.distributor), '<seed=int32[2],round_num=int32>'
    )
    self.assertEqual(str(state_type.member.client_work), '<>')
    metrics_type = result_type.metrics.member
    self.assertEqual(
        str(metrics_type.client_work),
        '<audio_sec=float32,delta_norm_sum=float32,first_loss_sum=float32,'
        f'gradient_norm_sum=float32[{len(_model().specs)}],'
        'last_loss_sum=float32,loss_sum=float32,num_clients=float32,'
        'num_left_out=float32,num_non_finite=float32,num_steps=float32,'
        'num_trained=float32,num_utterances=float32>',
    )
    self.assertEqual(
        str(metrics_type.finalizer),
        '<learning_rate=float32,update_norm=float32,weights_norm=float32>',
    )

  def test_frozen_layers_are_not_trained_clipped_noised_or_sent(self):
    clip, noise = 0.01, 10.0
    frozen, live = ['front/bias', 'head/bias'], ['front/kernel', 'head/kernel']
    process = _build(
        aggregator=fakes.clipped_mean(
            cohort_size=_COHORT_SIZE, clip=clip, noise=noise
        ),
        model=tiny.recognizer(),
        num_steps=1,
        frozen=['front/b.*', 'h.*/bias'],
    )
    context = multi_device.build_sync_context()
    with tff.framework.get_context_stack().install(context):
      initial = process.initialize()
      state = fed_avg.set_noise_key(initial, np.arange(1, 9, dtype=np.int32))
      rounds = [process.next(state, cohort) for cohort in ([], ['bob'])]
    self.assertEqual(process_lib.frozen_layers(initial), frozen)
    before = {
        name: np.asarray(value)
        for name, value in initial.global_model_weights.items()
    }
    # The server's SGD at a rate of 1: weights move by minus the mean.
    alone, with_bob = (
        {
            name: (before[name] - np.asarray(value)) * _COHORT_SIZE
            for name, value in done.state.global_model_weights.items()
        }
        for done in rounds
    )
    for name in frozen:
      self.assertTrue(np.all(alone[name] == 0), name)
      self.assertTrue(np.all(with_bob[name] == 0), name)
    noises = np.concatenate([alone[name].ravel() for name in live])
    # z C = .1 on the sum, of some thousands of elements.
    np.testing.assert_allclose(noises.std(), clip * noise, rtol=0.06)
    # C is divided among the live layers: bob's, each over its part, fill it.
    sizes = {name: before[name].size for name in live}
    norms = {
        name: np.linalg.norm(with_bob[name] - alone[name]) for name in live
    }
    for name in live:
      share = np.sqrt(sizes[name] / sum(sizes.values()))
      self.assertLessEqual(norms[name], clip * share * 1.01 + 3e-6, name)
    self.assertAlmostEqual(
        federated_twin.norm(norms) / clip, 1, delta=0.05
    )
    self.assertAlmostEqual(
        float(rounds[1].metrics['aggregator']['noise_norm']),
        clip * noise * np.sqrt(sum(sizes.values())) / _COHORT_SIZE,
        places=5,
    )
    # The rest in float32, there and back.
    num_bytes = 4 * sum(sizes.values())
    self.assertEqual(fed_avg.traffic(initial), (num_bytes, num_bytes))

  def test_a_clients_update_does_not_depend_on_other_clients(self):
    # Sums of integers, so that one bit more or less would show.
    process = _of_shards(3)
    sums = []
    run_clients = multi_device._Runner.run_clients

    def look(runner, *arguments):
      total = run_clients(runner, *arguments)
      sums.append([
          np.array(leaf) for leaf in total if leaf.dtype == tf.int64
      ])
      return total

    context = multi_device.build_sync_context()
    with (
        tff.framework.get_context_stack().install(context),
        mock.patch.object(multi_device._Runner, 'run_clients', look),
    ):
      state = fed_avg.set_noise_key(process.initialize(), keys.draw())
      for cohort in (['cai', 'ann', 'bob'], ['ann'], ['bob'], ['cai']):
        process.next(state, _load_shards(3).locate_clients(cohort))
    together, *alone = sums
    self.assertLen(together, len(tiny.recognizer().specs))
    self.assertTrue(all(np.any(part) for one in alone for part in one[:1]))
    for whole, *parts in zip(together, *alone, strict=True):
      np.testing.assert_array_equal(whole, sum(parts))

  def test_a_clients_delta_is_squared_once(self):
    # The client's measurements and its clip both need the sums of squares.
    num_tensors = len(tiny.recognizer().specs)
    runtime = eager_context.context()
    # A new context: functions are optimized, and collected, at their first run.
    built = multi_device.build_sync_context()
    self.enter_context(tff.framework.get_context_stack().install(built))
    process = _of_shards(3)
    state = fed_avg.set_noise_key(process.initialize(), keys.draw())
    runtime.enable_run_metadata()
    self.addCleanup(runtime.disable_run_metadata)
    process.next(state, _load_shards(3).locate_clients(['cai']))
    counts = []
    for function in runtime.export_run_metadata().function_graphs:
      optimized = function.post_optimization_graph
      counts.append(sum(
          node.op == 'L2Loss' and node.attr['T'].type == tf.float64
          for nodes in graph.node_lists(optimized)
          for node in nodes
      ))
    # The client's function, and the server's, which squares the sum.
    self.assertEqual(sorted(filter(None, counts)), [num_tensors] * 2)

  def test_a_round_of_two_processes_is_the_mean_of_their_means(self):
    data = client_data.SpeechClientData(
        _load_shards(3).client_index, num_processes=2
    )
    process = _build(data=data, model=tiny.recognizer(), num_steps=1)
    # Another test of the process may have set an asynchronous context.
    self.enter_context(
        tff.framework.get_context_stack().install(
            multi_device.build_sync_context()
        )
    )
    state = process.initialize()

    def mean(*cohort):
      done = process.next(state, data.locate_clients(cohort)).state
      # SGD at a rate of 1: weights move by minus the mean.
      return {
          name: state.global_model_weights[name] - value
          for name, value in done.global_model_weights.items()
      }

    # bob has 5 utterances, ann 3 and cai 1: one process has bob alone.
    ann, bob, cai = (mean(client) for client in ('ann', 'bob', 'cai'))
    for name, found in mean('ann', 'bob', 'cai').items():
      expected = 3 * (bob[name] + (ann[name] + cai[name]) / 2) / 2
      np.testing.assert_allclose(
          found, expected, rtol=1e-4, atol=1e-7, err_msg=name
      )

  def test_without_frozen_layers_all_weights_are_sent(self):
    weights = _model().initialize(tf.constant([1, 2]))
    state = tff.learning.templates.LearningAlgorithmState(
        weights, (), (), (), ()
    )
    num_bytes = 4 * weights_lib.num_parameters(_model().specs)
    self.assertEqual(fed_avg.traffic(state), (num_bytes, num_bytes))
    self.assertEqual(process_lib.frozen_layers(state), [])

  def test_graph_does_not_grow_with_the_number_of_clients(self):
    sizes = [
        tff.framework.serialize_computation(_of_shards(size).next).ByteSize()
        for size in (3, 60)
    ]
    # A name that is numbered may be a few bytes longer; 57 ids of 8 bytes would
    # be 456.
    self.assertLess(abs(sizes[1] - sizes[0]), 100)

  def test_clients_without_data_draw_no_noise_in_common(self):
    # No element names them, so both would have one number.
    with self.assertRaisesRegex(
        client_round.ClientError, '(?s)Client . of 3 .*without data'
    ):
      _distributed_round(['ann', 'dee', 'eve'])

  def test_client_ids_claimed_by_records_are_ignored(self):
    # If it were believed, all clients would draw the noise of one: modulo their
    # number the sum of their updates would be exact.
    honest, claimed = (
        _distributed_round(['ann', 'bob', 'cai'], claimed=claimed)
        for claimed in ('', 'ann')
    )
    np.testing.assert_array_equal(claimed, honest)

  @pytest.mark.slow
  def test_the_native_runtime_gives_the_same(self):
    process = _build(num_epochs=1)
    ours, _ = federated_twin.run(process, _COHORTS)
    theirs, _ = federated_twin.run(
        process, _COHORTS, context=native.build_sync_context(trust_network=True)
    )
    native.stop()
    # Other kernels and orders of summation: 1e-5.
    for mine, other in zip(ours, theirs, strict=True):
      for name, value in mine.items():
        np.testing.assert_allclose(
            value, other[name], rtol=1e-5, atol=1e-5, err_msg=name
        )

  @parameterized.named_parameters(
      ('neither', {}, 'num_steps or num_epochs must be set, found neither'),
      ('steps', dict(num_steps=0), 'num_steps'),
      ('epochs', dict(num_epochs=0), 'num_epochs'),
      (
          'rate',
          dict(num_steps=1, learning_rate=-1),
          'learning_rate',
      ),
      ('grad', dict(num_steps=1, max_grad_norm=0), 'max_grad_norm'),
      (
          'proximal',
          dict(num_steps=1, proximal_weight=-0.1),
          'proximal_weight must be at least 0',
      ),
      ('frozen', dict(num_steps=1, frozen=['.*']), 'nothing is left'),
      ('weight', dict(num_steps=1, weigh_by='speakers'), 'weigh_by'),
      ('mean', dict(num_steps=1, mean_weight=0.0), 'mean_weight'),
      (
          'rounds', dict(num_steps=1, unaugmented_rounds=-1),
          'unaugmented_rounds',
      ),
  )
  def test_bad_arguments_are_named(self, kwargs, message):
    with self.assertRaisesRegex(ValueError, message):
      _build(**kwargs)

"""Tests of tff_asr.programs.private_rounds; see also federated_test."""

import asyncio
import collections
import dataclasses
import math
import os
import tempfile
from typing import Any

from absl.testing import absltest
from absl.testing import parameterized
import dp_accounting
import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tests import cases
from tests import fakes
from tests.programs import runs
from tff_asr.data import cohorts
from tff_asr.privacy import accounting
from tff_asr.privacy import adaptive_query
from tff_asr.privacy import clipping
from tff_asr.privacy import correlated_noise
from tff_asr.privacy import distributed
from tff_asr.privacy import keys
from tff_asr.privacy import ledger
from tff_asr.privacy import queries
from tff_asr.privacy import strategies
from tff_asr.programs import private_rounds

_NOISE = 4.0
# 100 rounds a pass.
_SEPARATED = accounting.Sampling(
    kind='min_sep', cohort_size=1, population=100, min_sep=50
)
_BLT = strategies.optimize(num_rounds=100, min_sep=50)
_POISSON = accounting.Sampling(kind='poisson', cohort_size=5, population=100)
_DELTA = 1e-5


def _correlated_state(counter, buffers):
  """The state of a query with correlated noise."""
  return queries.QueryState(
      l2_norm_clip=np.float32(1),
      noise_multiplier=np.float32(_NOISE),
      noise_key=np.zeros([8], np.int32),
      counter=np.int64(counter),
      output_scale=np.array(_BLT.output_scale),
      buf_decay=np.array(_BLT.buf_decay),
      buffers=buffers,
  )



# What decides a round's noisy sum, by name, and something else at its place:
# of the state, of the cohorts, of the run.
_PARTS = dict(
    first_weight=(np.arange(5.0), np.array([0.0, 1.0, 2.0, 3.0, 5.0])),
    last_weight=(np.zeros(2**20), np.eye(1, 2**20, 2**20 - 1)[0]),
    seed=(np.array([1, 2], np.int32), np.array([1, 3], np.int32)),
    round_of_training=(np.int32(3), np.int32(4)),
    frozen_layers=('wq', 'wk'),
    clip=(np.float32(1), np.float32(2)),
    noise_multiplier=(np.float32(_NOISE), np.float32(5)),
    counter=(np.int64(0), np.int64(1)),
    layer_clips=(np.float32([0.6, 0.8]), np.float32([0.6, 0.9])),
    cohort_key=(keys.from_seed(2), keys.from_seed(3)),
    cohort_round=(np.int64(7), np.int64(8)),
    configuration=('text', 'other text'),
    noise_key=(keys.from_seed(1), keys.from_seed(4)),
)


def _state(sampling=_POISSON, *, query_state=None, **values):
  """A learning process's state."""
  of = {name: good for name, (good, _) in _PARTS.items()} | values
  if sampling.kind == 'min_sep':
    event = strategies.CorrelatedGaussianDpEvent(
        _NOISE, 50, np.array(_BLT.output_scale), np.array(_BLT.buf_decay)
    )
  else:
    event = dp_accounting.GaussianDpEvent(_NOISE)
  query_state = query_state or queries.QueryState(
      of['clip'], of['noise_multiplier'], np.zeros([8], np.int32),
      of['counter'], of['layer_clips'],
  )
  return runs.process_state(
      {'a': of['first_weight'], 'b': of['last_weight']},
      query_state=query_state,
      event=event,
      distributor=(of['seed'], of['round_of_training']),
      client_work=of['frozen_layers'],
  )


# Trained layers of 4, 12 and 9 elements; another one is frozen.
_LAYERS = {
    'conv/bias': np.zeros(4, np.float32),
    'conv/kernel': np.zeros([3, 4], np.float32),
    'head': np.zeros(9, np.float32),
}
# sqrt(D_h) z / S for z = 2 and S = 10, and for all 25 elements.
_NOISE_OF = {'conv/bias': 0.4, 'conv/kernel': 0.4 * math.sqrt(3), 'head': 0.6}
_TEN = accounting.Sampling(kind='poisson', cohort_size=10, population=100)


def _state_of(query) -> Any:
  """A learning process's state at the start of a query's rounds."""
  state = tf.nest.map_structure(np.asarray, query.initial_global_state())
  return runs.process_state(
      {**_LAYERS, 'a_frozen': np.zeros(1000, np.float32)},
      query_state=state,
      event=query.event(state),
      distributor=(np.zeros(2, np.int32), np.int32(0)),
      client_work='a_frozen',
  )


class NoiseByLayerTest(parameterized.TestCase):

  def build(self, build=queries.PerLayerClipSumQuery, **settings):
    settings = dict(l2_norm_clip=0.5, noise_multiplier=2.0) | settings
    clipping_of = settings.pop('clipping', {})
    return build(
        {name: tf.TensorSpec(value.shape) for name, value in _LAYERS.items()},
        clipping=clipping.Clipping(**clipping_of),
        **settings,
    )

  @parameterized.named_parameters(
      # C_h = C sqrt(D_h / 25), so the ratio is 2 x 5 / 10 for every layer.
      ('dim', dict(split='dim'), dict.fromkeys(_LAYERS, 1.0), True),
      # C_h = C / sqrt(3).
      (
          'uniform', dict(split='uniform'),
          {name: value * math.sqrt(3) for name, value in _NOISE_OF.items()},
          True,
      ),
      ('global', dict(), _NOISE_OF, False),
      # Modules of 16 and 9 elements, of C / sqrt(2) each.
      (
          'modules', dict(split='uniform', layers='modules'),
          {'conv': 0.8 * math.sqrt(2), 'head': 0.6 * math.sqrt(2)}, True,
      ),
      # Weights 1, 1, 3 on uniform clips: C_h = C (1, 1, 3) / sqrt(11).
      (
          'weights', dict(split='uniform', weights={'head': 3.0}),
          {
              name: value * math.sqrt(11) / (3 if name == 'head' else 1)
              for name, value in _NOISE_OF.items()
          },
          True,
      ),
  )
  def test_by_hand(self, clipping_of, expected, has_layer_clips):
    state = _state_of(self.build(clipping=clipping_of))
    found, own = private_rounds.noise_by_layer(state, _TEN)
    self.assertEqual(own, has_layer_clips)
    self.assertEqual([*found], [*expected])
    np.testing.assert_allclose(
        [*found.values()], [*expected.values()], rtol=1e-6
    )
    # sqrt(25) 2 / 10, whatever the split: frozen weights get no noise.
    self.assertAlmostEqual(
        private_rounds.cost(state, _TEN).noise_over_clip, 1.0, places=6
    )

  def test_adaptive_clips_have_more_noise_and_the_clips_of_the_round(self):
    # Counts take part of the noise multiplier: 1 / sqrt(1 - 1 / 25).
    state = _state_of(self.build(
        adaptive_query.AdaptiveClipSumQuery, cohort_size=10,
        clipping=dict(split='dim'),
    ))
    more = 1 / math.sqrt(0.96)
    cost = private_rounds.cost(state, _TEN)
    self.assertAlmostEqual(cost.noise_over_clip, more, places=5)
    self.assertEqual(cost.noise_multiplier, 2.0)
    # 3, 4 and 12 of C = 13.
    state = private_rounds.with_query_state(
        state, layer_clips=np.float32([3, 4, 12]), l2_norm_clip=np.float32(13)
    )
    found, own = private_rounds.noise_by_layer(state, _TEN)
    self.assertTrue(own)
    for (name, noise), clip in zip(_NOISE_OF.items(), (3, 4, 12)):
      self.assertAlmostEqual(found[name], noise * more * 13 / clip, places=4)

  def test_devices_add_more_noise_than_the_server_would(self):
    sampling = accounting.Sampling(
        kind='fixed_size', cohort_size=10, population=100
    )
    query = self.build(
        distributed.DistributedSumQuery, num_clients=10, max_failed_share=0.2,
        bits=24, clipping=dict(split='dim'),
    )
    # That of 8 of 10 devices suffices; sqrt(10 / 8) if all add theirs.
    found = private_rounds.cost(_state_of(query), sampling).noise_over_clip
    self.assertAlmostEqual(found, math.sqrt(10 / 8), delta=1e-3)
    self.assertGreater(found, math.sqrt(10 / 8))

  def test_correlated_noise_is_that_before_correlation(self):
    noise = correlated_noise.CorrelatedNoise(strategy=_BLT, min_sep=50)
    state = _state_of(self.build(noise=noise))
    sampling = accounting.Sampling(
        kind='min_sep', cohort_size=10, population=1000, min_sep=50
    )
    group = private_rounds.cost(state, sampling)
    self.assertAlmostEqual(group.noise_norm, 10.0, places=5)
    # Of the first round alone.
    self.assertAlmostEqual(group.noise_over_clip, 1.0, places=5)

  def test_noise_that_is_not_known_or_none_is_said_to_be(self):
    state = _state(sampling=_POISSON)
    self.assertIsNone(private_rounds.cost(state, _POISSON).noise_norm)
    self.assertEqual(
        private_rounds.noise_by_layer(state, _POISSON), ({}, False)
    )
    state = _state_of(self.build(l2_norm_clip=math.inf, noise_multiplier=0.0))
    self.assertEqual(private_rounds.cost(state, _TEN).noise_over_clip, 0.0)


def _runner(
    opened: ledger.Ledger,
    *,
    key=keys.from_seed(1),
    sampling=_POISSON,
    configuration='',
    delta=_DELTA,
) -> private_rounds.PrivateRoundRunner:
  """A runner of rounds under a ledger."""
  return private_rounds.PrivateRoundRunner(
      ledger=opened,
      noise=private_rounds.NoiseState(key, np.int64(opened.file_identity)),
      sampling=sampling,
      configuration=configuration,
      settings=private_rounds.PrivacySettings(delta=delta, noise_seed=1),
  )


def _draw(*cohort: str):
  """Draws these clients, and the sampler's next state."""

  def draw(state):
    return list(cohort or ['ann']), state._replace(
        round_num=state.round_num + 1
    )

  return draw


def _run(
    rounds: private_rounds.PrivateRoundRunner,
    step,
    state,
    cohort_state: cohorts.CohortState,
) -> private_rounds.RoundResult:
  """Runs a round of one client."""
  return asyncio.run(rounds.run(
      step, state, draw=_draw(), position=cohort_state
  ))


class _TestCase(cases.TestCase):

  def setUp(self):
    super().setUp()
    self.path = os.path.join(self.root, 'ledger.jsonl')


class RoundTest(_TestCase):

  def noise_key(self, **values):
    """The key that a round's noise gets, as bytes."""
    of = {name: good for name, (good, _) in _PARTS.items()} | values
    folder = self.enterContext(tempfile.TemporaryDirectory())
    seen = []

    async def step(state, cohort):
      del cohort
      seen.append(state.aggregator.query_state.noise_key)
      return tff.learning.templates.LearningProcessOutput(state, ())

    with ledger.create(os.path.join(folder, 'ledger.jsonl')) as opened:
      rounds = _runner(
          opened, key=of['noise_key'], configuration=of['configuration']
      )
      cohort_state = cohorts.CohortState(of['cohort_key'], of['cohort_round'])
      result = _run(rounds, step, _state(**values), cohort_state)
      self.assertEqual(
          result.next_position.round_num, cohort_state.round_num + 1
      )
      self.assertEqual(opened.head.count, 1)
      # What drew the round is gone: from the states and from the runner.
      query_state = private_rounds.query_state(result.output.state)
      self.assertFalse(np.any(query_state.noise_key))
      for key, before in (
          (rounds.noise.key, of['noise_key']),
          (result.next_position.key, of['cohort_key']),
      ):
        np.testing.assert_array_equal(
            key, keys.derive(before, purpose='next round')
        )
    return keys.to_bytes(seen[0])

  def test_everything_that_decides_a_round_changes_its_noise(self):
    found = {'none': self.noise_key()}
    self.assertEqual(self.noise_key(), found['none'])
    for name, (_, other) in _PARTS.items():
      found[name] = self.noise_key(**{name: other})
    self.assertLen(set(found.values()), 1 + len(_PARTS), found)

  @parameterized.parameters('metrics', 'optimizer', 'clips', 'weights', None)
  def test_another_sum_gets_other_noise_wherever_the_sum_shows(self, shown):
    # At a learning rate of 0, weights do not show it.
    def run(seen):
      async def step(state, cohort):
        del cohort
        keys_of_noise.append(private_rounds.query_state(state).noise_key)
        value = np.float32([seen])
        if shown == 'optimizer':
          state = state._replace(finalizer=value)
        elif shown == 'clips':
          state = private_rounds.with_query_state(state, layer_clips=value)
        elif shown == 'weights':
          state = state._replace(global_model_weights={'a': value})
        return tff.learning.templates.LearningProcessOutput(
            state, {'finalizer': {'update_norm': value * (shown == 'metrics')}}
        )

      _run(
          _runner(opened),
          step,
          _state(),
          cohorts.CohortState(keys.from_seed(2), np.int64(0)),
      )

    keys_of_noise = []
    with ledger.create(self.path) as opened:
      head = opened.head
      run(1)
    # Killed before its state was saved, and other data since.
    with ledger.resume(self.path, head=head) as opened:
      run(2)
      rounds = opened.contents.rounds
    num_charged = 1 if shown is None else 2
    self.assertEqual(sum(group.count for group in rounds), num_charged)
    self.assertLen({key.tobytes() for key in keys_of_noise}, num_charged)

  def test_a_client_that_appears_twice_in_a_cohort_is_refused(self):
    with ledger.create(self.path) as opened:
      rounds = _runner(opened)
      cohort_state = cohorts.CohortState(keys.from_seed(2), np.int64(0))
      with self.assertRaisesRegex(ValueError, 'appears twice in the cohort'):
        asyncio.run(rounds.run(
            None,
            _state(),
            draw=_draw('ann', 'bob', 'ann'),
            position=cohort_state,
        ))

  def test_a_repeated_round_starts_another_sequence(self):
    # Otherwise two sums of a client's would share a coin, and a round's noise.
    def run(seen):
      async def step(state, cohort):
        del cohort
        found.append(private_rounds.query_state(state))
        return tff.learning.templates.LearningProcessOutput(
            state._replace(finalizer=np.float32([seen])), ()
        )

      return _run(
          _runner(opened, sampling=_SEPARATED),
          step,
          before,
          cohorts.CohortState(keys.from_seed(2), np.int64(7)),
      )

    found, before = [], _state(_SEPARATED, query_state=_correlated_state(
        7, {'a': np.ones([2, 3])}
    ))
    with ledger.create(self.path) as opened:
      head = opened.head
      self.assertEqual(run(1).next_position.round_num, 8)
    with ledger.resume(self.path, head=head) as opened:
      self.assertEqual(run(2).next_position.round_num, 1)
      counts = [group.count for group in opened.contents.rounds]
    self.assertEqual(counts, [8, 1])
    self.assertEqual([int(each.counter) for each in found], [7, 7, 0])
    for each, expected in zip(found, (1, 1, 0), strict=True):
      self.assertTrue(np.all(each.buffers['a'] == expected))

  def test_correlated_noise_continues_after_an_undone_round(self):
    before, after = (
        _state(
            query_state=_correlated_state(number, np.full([2, 3], number))
        )
        for number in (1, 2)
    )
    kept = private_rounds.roll_back_state(before, after=after)
    self.assertIs(kept.global_model_weights, before.global_model_weights)
    noise = private_rounds.query_state(kept)
    self.assertEqual(int(noise.counter), 2)
    np.testing.assert_array_equal(noise.buffers, np.full([2, 3], 2))
    # Other noise is its round's own.
    before, after = (_state(counter=np.int64(number)) for number in (1, 2))
    self.assertIs(private_rounds.roll_back_state(before, after=after), before)

  def test_a_process_of_another_kind_keeps_its_buffers_too(self):
    # Neither BLT nor banded: it has buffers, and no scale of outputs.
    before, after = (
        _state(query_state=_correlated_state(number, np.full([3], number))
               ._replace(output_scale=(), buf_decay=()))
        for number in (1, 2)
    )
    kept = private_rounds.query_state(
        private_rounds.roll_back_state(before, after=after)
    )
    np.testing.assert_array_equal(kept.buffers, np.full([3], 2))


class PlanTest(_TestCase):

  def test_planned_rounds_are_what_the_ledger_will_charge(self):
    for sampling in (_SEPARATED, _POISSON):
      event = strategies.CorrelatedGaussianDpEvent(
          _NOISE, 50, _BLT.output_scale, _BLT.buf_decay
      )
      num_elements = 5 + 2**20  # Of the weights of `_state`.
      strategy, noise, in_steps = None, _NOISE, _NOISE
      if sampling is _SEPARATED:
        strategy = _BLT
        in_steps = correlated_noise.noise_resolution(event)
        noise = correlated_noise.charged_noise_multiplier(
            # Counts of adaptive clips have noise, too.
            event,
            num_elements=num_elements + len(_PARTS['layer_clips'][0]),
        )
      first, second = (
          os.path.join(self.root, f'{sampling.kind}_{number}')
          for number in (1, 2)
      )
      charged = lambda number, key: fakes.charged_round(
          number, key=key, sampling=sampling, noise_multiplier=noise,
          strategy=strategy,
          sampler_epsilon=queries.sampler_epsilon(
              in_steps, num_elements=num_elements
          ),
      )
      with ledger.create(first) as opened:
        opened.append(charged(0, 1))
        parent = first, opened.head
      planned = ledger.read_inherited(
          [parent], privacy_unit='speaker'
      ).charges.after(
          range(100), private_rounds.cost(_state(sampling), sampling)
      )
      with ledger.create(second, parents=[parent]) as opened:
        for number in range(100):
          opened.append(charged(number, 2))
        rounds = opened.contents.rounds
      self.assertAlmostEqual(
          *(
              accounting.epsilon(each, delta=_DELTA)
              for each in (planned, rounds)
          ),
          places=9,
      )

  @parameterized.named_parameters(
      ('private', dict(), dict(), True),
      ('little_noise', dict(noise_multiplier=0.1), dict(), False),
      ('no_noise', dict(noise_multiplier=0.0), dict(), False),
      ('large_delta', dict(), dict(delta=0.1), False),
      ('a_fixed_key', dict(), dict(invalidations=['it leaks']), False),
  )
  def test_a_runner_says_if_rounds_are_private(self, charged, other, private):
    other = {'delta': _DELTA, 'invalidations': [], **other}
    charged = {'noise_multiplier': _NOISE, **charged}
    with ledger.create(
        self.path, invalidations=other['invalidations']
    ) as opened:
      opened.append(fakes.charged_round(0, sampling=_POISSON, **charged))
      runner = _runner(opened, delta=other['delta'])
      self.assertEqual(runner.is_private(runner.epsilons()[0]), private)

  def test_a_target_below_the_first_round_is_refused(self):
    inherited = ledger.Charges()
    cost = accounting.RoundGroup(sampling=_POISSON, noise_multiplier=_NOISE)
    for number in range(3):
      inherited.add(cost, round_num=number)
    check = lambda target: private_rounds.check_first_round(
        _state(),
        sampling=_POISSON,
        settings=private_rounds.PrivacySettings(
            delta=_DELTA, target_epsilon=target
        ),
        inherited=inherited,
    )
    check(10.0)
    with self.assertRaisesRegex(
        ValueError, r'with those of INIT_FROM_RUN \(3\)'
    ):
      check(1e-3)
    # What was inherited stays as it was.
    self.assertEqual([group.count for group in inherited.rounds], [3])

  def test_noise_that_does_not_match_the_cohorts_is_refused(self):
    for noise, other, message in (
        (_SEPARATED, dataclasses.replace(_SEPARATED, min_sep=49),
         '50 rounds apart, the cohorts keep 49: set both by MIN_SEP'),
        (_SEPARATED, _POISSON, 'correlated noise .* with poisson cohorts'),
        (_POISSON, _SEPARATED, 'independent noise .* with min_sep cohorts'),
    ):
      with self.assertRaisesRegex(ValueError, message):
        private_rounds.check_first_round(
            _state(noise),
            sampling=other,
            settings=private_rounds.PrivacySettings(),
            inherited=ledger.Charges(),
        )

  def test_correlated_noise_is_not_charged_as_independent(self):
    # Later rounds hold the noise of earlier ones, whatever the event says.
    state = _state(
        query_state=_correlated_state(0, {'a': np.zeros([2, 3])})
    )
    with self.assertRaisesRegex(ValueError, 'has buffers, .* no strategy'):
      private_rounds.check_first_round(
          state,
          sampling=_POISSON,
          settings=private_rounds.PrivacySettings(),
          inherited=ledger.Charges(),
      )

  def test_noise_that_is_not_gaussian_is_not_charged_as_gaussian(self):
    state = runs.process_state(
        {'a': np.zeros(3)},
        query_state=private_rounds.query_state(_state()),
        event=dp_accounting.LaplaceDpEvent(_NOISE),
    )
    with self.assertRaisesRegex(
        ValueError, 'a LaplaceDpEvent, which the ledger cannot charge'
    ):
      private_rounds.check_first_round(
          state,
          sampling=_POISSON,
          settings=private_rounds.PrivacySettings(),
          inherited=ledger.Charges(),
      )


class PrivacySettingsTest(absltest.TestCase):

  def test_noise_under_secret_keys_protects(self):
    secret = private_rounds.PrivacySettings()
    known = private_rounds.PrivacySettings(noise_seed=1)
    none = runs.process_state(
        {}, query_state=(), event=dp_accounting.GaussianDpEvent(0.0)
    )
    self.assertTrue(private_rounds.has_secret_noise(_state(), secret))
    self.assertFalse(private_rounds.has_secret_noise(_state(), known))
    self.assertFalse(private_rounds.has_secret_noise(none, secret))

  def test_the_default_delta_follows_the_largest_charged_population(self):
    own, inherited = (
        accounting.Sampling(kind='poisson', cohort_size=5, population=each)
        for each in (100, 5000)
    )
    charged = [
        accounting.RoundGroup(sampling=inherited, noise_multiplier=1.0)
    ]
    settings = private_rounds.PrivacySettings()
    self.assertEqual(settings.delta_of(own, []), 1e-3)
    self.assertEqual(settings.delta_of(own, charged), 2e-5)
    settings = private_rounds.PrivacySettings(delta=1e-9)
    self.assertEqual(settings.delta_of(own, charged), 1e-9)


class DigestTest(absltest.TestCase):

  def test_covers_names_types_shapes_and_every_bit(self):
    values = [
        {'a': np.float32([1, 2])},
        {'b': np.float32([1, 2])},
        {'a': np.float32([[1, 2]])},
        {'a': np.float32([1, np.nextafter(np.float32(2), np.float32(3))])},
        {'a': np.float32([1, 2]).view(np.int32)},
        {'a': np.float32([0.0, 2])},
        {'a': np.float32([-0.0, 2])},
        {'a': np.float32(1)},
        {'a': np.float64(1)},
        {'a': np.zeros([0], np.float32)},
        {'a': 'text'},
        {'a': b'text'},
        {},
    ]
    found = set(map(private_rounds.digest, values))
    self.assertLen(found, len(values))

  def test_is_the_same_for_the_same_content(self):
    value = collections.OrderedDict(
        a=np.arange(6, dtype=np.float32).reshape(2, 3), b=(np.int64(3), 'x')
    )
    tensors = collections.OrderedDict(
        a=tf.constant(value['a']), b=(np.int64(3), 'x')
    )
    turned = collections.OrderedDict(
        a=np.asfortranarray(value['a']), b=(np.int64(3), 'x')
    )
    same = set(map(private_rounds.digest, (value, tensors, turned)))
    self.assertLen(same, 1)

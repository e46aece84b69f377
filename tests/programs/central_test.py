"""Tests of tff_asr.programs.central."""

import collections
import contextlib
import functools
import os
import time
from typing import Any, NamedTuple
from unittest import mock

import numpy as np
from scipy import stats
import tensorflow as tf
import tensorflow_federated as tff

from tests import cases
from tests import fakes
from tests.programs import runs
from tff_asr import checks
from tff_asr.data import buckets as buckets_lib
from tff_asr.data import client_data
from tff_asr.data import pipeline as pipeline_lib
from tff_asr.learning import central_step
from tff_asr.privacy import keys
from tff_asr.privacy import privacy_report
from tff_asr.programs import central
from tff_asr.storage import metrics_file
from tff_asr.storage import run_dir


class _Evaluation(NamedTuple):
  word_error_rate: float

  def metrics(self) -> dict[str, float]:
    return self._asdict()


class _Evaluator:
  """Gives rates that were made up, and keeps the weights it was given."""

  def __init__(self, *rates: float):
    self._rates = list(rates)
    self.client_data = None
    self.seen = []

  def __call__(self, weights):
    self.seen.append({name: value.numpy() for name, value in weights.items()})
    rate = self._rates.pop(0)
    if np.isnan(rate):
      raise KeyboardInterrupt
    return _Evaluation(rate)


# Runs of the same settings share a step's graph: all state is in the states.
_SHARED_STEPS = mock.patch.object(
    central_step, 'CentralStep', runs.once(central_step.CentralStep)
)


def setUpModule():
  _SHARED_STEPS.start()


def tearDownModule():
  _SHARED_STEPS.stop()


@functools.lru_cache
def _model():
  return fakes.tiny_model(num_blocks=1, dropout=0.2)


@functools.lru_cache
def _pipeline(**settings) -> pipeline_lib.Pipeline:
  return fakes.tiny_pipeline(_model(), max_batch_sec=3.0, **settings)


@functools.lru_cache
def _adam() -> tff.learning.optimizers.Optimizer:
  return tff.learning.optimizers.build_adam(0.01)


def _arguments(**changes) -> dict[str, Any]:
  """Arguments of a run over the fake clients."""
  arguments = dict(
      configuration='SEED = 3\n',
      model=_model(),
      pipeline=_pipeline(),
      client_data=client_data.load(fakes.shared_split(ann=3, bob=4)),
      optimizer=_adam(),
      num_steps=6,
      seed=3,
      evaluate_every=1,
  ) | changes
  return dict(save_every=arguments['evaluate_every']) | arguments


def _train(output_dir: str, evaluator=None, **changes) -> tuple[dict, str]:
  """Results of a run, and what it printed."""
  return runs.train(
      central.CentralTraining,
      output_dir=output_dir,
      evaluator=evaluator,
      **_arguments(**changes),
  )


def _weights(run: str) -> dict[str, np.ndarray]:
  return run_dir.read_model(run, model=_model(), tokens=' abc')


class CentralTest(cases.TestCase):

  def assert_same(self, one, other) -> None:
    for name, value in one.items():
      self.assertEqual(value.tobytes(), other[name].tobytes(), name)

  def test_stops_early_keeps_the_best_and_resumes_exactly(self):
    buckets = buckets_lib.LengthBuckets([0.9, 1.2, 3.0])
    train = functools.partial(
        _train,
        model=fakes.model_of_buckets(_model(), buckets),
        pipeline=fakes.tiny_pipeline(
            _model(), max_batch_sec=3.0, buckets=buckets
        ),
        patience=2,
    )
    # The lowest rate is at step 2; two evaluations later it stops.
    whole = _Evaluator(0.5, 0.4, 0.6, 0.4)
    results, _ = train(self.path('whole'), whole)
    self.assertEqual(results['steps'], 4)
    self.assertEqual(
        results['dev_word_error_rate'], {1: 0.5, 2: 0.4, 3: 0.6, 4: 0.4}
    )
    self.assertLen(whole.seen, 4)
    self.assert_same(_weights(self.path('whole')), whole.seen[1])
    self.assertTrue(
        np.any(whole.seen[1]['head/bias'] != whole.seen[3]['head/bias'])
    )

    # Stopped while it evaluates after step 3, then resumed after step 2.
    first = _Evaluator(0.5, 0.4, np.nan)
    with self.assertRaises(KeyboardInterrupt):
      train(self.path('parts'), first)
    second = _Evaluator(0.6, 0.4)
    # With a new optimizer object, so the step is built and traced again.
    adam = tff.learning.optimizers.build_adam(0.01)
    train(self.path('parts'), second, optimizer=adam)
    self.assert_same(second.seen[0], whole.seen[2])
    self.assert_same(second.seen[1], whole.seen[3])
    self.assert_same(
        _weights(self.path('parts')), _weights(self.path('whole'))
    )

  def test_without_patience_keeps_the_last_weights_and_seeds_other_runs(self):
    evaluator = _Evaluator(0.5, 0.6)
    results, _ = _train(
        self.path('seed'), evaluator, num_steps=3, evaluate_every=2
    )
    self.assertEqual(results['dev_word_error_rate'], {2: 0.5, 3: 0.6})
    self.assert_same(_weights(self.path('seed')), evaluator.seen[1])

    # From the seed, at a rate of 0: the weights of the seed.
    other = _Evaluator(0.5, 0.5)
    _train(
        self.path('other'),
        other,
        num_steps=3,
        evaluate_every=2,
        pipeline=fakes.tiny_pipeline(_model(), max_batch_sec=30.0),
        init_from_run=self.path('seed'),
        optimizer=tff.learning.optimizers.build_sgdm(0.0),
    )
    self.assert_same(other.seen[0], _weights(self.path('seed')))
    # All 7 utterances are a batch.
    self.assertEqual(
        metrics_file.read(self.path('other/metrics.csv'))['num_utterances'],
        {2: 14, 3: 7},
    )

  def test_seed_and_gradient_clip_reach_the_training(self):
    # At a rate of 1 a step moves the weights by the clipped gradient.
    norms, weights = [], []
    for name, changes in (
        ('seed', dict(seed=4)),
        ('clip', dict(max_grad_norm=1e-3)),
    ):
      _train(
          self.path(name),
          num_steps=1,
          optimizer=tff.learning.optimizers.build_sgdm(1.0),
          **changes,
      )
      weights.append(_weights(self.path(name)))
      initial = _model().initialize(tf.constant([changes.get('seed', 3), 0]))
      norms.append(
          np.sqrt(
              sum(
                  np.sum((weights[-1][key] - initial[key]) ** 2)
                  for key in initial
              )
          )
      )
    np.testing.assert_allclose(norms, [1.0, 1e-3], rtol=1e-2)
    self.assertTrue(
        np.any(weights[0]['head/kernel'] != weights[1]['head/kernel'])
    )

  def test_the_encoder_waits_and_then_steps_at_its_rate(self):
    start = self.path('pretrained')
    before = runs.write_pretrained(start, model=_model(), num_steps=2)
    settings = dict(
        num_steps=3,
        init_from_run=start,
        encoder_frozen_steps=2,
        encoder_rate=0.25,
        optimizer=tff.learning.optimizers.build_sgdm(0.1),
        max_grad_norm=1e9,
    )
    evaluator = _Evaluator(0.5, 0.4, 0.3)
    _, printed = _train(self.path('run'), evaluator, **settings)
    self.assertIn('pre-trained encoder without a CTC head', printed)
    moved = [
        {name: np.any(seen[name] != before[name]) for name in before}
        for seen in evaluator.seen
    ]
    self.assertFalse(any([*moved[0].values(), *moved[1].values()]))
    self.assertTrue(all(moved[2].values()), moved[2])
    head = [seen['head/kernel'] for seen in evaluator.seen]
    self.assertTrue(np.any(head[0] != head[1]))

    # At a rate of 1 the third step is four times as long.
    full = _Evaluator(0.5, 0.4, 0.3)
    _train(self.path('full'), full, **settings | dict(encoder_rate=1.0))
    for name in before:
      np.testing.assert_allclose(
          4 * (evaluator.seen[2][name] - before[name]),
          full.seen[2][name] - before[name],
          atol=1e-6,
          err_msg=name,
      )

    # Stopped as the encoder begins: the same bits.
    for rates in ((0.5, 0.4, np.nan), (0.3,)):
      with contextlib.suppress(KeyboardInterrupt):
        _train(self.path('parts'), _Evaluator(*rates), **settings)
    self.assert_same(
        _weights(self.path('parts')), _weights(self.path('run'))
    )

  def test_the_privacy_loss_of_pretraining_is_reported_with_the_model(self):
    start = self.path('pretrained')
    runs.write_pretrained(start, model=_model(), num_steps=1)
    settings = dict(num_steps=1, init_from_run=start)
    results, printed = _train(self.path('run'), **settings)
    privacy = results['privacy']
    self.assertEqual(
        (privacy['privacy_unit'], privacy['rounds']), ('example', 1)
    )
    self.assertEqual(privacy['inherited_rounds'], 1)
    self.assertIn('Privacy of each example: ', printed)
    # Started again when it is over.
    again, _ = _train(self.path('run'), **settings)
    self.assertEqual(again['privacy'], privacy)
    epsilons = [
        privacy_report.of_ledger(run_dir.read_ledger(run), delta=1e-5).epsilon
        for run in (self.path('run'), start)
    ]
    self.assertEqual(*epsilons)

  def test_all_bad_settings_are_named_together(self):
    with self.assertRaises(checks.Problems) as caught:
      _train(
          self.path('run'),
          num_steps=0,
          evaluate_every=0,
          save_every=1,
          patience=0,
          max_grad_norm=-1.0,
          encoder_rate=0.0,
          encoder_frozen_steps=-1,
          num_loaders=0,
          unaugmented_steps=-1,
          init_from_run=self.path('run'),
      )
    messages = caught.exception.messages
    self.assertLen(messages, 9)
    for part in (
        'num_steps', 'num_loaders', 'unaugmented_steps', 'max_grad_norm',
        'encoder_rate', 'encoder_frozen_steps', 'patience must',
        'evaluate_every', 'contains no trained model',
    ):
      self.assertIn(part, '\n'.join(messages))
    with self.assertRaisesRegex(ValueError, 'patience needs an evaluator'):
      _train(self.path('run'), patience=1)
    self.assertFalse(os.path.exists(self.path('run')))

  def training(self, **changes) -> central.CentralTraining:
    # Chunks of 3, 3 and 1 utterances; batches of one or two.
    pipeline = _pipeline(chunk_size=3)
    return runs.build(
        central.CentralTraining,
        output_dir=self.path('unused'),
        **_arguments(**dict(pipeline=pipeline) | changes),
    )

  def samples(self, position: central.DataPosition, count: int, **changes):
    """The next `count` (position, batches) from a position on."""
    training = self.training(**changes)
    found = []
    for _ in range(count):
      before = position
      batches, position = training.sample(position)
      found.append((before, [
          {key: v.numpy() for key, v in batch.items()} for batch in batches
      ]))
    return found

  def ids(self, batches):
    """Utterances of some batches, in order."""
    return [
        name.decode() for batch in batches for name in batch['utterance_id']
    ]

  def test_each_permutation_of_few_records_is_as_likely_as_another(self):
    key = keys.from_seed(0)
    counts = collections.Counter(
        tuple(central.permutation(4, key=key, pass_num=number))
        for number in range(6000)
    )
    self.assertLen(counts, 24)
    # A fixed seed; by chance below 1e-4 once in 10,000 seeds.
    self.assertGreater(stats.chisquare(list(counts.values())).pvalue, 1e-4)

  def test_passes_have_all_utterances_of_all_speakers_in_their_own_orders(self):
    found = self.samples(_position(), 21)  # At least an utterance each.
    ids = self.ids(batch for _, (batch,) in found)
    every = [f'ann-{i}' for i in range(3)] + [f'bob-{i}' for i in range(4)]
    passes = [ids[start : start + 7] for start in (0, 7, 14)]
    for one in passes:
      self.assertEqual(sorted(one), every)
    self.assertLen(set(map(tuple, passes)), 3)
    seeds = [tuple(batch['seed']) for _, (batch,) in found]
    self.assertLen(set(seeds), len(seeds))
    other = self.samples(_position(), 6, seed=4)
    self.assertNotEqual(
        self.ids(batch for _, (batch,) in other)[:7], passes[0]
    )

  def test_each_loader_has_every_nth_utterance_and_packs_its_own_chunks(self):
    # Of ann-0 ann-1 ann-2 bob-0 bob-1 bob-2 bob-3, given to 3 in turn.
    parts = (
        ['ann-0', 'bob-0', 'bob-3'], ['ann-1', 'bob-1'], ['ann-2', 'bob-2']
    )
    # A chunk is a whole part, and all of it fits into a batch.
    pipeline = fakes.tiny_pipeline(_model(), max_batch_sec=30.0, chunk_size=3)
    # All loaders share a trace.
    counted = fakes.counted(pipeline_lib.Pipeline, 'pack', 'slice_batch')
    with counted as calls:
      found = self.samples(_position(3), 4, num_loaders=3, pipeline=pipeline)
    self.assertEqual(calls, dict(pack=1, slice_batch=1))
    for step, (place, batches) in enumerate(found):
      self.assertEqual(place.step, step)
      for batch, part in zip(batches, parts, strict=True):
        self.assertCountEqual(self.ids([batch]), part)
        np.testing.assert_array_equal(batch['seed'], batches[0]['seed'])
    seeds = {tuple(batches[0]['seed']) for _, batches in found}
    self.assertLen(seeds, 4)
    # With chunks of 2 the first loader alone has two of them in a pass.
    pipeline = fakes.tiny_pipeline(_model(), max_batch_sec=30.0, chunk_size=2)
    found = self.samples(_position(3), 3, num_loaders=3, pipeline=pipeline)
    self.assertCountEqual(
        self.ids([found[0][1][0], found[1][1][0]]), parts[0]
    )
    self.assertEqual(
        [place.chunk.tolist() for place, _ in found],
        [[0, 0, 0], [0, 0, 0], [1, 1, 1]],
    )
    with self.assertRaisesRegex(ValueError, 'num_loaders 8 .* found 7'):
      self.training(num_loaders=8)

  def test_no_two_loaders_passes_nor_runs_share_masks_seeds_or_orders(self):
    def mark(features, lengths, seed):
      marks = tf.random.stateless_uniform([tf.size(lengths), 1, 80], seed)
      return tf.concat([marks, features[:, 1:]], axis=1)

    # A chunk is an utterance: a loader's draws show its order. They have 4
    # utterances and 3.
    pipeline = _pipeline(chunk_size=1, augment=mark)
    marks, seeds, orders = [], [], []
    for seed in (3, 4):
      found = self.samples(
          _position(2), 24, num_loaders=2, pipeline=pipeline, seed=seed
      )
      for loader, size in enumerate((4, 3)):
        batches = [batches[loader] for _, batches in found]
        marks += [batch['features'][0, 0, 0] for batch in batches]
        names = self.ids(batches)
        places = sorted(set(names))
        self.assertLen(places, size)
        # The order of the first three utterances in six passes: another loader
        # or run would have the same by chance one time in 6^6.
        orders.append(tuple(
            place
            for place in map(places.index, names[: 6 * size])
            if place < 3
        ))
      seeds += [tuple(batches[0]['seed']) for _, batches in found]
    for draws in (marks, seeds, orders):
      self.assertLen(set(draws), len(draws))

  def test_resumes_at_any_position_without_reading_what_lies_before(self):
    # Chunk 100,000 belongs to pass 33,333 at least: hundreds of thousands of
    # utterances lie before it.
    for num_loaders, chunk, numbers in ((1, 0, (1, 5)), (3, 100_000, (5,))):
      whole = self.samples(
          _position(num_loaders, chunk), 7, num_loaders=num_loaders
      )
      for number in numbers:
        started = time.process_time()
        parts = self.samples(
            whole[number][0], 7 - number, num_loaders=num_loaders
        )
        self.assertLess(time.process_time() - started, 10)
        self.assert_same_batches(parts, whole[number:])

  def assert_same_batches(self, some, others):
    tf.nest.map_structure(
        np.testing.assert_array_equal,
        *([batches for _, batches in found] for found in (some, others)),
    )

  def test_spec_augment_begins_after_the_unaugmented_steps(self):
    def masked(features, lengths, seed):
      del lengths, seed
      return tf.zeros_like(features)

    pipeline = fakes.tiny_pipeline(
        _model(), max_batch_sec=3.0, chunk_size=3, augment=masked
    )
    changes = dict(num_loaders=2, pipeline=pipeline)
    whole = self.samples(_position(2), 5, unaugmented_steps=2, **changes)
    always = self.samples(_position(2), 5, **changes)
    for step, ((_, ours), (_, other)) in enumerate(zip(whole, always)):
      for one, two in zip(ours, other, strict=True):
        self.assertEqual(self.ids([one]), self.ids([two]))
        np.testing.assert_array_equal(one['seed'], two['seed'])
        self.assertEqual(bool(np.any(one['features'])), step < 2)
        self.assertFalse(np.any(two['features']))
    # Resumed before the last of these steps.
    parts = self.samples(whole[1][0], 4, unaugmented_steps=2, **changes)
    self.assert_same_batches(parts, whole[1:])

  def test_several_loaders_train_and_resume_in_the_same_bits(self):
    settings = dict(num_loaders=2, unaugmented_steps=1, num_steps=2)
    _train(self.path('whole'), _Evaluator(0.5, 0.5), **settings)
    # 7 utterances in 2 chunks, each a pass of its loader, of several batches.
    trained = metrics_file.read(self.path('whole/metrics.csv'))[
        'num_utterances'
    ]
    self.assertBetween(trained[1], 2, 7)
    with self.assertRaises(KeyboardInterrupt):
      _train(self.path('parts'), _Evaluator(0.5, np.nan), **settings)
    _train(self.path('parts'), _Evaluator(0.5), **settings)
    self.assert_same(
        _weights(self.path('parts')), _weights(self.path('whole'))
    )


def _position(num_loaders: int = 1, chunk: int = 0) -> central.DataPosition:
  """The beginning of a chunk."""
  return central.DataPosition(
      np.int64(0),
      np.full([num_loaders], chunk, np.int64),
      np.zeros([num_loaders], np.int64),
  )

"""Tests of training on the clients' own transcriptions (`client_update`)."""

from collections.abc import Mapping
import dataclasses
import functools
import math

from absl.testing import parameterized
import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tests import fakes
from tests import reference
from tests.learning import federated_twin
from tests.learning import tiny
from tff_asr.data import buckets as buckets_lib
from tff_asr.execution import native
from tff_asr.features import spec_augment
from tff_asr.learning import client_update
from tff_asr.learning import fed_avg
from tff_asr.models import subspace
from tff_asr.models import weights as weights_lib

_NUM_UTTERANCES = {'ann': 3, 'bob': 5, 'cai': 1}
_SEED = 7
_NUM_STEPS = 3
# So much that the model says something else after a step.
_LEARNING_RATE = 1.0
_BUCKETS = buckets_lib.LengthBuckets([0.6, 1.1, 1.6, 3.0])


def _augment(features, lengths, seed):
  """SpecAugment, so wide that the model transcribes something else."""
  masked = spec_augment.build(
      num_freq_masks=4,
      max_freq_width=60,
      num_time_masks=4,
      max_time_share=0.5,
  )
  return masked(features, lengths, seed)


@functools.cache
def _model():
  return tiny.recognizer(dropout=0.3)


@functools.cache
def _subspace():
  return subspace.build(model=_model(), rank=9)


@functools.cache
def _model_of_buckets():
  return fakes.model_of_buckets(_model(), _BUCKETS)


@functools.cache
def _weights():
  """What a process with `_SEED` begins with."""
  seed = tf.constant(weights_lib.seed_pair(_SEED))
  return _model().initialize(seed)


def _local(**settings) -> client_update.LocalTraining:
  return client_update.LocalTraining(
      **dict(
          learning_rate=_LEARNING_RATE,
          max_grad_norm=5.0,
          num_steps=_NUM_STEPS,
      ) | settings
  )


@functools.cache
def _client(build_model=None, buckets=None, frozen=(), **settings):
  """A client's local steps on utterances: traced once for any transcripts."""
  model = (build_model or _model)()
  pipeline = fakes.tiny_pipeline(model, augment=_augment, buckets=buckets)
  take_steps = client_update.build_local_steps(
      model, pipeline, _local(**settings), frozen
  )

  @tf.function
  def train(weights, seed, columns):
    examples = tf.data.Dataset.from_tensor_slices(columns)
    client = pipeline.open_client(examples, seed=seed)
    return take_steps(weights, client)

  return train


def _train(client_id, transcripts=None, *, weights=None, **settings):
  """Weights after the client's steps, by name; and the totals."""
  examples = fakes.examples(client_id, _NUM_UTTERANCES[client_id])
  longest = max(len(example['waveform']) for example in examples)
  columns = dict(
      client_id=[client_id] * len(examples),
      length=[len(example['waveform']) for example in examples],
      transcript=[
          (transcripts or {}).get(example['utterance_id'], 'abba')
          for example in examples
      ],
      utterance_id=[example['utterance_id'] for example in examples],
      waveform=np.stack([
          np.pad(each['waveform'], (0, longest - len(each['waveform'])))
          for each in examples
      ]),
  )
  weights, totals = _client(**settings)(
      weights or _weights(),
      # That of the first round.
      tf.random.fold_in(weights_lib.seed_pair(_SEED), 0),
      {name: tf.constant(value) for name, value in columns.items()},
  )
  return {name: value.numpy() for name, value in weights.items()}, {
      name: value.numpy() for name, value in totals.items()
  }


def _heard(weights=None, model=None, augment=None) -> dict[str, tuple]:
  """Text and confidence of each utterance, from the logits in NumPy."""
  model, heard = model or _model(), {}
  front_end = fakes.tiny_pipeline(model).front_end
  for client_id, count in _NUM_UTTERANCES.items():
    for example in fakes.examples(client_id, count):
      waveform = example['waveform']
      features, lengths = front_end.features(
          tf.constant(waveform[np.newaxis]), tf.constant([len(waveform)])
      )
      if augment:
        features = augment(features, lengths, [3, 4])
      logits, (length,) = model.logits(weights or _weights(), features, lengths)
      probabilities = reference.softmax(
          logits[0, :length].numpy().astype(np.float64)
      )
      path = probabilities.argmax(-1)
      tokens = reference.collapse(path, blank=4)
      emitted = [
          row[best]
          for row, best, last in zip(probabilities, path, [-1, *path])
          if best not in (4, last)
      ]
      assert len(emitted) == len(tokens)
      confidence = math.prod(emitted) ** (1 / max(len(emitted), 1))
      heard[example['utterance_id']] = (
          ''.join(' abc'[token] for token in tokens),
          confidence if emitted else 0.0,
      )
  return heard


def _texts(heard: Mapping[str, tuple]) -> dict[str, str]:
  return {name: text for name, (text, _) in heard.items()}


def tearDownModule():
  for each in (_client, _model, _model_of_buckets, _subspace, _weights):
    each.cache_clear()


class PseudoLabelsTest(parameterized.TestCase):

  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    cls.heard = _heard()
    cls.texts = _texts(cls.heard)
    # Otherwise some tests below could not fail.
    assert all(cls.texts.values()), cls.heard
    assert cls.texts != _texts(_heard(augment=_augment))
    confidence = lambda client_id: sorted(
        each
        for name, (_, each) in cls.heard.items()
        if name.startswith(client_id)
    )
    cls.confidences = {name: confidence(name) for name in _NUM_UTTERANCES}
    # One client is below the gate; of another one, some utterances are.
    cls.below = min(_NUM_UTTERANCES, key=lambda name: cls.confidences[name][-1])
    cls.gate = cls.confidences[cls.below][-1] + 1e-4

  def assert_equal(self, found, expected):
    for name, value in expected.items():
      np.testing.assert_array_equal(found[name], value, name)

  def test_labels_are_what_the_incoming_model_transcribes_unmasked(self):
    # Bit by bit, in three steps, with masks and dropout for the student alone.
    for client_id in ('ann', 'bob'):
      found, counts = _train(client_id, pseudo_labels=True)
      expected, supervised = _train(client_id, self.texts)
      self.assert_equal(found, expected)
      self.assert_equal(counts, supervised)
      self.assertEqual(counts['num_left_out'], 0)
      other, _ = _train(client_id, dict.fromkeys(self.texts, 'abba'))
      self.assertFalse(np.array_equal(other['head/bias'], found['head/bias']))
      # The student's own labels would have been others after a step.
      self.assertNotEqual(self.texts, _texts(_heard(found)))

  def test_transcripts_are_not_read(self):
    expected, totals = _train('bob', self.texts, pseudo_labels=True)
    # The last one has no tokens, and raises where it is encoded.
    for transcript in ('', 'cab cab', 'Grüße!'):
      found, counts = _train(
          'bob', dict.fromkeys(self.texts, transcript), pseudo_labels=True
      )
      self.assert_equal(found, expected)
      self.assert_equal(counts, totals)
    with self.assertRaisesRegex(tf.errors.OpError, 'not a token'):
      _train('bob', dict.fromkeys(self.texts, 'Grüße!'))

  def test_utterances_below_the_gate_are_left_out(self):
    settings = dict(pseudo_labels=True, min_confidence=self.gate)
    split = []
    for client_id, confidences in self.confidences.items():
      after, totals = _train(client_id, **settings)
      # All of ann's and cai's utterances are in each step; not so bob's.
      kept = sum(each >= self.gate for each in confidences)
      if client_id != 'bob':
        self.assertEqual(totals['num_utterances'], _NUM_STEPS * kept)
        self.assertEqual(
            totals['num_left_out'], _NUM_STEPS * (len(confidences) - kept)
        )
      if 0 < kept < len(confidences):
        split.append(client_id)
      if client_id == self.below:
        self.assertEqual((kept, totals['num_frames']), (0, 0))
        self.assertEqual((totals['loss_sum'], totals['last_loss']), (0, 0))
        self.assert_equal(
            after, {name: each.numpy() for name, each in _weights().items()}
        )
      else:
        self.assertFalse(
            np.array_equal(after['head/bias'], _weights()['head/bias'])
        )
    self.assertNotEmpty(split)

  def test_the_gate_and_labels_of_a_batch_agree_with_the_twin(self):
    model, local = _model(), _local(
        pseudo_labels=True, min_confidence=self.gate
    )
    pipeline = local.client_pipeline(fakes.tiny_pipeline(model))
    transcribe = client_update._build_transcribe(model, pipeline, local)
    seen = 0
    for client_id, count in _NUM_UTTERANCES.items():
      for example in fakes.examples(client_id, count):
        client = pipeline.open_client(
            pipeline.with_lengths(
                tf.data.Dataset.from_tensors(
                    {k: tf.constant(v) for k, v in example.items()}
                )
            ),
            seed=tf.constant([1, 2]),
        )
        chunk = pipeline.pack(
            pipeline.read_chunk(client, tf.constant(0)),
            seed=tf.constant([1, 2]),
        )
        batch = pipeline.slice_batch(
            chunk,
            tf.constant(0),
            transcribe=functools.partial(transcribe, _weights()),
        )
        text, confidence = self.heard[example['utterance_id']]
        passes = confidence >= self.gate
        seen += passes
        labels = [' abc'.index(each) for each in text] if passes else []
        self.assertEqual(batch['labels'].numpy().tolist(), [labels])
        self.assertEqual(batch['label_lengths'].numpy().tolist(), [len(labels)])
        self.assertEqual(batch['example_weights'].numpy().tolist(), [passes])
    self.assertBetween(seen, 1, 8)
    # The last one is too long for another pipeline, and stays a placeholder.
    pipeline = dataclasses.replace(pipeline, max_utterance_sec=0.1)
    chunk = pipeline.pack(
        pipeline.read_chunk(client, tf.constant(0)), seed=tf.constant([1, 2])
    )
    batch = pipeline.slice_batch(
        chunk,
        tf.constant(0),
        transcribe=lambda features, lengths: (
            tf.constant([[1, 2]]), tf.constant([2]), tf.constant([True])
        ),
    )
    self.assertEqual(batch['example_weights'].numpy().tolist(), [0.0])
    self.assertEqual(batch['label_lengths'].numpy().tolist(), [0])

  def test_a_subspace_and_frozen_layers(self):
    model = _subspace()
    weights = model.initialize(tf.constant([5, 6]))
    settings = dict(
        build_model=_subspace,
        weights=weights,
        frozen=(
            'head/bias', 'head/kernel', *subspace.fixed_weights(model)
        ),
    )
    found, _ = _train('ann', pseudo_labels=True, **settings)
    texts = _texts(_heard(weights, model))
    self.assertTrue(all(texts[f'ann-{i}'] for i in range(3)))
    expected, _ = _train('ann', texts, **settings)
    self.assert_equal(found, expected)
    self.assertEqual(
        {name for name in found if np.any(found[name] != weights[name])},
        {'front/bias', 'front/kernel/coordinates'},
    )

  def test_buckets_bound_the_sizes_at_which_is_transcribed(self):
    # The model raises at any other size.
    settings = dict(build_model=_model_of_buckets, buckets=_BUCKETS)
    found, totals = _train('bob', pseudo_labels=True, **settings)
    expected, _ = _train('bob', self.texts, **settings)
    self.assert_equal(found, expected)
    self.assertEqual(totals['num_left_out'], 0)


class RoundTest(parameterized.TestCase):
  """Through TFF."""

  def run_round(self, gate, context=None):
    model = _model()
    process = fed_avg.build(
        model=model,
        pipeline=fakes.tiny_pipeline(model, augment=_augment),
        client_data=fakes.client_data(_NUM_UTTERANCES),
        aggregator=fakes.clipped_mean(
            cohort_size=3, clip=math.inf, split='global'
        ),
        server_optimizer=tff.learning.optimizers.build_sgdm(1.0),
        local=_local(pseudo_labels=True, min_confidence=gate),
        seed=_SEED,
    )
    (before, after), (metrics,) = federated_twin.run(
        process, [[*_NUM_UTTERANCES]], context=context
    )
    return before, after, metrics['client_work']

  def check(self, context=None):
    heard = _heard()
    most = {
        client_id: max(
            confidence
            for name, (_, confidence) in heard.items()
            if name.startswith(client_id)
        )
        for client_id in _NUM_UTTERANCES
    }
    gate = min(most.values()) + 1e-4
    before, after, counts = self.run_round(gate, context)
    self.assertEqual((counts['num_clients'], counts['num_trained']), (3, 2))
    trained = [
        _train(client_id, pseudo_labels=True, min_confidence=gate)
        for client_id in _NUM_UTTERANCES
    ]
    for name, value in before.items():
      np.testing.assert_array_equal(value, _weights()[name])
      # A client below the gate is counted in the divisor, and adds zeros.
      change = sum(weights[name] - value for weights, _ in trained) / 3
      np.testing.assert_allclose(after[name] - value, change, atol=1e-4)
    for name in ('num_utterances', 'num_left_out', 'loss_sum'):
      np.testing.assert_allclose(
          counts[name], sum(totals[name] for _, totals in trained), rtol=1e-5
      )

  def test_a_round_is_the_mean_over_all_clients(self):
    self.check()

  @pytest.mark.slow
  def test_the_native_runtime_gives_the_same(self):
    self.check(native.build_sync_context(trust_network=True))
    native.stop()


class ArgumentsTest(parameterized.TestCase):

  @parameterized.named_parameters(
      ('gate', dict(pseudo_labels=True, min_confidence=1.1), 'min_confidence'),
      ('alone', dict(min_confidence=0.5), 'PSEUDO_LABELS = True, or MIN_CONFI'),
  )
  def test_bad_settings_are_named(self, settings, message):
    with self.assertRaisesRegex(ValueError, message):
      _local(**settings)

  @parameterized.named_parameters(
      ('no_tokens', dict(tokenizer=None), 'TOKENIZER is None'),
      (
          'waveforms',
          dict(augment_waveform=lambda *args: args[:2]),
          'AUGMENT_WAVEFORM changes them earlier',
      ),
  )
  def test_pipelines_that_do_not_go_with_it_are_named(self, settings, message):
    pipeline = fakes.tiny_pipeline(_model(), **settings)
    self.assertIs(_local().client_pipeline(pipeline), pipeline)
    with self.assertRaisesRegex(ValueError, message):
      client_update.build_local_steps(
          _model(), pipeline, _local(pseudo_labels=True)
      )


if __name__ == '__main__':
  tf.test.main()

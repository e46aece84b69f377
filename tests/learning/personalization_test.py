"""Tests of tff_asr.learning.personalization."""

import collections
import functools

from absl.testing import absltest
from absl.testing import parameterized
import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tests import fakes
from tests.execution import toys
from tests.learning import tiny
from tff_asr.data import pipeline as pipeline_lib
from tff_asr.execution import native
from tff_asr.features import front_end as front_end_lib
from tff_asr.learning import client_update
from tff_asr.learning import personalization
from tff_asr.models import weights as weights_lib
from tff_asr.programs import evaluation
from tff_asr.text import tokenizer as tokenizer_lib

_NO_CLIP = 1e9


def _sorted(found):
  """Rows in the order of the clients' ids."""
  order = np.argsort(found['client_id'])
  return {name: np.asarray(value)[order] for name, value in found.items()}


def _examples(client_id, *, features, transcripts):
  """A client's examples with stored features float16 [n, 1, F]."""
  return dict(
      client_id=[client_id] * len(transcripts),
      features=np.asarray(features, np.float16)[:, np.newaxis],
      transcript=transcripts,
      utterance_id=[f'{client_id}-{i}' for i in range(len(transcripts))],
  )


def _pipeline(*, batch_size, feature_dim, characters):
  """Batches of so many utterances, each of one frame and one sample."""
  front_end = front_end_lib.FrontEnd(
      identity='one sample a frame',
      feature_dim=feature_dim,
      frame_shift=1,
      window=1,
      compute=None,
      placeholder_frames=1,
  )
  return pipeline_lib.Pipeline(
      tokenizer=tokenizer_lib.CharTokenizer(characters),
      output_lengths=lambda lengths: lengths,
      max_batch_sec=batch_size / 16000,
      max_utterance_sec=1 / 16000,
      front_end=front_end,
  )


class _LinearRegression:
  """TFF's example: y = a x + b, the squared error; labels are y."""

  specs = {'a': weights_lib.WeightSpec((2, 1)), 'b': weights_lib.zeros_spec(1)}

  def initialize(self, seed):
    return weights_lib.initialize(self.specs, seed)

  def loss(self, weights, features, feature_lengths, labels, *unused):
    predicted = features[:, 0] @ weights['a'] + weights['b']
    return tf.square(predicted - tf.cast(labels, tf.float32))[:, 0]

  def measure(self, weights, batch):
    losses = self.loss(
        weights, batch['features'], batch['feature_lengths'], batch['labels']
    )
    return collections.OrderedDict(
        loss=tf.reduce_sum(losses), num_test_examples=tf.size(losses)
    )


def _build_tff_model():
  """The same as a TFF model."""
  model = tf.keras.Sequential([
      tf.keras.layers.Input((2,)),
      tf.keras.layers.Dense(1, kernel_initializer='zeros'),
  ])
  return tff.learning.models.from_keras_model(
      model,
      input_spec=collections.OrderedDict(
          x=tf.TensorSpec([None, 2], tf.float32),
          y=tf.TensorSpec([None, 1], tf.float32),
      ),
      loss=tf.keras.losses.MeanSquaredError(),
  )


@tf.function
def _evaluate_with_tff(model, dataset):
  loss_sum, count = 0.0, 0
  for batch in iter(dataset.batch(1)):
    predicted = model.predict_on_batch(batch['x'], training=False)
    loss_sum += tf.reduce_sum(tf.square(predicted - batch['y']))
    count += tf.size(predicted)
  return collections.OrderedDict(loss=loss_sum, num_test_examples=count)


def _build_tff_strategy(learning_rate, batch_size):
  optimizer = tf.keras.optimizers.legacy.SGD(learning_rate)

  @tf.function
  def personalize(model, train_data, test_data):
    for batch in iter(train_data.batch(batch_size)):
      with tf.GradientTape() as tape:
        loss = model.forward_pass(batch).loss
      variables = model.trainable_variables
      optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables))
    return _evaluate_with_tff(model, test_data)

  return personalize


class EqualToTffTest(absltest.TestCase):
  """TFF's own example: two clients, whose points differ in their scale."""

  def examples(self):
    # Labels 1 and 2 are the characters b and c.
    x = np.array([[-1.0, -1.0], [1.0, 1.0], [1.0, 1.0], [-1.0, 1.0]] * 2)
    return {
        'one': _examples('one', features=x, transcripts=['b'] * 8),
        'two': _examples('two', features=2 * x, transcripts=['c'] * 8),
    }

  def divided(self, pipeline, adaptation, data, client_id):
    """The client's two parts, in the order in which it trains."""
    client = pipeline.open_client(
        pipeline.with_lengths(data.create_tf_dataset_for_client(client_id)),
        seed=tf.constant(weights_lib.seed_pair(adaptation.seed)),
    )
    held_out, rest = personalization.divide(
        client, adaptation.evaluation_share
    )
    train = pipeline.select(client, rest, num_epochs=1)
    batches = []
    for number in range(train.num_chunks):
      chunk = pipeline.pack(
          pipeline.read_chunk(train, number),
          seed=tf.random.fold_in(train.seed, number),
      )
      batches += [
          pipeline.slice_batch(chunk, n)
          for n in range(pipeline_lib.num_batches(chunk))
      ]
    points = lambda features, labels: tf.data.Dataset.from_tensor_slices(
        collections.OrderedDict(
            x=np.asarray(features, np.float32)[:, 0],
            y=np.asarray(labels, np.float32),
        )
    )
    labels = pipeline.tokenizer.encode(client.rows['transcript']).to_tensor()
    return collections.OrderedDict(
        train_data=points(
            np.concatenate([batch['features'] for batch in batches]),
            np.concatenate([batch['labels'] for batch in batches]),
        ),
        test_data=points(
            tf.gather(client.rows['features'], held_out),
            tf.gather(labels, held_out),
        ),
    )

  def test_on_its_example(self):
    batch_size = 2
    model = _LinearRegression()
    data = tff.simulation.datasets.TestClientData(self.examples())
    pipeline = _pipeline(
        batch_size=batch_size, feature_dim=2, characters='abc'
    )
    adaptation = personalization.Adaptation(
        local=client_update.LocalTraining(
            learning_rate=0.3, num_epochs=1, max_grad_norm=_NO_CLIP
        ),
    )
    ours = _sorted(toys.invoke(
        personalization.build(
            model=model,
            pipeline=pipeline,
            client_data=data,
            adaptation=adaptation,
            measure=model.measure,
        ),
        model.initialize([0, 0]),
        ['one', 'two'],
    ))
    evaluate = tff.learning.algorithms.build_personalization_eval_computation(
        _build_tff_model,
        collections.OrderedDict(
            adapted=functools.partial(_build_tff_strategy, 0.3, batch_size)
        ),
        _evaluate_with_tff,
    )
    # One client at a time, because the rows are in no particular order.
    for row, client_id in enumerate(('one', 'two')):
      part = self.divided(pipeline, adaptation, data, client_id)
      theirs = toys.invoke(
          evaluate,
          tff.learning.models.ModelWeights(
              [np.zeros([2, 1], np.float32), np.zeros([1], np.float32)], []
          ),
          [part],
      )
      for name in ('loss', 'num_test_examples'):
        np.testing.assert_allclose(
            ours[name][row],
            [theirs[of][name][0] for of in ('baseline_metrics', 'adapted')],
            rtol=1e-6,
        )
    np.testing.assert_array_equal(ours['num_adapted'], [[0, 4], [0, 4]])
    # The two differ, and adapting changes both.
    self.assertLen(set(ours['loss'].ravel()), 4)


class _Seen:
  """Weights that a step on a label makes negative: they show what was seen."""

  def __init__(self, num_labels):
    self.specs = {'seen': weights_lib.zeros_spec(num_labels)}

  def initialize(self, seed):
    return weights_lib.initialize(self.specs, seed)

  def loss(self, weights, features, feature_lengths, labels, *unused):
    return tf.gather(weights['seen'], labels[:, 0])

  def measure(self, weights, batch):
    is_seen = weights['seen'] < 0
    count = lambda these: tf.reduce_sum(tf.cast(these, tf.int64))
    return collections.OrderedDict(
        evaluated=tf.reduce_sum(
            tf.one_hot(
                batch['labels'][:, 0], tf.size(is_seen), dtype=tf.int64
            ),
            axis=0,
        ),
        evaluated_and_seen=count(tf.gather(is_seen, batch['labels'][:, 0])),
        # Summed over batches of one utterance each.
        seen=tf.cast(is_seen, tf.int64),
    )


_CHARACTERS = 'abcdefghij'


@functools.lru_cache
def _seen(num_utterances, *, seed=1, share=0.4, num_steps=None):
  """Rows of clients with 10, 3, 2 and 1 utterances of different labels."""
  model = _Seen(len(_CHARACTERS))
  data = tff.simulation.datasets.TestClientData({
      client_id: _examples(
          client_id,
          features=np.ones([count, 1]),
          transcripts=list(_CHARACTERS[:count]),
      )
      for client_id, count in (('a', 10), ('b', 3), ('c', 2), ('d', 1))
  })
  local = client_update.LocalTraining(
      learning_rate=1.0,
      num_epochs=None if num_steps else 1,
      num_steps=num_steps,
  )
  computation = personalization.build(
      model=model,
      pipeline=_pipeline(batch_size=1, feature_dim=1, characters=_CHARACTERS),
      client_data=data,
      adaptation=personalization.Adaptation(
          local=local,
          num_utterances=num_utterances,
          evaluation_share=share,
          seed=seed,
      ),
      measure=model.measure,
  )
  found = toys.invoke(
      computation, model.initialize([0, 0]), ['d', 'b', 'a', 'c']
  )
  return _sorted(found)


class PartsTest(absltest.TestCase):

  def test_no_client_is_evaluated_on_what_it_adapted_on(self):
    rows = _seen((1, 4, None))
    np.testing.assert_array_equal(rows['evaluated_and_seen'], np.zeros([4, 4]))
    # The same utterances before and after, each once.
    for before, *after in rows['evaluated']:
      self.assertEqual(max(before), 1)
      for each in after:
        np.testing.assert_array_equal(each, before)
    # All of the second part is what is not evaluated on.
    for evaluated, seen, count in zip(
        rows['evaluated'][:, -1], rows['seen'][:, -1], (10, 3, 2, 1)
    ):
      in_parts = (evaluated > 0).astype(int) + (seen > 0)
      np.testing.assert_array_equal(in_parts, [1] * count + [0] * (10 - count))

  def test_a_client_adapts_on_as_many_as_it_is_told_or_has(self):
    rows = _seen((1, 4, None))
    expected = [[0, 1, 4, 6], [0, 1, 2, 2], [0, 1, 1, 1], [0, 0, 0, 0]]
    np.testing.assert_array_equal(rows['num_adapted'], expected)
    # The weights show as many, after the sum over the evaluated batches.
    num_evaluated = np.sum(rows['evaluated'], axis=2)
    np.testing.assert_array_equal(num_evaluated[:, 0], [4, 1, 1, 1])
    seen = np.sum(rows['seen'], axis=2) // num_evaluated
    np.testing.assert_array_equal(seen, expected)

  def test_each_copy_begins_with_the_broadcast_weights(self):
    one, other = _seen((1, 4, None)), _seen((4, 1))
    for name in ('num_adapted', 'seen', 'evaluated_and_seen'):
      np.testing.assert_array_equal(one[name][:, 1:3], other[name][:, 2:0:-1])

  def test_seed_share_and_steps_change_the_parts(self):
    before = _seen((1, 4, None))
    rows = _seen((None,), seed=2, share=0.8, num_steps=2)
    self.assertNotEqual(
        before['evaluated'][0, 0].tolist(), rows['evaluated'][0, 0].tolist()
    )
    num_evaluated = np.sum(rows['evaluated'], axis=2)
    np.testing.assert_array_equal(num_evaluated[:, 0], [8, 2, 1, 1])
    # Two steps of one utterance; the second client repeats its only one.
    seen = np.sum(rows['seen'], axis=2) // num_evaluated
    np.testing.assert_array_equal(seen[:, 1], [2, 1, 1, 0])


@functools.lru_cache
def _recognize(*, trained=('.*',), measure=None, context=None, **options):
  """Rows of the clients of `fakes`, and their weights' names."""
  model = tiny.recognizer(dropout=0.2)
  pipeline = fakes.tiny_pipeline(model)
  weights = model.initialize(tf.constant([1, 2]))
  computation = personalization.build(
      model=model,
      pipeline=pipeline,
      client_data=fakes.client_data(),
      adaptation=personalization.Adaptation(
          local=client_update.LocalTraining(
              **dict(learning_rate=0.5, num_steps=3) | options
          ),
          trained=trained,
      ),
      measure=(measure or personalization.word_errors)(
          model, pipeline.tokenizer
      ),
  )
  clients = ['ann', 'bob', 'cai', 'dee']
  with tff.framework.get_context_stack().install(
      context or toys.build_context()
  ):
    return computation, _sorted(computation(weights, clients))


class RecognizerTest(absltest.TestCase):

  def test_only_counts_and_the_id_leave_a_client(self):
    computation, _ = _recognize()
    self.assertEqual(
        str(computation.type_signature.result),
        '<client_id=str[?],num_adapted=int32[?,2],errors=int64[?,2],'
        'words=int64[?,2],wrong_sentences=int64[?,2],sentences=int64[?,2]>'
        '@SERVER',
    )

  def test_errors_are_those_of_the_evaluator(self):
    # One utterance is all that this client has.
    _, rows = _recognize()
    model = tiny.recognizer()
    evaluated = evaluation.Evaluator(
        model=model,
        pipeline=fakes.tiny_pipeline(model),
        client_data=fakes.client_data({'cai': 1}),
    )(model.initialize(tf.constant([1, 2]))).errors
    self.assertEqual(rows['client_id'][2], b'cai')
    self.assertEqual(rows['errors'][2, 0], evaluated.errors)
    self.assertEqual(rows['words'][2, 0], evaluated.words)
    self.assertGreater(evaluated.errors, 0)

  def test_clients_adapt_the_weights_that_are_named(self):

    def measure(model, unused_tokenizer):
      before = model.initialize(tf.constant([1, 2]))

      def changed(weights, batch):
        is_changed = tf.stack([
            tf.reduce_any(tf.not_equal(weights[name], before[name].numpy()))
            for name in sorted(weights)
        ])
        return collections.OrderedDict(
            changed=tf.cast(is_changed, tf.int64),
            num_utterances=tf.size(batch['labels'][:, 0]),
        )

      return changed

    _, rows = _recognize(
        trained=('front/bias', 'head/.*'), measure=measure
    )
    changed = rows['changed'] > 0
    np.testing.assert_array_equal(changed[1], [[0] * 4, [1, 0, 1, 1]])
    # A client without a second part has nothing to adapt on.
    np.testing.assert_array_equal(changed[2], np.zeros([2, 4]))

  @pytest.mark.slow  # Another context traces and compiles it again.
  def test_the_native_runtime_has_the_same_rows(self):
    _, ours = _recognize()
    _, theirs = _recognize(
        context=native.build_sync_context(trust_network=True)
    )
    for name, value in ours.items():
      np.testing.assert_array_equal(value, theirs[name])


class BadInputTest(parameterized.TestCase):

  @parameterized.named_parameters(
      ('one_name', dict(trained='head/.*'), 'trained must be a list'),
      ('no_names', dict(trained=()), 'trained must be a list'),
      ('no_numbers', dict(num_utterances=()), 'num_utterances must name'),
      ('zero', dict(num_utterances=(0,)), 'num_utterances must be a positive'),
      ('all_evaluated', dict(evaluation_share=1.0), 'evaluation_share must be'),
      ('none_evaluated', dict(evaluation_share=0.0), 'evaluation_share must'),
      ('seed', dict(seed=-1), 'seed must be'),
  )
  def test_settings_are_checked(self, settings, message):
    local = client_update.LocalTraining(learning_rate=0.1, num_steps=1)
    with self.assertRaisesRegex(ValueError, message):
      personalization.Adaptation(local=local, **settings)

  def test_a_pattern_must_match(self):
    local = client_update.LocalTraining(learning_rate=0.1, num_steps=1)
    adaptation = personalization.Adaptation(local=local, trained=['lora'])
    with self.assertRaisesRegex(ValueError, "trained: 'lora'"):
      adaptation.frozen(tiny.recognizer().specs)


if __name__ == '__main__':
  absltest.main()

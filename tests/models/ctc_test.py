import functools

from absl.testing import parameterized
import numpy as np
import tensorflow as tf

from tests import fakes
from tests import reference
from tests.models import calls
from tff_asr.data import pipeline as pipeline_lib
from tff_asr.decoding import greedy
from tff_asr.models import ctc
from tff_asr.models import transformer
from tff_asr.text import tokenizer as tokenizer_lib

_KERNELS = [dict(kernel=kernel) for kernel in ctc.LOSS_KERNELS]


def _logits(*shape: int, seed: int = 0) -> np.ndarray:
  rng = np.random.default_rng([seed, *shape])
  return 2 * rng.normal(size=shape).astype(np.float32)


def _loss_and_gradient_tensors(logits, lengths, labels, label_lengths, kernel):
  with tf.GradientTape() as tape:
    tape.watch(logits)
    losses = ctc.loss(logits, lengths, labels, label_lengths, kernel=kernel)
    total = tf.reduce_sum(losses)
  return losses, tape.gradient(total, logits)


@functools.cache
def _traced(kernel):
  """In a graph of unknown sizes, as training traces it."""
  return tf.function(
      lambda *arguments: _loss_and_gradient_tensors(*arguments, kernel),
      input_signature=[
          tf.TensorSpec([None, None, None]),
          tf.TensorSpec([None], tf.int32),
          tf.TensorSpec([None, None], tf.int32),
          tf.TensorSpec([None], tf.int32),
      ],
      autograph=False,
  )


def _loss_and_gradient(logits, lengths, labels, label_lengths, kernel):
  losses, gradient = _traced(kernel)(
      logits, lengths, np.asarray(labels, np.int32), label_lengths
  )
  return losses.numpy(), gradient.numpy()


def _loss(*arguments):
  return _loss_and_gradient(*arguments)[0]


class CtcLossTest(parameterized.TestCase):

  @parameterized.parameters(*_KERNELS)
  def test_by_hand(self, kernel):
    # Two frames, tokens a and blank, each of probability 1/2; 'a' is spelt by
    # aa, a_ and _a: 3/4. The empty label by __ only: 1/4.
    losses = _loss(np.zeros([2, 2, 2], np.float32), [2, 2], [[0], [0]], [1, 0],
                   kernel)
    np.testing.assert_allclose(losses, -np.log([3 / 4, 1 / 4]), rtol=1e-5)

  @parameterized.product(
      _KERNELS,
      labels=([], [0], [1, 2], [2, 2], [0, 1, 0], [1, 1, 2]),
      num_frames=(4, 5),
  )
  def test_agrees_with_enumeration(self, kernel, labels, num_frames):
    logits = _logits(1, num_frames, 4)
    losses = _loss(logits, [num_frames], [labels + [3, -1]], [len(labels)],
                   kernel)
    np.testing.assert_allclose(
        losses, [reference.ctc_loss(logits[0], labels)], rtol=1e-4, atol=1e-4
    )

  @parameterized.product(_KERNELS, labels=([], [1], [0, 0], [1, 0]))
  def test_gradients_agree_with_finite_differences(self, kernel, labels):
    logits = _logits(1, 4, 3)
    _, gradient = _loss_and_gradient(
        logits, [4], [labels], [len(labels)], kernel
    )
    np.testing.assert_allclose(
        gradient[0], reference.ctc_gradient(logits[0], labels), atol=1e-4
    )

  @parameterized.parameters(
      dict(kernel='op', is_compiled=False, tolerance=2e-3),
      dict(kernel='scan', is_compiled=False, tolerance=1e-4),
      dict(kernel='scan', is_compiled=True, tolerance=1e-4),
  )
  def test_long_batches_agree_with_the_twin(
      self, kernel, is_compiled, tolerance
  ):
    # No label; one; a run of one token; as many as the frames allow, 10 of the
    # 19 frames being for blanks between equal ones; many; padding in both.
    lengths, label_lengths = [250, 1, 180, 19, 250, 40], [0, 1, 60, 9, 120, 12]
    rng = np.random.default_rng(1)
    labels = rng.integers(0, 11, size=[6, 120])
    labels[2] = 7
    labels[3] = 5
    labels[3, 1:9:2] = 6
    logits = _logits(6, 250, 12)
    run = tf.function(
        _loss_and_gradient_tensors, autograph=False, jit_compile=is_compiled
    )
    losses, gradients = run(
        tf.constant(logits),
        tf.constant(lengths),
        tf.constant(labels, tf.int32),
        tf.constant(label_lengths),
        kernel,
    )
    for i, (length, count) in enumerate(zip(lengths, label_lengths)):
      loss, gradient = reference.ctc_forward_backward(
          logits[i, :length], labels[i, :count]
      )
      np.testing.assert_allclose(losses[i], loss, rtol=1e-6, atol=1e-4)
      np.testing.assert_allclose(
          gradients[i, :length], gradient, atol=tolerance
      )
      np.testing.assert_array_equal(gradients[i, length:], 0)

  def test_the_twin_agrees_with_enumeration(self):
    for labels in ([], [0], [2, 2], [0, 1, 0], [1, 1, 2]):
      logits = _logits(1, 5, 4)[0]
      loss, gradient = reference.ctc_forward_backward(logits, labels)
      np.testing.assert_allclose(loss, reference.ctc_loss(logits, labels))
      np.testing.assert_allclose(
          gradient, reference.ctc_gradient(logits, labels), atol=1e-6
      )

  @parameterized.parameters(*_KERNELS)
  def test_padding_is_ignored(self, kernel):
    logits = _logits(3, 6, 4)
    lengths, label_lengths = [6, 4, 5], [2, 1, 0]
    labels = np.array([[1, 2, 0], [2, 0, 0], [0, 0, 0]])
    losses, gradient = _loss_and_gradient(
        logits, lengths, labels, label_lengths, kernel
    )
    garbage, other = logits.copy(), labels.copy()
    for i in range(3):
      garbage[i, lengths[i] :] = 100 * (i + 1)
      other[i, label_lengths[i] :] = (-1, 999, 3)[i]
      np.testing.assert_array_equal(gradient[i, lengths[i] :], 0)
    padded = _loss_and_gradient(garbage, lengths, other, label_lengths, kernel)
    np.testing.assert_array_equal(padded[0], losses)
    np.testing.assert_allclose(padded[1], gradient, atol=1e-6)
    for i in range(3):
      alone = _loss(
          logits[i : i + 1, : lengths[i]],
          lengths[i : i + 1],
          labels[i : i + 1, : label_lengths[i]],
          label_lengths[i : i + 1],
          kernel,
      )
      np.testing.assert_allclose(alone, losses[i : i + 1], rtol=1e-5)

  @parameterized.parameters(*_KERNELS)
  def test_a_batch_of_empty_labels_has_losses_and_gradients(self, kernel):
    # Batches of stubs (`data.pipeline`) have labels [B, 0].
    logits = _logits(2, 3, 4)
    labels = np.zeros([2, 0], np.int32)
    losses, gradient = _loss_and_gradient(
        logits, [3, 0], labels, [0, 0], kernel
    )
    expected = [reference.ctc_loss(logits[0], []), 0.0]
    np.testing.assert_allclose(losses, expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(
        gradient[0], reference.ctc_gradient(logits[0], []), atol=1e-4
    )
    np.testing.assert_array_equal(gradient[1], 0)

  def test_too_few_frames_are_never_a_plausible_loss(self):
    # 'bb' needs a blank between: 3 frames. With fewer than labels, op raises.
    too_short = lambda num_frames, kernel: _loss_and_gradient(
        _logits(1, num_frames, 4), [num_frames], [[1, 1]], [2], kernel
    )
    with self.assertRaisesRegex(tf.errors.InvalidArgumentError, 'enough time'):
      too_short(1, 'op')
    np.testing.assert_array_equal(too_short(2, 'op')[0], [np.inf])
    for num_frames in (1, 2):
      losses, gradient = too_short(num_frames, 'scan')
      np.testing.assert_array_equal(losses, [np.inf])
      np.testing.assert_array_equal(gradient, 0)
    for kernel in ctc.LOSS_KERNELS:
      self.assertLess(float(too_short(3, kernel)[0]), 100)

  # Loss - 1e5, and its gradient, of optax 0.2.5 in float64. The first by hand:
  # a start at or after either 'b' costs 1e5, and two of them end in 'b', two in
  # a blank, so that the loss is 1e5 - log(2 p(b) + 2 p(blank)).
  @parameterized.parameters(
      ([1, 1], -0.6233, [[0.0307, -0.0479, 0.0368, -0.0196]]),
      (
          [1, 1], 1.3133,
          [[0.3915, -0.004, 0.1209, -0.5085],
           [0.5718, -0.134, 0.1526, -0.5904]],
      ),
      (
          [0, 1, 2], 0.6853,
          [[0.3915, 0.0003, -0.1507, -0.2411],
           [0.5718, 0.0508, -0.2534, -0.3692]],
      ),
      (
          [0, 2, 2, 1, 1], 0.8535,
          [[0.0039, -0.0185, 0.1437, -0.1291],
           [0.0795, -0.0291, 0.0618, -0.1122],
           [0.7068, -0.4184, 0.0056, -0.294]],
      ),
  )
  def test_too_few_frames_as_optax(self, labels, excess, expected):
    num_frames = len(expected)
    logits = _logits(1, num_frames, 4)
    # float32 has steps of .008 at 1e5.
    losses, gradient = _loss_and_gradient(
        np.pad(logits, [[0, 0], [0, 2], [0, 0]]), [num_frames], [labels + [1]],
        [len(labels)], 'optax',
    )
    np.testing.assert_allclose(losses - 1e5, [excess], atol=0.02)
    np.testing.assert_allclose(gradient[0, :num_frames], expected, atol=0.02)
    np.testing.assert_array_equal(gradient[0, num_frames:], 0)

  def test_no_frame_at_all_as_optax(self):
    losses, gradient = _loss_and_gradient(
        _logits(1, 2, 4), [0], [[1, 1]], [2], 'optax'
    )
    np.testing.assert_allclose(losses, [1e5], rtol=1e-4)
    np.testing.assert_array_equal(gradient, 0)


class GreedyDecodeTest(parameterized.TestCase):

  # Best tokens by frame, 3 is the blank; then the length.
  @parameterized.named_parameters(
      ('repeats_merge', [0, 0, 1, 1, 1], 5, [0, 1]),
      ('blanks_go', [3, 0, 3, 3, 1], 5, [0, 1]),
      ('a_blank_parts_repeats', [0, 3, 0, 0, 3], 5, [0, 0]),
      ('only_blanks', [3, 3, 3, 3, 3], 5, []),
      ('first_token_0', [0, 1, 0, 1, 0], 5, [0, 1, 0, 1, 0]),
      ('padding', [0, 1, 2, 2, 1], 3, [0, 1, 2]),
      ('no_frames', [0, 1, 2, 2, 1], 0, []),
  )
  def test_by_hand(self, best, length, expected):
    # Among others of other lengths.
    logits = tf.one_hot([[1, 2, 1, 2, 1], best, [0] * 5], 4)
    decoded = ctc.greedy_decode(logits, tf.constant([4, length, 1]))
    self.assertEqual(decoded.to_list(), [[1, 2, 1, 2], expected, [0]])
    self.assertEqual(decoded.dtype, tf.int32)

  def test_agrees_with_the_numpy_twin(self):
    logits = _logits(20, 30, 4)
    decoded = ctc.greedy_decode(tf.constant(logits), tf.fill([20], 30))
    expected = [
        list(reference.collapse(path, blank=3)) for path in logits.argmax(-1)
    ]
    self.assertEqual(decoded.to_list(), expected)


class GreedyLabelsTest(parameterized.TestCase):

  def test_by_hand(self):
    # Probabilities of a, b and the blank by frame; the second a is a repeat.
    heard = [[.8, .1, .1], [.9, .05, .05], [.2, .2, .6], [.3, .5, .2]]
    # a and b over two frames; blanks alone; and b in its only frame.
    probabilities = [
        [*heard, [0.01, 0.98, 0.01]],
        [[.1, .1, .8]] * 5,
        [[.3, .6, .1], *[[1 - 2e-6, 1e-6, 1e-6]] * 4],
    ]
    labels, lengths, confidences = ctc.greedy_labels(
        tf.constant(np.log(probabilities), tf.float32) + 3.0,
        tf.constant([4, 5, 1]),
    )
    self.assertEqual((labels.dtype, lengths.dtype), (tf.int32, tf.int32))
    np.testing.assert_array_equal(labels, [[0, 1], [0, 0], [1, 0]])
    np.testing.assert_array_equal(lengths, [2, 0, 1])
    np.testing.assert_allclose(
        confidences, [np.sqrt(.8 * .5), 0, .6], rtol=1e-5
    )

  def test_agrees_with_the_confidence_of_a_word(self):
    logits, lengths = _logits(20, 30, 4), np.arange(1, 21)
    labels, label_lengths, confidences = ctc.greedy_labels(
        tf.constant(logits), tf.constant(lengths, tf.int32)
    )
    fits = pipeline_lib.min_frames(labels, label_lengths) <= lengths
    self.assertTrue(np.all(fits))
    for i, length in enumerate(lengths):
      # Without a space, all that is said is one word.
      (expected,) = greedy.decode(logits[i, :length], tokens=['a', 'b', 'c'])
      ids = labels[i, : label_lengths[i]].numpy()
      self.assertEqual(''.join('abc'[each] for each in ids), expected.text)
      np.testing.assert_array_equal(labels[i, label_lengths[i] :], 0)
      confidence = expected.words[0].confidence if expected.words else 0
      self.assertAlmostEqual(float(confidences[i]), confidence, places=5)

  def test_a_model_that_is_not_finite_is_sure_of_nothing(self):
    logits = tf.fill([1, 4, 3], np.float32(np.nan))
    *_, confidences = ctc.greedy_labels(logits, tf.constant([4]))
    self.assertFalse(np.any(confidences >= 0))


class CtcModelTest(parameterized.TestCase):

  def test_the_whole_model_agrees_with_its_numpy_twin(self):
    model = fakes.tiny_model()
    weights = calls.perturbed(model.specs)
    lengths = [31, 47]
    features = _logits(2, 47, 80)
    logits, output_lengths = model.logits(
        weights, tf.constant(features), tf.constant(lengths)
    )
    self.assertEqual(logits.shape, [2, 15, 5])
    np.testing.assert_array_equal(output_lengths, [10, 15])
    arrays = calls.arrays(weights)
    for i, length in enumerate(lengths):
      expected = reference.ctc_transformer(
          arrays, features[i, :length], num_blocks=2, num_heads=2
      )
      np.testing.assert_allclose(
          logits[i, : length // 3], expected, rtol=1e-5, atol=1e-5
      )

  def test_the_loss_is_that_of_the_logits_for_each_kernel(self):
    features, lengths = tf.constant(_logits(1, 20, 80)), tf.constant([20])
    labels, label_lengths = tf.constant([[1, 0, 2]]), tf.constant([3])
    seed = tf.constant([5, 6])
    losses = []
    for kernel in ctc.LOSS_KERNELS:
      model = fakes.tiny_model(dropout=0.3, loss_kernel=kernel)
      weights = calls.perturbed(model.specs)
      logits, output_lengths = model.logits(weights, features, lengths, seed)
      losses.append(
          model.loss(weights, features, lengths, labels, label_lengths, seed)
      )
      np.testing.assert_allclose(
          losses[-1],
          ctc.loss(
              logits, output_lengths, labels, label_lengths, kernel=kernel
          ),
      )
    np.testing.assert_allclose(losses[0], losses[1], rtol=1e-5)

  def test_the_head_begins_as_in_the_published_code(self):
    # LeCun uniform: variance 1 / fan-in, limit sqrt(3 / fan-in).
    model = ctc.build(
        encoder=transformer.build(
            num_blocks=1, dim=768, mlp_dim=2, num_heads=4
        ),
        tokenizer=tokenizer_lib.CharTokenizer(),
    )
    self.assertEqual(model.specs['head/kernel'].shape, (768, 30))
    self.assertEqual(model.specs['head/bias'].shape, (30,))
    initial = model.initialize(tf.constant([1, 2]))
    for name, limit in (('kernel', 0.0625), ('bias', 768**-0.5)):
      value = initial[f'head/{name}'].numpy()
      np.testing.assert_allclose(np.abs(value).max(), limit, rtol=0.3)
      self.assertLessEqual(np.abs(value).max(), limit)
    np.testing.assert_allclose(
        initial['head/kernel'].numpy().std(), 0.0361, rtol=0.02
    )

  def test_each_option_changes_the_model(self):
    encoder = fakes.tiny_model().encoder
    build = lambda **options: ctc.build(
        **dict(encoder=encoder, tokenizer=fakes.tiny_tokenizer()) | options
    )
    larger = build(tokenizer=tokenizer_lib.CharTokenizer(' abcd'))
    self.assertEqual((build().vocab_size, larger.vocab_size), (5, 6))
    self.assertEqual(larger.specs['head/bias'].shape, (6,))
    self.assertEqual(larger.specs['head/kernel'].shape, (8, 6))
    other = build(encoder=fakes.tiny_model(num_blocks=1).encoder)
    self.assertLess(len(other.specs), len(build().specs))

    def has_op(model):
      graph = tf.function(model.loss).get_concrete_function(
          calls.perturbed(model.specs),
          tf.zeros([1, 20, 80]),
          tf.constant([20]),
          tf.constant([[1]]),
          tf.constant([1]),
      ).graph
      return 'CTCLoss' in {op.type for op in graph.get_operations()}

    self.assertTrue(has_op(build()))
    self.assertFalse(has_op(build(loss_kernel='scan')))
    self.assertFalse(has_op(build(loss_kernel='optax')))

  def test_a_head_of_bfloat16_rounds(self):
    build = lambda **options: ctc.build(
        encoder=fakes.tiny_model().encoder,
        tokenizer=fakes.tiny_tokenizer(),
        **options,
    )
    weights = calls.perturbed(build().specs)
    features = tf.constant(calls.features(2, 20, 80))
    (exact, lengths), (rounded, _) = (
        model.logits(weights, features, tf.constant([20, 12]))
        for model in (build(), build(head_dtype='bfloat16'))
    )
    self.assertEqual(rounded.dtype, tf.float32)
    np.testing.assert_array_equal(
        rounded, tf.cast(tf.cast(rounded, tf.bfloat16), tf.float32)
    )
    valid = tf.sequence_mask(lengths, exact.shape[1])
    error = tf.norm((rounded - exact)[valid]) / tf.norm(exact[valid])
    self.assertBetween(float(error), 1e-4, 0.02)
    with self.assertRaisesRegex(ValueError, 'head_dtype must be one of'):
      build(head_dtype='float16')

  def test_an_unknown_kernel_is_named(self):
    with self.assertRaisesRegex(ValueError, 'loss_kernel must be one of'):
      fakes.tiny_model(loss_kernel='sparse')

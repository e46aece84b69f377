from absl.testing import absltest
from absl.testing import parameterized
import numpy as np
import tensorflow as tf

from tests import reference
from tff_asr.models import attention
from tff_asr.models import encoder
from tff_asr.models import weights as weights_lib

_DIM = 8
_WEIGHTS = weights_lib.initialize(
    attention.specs(dim=_DIM), tf.constant([1, 2])
)


def _inputs(*shape: int) -> np.ndarray:
  rng = np.random.default_rng(sum(shape))
  return 3 * rng.normal(size=shape).astype(np.float32)


def _apply(inputs, lengths, *, num_heads=2, dropout=0.0, seed=None):
  return attention.apply(
      _WEIGHTS,
      tf.constant(inputs),
      encoder.mask(tf.constant(lengths), inputs.shape[1]),
      num_heads=num_heads,
      dropout=dropout,
      seed=seed,
  ).numpy()


class AttentionTest(parameterized.TestCase):

  @parameterized.parameters(1, 2, 4, 8)
  def test_agrees_with_the_numpy_twin(self, num_heads):
    inputs = _inputs(6, _DIM)
    weights = {key: value.numpy() for key, value in _WEIGHTS.items()}
    np.testing.assert_allclose(
        _apply(inputs[np.newaxis], [6], num_heads=num_heads)[0],
        reference.self_attention(weights, inputs, num_heads=num_heads),
        rtol=1e-5,
        atol=1e-5,
    )

  def test_the_number_of_heads_matters(self):
    inputs = _inputs(1, 6, _DIM)
    self.assertFalse(
        np.allclose(
            _apply(inputs, [6], num_heads=1), _apply(inputs, [6], num_heads=4)
        )
    )

  @parameterized.parameters(0.0, 1.0, 1e4)
  def test_padding_does_not_change_outputs(self, padding):
    lengths = [5, 1, 8]
    batch = np.full([3, 8, _DIM], padding, np.float32)
    for row, length in zip(batch, lengths):
      row[:length] = _inputs(length, _DIM)
    outputs = _apply(batch, lengths)
    for i, length in enumerate(lengths):
      alone = _apply(batch[i : i + 1, :length], [length])
      np.testing.assert_allclose(
          outputs[i, :length], alone[0], rtol=1e-5, atol=1e-5
      )

  def test_an_utterance_without_frames_gives_finite_outputs(self):
    outputs = _apply(_inputs(2, 4, _DIM), [0, 4])
    self.assertTrue(np.all(np.isfinite(outputs)))

  def test_one_frame_attends_to_itself(self):
    # With a single key the softmax is 1, so only values and wf are left.
    inputs = _inputs(1, 1, _DIM)
    values = inputs[0] @ _WEIGHTS['wqkv'].numpy()[:, 2 * _DIM :]
    np.testing.assert_allclose(
        _apply(inputs, [1])[0], values @ _WEIGHTS['wf'].numpy(), rtol=1e-4,
        atol=1e-5,
    )

  def test_order_of_frames_does_not_matter(self):
    inputs = _inputs(1, 6, _DIM)
    order = [3, 0, 5, 1, 4, 2]
    np.testing.assert_allclose(
        _apply(inputs[:, order], [6]), _apply(inputs, [6])[:, order],
        rtol=1e-5, atol=1e-5,
    )

  def test_dropout_applies_to_attention_in_training_only(self):
    inputs = _inputs(1, 6, _DIM)
    seed = tf.constant([1, 2])
    evaluated = _apply(inputs, [6])
    dropped = _apply(inputs, [6], dropout=0.5, seed=seed)
    self.assertFalse(np.allclose(dropped, evaluated))
    np.testing.assert_array_equal(
        dropped, _apply(inputs, [6], dropout=0.5, seed=seed)
    )
    np.testing.assert_array_equal(
        _apply(inputs, [6], dropout=0.5), evaluated
    )

  def test_weights_by_hand(self):
    # Two matrices without biases: 8 * 24 + 8 * 8.
    specs = attention.specs(dim=_DIM)
    self.assertEqual(
        {name: spec.shape for name, spec in specs.items()},
        {'wqkv': (8, 24), 'wf': (8, 8)},
    )
    for spec in specs.values():
      self.assertAlmostEqual(spec.limit, 8**-0.5)


if __name__ == '__main__':
  absltest.main()

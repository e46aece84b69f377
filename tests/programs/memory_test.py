"""Tests of tff_asr.programs.memory."""

from absl.testing import absltest
from absl.testing import parameterized
import tensorflow as tf

from tff_asr import errors
from tff_asr.programs import memory


def _at_a_client(cause: Exception) -> Exception:
  error = RuntimeError('Client 3 of 8 failed')
  error.__cause__ = cause
  return error


_OOM = tf.errors.ResourceExhaustedError(
    None, None, 'OOM when allocating tensor with shape[9,9]\nmore'
)


class ExplainedTest(parameterized.TestCase):

  @parameterized.parameters(
      (_OOM, 'OOM when allocating tensor'),
      (_at_a_client(_OOM), 'OOM when allocating tensor'),
      (MemoryError(), 'MemoryError'),
  )
  def test_a_shortage_names_the_settings_to_change(self, error, text):
    with self.assertRaises(OSError) as caught:
      with memory.explained():
        raise error
    (line,) = errors.lines(caught.exception)
    for part in (
        text, 'MAX_BATCH_SEC', 'CLIENTS_PER_DEVICE', 'NUM_VECTORIZED',
        'NUM_BLOCKS',
    ):
      self.assertIn(part, line)
    self.assertNotIn('Errno', line)

  def test_other_errors_stay_as_they_are(self):
    error = _at_a_client(ValueError('no'))
    with self.assertRaises(RuntimeError) as caught:
      with memory.explained():
        raise error
    self.assertIs(caught.exception, error)

  def test_the_estimate_of_rounds_by_hand(self):
    # Weights of 1 byte under LAMB: a state of 3. Of the server 3 states, what
    # is sent, the sum and its noise; of a client 5 times the weights.
    self.assertEqual(
        memory.estimate_rounds(state_bytes=3, weights_bytes=1), (12, 5)
    )

  def test_the_estimate_of_steps_by_hand(self):
    # Weights of 10 bytes, 4 of them trained, a state of 20. Of the whole 3
    # states and a mean; of a device the weights, two sums, and the gradient.
    sizes = dict(state_bytes=20, weights_bytes=10, trained_bytes=4)
    self.assertEqual(memory.estimate_steps(**sizes), (64, 22))
    # By example 8 gradients, and one in float64, which is two.
    self.assertEqual(
        memory.estimate_steps(**sizes, num_vectorized=8), (64, 58)
    )


if __name__ == '__main__':
  absltest.main()

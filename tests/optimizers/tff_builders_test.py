"""TFF's own optimizers that gin binds do what was published of them.

SGD with momentum and Adagrad are optax's, with its defaults, which the
federated ASR paper used. Yogi (Zaheer et al. 2018) is TFF's with Adam's bias
correction.
"""

from absl.testing import absltest
from absl.testing import parameterized
import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tests import reference

_GRADIENTS = (0.5, 0.01, -0.2)


def _run(optimizer, gradients):
  """The weight, 1 at first, after each step."""
  weight, found = tf.constant(1.0), []
  state = optimizer.initialize(tf.TensorSpec([]))
  for gradient in gradients:
    state, weight = optimizer.next(state, weight, tf.constant(gradient))
    found.append(float(weight))
  return found


class TffBuildersTest(parameterized.TestCase):

  def test_sgd_by_hand(self):
    # Momentum .5, rate .1: v = .5, .26, -.07.
    optimizer = tff.learning.optimizers.build_sgdm(0.1, momentum=0.5)
    np.testing.assert_allclose(
        _run(optimizer, _GRADIENTS), [0.95, 0.924, 0.931], rtol=1e-6
    )
    plain = tff.learning.optimizers.build_sgdm(0.1, momentum=0.0)
    np.testing.assert_allclose(
        _run(plain, _GRADIENTS), [0.95, 0.949, 0.969], rtol=1e-6
    )

  def test_adagrad_to_40_digits(self):
    # s = .1 + sum of g^2, w = w - .1 g / sqrt(s + 1e-7), in decimal arithmetic.
    optimizer = tff.learning.optimizers.build_adagrad(0.1)
    np.testing.assert_allclose(
        _run(optimizer, (0.5, -0.2, 2.0)),
        [0.91548458660078, 0.94751021325595, 0.85205542236246],
        rtol=1e-6,
    )

  def test_yogi_to_40_digits(self):
    # m = .9 m + .1 g, v = v - .001 sign(v - g^2) g^2 from 1e-6, and
    # w = w - .1 sqrt(1 - .999^t) / (1 - .9^t) m / (sqrt(v) + .001), in decimal
    # arithmetic. The second gradient makes v smaller: .000251 to .0002509.
    optimizer = tff.learning.optimizers.build_yogi(0.1)
    np.testing.assert_allclose(
        _run(optimizer, _GRADIENTS),
        [0.90612475492133, 0.84184516471210, 0.81790255908619],
        rtol=1e-5,
    )

  @parameterized.named_parameters(
      (
          'sgd',
          tff.learning.optimizers.build_sgdm(0.1, momentum=0.9),
          lambda *args: reference.sgd(*args, learning_rate=0.1, momentum=0.9),
      ),
      (
          'adagrad',
          tff.learning.optimizers.build_adagrad(0.1),
          lambda *args: reference.adagrad(*args, learning_rate=0.1),
      ),
      (
          'yogi',
          tff.learning.optimizers.build_yogi(0.01),
          lambda *args: reference.yogi(*args, learning_rate=0.01),
      ),
  )
  def test_agrees_with_the_numpy_twin_over_steps(self, optimizer, twin):
    gradients = np.random.default_rng(1).normal(size=20).astype(np.float32)
    np.testing.assert_allclose(
        _run(optimizer, gradients)[-1], twin(1.0, gradients), rtol=1e-4
    )


if __name__ == '__main__':
  absltest.main()

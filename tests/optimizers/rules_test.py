"""Update rules by hand and to 40 digits; our optimizers and TFF's SGD.

SGD with momentum is optax's, which the federated ASR paper used. TFF's Adam and
Adagrad differ from the paper's where updates are tiny; tested, too.
"""

from absl.testing import parameterized
import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_asr.optimizers import adagrad
from tff_asr.optimizers import adam
from tff_asr.optimizers import lamb
from tff_asr.optimizers import lars
from tff_asr.optimizers import per_tensor


def _run(optimizer, weight, gradients):
  """The state at the end, and the weight after each step."""
  weight, found = tf.constant(weight), []
  state = optimizer.initialize(tf.TensorSpec.from_tensor(weight))
  for gradient in gradients:
    state, weight = optimizer.next(state, weight, tf.constant(gradient))
    found.append(weight.numpy())
  return state, found


class RulesTest(parameterized.TestCase):

  @parameterized.named_parameters(
      # g = (.1, -.2), epsilon 0. With t = 1 the corrections undo the decays:
      # u = g / |g| = (1, -1), ||w|| = 5, ||u|| = sqrt(2) and
      # w = (3, 4) - .1 * 5 / sqrt(2) * (1, -1).
      ('lamb', lamb.build_lamb(0.1, epsilon=0.0), [3.0, 4.0], [[0.1, -0.2]],
       [[2.6464466, 4.3535534]]),
      # u = .5 / (.5 + .5) + .25 * 2 = 1, ratio 2 / 1, w = 2 - .1 * 2 * 1.
      ('lamb_epsilon_decay',
       lamb.build_lamb(0.1, epsilon=0.5, weight_decay=0.25), 2.0, [0.5],
       [1.8]),
      # The formulas in decimal arithmetic of 40 digits, decay .01.
      ('lamb_40_digits', lamb.build_lamb(0.1, weight_decay=0.01), [3.0, 4.0],
       [[0.1, -0.2], [-0.3, 0.1], [0.2, 0.4]],
       [[2.63423704072847, 4.34090681663019],
        [3.09262498437855, 4.55932673534267],
        [3.03843034583227, 4.01107420512601]]),
      # Ratio 1: w = 0 - .1 * g / |g|.
      ('lamb_from_0', lamb.build_lamb(0.1), [0.0, 0.0], [[3.0, -5.0]],
       [[-0.1, 0.1]]),
      ('lamb_gradient_0', lamb.build_lamb(0.1), [1.0, 2.0], [[0.0, 0.0]],
       [[1.0, 2.0]]),
      # 0 / 0, as in the paper; epsilon 0 is for gradients without zeros.
      ('lamb_gradient_and_epsilon_0', lamb.build_lamb(0.1, epsilon=0.0),
       [1.0], [[0.0]], [[np.nan]]),
      # In 40 digits; the gradients are near epsilon. The first:
      # 2 - .1 (1e-7 / (1e-7 + 1e-8) + .02).
      ('adam_40_digits', adam.build_adam(0.1, weight_decay=0.01), 2.0,
       [1e-7, -3e-8, 5e-8],
       [1.90709090909091, 1.86750402095271, 1.81567664427600]),
      # TFF's epsilon counts 1 / sqrt(1 - .999) = 31.6 times in the first step.
      ('adam_tiny', adam.build_adam(0.1), 0.0, [1e-7], [-0.1 / 1.1]),
      ('tffs_adam_tiny',
       tff.learning.optimizers.build_adam(0.1, epsilon=1e-8), 0.0, [1e-7],
       [-0.1 / (1 + 0.1 * 31.6228)]),
      # v = .5 * .001 * 5 / 1 * g = (.0015, .002). Then ||w|| = 4.9975 and
      # v = .9 (.0015, .002) + .5 * .001 * 4.9975 g = (.00284925, .003799).
      ('lars', lars.build_lars(0.5), [3.0, 4.0], [[0.6, 0.8]] * 2,
       [[2.9985, 3.998], [2.99565075, 3.994201]]),
      # In 40 digits, decay .1. The first: u = (.9, 1.2), ||u|| = 1.5.
      ('lars_40_digits', lars.build_lars(0.5, weight_decay=0.1), [3.0, 4.0],
       [[0.6, 0.8], [-0.3, 0.1], [0.2, 0.4]],
       [[2.9985, 3.998],
        [2.99715074992494, 3.99370125011253],
        [2.99461300871590, 3.98771537018555]]),
      ('lars_from_0', lars.build_lars(0.1), [0.0, 0.0], [[3.0, -5.0]],
       [[-0.3, 0.5]]),
      # Momentum .5, rate .1: v = .5, .26, -.07.
      ('sgd', tff.learning.optimizers.build_sgdm(0.1, momentum=0.5), 1.0,
       [0.5, 0.01, -0.2], [0.95, 0.924, 0.931]),
      ('sgd_without_momentum',
       tff.learning.optimizers.build_sgdm(0.1, momentum=0.0), 1.0,
       [0.5, 0.01, -0.2], [0.95, 0.949, 0.969]),
      # s = sum of g^2, w = w - .1 g (1 / sqrt(s) + 1e-8), in 40 digits.
      ('adagrad', adagrad.build_adagrad(0.1), 1.0, [0.5, -0.2, 2.0],
       [0.89999999950000, 0.93713906733541, 0.84057815541836]),
      # Client updates of RMS 4e-5: 4 / 5 of the rate after 4 and 3.
      ('adagrad_tiny', adagrad.build_adagrad(0.1), 0.0, [4e-5, 3e-5],
       [-0.1, -0.16]),
      ('adagrad_gradient_0', adagrad.build_adagrad(0.1), 1.0, [0.0, 1.0],
       [1.0, 0.9]),
      # TFF's begins at s = .1: .1 * 4e-5 / sqrt(.1).
      ('tffs_adagrad_tiny', tff.learning.optimizers.build_adagrad(0.1), 0.0,
       [4e-5], [-1.2649e-5]),
  )
  def test_by_hand(self, optimizer, weight, gradients, expected):
    _, found = _run(optimizer, weight, gradients)
    np.testing.assert_allclose(found, expected, rtol=1e-5)

  def test_momentum_of_lars_keeps_the_rate_of_each_step(self):
    # One step of v = .0025 g at rate .5; at rate 0 afterwards .9 v is left.
    optimizer = lars.build_lars(0.5)
    gradient = tf.constant([0.6, 0.8])
    state, (weights,) = _run(optimizer, [3.0, 4.0], [[0.6, 0.8]])
    hparams = optimizer.get_hparams(state) | {'learning_rate': 0.0}
    state = optimizer.set_hparams(state, hparams)
    _, stopped = optimizer.next(state, tf.constant(weights), gradient)
    np.testing.assert_allclose(weights - stopped, [0.00135, 0.0018], rtol=1e-3)


class TrustRatioTest(parameterized.TestCase):

  # By hand: ||(3, 4)|| = 5, ||(6, 8)|| = 10.
  @parameterized.named_parameters(
      ('both', [3.0, 4.0], [6.0, 8.0], 0.5),
      ('reverse', [6.0, 8.0], [3.0, 4.0], 2.0),
      ('sign_is_nothing', [-3.0, 4.0], [3.0, -4.0], 1.0),
      ('weight_0', [0.0, 0.0], [3.0, 4.0], 1.0),
      ('update_0', [3.0, 4.0], [0.0, 0.0], 1.0),
      ('both_0', [0.0, 0.0], [0.0, 0.0], 1.0),
      ('scalar', 2.0, 8.0, 0.25),
      ('matrix', [[3.0], [4.0]], [[0.0], [1.0]], 5.0),
      ('empty', [], [], 1.0),
      ('unbounded', [1e6], [1e-6], 1e12),
      # .5 * 5 / (10 + 2.5) = .2; a zero norm still gives 1.
      ('options', [3.0, 4.0], [6.0, 8.0], 0.2, dict(coefficient=0.5,
                                                    epsilon=2.5)),
      ('options_0', [0.0], [1.0], 1.0, dict(coefficient=0.5, epsilon=2.5)),
  )
  def test_by_hand(self, weight, update, expected, options=None):
    for dtype in (tf.float32, tf.float64):
      ratio = tf.function(per_tensor.trust_ratio)(
          tf.constant(weight, dtype), tf.constant(update, dtype),
          **(options or {}),
      )
      self.assertEqual((ratio.dtype, ratio.shape), (dtype, []))
      np.testing.assert_allclose(ratio, expected, rtol=1e-6)

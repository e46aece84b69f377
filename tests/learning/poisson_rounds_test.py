"""Three rounds with Poisson cohorts, one of them empty, against NumPy.

Everything of a private run but the noise: drawn cohorts, local epochs, clipping
by layer, the fixed divisor, LAMB with a schedule. `fed_avg_test` has the same
without clip and sampling.
"""

from absl.testing import absltest
import functools

import numpy as np

from tests import fakes
from tests import reference
from tests.learning import federated_twin
from tff_asr.aggregators import dp_mean
from tff_asr.data import cohorts as cohorts_lib
from tff_asr.learning import client_update
from tff_asr.learning import fed_avg
from tff_asr.optimizers import lamb
from tff_asr.optimizers import schedules
from tff_asr.privacy import clipping as clipping_lib
from tff_asr.privacy import keys
from tff_asr.privacy import queries

_SEED = 11
_COHORT_SIZE = 2  # Of 4 clients: each comes with probability 1 / 2.
_CLIP = 0.3
_CLIENT_RATE = 0.01
_MAX_GRAD_NORM = 20.0
_NUM_EPOCHS = 2
_EPSILON = 1e-2
_KEY = keys.from_seed(8363)
# .05, then times .5 a round from round 1 on: by hand.
_RATES = (0.05, 0.05, 0.025)


def _model():
  return fakes.tiny_model(num_blocks=1)


def _build():
  model = _model()
  return fed_avg.build(
      model=model,
      pipeline=fakes.tiny_pipeline(model),
      client_data=fakes.client_data(),
      aggregator=dp_mean.build(
          build_query=functools.partial(
              queries.PerLayerClipSumQuery,
              l2_norm_clip=_CLIP,
              noise_multiplier=0.0,
              clipping=clipping_lib.Clipping(split='dim'),
          ),
          cohort_size=_COHORT_SIZE,
      ),
      server_optimizer=schedules.scheduled(
          lamb.build_lamb(1.0, epsilon=_EPSILON),
          schedule=schedules.exponential_decay(
              0.05, start=1, decay_rate=0.5, transition_rounds=1
          ),
      ),
      local=client_update.LocalTraining(
          learning_rate=_CLIENT_RATE,
          max_grad_norm=_MAX_GRAD_NORM,
          num_epochs=_NUM_EPOCHS,
      ),
      seed=_SEED,
  )


class PoissonRoundsTest(absltest.TestCase):

  def test_equal_a_numpy_simulation(self):
    client_ids = fakes.client_data().client_ids
    cohorts = [
        reference.poisson_cohort(
            client_ids,
            sampling_prob=_COHORT_SIZE / len(client_ids),
            key=_KEY,
            round_num=round_num,
        )
        for round_num in range(3)
    ]
    # The key was chosen for this.
    self.assertEqual(cohorts, [['ann', 'bob'], [], ['bob', 'cai', 'dee']])
    source = cohorts_lib.poisson(
        client_ids, cohort_size=_COHORT_SIZE, key=_KEY
    )
    iterator = source.iterator()
    drawn = [iterator.select() for _ in range(3)]
    self.assertEqual(drawn, cohorts)

    actual, metrics = federated_twin.run(_build(), drawn)
    twin = federated_twin.Twin(
        model=_model(),
        cohorts=cohorts,
        seed=_SEED,
        learning_rate=_CLIENT_RATE,
        max_grad_norm=_MAX_GRAD_NORM,
        num_epochs=_NUM_EPOCHS,
    )
    optimizer = reference.Lamb(0.0, epsilon=_EPSILON)
    num_clipped = num_layers = 0
    for round_num, cohort in enumerate(cohorts):
      # From the process's own weights, as in `fed_avg_test`; the moments are
      # the twin's own.
      weights = actual[round_num]
      mean = {name: np.zeros(value.shape) for name, value in weights.items()}
      for client_id in cohort:
        delta = twin.train(
            weights, client_id=client_id, round_num=round_num
        ).delta
        clipped = reference.clip_layers(delta, clip=_CLIP)
        for name, layer in clipped.items():
          # The expected size divides, whoever came.
          mean[name] += layer / _COHORT_SIZE
          num_clipped += np.linalg.norm(layer) < 0.99 * np.linalg.norm(
              delta[name]
          )
          num_layers += 1
      optimizer.learning_rate = _RATES[round_num]
      stepped = optimizer.step(list(weights.values()), list(mean.values()))
      expected = dict(zip(weights, stepped, strict=True))
      change = federated_twin.norm(
          {name: expected[name] - weights[name] for name in weights}
      )
      # In the empty round too: LAMB goes on along its first moment.
      self.assertGreater(change, 1e-3)
      for name, value in expected.items():
        distance = np.linalg.norm(actual[round_num + 1][name] - value)
        self.assertLessEqual(
            distance, 1e-6 * (np.linalg.norm(value) + change), name
        )
      measured = metrics[round_num]
      self.assertEqual(
          measured['client_work']['num_clients'], len(cohort)
      )
      np.testing.assert_allclose(
          measured['finalizer']['update_norm'],
          federated_twin.norm(mean),
          rtol=1e-5,
      )
      np.testing.assert_allclose(
          measured['finalizer']['learning_rate'], _RATES[round_num], rtol=1e-6
      )
    # Some layers are clipped and some not, or the test shows little.
    self.assertBetween(num_clipped, num_layers / 10, num_layers * 9 / 10)

"""Tests of tff_asr.learning.fed_evaluation."""

import functools

from absl.testing import absltest
from absl.testing import parameterized
import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tests import cases
from tests import fakes
from tests.learning import tiny
from tff_asr.aggregators import dp_mean
from tff_asr.data import client_data as client_data_lib
from tff_asr.execution import multi_device
from tff_asr.execution import native
from tff_asr.learning import fed_avg
from tff_asr.learning import fed_evaluation
from tff_asr.metrics import person_errors
from tff_asr.metrics import private_wer
from tff_asr.privacy import keys
from tff_asr.privacy import queries
from tff_asr.programs import evaluation

_CLIENTS = {'ann': 5, 'bob': 2, 'cai': 1}
_VECTORS = private_wer.PersonVectors(max_words=6, min_words=2, num_bins=4)


def _build(data, *, noise_multiplier: float):
  """The process on these people, for a cohort size of 2, and their vectors."""
  model = tiny.recognizer()
  pipeline = fakes.tiny_pipeline(model)
  process = fed_evaluation.build(
      model=model,
      pipeline=pipeline,
      client_data=data,
      aggregator=dp_mean.build(
          build_query=functools.partial(
              queries.PerLayerClipSumQuery,
              l2_norm_clip=1.0,
              noise_multiplier=noise_multiplier,
              noise_kernel='tensorflow',
          ),
          cohort_size=2,
      ),
      vectors=_VECTORS,
  )
  weights = model.initialize(tf.constant([1, 2]))
  by_client = evaluation.Evaluator(
      model=model, pipeline=pipeline, client_data=data
  )(weights).errors_by_client()
  vectors = {
      client_id: _VECTORS.encode(
          person_errors.PersonErrors(
              *(tf.constant(n, tf.int64)
                for n in (each.errors, each.words, 0, 0))
          )
      ).numpy()
      for client_id, each in by_client.items()
  }
  return process, weights, vectors


class FedEvaluationTest(cases.TestCase):

  @parameterized.named_parameters(
      ('multi_device', multi_device.build_sync_context),
      (
          'native',
          functools.partial(native.build_sync_context, trust_network=True),
      ),
  )
  def test_rounds_add_up_people_s_vectors_and_noise(self, build_context):
    data = client_data_lib.load(fakes.shared_split(**_CLIENTS))
    process, weights, vectors = _build(data, noise_multiplier=1e-4)
    tff.framework.set_default_context(build_context())
    initial = process.initialize()._replace(global_model_weights=weights)
    state, expected = initial, 0
    for number, cohort in enumerate((['ann', 'cai'], ['ann', 'bob'], [])):
      before = state
      state = process.next(
          fed_avg.set_noise_key(state, keys.from_seed(number)),
          client_data_lib.client_arguments(data, cohort),
      ).state
      expected += sum(vectors[each] for each in cohort)
      # The mean over a cohort of 2; each round adds new noise.
      np.testing.assert_allclose(
          2 * np.asarray(state.finalizer), expected + np.zeros(7), atol=1e-3
      )
      self.assertFalse(np.array_equal(before.finalizer, state.finalizer))
    for name, value in state.global_model_weights.items():
      np.testing.assert_array_equal(value, weights[name])

  def test_without_a_key_each_round_has_its_own_noise(self):
    data = fakes.client_data(_CLIENTS)
    process, weights, _ = _build(data, noise_multiplier=1.0)
    multi_device.set_default_context()
    state = process.initialize()._replace(global_model_weights=weights)
    first, second = (
        np.asarray(process.next(state, ['ann']).state.finalizer)
        for _ in range(2)
    )
    self.assertTrue(np.all(np.isfinite(first) & (first != second)))


if __name__ == '__main__':
  absltest.main()

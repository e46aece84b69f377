"""Tests of tff_asr.learning.client_evaluation."""

import dataclasses
import functools

from absl.testing import absltest
from absl.testing import parameterized
import tensorflow as tf

from tests import fakes
from tff_asr.data import client_data as client_data_lib
from tff_asr.data import records
from tff_asr.learning import client_evaluation
from tff_asr.programs import evaluation

_CLIENTS = {'ann': 5, 'bob': 2, 'cai': 1}


@functools.lru_cache
def _model():
  return fakes.tiny_model(num_blocks=1, dropout=0.5)


def _count_errors(client_data, pipeline, weights):
  """Counts of each client, errors and words, by the client's graph."""
  open_client, read = client_data_lib.dataset_computation(client_data)
  del open_client
  count = client_evaluation.build_count(
      model=_model(), pipeline=dataclasses.replace(pipeline, read=read)
  )
  found = {}
  for client_id in client_data.client_ids:
    (client,) = client_data_lib.client_arguments(client_data, [client_id])
    if read is None:
      examples = client_data.create_tf_dataset_for_client(client_id)
    else:
      examples = tf.data.Dataset.from_tensor_slices(
          records.locations_of(client)
      )
    result = count(weights, examples)
    found[result.client_id.numpy().decode()] = (
        int(result.counts.errors), int(result.counts.words)
    )
  return found


class ClientEvaluationTest(parameterized.TestCase):

  @parameterized.named_parameters(
      ('in_memory', False, {}),
      ('on_disk', True, {}),
      # Each of these would change the counts if it were done here.
      ('on_disk_repeated', True, dict(repeats=2)),
      ('on_disk_most_too_long', True, dict(max_utterance_sec=0.6)),
      ('in_memory_most_too_long', False, dict(max_utterance_sec=0.6)),
      ('augmented', True, dict(augment=lambda features, *_: 0 * features)),
      ('small_chunks', True, dict(chunk_size=2)),
  )
  def test_equals_the_evaluation_of_all_speakers(self, on_disk, settings):
    data = (
        client_data_lib.load(fakes.shared_split(**_CLIENTS))
        if on_disk
        else fakes.client_data(_CLIENTS)
    )
    pipeline = fakes.tiny_pipeline(_model(), **settings)
    weights = _model().initialize(tf.constant([1, 2]))
    expected = evaluation.Evaluator(
        model=_model(), pipeline=pipeline, client_data=data
    )(weights).errors_by_client()
    self.assertEqual(
        _count_errors(data, pipeline, weights),
        {
            client_id: (each.errors, each.words)
            for client_id, each in expected.items()
        },
    )

  def test_a_client_without_utterances_has_no_counts(self):
    data = fakes.client_data({'ann': 1, 'bob': 0})
    count = client_evaluation.build_count(
        model=_model(), pipeline=fakes.tiny_pipeline(_model())
    )
    found = count(
        _model().initialize(tf.constant([1, 2])),
        data.create_tf_dataset_for_client('bob'),
    )
    self.assertEqual(found.client_id.numpy(), b'')
    self.assertEqual([int(each) for each in found.counts], [0] * 4)


if __name__ == '__main__':
  absltest.main()

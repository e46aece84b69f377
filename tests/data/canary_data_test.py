"""Tests of tff_asr.data.canary_data."""

import os
import tempfile

from absl.testing import absltest

from tests import fakes
from tff_asr.data import canary_data
from tff_asr.data import client_data
from tff_asr.privacy import canaries as canaries_lib

_CANARIES = canaries_lib.Canaries(num_canaries=3)


class CanaryDataTest(absltest.TestCase):

  def load(self, *people: str) -> client_data.SpeechClientData:
    root = self.enterContext(tempfile.TemporaryDirectory())
    return client_data.load(
        fakes.write_split(
            os.path.join(root, 'split'), {name: 2 for name in people}
        )
    )

  def test_people_are_as_they_were_and_canaries_carry_their_ids(self):
    people = self.load('ann', 'bob')
    data = canary_data.add_canaries(client_data=people, canaries=_CANARIES)
    self.assertEqual(
        data.client_ids, ['ann', 'bob', *_CANARIES.client_ids]
    )
    self.assertEqual(data.element_type_structure, people.element_type_structure)
    for name in people.client_ids:
      found = list(
          data.serializable_dataset_fn(name).as_numpy_iterator()
      )
      expected = list(
          people.create_tf_dataset_for_client(name).as_numpy_iterator()
      )
      self.assertLen(found, 2)
      for one, other in zip(found, expected):
        self.assertEqual(one['client_id'], name.encode())
        self.assertEqual(one['utterance_id'], other['utterance_id'])
      self.assertEqual(data.duration_sec(name), people.duration_sec(name))
    for name in _CANARIES.client_ids:
      (element,) = data.serializable_dataset_fn(name).as_numpy_iterator()
      self.assertEqual(element['client_id'], name.encode())
      self.assertEqual(data.duration_sec(name), 0)

  def test_people_who_look_like_canaries_are_refused(self):
    with self.assertRaisesRegex(ValueError, 'canary/1 has an id like a canary'):
      canary_data.add_canaries(
          client_data=self.load('ann', 'canary/1'), canaries=_CANARIES
      )


if __name__ == '__main__':
  absltest.main()

import copy
import pickle

from absl.testing import absltest
from absl.testing import parameterized
import numpy as np

from tff_asr.data import client_ids

# By code point: 'Z' comes before 'a', and a letter of three bytes after 'ü'.
_IDS = ['Zoe', 'ann', 'ann 2', 'anna', 'bob', 'ü', '日本']


class ClientIdsTest(parameterized.TestCase):

  def test_it_is_the_sequence_it_was_built_from(self):
    ids = client_ids.build(_IDS)
    self.assertLen(ids, 7)
    self.assertEqual(list(ids), _IDS)
    self.assertEqual(ids.tolist(), _IDS)
    self.assertEqual([ids[row] for row in range(-7, 7)], 2 * _IDS)
    self.assertEqual(ids[np.int64(3)], 'anna')
    self.assertEqual(ids[1:6:2], _IDS[1:6:2])
    self.assertEqual(ids, _IDS)
    self.assertEqual(ids, client_ids.build(iter(_IDS)))
    self.assertNotEqual(ids, _IDS[1:])
    self.assertNotEqual(ids, client_ids.build(_IDS[1:]))
    for row in (7, -8):
      with self.assertRaises(IndexError):
        ids[row]  # pylint: disable=pointless-statement
    self.assertIs(client_ids.build(ids), ids)
    for again in (copy.deepcopy(ids), pickle.loads(pickle.dumps(ids))):
      self.assertEqual(again, _IDS)

  def test_finds_the_row_of_every_id_and_of_no_other(self):
    for count in range(len(_IDS) + 1):
      ids = client_ids.build(_IDS[:count])
      for row, client_id in enumerate(_IDS):
        expected = row if row < count else None
        self.assertEqual(ids.find(client_id), expected)
        self.assertEqual(client_id in ids, row < count)
      for other in ('', 'A', 'an', 'ann ', 'annb', 'zz', '日本語', '\ud800', b'ann', 1):
        self.assertIsNone(ids.find(other))

  @parameterized.parameters(
      (['a', ''], "found ''"),
      (['a\tb'], r"found 'a\\tb'"),
      (['a\nb'], r"found 'a\\nb'"),
      (['a', 'a'], 'client a occurs twice'),
      (['b', 'a'], 'client a comes after b'),
      # UTF-8 has no bytes for it.
      (['\ud800'], r"found '\\ud800'"),
  )
  def test_ids_that_an_index_cannot_hold_are_named(self, ids, message):
    with self.assertRaisesRegex(ValueError, message):
      client_ids.build(ids)


if __name__ == '__main__':
  absltest.main()

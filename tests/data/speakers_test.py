import os
import tempfile

from absl.testing import absltest

from tests import fakes
from tff_asr.data import index
from tff_asr.data import speakers
from tff_asr.data import summaries

_KNOWN = {'bob': {'gender': 'male', 'age': 'teens'}, 'ann': {'age': ''}}
_COUNTS = {
    'gender': {'known': 1, 'contradictory': 0},
    'age': {'known': 1, 'contradictory': 1},
}


def _stamp(path: str) -> int:
  """Changes with each writing, since files are written anew beside it."""
  return os.stat(path).st_ino


class SpeakersTest(absltest.TestCase):

  def setUp(self):
    super().setUp()
    root = self.enterContext(tempfile.TemporaryDirectory())
    self.folder = fakes.write_split(
        os.path.join(root, 'split'), {'bob': 1, 'ann': 1, 'cai': 1}
    )

  def write(self, attributes=None, names=('gender', 'age')) -> bool:
    return speakers.write(
        self.folder,
        _KNOWN if attributes is None else attributes,
        names=names,
        counts=_COUNTS,
    )

  def read(self):
    corpus, _ = index.read(self.folder)
    return speakers.read(corpus)

  def path(self, name: str = speakers.SPEAKERS_FILE) -> str:
    return os.path.join(self.folder, name)

  def test_the_file_has_a_line_a_client_and_a_column_an_attribute(self):
    self.assertTrue(self.write())
    with open(self.path(), encoding='utf-8') as f:
      self.assertEqual(
          f.read(),
          'client_id\tgender\tage\nann\t\t\nbob\tmale\tteens\ncai\t\t\n',
      )
    # What is not said is not there.
    self.assertEqual(self.read(), {'bob': {'gender': 'male', 'age': 'teens'}})
    self.assertEqual(summaries.read(self.folder)['attributes'], _COUNTS)
    self.assertNoCommonElements(
        os.listdir(self.folder), ['speakers.tsv.partial', 'corpus.json.partial']
    )

  def test_nothing_is_written_twice(self):
    self.write()
    names = (speakers.SPEAKERS_FILE, index.CORPUS_FILE)
    before = [_stamp(self.path(name)) for name in names]
    self.assertFalse(self.write())
    self.assertEqual([_stamp(self.path(name)) for name in names], before)

  def test_the_rest_of_the_corpus_stays_as_it_is(self):
    corpus, clients = index.read(self.folder)
    names = (index.CLIENTS_FILE, index.HASH_FILE, corpus.shards[0].name)
    before = [_stamp(self.path(name)) for name in names]
    self.write()
    found, found_clients = index.read(self.folder)
    self.assertEqual(found.shards, corpus.shards)
    self.assertEqual(found_clients.client_ids, clients.client_ids)
    self.assertEqual([_stamp(self.path(name)) for name in names], before)

  def test_what_is_taken_away_leaves_the_corpus_of_before(self):
    with open(self.path(index.CORPUS_FILE), 'rb') as f:
      before = f.read()
    self.write()
    self.assertTrue(self.write(names=()))
    with open(self.path(index.CORPUS_FILE), 'rb') as f:
      self.assertEqual(f.read(), before)
    self.assertFalse(os.path.exists(self.path()))
    self.assertEqual(self.read(), {})

  def test_a_corpus_without_the_file_says_nothing(self):
    self.assertEqual(self.read(), {})
    self.assertFalse(self.write(names=()))
    self.write()
    os.remove(self.path())
    self.assertEqual(self.read(), {})
    # Asked for again, it is there again.
    self.assertTrue(self.write())
    self.assertLen(self.read(), 1)

  def test_a_file_that_no_index_names_is_not_read(self):
    with open(self.path(), 'w', encoding='utf-8') as f:
      f.write('client_id\tgender\nann\tfemale\n')
    self.assertEqual(self.read(), {})

  def test_a_damaged_file_is_named(self):
    self.write()
    with open(self.path(), 'a', encoding='utf-8') as f:
      f.write('x')
    with self.assertRaisesRegex(
        ValueError, r'split/speakers\.tsv does not have the checksum'
    ):
      self.read()
    # The index does not need it.
    index.read(self.folder)

  def test_control_characters_are_refused(self):
    for value in ('a\tb', 'a\nb'):
      with self.assertRaisesRegex(ValueError, 'the age of client bob must'):
        self.write({'bob': {'age': value}})
    self.assertFalse(os.path.exists(self.path()))


if __name__ == '__main__':
  absltest.main()

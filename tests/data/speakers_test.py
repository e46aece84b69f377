import os
import pathlib

from absl.testing import parameterized

from tests import cases
from tests import fakes
from tff_asr.data import index
from tff_asr.data import speakers
from tff_asr.data import split_summary

# dan is not in the corpus.
_SAID = {
    'gender': {'bob': {'male'}, 'dan': {'female'}},
    'age': {'bob': {'teens'}, 'ann': {'teens', 'twenties'}, 'dan': {'a', 'b'}},
    'accent': {},
}


def _stamp(path: str) -> int:
  """Changes with each writing: files are replaced by new ones."""
  return os.stat(path).st_ino


class SpeakersTest(cases.TestCase):

  def setUp(self):
    super().setUp()
    self.folder = fakes.write_split(
        os.path.join(self.root, 'split'), {'bob': 1, 'ann': 1, 'cai': 1}
    )

  def read(self):
    corpus = index.read(self.folder).corpus
    return speakers.read_attributes(corpus)

  def path(self, name: str = speakers.SPEAKERS_FILE) -> str:
    return os.path.join(self.folder, name)

  def test_one_line_a_client_with_contradictions_empty_and_counted(self):
    corpus = index.read(self.folder).corpus
    others = (index.CLIENTS_FILE, index.OFFSETS_FILE, corpus.shards[0].name)
    before = [_stamp(self.path(name)) for name in others]
    speakers.write_attributes(self.folder, _SAID)
    self.assertEqual(
        pathlib.Path(self.path()).read_text(),
        'client_id\tgender\tage\taccent\n'
        'ann\t\t\t\nbob\tmale\tteens\t\ncai\t\t\t\n',
    )
    # Unknown attributes are missing.
    self.assertEqual(self.read(), {'bob': {'gender': 'male', 'age': 'teens'}})
    self.assertEqual(
        split_summary.read(self.folder)['attributes'],
        {
            'gender': {'known': 1, 'contradictory': 0},
            'age': {'known': 1, 'contradictory': 1},
            'accent': {'known': 0, 'contradictory': 0},
        },
    )
    # The rest of the corpus stays as it is.
    self.assertEqual([_stamp(self.path(name)) for name in others], before)

  def test_removing_attributes_restores_the_corpus(self):
    before = pathlib.Path(self.path(index.CORPUS_FILE)).read_bytes()
    files = sorted(os.listdir(self.folder))
    speakers.write_attributes(self.folder, {})
    speakers.write_attributes(self.folder, _SAID)
    speakers.write_attributes(self.folder, {})
    with open(self.path(index.CORPUS_FILE), 'rb') as f:
      self.assertEqual(f.read(), before)
    self.assertEqual(sorted(os.listdir(self.folder)), files)
    self.assertEqual(self.read(), {})

  def test_a_missing_or_unindexed_file_gives_no_attributes(self):
    pathlib.Path(self.path()).write_text('client_id\tgender\nann\tfemale\n')
    self.assertEqual(self.read(), {})
    speakers.write_attributes(self.folder, _SAID)
    os.remove(self.path())
    self.assertEqual(self.read(), {})
    speakers.write_attributes(self.folder, _SAID)
    self.assertLen(self.read(), 1)

  @parameterized.parameters(0, 0.5, 1)
  def test_a_damaged_file_is_named(self, place):
    speakers.write_attributes(self.folder, _SAID)
    fakes.damage(self.path(), place)
    message = r'split/speakers\.tsv does not have the checksum'
    # The index does not need it.
    with self.assertRaisesRegex(ValueError, message):
      self.read()

  @parameterized.parameters('a\tb', 'a\nb')
  def test_control_characters_are_refused(self, value):
    with self.assertRaisesRegex(ValueError, 'the age of client bob must'):
      speakers.write_attributes(self.folder, {'age': {'bob': {value}}})
    self.assertFalse(os.path.exists(self.path()))

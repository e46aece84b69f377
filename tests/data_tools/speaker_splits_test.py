import collections
import pathlib

from absl.testing import parameterized

from data_tools import speaker_splits
from data_tools import utterances
from tests import cases

_SPEAKERS = [f's{i}' for i in range(40)]


class SpeakerSplitsTest(cases.TestCase):

  @parameterized.parameters(range(5))
  def test_parts_are_disjoint_and_rest_takes_all(self, seed):
    split = lambda speakers, seed: speaker_splits.partition(
        speakers, spec='public=24, private=rest,dev=4,test=10%', seed=seed
    )
    parts = split(_SPEAKERS, seed)
    self.assertEqual(
        [(name, len(part)) for name, part in parts.items()],
        [('public', 24), ('private', 8), ('dev', 4), ('test', 4)],
    )
    self.assertCountEqual(sum(parts.values(), []), _SPEAKERS)
    for part in parts.values():
      self.assertEqual(part, sorted(part))
    self.assertEqual(parts, split(_SPEAKERS[::-1], seed))
    self.assertNotEqual(parts, split(_SPEAKERS, seed + 1))

  def test_the_split_is_the_same_on_every_machine(self):
    # SHA-256 of '0:f', '0:d', '0:a', '0:c', '0:b', '0:e' begins with 49, 7d,
    # 9d, be, e021, e078.
    parts = speaker_splits.partition('abcdefa', spec='x=2,y=rest', seed=0)
    self.assertEqual(parts, {'x': ['d', 'f'], 'y': ['a', 'b', 'c', 'e']})

  def test_listed_speakers(self):
    path = self.path('test.txt')
    pathlib.Path(path).write_text('s3\ns7\n\n')
    parts = speaker_splits.partition(
        _SPEAKERS, spec=f'seed=30,test=@{path},rest=rest', seed=1
    )
    self.assertEqual(parts['test'], ['s3', 's7'])
    self.assertLen(parts['seed'], 30)
    self.assertLen(parts['rest'], 8)
    with self.assertRaisesRegex(ValueError, "part 'b': speaker s3 .* is taken"):
      speaker_splits.partition(
          _SPEAKERS, spec=f'a=@{path},b=@{path}', seed=1
      )
    with self.assertRaisesRegex(ValueError, 'speaker s3 .* is unknown'):
      speaker_splits.partition(['s1', 's2'], spec=f'a=@{path}', seed=1)
    with self.assertRaisesRegex(ValueError, 'cannot read the list'):
      speaker_splits.partition(_SPEAKERS, spec='a=@no/file', seed=1)

  @parameterized.parameters(
      ('a=41', 'asks for 41 speakers .a=41., but there are 40'),
      ('a=30,b=11', 'asks for 41 speakers'),
      ('a=101%', "cannot read 'a=101%'"),
      ('a=60%,b=50%', 'asks for 44 speakers .a=24, b=20.'),
      ('a=rest,b=rest', "'rest' twice"),
      ('a=1,a=2', "part 'a' twice"),
      ('a=40,b=rest', "part 'b' .* is empty"),
      ('a=0', "part 'a' .* is empty"),
      ('a=1%', "part 'a' .* is empty"),
      ('', 'cannot read'),
      ('a', "cannot read 'a'"),
      ('a=-3', "cannot read 'a=-3'"),
      ('a=3.5', "cannot read 'a=3.5'"),
      ('a/b=3', "cannot read 'a/b=3'"),
  )
  def test_refuses(self, spec, message):
    with self.assertRaisesRegex(ValueError, message):
      speaker_splits.partition(_SPEAKERS, spec=spec, seed=1)

  def test_shares_are_rounded_down_as_in_the_paper(self):
    # Table 2 of https://arxiv.org/abs/2310.00098: 5 % and 10 % of 34,753
    # English, 6,856 French and 7,127 German speakers.
    for count, spec, expected in (
        (34753, '5%', 1737), (34753, '10%', 3475), (6856, '10%', 685),
        (7127, '10%', 712), (1000, '2.5%', 25), (1000, '0.29%', 2),
    ):
      speakers = [str(i) for i in range(count)]
      parts = speaker_splits.partition(
          speakers, spec=f'seed={spec},federated=rest', seed=1
      )
      self.assertLen(parts['seed'], expected)
      self.assertLen(parts['federated'], count - expected)
      self.assertEmpty(set(parts['seed']) & set(parts['federated']))

  def test_repartition_depends_on_the_seed_and_the_utterance(self):
    listed = [
        utterances.Utterance(f's{i % 7}', f'u{i}', 'a', 'x') for i in range(700)
    ]
    assigned = speaker_splits.repartition(listed, seed=1)
    names = {u.utterance_id: u.client_id for u in assigned}
    self.assertCountEqual(
        names, [f'{u.client_id}/{u.utterance_id}' for u in listed]
    )
    again = speaker_splits.repartition(listed[::-1], seed=1)
    self.assertEqual(names, {u.utterance_id: u.client_id for u in again})
    other = speaker_splits.repartition(listed, seed=2)
    self.assertNotEqual(names, {u.utterance_id: u.client_id for u in other})
    # 100 expected of each; 60 and 140 are 4.3 standard deviations off.
    for count in collections.Counter(names.values()).values():
      self.assertBetween(count, 60, 140)

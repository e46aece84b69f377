import collections

from absl.testing import absltest
from absl.testing import parameterized
import numpy as np

from data_tools import utterances


class CuttingTest(parameterized.TestCase):

  @parameterized.named_parameters(
      # Without activity: equal parts.
      ('short', 10, 16, None, [(0, 10)]),
      ('exact', 16, 16, None, [(0, 16)]),
      ('halves', 17, 16, None, [(0, 8), (8, 17)]),
      # Joined with the silence between while it fits: 0 to 9, then 12 to 25.
      (
          'joined',
          30,
          14,
          [(0, 4), (6, 9), (12, 20), (22, 25)],
          [(0, 9), (12, 25)],
      ),
      ('too_long_for_one', 30, 10, [(2, 26)], [(2, 10), (10, 18), (18, 26)]),
      ('beyond_the_end', 10, 16, [(2, 5), (8, 12), (14, 15)], [(2, 10)]),
      ('no_voice', 10, 16, [], []),
      ('empty_stretch', 10, 16, [(3, 3)], []),
  )
  def test_records(self, num_samples, max_samples, activity, expected):
    self.assertEqual(
        utterances.cut(num_samples, max_samples=max_samples, activity=activity),
        expected,
    )

  def test_two_halves_of_the_longest_length_are_two_records(self):
    # 2.01 * 16000 is below 32160 in floating point.
    pieces = utterances._pieces(
        utterances.Cutting(max_sec=2.01),
        np.zeros(2 * 32_160, np.int16),
        changes=collections.Counter(),
    )
    self.assertEqual([len(piece) for _, piece in pieces], [32_160] * 2)

  def test_activity_in_samples(self):
    self.assertIsNone(utterances.parse_activity({'speaker': '100'}))
    self.assertEqual(
        utterances.parse_activity({'voice_activity': [[0.5, 1], [1.25, 2.0]]}),
        [(8000, 16000), (20000, 32000)],
    )

  @parameterized.parameters(
      [{'voice_activity': [[1, 0.5]]}, 'in order of time'],
      [{'voice_activity': [[0, 2], [1, 3]]}, 'in order of time'],
      [{'voice_activity': [[0]]}, r'must list \[start, end\]'],
      [{'voice_activity': 5}, r'must list \[start, end\]'],
      [{'voice_activity': [[0, float('inf')]]}, r'must list \[start, end\]'],
      [{'voice_activity': [[0, float('nan')]]}, r'must list \[start, end\]'],
      [[], 'must hold an object, found'],
      [None, 'must hold an object, found'],
  )
  def test_bad_activity(self, metadata, message):
    with self.assertRaisesRegex(ValueError, message):
      utterances.parse_activity(metadata)


class AttributesTest(absltest.TestCase):

  def test_attributes_are_gathered_by_client_and_cleaned(self):
    rows = [
        ('ann', {'gender': 'female', 'age': 'teens'}),
        ('ann', {'gender': '', 'age': 'twenties'}),
        ('bob', {'gender': ' male\t', 'age': '', 'shoes': '44'}),
        ('bob', {'gender': 'male'}),
        ('cai', {'age': ' x \t\n\0 y\u2028z '}),
    ]
    self.assertEqual(
        utterances.gather_attributes(['gender', 'age', 'accent'], rows),
        {
            'gender': {'ann': {'female'}, 'bob': {'male'}},
            'age': {'ann': {'teens', 'twenties'}, 'cai': {'x y z'}},
            'accent': {},
        },
    )

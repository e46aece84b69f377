from absl.testing import absltest
from absl.testing import parameterized

from data_tools import cutting


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
        cutting.cut(num_samples, max_samples=max_samples, activity=activity),
        expected,
    )

  def test_activity_in_samples(self):
    self.assertIsNone(cutting.parse_activity({'speaker': '100'}))
    self.assertEqual(
        cutting.parse_activity({'voice_activity': [[0.5, 1], [1.25, 2.0]]}),
        [(8000, 16000), (20000, 32000)],
    )

  @parameterized.parameters(
      [[[1, 0.5]]],
      [[[0, 2], [1, 3]]],
      [[[0]]],
      [5],
      [[[0, float('inf')]]],
      [[[0, float('nan')]]],
  )
  def test_bad_activity(self, activity):
    with self.assertRaisesRegex(ValueError, 'voice_activity'):
      cutting.parse_activity({'voice_activity': activity})

  @parameterized.parameters([[]], [None], [3])
  def test_json_of_another_shape(self, metadata):
    with self.assertRaisesRegex(ValueError, 'must hold an object, found'):
      cutting.parse_activity(metadata)


if __name__ == '__main__':
  absltest.main()

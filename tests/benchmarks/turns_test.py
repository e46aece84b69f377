"""What is measured in turn, and the shares made of it."""

from absl.testing import absltest

from benchmarks import turns


class TurnsTest(absltest.TestCase):

  def test_runs_take_turns_and_the_first_turn_does_not_count(self):
    ran = []
    seconds = turns.measure(
        {name: lambda name=name: ran.append(name) for name in 'ab'}, repeats=2
    )
    self.assertEqual(ran, ['a', 'b'] * 3)
    self.assertEqual({name: len(found) for name, found in seconds.items()},
                     {'a': 2, 'b': 2})

  def test_ratios_are_turn_by_turn(self):
    self.assertEqual(turns.ratios([6.0, 2.0], [3.0, 4.0]), [2.0, 0.5])

  def test_shares_are_turn_by_turn(self):
    # 12 units in 1, 2 and 3 s are paces of 12, 6 and 4; of 24, 24 and 4 that is
    # .5, .25 and 1.
    self.assertEqual(
        turns.shares_of_paces(12.0, [1.0, 2.0, 3.0], [24.0, 24.0, 4.0]),
        [0.5, 0.25, 1.0],
    )

  def test_refuses(self):
    with self.assertRaisesRegex(ValueError, 'repeats'):
      turns.measure({}, repeats=0)


if __name__ == '__main__':
  absltest.main()

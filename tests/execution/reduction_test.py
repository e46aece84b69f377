"""Tests of tff_asr.execution.reduction."""

from absl.testing import absltest
from absl.testing import parameterized

from tff_asr.execution import reduction


def _merge(total: str, part: str) -> str:
  return f'({total} {part})'


def _in_order(num_blocks: int) -> str:
  return reduction.merge_in_order(
      map(str, range(num_blocks)), num_blocks=num_blocks, merge=_merge
  )


class MergingTest(parameterized.TestCase):

  def test_up_to_the_fan_in_it_is_a_fold_from_the_left(self):
    self.assertEqual(reduction.FAN_IN, 8)
    self.assertEqual(_in_order(1), '0')
    self.assertEqual(_in_order(4), '(((0 1) 2) 3)')
    self.assertEqual(
        reduction.plan(8), [reduction.Merge(8, tuple(range(8)))]
    )

  def test_neighbours_are_merged_before_their_sums(self):
    # Blocks 0 to 7 make sum 10, blocks 8 and 9 sum 11, and these sum 12.
    self.assertEqual(
        reduction.plan(10),
        [(10, tuple(range(8))), (11, (8, 9)), (12, (10, 11))],
    )
    self.assertEqual(
        _in_order(10),
        '((((((((0 1) 2) 3) 4) 5) 6) 7) (8 9))',
    )

  def test_a_lone_neighbour_moves_up_as_it_is(self):
    # 9 blocks: the ninth has no neighbour.
    self.assertEqual(
        reduction.plan(9), [(9, tuple(range(8))), (10, (9, 8))]
    )

  @parameterized.parameters(2, 7, 8, 9, 63, 64, 65, 513)
  def test_merging_by_plan_equals_merging_in_order(self, num_blocks):
    sums = {number: str(number) for number in range(num_blocks)}
    for merge in reduction.plan(num_blocks):
      first, *others = merge.parts
      total = sums.pop(first)  # Each sum is used once.
      for part in others:
        total = _merge(total, sums.pop(part))
      sums[merge.number] = total
    self.assertEqual(list(sums.values()), [_in_order(num_blocks)])

  def test_parts_are_asked_for_as_late_as_possible(self):
    held, most = 0, 0

    def partials():
      nonlocal held, most
      for _ in range(512):
        held += 1
        most = max(most, held)
        yield 1

    def merge(total, part):
      nonlocal held
      held -= 1
      return total + part

    total = reduction.merge_in_order(partials(), num_blocks=512, merge=merge)
    self.assertEqual(total, 512)
    # One sum for each of three levels, and the part that just came.
    self.assertEqual(most, 4)

  def test_nothing_to_merge(self):
    self.assertEmpty(reduction.plan(0))
    self.assertEmpty(reduction.plan(1))


if __name__ == '__main__':
  absltest.main()

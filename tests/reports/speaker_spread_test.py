"""Tests of tff_asr.reports.speaker_spread."""

from absl.testing import absltest

from tff_asr.reports import speaker_spread


def _counts(wrong: int, words: int) -> dict[str, int]:
  return {
      'substitutions': wrong, 'deletions': 0, 'insertions': 0, 'words': words
  }


class SpeakerSpreadTest(absltest.TestCase):

  def test_wrong_words_are_of_all_kinds(self):
    counts = {'substitutions': 1, 'deletions': 2, 'insertions': 4, 'words': 9}
    self.assertEqual(speaker_spread.num_wrong(counts), 7)

  def test_speakers_are_sorted_and_those_without_words_left_out(self):
    found = speaker_spread.by_rate(
        {'a': _counts(5, 10), 'b': _counts(1, 10), 'c': _counts(3, 0)}
    )
    self.assertEqual(found, [(0.1, 10), (0.5, 10)])

  def test_worst_tenth_by_hand(self):
    # Two of twenty: 9 of 10 and 20 of 40 words wrong, so 29 of 50.
    speakers = speaker_spread.by_rate(
        {str(i): _counts(1, 100) for i in range(18)}
        | {'x': _counts(9, 10), 'y': _counts(20, 40)}
    )
    self.assertAlmostEqual(speaker_spread.worst_tenth(speakers), 29 / 50)

  def test_worst_tenth_is_one_speaker_at_least(self):
    speakers = speaker_spread.by_rate({'a': _counts(1, 4), 'b': _counts(3, 4)})
    self.assertAlmostEqual(speaker_spread.worst_tenth(speakers), 0.75)


if __name__ == '__main__':
  absltest.main()

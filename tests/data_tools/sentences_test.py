import collections

from absl.testing import absltest
from absl.testing import parameterized
import numpy as np

from data_tools import sentences


class SentencesTest(parameterized.TestCase):

  def test_sentences_belong_to_one_split_by_hash(self):
    splits = collections.Counter(
        sentences.split_of(f'sentence {i}') for i in range(8000)
    )
    for split, share in (('train', 6 / 8), ('dev', 1 / 8), ('test', 1 / 8)):
      self.assertAlmostEqual(splits[split] / 8000, share, delta=0.02)

  @parameterized.parameters('train', 'dev', 'test')
  def test_draws_distinct_sentences_of_the_split(self, split):
    drawn = sentences.draw(np.random.default_rng(1), split=split, count=40)
    self.assertLen(set(drawn), 40)
    for sentence in drawn:
      self.assertEqual(sentences.split_of(sentence), split)
      self.assertRegex(sentence, r'\A[a-z]+( [a-z]+){2,7}\Z')

  def test_same_generator_state_gives_the_same_sentences(self):
    draw = lambda seed: sentences.draw(
        np.random.default_rng(seed), split='train', count=10
    )
    self.assertEqual(draw(1), draw(1))
    self.assertNotEqual(draw(1), draw(2))


if __name__ == '__main__':
  absltest.main()

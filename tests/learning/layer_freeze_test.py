"""Tests of tff_asr.learning.layer_freeze.match; pretrain_test has the rest."""

from absl.testing import parameterized

from tff_asr.learning import layer_freeze

_NAMES = ('front/kernel', 'front/bias', 'block_00/w1', 'head/kernel')


class MatchTest(parameterized.TestCase):

  @parameterized.parameters(
      ((), []),
      (('head/kernel',), ['head/kernel']),
      (('front/.*',), ['front/bias', 'front/kernel']),
      # Whole names: not that of the head.
      (('kernel', '.*/bias'), None),
      (('.*/bias', 'front/.*'), ['front/bias', 'front/kernel']),
  )
  def test_by_hand(self, patterns, expected):
    if expected is None:
      with self.assertRaisesRegex(ValueError, "'kernel' is the name of no"):
        layer_freeze.match(patterns, _NAMES)
    else:
      self.assertEqual(layer_freeze.match(patterns, _NAMES), expected)

  @parameterized.parameters(
      (('.*',), 'names all layers: nothing is left'),
      (('front/(',), 'no regular expression'),
      ('front/.*', 'must be a list'),
  )
  def test_bad_patterns_are_named(self, patterns, message):
    with self.assertRaisesRegex(ValueError, message):
      layer_freeze.match(patterns, _NAMES)

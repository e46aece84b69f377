"""Tests of tff_asr.learning.layer_freeze."""

from absl.testing import parameterized
import numpy as np

from tff_asr.learning import layer_freeze
from tff_asr.models import conformer
from tff_asr.models import weights as weights_lib

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
      with self.assertRaisesRegex(ValueError, "'kernel' is found in none of"):
        layer_freeze.match(patterns, _NAMES)
    else:
      self.assertEqual(layer_freeze.match(patterns, _NAMES), expected)

  @parameterized.parameters(
      (('.*',), 'names all layers: nothing is left'),
      (('front/(',), 'not a regular expression'),
      ('front/.*', 'must be a list'),
  )
  def test_bad_patterns_are_named(self, patterns, message):
    with self.assertRaisesRegex(ValueError, message):
      layer_freeze.match(patterns, _NAMES)


# 100 parameters in two blocks of three modules, and a head.
_SPECS = {
    name: weights_lib.zeros_spec(size)
    for name, size in {
        'block_00/a/w1': 30,
        'block_00/a/w2': 10,
        'block_00/ln/bias': 1,
        'block_00/ln/scale': 1,
        'block_01/a/w1': 30,
        'block_01/a/w2': 10,
        'head/bias': 2,
        'head/kernel': 16,
    }.items()
}
_SCORES = {
    'block_00/a/w1': 0.03,
    'block_00/a/w2': 0.4,
    'block_00/ln/bias': 0.02,
    'block_00/ln/scale': 0.02,
    'block_01/a/w1': 0.2,
    'block_01/a/w2': 0.05,
    'head/bias': 0.08,
    'head/kernel': 0.2,
}


class LayerFreezeTest(parameterized.TestCase):

  @parameterized.parameters(
      # In order: bias 1, scale 1 (as much; by name), w1 30, w2 10, head's bias
      # 2, then block_01's w1 with 30. Of 44 and 74 parameters 44 is nearer.
      (
          dict(share=0.5),
          ['block_00/a/w1', 'block_00/ln/bias', 'block_00/ln/scale',
           'block_01/a/w2', 'head/bias'],
      ),
      (dict(share=0.01), ['block_00/ln/bias']),
      (dict(share=0.0), []),
      # w2 10, head's kernel 16, block_01's w1 30.
      (
          dict(share=0.5, order='highest'),
          ['block_00/a/w2', 'block_01/a/w1', 'head/kernel'],
      ),
  )
  def test_choices_by_hand(self, options, expected):
    found = layer_freeze.LayerFreeze(**options).choose(_SCORES, _SPECS)
    self.assertEqual(found, expected)

  def test_random_orders_differ_by_seed_and_not_by_score(self):
    choose = lambda seed, scores: tuple(
        layer_freeze.LayerFreeze(share=0.5, order='random', seed=seed).choose(
            scores, _SPECS
        )
    )
    other = {name: 1 - score for name, score in _SCORES.items()}
    found = [choose(seed, _SCORES) for seed in range(9)]
    self.assertEqual(found, [choose(seed, other) for seed in range(9)])
    self.assertGreater(len(set(found)), 3)

  @parameterized.parameters(0.25, 0.5, 0.75)
  def test_a_share_of_the_300m_model_is_of_its_parameters(self, share):
    specs = conformer.build(
        num_blocks=12, dim=1024, mlp_dim=4096, num_heads=8
    ).specs
    scores = {
        name: weights_lib.num_parameters({name: specs[name]}) * (1 + number % 7)
        for number, name in enumerate(sorted(specs))
    }
    frozen = layer_freeze.LayerFreeze(share=share).choose(scores, specs)
    part = weights_lib.num_parameters({name: specs[name] for name in frozen})
    found = part / weights_lib.num_parameters(specs)
    self.assertBetween(found, share - 1 / 48, share + 1 / 48)
    self.assertRegex(
        layer_freeze.describe(frozen, specs),
        rf'^{len(frozen)} of {len(specs)} tensors .*, with {part:,} of .*'
        rf'\({100 * found:.1f} %\); .* is {np.sqrt(1 - found):.3f} of',
    )

  @parameterized.parameters(
      (dict(share=1), 'share must be below 1'),
      (dict(share=-0.1), 'share'),
      (dict(share=0.5, order='best'), 'order'),
  )
  def test_bad_settings_are_named(self, options, message):
    with self.assertRaisesRegex(ValueError, message):
      layer_freeze.LayerFreeze(**options)

  def test_bad_scores_are_named(self):
    with self.assertRaisesRegex(ValueError, 'score of head/bias'):
      layer_freeze.LayerFreeze(share=0.5).choose(
          _SCORES | {'head/bias': np.nan}, _SPECS
      )

"""Tests of tff_asr.privacy.clipping; queries_test tests clipped records."""

import collections
import math

from absl.testing import absltest
from absl.testing import parameterized
import numpy as np
import tensorflow as tf

from tests import fakes
from tff_asr.models import weights as weights_lib
from tff_asr.privacy import clipping as clipping_lib


def _specs(**sizes: int):
  """A record of vectors by name; `__` stands for a slash."""
  return collections.OrderedDict(
      (name.replace('__', '/'), tf.TensorSpec([size], tf.float32))
      for name, size in sizes.items()
  )


def _shares(record, **clipping) -> dict[str, float]:
  layers = clipping_lib.Clipping(**clipping).divide(record)
  return {layer.name: layer.share for layer in layers}


class SplitsTest(absltest.TestCase):

  def test_splits_by_hand(self):
    for split, sizes, shares in (
        ('uniform', [7, 1, 1, 100], [0.5] * 4),
        ('dim', [9, 16], [0.6, 0.8]),
        ('uniform', [3], [1]),
        ('dim', [3], [1]),
    ):
      np.testing.assert_allclose(clipping_lib.SPLITS[split](sizes), shares)


class DivideTest(parameterized.TestCase):

  def test_layers_of_a_nest_are_named_by_the_way_to_them(self):
    spec = tf.TensorSpec([2], tf.float32)
    layers = clipping_lib.Clipping().divide(
        [spec, {'b': (spec, spec), 'a': spec}]
    )
    self.assertEqual(
        layers,
        [
            clipping_lib.Layer('0', (0,), None),
            clipping_lib.Layer('1/a', (1,), None),
            clipping_lib.Layer('1/b/0', (2,), None),
            clipping_lib.Layer('1/b/1', (3,), None),
        ],
    )
    self.assertEqual(clipping_lib.Clipping().divide(spec)[0].name, 'update')

  def test_modules_by_hand(self):
    # Sizes 5 (x), 7 (block_00/w1) and 2 + 2 (block_00/ln1), of 16.
    record = _specs(
        block_00__ln1__bias=2, block_00__ln1__scale=2, block_00__w1=7, x=5
    )
    layers = clipping_lib.Clipping(split='dim', layers='modules').divide(record)
    self.assertEqual(
        [(layer.name, layer.indices) for layer in layers],
        [('block_00/ln1', (0, 1)), ('block_00/w1', (2,)), ('x', (3,))],
    )
    np.testing.assert_allclose(
        [layer.share for layer in layers],
        [math.sqrt(4 / 16), math.sqrt(7 / 16), math.sqrt(5 / 16)],
    )
    np.testing.assert_allclose(
        list(_shares(record, split='uniform', layers='modules').values()),
        [1 / math.sqrt(3)] * 3,
    )

  def test_the_modules_of_the_transformer(self):
    specs = weights_lib.tensor_specs(fakes.tiny_model(num_blocks=2).specs)
    names = list(_shares(specs, split='dim', layers='modules'))
    parts = ('ln1', 'ln2', 'w1', 'w2', 'wf', 'wqkv')
    self.assertEqual(
        names,
        [f'block_{i:02}/{part}' for i in range(2) for part in parts]
        + ['front', 'head', 'norm'],
    )
    layers = clipping_lib.Clipping(layers='modules').divide(specs)
    places = [place for layer in layers for place in layer.indices]
    self.assertEqual(sorted(places), list(range(len(specs))))

  @parameterized.parameters(
      ('w', 'w'),
      ('head/bias', 'head'),
      ('block_3/w1', 'block_3/w1'),
      ('block_103/ln1/bias', 'block_103/ln1'),
      ('encoder/block_00/wf', 'encoder/block_00/wf'),
      ('encoder/block_00/conv/kernel', 'encoder/block_00/conv'),
      ('blocks/w1', 'blocks'),
  )
  def test_module_names(self, name, module):
    self.assertEqual(clipping_lib.module_name(name), module)

  def test_weights_by_hand(self):
    for split, sizes, weights, squares in (
        # Norms as 2 to 1 to 1.
        ('uniform', (1, 1, 1), {'a': 2.0}, (4, 1, 1)),
        # Squares as 4 * 3 to .25 * 8 to 2.
        ('dim', (3, 8, 2), {'a': 2.0, '^b': 0.5}, (12, 2, 2)),
        # The paper's factor of dimensions, beta = 3, is a squared weight.
        ('dim', (12, 12, 4), {'[ab]': math.sqrt(3)}, (36, 36, 4)),
    ):
      record = _specs(**dict(zip('abc', sizes)))
      np.testing.assert_allclose(
          list(_shares(record, split=split, weights=weights).values()),
          np.sqrt(np.array(squares) / sum(squares)),
      )

  @parameterized.product(
      split=('uniform', 'dim'),
      layers=clipping_lib.LAYERS,
      weights=(None, {'ln': 0.1, '/w[12]$': 7.0}),
  )
  def test_squares_of_a_model_s_shares_sum_to_1(self, split, layers, weights):
    specs = weights_lib.tensor_specs(fakes.tiny_model().specs)
    shares = _shares(specs, split=split, layers=layers, weights=weights)
    self.assertAlmostEqual(sum(share**2 for share in shares.values()), 1)

  @parameterized.named_parameters(
      ('split', dict(split='layer'), "split must .* found 'layer'"),
      ('no_split', dict(split=None), 'split must'),
      ('layers', dict(layers='blocks'), "layers must .* found 'blocks'"),
      ('rule', dict(rule='scale'), "rule must .* found 'scale'"),
      ('weights_of_one', dict(weights={'a': 2.0}), 'weights divide C'),
      (
          'zero_weight',
          dict(split='dim', weights={'a': 0.0}),
          'weight of a must be between 0.001 and 1000.0, found 0.0',
      ),
      (
          'text',
          dict(split='dim', weights={'a': 'b'}),
          "weight of a must .* found 'b'",
      ),
  )
  def test_bad_arguments_are_named(self, arguments, message):
    with self.assertRaisesRegex(ValueError, message):
      clipping_lib.Clipping(**arguments)

  def test_patterns_must_find_layers_that_no_other_finds(self):
    for pattern, message in (
        ('z', "'z' is found in none of the 2"),
        ('(', r"weights: '\(' is not a regular expression"),
        ('b$', "ab is found by 'b\\$' and by another"),
    ):
      with self.assertRaisesRegex(ValueError, message):
        _shares(_specs(ab=1, b=1), split='dim', weights={'^a': 2.0, pattern: 3})

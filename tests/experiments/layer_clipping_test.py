"""Tests of experiments.layer_clipping: hand-checked on two layers."""

import itertools
import math
import os
import types
from unittest import mock

import numpy as np
import tensorflow as tf

from experiments import layer_clipping
from tests import cases
from tff_asr.models import weights as weights_lib

# A layer of four elements and one of one: D = 5, dim shares .8 and .2 squared.
_SPECS = {
    'a': weights_lib.WeightSpec((4,), offset=1.0),
    'b': weights_lib.WeightSpec((1,), offset=1.0),
}


def _measure(a: float, b: float, *, num_replicates=1):
  """What is measured of clients that all have one delta: (a, a, a, a), (b)."""
  delta = weights_lib.Weights(
      a=tf.fill([4], a), b=tf.fill([1], b)
  )
  found = layer_clipping.measure(
      model=types.SimpleNamespace(specs=_SPECS),
      weights=weights_lib.initialize(_SPECS, tf.constant([1, 0])),
      deltas=lambda: itertools.repeat(delta),
      num_replicates=num_replicates,
      num_rounds=2,
      cohort_size=3,
  )
  return found


def _row(found, **wanted):
  (row,) = [
      row
      for row in found['rows']
      if all(row[name] == value for name, value in wanted.items())
  ]
  return row


class LayerClippingTest(cases.TestCase):

  def test_clips_as_by_hand(self):
    # Norms: a 2 * .3 = .6, b .8; together 1, the median. With C = 1 / 8, a
    # global clip keeps the direction; `uniform` brings both to C / sqrt(2);
    # `dim` brings a to C sqrt(.8), b to C sqrt(.2).
    found = _measure(0.3, 0.8)
    self.assertEqual(found['num_elements'], 5)
    self.assertAlmostEqual(found['median_norm'], 1.0, places=6)
    cases = {
        'global': 1.0,
        'uniform': (0.6 + 0.8) / math.sqrt(2),
        'dim': 0.6 * math.sqrt(0.8) + 0.8 * math.sqrt(0.2),
    }
    for split, cosine in cases.items():
      row = _row(found, split=split, step='mean')
      self.assertAlmostEqual(row['bias'], cosine, places=5)
      self.assertAlmostEqual(row['signal'], 1.0, places=5)
      self.assertEqual((row['clients_clipped'], row['layers_clipped']), (1, 1))

  def test_only_what_exceeds_its_clip_is_clipped(self):
    # With C the median norm 1: b exceeds C / sqrt(2), a does not.
    row = _row(_measure(0.3, 0.8), split='uniform', clip=1.0)
    self.assertEqual(row['clients_clipped'], 1)
    self.assertAlmostEqual(row['layers_clipped'], 0.5)
    self.assertAlmostEqual(row['signal'], math.sqrt(0.36 + 0.5), places=5)

  def test_noise_by_layer_is_as_by_hand(self):
    # Noise of norm .63 C, of which sqrt(4 / 5) falls on a, sqrt(1 / 5) on b;
    # the clipped mean of `global` has .6 C and .8 C there.
    row = _row(_measure(0.3, 0.8), split='global', step='mean')
    a, b = 0.63 * math.sqrt(0.8) / 0.6, 0.63 * math.sqrt(0.2) / 0.8
    np.testing.assert_allclose(
        row['noise_over_signal'], [a, (a + b) / 2, b], rtol=1e-5
    )

  def test_noise_of_the_stated_norm_turns_the_mean(self):
    # The cosine of g + n with g, where |n| / |g| is .63, over many draws.
    case = (1 / 8, 0.63, 'mean')
    with mock.patch.object(layer_clipping, '_cases', lambda: [case]):
      found = _measure(0.3, 0.8, num_replicates=200)
    gains = [
        row['gain']
        for row in found['rows']
        if (row['split'], row['step']) == ('global', 'mean')
    ]
    rng = np.random.default_rng(7)
    g = np.array([0.3] * 4 + [0.8])
    drawn = g + 0.63 / math.sqrt(5) * rng.standard_normal((100_000, 5))
    expected = np.mean(drawn @ g / np.linalg.norm(drawn, axis=1))
    self.assertAlmostEqual(np.mean(gains), expected, delta=0.04)
    self.assertGreater(np.std(gains), 0)

  def test_a_report_has_all_that_was_measured(self):
    path = self.path('layer_clipping.md')
    found = _measure(0.3, 0.8, num_replicates=2)
    layer_clipping.write({'small': found, 'other': found}, path=path)
    with open(path, encoding='utf-8') as file:
      text = file.read()
    rows = [line.split('|')[1:-1] for line in text.splitlines()]
    titles = [' '.join(each).split() for each in rows]
    noises = [f'{noise:g}' for noise in layer_clipping._NOISES]
    self.assertIn(['model', *noises], titles)
    for name in ('small', 'other'):
      by_noise, by_case = [
          row[1:] for row in rows if row and row[0].strip() == name
      ]
      for cell in (*by_noise, *by_case):
        self.assertRegex(cell.strip(), r'^(-?\d\.\d\d( / )?){3}( [-+])?$')
    self.assertNotIn('nan', text)
    self.assertIn('small: 5 in 2 layers. Median norms are 1 to 1.', text)
    self.assertGreater(
        os.path.getsize(self.path('results', 'layer_clipping.png')), 1000
    )

  def test_states_have_distinct_names_and_known_settings(self):
    names = [state.name for state in layer_clipping.STATES]
    self.assertCountEqual(names, set(names))
    runs = {}
    for state in layer_clipping.STATES:
      run = layer_clipping._run(state)
      self.assertEqual(runs.setdefault(run.name, run), run)

"""Noise on some layers only."""

import collections

from absl.testing import absltest
from absl.testing import parameterized
import numpy as np
import tensorflow as tf

from tff_asr.privacy import clipping as clipping_lib
from tff_asr.privacy import partial_query
from tff_asr.privacy import queries

_KEY = np.array([1, -2, 3, 2**31 - 1], np.int32)
_SUM = collections.OrderedDict(
    block_00=collections.OrderedDict(
        w1=tf.ones([3, 2]), wf=tf.fill([5], 2.0)
    ),
    head=tf.fill([4], 3.0),
)
_ARGUMENTS = {
    'l2_norm_clip': 0.5,
    'noise_multiplier': 2.0,
    'clipping': clipping_lib.Clipping(split='uniform'),
}


def _noised(query):
  """The sum with a query's noise, the next state and the event."""
  state = queries.set_noise_key(query.initial_global_state(), _KEY)
  return query.get_noised_result(_SUM, state)


class PartialNoiseTest(parameterized.TestCase):

  def _query(self, *noised):
    return partial_query.PartialNoiseQuery(noised=noised, **_ARGUMENTS)

  def test_chosen_layers_have_the_bits_of_noise_everywhere_others_none(self):
    everywhere, _, _ = _noised(queries.PerLayerClipSumQuery(**_ARGUMENTS))
    result, state, _ = _noised(self._query('/w1$', 'head'))
    for path in (('block_00', 'w1'), ('head',)):
      expected, found, plain = everywhere, result, _SUM
      for key in path:
        expected, found, plain = expected[key], found[key], plain[key]
      np.testing.assert_array_equal(found, expected)
      self.assertTrue(np.all(np.not_equal(found, plain)))
    np.testing.assert_array_equal(
        result['block_00']['wf'], _SUM['block_00']['wf']
    )
    self.assertEqual(int(state.counter), 1)

  def test_a_round_counts_as_one_without_noise(self):
    _, _, event = _noised(self._query('head'))
    self.assertEqual(float(event.noise_multiplier), 0.0)

  def test_noised_elements_by_hand(self):
    # w1 has 3 x 2, wf 5, the head 4.
    self.assertEqual(self._query('/w').num_noised(_SUM), 11)
    self.assertEqual(self._query('head').num_noised(_SUM), 4)
    whole = queries.PerLayerClipSumQuery(**_ARGUMENTS)
    self.assertEqual(whole.num_noised(_SUM), 15)

  def test_all_layers_are_clipped(self):
    query = self._query('head')
    params = query.derive_sample_params(query.initial_global_state())
    record = tf.nest.map_structure(lambda value: 100 * value, _SUM)
    clipped = query.preprocess_record(params, record)
    for layer in tf.nest.flatten(clipped):
      # C / sqrt(H) = .5 / sqrt(3).
      self.assertAlmostEqual(float(tf.norm(layer)), 0.2886751, places=6)

  def test_a_pattern_that_is_found_nowhere_is_named(self):
    with self.assertRaisesRegex(ValueError, "'w3' is found in none of the 3"):
      _noised(self._query('head', 'w3'))

  @parameterized.named_parameters(
      ('nothing', (), 'a list of regular expressions'),
      ('text', 'head', 'a list of regular expressions'),
      ('no_expression', ('(',), r"'\(' is no regular expression"),
  )
  def test_bad_arguments_are_named(self, noised, message):
    with self.assertRaisesRegex(ValueError, message):
      partial_query.PartialNoiseQuery(noised=noised, **_ARGUMENTS)


if __name__ == '__main__':
  absltest.main()

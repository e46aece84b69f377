"""Tests of tff_asr.privacy.correlated_noise.

Streams and keys: noise_streams_test; events: aggregators/dp_mean_test.
"""

import collections
import functools
import math

from absl.testing import absltest
from absl.testing import parameterized
import numpy as np
import scipy.stats
import tensorflow as tf
import tensorflow_privacy as tfp

from tests import fakes
from tests import reference
from tff_asr.privacy import correlated_noise
from tff_asr.privacy import keys
from tff_asr.privacy import noise as noise_lib
from tff_asr.privacy import queries

_SPECS = collections.OrderedDict(
    a=tf.TensorSpec([3], tf.float32), b=tf.TensorSpec([], tf.float32)
)
_KEY = keys.from_seed(0)


def _query(*, rounds_per_tree=5, specs=None, clip=0.5, multiplier=2.0):
  return correlated_noise.TreeSumQuery(
      _SPECS if specs is None else specs,
      l2_norm_clip=clip,
      noise_multiplier=multiplier,
      rounds_per_tree=rounds_per_tree,
  )


def _start(query, key=_KEY):
  return queries.set_noise_key(query.initial_global_state(), key)


def _zeros(specs=None):
  return tf.nest.map_structure(
      lambda spec: tf.zeros(spec.shape, tf.int64),
      _SPECS if specs is None else specs,
  )


def _flat(result) -> np.ndarray:
  return np.concatenate([np.ravel(layer) for layer in tf.nest.flatten(result)])


def _node(query, round_num, level):
  """The noise of the node of a level that a round draws, under `_KEY`."""
  state = _start(query)
  node = noise_lib.gaussian(
      [spec.shape for spec in _SPECS.values()],
      key=state.noise_key,
      release=tf.constant(64 * round_num + level, tf.int64),
      stddev=query._stddev(state),
  )
  return float(query.grid(state)) * _flat(node)


@functools.lru_cache
def _release(query):
  """`get_noised_result` traced once, without its event."""
  return tf.function(
      lambda total, state: query.get_noised_result(total, state)[:2]
  )


def _rounds(query, count, *, state=None, specs=None):
  """The noise of rounds of empty sums, and the last state."""
  state = _start(query) if state is None else state
  noises = []
  for _ in range(count):
    noised, state = _release(query)(_zeros(specs), state)
    noises.append(_flat(noised))
  return noises, state


class _Replay(tfp.tree_aggregation.ValueGenerator):
  """Gives out nodes from a list."""

  def __init__(self, nodes):
    self._nodes = iter(nodes)

  def initialize(self):
    return ()

  def next(self, state):
    flat = tf.constant(next(self._nodes), tf.float32)
    return collections.OrderedDict(a=flat[:3], b=flat[3]), state


class RoundsPerTreeTest(absltest.TestCase):

  def test_a_tree_is_a_pass_over_the_clients(self):
    data = fakes.client_data({f'c{number:02}': 1 for number in range(11)})
    # One client waits.
    self.assertEqual(
        correlated_noise.rounds_per_tree(client_data=data, cohort_size=2), 5
    )
    with self.assertRaisesRegex(ValueError, '12 but population is only 11'):
      correlated_noise.rounds_per_tree(client_data=data, cohort_size=12)


class TreeSumQueryTest(parameterized.TestCase):

  def test_is_tensorflow_privacy_s_tree_over_the_same_nodes(self):
    # Their query draws a node for each level that a round completes, one round
    # ahead: the same nodes in the same order.
    num_rounds = 7
    query = _query(rounds_per_tree=8)
    nodes = []
    for round_num in range(num_rounds + 1):
      # To add a leaf to t leaves completes a node for each trailing one in the
      # binary t.
      level = 0
      while level == 0 or round_num >> (level - 1) & 1:
        nodes.append(_node(query, round_num, level))
        level += 1
    theirs = tfp.TreeResidualSumQuery(
        record_specs=_SPECS,
        noise_generator=_Replay(nodes),
        clip_fn=lambda record, clip: record,
        clip_value=1.0,
    )
    # Eagerly, so that a list can feed their tf.functions.
    tf.config.run_functions_eagerly(True)
    self.addCleanup(tf.config.run_functions_eagerly, False)
    state = theirs.initial_global_state()
    expected = []
    zeros = tf.nest.map_structure(lambda spec: tf.zeros(spec.shape), _SPECS)
    for _ in range(num_rounds):
      noised, state, _ = theirs.get_noised_result(zeros, state)
      expected.append(_flat(noised))
    found, _ = _rounds(query, num_rounds)
    np.testing.assert_allclose(found, expected, atol=1e-6)

  def test_what_is_released_is_a_function_of_the_noised_nodes(self):
    # Honaker's estimate of prefixes from nodes with the clients' sums, rounded
    # once, in whole numbers (`reference.tree_prefixes`): the released bits are
    # those, so nothing else of sums or noise is in them.
    num_rounds = 13
    query = _query(rounds_per_tree=16)
    grid = float(query.grid(_start(query)))
    rng = np.random.default_rng(2)
    sums = rng.integers(-(2**30), 2**30, size=(num_rounds, 4))
    noise = {}
    for leaf in range(num_rounds):
      for level in range((leaf + 1 & -leaf - 1).bit_length()):
        node = _node(query, leaf, level) / grid
        noise[leaf, level] = [int(x) for x in node]
    expected = reference.tree_prefixes(sums.tolist(), noise)
    state, found = _start(query), []
    for total in sums:
      noised, state = _release(query)(
          collections.OrderedDict(a=total[:3], b=total[3]), state
      )
      found.append([int(x) for x in _flat(noised) / grid])
    np.testing.assert_array_equal(np.cumsum(found, axis=0), expected)

  def test_noise_of_prefixes_is_that_of_their_nodes(self):
    # Prefix t has a node for each one in the binary t; one with 2^d leaves has
    # the variance (z C)^2 / (2 - 2^-d) (Honaker). z C = 1.
    specs = tf.TensorSpec([20_000], tf.float32)
    query = _query(rounds_per_tree=8, specs=specs)
    prefixes = np.cumsum(_rounds(query, 8, specs=specs)[0], axis=0)
    for count, noise in enumerate(prefixes, 1):
      variance = sum(
          1 / (2 - 2.0**-level) for level in range(4) if count >> level & 1
      )
      # Of a fixed key; a new one would fail 1 time in 1,000.
      self.assertGreater(
          scipy.stats.kstest(
              noise, scipy.stats.norm(scale=math.sqrt(variance)).cdf
          ).pvalue,
          1e-4,
      )
      self.assertLess(
          scipy.stats.kstest(
              noise, scipy.stats.norm(scale=1.5 * math.sqrt(variance)).cdf
          ).pvalue,
          1e-9,
      )

  def test_a_new_tree_starts_by_itself(self):
    query = _query(rounds_per_tree=3)
    _, state = _rounds(query, 3)
    used = lambda: [bool(np.any(row)) for row in np.asarray(state.nodes['a'])]
    self.assertEqual(used(), [True, True])  # 3 = 2 + 1
    noises, state = _rounds(query, 1, state=state)
    self.assertEqual(used(), [True, False])
    # Nothing of the tree before is in it: it is the new tree's first leaf.
    np.testing.assert_array_equal(noises[0], _node(query, 3, 0))

  def test_a_round_s_key_decides_its_noise_and_no_earlier_node(self):
    # From one state under two keys: as a branch or a repeated round has it.
    query = _query(rounds_per_tree=8)
    _, state = _rounds(query, 2)
    kept = np.array(state.nodes['a'][1])
    rekeyed = queries.set_noise_key(state, keys.from_seed(1))
    one, _ = _rounds(query, 1, state=state)
    (other,), after = _rounds(query, 1, state=rekeyed)
    again, _ = _rounds(query, 1, state=state)
    self.assertTrue(np.all(one[0] != other))
    np.testing.assert_array_equal(one, again)
    # The prefix keeps the nodes of earlier rounds, whatever key comes next.
    np.testing.assert_array_equal(after.nodes['a'][1], kept)

  @parameterized.parameters((1, 1), (2, 2), (3, 2), (4, 3), (7, 3), (8, 4))
  def test_the_state_holds_a_model_copy_for_each_level(self, rounds, copies):
    with self.assertLogs('absl', 'WARNING') as logs:
      query = _query(rounds_per_tree=rounds)
    self.assertIn(f'holds {copies} more copies of the model', logs.output[0])
    state = query.initial_global_state()
    shapes = tf.nest.map_structure(lambda value: value.shape, state)
    _, state = _rounds(query, 2 * rounds + 1)
    self.assertEqual(
        tf.nest.map_structure(lambda value: value.shape, state)._replace(
            noise_key=shapes.noise_key
        ),
        shapes,
    )
    self.assertEqual(state.nodes['a'].shape, [copies, 3])

  def test_sums_are_kept_and_records_clipped(self):
    query = _query()
    state = _start(query)
    record = collections.OrderedDict(
        a=tf.constant([3e30, 0, 4e30]), b=tf.constant(0.0)
    )
    clipped = query.preprocess_record(query.derive_sample_params(state), record)
    np.testing.assert_allclose(
        float(query.grid(state)) * _flat(clipped), [0.3, 0, 0.4, 0], rtol=1e-6
    )
    noised, _ = _release(query)(clipped, state)
    noise, _ = _release(query)(_zeros(), state)
    np.testing.assert_allclose(
        _flat(noised) - _flat(noise), [0.3, 0, 0.4, 0], atol=1e-6
    )

  def test_bad_arguments_are_named(self):
    for arguments, message in (
        (dict(rounds_per_tree=0), 'rounds_per_tree'),
        (dict(multiplier=0.0), 'noise_multiplier'),
        (dict(clip=-1.0), 'l2_norm_clip'),
        (dict(rounds_per_tree=2**31), 'exceeds 62 bits'),
    ):
      with self.assertRaisesRegex(ValueError, message):
        _query(**arguments)

"""Correlated noise: sums whose noise comes from a tree over rounds (DP-FTRL).

Kairouz et al. 2021, https://arxiv.org/abs/2103.00039, need no assumption about
how cohorts are sampled. Let x_t be the sum of round t's clipped records. A tree
of rounds releases all prefix sums x_1 + ... + x_t with the noise of O(log)
nodes, each N(0, (z C)^2). `get_noised_result` returns differences of prefix
sums, so any optimizer can take them for noised sums.

The tree is tensorflow-privacy's `EfficientTreeAggregator` (Honaker 2015).
Differences from its `TreeResidualSumQuery`:

  - noise comes from our key and counter, not from the clock;
  - a node is drawn in the round that it first covers, under that round's key,
    not one round ahead: a round repeated under another key has new noise;
  - a new tree starts by itself after `rounds_per_tree` rounds;
  - the state has a fixed shape: as many model copies as the tree has levels,
    floor(log2(rounds_per_tree)) + 1, from the start.
"""

import collections
from typing import Any, NamedTuple

from absl import logging
import dp_accounting
import tensorflow as tf
import tensorflow_privacy as tfp

from tff_asr import checks
from tff_asr.privacy import accounting
from tff_asr.privacy import clipping as clipping_lib
from tff_asr.privacy import queries

# A node owns so many values of the noise stream. A round draws at most two
# nodes a level, and so stays within its own part of the stream.
_VALUES_PER_NODE = 2**34


def rounds_per_tree(*, client_data: Any, cohort_size: int) -> int:
  """Returns the rounds of one pass over the clients, which one tree covers.

  Cohorts must come from `cohorts.shuffled_passes` with the same cohort size:
  then a client is in a tree at most once.

  Args:
    client_data: The private clients; only the number of its `client_ids` is
      used.
    cohort_size: Clients in each round.

  Raises:
    ValueError: The cohort is not positive, or larger than the population.
  """
  return accounting.Sampling(
      kind='pass',
      cohort_size=cohort_size,
      population=len(client_data.client_ids),
  ).rounds_per_pass


class TreeSumQuery(queries.PerLayerClipSumQuery):
  """Sums clipped records with tree noise.

  Clipping, the sensitivity C of a sum to one record, NaN, infinity and the
  noise key are those of the base class. Event:
  SingleEpochTreeAggregationDpEvent(z, rounds_per_tree) for a tree in which each
  client has at most one record (replaced by zeros: REPLACE_SPECIAL). Trees
  compose.
  """

  class GlobalState(NamedTuple):
    """The query's state.

    L: levels of the tree.

    Attributes:
      l2_norm_clip: C, float32.
      noise_multiplier: z, float32.
      noise_key: int32 [4]; zeros: not set.
      counter: int64, noised results so far.
      nodes: noise of the nodes that the next prefix needs, [L, ...] a layer.
      levels: their levels in the tree, int32 [L]; -1: an unused row.
    """

    l2_norm_clip: Any
    noise_multiplier: Any
    noise_key: Any
    counter: Any
    nodes: Any
    levels: Any

  def __init__(
      self,
      record_specs: Any,
      *,
      l2_norm_clip: float,
      noise_multiplier: float,
      rounds_per_tree: int,
      clipping: clipping_lib.Clipping = clipping_lib.Clipping(),
  ):
    """Creates the query.

    Args:
      record_specs: See the base class.
      l2_norm_clip: See the base class.
      noise_multiplier: z, each node's noise over C, above 0.
      rounds_per_tree: Noised results after which a new tree starts.
      clipping: See the base class.

    Raises:
      ValueError: An argument is out of its range.
    """
    super().__init__(
        record_specs,
        l2_norm_clip=l2_norm_clip,
        noise_multiplier=noise_multiplier,
        clipping=clipping,
    )
    checks.positive(noise_multiplier=noise_multiplier)
    checks.positive_int(rounds_per_tree=rounds_per_tree)
    self._rounds_per_tree = rounds_per_tree
    self._num_levels = rounds_per_tree.bit_length()
    logging.warning(
        'DP-FTRL: trees of %d rounds; the state holds %d more copies of the '
        'model for their noise.',
        rounds_per_tree, self._num_levels,
    )

  def initial_global_state(self):
    base = super().initial_global_state()
    return self.GlobalState(
        *base,
        nodes=tf.nest.map_structure(
            lambda spec: tf.zeros([self._num_levels, *spec.shape], tf.float32),
            self._specs,
        ),
        levels=tf.fill([self._num_levels], -1),
    )

  def get_noised_result(self, sample_state, global_state):
    noise, nodes, levels = self._noise(global_state)
    noised = tf.nest.map_structure(tf.add, sample_state, noise)
    new_state = global_state._replace(
        counter=global_state.counter + 1, nodes=nodes, levels=levels
    )
    event = dp_accounting.SingleEpochTreeAggregationDpEvent(
        global_state.noise_multiplier, tf.constant(self._rounds_per_tree)
    )
    return noised, new_state, event

  def derive_metrics(self, global_state):
    return collections.OrderedDict(
        l2_norm_clip=global_state.l2_norm_clip,
        noise_stddev_of_node=(
            global_state.noise_multiplier * global_state.l2_norm_clip
        ),
    )

  def _noise(self, global_state) -> tuple[Any, Any, tf.Tensor]:
    """Noise of this prefix minus that of the one before; new nodes, levels."""
    stddev = queries.keyed_stddev(global_state)
    generator = _NodeNoise(self._specs, stddev)
    aggregator = tfp.tree_aggregation.EfficientTreeAggregator(generator)
    draws = (
        global_state.noise_key, global_state.counter, tf.constant(0, tf.int64)
    )
    used = tf.reduce_sum(tf.cast(global_state.levels >= 0, tf.int32))
    before = tfp.tree_aggregation.TreeState(
        level_buffer=tf.nest.map_structure(
            lambda rows: rows[:used], global_state.nodes
        ),
        level_buffer_idx=global_state.levels[:used],
        value_generator_state=draws,
    )

    def start():
      tree = aggregator.reset_state(before)
      zeros = tf.nest.map_structure(
          lambda spec: tf.zeros(spec.shape, spec.dtype), self._specs
      )
      return zeros, tree

    def go_on():
      return aggregator.get_cumsum_and_update(before)

    is_first = tf.equal(
        global_state.counter % self._rounds_per_tree, tf.constant(0, tf.int64)
    )
    noise_before, tree = tf.cond(is_first, start, go_on)
    # This also draws nodes for the next round. They are dropped, because that
    # round draws its own.
    noise, _ = aggregator.get_cumsum_and_update(tree)
    missing = self._num_levels - tf.size(tree.level_buffer_idx)

    def pad(rows: tf.Tensor, spec: tf.TensorSpec) -> tf.Tensor:
      paddings = [[0, missing]] + [[0, 0]] * spec.shape.rank
      return tf.ensure_shape(
          tf.pad(rows, paddings), [self._num_levels, *spec.shape]
      )

    nodes = tf.nest.map_structure(pad, tree.level_buffer, self._specs)
    levels = tf.ensure_shape(
        tf.pad(
            tree.level_buffer_idx, [[0, missing]], constant_values=-1
        ),
        [self._num_levels],
    )
    return (
        tf.nest.map_structure(tf.subtract, noise, noise_before), nodes, levels
    )


class _NodeNoise(tfp.tree_aggregation.ValueGenerator):
  """Draws nodes; its state is (key, round's counter, nodes drawn in it)."""

  def __init__(self, specs: Any, stddev: tf.Tensor):
    self._specs = specs
    self._stddev = stddev

  def initialize(self):
    return (
        tf.zeros([4], tf.int32), tf.constant(0, tf.int64),
        tf.constant(0, tf.int64),
    )

  def next(self, state):
    key, counter, drawn = state
    layers = tf.nest.flatten(self._specs)
    noises = queries.standard_normal(
        [layer.shape for layer in layers],
        noise_key=key,
        start=counter * queries.VALUES_PER_ROUND + drawn * _VALUES_PER_NODE,
    )
    scaled = [self._stddev * noise for noise in noises]
    return (
        tf.nest.pack_sequence_as(self._specs, scaled),
        (key, counter, drawn + 1),
    )

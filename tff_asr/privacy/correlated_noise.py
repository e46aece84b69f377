"""Correlated noise: sums whose noise comes from a tree over rounds (DP-FTRL).

Kairouz et al. 2021, https://arxiv.org/abs/2103.00039, need no assumption about
how cohorts are sampled. Let x_t be the sum of round t's clipped records. A tree
of rounds releases all prefix sums x_1 + ... + x_t with the noise of O(log)
nodes, each N(0, (z C)^2). `get_noised_result` returns differences of prefix
sums, so any optimizer can take them for noised sums.

The estimate of a prefix is Honaker's (2015), as in tensorflow-privacy's
`EfficientTreeAggregator`: with v_l = n for a leaf and v_l = n + (v_left +
v_right) / 2 for a node of level l, n the node's own noise, a prefix has noise

    sum over its nodes of v_l / (2 - 2^-l)

Here this is in integers, in steps of the query's grid. Of u_l = 2^l v_l, each
term is u_l / (2^(l+1) - 1), rounded down. For the node's sum x with its noise
the same recursion gives u_l + (2^(l+1) - 1) x. So x plus the rounded term is
the rounded estimate from noised nodes: post-processing, bit by bit.

Differences from `TreeResidualSumQuery` of tensorflow-privacy:

  - integers, and noise from our key and counter, not from the clock;
  - a node is drawn in the round that it first covers, under that round's key,
    not one round ahead: a round repeated under another key has new noise;
  - a new tree starts by itself after `rounds_per_tree` rounds;
  - the state has a fixed shape: a copy of the model in int64 for each level of
    the tree, floor(log2(rounds_per_tree)) + 1, from the start.
"""

import collections
from typing import Any, NamedTuple

from absl import logging
import dp_accounting
import tensorflow as tf

from tff_asr import checks
from tff_asr.privacy import accounting
from tff_asr.privacy import clipping as clipping_lib
from tff_asr.privacy import noise as noise_lib
from tff_asr.privacy import queries

# A round draws at most one node a level, each as a release of its own.
_MAX_LEVELS = 64


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
      noise_key: int32 [8]; zeros: not set.
      counter: int64, noised results so far.
      nodes: u_l of the nodes that the next prefix needs, int64 [L, ...] a
        layer; zeros at other levels.
    """

    l2_norm_clip: Any
    noise_multiplier: Any
    noise_key: Any
    counter: Any
    nodes: Any

  def __init__(
      self,
      record_specs: Any,
      *,
      l2_norm_clip: float,
      noise_multiplier: float,
      rounds_per_tree: int,
      clipping: clipping_lib.Clipping = clipping_lib.Clipping(),
      noise_kernel: str = 'host',
  ):
    """Creates the query.

    Args:
      record_specs: See the base class.
      l2_norm_clip: See the base class.
      noise_multiplier: z, each node's noise over C, above 0.
      rounds_per_tree: Noised results after which a new tree starts.
      clipping: See the base class.
      noise_kernel: See the base class.

    Raises:
      ValueError: An argument is out of its range.
    """
    super().__init__(
        record_specs,
        l2_norm_clip=l2_norm_clip,
        noise_multiplier=noise_multiplier,
        clipping=clipping,
        noise_kernel=noise_kernel,
    )
    checks.positive(noise_multiplier=noise_multiplier)
    checks.positive_int(rounds_per_tree=rounds_per_tree)
    self._rounds_per_tree = rounds_per_tree
    self._num_levels = rounds_per_tree.bit_length()
    # |u_l| is at most (l + 1) 2^l times the largest noise of a node.
    self._check_noise(
        noise_multiplier,
        weight=self._num_levels * 2 ** (self._num_levels - 1),
    )
    logging.warning(
        'DP-FTRL: trees of %d rounds; the state holds %d more copies of the '
        'model, in int64, for their noise.',
        rounds_per_tree, self._num_levels,
    )

  def initial_global_state(self):
    base = super().initial_global_state()
    nodes = tf.nest.map_structure(
        lambda spec: tf.zeros([self._num_levels, *spec.shape], tf.int64),
        self._specs,
    )
    return self.GlobalState(*base, nodes=nodes)

  def get_noised_result(self, sample_state, global_state):
    rows = tf.nest.flatten(global_state.nodes)
    rows_by_level = [
        [row[level] for row in rows] for level in range(self._num_levels)
    ]
    # Leaves of this tree before this round.
    leaves = tf.math.floormod(
        global_state.counter, tf.constant(self._rounds_per_tree, tf.int64)
    )
    new_rows = self._add_leaf(rows_by_level, leaves, global_state)
    unit = queries.keyed(self.grid(global_state), global_state)
    noised = [
        unit * tf.cast(total + after - before, tf.float64)
        for total, after, before in zip(
            tf.nest.flatten(sample_state),
            _prefix(new_rows, leaves + 1),
            _prefix(rows_by_level, leaves),
            strict=True,
        )
    ]
    new_state = global_state._replace(
        counter=global_state.counter + 1,
        nodes=tf.nest.pack_sequence_as(
            global_state.nodes, [tf.stack(each) for each in zip(*new_rows)]
        ),
    )
    event = dp_accounting.SingleEpochTreeAggregationDpEvent(
        global_state.noise_multiplier, tf.constant(self._rounds_per_tree)
    )
    return tf.nest.pack_sequence_as(sample_state, noised), new_state, event

  def derive_metrics(self, global_state):
    return collections.OrderedDict(
        l2_norm_clip=global_state.l2_norm_clip,
        noise_stddev_of_node=(
            global_state.noise_multiplier * global_state.l2_norm_clip
        ),
    )

  def _add_leaf(
      self,
      rows: list[list[tf.Tensor]],
      leaves: tf.Tensor,
      global_state: Any,
  ) -> list[list[tf.Tensor]]:
    """Returns u_l by level after one more leaf than `leaves`, int64 []."""

    def draw(level: int) -> list[tf.Tensor]:
      return noise_lib.gaussian(
          [row.shape for row in rows[0]],
          key=global_state.noise_key,
          release=_MAX_LEVELS * global_state.counter + level,
          stddev=self._stddev(global_state),
          kernel=self._noise_kernel,
      )

    def parent(level: int, right: list[tf.Tensor]) -> list[tf.Tensor]:
      return [
          u_left + u_right + 2**level * noise
          for u_left, u_right, noise in zip(
              rows[level - 1], right, draw(level), strict=True
          )
      ]

    new_rows = []
    node = draw(0)
    # The leaf completes a node above each level of which there is one already.
    is_open = tf.constant(True)
    for level, row in enumerate(rows):
      if level:
        node = tf.cond(
            is_open,
            lambda level=level, right=node: parent(level, right),
            lambda right=node: right,
        )
      has_row = _has_node(leaves, level)
      # `node` goes to the first level without one. There it stays; the rows
      # below become part of it.
      new_rows.append([
          tf.where(
              is_open & ~has_row,
              new,
              tf.where(is_open | ~has_row, tf.zeros_like(old), old),
          )
          for old, new in zip(row, node, strict=True)
      ])
      is_open &= has_row
    return new_rows


def _has_node(leaves: tf.Tensor, level: int) -> tf.Tensor:
  """Whether a prefix of so many leaves has a node at a level."""
  return tf.not_equal(tf.bitwise.bitwise_and(leaves, 2**level), 0)


def _prefix(
    rows: list[list[tf.Tensor]], leaves: tf.Tensor
) -> list[tf.Tensor]:
  """Noise of the prefix of so many leaves, int64, of u_l by level."""
  total = [tf.zeros_like(part) for part in rows[0]]
  for level, row in enumerate(rows):
    has_node = _has_node(leaves, level)
    divisor = 2 ** (level + 1) - 1
    total = [
        before + tf.where(
            has_node,
            tf.math.floordiv(part + divisor // 2, divisor),
            tf.zeros_like(part),
        )
        for before, part in zip(total, row, strict=True)
    ]
  return total

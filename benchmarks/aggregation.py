r"""The server's arithmetic at several sizes, against the pace of copying.

    python -m benchmarks.aggregation --sizes=4x128,8x512,36x768

For each model: clipping one client's update per layer and adding it to a sum,
drawing noise and adding it, and a step of LAMB. All three are passes over
memory at best; `of the pace` is the least traffic that the arithmetic needs
over the seconds, as a share of what a plain pass over memory moves
(`limits`). Bytes a parameter counted as needed (sums are int64):

  clip and add  24: the update for its norms, the update, the sum, the new sum
  noise         12: the sum, the mean
  LAMB          28: weights, two moments and update; weights and two moments

Memory at 255M parameters: some 12 GiB.
"""

from tff_asr import launch  # First: quiets TensorFlow before it is loaded.

launch.begin(__name__)

from collections.abc import Callable
import statistics

from absl import flags
import tensorflow as tf

from benchmarks import limits
from benchmarks import report
from benchmarks import turns
from benchmarks import workload as workload_lib
from tff_asr.models import weights as weights_lib
from tff_asr.privacy import queries

_SIZES = flags.DEFINE_list(
    'sizes',
    ['4x128', '8x512', '36x768'],
    'Blocks and width of each transformer.',
)
_REPEATS = flags.DEFINE_integer(
    'repeats', 5, 'Turns that count.', lower_bound=1
)

_BYTES = {'clip and add': 24, 'noise': 12, 'LAMB': 28}


def main(_) -> None:
  report.check_json_flag()
  sizes = [
      workload_lib.parse_size(text, flag='--sizes') for text in _SIZES.value
  ]
  rows = [['parameters', 'part', 'seconds', 'of the pace of copying']]
  figures = {}
  for num_blocks, dim in sizes:
    workload = workload_lib.Workload(
        num_blocks=num_blocks, dim=dim, num_clients=1, num_local_steps=1
    )
    num_parameters = workload.num_parameters()
    runs = _build(workload)
    runs['copy'], copy_bytes = limits.build_copy()
    seconds = turns.measure(runs, repeats=_REPEATS.value)
    del runs
    paces = [copy_bytes / took for took in seconds['copy']]
    shares = {
        name: turns.shares_of_paces(
            num_bytes * num_parameters, seconds[name], paces
        )
        for name, num_bytes in _BYTES.items()
    }
    rows += [
        [
            f'{num_parameters / 1e6:.1f}M',
            name,
            report.spread(seconds[name], '.3f'),
            report.spread(share, '.0%'),
        ]
        for name, share in shares.items()
    ]
    figures[str(num_parameters)] = {
        'seconds': seconds,
        'shares': shares,
        'copy_bytes_per_sec': statistics.median(paces),
    }
  report.write("The server's arithmetic", rows, figures)


def _build(workload: workload_lib.Workload) -> dict[str, Callable[[], None]]:
  """The three parts, each with its own state, as compiled functions."""
  specs = workload.build_model().specs
  weights = weights_lib.initialize(specs, tf.constant([1, 0]))
  update = tf.nest.map_structure(lambda weight: 1e-3 * weight, weights)
  query = queries.MeanQuery(
      workload_lib.build_query()(weights_lib.tensor_specs(specs)), 1.0
  )
  total = query.initial_sample_state(weights)
  optimizer = workload_lib.build_server_optimizer()
  query_state, optimizer_state = tf.nest.map_structure(
      tf.convert_to_tensor,
      (
          workload_lib.keyed_state(query),
          optimizer.initialize(weights_lib.tensor_specs(specs)),
      ),
  )

  @tf.function(autograph=False)
  def add(total, delta, state):
    clipped = query.preprocess_record(query.derive_sample_params(state), delta)
    return tf.nest.map_structure(tf.add, total, clipped)

  @tf.function(autograph=False)
  def noise(total, state):
    return query.get_noised_result(total, state)[0]

  lamb = tf.function(optimizer.next, autograph=False)
  return {
      'clip and add': lambda: limits.wait(add(total, update, query_state)),
      'noise': lambda: limits.wait(noise(total, query_state)),
      'LAMB': lambda: limits.wait(lamb(optimizer_state, weights, update)),
  }


if __name__ == '__main__':
  launch.run(main, after_interrupt='the same command begins anew.')

r"""Drawing a round's noise: both kernels beside TensorFlow's float32 normal.

    python -m benchmarks.noise --size=36x768

For a model's shapes, one after the other, as a round draws them: seconds, the
ratio to `tf.raw_ops.StatelessRandomNormalV2` in the same turn, CPU seconds (of
all threads), and what the process' memory grows by at most meanwhile.
"""

from tff_asr import launch  # First: quiets TensorFlow before it is loaded.

launch.begin(__name__)

from collections.abc import Callable
import statistics
import time

from absl import flags
import tensorflow as tf

from benchmarks import limits
from benchmarks import own_process
from benchmarks import report
from benchmarks import turns
from benchmarks import workload as workload_lib
from tff_asr.models import weights as weights_lib
from tff_asr.privacy import keys
from tff_asr.privacy import noise

_SIZE = flags.DEFINE_string(
    'size', '36x768', 'Blocks and width of the transformer.'
)
_STDDEV = flags.DEFINE_float(
    'stddev', 2.0**23, 'Of the noise, in cells of the grid.', lower_bound=0
)
_REPEATS = flags.DEFINE_integer(
    'repeats', 5, 'Turns that count.', lower_bound=1
)
_PHILOX = 1
_NORMAL = "TensorFlow's normal"


def main(_) -> None:
  report.check_json_flag()
  num_blocks, dim = workload_lib.parse_size(_SIZE.value, flag='--size')
  model = workload_lib.Workload(
      num_blocks=num_blocks, dim=dim, num_clients=1, num_local_steps=1
  ).build_model()
  shapes = [spec.shape for spec in tf.nest.flatten(
      weights_lib.tensor_specs(model.specs)
  )]
  cpu_seconds, growth = {}, {}

  def measured(name: str, run: Callable[[], None]) -> Callable[[], None]:
    def whole() -> None:
      own_process.reset_peak()
      before, started = own_process.resident_gib(), time.process_time()
      run()
      cpu_seconds.setdefault(name, []).append(time.process_time() - started)
      growth.setdefault(name, []).append(own_process.peak_gib() - before)

    return whole

  seconds = turns.measure(
      {name: measured(name, run) for name, run in _build(shapes).items()},
      repeats=_REPEATS.value,
  )
  ratios = {
      name: turns.ratios(values, seconds[_NORMAL])
      for name, values in seconds.items()
  }
  num_draws = sum(shape.num_elements() for shape in shapes)
  report.write(
      f'Noise of {num_draws / 1e6:.1f}M elements in {len(shapes)} tensors',
      [['', 'seconds', 'ratio', 'CPU seconds', 'memory, GiB']]
      + [
          [
              name,
              report.spread(values),
              report.spread(ratios[name]),
              # The first turn traced.
              f'{statistics.median(cpu_seconds[name][1:]):.2f}',
              f'{max(growth[name]):.2f}',
          ]
          for name, values in seconds.items()
      ],
      dict(
          num_draws=num_draws, seconds=seconds, ratios=ratios,
          cpu_seconds=cpu_seconds, growth_gib=growth,
      ),
  )


def _build(shapes: list[tf.TensorShape]) -> dict[str, Callable[[], None]]:
  """Draws of all shapes, of which all but one value are dropped."""
  # Arguments, not constants: those would be computed once, at compilation.
  arguments = (
      tf.constant(keys.draw()), tf.constant(0, tf.int64),
      tf.constant(_STDDEV.value, tf.float64),
  )

  @tf.function(autograph=False)
  def floats(key, release, stddev) -> tf.Tensor:
    drawn = []
    for shape in shapes:
      with tf.control_dependencies(drawn[-1:]):
        values = tf.raw_ops.StatelessRandomNormalV2(
            shape=shape.as_list(),
            key=tf.bitcast(key[:2], tf.uint64)[None],
            counter=tf.bitcast(
                tf.stack([release, tf.cast(len(drawn), tf.int64)]), tf.uint64
            ),
            alg=_PHILOX,
        )
        drawn.append(tf.reshape(values, [-1])[-1])
    return tf.stack(drawn)

  def integers(kernel: str) -> Callable[..., tf.Tensor]:
    @tf.function(autograph=False)
    def draw(key, release, stddev) -> tf.Tensor:
      drawn = noise.gaussian(
          shapes, key=key, release=release, stddev=stddev, kernel=kernel
      )
      return tf.stack([tf.reshape(tensor, [-1])[-1] for tensor in drawn])

    return draw

  draws = {
      _NORMAL: floats,
      "kernel='host'": integers('host'),
      "kernel='tensorflow'": integers('tensorflow'),
  }
  return {
      name: lambda draw=draw: limits.wait(draw(*arguments))
      for name, draw in draws.items()
  }


if __name__ == '__main__':
  launch.run(main, after_interrupt='the same command begins anew.')

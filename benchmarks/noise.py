r"""Drawing a round's noise: both kernels, and TensorFlow's float32 normal.

    python -m benchmarks.noise --size=36x768

For a model's shapes, one after the other, as a round draws them: seconds, the
ratio to `tf.raw_ops.StatelessRandomNormalV2` in the same turn, CPU seconds (of
all threads), and the largest growth of the process' memory meanwhile.

    python -m benchmarks.noise --bits=12,16,20,24 --modulus_stddevs=3

For noise that devices add (`privacy.distributed`), by bits of the secure sum:
the root mean square error of the decoded sum of --num_clients updates over z C,
that of a trusted server at the same epsilon; as it is stated and as it comes
out, with rounding and what wraps around; and a client's CPU seconds. Updates
are of Student's t with 3 degrees of freedom; a fifth of their variance is
common to all.

    python -m benchmarks.noise --mechanisms=gaussian,blt,banded,distributed

For each mechanism, its part of a round: at a client, from the update to the
message; at the server, from the sum to the noised sum and the next state.
Reports bytes of the state, CPU seconds, their ratio to those of the first
mechanism in the same turn, and the largest growth of memory. The mechanisms
take turns in one process, which holds the states of all.
"""

from tff_asr import launch  # First: quiets TensorFlow before it is loaded.

launch.install_early_sigint(__name__)

from collections.abc import Callable
import math
import re
import statistics
import time
from typing import Any, NamedTuple

from absl import flags
import numpy as np
import tensorflow as tf

from benchmarks import limits
from benchmarks import memory
from benchmarks import report
from benchmarks import turns
from benchmarks import workload as workload_lib
from tff_asr.execution import context as context_lib
from tff_asr.models import weights as weights_lib
from tff_asr.privacy import clipping as clipping_lib
from tff_asr.privacy import correlated_noise
from tff_asr.privacy import distributed
from tff_asr.privacy import keys
from tff_asr.privacy import noise
from tff_asr.privacy import queries
from tff_asr.privacy import strategies

_SIZE = flags.DEFINE_string(
    'size', '36x768', 'Blocks and width of the transformer.'
)
_STDDEV = flags.DEFINE_float(
    'stddev', 2.0**23, 'Of the noise, in cells of the grid.', lower_bound=0
)
_REPEATS = flags.DEFINE_integer(
    'repeats', 5, 'Turns that count.', lower_bound=1
)
_BITS = flags.DEFINE_list(
    'bits', [],
    'Of secure sums; empty: noise of a trusted server. With --mechanisms the '
    'first is that of distributed noise, by default 16.',
)
_NUM_ELEMENTS = flags.DEFINE_integer(
    'num_elements', 628_448, 'Of an update; the quickstart\'s.', lower_bound=2
)
_NUM_CLIENTS = flags.DEFINE_integer(
    'num_clients', 1000, 'In a secure sum.', lower_bound=1
)
_NOISE_MULTIPLIER = flags.DEFINE_float(
    'noise_multiplier', 1.3, 'Of devices\' noise.', lower_bound=0
)
_MODULUS_STDDEVS = flags.DEFINE_float(
    'modulus_stddevs', 4.0, 'Of a sum\'s element that bits hold.',
    lower_bound=0,
)
_ALL_MECHANISMS = ('gaussian', 'blt', 'banded', 'distributed')
_MECHANISMS = flags.DEFINE_list(
    'mechanisms', [],
    f'Rounds of these of {", ".join(_ALL_MECHANISMS)}, in place of draws.',
)
# A run of the paper's length in which clients return after 100 rounds.
_NUM_ROUNDS = 2000
_SEPARATION = 100
_PHILOX = 1
_NORMAL = "TensorFlow's normal"


def main(_) -> None:
  report.check_json_flag()
  if _BITS.value and not _MECHANISMS.value:
    _write_distributed([int(bits) for bits in _BITS.value])
    return
  num_blocks, dim = _parse_size(_SIZE.value)
  model = workload_lib.Workload(
      num_blocks=num_blocks, dim=dim, num_clients=1, num_local_steps=1
  ).build_model()
  specs = weights_lib.tensor_specs(model.specs)
  if _MECHANISMS.value:
    _write_mechanisms(_MECHANISMS.value, specs)
    return
  shapes = [spec.shape for spec in tf.nest.flatten(specs)]
  cpu_seconds, growth = {}, {}

  def measured(name: str, run: Callable[[], None]) -> Callable[[], None]:
    def whole() -> None:
      memory.reset_peak()
      before, started = memory.resident_gib(), time.process_time()
      run()
      cpu_seconds.setdefault(name, []).append(time.process_time() - started)
      growth.setdefault(name, []).append(memory.peak_gib() - before)

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


def _parse_size(text: str) -> tuple[int, int]:
  """Blocks and width of a transformer, such as '8x512'."""
  found = re.fullmatch(r'([1-9]\d*)x([1-9]\d*)', text)
  if not found or int(found[2]) % 4:
    raise ValueError(
        '--size must be blocks and a width that 4 divides, such as 8x512, '
        f'found {text!r}.'
    )
  return int(found[1]), int(found[2])


def _write_distributed(all_bits: list[int]) -> None:
  """Measures noise of devices, by bits."""
  table = [['bits', 'stated', 'measured', 'CPU seconds a client']]
  figures = {}
  for bits in all_bits:
    query = distributed.DistributedSumQuery(
        [tf.TensorSpec([_NUM_ELEMENTS.value])],
        l2_norm_clip=1.0,
        noise_multiplier=_NOISE_MULTIPLIER.value,
        num_clients=_NUM_CLIENTS.value,
        max_failed_share=0.0,
        bits=bits,
        modulus_stddevs=_MODULUS_STDDEVS.value,
    )
    state = queries.set_noise_key(query.initial_global_state(), keys.draw())
    stated = float(query.derive_metrics(state)['noise_stddev_on_sum'])

    @tf.function(autograph=False)
    def encode(update, client, query=query, state=state):
      params = query.derive_sample_params(state)
      return query.encode(params, [update], client=client)[0]

    generator = np.random.default_rng(1)
    common = generator.standard_t(3, _NUM_ELEMENTS.value).astype(np.float32)
    total, exact, cpu_seconds = 0, 0.0, []
    for client in range(_NUM_CLIENTS.value):
      update = 0.5 * common + generator.permutation(common)
      exact += update / np.linalg.norm(update.astype(np.float64))
      update = tf.constant(update)
      started = time.process_time()
      total = total + encode(update, tf.constant(client, tf.int64))
      cpu_seconds.append(time.process_time() - started)
    (found,), _ = query.decode(
        total % query.modulus,
        num_clients=tf.constant(_NUM_CLIENTS.value),
        global_state=state,
    )
    error = math.sqrt(np.mean((found - exact) ** 2))
    ratios = [x / _NOISE_MULTIPLIER.value for x in (stated, error)]
    seconds = statistics.median(cpu_seconds[1:] or cpu_seconds)
    table.append([str(bits), *(f'{x:.4f}' for x in ratios), f'{seconds:.3f}'])
    figures[bits] = dict(
        stated=ratios[0], measured=ratios[1], cpu_seconds=seconds
    )
  report.write(
      f'Error of {_NUM_CLIENTS.value} clients over that of a trusted server',
      table,
      dict(by_bits=figures),
  )


def _write_mechanisms(names: list[str], specs: Any) -> None:
  """Measures rounds of some mechanisms."""
  for name in names:
    if name not in _ALL_MECHANISMS:
      raise ValueError(
          f'--mechanisms takes {", ".join(_ALL_MECHANISMS)}, found {name!r}.'
      )
  mechanisms = {name: _build_mechanism(name, specs) for name in names}

  def update() -> Any:
    return tf.nest.map_structure(
        lambda spec: tf.random.stateless_normal(spec.shape, [1, 2]), specs
    )

  def total(of: Any) -> Any:
    return tf.nest.map_structure(
        lambda spec: tf.zeros(spec.shape, tf.int64), of
    )

  found = {}
  for turn in range(1 + _REPEATS.value):
    for name, mechanism in mechanisms.items():
      for place, run, build in (
          ('client', mechanism.client, update),
          ('server', mechanism.server, lambda m=mechanism: total(m.total)),
      ):
        given = build()
        context_lib.trim_malloc(tf.nest.flatten(given))
        memory.reset_peak()
        before, started = memory.resident_gib(), time.process_time()
        limits.wait(tf.nest.flatten(run(mechanism.state, given)))
        if turn:  # The first one traces.
          found.setdefault((name, place), []).append((
              time.process_time() - started, memory.peak_gib() - before
          ))
        del given
  table = [[
      '', 'state, GiB', 'client, CPU s', 'ratio', 'GiB', 'server, CPU s',
      'ratio', 'GiB',
  ]]
  figures = {}
  for name, mechanism in mechanisms.items():
    size = sum(
        leaf.dtype.size * leaf.shape.num_elements()
        for leaf in tf.nest.flatten(mechanism.state)
    ) / 2**30
    row, figures[name] = [name, f'{size:.2f}'], dict(state_gib=size)
    for place in ('client', 'server'):
      seconds, growth = zip(*found[name, place])
      ratios = turns.ratios(
          seconds, [pair[0] for pair in found[names[0], place]]
      )
      row += [
          report.spread(seconds), report.spread(ratios), f'{max(growth):.2f}'
      ]
      figures[name][place] = dict(
          cpu_seconds=seconds, ratios=ratios, growth_gib=growth
      )
    table.append(row)
  num_elements = sum(
      spec.shape.num_elements() for spec in tf.nest.flatten(specs)
  )
  report.write(
      f'Rounds with noise, {num_elements / 1e6:.1f}M elements',
      table,
      dict(by_mechanism=figures),
  )


class _Mechanism(NamedTuple):
  """Parts of a round: graph functions, and the state.

  Attributes:
    state: The query's.
    client: From the state and an update to the message that is sent.
    server: From the state and the sum to the noised sum and the next state.
    total: Specs of the sum that the server gets, int64.
  """

  state: Any
  client: Callable[[Any, Any], Any]
  server: Callable[[Any, Any], Any]
  total: Any


def _build_mechanism(name: str, specs: Any) -> _Mechanism:
  """The mechanism of a name of `_ALL_MECHANISMS`."""
  settings = dict(
      l2_norm_clip=1.0,
      noise_multiplier=_NOISE_MULTIPLIER.value,
      clipping=clipping_lib.Clipping(split='dim'),
  )
  if name == 'distributed':
    return _build_distributed(specs, settings)
  if name == 'gaussian':
    query = queries.PerLayerClipSumQuery(specs, **settings)
  else:
    if name == 'blt':
      separation = _SEPARATION
      strategy = strategies.optimize(
          num_rounds=_NUM_ROUNDS, min_sep=separation, num_buffers=3
      )
    else:
      separation = 4
      strategy = strategies.optimize_banded(
          num_rounds=_NUM_ROUNDS, num_bands=separation
      )
    query = queries.PerLayerClipSumQuery(
        specs,
        noise=correlated_noise.CorrelatedNoise(
            strategy=strategy, min_sep=separation
        ),
        **settings,
    )

  @tf.function(autograph=False)
  def client(state, update):
    return query.preprocess_record(query.derive_sample_params(state), update)

  @tf.function(autograph=False)
  def server(state, total):
    return query.get_noised_result(total, state)[:2]

  return _Mechanism(_keyed(query), client, server, specs)


def _build_distributed(specs: Any, settings: dict[str, Any]) -> _Mechanism:
  """Noise of the devices."""
  query = distributed.DistributedSumQuery(
      specs,
      num_clients=_NUM_CLIENTS.value,
      max_failed_share=0.0,
      bits=int((_BITS.value or [16])[0]),
      **settings,
  )

  @tf.function(autograph=False)
  def encode(state, update):
    params = query.derive_sample_params(state)
    return query.encode(params, update, client=tf.constant(1, tf.int64))[0]

  @tf.function(autograph=False)
  def decode(state, total):
    return query.decode(
        total, num_clients=tf.constant(_NUM_CLIENTS.value), global_state=state
    )

  state = _keyed(query)
  size = encode.get_concrete_function(state, specs).output_shapes
  return _Mechanism(state, encode, decode, tf.TensorSpec(size, tf.int64))


def _keyed(query: Any) -> Any:
  """A first state with a key."""
  return tf.nest.map_structure(
      tf.convert_to_tensor,
      queries.set_noise_key(query.initial_global_state(), keys.draw()),
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
  launch.run(main, after_interrupt='the same command starts again.')

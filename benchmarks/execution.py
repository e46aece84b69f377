r"""A round in each execution context, compared with the bare local steps.

    python -m benchmarks.execution --json=results/execution.json

`bare steps` is the least possible work: a plain Python loop of one compiled
local step over the same clients' batches, which are in memory. `bare round`
also clips and sums their updates, adds noise and steps LAMB, each as
one compiled function: a round by hand. The contexts run the same as a TFF
round, with data read from shards (a Ray worker has those of the turn before in
memory) and features computed. All of them alternate, after a turn that does not
count; the table has seconds, the ratio to the bare steps of the same turn, and
what a round took beyond the bare one in seconds per 100M parameters, medians
with least and most.

    python -m benchmarks.execution --cpu_time --repeats=8 --contexts="\
        multi_device,multi_device without noise,multi_device of floats"

`without noise` clips and sums float32, as runs of noise 0 do. `of floats` does
not clip, either: what a round costs more is what clips, or clips, sums of
integers and noise, cost. Shares have a standard error, from the differences of
turns.
"""

from tff_asr import launch  # First: quiets TensorFlow before it is loaded.

launch.install_early_sigint(__name__)

from collections.abc import Iterator
import itertools
import math
import statistics
import tempfile
import time

from absl import flags
import tensorflow as tf
import tensorflow_federated as tff

from benchmarks import limits
from benchmarks import report
from benchmarks import turns
from benchmarks import workload as workload_lib
from tff_asr.data import pipeline as pipeline_lib
from tff_asr.execution import multi_device
from tff_asr.execution import native
from tff_asr.models import weights as weights_lib
from tff_asr.privacy import keys
from tff_asr.privacy import queries

_NUM_BLOCKS = flags.DEFINE_integer(
    'num_blocks', 6, 'Of the transformer.', lower_bound=1
)
_DIM = flags.DEFINE_integer('dim', 256, 'Its width.', lower_bound=1)
_COHORT = flags.DEFINE_integer('cohort', 4, 'Clients a round.', lower_bound=1)
_STEPS = flags.DEFINE_integer(
    'local_steps', 10, 'Of each client.', lower_bound=1
)
_REPEATS = flags.DEFINE_integer(
    'repeats', 5, 'Rounds that count.', lower_bound=1
)
_CONTEXTS = flags.DEFINE_list(
    'contexts',
    ['multi_device', 'multi_device 2 at once', 'native'],
    "To measure, besides bare; also 'ray', where it is installed. '2 at once' "
    'trains two clients at a time on each device.',
)
_CPU_TIME = flags.DEFINE_boolean(
    'cpu_time',
    False,
    'CPU seconds of this process, not of others (native, Ray).',
)
_RAY_WORKERS = flags.DEFINE_integer(
    'ray_workers', 1, 'Of ray; they share the cores.', lower_bound=1
)
_DEVICES = flags.DEFINE_list(
    'devices', None, 'Of multi_device; all GPUs, else the CPU, by default.'
)


_OF_FLOATS = 'multi_device of floats'
_WITHOUT_NOISE = 'multi_device without noise'
_KNOWN_CONTEXTS = (
    'multi_device', 'multi_device 2 at once', _WITHOUT_NOISE, _OF_FLOATS,
    'native', 'ray',
)
# What a context does that `of floats` does not.
_BEYOND_FLOATS = {
    'multi_device': 'clips, integers and noise',
    _WITHOUT_NOISE: 'clips without noise',
}


def main(_) -> None:
  report.check_json_flag()
  for name in _CONTEXTS.value:
    if name not in _KNOWN_CONTEXTS:
      raise ValueError(
          f'--contexts takes {", ".join(_KNOWN_CONTEXTS)}, found {name!r}.'
      )
  sizes = workload_lib.Workload(
      num_blocks=_NUM_BLOCKS.value,
      dim=_DIM.value,
      num_clients=_COHORT.value,
      num_local_steps=_STEPS.value,
  )
  with tempfile.TemporaryDirectory() as folder:
    clients = sizes.write_corpus(folder)
    runs = {
        'bare steps': _BareSteps(sizes, clients),
        'bare round': _BareRound(sizes, clients),
    }
    contexts = {name: _build_context(name) for name in _CONTEXTS.value}
    for name, context in contexts.items():
      runs[name] = workload_lib.Round(
          context,
          sizes.build_process(
              clients,
              cohort_size=_COHORT.value,
              noise_kernel='tensorflow' if name == 'native' else 'host',
              noise_multiplier=0.0 if name == _WITHOUT_NOISE else 0.01,
              is_private=name != _OF_FLOATS,
          ),
          clients.locate_clients(clients.client_ids),
      )
    clock = time.process_time if _CPU_TIME.value else time.perf_counter
    seconds = turns.measure(runs, repeats=_REPEATS.value, clock=clock)
  ratios = {
      name: turns.ratios(values, seconds['bare steps'])
      for name, values in seconds.items()
  }
  num_parameters = sizes.num_parameters()
  if 'ray' in contexts:
    sent = contexts['ray'].runner.last_round.store_bytes
    print(
        f'through the object store: {sent:,} bytes a round, '
        f'{sent / num_parameters:.1f} a parameter'
    )
  if _OF_FLOATS in contexts and _REPEATS.value > 1:
    floats = seconds[_OF_FLOATS]
    mean = statistics.mean(floats)
    for name, work in _BEYOND_FLOATS.items():
      if name not in contexts:
        continue
      more = [a - b for a, b in zip(seconds[name], floats)]
      error = statistics.stdev(more) / math.sqrt(len(more)) / mean
      print(
          f'{work}: {statistics.mean(more) / mean:.1%} of a round, '
          f'+- {error:.1%}'
      )
  overheads = {
      name: [
          (own - bare) / (num_parameters / 1e8)
          for own, bare in zip(values, seconds['bare round'])
      ]
      for name, values in seconds.items()
  }
  report.write(
      f'{num_parameters / 1e6:.1f}M parameters, {_COHORT.value} clients of '
      f'{_STEPS.value} steps of {sizes.batch_sec:g} s',
      [['', 'seconds', 'ratio to bare steps', 'beyond bare round, s per 100M']]
      + [
          [
              name,
              report.spread(seconds[name]),
              report.spread(ratios[name]),
              report.spread(overheads[name])
              if name in _CONTEXTS.value
              else '',
          ]
          for name in runs
      ],
      {
          'num_parameters': num_parameters,
          'sizes': vars(sizes),
          'seconds': seconds,
          'ratios': ratios,
          'overheads': overheads,
      },
  )


class _BareSteps:
  """The local steps alone."""

  def __init__(
      self,
      sizes: workload_lib.Workload,
      clients: tff.simulation.datasets.ClientData,
  ):
    model = sizes.build_model()
    pipeline = sizes.build_pipeline(model)
    self._batches = [
        list(
            itertools.islice(
                pipeline.training_batches(
                    clients.create_tf_dataset_for_client(client_id),
                    seed=tf.constant([1, 2]),
                ),
                sizes.num_local_steps,
            )
        )
        for client_id in clients.client_ids
    ]
    self.weights = model.initialize(tf.constant([1, 0]))
    self._step = tf.function(
        workload_lib.build_step(model),
        input_signature=[
            tf.nest.map_structure(
                tf.TensorSpec.from_tensor, self.weights
            ),
            pipeline_lib.batch_spec(),
        ],
        autograph=False,
    )

  def __call__(self) -> None:
    for weights in self.trained():
      limits.wait(weights)

  def trained(self) -> Iterator[weights_lib.Weights]:
    """Each client's weights after its steps."""
    for batches in self._batches:
      weights = self.weights
      for batch in batches:
        weights, _ = self._step(weights, batch)
      yield weights


class _BareRound:
  """The same steps and the rest of a round, in a hand-written loop."""

  def __init__(
      self,
      sizes: workload_lib.Workload,
      clients: tff.simulation.datasets.ClientData,
  ):
    self._steps = _BareSteps(sizes, clients)
    optimizer = workload_lib.build_server_optimizer()
    num_clients = len(clients.client_ids)
    self._weights = self._steps.weights
    specs = tf.nest.map_structure(tf.TensorSpec.from_tensor, self._weights)
    query = workload_lib.build_query()(specs)
    # Tensors from the start, so that the functions are traced once.
    state = query.initial_global_state()
    keyed = queries.set_noise_key(state, keys.draw())
    self._query_state, self._optimizer_state = tf.nest.map_structure(
        tf.convert_to_tensor,
        (keyed, optimizer.initialize(specs)),
    )

    @tf.function(autograph=False)
    def add(total, old, new, state):
      delta = tf.nest.map_structure(tf.subtract, old, new)
      params = query.derive_sample_params(state)
      clipped = query.preprocess_record(params, delta)
      return tf.nest.map_structure(tf.add, total, clipped)

    @tf.function(autograph=False)
    def finish(total, query_state, optimizer_state, weights):
      noised, query_state, _ = query.get_noised_result(total, query_state)
      mean = queries.divide_by_cohort_size(noised, num_clients)
      return query_state, *optimizer.next(optimizer_state, weights, mean)

    self._zeros = query.initial_sample_state(self._weights)
    self._add, self._finish = add, finish

  def __call__(self) -> None:
    total = self._zeros
    for weights in self._steps.trained():
      total = self._add(total, self._weights, weights, self._query_state)
    # The steps begin at the first weights each time; only these move on.
    self._query_state, self._optimizer_state, self._weights = self._finish(
        total, self._query_state, self._optimizer_state, self._weights
    )
    limits.wait(self._weights)


def _build_context(name: str) -> tff.framework.SyncContext:
  """The context of a name."""
  if name.startswith('multi_device'):
    return multi_device.build_sync_context(
        multi_device.Settings(
            devices=_DEVICES.value,
            clients_per_device=2 if name.endswith('2 at once') else 1,
        )
    )
  if name == 'native':
    return native.build_sync_context(
        max_concurrent_clients=1, trust_network=True
    )
  return workload_lib.build_ray_context(_RAY_WORKERS.value)


if __name__ == '__main__':
  launch.run(main, after_interrupt='the same command starts again.')

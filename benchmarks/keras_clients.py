r"""Many tiny clients of Keras: a round here and in TFF's native runtime.

    python -m benchmarks.keras_clients --json=results/keras_clients.json

TFF's own federated averaging, with its defaults, of a linear model of 7,850
weights. A client maps, shuffles and batches 100 examples, and takes 5 steps.
The contexts take turns, each in a process of its own. The table has the seconds
from `process.initialize()` to the end of the first round (`first call`) and the
milliseconds of a client in the fastest of the rounds after it.
"""

from tff_asr import launch  # First: quiets TensorFlow before it is loaded.

launch.install_early_sigint(__name__)

import collections
import json
import subprocess
import sys
import time

from absl import flags
import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from benchmarks import report
from tff_asr.execution import multi_device
from tff_asr.execution import native

_BUILDERS = {
    'multi_device': multi_device.build_sync_context,
    'native': lambda: native.build_sync_context(trust_network=True),
}
_COHORT = flags.DEFINE_integer('cohort', 10, 'Clients a round.', lower_bound=1)
_ROUNDS = flags.DEFINE_integer(
    'rounds', 10, 'Rounds after the first.', lower_bound=1
)
_TURNS = flags.DEFINE_integer('turns', 3, 'Of each context.', lower_bound=1)
_CONTEXT = flags.DEFINE_enum(
    'context', None, list(_BUILDERS), 'Of a process that measures.'
)


def main(_) -> None:
  if _CONTEXT.value is not None:
    _measure_here(_BUILDERS[_CONTEXT.value]())
    return
  report.check_json_flag()
  found = {name: [] for name in _BUILDERS}
  for _ in range(_TURNS.value):
    for name, measured in found.items():
      child = subprocess.run(
          [
              sys.executable, '-m', 'benchmarks.keras_clients',
              f'--context={name}', f'--cohort={_COHORT.value}',
              f'--rounds={_ROUNDS.value}',
          ],
          check=True, stdout=subprocess.PIPE, text=True,
      )
      measured.append(json.loads(child.stdout.splitlines()[-1]))
  report.write(
      f'{_COHORT.value} clients of 5 steps of a linear Keras model',
      [['', 'first call, s', 'a client, ms']]
      + [
          [
              name,
              *(
                  report.spread([each[key] for each in measured])
                  for key in ('first_seconds', 'client_ms')
              ),
          ]
          for name, measured in found.items()
      ],
      {'measured': found},
  )


def _measure_here(context: tff.framework.SyncContext) -> None:
  """Prints the first call's seconds and a later client's milliseconds."""
  clients = [_build_dataset(seed) for seed in range(_COHORT.value)]

  def build_model():
    return tff.learning.models.from_keras_model(
        tf.keras.Sequential([
            tf.keras.layers.Flatten(input_shape=[28, 28, 1]),
            tf.keras.layers.Dense(10),
        ]),
        loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=[tf.keras.metrics.SparseCategoricalAccuracy()],
        input_spec=clients[0].element_spec,
    )

  process = tff.learning.algorithms.build_weighted_fed_avg(
      build_model,
      client_optimizer_fn=tff.learning.optimizers.build_sgdm(0.02),
      server_optimizer_fn=tff.learning.optimizers.build_sgdm(1.0),
  )
  seconds = []
  with tff.framework.get_context_stack().install(context):
    begun = time.perf_counter()
    state = process.next(process.initialize(), clients).state
    first = time.perf_counter() - begun
    for _ in range(_ROUNDS.value):
      begun = time.perf_counter()
      state = process.next(state, clients).state
      seconds.append(time.perf_counter() - begun)
  print(json.dumps({
      'first_seconds': first, 'client_ms': 1e3 * min(seconds) / len(clients)
  }))


def _build_dataset(seed: int) -> tf.data.Dataset:
  """Noise in the form of a client's digits."""
  generator = np.random.default_rng(seed)
  return (
      tf.data.Dataset.from_tensor_slices({
          'pixels': generator.random([100, 28, 28], np.float32),
          'label': generator.integers(0, 10, 100, np.int32),
      })
      .map(
          lambda digit: collections.OrderedDict(
              x=tf.expand_dims(digit['pixels'], -1), y=digit['label']
          )
      )
      .shuffle(100)
      .batch(20)
  )


if __name__ == '__main__':
  launch.run(main, after_interrupt='the same command starts again.')

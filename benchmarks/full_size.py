r"""One round of the paper's 255M model: seconds by part, and peak memory.

    python -m benchmarks.full_size

LAMB, per-layer DP, two clients of one step each; the state is saved, restored
and compared. Needs some 20 GB of memory.
"""

from tff_asr import launch  # First: quiets TensorFlow before it is loaded.

launch.begin(__name__)

import os
import tempfile
import time

from absl import flags
import numpy as np
import tensorflow as tf

from benchmarks import workload as workload_lib
from tff_asr.execution import multi_device
from tff_asr.storage import state_manager

_ROUNDS = flags.DEFINE_integer(
    'rounds', 2, 'The first one also compiles.', lower_bound=1
)
_NUM_BLOCKS = flags.DEFINE_integer(
    'num_blocks', 36, 'Of the transformer.', lower_bound=1
)
_DIM = flags.DEFINE_integer('dim', 768, 'Its width.', lower_bound=1)
_JSON = flags.DEFINE_string('json', None, 'File for the figures.')


def main(_) -> None:
  workload_lib.check_json_path(_JSON.value)
  sizes = workload_lib.Workload(
      num_blocks=_NUM_BLOCKS.value,
      dim=_DIM.value,
      num_clients=2,
      num_local_steps=1,
      num_utterances=4,
      utterance_sec=5.0,
      batch_sec=20.0,
  )
  clock = _Clock()
  with tempfile.TemporaryDirectory() as folder:
    clients = sizes.write_corpus(os.path.join(folder, 'shards'))
    clock.lap('corpus')
    process = sizes.build_process(clients, cohort_size=2)
    clock.lap('build the process')
    multi_device.set_default_context()
    state = workload_lib.initialize(process)
    clock.lap('initialize')
    for number in range(_ROUNDS.value):
      state = process.next(state, list(clients.client_ids)).state
      clock.lap(f'round {number + 1}')
    manager = state_manager.StateManager(os.path.join(folder, 'state'))
    manager.save_sync(state, 1)
    clock.lap('save')
    restored = manager.load_sync(1, state)
    clock.lap('restore')
    for old, new in zip(tf.nest.flatten(state), tf.nest.flatten(restored)):
      np.testing.assert_array_equal(np.asarray(old), np.asarray(new))
  clock.laps.append(('peak memory, GiB', workload_lib.peak_gib()))
  workload_lib.report(
      f'{sizes.num_parameters() / 1e6:.1f}M parameters, 2 clients of one step '
      f'of {sizes.batch_sec:g} s',
      [
          ['', 'seconds'],
          *([name, f'{value:.1f}'] for name, value in clock.laps),
      ],
      dict(clock.laps),
      _JSON.value,
  )


class _Clock:
  """Seconds of each part."""

  def __init__(self):
    self.laps = []
    self._last = time.monotonic()

  def lap(self, name: str) -> None:
    now = time.monotonic()
    self.laps.append((name, now - self._last))
    print(f'{name}: {now - self._last:.1f} s, '
          f'{workload_lib.peak_gib():.1f} GiB so far', flush=True)
    self._last = time.monotonic()


if __name__ == '__main__':
  launch.run(main, after_interrupt='the same command begins anew.')

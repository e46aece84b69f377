r"""Rounds of the paper's 255M model: seconds and peak memory, by part.

    python -m benchmarks.full_size

LAMB, per-layer DP, two clients of one step each; the state is saved, restored
and compared. --noprivate sums float32, without clip and noise. Needs some 14 GB
of memory.

    TF_ONEDNN_USE_SYSTEM_ALLOCATOR=1 python -m benchmarks.full_size \
        --ray_workers=2 --clients=4

Rounds then run on workers of Ray on this machine, which share its cores, and
the bytes that went through the object store are printed. Memory is that of this
process alone, except in the last line: that of all processes, measured twice a
second, which takes a tenth of the CPU time. With two workers some 20
GB; the variable lets workers return what they do not need.
"""

from tff_asr import launch  # First: quiets TensorFlow before it is loaded.

launch.install_early_sigint(__name__)

import asyncio
import contextlib
import os
import tempfile
import time
from typing import NamedTuple

from absl import flags
import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from benchmarks import memory
from benchmarks import report
from benchmarks import workload as workload_lib
from tff_asr.execution import multi_device
from tff_asr.storage import checkpoints

_ROUNDS = flags.DEFINE_integer(
    'rounds', 2, 'The first one also compiles.', lower_bound=1
)
_NUM_BLOCKS = flags.DEFINE_integer(
    'num_blocks', 36, 'Of the transformer.', lower_bound=1
)
_DIM = flags.DEFINE_integer('dim', 768, 'Its width.', lower_bound=1)
_CLIENTS = flags.DEFINE_integer('clients', 2, 'Of a round.', lower_bound=1)
_RAY_WORKERS = flags.DEFINE_integer(
    'ray_workers', 0, 'On this machine; 0: no Ray.', lower_bound=0
)
_IS_PRIVATE = flags.DEFINE_boolean(
    'private',
    True,
    'Clips, sums integers and adds noise; else sums float32, as they are.',
)


def main(_) -> None:
  report.check_json_flag()
  sizes = workload_lib.Workload(
      num_blocks=_NUM_BLOCKS.value,
      dim=_DIM.value,
      num_clients=_CLIENTS.value,
      num_local_steps=1,
      num_utterances=4,
      utterance_sec=5.0,
      batch_sec=20.0,
  )
  clock = _Clock()
  with contextlib.ExitStack() as stack:
    folder = stack.enter_context(tempfile.TemporaryDirectory())
    if _RAY_WORKERS.value:
      # Ray's processes inherit it.
      os.environ[memory.VARIABLE] = str(os.getpid())
      together = stack.enter_context(
          memory.Peak(str(os.getpid()), with_own=True)
      )
    clients = sizes.write_corpus(os.path.join(folder, 'shards'))
    clock.lap('corpus')
    process = sizes.build_process(
        clients, cohort_size=_CLIENTS.value, is_private=_IS_PRIVATE.value
    )
    clock.lap('build the process')
    if _RAY_WORKERS.value:
      context = workload_lib.build_ray_context(_RAY_WORKERS.value)
    else:
      context = multi_device.build_sync_context()
    stack.enter_context(tff.framework.get_context_stack().install(context))
    state = workload_lib.initialize(process)
    clock.lap('initialize')
    for number in range(_ROUNDS.value):
      state = process.next(
          state, clients.locate_clients(clients.client_ids)
      ).state
      clock.lap(f'round {number + 1}')
      if _RAY_WORKERS.value:
        sent = context.runner.last_round.store_bytes
        print(
            f'through the object store: {sent:,} bytes, '
            f'{sent / sizes.num_parameters():.1f} a parameter',
            flush=True,
        )
    manager = checkpoints.StateManager(os.path.join(folder, 'state'))
    asyncio.run(manager.save(state, 1))
    clock.lap('save')
    restored = asyncio.run(manager.load(1, state))
    clock.lap('restore')
    for old, new in zip(tf.nest.flatten(state), tf.nest.flatten(restored)):
      np.testing.assert_array_equal(np.asarray(old), np.asarray(new))
  figures = {lap.part: lap._asdict() for lap in clock.laps}
  if _RAY_WORKERS.value:
    print(f'all processes together: {together.gib:.2f} GiB at their peak')
    figures['all_processes_peak_gib'] = together.gib
  report.write(
      f'{sizes.num_parameters() / 1e6:.1f}M parameters, {_CLIENTS.value} '
      f'clients of one step of {sizes.batch_sec:g} s, '
      f'{_RAY_WORKERS.value or "no"} workers of Ray',
      [
          ['', 'seconds', 'CPU seconds', 'peak GiB', 'GiB at its end'],
          *(
              [lap.part, *(f'{value:.2f}' for value in lap[1:])]
              for lap in clock.laps
          ),
      ],
      figures,
  )


class _Lap(NamedTuple):
  """Cost of a part: its time, peak memory, and memory after it."""

  part: str
  seconds: float
  cpu_seconds: float
  peak_gib: float
  end_gib: float


class _Clock:
  """Laps of one part after the other."""

  def __init__(self):
    self.laps = []
    self._begin()

  def _begin(self) -> None:
    memory.reset_peak()
    self._last = time.monotonic()
    self._last_cpu = time.process_time()

  def lap(self, part: str) -> None:
    """Ends a part."""
    seconds = time.monotonic() - self._last
    cpu_seconds = time.process_time() - self._last_cpu
    lap = _Lap(
        part,
        seconds,
        cpu_seconds,
        memory.peak_gib(),
        memory.resident_gib(),
    )
    print(
        f'{part}: {seconds:.1f} s, {cpu_seconds:.1f} of CPUs, '
        f'{lap.peak_gib:.2f} GiB at its peak, {lap.end_gib:.2f} at its end',
        flush=True,
    )
    self.laps.append(lap)
    self._begin()


if __name__ == '__main__':
  launch.run(main, after_interrupt='the same command starts again.')

r"""Time and memory of a round against cohort, population and devices.

    python -m benchmarks.growth --cohorts=8,64,1024 \
        --populations=1000,1000000 --devices=1,2,4,8

Each point is measured in a process of its own, by default with a model so small
that what is around the clients' work shows. A cohort's rounds take all clients
of a corpus of as many; devices are logical ones of the CPU, which share its
cores, so that more of them can only show their cost; of a population only the
index is made, loaded, and asked for a Poisson cohort of 1,000. (2,000 rounds:
`soak`.) Memory against the cohort at 5M parameters:

    python -m benchmarks.growth --num_blocks=6 --dim=256 --cohorts=8,64 \
        --populations= --devices=
"""

from tff_asr import launch  # First: quiets TensorFlow before it is loaded.

launch.begin(__name__)

from collections.abc import Callable, Sequence
import json
import os
import statistics
import tempfile
import time

from absl import flags
import tensorflow as tf

from benchmarks import client_corpus
from benchmarks import own_process
from benchmarks import report
from benchmarks import workload as workload_lib
from tff_asr.data import client_data
from tff_asr.data import cohorts
from tff_asr.execution import multi_device

_COHORTS = flags.DEFINE_list(
    'cohorts', ['8', '32', '128', '512', '1024'], 'Clients a round.'
)
_POPULATIONS = flags.DEFINE_list(
    'populations', ['1000', '10000', '100000', '1000000'], 'Client ids.'
)
_DEVICES = flags.DEFINE_list(
    'devices', ['1', '2', '4', '8'], 'Logical devices of the CPU.'
)
_DEVICES_COHORT = flags.DEFINE_integer(
    'devices_cohort', 64, 'Clients a round on the devices.', lower_bound=1
)
_NUM_BLOCKS = flags.DEFINE_integer(
    'num_blocks', 1, 'Of the transformer.', lower_bound=1
)
_DIM = flags.DEFINE_integer('dim', 32, 'Its width.', lower_bound=1)
_ROUNDS = flags.DEFINE_integer(
    'rounds', 3, 'That count, of each.', lower_bound=1
)
_ONE = flags.DEFINE_string(
    'one', None, 'Measure this point here and print its figures.'
)

_SAMPLED = 1000


def main(_) -> None:
  report.check_json_flag()
  if _ONE.value is not None:
    kind, number = _ONE.value.split(':')
    print(json.dumps(_KINDS[kind](int(number))))
    return
  axes = {
      'cohort': _numbers(_COHORTS),
      'population': _numbers(_POPULATIONS),
      'devices': _numbers(_DEVICES),
  }
  figures = {
      kind: {number: _measure_in_process(kind, number) for number in numbers}
      for kind, numbers in axes.items()
  }
  rows = [['', 'number', 'figure', 'value']]
  for kind, points in figures.items():
    for number, point in points.items():
      rows += [
          [kind, f'{number:,}', name, f'{value:.3g}']
          for name, value in point.items()
      ]
  report.write('Growth', rows, figures)


def _numbers(flag: flags.FlagHolder) -> Sequence[int]:
  """The positive integers of a flag."""
  for text in flag.value:
    if not text.isdecimal() or not int(text):
      raise ValueError(
          f'--{flag.name} must be positive integers such as 8,64, found '
          f'{text!r}.'
      )
  return [int(text) for text in flag.value]


def _measure_in_process(kind: str, number: int) -> dict[str, float]:
  figures = own_process.measure(
      'growth',
      one=f'{kind}:{number}',
      rounds=_ROUNDS.value,
      devices_cohort=_DEVICES_COHORT.value,
      num_blocks=_NUM_BLOCKS.value,
      dim=_DIM.value,
  )
  return json.loads(figures)


def _measure_cohort(cohort_size: int) -> dict[str, float]:
  """Rounds of a cohort on the CPU."""
  return _measure_rounds(cohort_size, devices=None)


def _measure_devices(num_devices: int) -> dict[str, float]:
  """Rounds of the same cohort on so many logical devices."""
  cpu = tf.config.list_physical_devices('CPU')[0]
  tf.config.set_logical_device_configuration(
      cpu, [tf.config.LogicalDeviceConfiguration()] * num_devices
  )
  return _measure_rounds(
      _DEVICES_COHORT.value,
      devices=[f'CPU:{index}' for index in range(num_devices)],
  )


def _measure_rounds(
    cohort_size: int, *, devices: Sequence[str] | None
) -> dict[str, float]:
  """Median seconds of a round and peak memory."""
  sizes = workload_lib.Workload(
      num_blocks=_NUM_BLOCKS.value,
      dim=_DIM.value,
      num_clients=cohort_size,
      num_local_steps=1,
      num_utterances=2,
      utterance_sec=2.0,
      batch_sec=4.0,
  )
  seconds = []
  with tempfile.TemporaryDirectory() as folder:
    clients = sizes.write_corpus(folder)
    process = sizes.build_process(clients, cohort_size=cohort_size)
    multi_device.set_default_context(multi_device.Settings(devices=devices))
    state = workload_lib.initialize(process)
    for _ in range(_ROUNDS.value + 1):
      started = time.perf_counter()
      state = process.next(state, list(clients.client_ids)).state
      seconds.append(time.perf_counter() - started)
  round_sec = statistics.median(seconds[1:])
  return {
      'round_sec': round_sec,
      'client_ms': 1000 * round_sec / cohort_size,
      'peak_gib': own_process.peak_gib(),
  }


def _measure_population(num_clients: int) -> dict[str, float]:
  """Loading an index and drawing cohorts from it."""
  with tempfile.TemporaryDirectory() as root:
    folder = os.path.join(root, 'corpus')
    client_corpus.write(folder, num_clients, num_samples=16)
    tf.constant(0)  # TensorFlow's own start.
    before = own_process.resident_gib()
    started = time.perf_counter()
    data = client_data.load(folder)
    load_sec = time.perf_counter() - started
    gained = own_process.resident_gib() - before
    source = cohorts.poisson(
        data.client_ids, cohort_size=min(_SAMPLED, max(1, num_clients // 2))
    ).iterator()
    draws = []
    for _ in range(_ROUNDS.value + 1):
      started = time.perf_counter()
      source.select()
      draws.append(time.perf_counter() - started)
  return {
      'load_sec': load_sec,
      'draw_cohort_ms': 1000 * statistics.median(draws[1:]),
      'index_mib': 1024 * gained,
  }


_KINDS: dict[str, Callable[[int], dict[str, float]]] = {
    'cohort': _measure_cohort,
    'population': _measure_population,
    'devices': _measure_devices,
}


if __name__ == '__main__':
  launch.run(main, after_interrupt='the same command begins anew.')

r"""A round on N GPUs: the product's scheduler deals, only the work is a clock.

    python -m benchmarks.scaling
    python -m benchmarks.scaling --link_gb_sec=12.5
    python -m benchmarks.scaling --measure

A discrete-event simulation of a round on a Ray cluster (`ray_runner`): each GPU
asks `scheduler.Scheduler` for its next task, as a thread of an actor with
`--gpus_per_worker` does, and is busy for as long as the task costs:

- a machine's GPUs begin once the model is there. It fetches one part after the
  other, each from any machine that has it by then, over the links of both, and
  copies the whole;
- a client takes `--local_steps` times `--step_sec`, evenly up to `--spread`
  more or less, and `--add_sec` for clip and sum;
- a worker that hands over its sum adds those of its GPUs (int64, 8 bytes a
  parameter), twice over `--reduce_gb_sec`, and copies the result (int32, where
  it fits: 4 bytes) to the object store of its machine at `--copy_gb_sec`;
- a merge of a part of sums (`scheduler.Scheduler.num_parts`) fetches those of
  other machines, one after the other, each over the links of both machines,
  meanwhile adds what is there, as int64, at `--copy_gb_sec`, and copies the
  result; a part of the total goes to the server, on the first machine, which
  makes it int64 in a thread of its own, or adds it, if all is there;
- each task costs `--task_sec` besides, the server's step `--server_sec`, and
  its noise, drawn from the start of the round on, `--noise_sec`.

Efficiency is the time of one GPU over N times the time of N. Beside it: with
one GPU in 50 at half the speed, and with one worker lost, all its GPUs and its
sum, when half of the clients are done. `scheduling` is what the scheduler
itself took, measured: one process deals to all workers.

The costs' defaults, and where they are from: a step, the authors' 190 ms on an
A100 (their Table 22, by arithmetic); clip and sum, 4 passes over 1.02 GB at
20 % of 1.5 TB/s; copy 5 GB/s, link 20 Gbit/s, reduction over PCIe: assumed; the
server's noise and step, LAMB, those of two CPU cores (docs/performance.md).
None of them was measured on a GPU.

--measure instead runs rounds of 8 clients on one and on two cores of this
machine, each in a process bound to its cores, in turns.
"""

from tff_asr import launch  # First: quiets TensorFlow before it is loaded.

launch.install_early_sigint(__name__)

import collections
import dataclasses
import heapq
import itertools
import os
import random
import subprocess
import sys
import tempfile
import time

from absl import flags
import numpy as np

from tff_asr.execution import scheduler

_COHORTS = flags.DEFINE_list('cohorts', ['1024', '204800'], 'Clients a round.')
_GPUS = flags.DEFINE_list(
    'gpus', ['1', '8', '32', '64', '128', '256', '512', '1024'], 'How many.'
)
_LONGEST_FIRST = flags.DEFINE_boolean(
    'longest_first', False,
    'CLIENT_COST tells all of the spread; else nothing of it.',
)
_NUMBERS = {
    'gpus_per_machine': (8, 'GPUs of a machine.'),
    'gpus_per_worker': (8, 'GPUs of a Ray worker (GPUS_PER_WORKER).'),
    'local_steps': (10, 'Of a client.'),
    'parameters': (255.8e6, 'Of the model.'),
    'step_sec': (0.19, 'A local step.'),
    'spread': (0.1, 'Of the clients\' times, as a share.'),
    'add_sec': (0.014, 'Clip and sum of a client.'),
    'copy_gb_sec': (5.0, 'Copies and additions in the memory of a machine.'),
    'reduce_gb_sec': (20.0, 'Between GPUs of a machine.'),
    'link_gb_sec': (2.5, 'Between machines, each way.'),
    'task_sec': (0.002, 'Of a task, besides: calls between processes.'),
    'noise_sec': (2.6, 'Noise, drawn while clients train.'),
    'server_sec': (0.8, 'Optimizer.'),
}
_FLAGS = {
    name: flags.DEFINE_float(name, value, text, lower_bound=0)
    for name, (value, text) in _NUMBERS.items()
}
_MEASURE = flags.DEFINE_boolean('measure', False, 'Rounds on 1 and 2 cores.')
_REPEATS = flags.DEFINE_integer('repeats', 3, 'Of --measure.', lower_bound=1)
_CORES = flags.DEFINE_integer('cores', None, 'Of a process of --measure.')


@dataclasses.dataclass(frozen=True, kw_only=True)
class Costs:
  """What a round's parts cost; see the module.

  Attributes:
    train_sec: a client on a GPU of full speed.
    spread: clients take this share more or less, at most.
    model_bytes, sum_bytes, sent_bytes: of the broadcast, of a sum in memory,
      and of one that is sent.
    copy_bytes_sec, reduce_bytes_sec, link_bytes_sec: speeds.
    task_sec, noise_sec, server_sec: see the flags.
    broadcast_parts: of the broadcast.
    longest_first: whether the costliest clients are dealt first.
    gpus_per_machine, gpus_per_worker: how many.
  """

  train_sec: float
  spread: float
  model_bytes: float
  sum_bytes: float
  sent_bytes: float
  copy_bytes_sec: float
  reduce_bytes_sec: float
  link_bytes_sec: float
  task_sec: float
  noise_sec: float
  server_sec: float
  broadcast_parts: int
  longest_first: bool
  gpus_per_machine: int
  gpus_per_worker: int


@dataclasses.dataclass
class Round:
  """A simulated round.

  Attributes:
    num_clients: in the sum.
    started_sec: when the last machine had the model.
    trained_sec: when the last client was done.
    merged_sec: when the total was at the server.
    end_sec: when the server's step was done.
    store_bytes: put into object stores.
    scheduling_sec: what the scheduler took, on this machine's clock.
  """

  num_clients: int = 0
  started_sec: float = 0.0
  trained_sec: float = 0.0
  merged_sec: float = 0.0
  end_sec: float = 0.0
  store_bytes: float = 0.0
  scheduling_sec: float = 0.0


def simulate(
    num_clients: int,
    num_gpus: int,
    costs: Costs,
    *,
    slow_every: int = 0,
    is_one_lost: bool = False,
) -> Round:
  """Runs a round.

  Args:
    num_clients: the cohort.
    num_gpus: how many train.
    costs: of the parts.
    slow_every: one GPU in so many takes twice as long; 0: none.
    is_one_lost: whether the last worker is lost, with its sum, when half of the
      clients are done. There must be another.
  """
  generator = np.random.default_rng(1)
  factors = generator.uniform(1 - costs.spread, 1 + costs.spread, num_clients)
  num_machines = -(-num_gpus // costs.gpus_per_machine)
  blocks = scheduler.cut(
      num_clients, costs=factors if costs.longest_first else None
  )
  tasks = scheduler.Scheduler(blocks)
  tasks.num_parts = scheduler.count_parts(
      -(-num_gpus // costs.gpus_per_worker), num_machines
  )
  tasks.server_place = '0'
  result = Round()
  numbers = itertools.count()
  # Heap of (time, number of the event, transfer that is asked for or links that
  # it has used or None, GPU, task or None, further steps).
  events = []
  busy = set()  # Links: ('from' or 'to', machine).
  asked = []  # Transfers that wait for links, and the rest of their event.
  idle = collections.defaultdict(set)  # By machine.
  lost = set()
  num_trained = 0
  worker_of = lambda gpu: gpu // costs.gpus_per_worker
  machine_of = lambda gpu: gpu // costs.gpus_per_machine
  place_of = lambda gpu: str(machine_of(gpu))

  def work(gpu, task, now):
    """Yields when each step of a task ends, and what is then to be sent.

    That is (from, to, bytes) or None; is resumed with the time after it.
    """
    now += costs.task_sec
    if isinstance(task, scheduler.Block):
      slowness = 2.0 if slow_every and not (gpu + 1) % slow_every else 1.0
      yield now + slowness * factors[task.positions[0]] * costs.train_sec, None
      return
    if isinstance(task, scheduler.HandOver):
      if costs.gpus_per_worker > 1:
        now += 2 * costs.sum_bytes / costs.reduce_bytes_sec
      yield stored(costs.sent_bytes, now), None
      return
    # As `ray_runner` does.
    server = tasks.server_place
    is_here = len(task.sums) == 1 or task.places == {server}
    target = server if task.is_total and is_here else place_of(gpu)
    add_sec = costs.sum_bytes / tasks.num_parts / costs.copy_bytes_sec
    sent_bytes = costs.sent_bytes / tasks.num_parts
    added = now
    for index in task.order:
      place = task.sums[index].places[task.part]
      if place != target:
        now = yield now, (place, target, sent_bytes)
      # The next one is fetched meanwhile.
      added = max(now, added) + add_sec
    if task.is_total and is_here:
      yield added, None
      return
    now = yield stored(sent_bytes, added), None
    if task.is_total:
      if target != server:
        now = yield now, (target, server, sent_bytes)
      yield now + add_sec, None

  def stored(num_bytes, now):
    """When a result is in the object store."""
    result.store_bytes += num_bytes
    return now + num_bytes / costs.copy_bytes_sec

  def timed(function, *arguments):
    begun = time.thread_time()
    found = function(*arguments)
    result.scheduling_sec += time.thread_time() - begun
    return found

  def ask(gpu, now):
    """Gives a GPU its next task, if there is one."""
    if worker_of(gpu) in lost:
      return False
    task = timed(tasks.poll, worker_of(gpu), place_of(gpu))
    if task is None:
      idle[machine_of(gpu)].add(gpu)
      return False
    steps = work(gpu, task, now)
    push(*next(steps), gpu, task, steps)
    return True

  def push(now, transfer, *rest):
    heapq.heappush(events, (now, next(numbers), transfer, *rest))

  def send(now):
    """Begins each transfer that finds its links free, in order of asking."""
    for transfer, *rest in list(asked):
      source, target, num_bytes = transfer
      links = {('from', source), ('to', target)}
      if not links & busy:
        busy.update(links)
        asked.remove((transfer, *rest))
        push(now + num_bytes / costs.link_bytes_sec, links, *rest)

  def wake(changed, now):
    """Asks who waits: of machine `changed`, or of all if None; else some."""
    for machine, gpus in idle.items():
      for gpu in sorted(gpus):
        gpus.remove(gpu)
        # Elsewhere, what one GPU cannot do no other can.
        if not ask(gpu, now) and changed not in (None, machine):
          break

  ready = _send_model(num_machines, costs)
  result.started_sec = max(ready)
  for gpu in range(num_gpus):
    begun = ready[machine_of(gpu)]
    push(begun, None, gpu, None, None)
  while not tasks.is_over():
    now, _, transfer, gpu, task, steps = heapq.heappop(events)
    if isinstance(transfer, tuple):
      asked.append((transfer, gpu, task, steps))
      send(now)
      continue
    if transfer:
      busy -= transfer
      send(now)
    if worker_of(gpu) in lost:
      continue
    if task is not None:
      try:
        push(*steps.send(now), gpu, task, steps)
        continue
      except StopIteration:
        pass
      if isinstance(task, scheduler.Block):
        num_trained += 1
        result.trained_sec = now
      elif isinstance(task, scheduler.Merge) and task.is_total:
        result.num_clients = len(task.blocks)
        result.merged_sec = now
      timed(tasks.put, worker_of(gpu), task, [None] * tasks.num_parts)
    ask(gpu, now)
    is_loss = is_one_lost and not lost and num_trained >= num_clients // 2
    if is_loss:
      lost.add(worker_of(num_gpus - 1))
      for *_, other, hers, _ in events:
        if hers is not None and worker_of(other) in lost:
          tasks.lose(worker_of(other), hers)
    if is_loss or not isinstance(task, scheduler.Block):
      wake(None if is_loss else machine_of(gpu), now)
  result.end_sec = max(result.merged_sec, costs.noise_sec) + costs.server_sec
  return result


def _send_model(num_machines: int, costs: Costs) -> list[float]:
  """When each machine has the model; the first is the server's."""
  draws = random.Random(1)
  parts = range(costs.broadcast_parts)
  part_sec = costs.model_bytes / costs.broadcast_parts / costs.link_bytes_sec
  left = [draws.sample(parts, len(parts)) for _ in range(num_machines)]
  left[0] = []
  holders = [[0] for _ in parts]
  free_sec = [0.0] * num_machines  # Of each machine's link to others.
  ready = [0.0] * num_machines
  # When a machine got a part.
  events = [(0.0, machine, None) for machine in range(1, num_machines)]
  while events:
    now, machine, part = heapq.heappop(events)
    if part is not None:
      holders[part].append(machine)
    ready[machine] = now
    if left[machine]:
      part = left[machine].pop()
      source = draws.choice(holders[part])
      free_sec[source] = max(now, free_sec[source]) + part_sec
      heapq.heappush(events, (free_sec[source], machine, part))
  copy_sec = costs.model_bytes / costs.copy_bytes_sec
  return [sec + copy_sec for sec in ready]


def main(_) -> None:
  if _CORES.value:
    _measure_here(_CORES.value)
    return
  from benchmarks import report  # pylint: disable=g-import-not-at-top

  report.check_json_flag()
  if _MEASURE.value:
    _measure(report)
    return
  values = {name: flag.value for name, flag in _FLAGS.items()}
  costs = Costs(
      train_sec=values['local_steps'] * values['step_sec'] + values['add_sec'],
      spread=values['spread'],
      model_bytes=4 * values['parameters'],
      sum_bytes=8 * values['parameters'],
      sent_bytes=4 * values['parameters'],
      copy_bytes_sec=1e9 * values['copy_gb_sec'],
      reduce_bytes_sec=1e9 * values['reduce_gb_sec'],
      link_bytes_sec=1e9 * values['link_gb_sec'],
      task_sec=values['task_sec'],
      noise_sec=values['noise_sec'],
      server_sec=values['server_sec'],
      broadcast_parts=scheduler.BROADCAST_PARTS,
      longest_first=_LONGEST_FIRST.value,
      gpus_per_machine=int(values['gpus_per_machine']),
      gpus_per_worker=int(values['gpus_per_worker']),
  )
  figures = {}
  for cohort in map(int, _COHORTS.value):
    single = simulate(cohort, 1, costs).end_sec
    rows = [[
        'GPUs', 'round, s', 'efficiency', '1 in 50 at half speed',
        'one worker lost', 'model sent, s', 'after the last client, s',
        'GB through stores', 'scheduling, s',
    ]]
    for count in map(int, _GPUS.value):
      runs = [
          simulate(cohort, count, costs),
          simulate(cohort, count, costs, slow_every=50),
      ]
      if count > costs.gpus_per_worker:
        runs.append(simulate(cohort, count, costs, is_one_lost=True))
      shares = [single / count / run.end_sec for run in runs]
      plain = runs[0]
      rows.append([
          f'{count:,}',
          f'{plain.end_sec:,.1f}',
          *(f'{share:.1%}' for share in shares),
          *[''] * (3 - len(shares)),
          f'{plain.started_sec:.1f}',
          f'{plain.end_sec - plain.trained_sec:.1f}',
          f'{plain.store_bytes / 1e9:,.0f}',
          f'{plain.scheduling_sec:.2f}',
      ])
      figures[f'{cohort} on {count}'] = dict(
          vars(plain), efficiencies=shares
      )
    given = ', '.join(f'{name} {value:g}' for name, value in values.items())
    report.write(
        f'Cohort {cohort:,}. Simulated, not run on GPUs. {given}',
        rows,
        {'costs': values, 'rounds': figures},
    )


def _measure(report) -> None:
  """Rounds on one and on two cores, in turns."""
  children = {
      cores: subprocess.Popen(
          [sys.executable, '-m', 'benchmarks.scaling', f'--cores={cores}'],
          stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
      )
      for cores in (1, 2)
  }
  seconds = {cores: [] for cores in children}
  try:
    for turn in range(_REPEATS.value + 1):
      for cores, child in children.items():
        print('go', file=child.stdin, flush=True)
        taken = float(child.stdout.readline())
        if turn:
          seconds[cores].append(taken)
  finally:
    for child in children.values():
      child.stdin.close()
      child.wait()
  ratios = [one / two for one, two in zip(seconds[1], seconds[2], strict=True)]
  report.write(
      '8 clients of 4 steps of 10 s, 5M parameters; a client at a time on each '
      'core',
      [['', 'one core, s', 'two cores, s', 'ratio', 'efficiency'],
       ['a round', report.spread(seconds[1]), report.spread(seconds[2]),
        report.spread(ratios),
        report.spread([ratio / 2 for ratio in ratios])]],
      {'seconds': {str(key): each for key, each in seconds.items()},
       'ratios': ratios},
  )


def _measure_here(cores: int) -> None:
  """Runs a round for each line of input; prints its seconds."""
  os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:cores])
  # pylint: disable=g-import-not-at-top
  from benchmarks import workload as workload_lib
  from tff_asr.execution import multi_device

  sizes = workload_lib.Workload(
      num_blocks=6, dim=256, num_clients=8, num_local_steps=4
  )
  with tempfile.TemporaryDirectory() as folder:
    clients = sizes.write_corpus(folder)
    run = workload_lib.Round(
        multi_device.build_sync_context(
            multi_device.Settings(devices=['CPU:0'], clients_per_device=cores)
        ),
        sizes.build_process(clients, cohort_size=8),
        clients.records_of(clients.client_ids),
    )
    for _ in sys.stdin:
      begun = time.perf_counter()
      run()
      print(time.perf_counter() - begun, flush=True)


if __name__ == '__main__':
  launch.run(main, after_interrupt='the same command begins anew.')

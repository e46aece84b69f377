r"""Checks that a GPU machine meets this project's needs, in one table.

    python -m tools.gpu_check --output=gpu_check.md
    python -m tools.gpu_check --device=cpu --small     # the same rows anywhere

Takes ten minutes on a GPU, and as long as XLA needs for the rows that it
compiles. A row that fails gives the reason and the others still run; the exit
code is then 1. Rows without time left, or that need two GPUs where there is
one, read "not run". The table is written after each row, and is meant to be
pasted (docs/gpu.md).

TF_DETERMINISTIC_OPS=1 holds throughout, unless the variable is set: kernels
then repeat their bits, and some are slower.
"""

import os

if __name__ == '__main__':  # Read by TensorFlow when it is loaded.
  os.environ.setdefault('TF_DETERMINISTIC_OPS', '1')

# pylint: disable=wrong-import-position
from tff_asr import launch

launch.install_early_sigint(__name__)

from collections.abc import Callable, Sequence
import dataclasses
import functools
import itertools
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time
from typing import Any

from absl import flags
import numpy as np
import psutil
import tensorflow as tf
import tensorflow_federated as tff

from benchmarks import flops
from benchmarks import limits
from benchmarks import workload as workload_lib
from tff_asr import checks
from tff_asr import files
from tff_asr.data import buckets as buckets_lib
from tff_asr.data import pipeline as pipeline_lib
from tff_asr.data import records
from tff_asr.execution import multi_device
from tff_asr.features import log_mel
from tff_asr.learning import fed_avg
from tff_asr.models import ctc
from tff_asr.models import weights as weights_lib
# Private to TensorFlow, which has no public way to the graphs that ran.
from tensorflow.python.eager import context as eager_context

_DEVICE = flags.DEFINE_enum('device', 'gpu', ['gpu', 'cpu'], 'To check.')
_SMALL = flags.DEFINE_boolean(
    'small', False, 'Toy sizes in place of the 255M model.'
)
_OUTPUT = flags.DEFINE_string('output', None, 'File for the table.')
_LIMIT_SEC = flags.DEFINE_float(
    'limit_sec', 540.0, 'No row begins later.', lower_bound=0.0
)

_LABELS_A_SEC = 12
_REPEATS = 3
# Of gradients and of a round's update, as shares of their norm.
_TOLERANCE = 1e-2
# Of losses and their gradients: kernels that add logarithms in other orders
# differ by 1e-4 on one CPU, and by 2e-4 under a GPU's XLA.
_CTC_TOLERANCE = 1e-3
# Ops on tensors of floats that may run off the GPU: moves, not arithmetic.
_MOVES = frozenset([
    '_Arg', '_Retval', '_Recv', '_Send', '_HostRecv', '_HostSend', 'Const',
    'Identity', 'IdentityN', 'NoOp', 'Switch', 'Merge', 'Enter', 'Exit',
    'NextIteration', 'If', 'StatelessIf', 'While', 'StatelessWhile',
    'PartitionedCall', 'StatefulPartitionedCall',
])
# A program: device and file.
_SPLIT = """
import sys
from tools.gpu_check import Check
Check(sys.argv[1], is_small=True).write_split_round(sys.argv[2])
"""


class Failed(Exception):  # pylint: disable=g-bad-exception-name
  """A check failed; the message says what was found."""


def main(_) -> None:
  if _OUTPUT.value:
    folder = os.path.dirname(os.path.abspath(_OUTPUT.value))
    checks.output_folders(output=folder)
  if _DEVICE.value == 'gpu' and not tf.config.list_physical_devices('GPU'):
    raise ValueError(
        'No GPU was found: nvidia-smi must show one, and requirements-gpu.txt '
        'must be installed; --device=cpu --small checks this program alone.'
    )
  check = Check(_DEVICE.value.upper(), is_small=_SMALL.value)
  begun = time.monotonic()
  rows = [['check', 'result', 'found', 'took, s']]
  for name, run in check.rows():
    started = time.monotonic()
    result, found = 'not run', 'no time left'
    if started - begun < _LIMIT_SEC.value:
      result, found = run_row(run)
    took = f'{time.monotonic() - started:.1f}'
    rows.append([name, result, found, took])
    print(f'{name}: {result} ({found})', flush=True)
    if _OUTPUT.value:
      files.write(_OUTPUT.value, _table(rows).encode())
  print('\n' + _table(rows))
  failed = [row[0] for row in rows if row[1] == 'FAILED']
  if failed:
    raise ValueError(f'failed: {", ".join(failed)}; see the table.')


def _table(rows: Sequence[Sequence[str]]) -> str:
  """Rows, of which the first is the header, in Markdown."""
  lines = ['| ' + ' | '.join(row) + ' |' for row in rows]
  lines.insert(1, '|' + '---|' * len(rows[0]))
  return '\n'.join(lines) + '\n'


def run_row(run: Callable[[], str]) -> tuple[str, str]:
  """Returns a row's result and what was found, whatever it raises."""
  try:
    return 'passed', run()
  except NotRun as error:
    return 'not run', str(error)
  except Exception as error:  # pylint: disable=broad-exception-caught
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    text = (lines or ['no message'])[0].replace('|', '/')[:200]
    kind = '' if isinstance(error, Failed) else f'{type(error).__name__}: '
    return 'FAILED', kind + text


class NotRun(Exception):  # pylint: disable=g-bad-exception-name
  """The machine lacks a requirement of a check; the message names it."""


class Check:
  """The rows, on the first device of a kind and, where it says so, on all."""

  def __init__(self, kind: str, *, is_small: bool):
    self._kind = kind
    self._device = f'{kind}:0'
    # To list logical GPUs would be to use them; here they are the physical.
    found = (
        tf.config.list_logical_devices(kind)
        if kind == 'CPU'
        else tf.config.list_physical_devices(kind)
    )
    self._devices = [f'{kind}:{number}' for number in range(len(found))]
    self._is_small = is_small
    self._toy = workload_lib.Workload(
        num_blocks=1, dim=32, num_clients=max(2, len(found)),
        num_local_steps=2, num_utterances=4,
    )
    self._large = self._toy if is_small else workload_lib.Workload(
        num_blocks=36, dim=768, num_clients=2, num_local_steps=2,
        num_utterances=20, utterance_sec=6.0, batch_sec=120.0,
    )
    # Traced and compiled once for all contexts.
    self._prepare = functools.cache(_prepare)
    self._batch_size = 2 if is_small else 20
    self._dtype = 'float32' if kind == 'CPU' else 'bfloat16'

  def rows(self) -> list[tuple[str, Callable[[], str]]]:
    """Names and checks, in order."""
    size = f'{self._large.num_parameters() / 1e6:.1f}M'
    step = f'step of {size}, {self._batch_size} x 6 s'
    return [
        ('machine', self._machine),
        ('first start: a product, a convolution, softmax', self._first_start),
        ('float32 products', self._products),
        ('kernels: no float op of a step on the host', self._placement),
        ("CTC 'scan' equals 'op'", self._ctc),
        ("CTC 'scan' under XLA", self._ctc_xla),
        ('gradients as on the CPU', self._gradients),
        ('a step twice: the same bits', self._same_bits),
        ('a round as on the CPU', self._round_as_on_cpu),
        ('two clients at once: the same bits', self._two_at_once),
        ('two clients on two parts of a device: the same bits', self._split),
        ('a round on all devices: the same bits', self._on_all_devices),
        (f'{step}, float32', lambda: self._step('float32')),
        (f'{step}, bfloat16', lambda: self._step('bfloat16')),
        (f'{step}, {self._dtype}, under XLA',
         lambda: self._step(self._dtype, jit=True)),
        (f'round of {size}, 2 clients of 2 steps, float32',
         lambda: self._round(self._large)),
        (f'the same, {self._dtype}, under XLA',
         lambda: self._round(self._large, dtype=self._dtype, jit=True)),
        ('the same on all devices, 2 clients each', self._round_on_all),
    ]

  def _machine(self) -> str:
    device = tf.config.list_physical_devices(self._kind)[0]
    details = tf.config.experimental.get_device_details(device)
    build = tf.sysconfig.get_build_info()
    memory = psutil.virtual_memory().total / 2**30
    capability = '.'.join(map(str, details.get('compute_capability', ['none'])))
    return (
        f'{details.get("device_name", self._kind)}, compute capability '
        f'{capability}; '
        f'{psutil.cpu_count()} cores, {memory:.0f} GiB; TensorFlow '
        f'{tf.__version__} (CUDA {build.get("cuda_version", "none")}), TFF '
        f'{tff.__version__}'
    )

  def _first_start(self) -> str:
    begun = time.monotonic()
    with tf.device(self._device):
      values = tf.random.stateless_normal([4, 64, 80], [1, 2])
      product = tf.linalg.matmul(values, values, transpose_b=True)
      convolved = tf.nn.conv1d(values, tf.ones([7, 80, 8]), 3, 'SAME')
      limits.wait([tf.nn.softmax(product), convolved])
    seconds = time.monotonic() - begun
    return (
        f'{seconds:.1f} s; minutes mean that kernels were compiled for this '
        'GPU, once (CUDA_CACHE_MAXSIZE)'
    )

  def _products(self) -> str:
    with tf.device(self._device):
      run, work = limits.build_product()
      seconds = _time(lambda: run() or ())
    return f'{work / statistics.median(seconds) / 1e12:.2f} TFLOP/s'

  def _placement(self) -> str:
    model = self._model(self._toy, loss_kernel='scan')
    with tf.device(self._device):
      weights = model.initialize(tf.constant([1, 0]))
      batch = _batch(2)
      step = _step_function(model, batch)
      # Graphs are collected when a function is first called.
      eager_context.context().enable_run_metadata()
      try:
        limits.wait(step(weights, batch))
        ran = eager_context.context().export_run_metadata()
      finally:
        eager_context.context().disable_run_metadata()
    ops = {'host': set(), 'device': set()}
    for function in ran.function_graphs:
      for node in itertools.chain.from_iterable(
          graph.node for graph in function.partition_graphs
      ):
        where = 'device' if f'{self._kind}:0' in node.device else 'host'
        if _is_float(node) and node.op not in _MOVES:
          ops[where].add(node.op)
    if not ops['device']:
      raise Failed(f'no float op ran on {self._device}')
    if ops['host']:
      raise Failed(f'on the host: {", ".join(sorted(ops["host"]))}')
    return f'{len(ops["device"])} kinds of float ops, all on {self._device}'

  def _ctc(self) -> str:
    logits, lengths, labels = _logits()
    found, seconds = {}, {}
    for kernel in ctc.LOSS_KERNELS:
      function = _ctc_function(kernel)
      with tf.device(self._device):
        run = functools.partial(function, logits, *lengths, labels)
        found[kernel] = run()
        seconds[kernel] = statistics.median(_time(run))
    distance = max(
        _distance(one, other)
        for one, other in zip(found['scan'], found['op'])
    )
    if not distance <= _CTC_TOLERANCE:
      raise Failed(f'losses or gradients differ by {distance:.1g}')
    return f'within {distance:.1g}; ' + ', '.join(
        f'{kernel} {1e3 * took:.1f} ms' for kernel, took in seconds.items()
    )

  def _ctc_xla(self) -> str:
    logits, lengths, labels = _logits()
    plain, xla = _ctc_function('scan'), _ctc_function('scan', jit=True)
    with tf.device(self._device):
      begun = time.monotonic()
      compiled = xla(logits, *lengths, labels)
      compiling = time.monotonic() - begun
      distance = max(
          _distance(one, other)
          for one, other in zip(compiled, plain(logits, *lengths, labels))
      )
      if not distance <= _CTC_TOLERANCE:
        raise Failed(f'losses or gradients differ by {distance:.1g}')
      seconds = _time(lambda: xla(logits, *lengths, labels))
    return (
        f'within {distance:.1g}; {1e3 * statistics.median(seconds):.1f} ms, '
        f'compiled in {compiling:.1f} s'
    )

  def _updates(self, device: str) -> list[np.ndarray]:
    """What a step with dropout changes, in float32."""
    model = self._model(self._toy)
    batch = _batch(2)
    with tf.device(device):
      weights = model.initialize(tf.constant([1, 0]))
      after, loss = _step_function(model, batch)(weights, batch)
      after = tf.nest.map_structure(tf.subtract, after, weights)
      return [each.numpy() for each in (*tf.nest.flatten(after), loss)]

  def _gradients(self) -> str:
    distance = _distance(self._updates(self._device), self._updates('CPU:0'))
    if not distance <= _TOLERANCE:
      raise Failed(f'they differ by {distance:.1g} of their norm')
    return f'within {distance:.1g} of their norm'

  def _same_bits(self) -> str:
    one, other = self._updates(self._device), self._updates(self._device)
    return _compare_bits(one, other)

  def _round_of(
      self,
      sizes: workload_lib.Workload,
      *,
      dtype: str = 'float32',
      jit: bool = False,
      **settings,
  ) -> tuple[list[np.ndarray], list[float]]:
    """What rounds change of the weights, and the seconds of two of them.

    Args:
      sizes: Model and clients.
      dtype: Type of activations.
      jit: Whether batches are padded to buckets and XLA compiles steps.
      **settings: Settings of the context.
    """
    context = multi_device.build_sync_context(
        multi_device.Settings(
            **{'devices': [self._device], **settings}
        )
    )
    _, cohort, process = self._prepare(sizes, dtype, jit=jit)
    with tff.framework.get_context_stack().install(context):
      first = fed_avg.set_noise_key(
          process.initialize(), np.arange(8, dtype=np.int32)
      )
      state, seconds = first, []
      for _ in range(2):
        begun = time.monotonic()
        state = process.next(state, cohort).state
        seconds.append(time.monotonic() - begun)
    before, after = (
        tf.nest.flatten(each.global_model_weights)
        for each in (first, state)
    )
    change = [
        np.asarray(one) - np.asarray(other) for one, other in zip(after, before)
    ]
    return change, seconds

  def _round_as_on_cpu(self) -> str:
    change, _ = self._round_of(self._toy)
    on_cpu, _ = self._round_of(self._toy, devices=['CPU:0'])
    distance = _distance(change, on_cpu)
    if not distance <= _TOLERANCE:
      raise Failed(f'they differ by {distance:.1g} of their norm')
    return f'two rounds, within {distance:.1g} of their norm'

  def _two_at_once(self) -> str:
    one, _ = self._round_of(self._toy)
    both, _ = self._round_of(self._toy, clients_per_device=2)
    return _compare_bits(one, both)

  def _split(self) -> str:
    """In a separate process: a device in use cannot be split."""
    one, _ = self._round_of(self._two_clients())
    with tempfile.TemporaryDirectory() as folder:
      path = os.path.join(folder, 'change.npz')
      finished = subprocess.run(
          [sys.executable, '-c', _SPLIT, self._kind, path],
          cwd=pathlib.Path(__file__).parents[1],
          stderr=subprocess.PIPE,
          text=True,
          check=False,
      )
      if finished.returncode:
        raise Failed(finished.stderr.strip().splitlines()[-1])
      with np.load(path) as parts:
        return _compare_bits(one, list(parts.values()))

  def write_split_round(self, path: str) -> None:
    """Writes what rounds change where each client has a part of the device."""
    devices = ['CPU:0'] if self._kind == 'CPU' else ['GPU:0', 'GPU:1']
    change, _ = self._round_of(
        self._two_clients(), devices=devices, clients_per_device=2,
        gpu_memory_mb=2048,
    )
    np.savez(path, *change)

  def _two_clients(self) -> workload_lib.Workload:
    return dataclasses.replace(self._toy, num_clients=2)

  def _check_several(self) -> None:
    """Raises NotRun unless there are several devices."""
    if len(self._devices) < 2:
      raise NotRun(f'one {self._kind}')

  def _on_all_devices(self) -> str:
    self._check_several()
    one, _ = self._round_of(self._toy)
    found, _ = self._round_of(self._toy, devices=self._devices)
    return f'{len(self._devices)} devices, {_compare_bits(one, found)}'

  def _step(self, dtype: str, *, jit: bool = False) -> str:
    self._reset_peak()
    model = self._model(
        self._large, loss_kernel='scan', activation_dtype=dtype
    )
    batch = _batch(self._batch_size)
    with tf.device(self._device):
      weights = model.initialize(tf.constant([1, 0]))
      step = _step_function(model, batch, jit=jit)
      begun = time.monotonic()
      _, loss = step(weights, batch)
      loss = float(loss)
      first = time.monotonic() - begun
      seconds = _time(lambda: step(weights, batch))
    if not np.isfinite(loss):
      raise Failed(f'the loss is {loss}')
    work = flops.step(
        batch_size=self._batch_size,
        num_frames=batch['features'].shape[1],
        feature_dim=log_mel.NUM_MEL_BINS,
        num_blocks=self._large.num_blocks,
        dim=self._large.dim,
        mlp_dim=4 * self._large.dim,
        vocab_size=model.vocab_size,
    )
    took = statistics.median(seconds)
    return (
        f'{1e3 * took:.0f} ms, {work / took / 1e12:.2f} TFLOP/s; first '
        f'{first:.1f} s{self._memory()}'
    )

  def _round(self, sizes: workload_lib.Workload, **options) -> str:
    """Rounds of a large model; `options` are those of `_round_of`."""
    self._reset_peak()
    change, seconds = self._round_of(sizes, **options)
    if not all(np.all(np.isfinite(each)) for each in change):
      raise Failed('weights are not finite')
    return f'{seconds[1]:.1f} s, the first {seconds[0]:.1f} s{self._memory()}'

  def _round_on_all(self) -> str:
    self._check_several()
    return self._round(
        dataclasses.replace(self._large, num_clients=2 * len(self._devices)),
        dtype=self._dtype,
        jit=True,
        devices=self._devices,
    )

  def _model(self, sizes: workload_lib.Workload, **options) -> ctc.CtcModel:
    model = sizes.build_model(
        activation_dtype=options.pop('activation_dtype', 'float32')
    )
    return dataclasses.replace(model, **options)

  def _reset_peak(self) -> None:
    """Starts measuring the device memory of a row."""
    if self._kind == 'GPU':
      tf.config.experimental.reset_memory_stats(self._device)

  def _memory(self) -> str:
    """Peak of the device in this row; nothing for a CPU."""
    if self._kind != 'GPU':
      return ''
    peak = tf.config.experimental.get_memory_info(self._device)['peak']
    return f'; peak {peak / 2**30:.1f} GiB'


def _prepare(
    sizes: workload_lib.Workload, dtype: str, *, jit: bool
) -> tuple[
    tempfile.TemporaryDirectory,
    list[records.ClientRecordLocations],
    tff.learning.templates.LearningProcess,
]:
  """A corpus' folder, which lives as long, its clients and their process."""
  folder = tempfile.TemporaryDirectory()
  clients = sizes.write_corpus(folder.name)
  model = sizes.build_model(activation_dtype=dtype)
  buckets = None
  if jit:
    model = dataclasses.replace(model, loss_kernel='scan')
    longest = sizes.build_pipeline(model).max_utterance_sec
    buckets = buckets_lib.LengthBuckets([sizes.utterance_sec, longest])
  process = sizes.build_process(
      clients, cohort_size=sizes.num_clients, model=model, buckets=buckets
  )
  return folder, clients.locate_clients(clients.client_ids), process


def _batch(size: int) -> pipeline_lib.Batch:
  return workload_lib.build_batch(
      size, seconds=6.0, labels_a_sec=_LABELS_A_SEC
  )


def _step_function(
    model: ctc.CtcModel, batch: pipeline_lib.Batch, *, jit: bool = False
) -> Callable[..., tuple[weights_lib.Weights, tf.Tensor]]:
  """A step on batches; of this shape alone, and without text, for XLA."""
  step = workload_lib.build_step(model)
  if not jit:
    return tf.function(step, autograph=False)
  compiled = tf.function(step, autograph=False, jit_compile=True)
  numbers = {
      name: value
      for name, value in batch.items()
      if value.dtype != tf.string
  }
  return lambda weights, _: compiled(weights, numbers)


def _logits() -> tuple[tf.Tensor, tuple[tf.Tensor, tf.Tensor], tf.Tensor]:
  """Random logits of 20 x 6 s, lengths of outputs and labels, and labels."""
  size = 20
  generator = np.random.default_rng(1)
  logits = generator.normal(size=[size, 200, 30]).astype(np.float32)
  labels = generator.integers(0, 29, [size, 60]).astype(np.int32)
  lengths = tf.range(200, 200 - size, -1), tf.range(60, 60 - size, -1)
  return tf.constant(logits), lengths, tf.constant(labels)


def _ctc_function(
    kernel: str, *, jit: bool = False
) -> Callable[..., tuple[tf.Tensor, tf.Tensor]]:
  """Losses and their gradients."""

  @tf.function(autograph=False, jit_compile=jit)
  def losses(logits, lengths, label_lengths, labels):
    with tf.GradientTape() as tape:
      tape.watch(logits)
      found = ctc.loss(logits, lengths, labels, label_lengths, kernel=kernel)
    return found, tape.gradient(found, logits)

  return losses


def _is_float(node: tf.compat.v1.NodeDef) -> bool:
  """Whether a node works on floats."""
  return any(
      tf.as_dtype(node.attr[name].type).is_floating
      for name in ('T', 'dtype')
      if name in node.attr and node.attr[name].type
  )


def _time(run: Callable[[], Any]) -> list[float]:
  """Seconds of some runs to their results, after one that does not count."""
  limits.wait(run())
  seconds = []
  for _ in range(_REPEATS):
    begun = time.monotonic()
    limits.wait(run())
    seconds.append(time.monotonic() - begun)
  return seconds


def _distance(one: Sequence[np.ndarray], other: Sequence[np.ndarray]) -> float:
  """Distance of two structures, as a share of the second's norm."""
  one, other = (
      np.concatenate([
          np.ravel(np.asarray(each, np.float64)) for each in tf.nest.flatten(x)
      ])
      for x in (one, other)
  )
  return float(np.linalg.norm(one - other) / np.linalg.norm(other))


def _compare_bits(
    one: Sequence[np.ndarray], other: Sequence[np.ndarray]
) -> str:
  """Raises Failed unless all bits are equal."""
  differ = sum(
      int(np.sum(np.asarray(a) != np.asarray(b))) for a, b in zip(one, other)
  )
  if differ:
    raise Failed(f'{differ} values differ')
  return f'{sum(np.size(each) for each in one):,} values'


if __name__ == '__main__':
  launch.run(main, after_interrupt='the same command starts again.')

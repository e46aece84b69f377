"""Every op of the training loop has a GPU kernel, by TensorFlow's registry.

An op without one runs on the CPU of a machine with GPUs (placement is soft) and
copies its tensors there and back in every step. The registry can be read
without a GPU or a driver.
"""

import functools
import itertools
import tempfile

from absl.testing import absltest
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tests.execution import speech_process
from tests.execution import toys
from tff_asr.execution import compiler
from tff_asr.execution import graph
# Private to TensorFlow, which has no public way to list its kernels.
from tensorflow.python.framework import kernels

# All on the host by design: noise, and what finds, reads, parses and cuts a
# client's examples. Control flow and calls have kernels for all devices.
_OF_THE_HOST = frozenset([
    # Datasets; their functions run on the host, too.
    'BatchDatasetV2',
    'ConcatenateDataset',
    'DatasetToSingleElement',
    'IgnoreErrorsDataset',
    'TakeDataset',
    'TensorDataset',
    'TensorSliceDataset',
    'TFRecordDatasetV2',
    # Paths and records.
    'ArgMax of int32',
    'AsString',
    'DecodePaddedRaw',
    'MatchingFiles',
    'ParseExampleV2',
    'StaticRegexReplace',
    'StringJoin',
    'StringToHashBucketFast',
    # The tokenizer: characters to labels.
    'RaggedGather',
    'RaggedRange',
    'RaggedTensorToTensor',
    'StringLength',
    'UnicodeDecodeWithOffsets',
    # A chunk of waveforms, in order.
    'GatherV2 of int16',
    'Pad of int16',
    # The key of a process that has none, from the system's generator.
    'DecodeRaw',
    'ReduceJoin',
    'Substr',
    'TextLineDataset',
    # Noise: OpenSSL and NumPy.
    'PyFuncStateless',
    # The order of a chunk's batches, a few integers.
    'StatelessShuffle',
])


@functools.lru_cache
def _compiled(**options: str) -> compiler.FederatedProgram:
  """The programs of the whole process."""
  with tempfile.TemporaryDirectory() as root:
    process = speech_process.build(
        speech_process.load_data(root), num_blocks=1, **options
    )
    return compiler.compile_computation(process.next)


def _nodes(
    compiled: compiler.FederatedProgram
) -> dict[str, list[tf.compat.v1.NodeDef]]:
  """Nodes of all programs and of the functions in them, by op."""
  nodes = {}
  for name in ('prepare', 'zero', 'work', 'merge_ordered', 'finish'):
    programs = compiled.clients if hasattr(compiled.clients, name) else compiled
    for part in getattr(programs, name).graphs:
      graph_def = tf.compat.v1.GraphDef.FromString(part.graph_def)
      functions = {f.signature.name for f in graph_def.library.function}
      for node in itertools.chain(*graph.node_lists(graph_def)):
        if node.op not in functions:  # A call by the function's name.
          nodes.setdefault(node.op, []).append(node)
  return nodes


def _takes_strings(node: tf.compat.v1.NodeDef) -> bool:
  """True if a node works on strings, which no GPU holds."""
  return any(
      attribute.type == tf.string.as_datatype_enum
      for attribute in node.attr.values()
  )


@functools.lru_cache(maxsize=None)  # To ask TensorFlow takes a millisecond.
def _gpu_kernels(op: str) -> list:
  """The definitions of an op's kernels for GPUs."""
  return [
      kernel
      for kernel in kernels.get_registered_kernels_for_op(op).kernel
      # TensorFlow takes one for DEFAULT on every device that has none.
      if kernel.device_type in ('GPU', 'DEFAULT')
  ]


def _has_gpu_kernel(node: tf.compat.v1.NodeDef) -> bool:
  """True if a kernel for GPUs takes the dtypes of this node."""
  return any(
      all(
          constraint.name not in node.attr
          or node.attr[constraint.name].type
          in constraint.allowed_values.list.type
          for constraint in kernel.constraint
      )
      for kernel in _gpu_kernels(node.op)
  )


def _dtype(node: tf.compat.v1.NodeDef) -> str:
  """The name of the dtype that a node works on."""
  # The third is of a list.
  attribute = next(
      name for name in ('T', 'Tparams', 'element_dtype') if name in node.attr
  )
  return tf.as_dtype(node.attr[attribute].type).name


def _without_gpu_kernel(compiled: compiler.FederatedProgram) -> set[str]:
  """Ops without a GPU kernel; with the dtype if others of theirs have one."""
  found = set()
  for op, nodes in _nodes(compiled).items():
    for node in nodes:
      if not _has_gpu_kernel(node) and not _takes_strings(node):
        found.add(f'{op} of {_dtype(node)}' if _gpu_kernels(op) else op)
  return found


@absltest.skipUnless(
    any(
        kernel.device_type == 'GPU'
        for kernel in kernels.get_registered_kernels_for_op('MatMul').kernel
    ),
    'This TensorFlow was built without GPU kernels.',
)
class GpuKernelsTest(absltest.TestCase):

  def test_every_op_but_those_of_the_host_has_one(self):
    compiled = _compiled(loss_kernel='scan')
    self.assertEqual(_without_gpu_kernel(compiled), _OF_THE_HOST)

  def test_tffs_own_training_has_gpu_kernels_only(self):
    for loop in tff.learning.LoopImplementation:
      process = tff.learning.algorithms.build_weighted_fed_avg(
          toys.build_model,
          tff.learning.optimizers.build_sgdm(0.1),
          loop_implementation=loop,
      )
      compiled = compiler.compile_computation(process.next)
      self.assertEqual(_without_gpu_kernel(compiled), set())

  @pytest.mark.slow
  def test_every_op_of_bfloat16_has_a_gpu_kernel(self):
    compiled = _compiled(loss_kernel='scan', activation_dtype='bfloat16')
    self.assertEqual(_without_gpu_kernel(compiled), _OF_THE_HOST)

  @pytest.mark.slow
  def test_the_loss_op_has_none_and_is_found(self):
    found = _without_gpu_kernel(_compiled(loss_kernel='op'))
    self.assertEqual(found - _OF_THE_HOST, {'CTCLoss'})

  def test_gradients_noise_and_optimizer_are_among_the_ops_looked_at(self):
    ops = set(_nodes(_compiled(loss_kernel='scan')))
    self.assertContainsSubset(
        {
            'Conv2DBackpropFilter',  # The gradient.
            'MulNoNan',  # Clipping to the grid.
            'Pow',  # LAMB's bias correction.
            'StatelessRandomUniformV2',  # SpecAugment and dropout.
        },
        ops,
    )

  def test_a_dtype_without_kernel_is_found(self):
    node = tf.compat.v1.NodeDef(op='MatMul')
    node.attr['T'].type = tf.float32.as_datatype_enum
    self.assertTrue(_has_gpu_kernel(node))
    node.attr['T'].type = tf.int64.as_datatype_enum  # Has one for CPUs.
    self.assertFalse(_has_gpu_kernel(node))

"""Functions that XLA may compile, and loading them compiled.

Whoever writes a computation marks, by `compilable`, a function of few shapes in
ops that XLA has (no strings, no datasets, no op of the host). The mark changes
nothing: contexts run the computation as it is traced. A context whose `jit` is
set gives `set_compiled` the graphs it loads. XLA then compiles each marked
function once a device for each set of shapes that it meets, at the first call;
what it compiled is kept as long as the program is loaded.

Compiled code fuses what plain kernels do one after the other, so it rounds
otherwise.
"""

from collections.abc import Callable
import importlib.util
import os
from typing import Any

from absl import logging
import tensorflow as tf

# TensorFlow's public API does not have this context; see `compilable`.
from tensorflow.python.ops import control_flow_ops

_MARK = 'compilable_by_xla'
_MUST_COMPILE = '_XlaMustCompile'  # TensorFlow's own mark.


def compilable(
    function: Callable[..., Any], *, jit: bool = False
) -> tf.types.experimental.GenericFunction:
  """The function as a call that `set_compiled` finds.

  Args:
    function: Function of tensors, on which it has no Python control flow.
    jit: Compiles at once, for functions that no context loads.
  """

  def compilable_by_xla(*arguments):
    # As TensorFlow traces what it compiles at once: conditionals hand what
    # their gradients need on as tensors, not as optionals, which XLA has not.
    xla_context = control_flow_ops.XLAControlFlowContext()
    xla_context.Enter()
    try:
      return function(*arguments)
    finally:
      xla_context.Exit()

  return tf.function(
      compilable_by_xla, autograph=False, jit_compile=jit or None
  )


def is_marked(graph_def: bytes) -> bool:
  """Whether a serialized graph has a function that `set_compiled` finds."""
  return _MARK.encode() in graph_def


def warn_of_nothing() -> None:
  """Says that XLA was asked for and has nothing to compile."""
  logging.warning(
      'JIT is set, and XLA compiles nothing: what it compiles has given shapes '
      '(SHAPES, such as gin/data/shapes_librispeech.gin).'
  )


def set_compiled(graph_def: tf.compat.v1.GraphDef) -> None:
  """Has XLA compile the marked functions of a graph."""
  functions = [
      function
      for function in graph_def.library.function
      if _MARK in function.signature.name
  ]
  names = {function.signature.name for function in functions}
  for function in functions:
    function.attr[_MUST_COMPILE].b = True
  bodies = [f.node_def for f in graph_def.library.function]
  for nodes in (graph_def.node, *bodies):
    for node in nodes:
      # Looking an attribute up would make it.
      if 'f' in node.attr and node.attr['f'].func.name in names:
        node.attr[_MUST_COMPILE].b = True


def _set_cuda_dir() -> None:
  """Tells XLA where NVIDIA's packages for Python have its device library.

  It reads this when it first compiles. It finds those of a CUDA toolkit.
  """
  try:
    found = importlib.util.find_spec('nvidia.cuda_nvcc')
  except ModuleNotFoundError:
    return
  if found is not None and found.submodule_search_locations:
    folder = found.submodule_search_locations[0]
    os.environ.setdefault('XLA_FLAGS', f'--xla_gpu_cuda_data_dir={folder}')


_set_cuda_dir()

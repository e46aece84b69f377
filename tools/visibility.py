"""Who may depend on a target: the layers, as visibilities of Bazel.

A module of layer 2 is visible to the package group `from_layer_3`: the packages
of layer 3 and, by inclusion, of all layers above it. On top stand the folders
outside `tff_asr` that may import all of it.
"""

from tools import layers
from tools import starlark

PRIVATE = ['//visibility:private']
PUBLIC = ['//visibility:public']
# Folders outside tff_asr that have packages of their own below them.
_NESTED = ('benchmarks', 'tests')


def of(module: str) -> list[str]:
  """The visibility of a module, from the table of who may import it.

  Args:
    module: Its full name, like 'tff_asr.models.ctc'.

  Returns:
    Labels, sorted.
  """
  if not module.startswith('tff_asr.'):
    labels = _outside(module)
    folder = module.partition('.')[0]
    if folder in _NESTED:
      labels.append(_visible_to(folder))
    return starlark.sorted_labels(labels) or PRIVATE
  package = layers.package_of(module)
  if package in layers.ALONE:
    return starlark.sorted_labels(_outside(module))
  labels = [f'//tff_asr:{_group(layers.layer_of(package) + 1)}']
  if layers.is_under(module, layers.SHARED_WITH_DATA_TOOLS):
    labels.append(_visible_to('data_tools'))
  return starlark.sorted_labels(labels)


def groups() -> dict[str, tuple[list[str], list[str]]]:
  """Names of package groups to their packages and the groups they include."""
  top = len(layers.LAYERS)
  found = {
      _group(layer): (
          [f'//tff_asr/{package}' for package in layers.LAYERS[layer]],
          [f':{_group(layer + 1)}'],
      )
      for layer in range(1, top)
  }
  outside = [
      f'//{folder}/...' if folder in _NESTED else f'//{folder}'
      for folder, allowed in layers.OUTSIDE.items()
      if 'tff_asr' in allowed
  ]
  # gin files name modules of every layer, and //tff_asr is the whole of it.
  found[_group(top)] = (sorted([*outside, '//gin', '//tff_asr']), [])
  return found


def _group(layer: int) -> str:
  return f'from_layer_{layer}'


def _outside(module: str) -> list[str]:
  """The folders outside tff_asr whose files may import a module."""
  return [
      _visible_to(folder)
      for folder, allowed in layers.OUTSIDE.items()
      if layers.is_under(module, allowed)
  ]


def _visible_to(folder: str) -> str:
  """A folder as a visibility, with the packages below it if it has any."""
  return f'//{folder}:{"__subpackages__" if folder in _NESTED else "__pkg__"}'

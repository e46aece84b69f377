"""Traces of a run visible to others: files, names of metrics, open ports."""

from collections.abc import Callable, Collection, Iterator
import contextlib
import os
import pathlib
from typing import Any, NamedTuple
from unittest import mock

import psutil
import tensorflow as tf

from tff_asr.privacy import chacha20
from tff_asr.privacy import keys

_OF_OWNER = ('state', 'model.safetensors', 'secrets.safetensors', 'trained_on.json')


def text(run: str) -> str:
  """All that is written in the open: files, and the names in TensorBoard's."""
  found = []
  for folder, _, names in os.walk(run):
    for name in names:
      path = os.path.join(folder, name)
      if os.path.relpath(path, run).split(os.sep)[0] in _OF_OWNER:
        continue
      if 'tfevents' in name:
        for event in tf.compat.v1.train.summary_iterator(path):
          found += [value.tag for value in event.summary.value]
      elif not name.endswith('.png'):
        found.append(pathlib.Path(path).read_text())
  return '\n'.join(found)


def readable_states(run: str) -> list[str]:
  """Files of states and secrets that others than their owner can read."""
  states = os.path.join(run, 'state')
  paths = [os.path.join(run, name) for name in _OF_OWNER[1:]] + [
      os.path.join(states, name) for name in os.listdir(states)
  ]
  return [
      path
      for path in paths
      if os.path.exists(path) and os.stat(path).st_mode & 0o077
  ]


@contextlib.contextmanager
def drawn_keys() -> Iterator[set[bytes]]:
  """All keys that are drawn or derived meanwhile."""
  found = set()

  def spy(name):
    make = getattr(keys, name)

    def call(*arguments, **options):
      key = make(*arguments, **options)
      found.add(keys.to_bytes(key))
      return key

    return mock.patch.object(keys, name, call)

  with spy('derive'), spy('draw'), spy('from_seed'):
    yield found


class Stream(NamedTuple):
  """A place in a stream of ChaCha20."""

  key: bytes
  release: int
  stream: int
  start: int


@contextlib.contextmanager
def opened_streams() -> Iterator[list[Stream]]:
  """The streams that noise and cohorts are drawn from meanwhile, on a CPU."""
  opened = []
  initialize = chacha20.Stream.__init__

  def spy(self, key, *, release, stream, start=0):
    opened.append(Stream(keys.to_bytes(key), release, stream, start))
    initialize(self, key, release=release, stream=stream, start=start)

  with mock.patch.object(chacha20.Stream, '__init__', spy):
    yield opened


def files_with(secrets: Collection[bytes], folder: str) -> list[str]:
  """Files that hold one of these secrets, as bytes or in hex."""
  found = []
  for path in pathlib.Path(folder).rglob('*'):
    data = path.read_bytes() if path.is_file() else b''
    if any(key in data or key.hex().encode() in data for key in secrets):
      found.append(str(path))
  return found


def of_processes(
    look: Callable[[psutil.Process], Any], *, root: psutil.Process | None = None
) -> list[Any]:
  """What `look` returns of a process and of all below it.

  Args:
    look: takes a process. One that has ended meanwhile, or is a zombie, is left
      out.
    root: the process; None: this one.
  """
  root = root or psutil.Process()
  found = []
  for process in (root, *root.children(recursive=True)):
    with contextlib.suppress(psutil.NoSuchProcess):
      found.append(look(process))
  return found


def listening() -> set[tuple[int, int]]:
  """Process and port of all that listens here on the network, children too."""

  def look(process: psutil.Process) -> set[tuple[int, int]]:
    return {
        (process.pid, connection.laddr.port)
        for connection in process.connections('inet')
        if connection.status == psutil.CONN_LISTEN
    }

  return set().union(*of_processes(look))

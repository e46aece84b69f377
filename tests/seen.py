"""Traces of a run that others see: files, names of metrics, open ports."""

import os

import psutil
import tensorflow as tf

_WITH_KEYS = ('state', 'model.state')


def text(run: str) -> str:
  """All that is written in the open: files, and the names in TensorBoard's."""
  found = []
  for folder, _, names in os.walk(run):
    for name in names:
      path = os.path.join(folder, name)
      if os.path.relpath(path, run).split(os.sep)[0] in _WITH_KEYS:
        continue
      if 'tfevents' in name:
        for event in tf.compat.v1.train.summary_iterator(path):
          found += [value.tag for value in event.summary.value]
      elif not name.endswith('.png'):
        with open(path, encoding='utf-8') as f:
          found.append(f.read())
  return '\n'.join(found)


def readable_keys(run: str) -> list[str]:
  """Files with keys that somebody else than their owner can read."""
  states = os.path.join(run, 'state')
  paths = [os.path.join(run, 'model.state')] + [
      os.path.join(states, name) for name in os.listdir(states)
  ]
  return [path for path in paths if os.stat(path).st_mode & 0o077]


def listening() -> set[tuple[int, int]]:
  """Process and port of all that listens here on the network, children too."""
  this = psutil.Process()
  return {
      (process.pid, connection.laddr.port)
      for process in (this, *this.children(recursive=True))
      for connection in process.connections('inet')
      if connection.status == psutil.CONN_LISTEN
  }

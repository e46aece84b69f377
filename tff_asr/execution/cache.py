"""One value for each computation object, for as long as the object lives."""

from collections.abc import Callable
import dataclasses
import threading
from typing import Any
import weakref

import tensorflow_federated as tff


class Cache:
  """What was made of each computation, kept as long as the computation is.

  Thread-safe: of two threads that ask for one computation at the same time,
  one makes the value and the other waits.
  """

  def __init__(self, build: Callable[[tff.Computation], Any]):
    """Keeps `build(comp)` for each computation object."""
    self._build = build
    self._entries = {}
    self._lock = threading.Lock()

  def get(self, comp: tff.Computation) -> Any:
    """Returns `build(comp)`, made at the first call with this object."""
    # Computations hash by serializing themselves, so the key is the identity;
    # the weak reference drops the entry before the identity can be reused.
    key = id(comp)
    with self._lock:
      entry = self._entries.get(key)
      if entry is None:
        drop = weakref.ref(comp, lambda _: self._entries.pop(key, None))
        entry = self._entries[key] = _Entry(drop, threading.Lock())
    with entry.lock:
      if not entry.built:
        entry.value = self._build(comp)
        entry.built = True
      return entry.value


@dataclasses.dataclass
class _Entry:
  """One computation's place in the cache."""

  reference: weakref.ref
  lock: threading.Lock
  built: bool = False
  value: Any = None

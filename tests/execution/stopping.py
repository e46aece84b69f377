"""Waits on a board of tasks that is then stopped."""

from collections.abc import Callable, Sequence
import threading
from typing import Any

from tff_asr.execution import schedule


def stopped_calls(
    board: Any, calls: Sequence[Callable[[], Any]]
) -> list[Callable[[], Any]]:
  """Stops a board on which each call waits in a thread of its own.

  Returns:
    The calls that raised `schedule.Stopped` within ten seconds.
  """
  stopped = []

  def wait(call):
    try:
      call()
    except schedule.Stopped:
      stopped.append(call)

  threads = [threading.Thread(target=wait, args=(call,)) for call in calls]
  for thread in threads:
    thread.start()
  board.stop()
  for thread in threads:
    thread.join(timeout=10)
  return stopped

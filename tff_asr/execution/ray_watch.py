"""Cleans up after a program's Ray cluster, however the program ends.

    python ray_watch.py FOLDER

`ray_session` starts it. If the raylet (Ray's process of this machine) is gone,
Ray ends the program without a line. A killed program cleans up nothing: helper
processes would live on for half a minute, and the session's folder for good. So
this is a separate process. It leaves the program's children, which may be
killed with it.

Each line of stdin has the ids of the processes to wait for, raylet and GCS; an
empty line announces an orderly end. When the program ends, stdin is closed.
Then all processes that have files of FOLDER open are killed, and FOLDER is
removed. If no end was announced, or one of the named processes ends first, this
program prints a line, and writes a byte to stdout, at which the other one ends.

FOLDER is empty for a cluster that was joined, which goes on.
"""

import contextlib
import os
import select
import shutil
import signal
import sys
import time

import psutil

# Raylet and program end within a millisecond of each other, so which of them
# ended the other is not known.
_ABRUPT_END = (
    'error: this program or Ray on this machine ended abruptly (killed, '
    'crashed or out of memory): the same command goes on from what was saved '
    'last.\n'
)
# A process cannot be killed while a device reads for it.
_KILL_SEC = 10.0


def main(folder: str) -> None:
  program = os.getppid()
  if os.fork():
    os._exit(0)  # pylint: disable=protected-access
  if not _wait_for_end():
    sys.stderr.write(_ABRUPT_END)
    sys.stderr.flush()
    with contextlib.suppress(BrokenPipeError):  # The program has ended.
      os.write(1, b'x')
  if folder:
    deadline = time.monotonic() + _KILL_SEC
    # They may start further ones meanwhile.
    while users := [
        process_id
        for process_id in psutil.pids()
        if process_id != program and _uses(process_id, folder)
    ]:
      for process_id in users:
        with contextlib.suppress(ProcessLookupError):
          os.kill(process_id, signal.SIGKILL)
      if time.monotonic() > deadline:
        break
      time.sleep(0.02)
    shutil.rmtree(folder, ignore_errors=True)


def _wait_for_end() -> bool:
  """Waits for the program's end; returns whether it was an orderly one."""
  processes = []
  while True:
    ready, _, _ = select.select([0, *processes], [], [])
    if 0 not in ready:
      return False
    line = os.read(0, 1000)
    if not line:
      return not processes
    for descriptor in processes:
      os.close(descriptor)
    try:
      processes = [os.pidfd_open(int(each)) for each in line.split()]
    except ProcessLookupError:
      return False


def _uses(process_id: int, folder: str) -> bool:
  """Whether a process has files of a folder open."""
  place = f'/proc/{process_id}/fd'
  try:
    names = os.listdir(place)
  except OSError:  # It has ended, or is another user's.
    return False
  for name in names:
    with contextlib.suppress(OSError):
      if os.readlink(f'{place}/{name}').startswith(f'{folder}/'):
        return True
  return False


if __name__ == '__main__':
  main(sys.argv[1])

"""Cleans up after a program's Ray cluster, however the program ends.

    python ray_watch.py FOLDER

`ray_session` starts this process. A killed program cleans up nothing: Ray's
helper processes would run for another half minute, and the session's folder
would stay for good. If one of Ray's own processes is killed, Ray ends the
program without a message.

A byte on stdin announces an orderly end. When the program ends, its end of the
pipe is closed. Then this process kills all processes that have files of FOLDER
open, and removes FOLDER. If no end was announced, it prints one line.

FOLDER is empty if the cluster was joined: such a cluster continues to run.
"""

import contextlib
import os
import shutil
import signal
import sys
import time

import psutil

# If the raylet (Ray's process for this machine) is killed, the program ends
# within a millisecond, and the other way round, so the line cannot tell which
# of them ended first.
_ABRUPT_END = (
    'error: this program or Ray on this machine ended abruptly (killed, '
    'crashed or out of memory): the same command continues from the last saved '
    'state.\n'
)
# A process in an uninterruptible read cannot be killed; do not wait forever.
_KILL_TIMEOUT_SEC = 10.0


def main(folder: str) -> None:
  program_id = os.getppid()
  # A child of the program might be killed with it, so this becomes an orphan.
  if os.fork():
    os._exit(0)  # pylint: disable=protected-access
  is_announced = False
  while os.read(0, 1):  # Empty at the program's end, however it ends.
    is_announced = True
  if not is_announced:
    sys.stderr.write(_ABRUPT_END)
    sys.stderr.flush()
  if folder:
    _kill_users(folder, program_id)
    shutil.rmtree(folder, ignore_errors=True)


def _kill_users(folder: str, program_id: int) -> None:
  """Kills all processes that use the folder, except the program."""
  deadline = time.monotonic() + _KILL_TIMEOUT_SEC
  # Repeatedly, because processes may start others before they are killed.
  while users := [
      process_id
      for process_id in psutil.pids()
      if process_id != program_id and _uses(process_id, folder)
  ]:
    for process_id in users:
      with contextlib.suppress(ProcessLookupError):
        os.kill(process_id, signal.SIGKILL)
    if time.monotonic() > deadline:
      return
    time.sleep(0.02)


def _uses(process_id: int, folder: str) -> bool:
  """Returns whether the process has files of the folder open."""
  descriptors = f'/proc/{process_id}/fd'
  try:
    names = os.listdir(descriptors)
  except OSError:  # The process has ended, or belongs to another user.
    return False
  for name in names:
    with contextlib.suppress(OSError):
      if os.readlink(f'{descriptors}/{name}').startswith(f'{folder}/'):
        return True
  return False


if __name__ == '__main__':
  main(sys.argv[1])

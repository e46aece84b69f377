"""A process that encodes utterances; started and spoken to by `worker_pool`.

Reads pickled (function of `audio_encoding`, items, keyword arguments) from standard
input and writes pickled (results, one an item; traceback of a defect or None)
to standard output, after `READY`. It loads no TensorFlow, so it starts in a
fraction of a second. It ends when its input ends, which also happens when its
parent is killed.
"""

import os
import pickle
import signal
import traceback

from data_tools import audio_encoding

READY = b'ready'


def main() -> None:
  # Ctrl-C goes to the parent too, which decides what becomes of the work.
  signal.signal(signal.SIGINT, signal.SIG_IGN)
  source = os.fdopen(os.dup(0), 'rb')
  sink = os.fdopen(os.dup(1), 'wb')
  # Decoders written in C print what they think of a broken file.
  nothing = os.open(os.devnull, os.O_RDWR)
  for descriptor in (0, 1, 2):
    os.dup2(nothing, descriptor)
  sink.write(READY)
  sink.flush()
  while True:
    try:
      function, items, arguments = pickle.load(source)
    except EOFError:
      return
    results, defect = [], None
    try:
      run = getattr(audio_encoding, function)
      results = [run(item, **arguments) for item in items]
    except Exception:  # pylint: disable=broad-exception-caught
      defect = traceback.format_exc()
    pickle.dump((results, defect), sink, protocol=pickle.HIGHEST_PROTOCOL)
    sink.flush()

"""Errors that users can mend, on one line each."""

import re
import sys

from tff_asr import checks

# TensorFlow wraps the message of a check in a graph in these.
_NODE = re.compile(r'\{\{function_node [^}]*\}\} ')
_ASSERTION = re.compile(r'assertion failed: \[(.*?)\](?= |$)')
_NATIVE = re.compile(r'Failed to run computation: (assertion failed: \[.*?\])')


def lines(error: BaseException) -> list[str]:
  """The error's lines; a single one unless it is `Problems`."""
  if isinstance(error, checks.Problems):
    return [one_line(message) for message in error.messages]
  if isinstance(error, OSError) and error.strerror:
    # Without the number, which says nothing to users.
    place = f'{error.filename}: ' if error.filename else ''
    return [one_line(f'{place}{error.strerror}')]
  return [one_line(error)]


def one_line(error: BaseException | str) -> str:
  """The error's message on one line, without traces that libraries append."""
  text = str(error)
  if native := _NATIVE.search(text):
    text = native[1]
  # gin and TensorFlow append where it happened.
  text = re.split(r'^\s*(?:In call to configurable|\[\[\{\{|\[Op:)', text,
                  maxsplit=1, flags=re.MULTILINE)[0]
  text = ' '.join(text.split()) or type(error).__name__
  return _ASSERTION.sub(r'\1', _NODE.sub('', text))


def is_users(error: BaseException) -> bool:
  """True if the user can mend the error; any other is a defect."""
  if isinstance(error, (ValueError, OSError)):
    return True
  # Checks on data raise these in a graph. TensorFlow takes seconds to import.
  tensorflow = sys.modules.get('tensorflow')
  if tensorflow is not None and isinstance(error, tensorflow.errors.OpError):
    return True
  if _NATIVE.search(str(error)):  # A check in the native context's worker.
    return True
  cause = error.__cause__
  return isinstance(error, RuntimeError) and cause is not None and is_users(
      cause
  )

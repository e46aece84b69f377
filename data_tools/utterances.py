"""What a corpus lists: utterances to write, and problems to tell."""

from collections.abc import Callable, Sequence
import dataclasses
from typing import NamedTuple

import numpy as np

from data_tools import attributes as attributes_lib


@dataclasses.dataclass(frozen=True)
class Cutting:
  """How a long recording becomes records.

  Attributes:
    max_sec: Records are at most this long.
    activity_path: A JSON file whose `voice_activity` lists [start, end] in
      seconds; None cuts without it.
  """

  max_sec: float
  activity_path: str | None = None


@dataclasses.dataclass(frozen=True)
class Utterance:
  """One utterance to write.

  Attributes:
    client_id: The speaker.
    utterance_id: Unique within the client.
    transcript: In the characters of the tokens; None where the corpus has none.
    audio: The audio file's path, or a function that returns int16 [N] at 16 kHz
      mono and may raise `audio.AudioError`.
    changes: Kinds of changes that were made to the transcript, each completing
      the sentence '3 transcripts ...'.
    cutting: Cuts the recording into several records, ID-0000 and so on.
  """

  client_id: str
  utterance_id: str
  transcript: str | None
  audio: str | Callable[[], np.ndarray]
  changes: Sequence[str] = ()
  cutting: Cutting | None = None


class Problem(NamedTuple):
  """Why something is left out.

  Attributes:
    client_id: Whose it is; '' if that is not known.
    utterance_id: What is left out.
    reason: The kind of problem in few words, the same for all such.
    detail: One line that names file and cause.
  """

  client_id: str
  utterance_id: str
  reason: str
  detail: str


class Listing(NamedTuple):
  """What a split of a corpus holds.

  Attributes:
    utterances: What to write.
    problems: What there is besides and cannot be written.
    attributes: What the corpus says of its speakers; also of others, maybe.
  """

  utterances: Sequence[Utterance]
  problems: Sequence[Problem] = ()
  attributes: attributes_lib.Attributes = attributes_lib.NONE

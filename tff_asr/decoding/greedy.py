"""Greedy decoding: the best token of each frame, merged, without blanks.

  S: output frames. V: vocabulary with blank, which is the last token.
"""

from collections.abc import Sequence

import numpy as np

from tff_asr.decoding import hypothesis


def decode(
    logits: np.ndarray, *, tokens: Sequence[str]
) -> list[hypothesis.Hypothesis]:
  """Decodes an utterance: one hypothesis.

  Args:
    logits: float32 [S, V].
    tokens: The text of each id except the blank.
  """
  best = np.argmax(logits, axis=-1)
  log_probs = np.take_along_axis(
      hypothesis.log_softmax(logits), best[:, np.newaxis], axis=-1
  )[:, 0]
  # -1 differs from every token, so the first frame always begins one.
  is_new = best != np.concatenate([[-1], best[:-1]])
  frames = np.flatnonzero(is_new & (best != len(tokens)))
  texts = [tokens[token] for token in best[frames]]
  # A sentence piece has several characters: repeat its frame for each.
  frames = np.repeat(frames, [len(each) for each in texts]).tolist()
  # Without strip: positions must match those of the frames.
  text = ''.join(texts)
  words, start = [], None
  for index, character in enumerate(text + ' '):
    if character != ' ':
      start = index if start is None else start
    elif start is not None:
      emitted = sorted(set(frames[start:index]))
      words.append(
          hypothesis.Word(
              text[start:index],
              emitted[0],
              emitted[-1] + 1,
              float(np.exp(log_probs[emitted].mean())),
          )
      )
      start = None
  return [
      hypothesis.Hypothesis(text.strip(), words, float(log_probs.sum()))
  ]

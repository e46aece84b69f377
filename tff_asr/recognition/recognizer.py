"""A trained model at work: waveforms of any length to text with word times.

A waveform of at most a window is decoded whole, as `evaluation` decodes it. A
longer one is decoded in windows that overlap by two margins. The logits
of a window's margins are dropped, because the neighbouring window has heard
more around them; the rest are joined before they are decoded, so that a word at
a border is neither cut nor doubled.

    window 1   |--------------------|margin|
    window 2           |margin|--------------------|margin|
    kept       |--------------------|--------------|...

  N: samples. S: output frames. V: vocabulary with blank.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple, Optional

import numpy as np
import tensorflow as tf

from tff_asr import checks
from tff_asr.data import pipeline as pipeline_lib
from tff_asr.data import schema
from tff_asr.features import log_mel
from tff_asr.models import ctc
from tff_asr.models import weights as weights_lib
from tff_asr.recognition import language_model as language_model_lib
from tff_asr.recognition import model_spec
from tff_asr.storage import run_dir

_MARGIN_SHARE = 0.1

Decode = Callable[[np.ndarray], tuple[str, list[tuple[str, int, int]]]]
"""Logits float32 [S, V] to text and its words, each from a frame to another."""


class Word(NamedTuple):
  """A word that was heard, and when, in seconds from the start."""

  text: str
  start_sec: float
  end_sec: float


class Recognition(NamedTuple):
  """The words heard in a waveform.

  Attributes:
    name: Name of the waveform.
    seconds: Its length.
    text: Its words, or nothing.
    words: The words with their times.
  """

  name: str
  seconds: float
  text: str
  words: list[Word]


class Recognizer:
  """Decodes waveforms with a trained model; the graph is traced once.

  Attributes:
    model: The model.
    pipeline: Its features, batches and tokenizer.
    weights: Its weights, tensors by name.
    window_samples: The longest waveform that is decoded whole.
  """

  def __init__(
      self,
      *,
      model: ctc.CtcModel,
      pipeline: pipeline_lib.Pipeline,
      weights: weights_lib.Weights,
      window_sec: Optional[float] = None,
      decode: Optional[Decode] = None,
  ):
    """Creates a recognizer.

    Args:
      model: The model.
      pipeline: Gives features and batches; also the tokenizer.
      weights: float32 tensors or arrays by name.
      window_sec: What is decoded at once; by default the longest utterance that
        `pipeline` trains on.
      decode: Finds the words in logits; by default greedily.

    Raises:
      ValueError: window_sec is under a second or too long for a batch.
    """
    if window_sec is None:
      window_sec = pipeline.max_utterance_sec
    checks.in_range(1, pipeline.max_batch_sec, window_sec=window_sec)
    self.model = model
    self.pipeline = pipeline
    self.weights = weights_lib.to_tensors(weights)
    self._decode = decode or self._decode_greedily
    stride = _stride(model.encoder.output_lengths)
    self._frame_samples = stride * log_mel.FRAME_SHIFT
    window = log_mel.samples_of_seconds(window_sec) // self._frame_samples
    self._margin = int(_MARGIN_SHARE * window)
    self._hop = window - 2 * self._margin
    self.window_samples = (
        (window * stride - 1) * log_mel.FRAME_SHIFT + log_mel.FRAME_LENGTH
    )

    @tf.function(
        input_signature=[
            weights_lib.tensor_specs(model.specs),
            pipeline_lib.batch_spec(),
        ],
        autograph=False,
    )
    def compute(weights, batch):
      return model.logits(weights, batch['features'], batch['feature_lengths'])

    self._compute = compute

  def __call__(
      self,
      waveforms: Iterable[tuple[str, np.ndarray]],
      *,
      progress: Optional[Callable[[float], None]] = None,
  ) -> Iterator[Recognition]:
    """Decodes waveforms; yields what was heard in their order.

    Args:
      waveforms: Names, and int16 [N], 16 kHz mono, read as they are needed.
      progress: Called with the seconds of audio just decoded.
    """
    for name, num_samples, logits in self.logits(waveforms):
      seconds = num_samples / schema.SAMPLE_RATE_HZ
      if progress is not None:
        progress(seconds)
      text, words = self._read(logits)
      yield Recognition(name, seconds, text, words)

  def logits(
      self, waveforms: Iterable[tuple[str, np.ndarray]]
  ) -> Iterator[tuple[str, int, np.ndarray]]:
    """Yields name, samples and logits float32 [S, V] of each waveform."""
    # By number: what is being decoded; names may be the same.
    lengths, names, found = {}, {}, {}

    def pieces():
      for number, (name, waveform) in enumerate(waveforms):
        starts = self._starts(len(waveform))
        names[number] = name
        lengths[number] = (len(waveform), len(starts))
        for place, start in enumerate(starts):
          piece = waveform[start:]
          if len(starts) > 1:
            piece = piece[: self.window_samples]
          yield {
              schema.CLIENT_ID: str(number),
              schema.TRANSCRIPT: '',
              schema.UTTERANCE_ID: str(place),
              schema.WAVEFORM: piece,
          }

    dataset = tf.data.Dataset.from_generator(
        pieces, output_signature=dict(schema.element_spec())
    )
    next_number = 0
    for batch in self.pipeline.evaluation_batches(dataset):
      logits, logit_lengths = self._compute(self.weights, batch)
      rows = zip(
          batch['client_id'].numpy(),
          batch['utterance_id'].numpy(),
          logits.numpy(),
          logit_lengths.numpy(),
          strict=True,
      )
      for number, place, row, length in rows:
        # A copy: the batch's array need not live on.
        kept = found.setdefault(int(number), {})
        kept[int(place)] = np.array(row[:length])
      while next_number in lengths and (
          len(found.get(next_number, ())) == lengths[next_number][1]
      ):
        parts = found.pop(next_number)
        num_samples, _ = lengths.pop(next_number)
        yield names.pop(next_number), num_samples, self._join(parts)
        next_number += 1

  def _starts(self, num_samples: int) -> list[int]:
    """First samples of the windows of a waveform."""
    if num_samples <= self.window_samples:
      return [0]
    hop = self._hop * self._frame_samples
    count = 1 + -(-(num_samples - self.window_samples) // hop)
    return [hop * place for place in range(count)]

  def _join(self, parts: dict[int, np.ndarray]) -> np.ndarray:
    """The logits of a waveform from those of its windows."""
    joined = []
    for place in range(len(parts)):
      first = self._margin if place else 0
      is_last = place == len(parts) - 1
      joined.append(
          parts[place][first : None if is_last else self._hop + self._margin]
      )
    return np.concatenate(joined)

  def _read(self, logits: np.ndarray) -> tuple[str, list[Word]]:
    """Text and words of logits [S, V]."""
    text, heard = self._decode(logits)
    frame_sec = self._frame_samples / schema.SAMPLE_RATE_HZ
    return text, [
        Word(word, float(start * frame_sec), float(end * frame_sec))
        for word, start, end in heard
    ]

  def _decode_greedily(
      self, logits: np.ndarray
  ) -> tuple[str, list[tuple[str, int, int]]]:
    """A `Decode`: as the evaluation does it."""
    tokens, is_heard = ctc.greedy_tokens(
        tf.constant(logits[np.newaxis]), tf.constant([len(logits)])
    )
    frames = np.flatnonzero(is_heard[0].numpy())
    texts = self.pipeline.tokenizer.texts(tokens[0].numpy()[frames])
    # The frame of each character.
    frames = np.repeat(frames, [len(each) for each in texts])
    text = ''.join(texts)
    heard, start = [], None
    for place, character in enumerate(text + ' '):
      if character != ' ':
        start = place if start is None else start
      elif start is not None:
        heard.append((text[start:place], frames[start], frames[place - 1] + 1))
        start = None
    return text.strip(), heard


def load(
    *,
    run: str,
    trust_code: Optional[str] = None,
    window_sec: Optional[float] = None,
    language_model: Optional[language_model_lib.LanguageModel] = None,
) -> Recognizer:
  """Makes a recognizer of a run that has ended.

  Args:
    run: The run's folder.
    trust_code: See `model_spec.read`.
    window_sec: See `Recognizer`.
    language_model: Decodes by beam search with this; None: greedily.

  Raises:
    ValueError: As `model_spec.read`, `run_dir.read_model`, `Recognizer` and
      `language_model.build_decode`.
  """
  model, pipeline = model_spec.read(run, trust_code=trust_code)
  tokenizer = pipeline.tokenizer
  decode = None
  if language_model is not None:
    decode = language_model_lib.build_decode(
        language_model, tokens=tokenizer.tokens
    )
  weights = run_dir.read_model(
      run, model=model, tokens=tokenizer.identity
  )
  return Recognizer(
      model=model,
      pipeline=pipeline,
      weights=weights,
      window_sec=window_sec,
      decode=decode,
  )


def _stride(output_lengths: Callable[[tf.Tensor], tf.Tensor]) -> int:
  """Feature frames from one output frame to the next."""
  lengths = np.asarray(output_lengths(tf.range(1000, 1100)))
  strides = np.unique(np.diff(np.flatnonzero(np.diff(lengths)))).tolist()
  if len(strides) != 1:
    raise ValueError(
        f'the encoder has output frames at uneven distances ({strides}): '
        'windows cannot be joined.'
    )
  return strides[0]

"""Transcribes waveforms of any length with a trained model, with word times.

A waveform of at most one window is decoded whole, as `evaluation` decodes it. A
longer one is decoded in windows that overlap by two margins. The logits of a
window's margins are dropped, because the neighbouring window has more context
there. The rest are joined before decoding, so that a word at a border is
neither cut nor doubled.

    window 1   |--------------------|margin|
    window 2           |margin|--------------------|margin|
    kept       |--------------------|--------------|...

  N: samples. S: output frames. V: vocabulary with blank.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
import functools
from typing import NamedTuple, Optional

import numpy as np
import tensorflow as tf

from tff_asr import checks
from tff_asr.data import pipeline as pipeline_lib
from tff_asr.data import schema
from tff_asr.decoding import greedy
from tff_asr.decoding import hypothesis
from tff_asr.decoding import language_model as language_model_lib
from tff_asr.features import log_mel
from tff_asr.models import ctc
from tff_asr.models import weights as weights_lib
from tff_asr.pretrained import adapted
from tff_asr.programs import lm_tuning
from tff_asr.recognition import model_spec
from tff_asr.storage import run_dir

# Windows overlap by two margins: a fifth.
_MARGIN_SHARE = 0.1
# A batch of windows of a public model, as in gin/data/pipeline.gin.
_MAX_BATCH_SEC = 120.0


class Word(NamedTuple):
  """A recognised word.

  Attributes:
    text: The word.
    start_sec: When the model emits its first token, in seconds from the start.
    end_sec: The end of the frame of its last token.
    confidence: In [0, 1]; see `hypothesis.Word`.
  """

  text: str
  start_sec: float
  end_sec: float
  confidence: float


class Alternative(NamedTuple):
  """A transcript that was not the best; see `hypothesis.Hypothesis`."""

  text: str
  score: float


class Recognition(NamedTuple):
  """The transcript of a waveform.

  Attributes:
    name: Name of the waveform.
    seconds: Its length.
    text: The transcript; may be empty.
    words: Its words with their times and confidences.
    alternatives: The best transcripts and their scores, the first one with
      `text`; a single one unless the decoder returns several, and none if it
      has no scores.
    language: Its language (ISO 639-1), if the decoder finds one.
  """

  name: str
  seconds: float
  text: str
  words: list[Word]
  alternatives: list[Alternative]
  language: Optional[str] = None


Recognize = Callable[
    [Iterable[tuple[str, np.ndarray]]], Iterator[Recognition]
]
"""What transcribes: names and waveforms to their transcripts, in order.

A `Recognizer`, a `whisper_decoder.WhisperDecoder`, or a function like them.
"""


class Recognizer:
  """Transcribes waveforms with a trained model; the graph is traced once.

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
      decode: Optional[hypothesis.Decode] = None,
  ):
    """Creates a recognizer.

    Args:
      model: The model.
      pipeline: Features, batches and the tokenizer.
      weights: float32 tensors or arrays by name.
      window_sec: Longest audio that is decoded at once; by default the longest
        utterance that `pipeline` trains on.
      decode: Finds the words in logits; by default greedily.

    Raises:
      ValueError: window_sec is below one second, or too long for a batch or
        the front end.
    """
    if window_sec is None:
      window_sec = pipeline.max_utterance_sec
    # A window is one row of a batch.
    checks.in_range(1, pipeline.max_batch_sec, window_sec=window_sec)
    pipeline.front_end.check_duration(window_sec, of='window_sec')
    self.model = model
    self.pipeline = pipeline
    self.weights = weights_lib.to_tensors(weights)
    self._decode = decode or functools.partial(
        greedy.decode, tokens=pipeline.tokenizer.tokens
    )
    stride = _stride(model.encoder.output_lengths)
    front_end = pipeline.front_end
    self._frame_samples = stride * front_end.frame_shift
    window = log_mel.samples_of_seconds(window_sec) // self._frame_samples
    # In output frames, so that windows start at whole frames and their logits
    # can be joined.
    self._margin = int(_MARGIN_SHARE * window)
    # Each window contributes its middle.
    self._hop = window - 2 * self._margin
    self.window_samples = (
        (window * stride - 1) * front_end.frame_shift + front_end.window
    )

    @tf.function(
        input_signature=[
            weights_lib.tensor_specs(model.specs),
            pipeline.batch_spec,
        ],
        autograph=False,
    )
    def compute(weights, batch):
      # Without training: no dropout, and no randomness.
      return model.logits(weights, batch['features'], batch['feature_lengths'])

    self._compute = compute

  def __call__(
      self, waveforms: Iterable[tuple[str, np.ndarray]]
  ) -> Iterator[Recognition]:
    """Transcribes waveforms; yields the transcripts in order.

    Args:
      waveforms: Names, and int16 [N], 16 kHz mono; read lazily.
    """
    for name, num_samples, logits in self.logits(waveforms):
      found = self._decode(logits)
      yield Recognition(
          name,
          num_samples / schema.SAMPLE_RATE_HZ,
          found[0].text,
          self._words(found[0]),
          [Alternative(each.text, each.score) for each in found],
      )

  def logits(
      self, waveforms: Iterable[tuple[str, np.ndarray]]
  ) -> Iterator[tuple[str, int, np.ndarray]]:
    """Yields name, samples and logits float32 [S, V] of each waveform."""
    # By number, because names may repeat.
    lengths, names, found = {}, {}, {}

    def windows():
      for number, (name, waveform) in enumerate(waveforms):
        starts = self._starts(len(waveform))
        names[number] = name
        lengths[number] = (len(waveform), len(starts))
        for index, start in enumerate(starts):
          yield {
              schema.CLIENT_ID: str(number),
              # Evaluation batches keep utterances without labels.
              schema.TRANSCRIPT: '',
              schema.UTTERANCE_ID: str(index),
              schema.WAVEFORM: waveform[start : start + self.window_samples],
          }

    # A generator, so that long recordings are read one at a time.
    dataset = tf.data.Dataset.from_generator(
        windows, output_signature=dict(schema.element_spec())
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
      for number, index, row, length in rows:
        by_window = found.setdefault(int(number), {})
        # A copy, so that the batch's array can be freed.
        by_window[int(index)] = np.array(row[:length])
      # Batches mix waveforms; each is yielded when all its windows are decoded.
      while next_number in lengths and (
          len(found.get(next_number, ())) == lengths[next_number][1]
      ):
        by_window = found.pop(next_number)
        num_samples, _ = lengths.pop(next_number)
        yield names.pop(next_number), num_samples, self._join(by_window)
        next_number += 1

  def _starts(self, num_samples: int) -> list[int]:
    """Returns the first sample of each window of a waveform."""
    if num_samples <= self.window_samples:
      return [0]
    hop = self._hop * self._frame_samples
    # Rounded up: the last window may be shorter.
    count = 1 + -(-(num_samples - self.window_samples) // hop)
    return [hop * index for index in range(count)]

  def _join(self, by_window: dict[int, np.ndarray]) -> np.ndarray:
    """Joins the logits of a waveform's windows, without their margins."""
    joined = []
    for index in range(len(by_window)):
      # The ends of a recording have no neighbour to take over.
      first = self._margin if index else 0
      is_last = index == len(by_window) - 1
      end = None if is_last else self._hop + self._margin
      joined.append(by_window[index][first:end])
    return np.concatenate(joined)

  def _words(self, found: hypothesis.Hypothesis) -> list[Word]:
    """Returns the words of a hypothesis with times in seconds."""
    frame_sec = self._frame_samples / schema.SAMPLE_RATE_HZ
    return [
        Word(
            each.text,
            each.start * frame_sec,
            each.end * frame_sec,
            each.confidence,
        )
        for each in found.words
    ]


def load(
    *,
    run: str,
    trust_code: Optional[str] = None,
    window_sec: Optional[float] = None,
    language_model: Optional[language_model_lib.LanguageModel] = None,
    hotwords: Sequence[str] = (),
    hotword_weight: float = language_model_lib.HOTWORD_WEIGHT,
    num_best: int = 1,
) -> Recognizer:
  """Loads the recognizer of a run that has ended.

  Args:
    run: The run's folder.
    trust_code: See `model_spec.read`.
    window_sec: See `Recognizer`.
    language_model: For beam search, with the weights that were tuned for the
      run, unless it has its own. Without it and hotwords, decoding is greedy.
    hotwords: Words to prefer.
    hotword_weight: Added to the score for each of them.
    num_best: Number of alternatives; more than one needs a beam search.

  Raises:
    ValueError: As `model_spec.read`, `run_dir.read_model`, `Recognizer`,
      `language_model.BeamSearch` and `lm_tuning.tuned`; or num_best needs a
      beam search.
  """
  model, pipeline = model_spec.read(run, trust_code=trust_code)
  decode = _build_decode(
      language_model and lm_tuning.tuned(run, language_model),
      tokens=pipeline.tokenizer.tokens,
      hotwords=hotwords,
      hotword_weight=hotword_weight,
      num_best=num_best,
  )
  weights = run_dir.read_model(
      run,
      model=model,
      tokens=pipeline.tokenizer.identity,
      public_sha256=pipeline.front_end.public_sha256,
  )
  return Recognizer(
      model=model,
      pipeline=pipeline,
      weights=weights,
      window_sec=window_sec,
      decode=decode,
  )


def load_pretrained(
    name_or_folder: str,
    *,
    window_sec: Optional[float] = None,
    language_model: Optional[language_model_lib.LanguageModel] = None,
    hotwords: Sequence[str] = (),
    hotword_weight: float = language_model_lib.HOTWORD_WEIGHT,
    num_best: int = 1,
) -> Recognizer:
  """Loads a public model with a CTC head, which transcribes as it is.

      recognizer = load_pretrained('facebook/wav2vec2-base-960h')

  Args:
    name_or_folder: See `sources.load`: wav2vec 2.0 or HuBERT with a head and a
      vocabulary (`pretrained.ctc_head`).
    window_sec: See `Recognizer`; if None, 30 s.
    language_model: For beam search; weights that it lacks are the defaults.
    hotwords: As for `load`.
    hotword_weight: As for `load`.
    num_best: As for `load`.

  Raises:
    ValueError: As `sources.load`, `pretrained.ctc_head.read`, `Recognizer` and
      `language_model.BeamSearch`; or num_best needs a beam search.
  """
  public = adapted.load(name=name_or_folder)
  tokenizer = adapted.ctc_tokenizer(public)
  model = ctc.build(
      encoder=adapted.frozen(public),
      tokenizer=tokenizer,
      head=adapted.ctc_head(public),
  )
  return Recognizer(
      model=model,
      pipeline=pipeline_lib.Pipeline(
          tokenizer=tokenizer,
          output_lengths=model.encoder.output_lengths,
          max_batch_sec=_MAX_BATCH_SEC,
          front_end=adapted.front_end(public),
      ),
      # The public values: none of the weights is drawn.
      weights=model.initialize(tf.zeros([2], tf.int32)),
      window_sec=window_sec,
      decode=_build_decode(
          language_model,
          tokens=tokenizer.tokens,
          hotwords=hotwords,
          hotword_weight=hotword_weight,
          num_best=num_best,
      ),
  )


def _build_decode(
    language_model: Optional[language_model_lib.LanguageModel],
    *,
    hotwords: Sequence[str],
    num_best: int,
    **options,
) -> Optional[hypothesis.Decode]:
  """Returns a beam search; None without a language model and hotwords."""
  if language_model is not None or hotwords:
    return language_model_lib.BeamSearch(
        language_model, hotwords=hotwords, num_best=num_best, **options
    )
  if num_best > 1:
    raise ValueError(
        f'num_best {num_best} needs a beam search: give a language model or '
        'hotwords.'
    )
  return None


def _stride(output_lengths: Callable[[tf.Tensor], tf.Tensor]) -> int:
  """Returns the number of feature frames per output frame."""
  # Encoders only have a function of lengths, so the stride is measured.
  # Enough frames for several steps where a frame is one sample.
  lengths = np.asarray(output_lengths(tf.range(1000, 4000)))
  strides = np.unique(np.diff(np.flatnonzero(np.diff(lengths)))).tolist()
  # Windows begin at multiples of the stride.
  if len(strides) != 1:
    raise ValueError(
        f'the encoder has output frames at uneven distances ({strides}): '
        'windows cannot be joined.'
    )
  return strides[0]

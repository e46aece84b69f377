"""Front ends: what a model takes in place of a waveform.

A front end is a part of a run, like its model and its tokenizer. Training,
evaluation, transcribing, export and the stored features of `data_tools.embed`
all compute features by the same `FrontEnd`:

    >>> build_log_mel().num_frames(16000)
    98

`build_log_mel` and `build_whisper_log_mel` are here; `pretrained.features`
makes one of a public model's encoder. To add your own, return a `FrontEnd`.

  B: batch size. N: samples. T: feature frames. F: features of a frame.
"""

from collections.abc import Callable, Mapping
import dataclasses
import math
from typing import NamedTuple, Optional

import tensorflow as tf

from tff_asr import checks
from tff_asr import rounding
from tff_asr.features import file_tensor
from tff_asr.features import log_mel
from tff_asr.features import whisper_log_mel

Tensors = Mapping[str, tf.Tensor]


class PublicSource(NamedTuple):
  """Where the weights of a public model are from.

  Attributes:
    name: The model's name.
    licence: Its licence, or 'unknown'.
    source: As in `pretrained.public_model.PublicModel`.
    sha256: Digest of the file of weights.
  """

  name: str
  licence: str
  source: str
  sha256: str


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class FrontEnd:
  """A front end.

  Frame t covers the `window` samples from `t * frame_shift`, as far as lengths
  are concerned; it may depend on more.

  Attributes:
    identity: What it computes, and with which weights. Stored features carry
      it: a run takes those of its own front end only.
    feature_dim: F.
    frame_shift: Samples from one frame to the next.
    window: Samples that the first frame needs.
    compute: A function (waveforms int16 [B, N] or their values as float32,
      num_samples int32 [B], tensors by name) to (features float32 [B, T, F],
      feature_lengths int32 [B]). Padding of a waveform must not matter, and
      features past an utterance's frames must be finite.
    tensors: Its weights, which lie in files. No run trains them: they are not
      part of a state, a broadcast, a clip or an exported set of weights.
    num_layers: Parts of equal width that a frame's features consist of, such as
      the layers of an encoder.
    placeholder_frames: Frames of a row without an utterance: the least that a
      model takes.
    max_duration_sec: The longest utterance that it takes.
    public_model: The public model that it is a part of, for privacy reports and
      model cards; None: it has no weights of others.
  """

  identity: str
  feature_dim: int
  frame_shift: int
  window: int
  compute: Callable[
      [tf.Tensor, tf.Tensor, Tensors], tuple[tf.Tensor, tf.Tensor]
  ]
  tensors: Mapping[str, file_tensor.FileTensor] = dataclasses.field(
      default_factory=dict
  )
  num_layers: int = 1
  placeholder_frames: int = 8
  max_duration_sec: float = math.inf
  public_model: Optional[PublicSource] = None

  def __post_init__(self):
    checks.positive_int(
        feature_dim=self.feature_dim,
        frame_shift=self.frame_shift,
        window=self.window,
        num_layers=self.num_layers,
        placeholder_frames=self.placeholder_frames,
    )
    # `models.layer_mix` divides a frame into equal parts.
    if self.feature_dim % self.num_layers:
      raise ValueError(
          f'feature_dim must be divisible by num_layers, found '
          f'{self.feature_dim} and {self.num_layers}.'
      )

  @property
  def public_sha256(self) -> str:
    """Digest of the public model's weights; '' without a public model."""
    return '' if self.public_model is None else self.public_model.sha256

  def check_duration(self, seconds: float, *, of: str) -> None:
    """Raises ValueError if it does not take an utterance of this duration.

    Args:
      seconds: The duration.
      of: Names it in the message.
    """
    if seconds > self.max_duration_sec:
      raise ValueError(
          f'{of} is {seconds:g} s, but the front end takes at most '
          f'{self.max_duration_sec:g} s ({self.identity}).'
      )

  def features(
      self,
      waveforms: tf.Tensor,
      num_samples: tf.Tensor,
      *,
      tensors: Optional[Tensors] = None,
  ) -> tuple[tf.Tensor, tf.Tensor]:
    """Computes features.

    Args:
      waveforms: int16 [B, N], or their values as float32; 16 kHz mono, padded
        with anything.
      num_samples: int32 [B], samples of each utterance, in [0, N].
      tensors: The weights; None reads them from their files, in the graph.

    Returns:
      features float32 [B, T, F] and feature_lengths int32 [B].
    """
    if tensors is None:
      # A graph then holds the paths of the files, not their content.
      tensors = {name: each.read() for name, each in self.tensors.items()}
    return self.compute(waveforms, num_samples, tensors)

  def num_frames(self, num_samples):
    """Frames of a waveform: windows that fit whole.

    Args:
      num_samples: Integer or integer tensor of any shape, at least 0.

    Returns:
      max(0, 1 + (num_samples - window) // frame_shift), of the same kind.
    """
    return log_mel.num_frames(
        num_samples, window=self.window, frame_shift=self.frame_shift
    )

  def samples_of_frames(self, frames):
    """Returns the middle of all numbers of samples that have these frames.

    Args:
      frames: Integer or integer tensor of any shape, at least 1.
    """
    # frame_shift different durations have one number of frames. The middle one
    # is wrong by half a shift at most.
    first = self.window - self.frame_shift + self.frame_shift // 2
    return self.frame_shift * frames + first

  def frames_of_seconds(self, seconds: float) -> int:
    """Whole frame shifts in a duration; see `log_mel.frames_of_seconds`."""
    return rounding.whole(
        seconds * log_mel.SAMPLE_RATE_HZ / self.frame_shift
    )

  @property
  def frame_shift_sec(self) -> float:
    return self.frame_shift / log_mel.SAMPLE_RATE_HZ


def build_log_mel() -> FrontEnd:
  """The log-mel features of the federated paper; see `log_mel`."""
  return FrontEnd(
      identity='log_mel',
      feature_dim=log_mel.NUM_MEL_BINS,
      frame_shift=log_mel.FRAME_SHIFT,
      window=log_mel.FRAME_LENGTH,
      compute=lambda waveforms, num_samples, unused_tensors: log_mel.log_mel(
          waveforms, num_samples
      ),
  )


def build_whisper_log_mel(
    *, num_mel_bins: int = whisper_log_mel.NUM_MEL_BINS
) -> FrontEnd:
  """Whisper's log-mel features; see `whisper_log_mel`.

  Args:
    num_mel_bins: F, 80 or 128.

  Raises:
    ValueError: num_mel_bins is not a positive integer.
  """
  checks.positive_int(num_mel_bins=num_mel_bins)
  return FrontEnd(
      identity=f'whisper_log_mel {num_mel_bins}',
      feature_dim=num_mel_bins,
      frame_shift=whisper_log_mel.FRAME_SHIFT,
      # Frames end with the utterance: N // 160.
      window=whisper_log_mel.FRAME_SHIFT,
      compute=lambda waveforms, num_samples, unused_tensors: (
          whisper_log_mel.whisper_log_mel(
              waveforms, num_samples, num_mel_bins=num_mel_bins
          )
      ),
  )

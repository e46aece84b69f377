"""Front end of a public model's encoder, which no run trains.

Its features are the outputs of some of the encoder's layers, side by side. A
model on top of them (`models.layer_mix`) is all that a run trains, so only its
weights are sent, clipped, noised and saved:

    front_end = build(public=sources.load('whisper-tiny.en'))

The weights lie in files that TensorFlow maps (`features.file_tensor`). Where
rounds take long, `data_tools.embed` computes the features once.

  B: batch size. N: samples. S: output frames. L: layers. D: encoder's width.
"""

from collections.abc import Sequence
import functools
import math
import os
from typing import Optional

import numpy as np
import tensorflow as tf

from tff_asr import files
from tff_asr.features import file_tensor
from tff_asr.features import front_end as front_end_lib
from tff_asr.features import waveform as waveform_lib
from tff_asr.features import whisper_log_mel
from tff_asr.models import encoder as encoder_lib
from tff_asr.pretrained import public_model
from tff_asr.pretrained import sources

_INPUTS = {
    public_model.WHISPER_LOG_MEL: whisper_log_mel.whisper_log_mel,
    public_model.WAVEFORM: waveform_lib.waveform,
}
CACHE_VARIABLE = sources.CACHE_VARIABLE
# Of these inputs, the lengths of an encoder's outputs are measured.
_MEASURED = 20_000


def build(
    *,
    public: public_model.PublicModel,
    layers: Optional[Sequence[int]] = None,
) -> front_end_lib.FrontEnd:
  """Builds the front end.

  Args:
    public: The public model.
    layers: Numbers of the layers, from 0, the inputs of the first block, to the
      number of blocks. None: all but 0.

  Returns:
    A front end with F = L D, in float16's precision, as stored features have.

  Raises:
    ValueError: There is no such layer.
  """
  encoder = public.encoder
  chosen = encoder_lib.choose_layers(encoder, layers)
  # Bound here, so that `compute` does not keep the weights in memory.
  inputs = functools.partial(
      _INPUTS[public.front_end], **public.front_end_settings
  )

  def compute(waveforms, num_samples, tensors):
    features, lengths = inputs(waveforms, num_samples)
    outputs, lengths = encoder.layer_outputs(tensors, features, lengths, None)
    features = tf.concat([outputs[layer] for layer in chosen], axis=-1)
    # Rounded, so that stored features are the same.
    return tf.cast(tf.cast(features, tf.float16), tf.float32), lengths

  window, frame_shift = _frames(public)
  numbers = ','.join(map(str, chosen))
  return front_end_lib.FrontEnd(
      identity=f'{public.description}, layers {numbers}',
      feature_dim=len(chosen) * encoder.output_dim,
      frame_shift=frame_shift,
      window=window,
      compute=compute,
      tensors=map_weights(public),
      num_layers=len(chosen),
      max_duration_sec=public.max_duration_sec,
      public_model=public.public_source,
  )


def of_model(
    *,
    name: str,
    layers: Optional[Sequence[int]] = None,
    sha256: Optional[str] = None,
) -> front_end_lib.FrontEnd:
  """As `build`, of a model by its name.

  Args:
    name: Name or folder of the model; see `sources.load`.
    layers: As for `build`.
    sha256: Digest that the file of weights must have; None: any.

  Raises:
    ValueError: As `sources.load` and `build`, or another digest.
  """
  return _of_model(name, None if layers is None else tuple(layers), sha256)


# Each part of a configuration that names the front end builds it.
@functools.lru_cache(maxsize=2)
def _of_model(
    name: str, layers: Optional[tuple[int, ...]], sha256: Optional[str]
) -> front_end_lib.FrontEnd:
  return build(public=load(name, sha256), layers=layers)


def load(name: str, sha256: Optional[str]) -> public_model.PublicModel:
  """Loads a public model, whose file of weights has a digest; None: any."""
  public = sources.load(name)
  if sha256 not in (None, public.sha256):
    raise ValueError(
        f'{name} has the SHA-256 {public.sha256}, not {sha256}: name the model '
        'that the run was trained on.'
    )
  return public


def map_weights(
    public: public_model.PublicModel,
) -> dict[str, file_tensor.FileTensor]:
  """Writes a model's weights to this machine's cache, once, and maps them.

  On a Ray cluster the cache must be a folder that all machines share.
  """
  folder = os.path.join(
      sources.cache_folder(), 'pretrained', public.sha256
  )
  os.makedirs(folder, exist_ok=True)
  found = {}
  for name, values in public.weights.items():
    path = os.path.join(folder, name.replace('/', '.') + '.f32')
    cached = file_tensor.FileTensor(path, tuple(values.shape))
    if not _holds(cached, values):
      cached = file_tensor.write(path, values)
    found[name] = cached
  return found


def _holds(cached: file_tensor.FileTensor, values: np.ndarray) -> bool:
  """Whether a file has these values, not merely as many."""
  # The digest is the model's: another version of the importer, or a damaged
  # disk, may have left other values in its name.
  size = 4 * math.prod(cached.shape)
  if not os.path.exists(cached.path) or os.path.getsize(cached.path) != size:
    return False
  return np.array_equal(cached.numpy(), values)


def _frames(public: public_model.PublicModel) -> tuple[int, int]:
  """Samples of the first output frame, and between two.

  Both are measured: encoders and front ends have functions of lengths only.
  """
  shift = 1 if public.front_end == public_model.WAVEFORM else (
      whisper_log_mel.FRAME_SHIFT
  )
  first, second = first_inputs(public, 2)
  return first * shift, (second - first) * shift


def first_inputs(public: public_model.PublicModel, count: int) -> list[int]:
  """The fewest inputs of an encoder with 1, 2, ... `count` outputs."""
  frames = np.arange(1, _MEASURED)
  lengths = np.asarray(public.encoder.output_lengths(tf.constant(frames)))
  if lengths[-1] < 3:
    raise ValueError(
        f'{public.name} has fewer than 3 frames in {_MEASURED} inputs: its '
        'strides are too large.'
    )
  return frames[np.searchsorted(lengths, np.arange(1, count + 1))].tolist()

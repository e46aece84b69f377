"""Encoders of public models that a run trains, in part or as a whole.

    encoder = lora(load(name='whisper-tiny.en'), rank=8)

`frozen` trains nothing, `adapters` a small MLP after each block, `lora` a
low-rank change of some matrices, `last_blocks` the last blocks, `whole` all
weights. `ctc_head` and `ctc_tokenizer` are those of a public recogniser. Public
tensors that are trained start from their public values. The others are
`Encoder.frozen`: they stay in files, so only the trained ones are sent,
clipped, noised and saved, and only they have gradients.

The encoders take the public model's own inputs: `front_end` computes them. XLA
cannot read files, so encoders with frozen tensors need JIT off.

LoRA (Hu et al. 2021, https://arxiv.org/abs/2106.09685) replaces a matrix W by

    W + scale A B,    A [K, rank], B [rank, N], B = 0 at first.

This sum is computed once a step, in place of (x A) B for each frame x, so that
the encoder's code need not know of it. The step then also computes the gradient
of W, from which those of A and B follow: as much work as training W, and one
more copy of it. With (x A) B that part would cost rank (K + N) / (K N) of it.

  B: batch size. N: samples. T: feature frames. F: features of a frame.
"""

from collections.abc import Callable, Mapping
import dataclasses
import functools
import re
from typing import Optional

import tensorflow as tf

from tff_asr import checks
from tff_asr.features import front_end as front_end_lib
from tff_asr.features import waveform as waveform_lib
from tff_asr.models import ctc
from tff_asr.models import encoder as encoder_lib
from tff_asr.models import wav2vec2
from tff_asr.models import weights as weights_lib
from tff_asr.models import whisper
from tff_asr.pretrained import ctc_head as ctc_head_lib
from tff_asr.pretrained import features
from tff_asr.pretrained import public_model
from tff_asr.text import tokenizer as tokenizer_lib

ATTENTION_MATRICES = r'/(wqkv|wf)$'

_BUILDERS = {
    'whisper': whisper.build,
    'wav2vec2': wav2vec2.build,
    'hubert': wav2vec2.build,
}
# Whisper's sinusoids, which are not trained there either.
_POSITIONS = 'front/positions'
# Weights of `lora` and of `models.adapter`.
_ADDED = re.compile(r'/(lora_[ab]|adapter/(bias_)?(down|up))$')


@dataclasses.dataclass(frozen=True, eq=False)
class PublicEncoder:
  """The encoder of a public model, whose weights lie in files.

  Attributes:
    model: The model, without its weights.
    tensors: Its weights.
    options: Keyword arguments of the encoder's builder besides those of the
      public model.
  """

  model: public_model.PublicModel
  tensors: encoder_lib.FrozenTensors
  options: Mapping[str, float | str]

  def build(self, **more: int) -> encoder_lib.Encoder:
    """Builds it with `options` and more of them."""
    encoder = _BUILDERS[self.model.family](
        **self.model.settings, **self.options, **more
    )
    if self.model.front_end != public_model.WAVEFORM:
      return encoder
    # `front_end` gives each sample a dimension of features.
    flat = lambda function: lambda weights, features, *rest: function(
        weights, features[:, :, 0], *rest
    )
    return dataclasses.replace(
        encoder,
        apply=flat(encoder.apply),
        layer_outputs=flat(encoder.layer_outputs),
    )


def load(
    *,
    name: str,
    sha256: Optional[str] = None,
    dropout: float = 0.0,
    layer_drop: float = 0.0,
    activation_dtype: str = 'float32',
) -> PublicEncoder:
  """Loads the encoder of a public model, to train parts of it.

  Args:
    name: Name or folder of the model; see `sources.load`.
    sha256: Digest that the file of weights must have; None: any.
    dropout: Rate in the encoder.
    layer_drop: Probability that training skips a block.
    activation_dtype: 'float32' or 'bfloat16' in the blocks.

  Raises:
    ValueError: As `sources.load`, or another digest.
  """
  model, tensors = _load(name, sha256)
  options = dict(
      dropout=dropout, layer_drop=layer_drop, activation_dtype=activation_dtype
  )
  return PublicEncoder(model, tensors, options)


def front_end(public_encoder: PublicEncoder) -> front_end_lib.FrontEnd:
  """The front end that computes a public model's own inputs."""
  public = public_encoder.model
  settings = public.front_end_settings
  if public.front_end == public_model.WHISPER_LOG_MEL:
    return dataclasses.replace(
        front_end_lib.build_whisper_log_mel(**settings),
        max_duration_sec=public.max_duration_sec,
        public_model=public.public_source,
    )

  def compute(waveforms, num_samples, unused_tensors):
    samples, lengths = waveform_lib.waveform(waveforms, num_samples, **settings)
    # Batches hold frames of features: here, of one sample.
    return samples[:, :, tf.newaxis], lengths

  return front_end_lib.FrontEnd(
      identity=f'waveform {settings}',
      feature_dim=1,
      frame_shift=1,
      window=1,
      compute=compute,
      placeholder_frames=features.first_inputs(public, 1)[0],
      max_duration_sec=public.max_duration_sec,
      public_model=public.public_source,
  )


def output_lengths(
    public_encoder: PublicEncoder,
) -> Callable[[tf.Tensor], tf.Tensor]:
  """The `Encoder.output_lengths` of a public model."""
  return public_encoder.model.encoder.output_lengths


def ctc_head(public_encoder: PublicEncoder) -> ctc.InitialHead:
  """Returns the CTC head of a public model; see `ctc_head.read`."""
  return _load_head(public_encoder.model)[0]


def ctc_tokenizer(
    public_encoder: PublicEncoder,
) -> tokenizer_lib.CharTokenizer:
  """Returns the tokens of a public model's CTC head; see `ctc_head.read`."""
  return _load_head(public_encoder.model)[1]


def keeps_outputs(name: str, spec: weights_lib.WeightSpec) -> bool:
  """Returns whether a weight begins without an effect on the outputs.

  It then has its public value, or belongs to an adapter or a low-rank change,
  which are zero at first.

  Args:
    name: Its name in a model on one of these encoders.
    spec: Its spec.
  """
  return spec.source is not None or bool(_ADDED.search(name))


def frozen(public_encoder: PublicEncoder) -> encoder_lib.Encoder:
  """Returns an encoder that is not trained; a head on it may be.

  Raises:
    ValueError: A rate is out of its range.
  """
  return _train(
      public_encoder.build(), public_encoder.tensors, lambda unused_name: False
  )


def adapters(
    public_encoder: PublicEncoder, *, adapter_dim: int
) -> encoder_lib.Encoder:
  """An encoder with a trained adapter after each block; see `models.adapter`.

  Args:
    public_encoder: The public encoder.
    adapter_dim: Width of the bottlenecks.

  Raises:
    ValueError: adapter_dim is not positive, or a rate is out of its range.
  """
  checks.positive_int(adapter_dim=adapter_dim)
  encoder = public_encoder.build(adapter_dim=adapter_dim)
  # All that the public model does not have: the adapters.
  specs = weights_lib.without(public_encoder.tensors, encoder.specs)
  return encoder_lib.with_frozen_tensors(
      encoder, public_encoder.tensors, specs=specs
  )


def last_blocks(
    public_encoder: PublicEncoder, *, num_blocks: int
) -> encoder_lib.Encoder:
  """An encoder of which the last blocks and a norm after them are trained.

  Args:
    public_encoder: The public encoder.
    num_blocks: Blocks to train, at least 1.

  Raises:
    ValueError: There are fewer blocks, or a rate is out of its range.
  """
  encoder = public_encoder.build()
  blocks = encoder_lib.block_names(encoder)
  checks.positive_int(num_blocks=num_blocks)
  checks.in_range(1, len(blocks), num_blocks=num_blocks)
  trained = (*blocks[-num_blocks:], 'norm')
  return _train(
      encoder,
      public_encoder.tensors,
      lambda name: name.partition('/')[0] in trained,
  )


def whole(public_encoder: PublicEncoder) -> encoder_lib.Encoder:
  """An encoder of which all is trained, except Whisper's positions.

  Args:
    public_encoder: The public encoder.

  Raises:
    ValueError: A rate is out of its range.
  """
  return _train(
      public_encoder.build(),
      public_encoder.tensors,
      lambda name: name != _POSITIONS,
  )


def lora(
    public_encoder: PublicEncoder,
    *,
    rank: int,
    scale: float = 1.0,
    matrices: str = ATTENTION_MATRICES,
) -> encoder_lib.Encoder:
  """An encoder whose matrices get a trained change of low rank.

  Args:
    public_encoder: The public encoder.
    rank: Rank of the change, below both sizes of each matrix.
    scale: Factor of A B, positive; alpha / rank in the paper.
    matrices: Regular expression, found in the names of the matrices. A block
      has `wqkv` (queries, keys and values), `wf`, `w1` and `w2`.

  Returns:
    An `encoder.Encoder` with weights `NAME/lora_a` and `NAME/lora_b` for each
    matrix.

  Raises:
    ValueError: The pattern names no tensor or one that is no matrix, or scale,
      rank or a rate is out of its range.
  """
  checks.positive_int(rank=rank)
  checks.positive(scale=scale)
  tensors = public_encoder.tensors
  chosen = _matrices(tensors, matrices)
  specs = {}
  for each in chosen:
    num_rows, num_columns = tensors[each].shape
    checks.in_range(1, min(num_rows, num_columns) - 1, rank=rank)
    specs[f'{each}/lora_a'] = weights_lib.matrix_spec(num_rows, rank)
    specs[f'{each}/lora_b'] = weights_lib.WeightSpec((rank, num_columns))

  def change(name: str) -> encoder_lib.Merge:
    return lambda matrix, weights: matrix + scale * tf.matmul(
        weights[f'{name}/lora_a'], weights[f'{name}/lora_b']
    )

  return encoder_lib.with_frozen_tensors(
      public_encoder.build(),
      tensors,
      specs=specs,
      merge={each: change(each) for each in chosen},
  )


def _matrices(tensors: encoder_lib.FrozenTensors, pattern: str) -> list[str]:
  """Names of the matrices that match; raises ValueError for other tensors."""
  chosen = [each for each in sorted(tensors) if re.search(pattern, each)]
  if not chosen:
    raise ValueError(f'matrices {pattern!r} is in no name of a tensor.')
  for each in chosen:
    # Positions have two dimensions, too, and multiply nothing.
    if len(tensors[each].shape) != 2 or each == _POSITIONS:
      raise ValueError(
          f'matrices {pattern!r} names {each}, which is no matrix.'
      )
  return chosen


def _train(
    encoder: encoder_lib.Encoder,
    tensors: encoder_lib.FrozenTensors,
    is_trained: Callable[[str], bool],
) -> encoder_lib.Encoder:
  """Trains some of the tensors, from their public values."""
  specs = {
      name: weights_lib.WeightSpec(tensor.shape, source=tensor)
      for name, tensor in tensors.items()
      if is_trained(name)
  }
  return encoder_lib.with_frozen_tensors(
      encoder, weights_lib.without(specs, tensors), specs=specs
  )


# Each part of a configuration that names the model loads it.
@functools.lru_cache(maxsize=2)
def _load(
    name: str, sha256: Optional[str]
) -> tuple[public_model.PublicModel, encoder_lib.FrozenTensors]:
  """A public model without its weights, and these in files."""
  public = features.load(name, sha256)
  tensors = features.map_weights(public)
  # The arrays would stay in memory next to the mapped files.
  return dataclasses.replace(public, weights={}), tensors


# The tokenizer and the head of a configuration are built one by one.
@functools.lru_cache(maxsize=2)
def _load_head(
    public: public_model.PublicModel,
) -> tuple[ctc.InitialHead, tokenizer_lib.CharTokenizer]:
  """Loads a public model's CTC head, which then lies in files, and tokens."""
  head = ctc_head_lib.read(public)
  tensors = features.map_weights(
      dataclasses.replace(public, weights=head.weights)
  )
  return ctc.InitialHead(tensors, head.tokenizer.identity), head.tokenizer

"""An acoustic encoder: weights, a pure function of them, and output lengths.

  B: batch size. T: feature frames. F: mel bins. S: subsampled frames.
  D: width of the encoder's output.
"""

from collections.abc import Callable, Mapping, Sequence
import dataclasses
from typing import Optional

import tensorflow as tf

from tff_asr import checks
from tff_asr.features import file_tensor
from tff_asr.models import layers
from tff_asr.models import weights as weights_lib

# (weights, activations float32 [B, S, D], valid float32 [B, S, 1], seed int32
# [2] or None) to activations, which may be arbitrary at padded frames.
Block = Callable[
    [weights_lib.Weights, tf.Tensor, tf.Tensor, Optional[tf.Tensor]], tf.Tensor
]

# (a frozen tensor, the trained weights) to the tensor to use in its place.
Merge = Callable[[tf.Tensor, weights_lib.Weights], tf.Tensor]

# A stack's blocks are found by this prefix (`block_names`).
_BLOCK = 'block_'

FrozenTensors = Mapping[str, file_tensor.FileTensor]


@dataclasses.dataclass(frozen=True)
class Encoder:
  """An acoustic encoder.

  Attributes:
    specs: Its weights: those that a run trains.
    apply: A function (weights, features float32 [B, T, F], feature_lengths
      int32 [B], seed int32 [2] or None) to (float32 [B, S, D], int32 [B]).
      With a seed it trains (dropout and the like, all drawn from the seed),
      without it evaluates. Frames at or past an utterance's length do not
      affect its outputs before its output length.
    output_lengths: Feature frames to output frames, any integer tensor.
    output_dim: D.
    layer_outputs: As apply, but returns a list of float32 [B, S, D] in place of
      the outputs: the inputs of the first block and each block's outputs, the
      last ones after the final norm, so that they are those of `apply`. None
      for a front end.
    frozen: Tensors that no run trains, in files. They are not part of a state,
      a broadcast, a clip or a file of weights. apply reads those from their
      files that the weights it is given do not contain.
  """

  specs: weights_lib.Specs
  apply: Callable[
      [weights_lib.Weights, tf.Tensor, tf.Tensor, Optional[tf.Tensor]],
      tuple[tf.Tensor, tf.Tensor],
  ]
  output_lengths: Callable[[tf.Tensor], tf.Tensor]
  output_dim: int
  layer_outputs: Optional[
      Callable[
          [weights_lib.Weights, tf.Tensor, tf.Tensor, Optional[tf.Tensor]],
          tuple[list[tf.Tensor], tf.Tensor],
      ]
  ] = None
  frozen: FrozenTensors = dataclasses.field(default_factory=dict)


def frozen_of(model: object) -> FrozenTensors:
  """Frozen tensors of a model's encoder; none of a model without an encoder."""
  encoder = getattr(model, 'encoder', None)
  return {} if encoder is None else encoder.frozen


def block_names(encoder: Encoder) -> list[str]:
  """Prefixes of the weights of each block of a `stack`, in order."""
  firsts = {
      name.partition('/')[0] for name in {**encoder.specs, **encoder.frozen}
  }
  return sorted(first for first in firsts if first.startswith(_BLOCK))


def choose_layers(
    encoder: Encoder, layers: Optional[Sequence[int]]
) -> tuple[int, ...]:
  """Numbers of some of the `layer_outputs` of a `stack`.

  Args:
    encoder: The encoder.
    layers: Numbers from 0, the inputs of the first block, to the number of
      blocks. None: all but 0.

  Raises:
    ValueError: None or one twice is named, or one that the encoder lacks.
  """
  num_blocks = len(block_names(encoder))
  chosen = tuple(range(1, num_blocks + 1) if layers is None else layers)
  if not chosen or len(set(chosen)) != len(chosen):
    raise ValueError(f'layers must name layers, each once; found {chosen}.')
  for layer in chosen:
    checks.in_range(0, num_blocks, layers=layer)
  return chosen


def with_frozen_tensors(
    encoder: Encoder,
    frozen: FrozenTensors,
    *,
    specs: weights_lib.Specs,
    merge: Optional[Mapping[str, Merge]] = None,
) -> Encoder:
  """Returns the encoder with some tensors frozen: not trained.

  Args:
    encoder: The encoder with all weights trained; has `layer_outputs`.
    frozen: Tensors that are not trained, by name.
    specs: Weights that are, by other names.
    merge: Changes of frozen tensors, by name; None: none are changed.

  Raises:
    ValueError: A name is in both collections.
  """
  if both := sorted(frozen.keys() & specs.keys()):
    raise ValueError(f'{", ".join(both)} cannot be both trained and frozen.')

  changes = merge or {}

  def complete(weights: weights_lib.Weights) -> weights_lib.Weights:
    # An export gives the frozen tensors, too: it must not need their files.
    found = {
        name: weights[name]
        if name in weights
        else tensor.read(is_overwritten=name in changes)
        for name, tensor in frozen.items()
    }
    found |= {name: weights[name] for name in specs}
    for name, change in changes.items():
      found[name] = change(found[name], weights)
    # Without what only `merge` takes, such as the factors of LoRA.
    return weights_lib.Weights(
        (name, found[name]) for name in sorted(encoder.specs)
    )

  return dataclasses.replace(
      encoder,
      specs=specs,
      apply=lambda weights, *rest: encoder.apply(complete(weights), *rest),
      layer_outputs=lambda weights, *rest: encoder.layer_outputs(
          complete(weights), *rest
      ),
      frozen=frozen,
  )


def stack(
    front: Encoder,
    *,
    num_blocks: int,
    block_specs: weights_lib.Specs,
    apply_block: Block,
    embed: Optional[Callable[..., tf.Tensor]] = None,
    final_norm: bool = False,
) -> Encoder:
  """Builds an encoder of a front end and equal blocks.

  Args:
    front: The front end.
    num_blocks: Blocks, each with its own weights and seed.
    block_specs: Weights of one block.
    apply_block: A block.
    embed: (lengths int32 [B], S, seed) to positions float32 [B, S, D], added
      before the blocks.
    final_norm: A layer norm after them.

  Raises:
    ValueError: num_blocks is not positive.
  """
  checks.positive_int(num_blocks=num_blocks)
  digits = max(2, len(str(num_blocks - 1)))  # Names sort in their order.
  names = [f'{_BLOCK}{index:0{digits}}' for index in range(num_blocks)]
  specs = dict(weights_lib.prefix('front', front.specs))
  for name in names:
    specs |= weights_lib.prefix(name, block_specs)
  if final_norm:
    specs |= weights_lib.prefix('norm', layers.norm_specs(front.output_dim))

  def layer_outputs(weights, features, feature_lengths, seed):
    # One seed for the front end, one for positions if there are any, and one
    # for each block.
    front_seed, *seeds = layers.split_seed(
        seed, num_blocks + (1 if embed is None else 2)
    )
    hidden, lengths = front.apply(
        weights_lib.subtree('front', weights),
        features,
        feature_lengths,
        front_seed,
    )
    size = tf.shape(hidden)[1]
    if embed is not None:
      hidden += embed(lengths, size, seeds.pop(0))
    # Attention and norms must leave out padded frames.
    valid = layers.length_mask(lengths, size)
    outputs = [hidden]
    for name, block_seed in zip(names, seeds, strict=True):
      block_weights = weights_lib.subtree(name, weights)
      hidden = apply_block(block_weights, hidden, valid, block_seed)
      outputs.append(hidden)
    if final_norm:
      norm_weights = weights_lib.subtree('norm', weights)
      outputs[-1] = layers.layer_norm(norm_weights, hidden)
    return outputs, lengths

  def apply(weights, features, feature_lengths, seed):
    outputs, lengths = layer_outputs(weights, features, feature_lengths, seed)
    return outputs[-1], lengths

  return Encoder(
      specs, apply, front.output_lengths, front.output_dim, layer_outputs
  )

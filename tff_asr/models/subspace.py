"""Training of large kernels within a public subspace.

A kernel W, a matrix [K, M] of K inputs (kernel positions times channels) and M
outputs, becomes

    W = rest + U theta,    U [K, r] orthonormal,    theta [r, M],

where only theta is trained: `rest` and U do not change. Clip and noise then are
of r M coordinates in place of K M weights, and the norm of the noise is
sqrt(r / K) of what it was. U is found before the first round from public data
only (`fit`): its columns are the leading eigenvectors of X^T X, X the inputs of
the kernel on public speech, along which a kernel can change outputs most. theta
begins as U^T W0 and rest as W0 - U U^T W0, W0 the seed model's kernel, so that
the model begins as the seed model, and the norm of theta, which LAMB's trust
ratio takes, is that of the part of W0 that is trained.

The gradient of theta is U^T times the gradient of W: a step of SGD on theta is
the step on W, projected. Random directions and adaptation within them: Li et
al. 2018, https://arxiv.org/abs/1804.08838; with differential privacy, public
gradients' subspace: Zhou et al. 2021, https://arxiv.org/abs/2007.03813. Here
the subspace is of each kernel's inputs, which needs no gradients.

  K: inputs of a kernel, of all its positions. M: outputs. r: rank.
  T: feature frames. F: features of a frame.
"""

from collections.abc import Iterable, Mapping
import dataclasses
import functools
import math
import re
from typing import TypeVar, Union
import zlib

import numpy as np
import tensorflow as tf

from tff_asr import checks
from tff_asr.models import ctc
from tff_asr.models import encoder as encoder_lib
from tff_asr.models import weights as weights_lib

_REST, _BASIS, _COORDINATES = 'rest', 'basis', 'coordinates'
# Ops that multiply their second input, a kernel, with the first.
_PRODUCTS = ('BatchMatMulV2', 'Conv2D', 'MatMul')
# Ops between a weight and the product that takes it.
_PASSED = ('Cast', 'ExpandDims', 'Identity')

_Model = TypeVar('_Model')


@dataclasses.dataclass(frozen=True, kw_only=True)
class SubspaceModel:
  """A CTC model of which some kernels are trained within a subspace.

  Its weights are those of `model`, with `NAME/rest`, `NAME/basis` and
  `NAME/coordinates` in place of a kernel NAME. The first two are never trained
  (`fixed_weights`).

  Attributes:
    model: The model itself, which has the kernels whole.
    kernels: Names of the kernels.
    rank: r.
    num_utterances: Public utterances to find the subspaces on.
  """

  model: ctc.CtcModel
  kernels: tuple[str, ...]
  rank: int
  num_utterances: int = 300

  @property
  def encoder(self) -> encoder_lib.Encoder:
    """The encoder of `model`, which takes whole kernels."""
    return self.model.encoder

  @property
  def loss_kernel(self) -> str:
    return self.model.loss_kernel

  @functools.cached_property
  def specs(self) -> weights_lib.Specs:
    """All weights; `initialize` draws them by the specs of `model`."""
    specs = dict(weights_lib.without(self.kernels, self.model.specs))
    for name in self.kernels:
      shape = self.model.specs[name].shape
      specs |= weights_lib.prefix(name, {
          _REST: weights_lib.WeightSpec(shape),
          _BASIS: weights_lib.WeightSpec((_fan_in(shape), self.rank)),
          _COORDINATES: weights_lib.WeightSpec((self.rank, shape[-1])),
      })
    return specs

  def initialize(self, seed: tf.Tensor) -> weights_lib.Weights:
    """Draws weights of `model` and random subspaces from a seed int32 [2]."""
    bases = {}
    for name in self.kernels:
      own_seed = tf.random.fold_in(seed, zlib.crc32(name.encode()) >> 1)
      drawn = tf.random.stateless_normal(
          self.specs[f'{name}/{_BASIS}'].shape, own_seed
      )
      bases[name], _ = tf.linalg.qr(drawn)
    return self.split(self.model.initialize(seed), bases)

  def split(
      self, weights: weights_lib.Weights, bases: Mapping[str, tf.Tensor]
  ) -> weights_lib.Weights:
    """Divides the kernels into what is trained and the rest.

    Args:
      weights: float32 weights of `model`, tensors or arrays by name.
      bases: U of each kernel, float32 [K, r], with orthonormal columns.
    """
    found = weights_lib.without(self.kernels, weights)
    for name in self.kernels:
      kernel = tf.cast(weights[name], tf.float64)
      # In float64, so that `merge` returns the kernel but for one rounding.
      basis = tf.cast(bases[name], tf.float64)
      coordinates = tf.matmul(
          basis,
          tf.reshape(kernel, [_fan_in(kernel.shape), kernel.shape[-1]]),
          transpose_a=True,
      )
      rest = kernel - tf.reshape(tf.matmul(basis, coordinates), kernel.shape)
      parts = {_REST: rest, _BASIS: basis, _COORDINATES: coordinates}
      for part, value in parts.items():
        found[f'{name}/{part}'] = tf.cast(value, tf.float32)
    return weights_lib.Weights(sorted(found.items()))

  def merge(self, weights: weights_lib.Weights) -> weights_lib.Weights:
    """Returns the weights of `model`, with whole kernels."""
    found = {}
    for name, spec in self.model.specs.items():
      if name in self.kernels:
        rest, basis, coordinates = (
            weights[f'{name}/{part}']
            for part in (_REST, _BASIS, _COORDINATES)
        )
        change = tf.matmul(basis, coordinates)
        found[name] = rest + tf.reshape(change, spec.shape)
      else:
        found[name] = weights[name]
    return weights_lib.Weights(sorted(found.items()))

  def logits(
      self, weights: weights_lib.Weights, *args, **options
  ) -> tuple[tf.Tensor, tf.Tensor]:
    """As `ctc.CtcModel.logits`."""
    return self.model.logits(self.merge(weights), *args, **options)

  def loss(
      self, weights: weights_lib.Weights, *args, **options
  ) -> tf.Tensor:
    """As `ctc.CtcModel.loss`."""
    # Once a step, so that the encoder's code need not know of subspaces.
    return self.model.loss(self.merge(weights), *args, **options)


def build(
    *,
    model: ctc.CtcModel,
    rank: int,
    kernels: str = '/kernel$',
    num_utterances: int = 300,
) -> SubspaceModel:
  """Builds a model of which large kernels are trained within a subspace.

  Args:
    model: The model.
    rank: r.
    kernels: Regular expression, found in the names of the kernels. Those with
      at most r inputs stay whole: a subspace would not be smaller.
    num_utterances: Public utterances to find the subspaces on.

  Raises:
    ValueError: A number is not positive, the expression is not one or is in no
      name, or no kernel that it names has more than r inputs.
  """
  checks.positive_int(subspace_rank=rank, subspace_utterances=num_utterances)
  try:
    fan_ins = {
        name: _fan_in(spec.shape)
        for name, spec in sorted(model.specs.items())
        if re.search(kernels, name) and len(spec.shape) > 1
    }
  except re.error as e:
    raise ValueError(
        f'subspace_kernels {kernels!r} is not a regular expression ({e}).'
    ) from None
  if not fan_ins:
    raise ValueError(
        f'subspace_kernels {kernels!r} is in no name of a kernel: the model '
        f'has {", ".join(sorted(model.specs))}.'
    )
  chosen = tuple(name for name, fan_in in fan_ins.items() if fan_in > rank)
  if not chosen:
    raise ValueError(
        f'subspace_rank must be below the {max(fan_ins.values())} inputs of '
        f'the largest kernel that {kernels!r} names, found {rank}.'
    )
  return SubspaceModel(
      model=model, kernels=chosen, rank=rank, num_utterances=num_utterances
  )


def plain_model(model: _Model) -> Union[_Model, ctc.CtcModel]:
  """Returns the model with whole kernels; other models are returned as is."""
  return model.model if isinstance(model, SubspaceModel) else model


def plain_weights(
    model: object, weights: weights_lib.Weights
) -> weights_lib.Weights:
  """Returns the weights of `plain_model`."""
  return model.merge(weights) if isinstance(model, SubspaceModel) else weights


def fixed_weights(model: object) -> list[str]:
  """Names of weights that no training may change; none of other models."""
  if not isinstance(model, SubspaceModel):
    return []
  return [
      f'{name}/{part}' for name in model.kernels for part in (_REST, _BASIS)
  ]


def fit(
    model: SubspaceModel,
    weights: weights_lib.Weights,
    utterances: Iterable[tf.Tensor],
    *,
    feature_dim: int,
) -> tuple[weights_lib.Weights, dict[str, float]]:
  """Finds the subspaces of a seed model's kernels on public speech.

  Args:
    model: The model.
    weights: The seed model's weights, float32 by name.
    utterances: Features of each public utterance, float32 [T, F].
    feature_dim: F.

  Returns:
    The weights to train, and by kernel the share of the inputs' squared norm
    that lies within its subspace.

  Raises:
    ValueError: A chosen kernel is in no convolution or matrix product, or
      inputs are not finite.
  """
  moments = _input_moments(
      model, weights, utterances, feature_dim=feature_dim
  )
  bases, shares = {}, {}
  for name, moment in moments.items():
    if not np.all(np.isfinite(moment)):
      raise ValueError(
          f'inputs of {name} are not finite on the public speech: the seed '
          'model or the features are damaged.'
      )
    bases[name], shares[name] = principal_directions(moment, rank=model.rank)
  return model.split(weights, bases), shares


def principal_directions(
    moment: np.ndarray, *, rank: int
) -> tuple[np.ndarray, float]:
  """Returns the leading eigenvectors of a second moment, and their share.

  Args:
    moment: X^T X, float64 [K, K].
    rank: r.

  Returns:
    Orthonormal columns, float32 [K, r], by falling eigenvalue, the largest
    entry of each positive; and the share of the trace in their eigenvalues.
  """
  # Not NumPy's, whose threads spin: 16 s in place of 1 on a busy machine.
  with tf.device('CPU:0'):
    values, vectors = (each.numpy() for each in tf.linalg.eigh(moment))
  leading = vectors[:, ::-1][:, :rank]
  # An eigenvector's sign is arbitrary, and LAPACKs differ in it.
  largest = np.argmax(np.abs(leading), axis=0)
  signs = np.sign(leading[largest, np.arange(leading.shape[1])])
  share = values[::-1][:rank].sum() / max(values.sum(), np.finfo(float).tiny)
  return (leading * signs).astype(np.float32), float(share)


def _input_moments(
    model: SubspaceModel,
    weights: weights_lib.Weights,
    utterances: Iterable[tf.Tensor],
    *,
    feature_dim: int,
) -> dict[str, np.ndarray]:
  """Sums X^T X of each kernel, float64 [K, K], over utterances."""

  @tf.function(
      input_signature=[
          weights_lib.tensor_specs(model.model.specs),
          tf.TensorSpec([None, feature_dim]),
      ],
      autograph=False,
  )
  def moments_of(weights, features):
    model.model.logits(
        weights, features[tf.newaxis], tf.shape(features)[:1]
    )
    names = {weights[name].name: name for name in model.kernels}
    found = {}
    # The products are found in the graph, so that encoders need not name them.
    for op in tf.compat.v1.get_default_graph().get_operations():
      if op.type in _PRODUCTS:
        name = names.get(_weight_of(op.inputs[1]).name)
        # A convolution by groups has fewer channels in its kernel.
        if name and op.inputs[0].shape[-1] == op.inputs[1].shape[-2]:
          rows = tf.cast(_input_rows(op), tf.float64)
          moment = tf.matmul(rows, rows, transpose_a=True)
          found[name] = found.get(name, 0.0) + moment
    if missing := sorted(set(model.kernels) - found.keys()):
      raise ValueError(
          f'{missing[0]} is in no convolution or matrix product, so it has no '
          'inputs to find a subspace of: let SUBSPACE_KERNELS leave it out.'
      )
    return found

  weights = weights_lib.to_tensors(weights)
  totals = dict.fromkeys(model.kernels, 0.0)
  # One by one: padding of a batch would count, too.
  for features in utterances:
    for name, moment in moments_of(weights, features).items():
      totals[name] = totals[name] + moment.numpy()
  return totals


def _weight_of(tensor: tf.Tensor) -> tf.Tensor:
  """The tensor that a product's factor is a cast or another view of."""
  while tensor.op.type in _PASSED:
    tensor = tensor.op.inputs[0]
  return tensor


def _input_rows(op: tf.Operation) -> tf.Tensor:
  """What a product multiplies its kernel with, as rows [N, K]."""
  kernel = op.inputs[1]
  inputs = tf.cast(op.inputs[0], tf.float32)
  if op.type == 'Conv2D':
    height, width, _, _ = kernel.shape
    inputs = tf.image.extract_patches(
        inputs,
        sizes=[1, height, width, 1],
        strides=op.get_attr('strides'),
        rates=op.get_attr('dilations'),
        padding=op.get_attr('padding').decode(),
    )
  return tf.reshape(inputs, [-1, _fan_in(kernel.shape)])


def _fan_in(shape: Iterable[int]) -> int:
  """K of a kernel's shape [..., M]."""
  return math.prod(tuple(shape)[:-1])

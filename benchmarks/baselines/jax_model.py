"""The JAX twin of our CTC transformer: pure functions of weights by our names.

`tff_asr.models.transformer` of norm 'pre', without dropout, layer drop and the
random shift of its positions, as JAX's users would write it, with optax's CTC
loss.

  B: batch size. T: feature frames. F: mel bins. S: subsampled frames. D: width.
  U: label length. V: vocabulary with blank.
"""

import math

import jax
import jax.numpy as jnp
import numpy as np
import optax

from benchmarks.baselines import job as job_lib
from tff_asr.features import log_mel

_STRIDE = 3
_PADDING = (2, 2)
_FRAME_SEC = _STRIDE * log_mel.FRAME_SHIFT / log_mel.SAMPLE_RATE_HZ
_NORM_EPSILON = 1e-5
_FREQ_SCALE = 30.0
_MASKED = -1e9

Weights = dict[str, jax.Array]


def loss(
    weights: Weights,
    features: jax.Array,
    feature_lengths: jax.Array,
    labels: jax.Array,
    label_lengths: jax.Array,
    *,
    job: job_lib.Job,
) -> jax.Array:
  """Mean loss of a batch.

  Args:
    weights: By our names, in our layout.
    features: float32 [B, T, F].
    feature_lengths: int32 [B].
    labels: int32 [B, U].
    label_lengths: int32 [B].
    job: Sizes of the model.

  Returns:
    float32 [], nats an utterance.
  """
  valid = _valid(feature_lengths, features.shape[1])[:, :, None]
  scaled = _normalize(features, feature_lengths)
  scaled = scaled * weights['front/input_scale'] + weights['front/input_bias']
  hidden = jax.lax.conv_general_dilated(
      scaled * valid,
      weights['front/kernel'],
      window_strides=(_STRIDE,),
      padding=(_PADDING,),
      dimension_numbers=('NWC', 'WIO', 'NWC'),
  )
  value, gate = jnp.split(hidden + weights['front/bias'], 2, axis=-1)
  hidden = value * jax.nn.sigmoid(gate)
  lengths = feature_lengths // _STRIDE
  valid = _valid(lengths, hidden.shape[1])
  hidden += _positions(lengths, valid, dim=job.dim)
  digits = max(2, len(str(job.num_blocks - 1)))
  for index in range(job.num_blocks):
    hidden = _block(
        weights, f'block_{index:0{digits}}', hidden, valid, job.num_heads
    )
  logits = _layer_norm(weights, 'norm', hidden) @ weights['head/kernel']
  losses = optax.ctc_loss(
      logits + weights['head/bias'],
      1.0 - valid,
      labels,
      1.0 - _valid(label_lengths, labels.shape[1]),
      blank_id=job.vocab_size - 1,
  )
  return losses.mean()


def _block(
    weights: Weights,
    name: str,
    inputs: jax.Array,
    valid: jax.Array,
    num_heads: int,
) -> jax.Array:
  """A block; inputs [B, S, D], valid float32 [B, S]."""
  batch_size, size, dim = inputs.shape
  head_dim = dim // num_heads
  normed = _layer_norm(weights, f'{name}/ln1', inputs)
  qkv = (normed @ weights[f'{name}/wqkv']).reshape(
      batch_size, size, 3, num_heads, head_dim
  )
  query, key, value = jnp.moveaxis(qkv, 2, 0)
  scores = jnp.einsum('bqhd,bkhd->bhqk', query / math.sqrt(head_dim), key)
  scores += (1 - valid[:, None, None, :]) * _MASKED
  attention = jax.nn.softmax(scores)
  heads = jnp.einsum('bhqk,bkhd->bqhd', attention, value)
  joined = heads.reshape(batch_size, size, dim)
  hidden = inputs + joined @ weights[f'{name}/wf']
  normed = _layer_norm(weights, f'{name}/ln2', hidden)
  inner = jax.nn.relu(normed @ weights[f'{name}/w1'])
  return hidden + inner @ weights[f'{name}/w2']


def _layer_norm(weights: Weights, name: str, inputs: jax.Array) -> jax.Array:
  mean = inputs.mean(axis=-1, keepdims=True)
  variance = inputs.var(axis=-1, keepdims=True)
  normed = (inputs - mean) * jax.lax.rsqrt(variance + _NORM_EPSILON)
  return normed * weights[f'{name}/scale'] + weights[f'{name}/bias']


def _positions(lengths: jax.Array, valid: jax.Array, *, dim: int) -> jax.Array:
  """CAPE's embedding without a shift, [B, S, D], 0 past each length."""
  half = np.arange(dim) // 2
  frequencies = _FREQ_SCALE * np.exp(-2 * half * math.log(1e4) / dim)
  phases = (math.pi / 2) * (np.arange(dim) % 2)
  centres = (lengths.astype(jnp.float32) - 1) / 2
  seconds = (jnp.arange(valid.shape[1]) - centres[:, None]) * _FRAME_SEC
  angles = seconds[:, :, None] * frequencies.astype(np.float32)
  return jnp.sin(angles + phases.astype(np.float32)) * valid[:, :, None]


def _normalize(features: jax.Array, feature_lengths: jax.Array) -> jax.Array:
  """As `tff_asr.features.log_mel.normalize_utterances`."""
  valid = _valid(feature_lengths, features.shape[1])[:, :, None]
  count = (feature_lengths * features.shape[-1]).clip(min=1)[:, None, None]
  total = lambda values: values.sum(axis=(1, 2), keepdims=True)
  mean = total(features * valid) / count
  centred = (features - mean) * valid
  variance = total(jnp.square(centred)) / count
  return centred * jax.lax.rsqrt(variance + log_mel.VARIANCE_EPSILON)


def _valid(lengths: jax.Array, size: int) -> jax.Array:
  """float32 [B, size]: 1 before each length."""
  return (jnp.arange(size) < lengths[:, None]).astype(jnp.float32)

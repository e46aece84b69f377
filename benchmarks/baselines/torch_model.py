"""The PyTorch twin of our CTC transformer, written as PyTorch's users would.

`tff_asr.models.transformer` of norm 'pre', without dropout, layer drop and the
random shift of its positions, in torch.nn's modules, its fused attention and
its own CTC loss; with our log-mel features in front, for baselines that train
from waveforms. Linear layers and the convolution have torch's layout; `load`
and `export` translate from and to ours.

  B: batch size. N: samples. T: feature frames. F: mel bins. S: subsampled
  frames. D: width. U: label length. V: vocabulary with blank.
"""

import math

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from benchmarks.baselines import job as job_lib
from tff_asr.features import log_mel

_KERNEL_SIZE = 7
_STRIDE = 3
_FRAME_SEC = _STRIDE * log_mel.FRAME_SHIFT / log_mel.SAMPLE_RATE_HZ
_NORM_EPSILON = 1e-5
_FREQ_SCALE = 30.0


class _Block(nn.Module):
  """A block, with layer norm before each half (pre-norm)."""

  def __init__(self, dim: int, num_heads: int):
    super().__init__()
    self.num_heads = num_heads
    self.ln1 = nn.LayerNorm(dim, eps=_NORM_EPSILON)
    self.wqkv = nn.Linear(dim, 3 * dim, bias=False)
    self.wf = nn.Linear(dim, dim, bias=False)
    self.ln2 = nn.LayerNorm(dim, eps=_NORM_EPSILON)
    self.w1 = nn.Linear(dim, 4 * dim, bias=False)
    self.w2 = nn.Linear(4 * dim, dim, bias=False)

  def forward(self, inputs: torch.Tensor, valid: torch.Tensor) -> torch.Tensor:
    """Inputs [B, S, D], valid bool [B, S]."""
    batch_size, size, dim = inputs.shape
    qkv = self.wqkv(self.ln1(inputs)).view(
        batch_size, size, 3, self.num_heads, dim // self.num_heads
    )
    query, key, value = qkv.permute(2, 0, 3, 1, 4).unbind(0)
    heads = functional.scaled_dot_product_attention(
        query, key, value, attn_mask=valid[:, None, None, :]
    )
    joined = heads.transpose(1, 2).reshape(batch_size, size, dim)
    hidden = inputs + self.wf(joined)
    return hidden + self.w2(functional.relu(self.w1(self.ln2(hidden))))


class CtcTransformer(nn.Module):
  """Features to the CTC loss."""

  def __init__(self, job: job_lib.Job):
    super().__init__()
    self._is_bfloat16 = job.is_bfloat16
    self.input_scale = nn.Parameter(torch.ones(1))
    self.input_bias = nn.Parameter(torch.zeros(1))
    self.front = nn.Conv1d(
        log_mel.NUM_MEL_BINS,
        2 * job.dim,
        _KERNEL_SIZE,
        stride=_STRIDE,
        padding=(_KERNEL_SIZE - _STRIDE) // 2,
    )
    self.blocks = nn.ModuleList(
        _Block(job.dim, job.num_heads) for _ in range(job.num_blocks)
    )
    self.norm = nn.LayerNorm(job.dim, eps=_NORM_EPSILON)
    self.head = nn.Linear(job.dim, job.vocab_size)
    half = np.arange(job.dim) // 2
    frequencies = _FREQ_SCALE * np.exp(-2 * half * math.log(1e4) / job.dim)
    # Constants: neither trained nor sent.
    self.register_buffer(
        'frequencies', _float32(frequencies), persistent=False
    )
    self.register_buffer(
        'phases',
        _float32((math.pi / 2) * (np.arange(job.dim) % 2)),
        persistent=False,
    )

  def feature_loss(
      self,
      features: torch.Tensor,
      feature_lengths: torch.Tensor,
      labels: torch.Tensor,
      label_lengths: torch.Tensor,
  ) -> torch.Tensor:
    """Mean loss of a batch.

    Args:
      features: float32 [B, T, F].
      feature_lengths: int64 [B].
      labels: int64 [B, U].
      label_lengths: int64 [B].

    Returns:
      float32 [], nats an utterance.
    """
    scaled = normalize(features, feature_lengths)
    scaled = scaled * self.input_scale + self.input_bias
    scaled = scaled * _valid(feature_lengths, features.shape[1])[:, :, None]
    hidden = functional.glu(self.front(scaled.transpose(1, 2)), dim=1)
    hidden = hidden.transpose(1, 2)
    lengths = feature_lengths // _STRIDE
    valid = _valid(lengths, hidden.shape[1])
    hidden = hidden + self._positions(lengths, valid)
    with torch.autocast('cpu', torch.bfloat16, enabled=self._is_bfloat16):
      for block in self.blocks:
        hidden = block(hidden, valid)
    log_probs = functional.log_softmax(self.head(self.norm(hidden)), dim=-1)
    losses = functional.ctc_loss(
        log_probs.transpose(0, 1),
        labels,
        lengths,
        label_lengths,
        blank=log_probs.shape[-1] - 1,
        reduction='none',
    )
    return losses.mean()

  def loss(
      self, waveforms: torch.Tensor, labels: torch.Tensor
  ) -> torch.Tensor:
    """Mean loss of waveforms int16 [B, N] of one length, labels [B, U]."""
    features = compute_features(waveforms)
    batch_size, size = features.shape[:2]
    return self.feature_loss(
        features,
        torch.full([batch_size], size),
        labels,
        torch.full([batch_size], labels.shape[1]),
    )

  def _positions(
      self, lengths: torch.Tensor, valid: torch.Tensor
  ) -> torch.Tensor:
    """CAPE's embedding without a shift, [B, S, D], 0 past each length."""
    frames = torch.arange(valid.shape[1], dtype=torch.float32)
    centres = (lengths.to(torch.float32) - 1) / 2
    seconds = (frames - centres[:, None]) * _FRAME_SEC
    angles = seconds[:, :, None] * self.frequencies + self.phases
    return torch.sin(angles) * valid[:, :, None]


def normalize(
    features: torch.Tensor, feature_lengths: torch.Tensor
) -> torch.Tensor:
  """As `tff_asr.features.log_mel.normalize_utterances`."""
  valid = _valid(feature_lengths, features.shape[1])[:, :, None]
  count = (feature_lengths * features.shape[-1]).clamp(min=1)[:, None, None]
  total = lambda values: values.sum(dim=(1, 2), keepdim=True)
  mean = total(features * valid) / count
  centred = (features - mean) * valid
  variance = total(centred.square()) / count
  return centred * torch.rsqrt(variance + log_mel.VARIANCE_EPSILON)


def compute_features(waveforms: torch.Tensor) -> torch.Tensor:
  """Log-mel features [B, T, F] of waveforms [B, N], all of one length."""
  samples = waveforms.to(torch.float32)
  frames = samples.unfold(1, log_mel.FRAME_LENGTH, log_mel.FRAME_SHIFT)
  parts = frames @ _float32(log_mel.dft_matrix())
  real, imaginary = parts.chunk(2, dim=-1)
  bins = torch.sqrt(real.square() + imaginary.square()) @ _float32(
      log_mel.mel_filterbank()
  )
  log = torch.log(bins.clamp(min=log_mel.FLOOR))
  return normalize(log, torch.full([len(log)], log.shape[1]))


def load(model: CtcTransformer, weights: dict[str, np.ndarray]) -> None:
  """Puts weights of our names and layout into the model."""
  with torch.no_grad():
    for name, parameter in named_parameters(model).items():
      parameter.copy_(torch.from_numpy(_swapped(weights[name])))


def export(model: CtcTransformer) -> dict[str, np.ndarray]:
  """The model's weights by our names, in our layout."""
  return {
      name: _swapped(parameter.detach().numpy().copy())
      for name, parameter in named_parameters(model).items()
  }


def export_gradients(model: CtcTransformer) -> dict[str, np.ndarray]:
  """Its gradients, likewise."""
  return {
      name: _swapped(parameter.grad.numpy().copy())
      for name, parameter in named_parameters(model).items()
  }


def batch_of(arrays: dict[str, np.ndarray]) -> list[torch.Tensor]:
  """Arguments of `feature_loss` from arrays of check.npz or timed.npz."""
  return [
      torch.from_numpy(arrays['features']),
      *(
          torch.from_numpy(arrays[name].astype(np.int64))
          for name in ('feature_lengths', 'labels', 'label_lengths')
      ),
  ]


def named_parameters(model: CtcTransformer) -> dict[str, nn.Parameter]:
  """Its parameters by our names."""
  named = {
      'front/bias': model.front.bias,
      'front/input_bias': model.input_bias,
      'front/input_scale': model.input_scale,
      'front/kernel': model.front.weight,
      'head/bias': model.head.bias,
      'head/kernel': model.head.weight,
      'norm/bias': model.norm.bias,
      'norm/scale': model.norm.weight,
  }
  digits = max(2, len(str(len(model.blocks) - 1)))
  for index, block in enumerate(model.blocks):
    start = f'block_{index:0{digits}}'
    for name in ('wf', 'wqkv', 'w1', 'w2'):
      named[f'{start}/{name}'] = getattr(block, name).weight
    for name in ('ln1', 'ln2'):
      named[f'{start}/{name}/bias'] = getattr(block, name).bias
      named[f'{start}/{name}/scale'] = getattr(block, name).weight
  return named


def _swapped(values: np.ndarray) -> np.ndarray:
  """Swaps first and last axis: from our layout to torch's, and back."""
  if values.ndim < 2:
    return values
  return np.ascontiguousarray(np.swapaxes(values, 0, values.ndim - 1))


def _valid(lengths: torch.Tensor, size: int) -> torch.Tensor:
  """Bool [B, size]: true before each length."""
  return torch.arange(size) < lengths[:, None]


def _float32(values: np.ndarray) -> torch.Tensor:
  return torch.from_numpy(values.astype(np.float32, copy=False))

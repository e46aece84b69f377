"""The job of all baselines, as files: sizes, weights, data, expected values.

A job is a folder that the driver writes and every baseline reads. Baselines run
in separate virtual environments, so this module needs NumPy alone.

    job.json      the sizes and rates of `Job`
    weights.npz   initial weights by our names
    check.npz     a batch, and our loss and gradients on it
    timed.npz     the batch that local steps are timed on
    clients.npz   waveforms int16 [clients, utterances, N], and their labels
    corpus        the same utterances as our shards

A baseline prints its measurements as lines on standard output, among the lines
of its libraries.

  B: batch size. T: feature frames. F: mel bins. U: label length. N: samples.
"""

import dataclasses
import json
import os
from typing import Any, NamedTuple

import numpy as np

_MARK = 'BASELINE '
# Tolerances of the loss, and of each weight's gradient: |found - ours| over
# |ours|.
LOSS_TOLERANCE = 1e-4
GRADIENT_TOLERANCE = 1e-3
# Tolerances of the first round's update, after local steps that let rounding
# grow; and of that with products of bfloat16, which have 8 bits.
UPDATE_TOLERANCE = 1e-2
BFLOAT16_UPDATE_TOLERANCE = 1e-1


@dataclasses.dataclass(frozen=True, kw_only=True)
class Job:
  """Sizes and rates; only the noise is random.

  Attributes:
    num_blocks: Number of blocks of the transformer.
    dim: Its width; the MLPs' is four times that.
    num_heads: Number of heads of its attention.
    vocab_size: Outputs, the last of them the blank.
    num_clients: Number of clients in the corpus and in each round.
    num_local_steps: Number of local steps of each client in a round: one pass
      over its data.
    batch_size: Utterances in a local step.
    utterance_sec: Length of each.
    learning_rate: Learning rate of the clients' SGD; the server's is 1.
    max_grad_norm: Each local gradient is clipped to this global norm.
    l2_norm_clip: C, of each client's whole update.
    noise_multiplier: Standard deviation of the noise on the sum, over C. So
      small that the first round can be compared; it costs what any noise costs.
    is_bfloat16: Products of the blocks are of bfloat16; weights, gradients and
      the residual stream stay float32.
  """

  num_blocks: int
  dim: int
  vocab_size: int
  num_clients: int
  num_local_steps: int
  num_heads: int = 4
  batch_size: int = 4
  utterance_sec: float = 2.5
  learning_rate: float = 0.1
  max_grad_norm: float = 1.0
  l2_norm_clip: float = 0.01
  noise_multiplier: float = 1e-7
  is_bfloat16: bool = False

  @property
  def num_utterances(self) -> int:
    """Number of utterances of each client."""
    return self.num_local_steps * self.batch_size

  @property
  def audio_sec(self) -> float:
    """Seconds of audio of a round."""
    return self.num_clients * self.num_utterances * self.utterance_sec

  @property
  def activation_dtype(self) -> str:
    """Type of the blocks' products, as our encoders call it."""
    return 'bfloat16' if self.is_bfloat16 else 'float32'

  @property
  def update_tolerance(self) -> float:
    """Tolerance of the first round's update."""
    return (
        BFLOAT16_UPDATE_TOLERANCE if self.is_bfloat16 else UPDATE_TOLERANCE
    )

  def save(self, folder: str) -> None:
    """Writes job.json."""
    with open(os.path.join(folder, 'job.json'), 'w', encoding='utf-8') as f:
      json.dump(dataclasses.asdict(self), f)


class Clients(NamedTuple):
  """Data of all clients: K clients with M utterances each.

  Attributes:
    waveforms: int16 [K, M, N].
    labels: int32 [K, M, U]; all of length U.
  """

  waveforms: np.ndarray
  labels: np.ndarray


def load(folder: str) -> Job:
  """Reads job.json."""
  path = os.path.join(folder, 'job.json')
  if not os.path.exists(path):
    raise ValueError(f'--job {folder} has no job.json: the drivers write it.')
  with open(path, encoding='utf-8') as f:
    return Job(**json.load(f))


def load_arrays(folder: str, name: str) -> dict[str, np.ndarray]:
  """Arrays of {name}.npz by name."""
  with np.load(os.path.join(folder, f'{name}.npz')) as arrays:
    return dict(arrays)


def load_clients(folder: str) -> Clients:
  """Reads clients.npz."""
  return Clients(**load_arrays(folder, 'clients'))


def check_twin(
    *,
    loss: float,
    gradients: dict[str, np.ndarray],
    expected: dict[str, np.ndarray],
) -> None:
  """Raises ValueError unless a twin computes what our model computes.

  Args:
    loss: The twin's mean loss on the batch of check.npz.
    gradients: Its gradients by our names, in our layout.
    expected: Arrays of check.npz: `loss`, and `gradient/{name}` for each.
  """
  differences = {'loss': _difference(np.float64(loss), expected['loss'])}
  names = {key for key in expected if key.startswith('gradient/')}
  if names != {f'gradient/{name}' for name in gradients}:
    raise ValueError('The twin has other weights than ours.')
  for name, gradient in gradients.items():
    differences[name] = _difference(gradient, expected[f'gradient/{name}'])
  for name, difference in differences.items():
    limit = LOSS_TOLERANCE if name == 'loss' else GRADIENT_TOLERANCE
    # Written so that NaN fails.
    if not difference <= limit:
      raise ValueError(
          f"The twin's {name} is {difference:.2g} from ours, more than {limit}."
      )


def update_difference(
    first: dict[str, np.ndarray],
    second: dict[str, np.ndarray],
    *,
    initial: dict[str, np.ndarray],
) -> float:
  """|first - second| over |second - initial|, of all weights together.

  Raises:
    ValueError: The names of the weights differ, or a shape does.
  """
  if first.keys() != second.keys() or first.keys() != initial.keys():
    raise ValueError('The weights have different names.')
  flat = [
      np.concatenate([weights[name].ravel() for name in sorted(initial)])
      for weights in (first, second, initial)
  ]
  return _difference(flat[0] - flat[2], flat[1] - flat[2])


def say(**figures: Any) -> None:
  """Prints figures for `read_figures`."""
  print(_MARK + json.dumps(figures), flush=True)


def read_figures(output: str) -> list[dict[str, Any]]:
  """Figures that `say` put into a program's standard output, in order."""
  return [
      json.loads(line[len(_MARK) :])
      for line in output.splitlines()
      if line.startswith(_MARK)
  ]


def _difference(found: np.ndarray, expected: np.ndarray) -> float:
  """Norm of the difference over the norm of the expected value."""
  if found.shape != expected.shape:
    raise ValueError(f'Found shape {found.shape}, expected {expected.shape}.')
  norm = np.linalg.norm(expected.astype(np.float64))
  difference = np.linalg.norm(found.astype(np.float64) - expected)
  return float(difference / max(norm, 1e-12))

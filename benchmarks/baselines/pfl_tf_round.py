"""Rounds of `pfl` with its TensorFlow back end; see `pfl_run`.

A Keras model with our own encoder inside, and the CTC kernel that ours uses. A
program of the drivers; see `rounds`.
"""

from tff_asr import launch  # First: quiets TensorFlow before it is loaded.

launch.install_early_sigint(__name__)

import numpy as np
from pfl.model import tensorflow as pfl_tensorflow
import tensorflow as tf

from benchmarks.baselines import job as job_lib
from benchmarks.baselines import pfl_run
from benchmarks.baselines import program
from tff_asr.features import log_mel
from tff_asr.models import transformer
from tff_asr.models import weights as weights_lib


def main(_) -> None:
  folder = program.JOB.value
  job = job_lib.load(folder)
  module = _Module(job, job_lib.load_arrays(folder, 'weights'))
  module.compile(optimizer=tf.keras.optimizers.SGD(), loss=_losses)
  clients = job_lib.load_clients(folder)
  pfl_run.run(
      pfl_tensorflow.TFModel(
          module,
          metrics={},
          central_optimizer=tf.keras.optimizers.SGD(learning_rate=1.0),
      ),
      job=job,
      read_client=lambda client: [
          tf.constant(clients.waveforms[client]),
          tf.constant(clients.labels[client]),
      ],
      export=module.export,
  )


class _Module(tf.keras.Model):
  """Waveforms int16 [B, N] of one length to logits [B, S, V]."""

  def __init__(self, job: job_lib.Job, initial: dict[str, np.ndarray]):
    super().__init__(name='twin')
    self._encoder = transformer.build(
        num_blocks=job.num_blocks,
        dim=job.dim,
        mlp_dim=4 * job.dim,
        num_heads=job.num_heads,
        activation_dtype=job.activation_dtype,
    )
    self._weights_by_name = {}
    for name, value in sorted(initial.items()):
      self._weights_by_name[name] = self.add_weight(
          # Keras wants no slashes.
          name=name.replace('/', '.'),
          shape=value.shape,
          initializer=tf.keras.initializers.Constant(value),
      )

  def call(self, inputs: tf.Tensor, training: bool = False) -> tf.Tensor:
    """The logits; nothing differs in training."""
    del training
    weights = weights_lib.Weights(
        (name, tf.convert_to_tensor(weight))
        for name, weight in self._weights_by_name.items()
    )
    num_samples = tf.fill([tf.shape(inputs)[0]], tf.shape(inputs)[1])
    features, lengths = log_mel.log_mel(inputs, num_samples)
    hidden, _ = self._encoder.apply(weights, features, lengths, None)
    return tf.matmul(hidden, weights['head/kernel']) + weights['head/bias']

  def export(self) -> dict[str, np.ndarray]:
    """The weights by our names."""
    return {
        name: weight.numpy() for name, weight in self._weights_by_name.items()
    }


def _losses(labels: tf.Tensor, logits: tf.Tensor) -> tf.Tensor:
  """CTC loss [B] of labels [B, U], all valid, as are all frames."""
  batch_size, size, _ = tf.unstack(tf.shape(logits))
  return tf.raw_ops.CTCLoss(
      inputs=tf.transpose(logits, [1, 0, 2]),
      labels_indices=tf.where(tf.ones_like(labels, tf.bool)),
      labels_values=tf.cast(tf.reshape(labels, [-1]), tf.int32),
      sequence_length=tf.fill([batch_size], size),
  ).loss


if __name__ == '__main__':
  launch.run(main, after_interrupt='the same command starts again.')

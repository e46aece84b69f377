"""Our side of a job: the model, its corpus, and the twins' expected values.

All randomness except the noise on the sum is off: no dropout, no layer drop, no
SpecAugment, no shift of positions. Every client repeats one utterance of noise,
different for each client, so that a shuffled pass has the same batches.
"""

import functools
import os
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from benchmarks import workload as workload_lib
from benchmarks.baselines import job as job_lib
from data_tools import shards
from tff_asr.aggregators import dp_mean
from tff_asr.data import client_data
from tff_asr.data import pipeline as pipeline_lib
from tff_asr.features import log_mel
from tff_asr.learning import client_update
from tff_asr.learning import fed_avg
from tff_asr.models import ctc
from tff_asr.models import transformer
from tff_asr.models import weights as weights_lib
from tff_asr.privacy import clipping as clipping_lib
from tff_asr.privacy import queries
from tff_asr.text import tokenizer as tokenizer_lib

_TRANSCRIPT = 'nobody says this but it is as long as speech'
_WEIGHTS_SEED = (1, 0)


def build_job(**sizes: Any) -> job_lib.Job:
  """A job of our tokenizer's vocabulary."""
  vocab_size = tokenizer_lib.CharTokenizer().vocab_size
  return job_lib.Job(vocab_size=vocab_size, **sizes)


def write(job: job_lib.Job, folder: str) -> None:
  """Writes all of a job but its corpus into a folder; see `job`."""
  job.save(folder)
  model = build_model(job)
  weights = model.initialize(tf.constant(_WEIGHTS_SEED))
  check = _batch(job, lengths_differ=True)
  gradients, loss_sum = client_update.loss_gradients(
      model,
      weights,
      check,
      num_utterances=tf.reduce_sum(check['example_weights']),
  )
  _save(folder, 'weights', weights)
  _save(
      folder,
      'check',
      _arrays(check)
      | {f'gradient/{name}': value for name, value in gradients.items()}
      | {'loss': loss_sum / job.batch_size},
  )
  _save(folder, 'timed', _arrays(_batch(job, lengths_differ=False)))


def write_clients(job: job_lib.Job, folder: str) -> None:
  """Writes clients.npz and the same as shards."""
  waveforms = [_noise(job, client) for client in range(job.num_clients)]
  shape = (job.num_clients, job.num_utterances, 1)
  _save(
      folder,
      'clients',
      {
          'waveforms': np.repeat(
              np.stack(waveforms)[:, np.newaxis], job.num_utterances, axis=1
          ),
          'labels': np.tile(_labels(), shape),
      },
  )
  shards.write_split(
      [
          shards.Utterance(
              client_id=f'client{client:06d}',
              utterance_id=f'client{client:06d}-{number:04d}',
              transcript=_TRANSCRIPT,
              audio=lambda client=client: waveforms[client],
          )
          for client in range(job.num_clients)
          for number in range(job.num_utterances)
      ],
      os.path.join(folder, 'corpus'),
      origin={'corpus': 'noise'},
  )


def build_model(job: job_lib.Job) -> ctc.CtcModel:
  """The transformer with nothing random."""
  return ctc.build(
      encoder=transformer.build(
          num_blocks=job.num_blocks,
          dim=job.dim,
          mlp_dim=4 * job.dim,
          num_heads=job.num_heads,
          max_shift_sec=0.0,
          activation_dtype=job.activation_dtype,
      ),
      tokenizer=tokenizer_lib.CharTokenizer(),
      loss_kernel='op',
  )


def build_step(job: job_lib.Job) -> tf.types.experimental.GenericFunction:
  """The compiled local step: weights, batch to weights, loss sum."""
  model = build_model(job)
  step = workload_lib.build_step(
      model, learning_rate=job.learning_rate, max_grad_norm=job.max_grad_norm
  )
  return tf.function(
      step,
      input_signature=[
          weights_lib.tensor_specs(model.specs), pipeline_lib.batch_spec()
      ],
  )


def build_process(
    job: job_lib.Job,
    corpus: client_data.SpeechClientData,
    *,
    noise_kernel: str,
) -> tff.learning.templates.LearningProcess:
  """Federated averaging with one clip and noise; the server's rate is 1."""
  model = build_model(job)
  return fed_avg.build(
      model=model,
      pipeline=pipeline_lib.Pipeline(
          tokenizer=tokenizer_lib.CharTokenizer(),
          output_lengths=model.encoder.output_lengths,
          max_batch_sec=job.batch_size * job.utterance_sec,
          max_utterance_sec=job.utterance_sec,
      ),
      client_data=corpus,
      aggregator=dp_mean.build(
          build_query=functools.partial(
              queries.PerLayerClipSumQuery,
              l2_norm_clip=job.l2_norm_clip,
              noise_multiplier=job.noise_multiplier,
              clipping=clipping_lib.Clipping(split='global'),
              noise_kernel=noise_kernel,
          ),
          cohort_size=job.num_clients,
      ),
      server_optimizer=tff.learning.optimizers.build_sgdm(1.0),
      local=client_update.LocalTraining(
          learning_rate=job.learning_rate, num_steps=job.num_local_steps
      ),
      seed=1,
  )


def load_corpus(folder: str) -> client_data.SpeechClientData:
  """The shards of `write_clients`."""
  return client_data.load(os.path.join(folder, 'corpus'))


def load_weights(folder: str) -> weights_lib.Weights:
  """The job's initial weights, as tensors."""
  arrays = job_lib.load_arrays(folder, 'weights')
  return weights_lib.to_tensors(
      weights_lib.Weights((name, arrays[name]) for name in sorted(arrays))
  )


def load_timed_batch(folder: str) -> pipeline_lib.Batch:
  """The batch of timed.npz, as the pipeline would make it."""
  return _to_batch(**job_lib.load_arrays(folder, 'timed'))


def _noise(job: job_lib.Job, client: int) -> np.ndarray:
  """A client's utterance, int16 [N]."""
  generator = np.random.default_rng(client)
  num_samples = int(job.utterance_sec * log_mel.SAMPLE_RATE_HZ)
  return generator.normal(0, 1000, num_samples).astype(np.int16)


def _labels() -> np.ndarray:
  """Labels of the transcript, int32 [U]."""
  return tokenizer_lib.CharTokenizer().encode([_TRANSCRIPT])[0].numpy()


def _batch(job: job_lib.Job, *, lengths_differ: bool) -> pipeline_lib.Batch:
  """A batch of noise: utterances of 1, 3/4, 1/2 ... of the length, or all 1."""
  labels = _labels()
  waveforms = np.stack([_noise(job, row) for row in range(job.batch_size)])
  num_samples = np.full([job.batch_size], waveforms.shape[1])
  label_lengths = np.full([job.batch_size], len(labels))
  if lengths_differ:
    shares = 1 - np.arange(job.batch_size) / (2 * job.batch_size)
    num_samples = (num_samples * shares).astype(int)
    # Fewer frames than half of the utterance's would be too few for them all.
    label_lengths = (label_lengths * shares).astype(int) // 2
  features, feature_lengths = log_mel.log_mel(
      tf.constant(waveforms), tf.constant(num_samples, tf.int32)
  )
  return _to_batch(
      features=features,
      feature_lengths=feature_lengths,
      labels=np.tile(labels, [job.batch_size, 1]),
      label_lengths=label_lengths,
  )


def _to_batch(
    *, features: Any, feature_lengths: Any, labels: Any, label_lengths: Any
) -> pipeline_lib.Batch:
  """A batch of the pipeline's, of utterances that all count."""
  batch_size = features.shape[0]
  nameless = tf.fill([batch_size], '')
  return pipeline_lib.Batch(
      client_id=nameless,
      feature_lengths=tf.cast(feature_lengths, tf.int32),
      features=tf.convert_to_tensor(features),
      label_lengths=tf.cast(label_lengths, tf.int32),
      labels=tf.cast(labels, tf.int32),
      seed=tf.constant([0, 0]),
      transcript=nameless,
      utterance_id=nameless,
      example_weights=tf.ones([batch_size]),
  )


def _arrays(batch: pipeline_lib.Batch) -> dict[str, tf.Tensor]:
  """Parts of a batch that twins need."""
  names = ('features', 'feature_lengths', 'labels', 'label_lengths')
  return {name: batch[name] for name in names}


def _save(folder: str, name: str, arrays: dict[str, Any]) -> None:
  np.savez(
      os.path.join(folder, f'{name}.npz'),
      **{key: np.asarray(value) for key, value in arrays.items()},
  )

"""A trial step: how long a training step of a model takes on this machine.

    seconds = step_sec(model, feature_dim=80, batch_sec=20.0)

A program that knows the number of its steps can say at once how long they will
take. Features are noise and labels are short: what they are does not change
the time.

  B: batch size. T: feature frames. F: mel bins. U: label length.
"""

import time

import tensorflow as tf

from tff_asr import checks
from tff_asr.models import ctc

_NUM_UTTERANCES = 8
_NUM_LABELS = 20
_FRAMES_PER_SEC = 100


def step_sec(
    model: ctc.CtcModel,
    *,
    feature_dim: int,
    batch_sec: float,
    trial_sec: float = 3.0,
) -> float:
  """Returns the mean seconds of a step: loss and gradients of all weights.

  Args:
    model: The model; its weights are drawn.
    feature_dim: F.
    batch_sec: Seconds of audio of a step, of frames of 10 ms.
    trial_sec: Steps are timed for so long, after one that traces.
  """
  checks.positive(trial_sec=trial_sec)
  num_frames = int(batch_sec * _FRAMES_PER_SEC / _NUM_UTTERANCES)
  features = tf.random.stateless_normal(
      [_NUM_UTTERANCES, num_frames, feature_dim], seed=[1, 2]
  )
  lengths = tf.fill([_NUM_UTTERANCES], num_frames)
  labels = tf.ones([_NUM_UTTERANCES, _NUM_LABELS], tf.int32)
  label_lengths = tf.fill([_NUM_UTTERANCES], _NUM_LABELS)
  weights = model.initialize(tf.constant([3, 4]))

  @tf.function(autograph=False)
  def step(weights):
    with tf.GradientTape() as tape:
      tape.watch(weights)
      losses = model.loss(
          weights, features, lengths, labels, label_lengths, tf.constant([5, 6])
      )
      loss = tf.reduce_mean(losses)
    return loss, tape.gradient(loss, weights)

  # Traces, and lets kernels choose their algorithms.
  step(weights)
  # The mean of seconds, and not the median of a few steps: on a busy machine
  # short bursts are fast, and the pauses between them are what takes long.
  num_steps, spent_sec = 0, 0.0
  started = time.monotonic()
  while spent_sec < trial_sec:
    # Waits for the result: on a GPU the call returns before.
    step(weights)[0].numpy()
    num_steps += 1
    spent_sec = time.monotonic() - started
  return spent_sec / num_steps

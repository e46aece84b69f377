"""A trained recogniser as TensorFlow functions that need nothing else.

What leaves the project: waveforms go in, features, weights and characters are
inside, and only core TensorFlow ops are used, so that any TensorFlow can load
it.

  B: batch size. N: samples. U: tokens.
"""

from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from tff_asr.features import log_mel
from tff_asr.models import ctc

# Past a waveform's end, so that every batch has a frame; it does not matter.
_PADDING_SAMPLES = 2 * log_mel.FRAME_LENGTH
_NO_TOKEN = -1


class Server(tf.Module):
  """A model with its weights and characters."""

  def __init__(
      self,
      *,
      model: ctc.CtcModel,
      weights: Mapping[str, Any],
      characters: str,
  ):
    """Creates it.

    Args:
      model: The model.
      weights: Its weights, arrays or tensors by name.
      characters: What its tokens spell, in the order of their ids; V - 1.

    Raises:
      ValueError: The characters are not those of the model.
    """
    super().__init__()
    if len(characters) != model.vocab_size - 1:
      raise ValueError(
          f'the model has {model.vocab_size - 1} tokens and a blank, found '
          f'{len(characters)} characters.'
      )
    self._model = model
    self._names = sorted(weights)
    self.variables_by_name = [
        tf.Variable(weights[name], name=name, trainable=False)
        for name in self._names
    ]
    self._characters = characters

  @tf.function(
      input_signature=[
          tf.TensorSpec([None, None], tf.int16, name='waveforms'),
          tf.TensorSpec([None], tf.int32, name='num_samples'),
      ],
      autograph=False,
  )
  def transcribe(
      self, waveforms: tf.Tensor, num_samples: tf.Tensor
  ) -> dict[str, tf.Tensor]:
    """Decodes a batch greedily.

    Args:
      waveforms: int16 [B, N], 16 kHz mono, padded with anything.
      num_samples: int32 [B], samples of each utterance, in [0, N].

    Returns:
      text: string [B], UTF-8.
      token_ids: int32 [B, U], -1 past an utterance's tokens.
    """
    tokens, is_heard = self._decode(waveforms, num_samples)
    heard = tf.ragged.boolean_mask(tokens, is_heard)
    characters = tf.gather(tf.constant(list(self._characters)), heard)
    text = tf.strings.strip(tf.strings.reduce_join(characters, axis=1))
    return {'text': text, 'token_ids': heard.to_tensor(_NO_TOKEN)}

  @tf.function(
      input_signature=[tf.TensorSpec([1, None], tf.int16, name='waveform')],
      autograph=False,
  )
  def tokens_of_one(self, waveform: tf.Tensor) -> dict[str, tf.Tensor]:
    """Decodes one utterance with ops that TFLite has, too.

    Args:
      waveform: int16 [1, N], 16 kHz mono.

    Returns:
      token_ids: int32 [U].
    """
    num_samples = tf.shape(waveform)[1:]
    tokens, is_heard = self._decode(waveform, num_samples)
    return {'token_ids': tf.boolean_mask(tokens[0], is_heard[0])}

  def _decode(
      self, waveforms: tf.Tensor, num_samples: tf.Tensor
  ) -> tuple[tf.Tensor, tf.Tensor]:
    """As `ctc.greedy_tokens`."""
    # TFLite pads no int16.
    samples = tf.cast(waveforms, tf.float32)
    padded = tf.pad(samples, [[0, 0], [0, _PADDING_SAMPLES]])
    features, lengths = log_mel.log_mel(padded, num_samples)
    weights = dict(zip(self._names, self.variables_by_name, strict=True))
    return ctc.greedy_tokens(
        *self._model.logits(
            {name: tf.convert_to_tensor(w) for name, w in weights.items()},
            features,
            lengths,
        )
    )

"""Calls of encoders, for their tests."""

from collections.abc import Iterator
import contextlib
import functools
from unittest import mock

import numpy as np
import tensorflow as tf

from tff_asr.models import encoder as encoder_lib
from tff_asr.models import weights as weights_lib


def perturbed(specs: weights_lib.Specs) -> weights_lib.Weights:
  """Random ones everywhere, so that norms' scales and biases count too."""
  return weights_lib.Weights(_perturbed(tuple(specs.items())))


@functools.lru_cache  # Tests take those of an encoder in many calls.
def _perturbed(items: tuple) -> weights_lib.Weights:
  drawn = weights_lib.initialize(dict(items), tf.constant([1, 2]))
  rng = np.random.default_rng(0)
  return weights_lib.Weights(
      (name, value + 0.3 * rng.normal(size=value.shape).astype(np.float32))
      for name, value in drawn.items()
  )


def arrays(weights: weights_lib.Weights) -> dict[str, np.ndarray]:
  """Tensors to arrays."""
  return {name: value.numpy() for name, value in weights.items()}


def features(*shape: int) -> np.ndarray:
  """Random ones, a function of the shape."""
  return np.random.default_rng(sum(shape)).normal(size=shape).astype(np.float32)


@contextlib.contextmanager
def recorded_seeds() -> Iterator[list[tuple[int, ...]]]:
  """Seeds that are drawn from or split meanwhile, outside of traced graphs."""
  seeds = []

  def spy(name, place):
    draw = getattr(tf.random, name)

    def call(*args, **options):
      seed = args[place] if len(args) > place else options['seed']
      if not tf.is_symbolic_tensor(seed):
        seeds.append(tuple(np.asarray(seed).tolist()))
      return draw(*args, **options)

    return mock.patch.object(tf.random, name, call)

  # `split` uses a seed up as a draw does.
  with (
      spy('stateless_uniform', 1), spy('stateless_normal', 1), spy('split', 0)
  ):
    yield seeds


def apply(
    encoder: encoder_lib.Encoder, features, lengths, seed=None, weights=None
) -> tuple[np.ndarray, np.ndarray]:
  """Outputs and their lengths; `perturbed` weights unless some are given."""
  outputs, output_lengths = encoder.apply(
      perturbed(encoder.specs) if weights is None else weights,
      tf.constant(features),
      tf.constant(lengths),
      seed,
  )
  return outputs.numpy(), output_lengths.numpy()

"""Local steps of the JAX twin, one jitted function.

A program of the drivers; see `local_step`.
"""

from tff_asr import launch

launch.install_early_sigint(__name__)

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax

from benchmarks.baselines import jax_model
from benchmarks.baselines import job as job_lib
from benchmarks.baselines import program



def main(_) -> None:
  folder = program.JOB.value
  job = job_lib.load(folder)
  weights = jax.device_put(job_lib.load_arrays(folder, 'weights'))
  gradient = jax.value_and_grad(functools.partial(jax_model.loss, job=job))

  expected = job_lib.load_arrays(folder, 'check')
  loss, gradients = jax.jit(gradient)(weights, *_batch_of(expected))
  job_lib.check_twin(
      loss=float(loss),
      gradients={name: np.asarray(part) for name, part in gradients.items()},
      expected=expected,
  )

  @functools.partial(jax.jit, donate_argnums=0)
  def step(weights, *batch):
    loss, gradients = gradient(weights, *batch)
    norm = optax.global_norm(gradients)
    rate = job.learning_rate * job.max_grad_norm / jnp.maximum(
        norm, job.max_grad_norm
    )
    weights = jax.tree.map(
        lambda weight, part: weight - rate * part, weights, gradients
    )
    return weights, loss

  batch = _batch_of(job_lib.load_arrays(folder, 'timed'))

  def take() -> float:
    nonlocal weights
    weights, loss = jax.block_until_ready(step(weights, *batch))
    return float(loss)

  program.time_steps(take)


def _batch_of(arrays: dict[str, np.ndarray]) -> list[jax.Array]:
  """Arguments of the loss from arrays of check.npz or timed.npz."""
  names = ('features', 'feature_lengths', 'labels', 'label_lengths')
  return [jax.device_put(arrays[name]) for name in names]


if __name__ == '__main__':
  launch.run(main, after_interrupt='the same command starts again.')

"""Our federated rounds, in a context of ours or in TFF's own.

A program of the drivers; see `rounds`.
"""

from tff_asr import launch  # First: quiets TensorFlow before it is loaded.

launch.install_early_sigint(__name__)

from absl import flags
import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from benchmarks.baselines import job as job_lib
from benchmarks.baselines import ours
from benchmarks.baselines import program
from tff_asr.execution import multi_device
from tff_asr.execution import native
from tff_asr.learning import fed_avg
from tff_asr.privacy import keys

_AT_ONCE = flags.DEFINE_integer(
    'at_once',
    None,
    'Clients that train at once on a device; by default each context chooses.',
    lower_bound=1,
)
_CONTEXT = flags.DEFINE_enum(
    'context', 'multi_device', ['multi_device', 'native'], 'Where rounds run.'
)


def main(_) -> None:
  # First: it chooses the threads of an op.
  context = _build_context()
  folder = program.JOB.value
  job = job_lib.load(folder)
  corpus = ours.load_corpus(folder)
  process = ours.build_process(
      job,
      corpus,
      # TFF's worker cannot call the host.
      noise_kernel='tensorflow' if _CONTEXT.value == 'native' else 'host',
  )
  cohort = corpus.locate_clients(corpus.client_ids)
  with tff.framework.get_context_stack().install(context):
    state = fed_avg.set_noise_key(process.initialize(), keys.draw())
    state = state._replace(global_model_weights=ours.load_weights(folder))
    clock = program.RoundClock()
    for _ in range(program.WARM_UPS.value + program.COUNT.value):
      state = process.next(state, cohort).state
      # A round's work is done when its weights are here.
      weights = tf.nest.map_structure(np.asarray, state.global_model_weights)
      clock.end(lambda: weights)  # pylint: disable=cell-var-from-loop


def _build_context() -> tff.framework.SyncContext:
  if _CONTEXT.value == 'native':
    return native.build_sync_context(
        max_concurrent_clients=_AT_ONCE.value, trust_network=True
    )
  return multi_device.build_sync_context(
      multi_device.Settings(clients_per_device=_AT_ONCE.value or 'auto')
  )


if __name__ == '__main__':
  launch.run(main, after_interrupt='the same command starts again.')

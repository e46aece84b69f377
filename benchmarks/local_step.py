r"""A local step by parts, against the machine's pace of matrix products.

    python -m benchmarks.local_step --num_blocks=8 --dim=512

The same batch goes through functions that each do more than the previous one:
logits, loss, gradients, clipped gradients, whole step. The time of a part is
the difference to the previous function, in the same turn. Features are
computed from the same seconds of audio. For comparison: the step without
dropout, and if asked for with bfloat16 activations (`--bfloat16`). The loss in
tensor ops (`scan`, for GPUs) has a row next to TensorFlow's op, on the same
logits.

`of the product's pace`: the operations of the step's matrix products, forward
and backward (`flops`), over its seconds, as a share of the pace at which
TensorFlow multiplies square matrices on the same threads (`limits`).
"""

from tff_asr import launch  # First: quiets TensorFlow before it is loaded.

launch.install_early_sigint(__name__)

import dataclasses
import statistics

from absl import flags
import numpy as np
import tensorflow as tf

from benchmarks import flops
from benchmarks import limits
from benchmarks import report
from benchmarks import turns
from benchmarks import workload as workload_lib
from tff_asr.data import pipeline as pipeline_lib
from tff_asr.features import log_mel
from tff_asr.learning import client_update
from tff_asr.models import ctc
from tff_asr.models import weights as weights_lib

_NUM_BLOCKS = flags.DEFINE_integer(
    'num_blocks', 8, 'Of the transformer.', lower_bound=1
)
_DIM = flags.DEFINE_integer(
    'dim', 512, 'Its width, a multiple of 4.', lower_bound=4
)
_BATCH = flags.DEFINE_integer('batch', 4, 'Utterances.', lower_bound=1)
_SEC = flags.DEFINE_float('sec', 10.0, 'Length of each.', lower_bound=1.0)
_DROPOUT = flags.DEFINE_float(
    'dropout', 0.1, 'Of the model.', lower_bound=0.0, upper_bound=0.9
)
_BFLOAT16 = flags.DEFINE_boolean(
    'bfloat16', False, 'Also with bfloat16 activations.'
)
_REPEATS = flags.DEFINE_integer(
    'repeats', 5, 'Turns that count.', lower_bound=1
)

_LABELS_A_SEC = 12
_PARTS = ('features', 'logits', 'loss', 'gradients', 'clipped', 'step')
_LOSSES = ('scan', 'op')
_WORDS = {
    'features': 'features',
    'logits': 'encoder and head, forward',
    'loss': 'CTC, with its gradient',
    'gradients': 'encoder and head, backward',
    'clipped': 'clip',
    'step': 'update',
}


def main(_) -> None:
  report.check_json_flag()
  if _DIM.value % 4:
    raise ValueError(f'--dim must be a multiple of 4, found {_DIM.value}.')
  sizes = workload_lib.Workload(
      num_blocks=_NUM_BLOCKS.value,
      dim=_DIM.value,
      num_clients=1,
      num_local_steps=1,
  )
  model = sizes.build_model(dropout=_DROPOUT.value)
  batch = workload_lib.build_batch(
      _BATCH.value, seconds=_SEC.value, labels_a_sec=_LABELS_A_SEC
  )
  runs = _functions(model, batch)
  if _DROPOUT.value:
    plain = sizes.build_model(dropout=0.0)
    runs['without dropout'] = _functions(plain, batch)['step']
  if _BFLOAT16.value:
    short = sizes.build_model(
        dropout=_DROPOUT.value, activation_dtype='bfloat16'
    )
    runs['with bfloat16'] = _functions(short, batch)['step']
  runs |= _losses(model)
  runs['product'], product_flops = limits.build_product()
  seconds = turns.measure(runs, repeats=_REPEATS.value)
  num_frames = batch['features'].shape[1]
  work = flops.step(
      batch_size=_BATCH.value,
      num_frames=num_frames,
      feature_dim=log_mel.NUM_MEL_BINS,
      num_blocks=_NUM_BLOCKS.value,
      dim=_DIM.value,
      mlp_dim=4 * _DIM.value,
      vocab_size=model.vocab_size,
  )
  paces = [product_flops / took for took in seconds['product']]
  parts = _parts(seconds)
  whole = [
      one + other for one, other in zip(seconds['features'], seconds['step'])
  ]
  shares = {
      name: statistics.median(turns.ratios(values, whole))
      for name, values in parts.items()
  }
  no_step = (*_PARTS, *_LOSSES, 'product')
  others = [name for name in runs if name not in no_step]
  ctc_ratios = turns.ratios(*(seconds[name] for name in _LOSSES))
  utilization = {
      name: [
          work / took / pace
          for took, pace in zip(seconds[name], paces, strict=True)
      ]
      for name in ('step', *others)
  }
  num_parameters = weights_lib.num_parameters(model.specs)
  report.write(
      f'{num_parameters / 1e6:.1f}M parameters, {_BATCH.value} utterances of '
      f'{_SEC.value:g} s, {work / 1e9:.0f} GFLOP a step; '
      f'{statistics.median(paces) / 1e9:.0f} GFLOP/s of products',
      [['', 'seconds', 'share', "of the product's pace"]]
      + [
          [_WORDS[name], report.spread(parts[name]),
           f'{shares[name]:.1%}', '']
          for name in _PARTS
      ]
      + [
          [
              'whole step' if name == 'step' else name,
              report.spread(seconds[name]),
              '',
              report.spread(utilization[name], '.0%'),
          ]
          for name in utilization
      ]
      + [
          [
              'CTC in tensor ops, over the op',
              report.spread(seconds[_LOSSES[0]]),
              f'{report.spread(ctc_ratios)} times',
              '',
          ]
      ],
      {
          'ctc_ratios': ctc_ratios,
          'num_parameters': num_parameters,
          'flops': work,
          'seconds': seconds,
          'shares': shares,
          'product_flops_per_sec': paces,
          'utilization': utilization,
      },
  )


def _parts(seconds: dict[str, list[float]]) -> dict[str, list[float]]:
  """Seconds of each part beyond the one before, turn by turn."""
  parts = {'features': seconds['features'], 'logits': seconds['logits']}
  for before, name in zip(_PARTS[1:], _PARTS[2:]):
    parts[name] = [
        one - other for one, other in zip(seconds[name], seconds[before])
    ]
  return parts


@dataclasses.dataclass
class _Call:
  """A compiled function on fixed arguments, that waits for its result."""

  function: tf.types.experimental.GenericFunction
  arguments: tuple

  def __call__(self) -> None:
    limits.wait(self.function(*self.arguments))


def _losses(model: ctc.CtcModel) -> dict[str, _Call]:
  """The kernels of `_LOSSES`, with gradients, on random logits."""
  size = _BATCH.value
  frames = tf.fill([size], log_mel.frames_of_seconds(_SEC.value))
  lengths = model.encoder.output_lengths(frames)
  num_labels = int(_LABELS_A_SEC * _SEC.value)
  generator = np.random.default_rng(1)
  logits = generator.normal(size=[size, int(lengths[0]), model.vocab_size])
  labels = generator.integers(0, 27, [size, num_labels])
  arguments = (
      tf.constant(logits, tf.float32),
      lengths,
      tf.constant(labels, tf.int32),
      tf.fill([size], num_labels),
  )

  def build(kernel: str) -> _Call:
    @tf.function(autograph=False)
    def gradient(logits, *others):
      with tf.GradientTape() as tape:
        tape.watch(logits)
        losses = ctc.loss(logits, *others, kernel=kernel)
      return tape.gradient(losses, logits)

    return _Call(gradient, arguments)

  return {kernel: build(kernel) for kernel in _LOSSES}


def _functions(
    model: ctc.CtcModel, batch: pipeline_lib.Batch
) -> dict[str, _Call]:
  """The functions of `_PARTS`; traced for batches of any size."""
  weights = model.initialize(tf.constant([1, 0]))

  def logits(weights, batch):
    return model.logits(
        weights, batch['features'], batch['feature_lengths'], batch['seed']
    )

  def loss(weights, batch):
    names = ('features', 'feature_lengths', 'labels', 'label_lengths', 'seed')
    return model.loss(weights, *(batch[name] for name in names))

  def gradients(weights, batch):
    return client_update.loss_gradients(
        model,
        weights,
        batch,
        num_utterances=tf.reduce_sum(batch['example_weights']),
    )

  def clipped(weights, batch):
    found, loss_sum = gradients(weights, batch)
    return client_update.clip_by_global_norm(found, max_norm=1.0), loss_sum

  step = workload_lib.build_step(model)
  specs = [weights_lib.tensor_specs(model.specs), pipeline_lib.batch_spec()]
  calls = {
      function.__name__: _Call(
          tf.function(function, input_signature=specs, autograph=False),
          (weights, batch),
      )
      for function in (logits, loss, gradients, clipped, step)
  }
  num_samples = int(_SEC.value * log_mel.SAMPLE_RATE_HZ)
  waveforms = np.random.default_rng(1).normal(
      0, 1000, [_BATCH.value, num_samples]
  )
  calls['features'] = _Call(
      tf.function(
          log_mel.log_mel,
          input_signature=[
              tf.TensorSpec([None, None], tf.int16),
              tf.TensorSpec([None], tf.int32),
          ],
          autograph=False,
      ),
      (
          tf.constant(waveforms, tf.int16),
          tf.fill([_BATCH.value], num_samples),
      ),
  )
  return calls


if __name__ == '__main__':
  launch.run(main, after_interrupt='the same command starts again.')

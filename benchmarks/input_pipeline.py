r"""The input pipeline alone: audio seconds a second, padding, and who waits.

    python -m benchmarks.input_pipeline
    python -m benchmarks.input_pipeline --data=SHARDS

By parts, over one pass of all clients as a local step's loop makes it: `read`
opens a client, reads, checks, shuffles and pads its records to chunks;
`prepare` sorts and packs them and has labels besides; `cut` makes the batches,
with features and SpecAugment.

Then a round trains a model on the same clients (one pass each). Of a client's
time there, `waited for data` is what its thread waited for the places of its
records, which are read while the client before is trained; `prepared` is an
estimate of what the loop spent on features, masks and cutting, from the parts
above. Without --data the corpus is noise, of lengths from a fifth to nine
fifths of 5 s.
"""

from tff_asr import launch  # First: quiets TensorFlow before it is loaded.

launch.begin(__name__)

from collections.abc import Callable
import contextlib
import dataclasses
import statistics
import tempfile

from absl import flags
import tensorflow as tf

from benchmarks import report
from benchmarks import turns
from benchmarks import workload as workload_lib
from tff_asr.data import client_data
from tff_asr.data import pipeline as pipeline_lib
from tff_asr.execution import multi_device
from tff_asr.features import log_mel
from tff_asr.features import spec_augment

_DATA = flags.DEFINE_string('data', None, 'Folder of shards; default: noise.')
_CLIENTS = flags.DEFINE_integer('clients', 8, 'At most.', lower_bound=1)
_NUM_BLOCKS = flags.DEFINE_integer(
    'num_blocks', 6, 'Of the transformer of the round.', lower_bound=1
)
_DIM = flags.DEFINE_integer(
    'dim', 256, 'Its width, a multiple of 4.', lower_bound=4
)
_BATCH_SEC = flags.DEFINE_float(
    'batch_sec', 40.0, 'Padded audio in a batch.', lower_bound=10.0
)
_MAX_PADDING = flags.DEFINE_float(
    'max_padding', 0.15, 'Of a batch.', lower_bound=0, upper_bound=1
)
_REPEATS = flags.DEFINE_integer(
    'repeats', 3, 'Turns that count.', lower_bound=1
)

_PARTS = ('read', 'prepare', 'cut')


def main(_) -> None:
  report.check_json_flag()
  if _DIM.value % 4:
    raise ValueError(f'--dim must be a multiple of 4, found {_DIM.value}.')
  sizes = workload_lib.Workload(
      num_blocks=_NUM_BLOCKS.value,
      dim=_DIM.value,
      num_clients=_CLIENTS.value,
      num_local_steps=1000,  # One pass ends before.
      utterance_sec=5.0,
      length_range=0.8,
      num_utterances=64,
      batch_sec=_BATCH_SEC.value,
  )
  with contextlib.ExitStack() as stack:
    if _DATA.value:
      clients = client_data.load(_DATA.value)
    else:
      folder = stack.enter_context(tempfile.TemporaryDirectory())
      clients = sizes.write_corpus(folder)
    cohort = sorted(clients.client_ids)[: _CLIENTS.value]
    pipeline = dataclasses.replace(
        sizes.build_pipeline(sizes.build_model()),
        augment=spec_augment.build(),
        max_padding=_MAX_PADDING.value,
    )
    passes = {
        part: _Pass(clients, cohort, _build(part, clients, pipeline))
        for part in _PARTS
    }
    round_run = _Round(sizes, clients, cohort, pipeline)
    seconds = turns.measure(
        {**passes, 'round': round_run}, repeats=_REPEATS.value
    )
  frames, padded, _ = passes['cut'].total.numpy()
  audio_sec = frames * log_mel.FRAME_SHIFT_SEC
  waited = round_run.waited[1:]
  prepared = [
      (cut - read) / whole
      for cut, read, whole in zip(
          seconds['cut'], seconds['read'], seconds['round'], strict=True
      )
  ]
  paces = {
      part: [audio_sec / took for took in seconds[part]]
      for part in (*_PARTS, 'round')
  }
  figures = {
      'audio_sec': audio_sec,
      'seconds': seconds,
      'audio_sec_per_sec': paces,
      'padding': 1 - frames / padded,
      'waited_for_data': waited,
      'prepared': prepared,
  }
  report.write(
      f'{len(cohort)} clients, {audio_sec:.0f} s of audio, batches of '
      f'{_BATCH_SEC.value:g} s; round: {sizes.num_parameters() / 1e6:.1f}M '
      'parameters',
      [['', 'figure']]
      + [
          [f'audio seconds a second: {part}',
           report.spread(values, '.0f')]
          for part, values in paces.items()
      ]
      + [
          ['frames that are padding', f'{figures["padding"]:.1%}'],
          ["of a client's time: waited for data",
           f'{statistics.median(waited):.1%}'],
          ["of a client's time: features, masks, cutting",
           f'{statistics.median(prepared):.1%}'],
      ],
      figures,
  )


def _build(
    part: str,
    clients: client_data.SpeechClientData,
    pipeline: pipeline_lib.Pipeline,
) -> Callable[[tf.Tensor], tf.Tensor]:
  """A client's pass: frames, padded frames, and a use of all values."""

  @tf.function(input_signature=[tf.TensorSpec([], tf.string)])
  def run(client_id):
    shuffled = pipeline.open(
        clients.places.serializable_dataset_fn(client_id),
        seed=tf.constant([1, 2]),
        num_epochs=1,
    )
    total = tf.zeros([3])
    for number in tf.range(shuffled.num_chunks):
      chunk = pipeline.read_chunk(shuffled, number, read=clients.read)
      if part == 'read':
        samples = tf.reduce_sum(tf.cast(chunk['length'], tf.float32))
        total += tf.stack([samples, 0.0, 0.0])
        continue
      prepared = pipeline.prepare(chunk, seed=shuffled.seed)
      if part == 'prepare':
        lengths = prepared.utterances['feature_lengths']
        total += tf.stack([_sum(lengths), 0.0, _sum(prepared.sounds)])
        continue
      for batch_num in tf.range(pipeline_lib.num_batches(prepared)):
        batch = pipeline.slice_batch(prepared, batch_num)
        size = tf.reduce_prod(tf.shape(batch['features'])[:2])
        used = tf.reduce_sum(batch['features'])
        total += tf.stack(
            [_sum(batch['feature_lengths']), tf.cast(size, tf.float32), used]
        )
    return total

  return run


def _sum(lengths: tf.Tensor) -> tf.Tensor:
  return tf.reduce_sum(tf.cast(lengths, tf.float32))


class _Pass:
  """A function over all clients.

  Attributes:
    total: The sum of what it returned in the last turn.
  """

  def __init__(self, clients, cohort, function):
    self._cohort = cohort
    self._function = function
    self.total = None

  def __call__(self) -> None:
    self.total = sum(self._function(tf.constant(name)) for name in self._cohort)
    self.total.numpy()


class _Round(workload_lib.Round):
  """A federated round of one pass a client, on one device.

  Attributes:
    waited: In each round, the share of the clients' time that they waited.
  """

  def __init__(self, sizes, clients, cohort, pipeline):
    process = sizes.build_process(
        clients, cohort_size=len(cohort), pipeline=pipeline, num_epochs=1
    )
    settings = multi_device.Settings(devices=['CPU:0'])
    context = multi_device.build_sync_context(settings)
    super().__init__(context, process, cohort)
    self.waited = []

  def __call__(self) -> None:
    super().__call__()
    timeline = self._context.last_timeline
    whole = sum(each.end_sec - each.start_sec for each in timeline)
    self.waited.append(sum(each.waited_sec for each in timeline) / whole)


if __name__ == '__main__':
  launch.run(main, after_interrupt='the same command begins anew.')

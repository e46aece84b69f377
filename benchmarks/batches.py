r"""Batches of made-up corpora: how full, of how many sizes, and who is in them.

    python -m benchmarks.batches

Nothing is trained and no audio is made: lengths are drawn like those of Common
Voice and LibriSpeech, and packed by the published loader's rule, rewritten
in NumPy (`theirs`: shuffle, sort a buffer, fill to the size), and by this
project's (`ours`). Central training has eight loaders, of every eighth
utterance each, and a step a batch of each.

A pass is of `--clients` clients, or, in central training, of their utterances.
Padded sizes and `area` are of batches padded to the buckets of
gin/data/pipeline.gin; the area is over that of batches padded to their
own longest utterance.
"""

from tff_asr import launch  # First: quiets TensorFlow before it is loaded.

launch.install_early_sigint(__name__)

from collections.abc import Callable, Iterator
import functools
from typing import NamedTuple

from absl import flags
import numpy as np
import tensorflow as tf

from benchmarks import report
from tff_asr.data import buckets as buckets_lib
from tff_asr.data import pipeline as pipeline_lib
from tff_asr.data import records
from tff_asr.features import log_mel
from tff_asr.models import subsampling
from tff_asr.privacy import keys
from tff_asr.programs import central
from tff_asr.text import tokenizer as tokenizer_lib

_CLIENTS = flags.DEFINE_integer(
    'clients', 400, 'Of a pass, at least 50.', lower_bound=50
)
_ROUNDS = flags.DEFINE_integer(
    'rounds', 100, 'Of the client of 3,000 utterances.', lower_bound=1
)

# Those of gin/data/pipeline.gin.
_BUCKETS = buckets_lib.LengthBuckets([
    2.5, 3.0, 3.6, 4.3, 5.2, 6.2, 7.4, 9.0, 10.8, 12.5, 14.0, 15.5, 17.0, 20.0,
    24.0, 30.0,
])
_NUM_LOADERS = 8

Batches = list[np.ndarray]


class Setting(NamedTuple):
  """How a corpus is trained on."""

  name: str
  clients: Callable[[np.random.Generator, int], list[np.ndarray]]
  batch_sec: float
  chunk_size: int
  is_central: bool


def common_voice_like(
    generator: np.random.Generator, num_clients: int
) -> list[np.ndarray]:
  """Clients' lengths in seconds: 10 of 5 s in the middle, many of few."""
  counts = np.ceil(generator.lognormal(np.log(10), 1.2, num_clients))
  return [
      generator.lognormal(np.log(5), 0.35, int(count)).clip(1.2, 12)
      for count in counts
  ]


def librispeech_like(
    generator: np.random.Generator, num_clients: int
) -> list[np.ndarray]:
  """Clients' lengths in seconds: 112 or so, most of them of 12 to 17 s."""

  def draw(count):
    usual = generator.normal(14.5, 1.4, count)
    short = generator.uniform(1.4, 14, count)
    long = generator.uniform(16, 30, count)
    kind = generator.random(count)
    lengths = np.where(kind < 0.7, usual, np.where(kind < 0.98, short, long))
    return lengths.clip(1.3, 30)

  counts = generator.normal(112, 10, num_clients).clip(20, 180)
  return [draw(int(count)) for count in counts]


SETTINGS = (
    Setting('common_voice', common_voice_like, 120.0, 64, False),
    Setting('librispeech', librispeech_like, 360.0, 64, False),
    Setting('central_common_voice', common_voice_like, 240.0, 512, True),
    Setting('central_librispeech', librispeech_like, 240.0, 512, True),
)


def samples(seconds: np.ndarray) -> np.ndarray:
  """Samples of lengths in seconds."""
  return (seconds * log_mel.SAMPLE_RATE_HZ).astype(np.int32)


def fill(lengths: np.ndarray, max_samples: int) -> Batches:
  """The published rule: sort, fill to the size. Indices into `lengths`."""
  order = np.argsort(lengths, kind='stable')
  batches, start = [], 0
  for end in range(1, len(order) + 1):
    if end == len(order) or (
        (end + 1 - start) * int(lengths[order[end]]) > max_samples
    ):
      batches.append(order[start:end])
      start = end
  return batches


@functools.lru_cache
def _starts(max_samples: int) -> Callable[[np.ndarray], tf.Tensor]:
  """`pipeline.batch_starts` of batches that are filled."""
  return tf.function(
      lambda lengths: pipeline_lib.batch_starts(
          lengths, max_samples, max_padding=1.0
      ),
      input_signature=[tf.TensorSpec([None], tf.int32)],
      autograph=False,
  )


def fill_ours(lengths: np.ndarray, max_samples: int) -> Batches:
  """Batches of `Pipeline.prepare` for a chunk, as indices into `lengths`."""
  order = np.argsort(lengths, kind='stable')
  starts = _starts(max_samples)(lengths[order]).numpy()
  return np.split(order, starts[1:])


def _chunks(count: int, size: int, order: np.ndarray) -> Iterator[np.ndarray]:
  for start in range(0, count, size):
    yield order[start : start + size]


def sources(setting: Setting, clients: list[np.ndarray]) -> list[np.ndarray]:
  """Units packed separately: clients, or in central training loaders."""
  if not setting.is_central:
    return clients
  utterances = np.concatenate(clients)
  return [utterances[i::_NUM_LOADERS] for i in range(_NUM_LOADERS)]


def theirs(
    setting: Setting, clients: list[np.ndarray], seed: int
) -> Batches:
  """Batches of a pass, in samples."""
  generator = np.random.default_rng(seed)
  batches = []
  for lengths in map(samples, sources(setting, clients)):
    order = generator.permutation(len(lengths))
    for chunk in _chunks(len(lengths), setting.chunk_size, order):
      found = fill(
          lengths[chunk], log_mel.samples_of_seconds(setting.batch_sec)
      )
      batches += [lengths[chunk][rows] for rows in found]
  return batches


def ours(setting: Setting, clients: list[np.ndarray], seed: int) -> Batches:
  """Batches of a pass, in samples."""
  batches = []
  for lengths in map(samples, sources(setting, clients)):
    order = _order(len(lengths), seed)
    for chunk in _chunks(len(lengths), setting.chunk_size, order):
      found = fill_ours(
          lengths[chunk], log_mel.samples_of_seconds(setting.batch_sec)
      )
      batches += [lengths[chunk][rows] for rows in found]
  return batches


def _order(num_records: int, seed: int) -> np.ndarray:
  """An order of central training; a client's is as random."""
  key = keys.derive(keys.from_seed(seed), purpose='central order')
  return central.permutation(num_records, key=key, pass_num=0)


def figures_of(setting: Setting, num_clients: int) -> dict[str, float]:
  """Figures of a pass, by name."""
  passes = [
      setting.clients(np.random.default_rng(seed), num_clients)
      for seed in (1, 2)
  ]
  found = {}
  for name, pack in (('theirs', theirs), ('ours', ours)):
    batches = pack(setting, passes[1], 1)
    used = sum(map(np.sum, batches))
    padded = sum(len(rows) * int(rows[-1]) for rows in batches)
    sizes = {
        (len(rows), int(log_mel.num_frames(rows)[-1])) for rows in batches
    }
    most = log_mel.samples_of_seconds(setting.batch_sec)
    found |= {
        f'{name} batches': len(batches),
        f'{name} fill': padded / most / len(batches),
        f'{name} padding': 1 - used / padded,
        f'{name} sizes': len(sizes),
    }
  lengths = [
      log_mel.num_frames(rows) for rows in ours(setting, passes[1], 1)
  ]
  own = sum(len(rows) * int(rows[-1]) for rows in lengths)
  padded = [
      _BUCKETS.padded_size(
          len(rows),
          int(rows[-1]),
          max_batch_frames=log_mel.frames_of_seconds(setting.batch_sec),
      )
      for rows in lengths
  ]
  return found | {
      'padded sizes': len(set(padded)),
      'area': sum(rows * frames for rows, frames in padded) / own,
  }


def seen(num_rounds: int) -> dict[str, float]:
  """How many of a client's 3,000 utterances are in 10 steps a round of 120 s.

  And how many that would be if each round drew as many of the utterances, each
  as likely as another (`expected`): a new order is drawn in each round.
  """
  count, num_steps, size = 3000, 10, 64
  lengths = samples(
      np.random.default_rng(1).lognormal(np.log(5), 0.35, count).clip(1.2, 12)
  )
  most = log_mel.samples_of_seconds(120.0)
  pipeline = pipeline_lib.Pipeline(
      tokenizer=tokenizer_lib.CharTokenizer(),
      output_lengths=subsampling.output_lengths_3x,
      max_batch_sec=120.0,
      chunk_size=size,
      read=lambda rows, max_samples: rows,
  )
  rows = tf.data.Dataset.from_tensor_slices(records.locations(
      tf.fill([count], 'client'),
      shard=tf.zeros([count], tf.int64),
      offset=tf.range(count, dtype=tf.int64),
  ))

  @tf.function(autograph=False)
  def first_chunks(seed):
    client = pipeline.open_client(rows, seed=seed)
    return tf.map_fn(
        lambda number: pipeline.read_chunk(client, number)[records.OFFSET],
        tf.range(num_steps),
        fn_output_signature=tf.TensorSpec([None], tf.int64),
    )

  used = {'theirs': set(), 'ours': set()}
  unseen = {name: float(count) for name in used}
  for round_num in range(num_rounds):
    generator = np.random.default_rng(round_num)
    orders = {
        'theirs': (fill, generator.permutation(count)),
        'ours': (
            fill_ours,
            first_chunks(tf.random.fold_in([1, 2], round_num)).numpy().ravel(),
        ),
    }
    for name, (pack, order) in orders.items():
      steps, now = 0, 0
      for chunk in _chunks(len(order), size, order):
        batches = pack(lengths[chunk], most)
        for number in generator.permutation(len(batches)):
          if steps < num_steps:
            used[name].update(chunk[batches[number]].tolist())
            now += len(batches[number])
            steps += 1
        if steps == num_steps:
          break
      unseen[name] *= 1 - now / count
  return {name: len(found) for name, found in used.items()} | {
      f'{name} expected': count - rest for name, rest in unseen.items()
  }


def shares(share: float = 0.12, count: int = 100_000) -> dict[str, float]:
  """Mean and largest share that one speaker has of a central step.

  The batches have 240 s, of eight loaders, shuffled by the published loader and
  by `order`; packed alike.

  Args:
    share: Share of the corpus that this speaker has.
    count: Utterances.
  """
  generator = np.random.default_rng(1)
  lengths = samples(generator.lognormal(np.log(5), 0.35, count).clip(1.2, 12))
  is_speaker = np.arange(count) < share * count
  part = count // _NUM_LOADERS
  shuffles = {
      'theirs': lambda loader: generator.permutation(part),
      'ours': lambda loader: _order(part, loader),
  }
  most = log_mel.samples_of_seconds(240.0)
  found = {}
  for name, shuffle in shuffles.items():
    loaders = []
    for loader in range(_NUM_LOADERS):
      order = loader + _NUM_LOADERS * shuffle(loader)
      loaders.append([
          is_speaker[chunk[rows]]
          for chunk in _chunks(part, 512, order)
          for rows in generator.permuted(
              np.array([*fill_ours(lengths[chunk], most), None], object)[:-1]
          )
      ])
    each = [np.mean(np.concatenate(step)) for step in zip(*loaders)]
    found |= {f'{name} mean': np.mean(each), f'{name} most': np.max(each)}
  return {name: float(value) for name, value in found.items()}


def main(_) -> None:
  report.check_json_flag()
  found = {
      setting.name: figures_of(setting, _CLIENTS.value) for setting in SETTINGS
  }
  used = seen(_ROUNDS.value)
  share = shares()
  table = [[
      '', 'batches, theirs/ours', 'fill', 'padding', 'sizes', 'padded sizes',
      'area',
  ]]
  for name, row in found.items():
    pair = lambda key, spec: '/'.join(
        format(row[f'{side} {key}'], spec) for side in ('theirs', 'ours')
    )
    table.append([
        name, pair('batches', ','), pair('fill', '.2f'),
        pair('padding', '.3f'), pair('sizes', ','), str(row['padded sizes']),
        f'{row["area"]:.2f}',
    ])
  report.write(
      f'{_CLIENTS.value} clients. Of 3,000 utterances in {_ROUNDS.value} rounds'
      f' of 10 steps: theirs {used["theirs"]:,} (expected'
      f' {used["theirs expected"]:,.1f}), ours {used["ours"]:,} (expected'
      f' {used["ours expected"]:,.1f}). A speaker of 12 %: most of a step'
      f' theirs {share["theirs most"]:.3f}, ours {share["ours most"]:.3f}.',
      table,
      {'passes': found, 'seen': used, 'shares': share},
  )


if __name__ == '__main__':
  launch.run(main)

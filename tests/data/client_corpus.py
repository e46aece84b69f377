"""A corpus of many clients with hardly any audio, written fast."""

import hashlib
import os

import numpy as np
import tensorflow as tf

from tff_asr.data import index
from tff_asr.data import schema


def write(folder: str, num_clients: int, *, num_samples: int) -> None:
  """Writes clients of one silent utterance each, ids as Common Voice's."""
  os.mkdir(folder)
  audio = np.zeros(num_samples, '<i2').tobytes()
  ids = [
      hashlib.sha512(str(i).encode()).hexdigest() for i in range(num_clients)
  ]
  offsets, offset = [], 0
  path = os.path.join(folder, index.shard_name(0))
  with tf.io.TFRecordWriter(path) as writer:
    for client_id in ids:
      record = schema.serialize(
          client_id=client_id,
          utterance_id='u',
          transcript='a',
          audio=audio,
          num_samples=num_samples,
      )
      writer.write(record)
      offsets.append(offset)
      offset += len(record) + 16
  ones = np.ones(num_clients, np.int64)
  with open(path, 'rb') as f:
    sha256 = hashlib.file_digest(f, 'sha256').hexdigest()
  index.write(
      folder,
      clients=index.Clients(
          ids, 0 * ones, np.arange(num_clients), ones, num_samples * ones
      ),
      offsets=np.array(offsets),
      shards=[index.Shard(index.shard_name(0), offset, sha256)],
      encoding='pcm',
      characters='a',
      origin={},
  )

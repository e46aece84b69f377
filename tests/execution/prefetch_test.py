"""Tests of tff_asr.execution.prefetch."""

import contextlib
import threading

from absl.testing import absltest
import numpy as np
import tensorflow as tf

from tff_asr.execution import prefetch

_ELEMENTS = [(tf.TensorSpec([None], tf.int16),)]
_TIMEOUT_SEC = 60


class _Source:
  """Clients' datasets; records who is read, and counts the elements made."""

  def __init__(self, sizes):
    self._sizes = sizes
    self.clients = []
    self.num_made = 0

  def read(self, client):
    self.clients.append(int(client))

    def make(size):
      self.num_made += 1
      return tf.fill([size], tf.constant(7, tf.int16))

    dataset = tf.data.Dataset.from_tensor_slices(self._sizes[int(client)]).map(
        lambda size: tf.ensure_shape(
            tf.numpy_function(make, [size], tf.int16), [None]
        )
    )
    return [tf.data.experimental.to_variant(dataset)]


def _build(read, **options):
  return prefetch.Reader(
      read,
      get_client=lambda key: [tf.constant(key)],
      num_threads=2,
      **(
          dict(
              elements=_ELEMENTS,
              computation='one',
              cache=prefetch.ClientCache(max_bytes=0),
          )
          | options
      ),
  )


def _lengths(variant):
  dataset = tf.data.experimental.from_variant(variant, _ELEMENTS[0])
  return [int(tf.size(element)) for (element,) in dataset]


class ClientCacheTest(absltest.TestCase):

  def test_the_latest_are_kept_up_to_the_bytes_each_once(self):
    cache = prefetch.ClientCache(max_bytes=10)

    def check(**expected):
      for key, value in expected.items():
        self.assertEqual(cache.get(key), value)

    cache.put('a', ['A'], 4)
    cache.put('a', ['another A'], 4)
    cache.put('b', ['B'], 4)
    check(a=['A'])  # Now later than b.
    cache.put('c', ['C'], 6)
    check(a=['A'], b=None, c=['C'])
    cache.put('d', ['D'], 11)  # Too large, and drives nothing out.
    check(a=['A'], c=['C'], d=None)
    cache.clear()
    check(a=None, c=None)
    cache.put('b', ['B'], 4)  # All bytes are free.
    cache.put('c', ['C'], 6)
    check(b=['B'], c=['C'])

  def test_ids_of_a_computation_are_keys_and_data_are_not(self):
    def key(computation, *values):
      return prefetch.key_of(computation, list(map(tf.constant, values)))

    keys = [
        key(0, 'speaker', 1), key(0, 'other', 1), key(0, 'speaker', 2),
        key(0, 'speaker', np.int64(1)), key(0, 'speaker'), key(1, 'speaker', 1),
    ]
    self.assertLen(set(keys), 6)
    self.assertEqual(key(0, 'speaker', 1), keys[0])
    dataset = tf.data.experimental.to_variant(tf.data.Dataset.range(3))
    for data in (dataset, tf.constant([1, 2])):
      self.assertIsNone(prefetch.key_of(0, [tf.constant('speaker'), data]))


class ReaderTest(absltest.TestCase):

  def test_elements_are_made_once_and_come_out_of_memory_in_order(self):
    source = _Source({5: [3, 1, 2], 6: []})
    with contextlib.closing(_build(source.read)) as reader:
      (dataset,) = reader.take(5)
      self.assertEqual(source.num_made, 3)
      for _ in range(2):
        self.assertEqual(_lengths(dataset), [3, 1, 2])
      self.assertEmpty(_lengths(*reader.take(6)))
    self.assertEqual(source.num_made, 3)

  def test_what_exceeds_the_limit_is_not_kept(self):
    # 100 samples of 2 bytes, and 4096 for each of 2 elements.
    for max_bytes, num_made in ((8392, 2), (8391, 4)):
      source = _Source({0: [60, 40]})
      with contextlib.closing(
          _build(source.read, max_bytes=max_bytes)
      ) as reader:
        self.assertEqual(_lengths(*reader.take(0)), [60, 40])
      self.assertEqual(source.num_made, num_made)

  def test_scalars_are_counted_together_and_kept_one_by_one(self):
    # 100 times 8 bytes, 2 of text and 4096 for the element.
    elements = (tf.TensorSpec([], tf.int64), tf.TensorSpec([], tf.string))
    dataset = tf.data.Dataset.range(100).map(lambda n: (n, 'ab'))
    for max_bytes, is_kept in ((410600, True), (410599, False)):
      cache = prefetch.ClientCache()
      with contextlib.closing(
          _build(
              lambda _: [tf.data.experimental.to_variant(dataset)],
              elements=[elements],
              max_bytes=max_bytes,
              cache=cache,
          )
      ) as reader:
        (found,) = reader.take(0)
      self.assertEqual(cache.get(('one', ('int32', 0))) is not None, is_kept)
      found = tf.data.experimental.from_variant(found, elements)
      self.assertEqual(
          list(found.as_numpy_iterator()), [(n, b'ab') for n in range(100)]
      )

  def test_a_client_is_read_while_nobody_waits_for_it(self):
    read = threading.Event()
    source = _Source({0: [1], 1: [2]})

    def read_and_tell(client):
      if int(client) == 1:
        read.set()
      return source.read(client)

    with contextlib.closing(_build(read_and_tell)) as reader:
      reader.take(0)
      reader.start(1)
      self.assertTrue(read.wait(_TIMEOUT_SEC))
      self.assertEqual(_lengths(*reader.take(1)), [2])
    self.assertEqual(source.num_made, 2)

  def test_what_was_begun_or_taken_is_not_begun_again(self):
    source = _Source({0: [1]})
    with contextlib.closing(_build(source.read)) as reader:
      reader.start(0)
      reader.start(0)
      reader.take(0)
      reader.start(0)
    self.assertEqual(source.clients, [0])
    self.assertEqual(source.num_made, 1)

  def test_a_kept_client_is_not_read_again_for_its_computation(self):
    source = _Source({0: [3, 1], 1: [2]})
    cache = prefetch.ClientCache()
    for computation in ('one', 'one', 'other'):
      with contextlib.closing(
          _build(source.read, computation=computation, cache=cache)
      ) as reader:
        self.assertEqual(_lengths(*reader.take(0)), [3, 1])
        self.assertEqual(_lengths(*reader.take(1)), [2])
    self.assertEqual(source.clients, [0, 1, 0, 1])

  def test_an_error_goes_to_whoever_takes_the_client_and_is_not_kept(self):
    source = _Source({0: [3]})
    errors = [OSError('the disk is away')] * 2

    def read(client):
      if errors:
        raise errors.pop()
      return source.read(client)

    with contextlib.closing(
        _build(read, cache=prefetch.ClientCache())
    ) as reader:
      reader.start(0)
      for _ in range(2):
        with self.assertRaisesRegex(OSError, 'the disk is away'):
          reader.take(0)
      self.assertEqual(_lengths(*reader.take(0)), [3])

  def test_closing_ends_reading_in_the_middle(self):
    started, closing = threading.Event(), threading.Event()
    num_made = 0

    def make():
      nonlocal num_made
      num_made += 1
      started.set()
      closing.wait(_TIMEOUT_SEC)
      return tf.constant([1], tf.int16)

    def read(_):
      dataset = tf.data.Dataset.range(10**6).map(
          lambda _: tf.ensure_shape(
              tf.numpy_function(make, [], tf.int16), [None]
          )
      )
      return [tf.data.experimental.to_variant(dataset)]

    reader = _build(read)
    reader.start(0)
    self.assertTrue(started.wait(_TIMEOUT_SEC))
    closer = threading.Thread(target=reader.close)
    closer.start()
    while not reader._closed.is_set():  # pylint: disable=protected-access
      pass
    closing.set()
    closer.join(_TIMEOUT_SEC)
    self.assertFalse(closer.is_alive())
    self.assertLessEqual(num_made, prefetch.ELEMENTS_AT_ONCE)

  def test_work_without_datasets_has_none_to_read(self):
    with contextlib.closing(_build(None)) as reader:
      reader.start(0)
      self.assertEmpty(reader.take(0))

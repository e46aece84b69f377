import threading

from absl.testing import absltest
import numpy as np
import tensorflow as tf

from tff_asr.execution import prefetch

_ELEMENTS = [(tf.TensorSpec([None], tf.int16),)]
_TIMEOUT_SEC = 60


class _Source:
  """Clients' datasets; counts how often each element is made."""

  def __init__(self, sizes):
    self._sizes = sizes
    self.num_made = 0

  def read(self, client):
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
      elements=_ELEMENTS,
      get_client=lambda key: [tf.constant(key)],
      num_threads=2,
      **(dict(cache=prefetch.ClientCache(0).part()) | options),
  )


def _lengths(variant):
  dataset = tf.data.experimental.from_variant(variant, _ELEMENTS[0])
  return [int(tf.size(element)) for (element,) in dataset]


class ClientCacheTest(absltest.TestCase):

  def setUp(self):
    super().setUp()
    self.cache = prefetch.ClientCache(max_bytes=10)

  def check(self, **expected):
    for key, value in expected.items():
      self.assertEqual(self.cache.get(key), value)

  def test_the_latest_are_kept_up_to_the_bytes(self):
    self.cache.put('a', ['A'], 4)
    self.cache.put('b', ['B'], 4)
    self.check(a=['A'])  # Now later than b.
    self.cache.put('c', ['C'], 6)
    self.check(a=['A'], b=None, c=['C'])
    self.cache.put('d', ['D'], 11)  # Too large, and drives nothing out.
    self.check(a=['A'], c=['C'], d=None)

  def test_the_bytes_of_a_client_read_twice_count_once(self):
    self.cache.put('a', ['A'], 5)
    self.cache.put('a', ['another A'], 5)
    self.cache.put('b', ['B'], 5)
    self.check(a=['A'], b=['B'])

  def test_nothing_is_kept_when_cleared(self):
    self.cache.put('a', ['A'], 6)
    self.cache.clear()
    self.check(a=None)
    # All bytes are free.
    self.cache.put('b', ['B'], 4)
    self.cache.put('c', ['C'], 6)
    self.check(b=['B'], c=['C'])

  def test_parts_share_the_bytes_and_no_key(self):
    one, other = self.cache.part(), self.cache.part()
    one.put('a', ['A'], 4)
    self.assertIsNone(other.get('a'))
    other.put('a', ['another A'], 4)
    self.assertEqual(one.get('a'), ['A'])
    self.assertEqual(other.get('a'), ['another A'])
    one.put('b', ['B'], 4)
    self.assertIsNone(one.get('a'))
    one.put(None, ['C'], 1)
    self.assertIsNone(one.get(None))

  def test_ids_are_keys_and_data_are_not(self):
    def key(*values):
      return prefetch.key_of(list(map(tf.constant, values)))

    keys = [
        key('speaker', 1), key('other', 1), key('speaker', 2),
        key('speaker', np.int64(1)), key('speaker'),
    ]
    self.assertLen(set(keys), 5)
    self.assertEqual(key('speaker', 1), keys[0])
    dataset = tf.data.experimental.to_variant(tf.data.Dataset.range(3))
    for data in (dataset, tf.constant([1, 2])):
      self.assertIsNone(prefetch.key_of([tf.constant('speaker'), data]))


class ReaderTest(absltest.TestCase):

  def test_elements_are_made_once_and_come_out_of_memory_in_order(self):
    source = _Source({5: [3, 1, 2]})
    reader = _build(source.read)
    self.addCleanup(reader.close)
    (dataset,) = reader.take(5)
    self.assertEqual(source.num_made, 3)
    for _ in range(2):
      self.assertEqual(_lengths(dataset), [3, 1, 2])
    self.assertEqual(source.num_made, 3)

  def test_what_exceeds_the_limit_is_not_kept(self):
    # 100 samples of 2 bytes, and 4096 for each of 2 elements.
    for max_bytes, num_made in ((8392, 2), (8391, 4)):
      source = _Source({0: [60, 40]})
      reader = _build(source.read, max_bytes=max_bytes)
      (dataset,) = reader.take(0)
      self.assertEqual(_lengths(dataset), [60, 40])
      self.assertEqual(source.num_made, num_made)
      reader.close()

  def test_no_elements_are_kept_as_none(self):
    reader = _build(_Source({0: []}).read)
    self.addCleanup(reader.close)
    self.assertEmpty(_lengths(*reader.take(0)))

  def test_a_client_is_read_while_nobody_waits_for_it(self):
    read = threading.Event()
    source = _Source({0: [1], 1: [2]})

    def read_and_tell(client):
      if int(client) == 1:
        read.set()
      return source.read(client)

    reader = _build(read_and_tell)
    self.addCleanup(reader.close)
    reader.take(0)
    reader.start(1)
    self.assertTrue(read.wait(_TIMEOUT_SEC))
    self.assertEqual(_lengths(*reader.take(1)), [2])
    self.assertEqual(source.num_made, 2)

  def test_what_was_begun_or_taken_is_not_begun_again(self):
    clients = []
    source = _Source({0: [1]})

    def read(client):
      clients.append(int(client))
      return source.read(client)

    reader = _build(read)
    reader.start(0)
    reader.start(0)
    reader.take(0)
    reader.start(0)
    reader.close()
    self.assertEqual(clients, [0])
    self.assertEqual(source.num_made, 1)

  def test_a_kept_client_is_not_read_again_by_another_reader(self):
    source = _Source({0: [3, 1], 1: [2]})
    cache = prefetch.ClientCache().part()
    for _ in range(2):
      reader = _build(source.read, cache=cache)
      self.assertEqual(_lengths(*reader.take(0)), [3, 1])
      self.assertEqual(_lengths(*reader.take(1)), [2])
      reader.close()
    self.assertEqual(source.num_made, 3)

  def test_what_could_not_be_read_is_not_kept(self):
    source = _Source({0: [3]})
    errors = [OSError('the disk is away')]

    def read(client):
      if errors:
        raise errors.pop()
      return source.read(client)

    reader = _build(read, cache=prefetch.ClientCache().part())
    self.addCleanup(reader.close)
    with self.assertRaisesRegex(OSError, 'the disk is away'):
      reader.take(0)
    self.assertEqual(_lengths(*reader.take(0)), [3])

  def test_an_error_of_reading_is_raised_to_whoever_takes_the_client(self):
    def read(client):
      raise ValueError(f'client {int(client)} has no data')

    reader = _build(read)
    self.addCleanup(reader.close)
    reader.start(3)
    for _ in range(2):
      with self.assertRaisesRegex(ValueError, 'client 3 has no data'):
        reader.take(3)

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
    self.assertLess(num_made, 10)

  def test_work_without_datasets_has_none_to_read(self):
    reader = _build(None)
    reader.start(0)
    self.assertEmpty(reader.take(0))
    reader.close()


if __name__ == '__main__':
  absltest.main()

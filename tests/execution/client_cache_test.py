from absl.testing import absltest
import tensorflow as tf

from tff_asr.execution import client_cache


class KeptClientsTest(absltest.TestCase):

  def test_the_latest_are_kept_up_to_the_bytes(self):
    kept = client_cache.KeptClients(max_bytes=10)
    kept.put('a', ['A'], 4)
    kept.put('b', ['B'], 4)
    self.assertEqual(kept.get('a'), ['A'])  # Now later than b.
    kept.put('c', ['C'], 6)
    self.assertEqual(kept.get('a'), ['A'])
    self.assertIsNone(kept.get('b'))
    self.assertEqual(kept.get('c'), ['C'])

  def test_what_is_too_large_drives_nothing_out(self):
    kept = client_cache.KeptClients(max_bytes=10)
    kept.put('a', ['A'], 10)
    kept.put('b', ['B'], 11)
    self.assertEqual(kept.get('a'), ['A'])
    self.assertIsNone(kept.get('b'))

  def test_the_bytes_of_a_client_read_twice_count_once(self):
    kept = client_cache.KeptClients(max_bytes=10)
    kept.put('a', ['A'], 5)
    kept.put('a', ['another A'], 5)
    kept.put('b', ['B'], 5)
    self.assertEqual(kept.get('a'), ['A'])
    self.assertEqual(kept.get('b'), ['B'])

  def test_parts_share_the_bytes_and_no_key(self):
    kept = client_cache.KeptClients(max_bytes=10)
    one, other = kept.part(), kept.part()
    one.put('a', ['A'], 4)
    self.assertIsNone(other.get('a'))
    other.put('a', ['another A'], 4)
    self.assertEqual(one.get('a'), ['A'])
    self.assertEqual(other.get('a'), ['another A'])
    one.put('b', ['B'], 4)
    self.assertIsNone(one.get('a'))
    one.put(None, ['C'], 1)
    self.assertIsNone(one.get(None))

  def test_nothing_is_kept_when_cleared(self):
    kept = client_cache.KeptClients(max_bytes=10)
    kept.put('a', ['A'], 6)
    kept.clear()
    self.assertIsNone(kept.get('a'))
    # All bytes are free.
    kept.put('b', ['B'], 4)
    kept.put('c', ['C'], 6)
    self.assertEqual(kept.get('b'), ['B'])

  def test_ids_are_keys_and_data_are_not(self):
    id_key = client_cache.key_of([tf.constant('speaker'), tf.constant(1)])
    self.assertEqual(
        id_key,
        client_cache.key_of([tf.constant('speaker'), tf.constant(1)]),
    )
    for other in (
        [tf.constant('other'), tf.constant(1)],
        [tf.constant('speaker'), tf.constant(1, tf.int64)],
        [tf.constant('speaker')],
    ):
      self.assertNotEqual(id_key, client_cache.key_of(other))
    dataset = tf.data.experimental.to_variant(tf.data.Dataset.range(3))
    for data in (dataset, tf.constant([1, 2])):
      self.assertIsNone(client_cache.key_of([tf.constant('speaker'), data]))

  def test_without_a_key_nothing_is_kept(self):
    kept = client_cache.KeptClients()
    kept.put(None, ['A'], 1)
    self.assertIsNone(kept.get(None))


if __name__ == '__main__':
  absltest.main()

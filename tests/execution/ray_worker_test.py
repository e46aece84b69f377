"""Tests of tff_asr.execution.ray_worker without a cluster, as an object."""

import functools
import os
import pathlib
import pickle
import shutil
from unittest import mock

from absl.testing import absltest
from absl.testing import parameterized
import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tests import cases
from tests.execution import toys
from tff_asr.execution import compiler
from tff_asr.execution import devices
from tff_asr.execution import ray_cluster
from tff_asr.execution import ray_sums

ray_cluster.require_token(None)  # Before Ray is imported.
ray = pytest.importorskip('ray')

from tff_asr.execution import ray_worker


def _compile(power: float):
  """Of <factor, values>: the sum of factor times each value to a power."""

  @tff.tensorflow.computation(np.float32, np.float32)
  def work(value, factor):
    return toys.scale(value, factor) * value ** (power - 1)

  @tff.federated_computation(toys.SERVER_FLOAT, toys.CLIENT_FLOAT)
  def comp(factor, values):
    factors = tff.federated_broadcast(factor)
    return tff.federated_sum(tff.federated_map(work, (values, factors)))

  return compiler.compile_computation(comp).clients


@functools.lru_cache
def _plain():
  return _compile(1.0)


@functools.lru_cache
def _exact():
  """Of values: their sum in int64."""

  @tff.tensorflow.computation(np.float32)
  def work(value):
    return tf.cast(value, tf.int64)

  return compiler.compile_computation(toys.sum_of(work)).clients


class _Driver:
  """A worker, and the store of objects that it looks references up in."""

  def __init__(self):
    self._store = {}
    self.looked_up = []
    self.worker = ray_worker.RayWorker()

  def get(self, reference):
    self.looked_up.append(reference)
    return pickle.loads(self._store[reference])

  def put(self, name, value):
    self._store[name] = pickle.dumps(value)
    return name

  def key(
      self, number, programs, *factors, computation=0, leaves_out=False
  ):
    """Of a round; a reference tells what it refers to."""
    return ray_worker.RoundInputs(
        number,
        computation,
        [self.put(f'programs {computation}', programs)],
        [
            self.put(f'broadcast {number}', list(map(np.float32, factors)))
        ],
        leaves_out,
    )

  def run_groups(self, key, groups, *, thread=0):
    """Report of `RayWorker.train` for groups of clients of these values."""
    inputs, begin = [], 0
    for values in groups:
      clients = [[np.float32(value)] for value in values]
      positions = tuple(range(begin, begin := begin + len(values)))
      inputs.append(ray_worker.GroupInputs(positions, clients))
    return self.worker.train(key, thread, inputs)

  def run(self, key, values, *, thread=0):
    """The same of one group, with its ordered sums."""
    report = self.run_groups(key, [values], thread=thread)
    return report._replace(ordered=report.ordered and report.ordered[0])


class _WorkerTest(absltest.TestCase):

  def setUp(self):
    super().setUp()
    self.driver = _Driver()
    self.enter_context(mock.patch.object(ray, 'get', self.driver.get))


class CacheTest(_WorkerTest):

  def check(self, key, values, expected):
    self.assertEqual(self.driver.run(key, values).ordered, expected)

  def test_broadcast_of_each_round_is_its_own(self):
    first, second = (
        self.driver.key(number, _plain(), factor)
        for number, factor in ((1, 2.0), (2, 5.0))
    )
    self.check(first, [1.0, 2.0], [6.0])
    self.check(first, [4.0], [8.0])
    self.check(second, [1.0, 2.0], [15.0])
    # Rounds may overlap: the first again, after the second began.
    self.check(first, [1.0], [2.0])
    self.driver.worker.end_round(1)
    self.check(second, [1.0], [5.0])
    self.assertEqual(
        self.driver.looked_up, ['programs 0', 'broadcast 1', 'broadcast 2']
    )

  def test_programs_of_each_computation_are_its_own(self):
    plain, squared = (
        self.driver.key(
            computation, _compile(power), 2.0, computation=computation
        )
        for computation, power in enumerate((1.0, 2.0))
    )
    for _ in range(2):
      self.check(plain, [3.0], [6.0])
      self.check(squared, [3.0], [18.0])
    self.assertEqual(
        self.driver.looked_up,
        [f'{what} {n}' for n in (0, 1) for what in ('programs', 'broadcast')],
    )

  def test_few_programs_are_kept(self):
    keys = [
        self.driver.key(number, _plain(), 1.0, computation=number)
        for number in range(ray_worker.MAX_LOADED + 1)
    ]
    for key in (*keys[:-1], keys[0], keys[-1], keys[0]):
      self.check(key, [1.0], [1.0])
      self.driver.worker.end_round(key.number)
      self.driver.worker._ended.clear()  # Numbers come again in this test.
    self.assertEqual(self.driver.looked_up.count('programs 0'), 2)
    self.assertEqual(self.driver.looked_up.count('programs 1'), 1)


class TrainTest(_WorkerTest):

  def test_clients_are_added_in_their_order(self):
    key = self.driver.key(1, _plain(), 1.0)
    # A float32 loses 1 when it is added to 1e8.
    for values, expected in (
        ([1e8, 1.0, -1e8], [0.0]), ([1e8, -1e8, 1.0], [1.0])
    ):
      self.assertEqual(self.driver.run(key, values).ordered, expected)

  def test_groups_that_come_together_have_their_own_ordered_sums(self):
    key = self.driver.key(1, _plain(), 1.0)
    # As one group of four they would be 1e8, then 0: see above.
    report = self.driver.run_groups(key, [[1e8, 1.0], [], [-1e8, 2.0]])
    self.assertEqual(report.ordered, [[1e8], [0.0], [-1e8]])
    self.assertGreater(report.seconds, 0)
    # The exact sum continues over groups, whether they come together or not.
    key = self.driver.key(2, _exact(), computation=1)
    self.driver.run_groups(key, [[1.0, 2.0], [4.0]])
    self.driver.run_groups(key, [[8.0]])
    self.assertEqual(self._flush(key), 15)

  def test_a_client_that_fails_ends_its_task_or_is_left_out_of_its_group(self):
    for leaves_out, expected in ((True, [[1.0], [4.0], [5.0]]), (False, None)):
      key = self.driver.key(1, _plain(), 1.0, leaves_out=leaves_out)
      report = self.driver.run_groups(key, [[1.0], [13.0, 4.0], [5.0]])
      self.assertEqual(report.ordered, expected)
      ((position, _),) = report.errors
      self.assertEqual(position, 1)

  def test_a_flush_adds_the_sums_of_all_threads_that_have_one(self):
    self.driver.worker._devices = devices.DeviceSet(('/device:CPU:0',), 3)
    for number, threads in enumerate(((1,), (2,), (0, 2), (1, 2), (0, 1, 2))):
      key = self.driver.key(number, _exact())
      for thread in threads:
        self.driver.run(key, [10.0**thread], thread=thread)
      self.assertEqual(
          self._flush(key), sum(10**thread for thread in threads)
      )

  def test_exact_sums_grow_until_they_are_flushed(self):
    key = self.driver.key(1, _exact())
    for _ in range(2):
      for values in ([1.0, 2.0], [4.0]):
        self.assertEqual(self.driver.run(key, values).ordered, [])
      self.assertEqual(self._flush(key), 7)
    self.driver.run(key, [5.0])
    other = key._replace(number=2)
    self.driver.run(other, [3.0])
    self.assertEqual(self._flush(other), 3)
    self.assertEqual(self._flush(key), 5)

  def _flush(self, key):
    """Returns the sum, of one int64, which travels in 4 bytes."""
    num_bytes, packed = self.driver.worker.flush(key)
    self.assertEqual(num_bytes, 4)
    (total,) = ray_sums.add([packed])
    self.assertEqual(total.dtype, np.int64)
    return int(total)

  def test_clients_that_fail_end_the_group_or_are_left_out(self):
    values = [1.0, 13.0, 4.0]
    for leaves_out, expected in ((True, [5.0]), (False, None)):
      key = self.driver.key(1, _plain(), 1.0, leaves_out=leaves_out)
      report = self.driver.run(key, values)
      self.assertEqual(report.ordered, expected)
      ((position, error),) = report.errors
      self.assertEqual(position, 1)
      self.assertIsInstance(error, tf.errors.InvalidArgumentError)
      self.assertIn('An unlucky client.', str(error))

  def test_an_error_that_does_not_pickle_travels_as_its_message(self):
    class LocalError(Exception):
      pass

    found = ray_worker._as_picklable(LocalError('here'))
    self.assertEqual(str(found), 'LocalError: here')
    self.assertIs(type(found), RuntimeError)

  def test_a_round_that_has_ended_trains_no_client(self):
    self.driver.worker.end_round(1)
    for number, expected in ((1, None), (2, [1.0])):
      key = self.driver.key(number, _plain(), 1.0)
      self.assertEqual(self.driver.run(key, [1.0]).ordered, expected)


def _expected(*paths, **changes):
  return ray_worker.describe_node(paths) | changes


class NodeTest(cases.TestCase):

  def check(self, expected, *, paths=(), libraries=()):
    ray_worker.check_node(
        'n1',
        expected=expected,
        required_paths=paths,
        op_libraries=libraries,
    )

  def test_missing_or_other_files_and_libraries_of_a_node_are_named(self):
    pathlib.Path(self.root, 'shard').touch()
    good, paths = _expected(self.root), [self.root]
    self.check(
        good,
        paths=paths,
        libraries=['tff_asr.execution.ray_worker:path_digest'],
    )
    for expected, options, message in (
        (good, dict(paths=['/no/shards']), "^Node n1 cannot read '/no/shards'"),
        (
            good | {f"files at '{self.root}'": 'x'},
            dict(paths=paths),
            f"^Node n1 differs .* files at '{self.root}' [0-9a-f]+ instead of",
        ),
        (
            good,
            dict(libraries=['no_such_library']),
            "^Node n1 cannot import 'no_such_library'",
        ),
    ):
      with self.assertRaisesRegex(ValueError, message):
        self.check(expected, **options)

  def test_all_software_that_differs_is_named_with_the_node(self):
    expected = _expected(numpy='2', ray='3')
    with self.assertRaisesRegex(
        ValueError, r'^Node n1 .*: ray \S+ instead of 3, numpy \S+ instead of'
    ):
      self.check(expected)
    self.assertContainsSubset(
        ('Python', 'tensorflow', 'tensorflow-federated', 'ray', 'numpy'),
        expected,
    )

  def test_a_copy_is_the_same_and_any_other_source_differs(self):
    package = pathlib.Path(ray_worker.__file__).parents[1]
    copy = pathlib.Path(self.path('elsewhere'))
    shutil.copytree(package, copy)

    def find(package):
      return ray_worker.path_digest(package, '*.py')

    self.assertEqual(find(copy), find(package))
    changed = copy / 'execution/ray_worker.py'
    text = changed.read_text('utf-8')
    for change in (
        lambda: changed.write_text(f'{text}# \n', 'utf-8'),
        lambda: changed.rename(copy / 'execution/other.py'),
        (copy / 'models/ctc.py').unlink,
    ):
      before = find(copy)
      change()
      self.assertNotEqual(find(copy), before)


class PathDigestTest(cases.TestCase):

  def setUp(self):
    super().setUp()
    self.folder = pathlib.Path(self.path('corpus'))
    (self.folder / 'part').mkdir(parents=True)
    (self.folder / 'corpus.json').write_text('{"sha256": "abc"}')
    (self.folder / 'part/shard').write_bytes(b'x' * 10)

  def test_a_copy_is_the_same(self):
    shutil.copytree(self.folder, self.path('elsewhere'))
    self.assertEqual(
        ray_worker.path_digest(self.path('elsewhere')),
        ray_worker.path_digest(self.folder),
    )

  def test_another_version_size_or_name_changes_the_digest(self):
    index, shard = self.folder / 'corpus.json', self.folder / 'part/shard'
    for path, change in (
        # Of the same names and sizes, with other checksums.
        (self.folder, lambda: index.write_text('{"sha256": "abd"}')),
        (self.folder, lambda: shard.write_bytes(b'x' * 9)),
        (shard, lambda: shard.write_bytes(b'x' * 8)),  # A file alone.
        (self.folder, lambda: shard.rename(self.folder / 'part/other')),
    ):
      before = ray_worker.path_digest(path)
      change()
      self.assertNotEqual(ray_worker.path_digest(path), before)

  def test_missing_or_unreadable_files_have_no_digest(self):
    with self.assertRaisesRegex(OSError, "nowhere'"):
      ray_worker.path_digest(self.path('nowhere'))
    os.symlink('nowhere', self.folder / 'part/dangling')
    with self.assertRaisesRegex(OSError, "dangling'"):
      ray_worker.path_digest(self.folder)


def _send(*tensors):
  packed = pickle.loads(pickle.dumps(ray_worker.pack(tensors)))
  return ray_worker.unpack(packed)


class PackTest(parameterized.TestCase):

  @parameterized.parameters(
      tf.float32, tf.bfloat16, tf.int32, tf.uint8, tf.bool, tf.complex64
  )
  def test_numbers_keep_bits_dtype_and_shape(self, dtype):
    for tensor in (tf.cast([[0, 1, 3]], dtype), tf.zeros([0, 3], dtype)):
      (found,) = _send(tensor)
      self.assertEqual(found.dtype, dtype)
      self.assertEqual(found.shape, tensor.shape)
      self.assertEqual(found.numpy().tobytes(), tensor.numpy().tobytes())

  def test_texts_and_scalars(self):
    sent = list(map(tf.constant, [2.0, b'\xff\x00', ['a', '', 'ä']]))
    for tensor, found in zip(sent, _send(*sent), strict=True):
      np.testing.assert_array_equal(tensor, found)

  def test_dataset_yields_the_same_elements(self):
    dataset = tf.data.Dataset.range(10).map(lambda x: x * x).batch(4)
    (variant,) = _send(tf.data.experimental.to_variant(dataset))
    found = tf.data.experimental.from_variant(variant, dataset.element_spec)
    self.assertEqual(
        [batch.numpy().tolist() for batch in found],
        [batch.numpy().tolist() for batch in dataset],
    )

"""Tests of tff_asr.storage.state_file and checkpoints."""

import asyncio
import collections
import os
import pathlib
import signal
import threading
from unittest import mock

from absl.testing import parameterized
import attrs
import ml_dtypes
import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tests import cases
from tests import fakes
from tff_asr.storage import checkpoints
from tff_asr.storage import state_file


_State = collections.namedtuple('_State', ['process', 'key', 'round_num'])


@attrs.define
class _Process:
  weights: object
  empty: tuple = ()


class _Reference(tff.program.MaterializableValueReference):
  """A value that becomes known later."""

  def __init__(self, value):
    self._value = value

  @property
  def type_signature(self):
    return tff.TensorType(np.float32, [2])

  async def get_value(self):
    await asyncio.sleep(0)
    return self._value


def _state(scale=1.0):
  return _State(
      process=_Process(
          collections.OrderedDict(
              w=np.arange(6, dtype=np.float32).reshape(2, 3) * scale,
              b=[np.float64(0.5), (np.int64(3),)],
          )
      ),
      key=np.array([1, -2, 3, 4], np.int32),
      round_num=7,
  )


def _assert_same(test, left, right):
  """Equal bit for bit, types included."""
  left = state_file._flatten(left)  # pylint: disable=protected-access
  right = state_file._flatten(right)  # pylint: disable=protected-access
  test.assertEqual(list(left), list(right))
  for path, value in left.items():
    other = right[path]
    test.assertIs(type(value), type(other), path)
    if hasattr(value, 'dtype'):
      test.assertEqual(value.dtype, other.dtype, path)
      test.assertEqual(value.shape, other.shape, path)
      test.assertEqual(value.tobytes(), other.tobytes(), path)
    else:
      test.assertEqual(repr(value), repr(other), path)


class StateFileTest(cases.TestCase):

  def setUp(self):
    super().setUp()
    self.path = os.path.join(self.root, 'state.bin')

  def _round_trip(self, state, structure=None):
    state_file.write_state(self.path, state=state)
    return state_file.read_state(
        self.path, structure=state if structure is None else structure
    )

  @parameterized.named_parameters(
      ('float32', np.array([1.5, -0.0, np.nan, np.inf, 1e-45], np.float32)),
      ('nan_payload', np.array([0x7FC00123], np.uint32).view(np.float32)),
      ('bfloat16', np.array([[1.5], [-3]], ml_dtypes.bfloat16)),
      ('bool', np.array([True, False])),
      ('complex', np.array([1 + 2j])),
      ('big_endian', np.array([1, 2], '>i4')),
      ('fixed_bytes', np.array([b'ab', b'c'])),
      ('unicode', np.array(['ä', 'xyz'])),
      ('empty', np.zeros([0, 3], np.float32)),
      ('array_scalar', np.array(3, np.int64)),
      ('transposed', np.arange(6).reshape(2, 3).T),
      ('strided', np.arange(10)[::3]),
      ('numpy_scalar', np.float32(0.1)),
      ('numpy_bool', np.bool_(True)),
      ('int', -(10**40)),
      ('float', float('nan')),
      ('small_float', 5e-324),
      ('bool_python', True),
      ('str', 'naïve \ud800 \n'),
      ('bytes', b'\x00\xff'),
      ('none', None),
  )
  def test_leaf_round_trips_bit_for_bit(self, leaf):
    _assert_same(self, self._round_trip({'x': leaf}), {'x': leaf})

  def test_structure_round_trips(self):
    state = _state()
    loaded = self._round_trip(state)
    self.assertIsInstance(loaded, _State)
    self.assertIsInstance(loaded.process, _Process)
    self.assertIsInstance(loaded.process.weights, collections.OrderedDict)
    self.assertEqual(loaded.process.empty, ())
    _assert_same(self, loaded, state)

  def test_loaded_arrays_can_be_written_to(self):
    self._round_trip(_state()).key[0] = 5

  def test_tensors_come_back_as_their_numpy_values(self):
    state = {
        'matrix': tf.constant([[1.0, 2.0]]),
        'scalar': tf.constant(3),
        'half': tf.constant([1.5], tf.bfloat16),
        'variable': tf.Variable([1.0]),
    }
    loaded = self._round_trip(state)
    self.assertEqual(
        tf.nest.map_structure(type, loaded),
        {
            'matrix': np.ndarray,
            'scalar': np.int32,
            'half': np.ndarray,
            'variable': np.ndarray,
        },
    )
    for name, value in state.items():
      np.testing.assert_array_equal(loaded[name], value.numpy())

  def test_tensor_and_array_of_one_type_are_interchangeable(self):
    loaded = self._round_trip(
        {'x': tf.constant([1.0])}, {'x': np.zeros([1], np.float32)}
    )
    self.assertEqual(loaded, {'x': np.float32([1])})

  @parameterized.named_parameters(
      ('leaves_of_one_chunk', 2**24), ('leaves_of_several_chunks', 5)
  )
  def test_every_flipped_byte_is_found_and_a_leafs_is_named(self, chunk_bytes):
    self.enterContext(
        mock.patch.object(state_file, '_CHUNK_BYTES', chunk_bytes)
    )
    state_file.write_state(self.path, state=_state())
    leaf = next(
        leaf for leaf in state_file.read_manifest(self.path)
        if leaf.path == 'process/weights/w'
    )
    good = pathlib.Path(self.path).read_bytes()
    padding = 0
    for position in range(len(good)):
      damaged = bytearray(good)
      damaged[position] ^= 0x10
      pathlib.Path(self.path).write_bytes(damaged)
      try:
        state_file.read_state(self.path, structure=_state())
        self.assertEqual(good[position], 0)  # between leaves: no data
        padding += 1
      except state_file.DamagedStateError as error:
        inside = leaf.offset <= position < leaf.offset + leaf.nbytes
        self.assertEqual("'process/weights/w'" in str(error), inside)
    self.assertLess(padding, 64 * 6)

  @parameterized.parameters(0, 1, 8, 60, -1, -24, -40)
  def test_cut_short_file_is_refused(self, size):
    state_file.write_state(self.path, state=_state())
    good = pathlib.Path(self.path).read_bytes()
    pathlib.Path(self.path).write_bytes(good[:size])
    with self.assertRaisesRegex(state_file.DamagedStateError, 'damaged'):
      state_file.read_state(self.path, structure=_state())

  @parameterized.named_parameters(
      ('shape', {'a': np.zeros(3)}, 'a: float64[2] in the file, float64[3] in'),
      ('dtype', {'a': np.zeros(2, np.float32)}, 'float32[2] in the program'),
      ('kind', {'a': 1}, 'int in the program'),
      ('missing', {'a': np.zeros(2), 'b': 1}, 'b: absent in the file, int in'),
      ('renamed', {'c': np.zeros(2)}, 'a: float64[2] in the file, absent in'),
  )
  def test_other_structure_is_refused_with_the_difference(
      self, structure, message
  ):
    state_file.write_state(self.path, state={'a': np.zeros(2)})
    with self.assertRaises(state_file.StateMismatchError) as context:
      state_file.read_state(self.path, structure=structure)
    self.assertIn(message, str(context.exception))

  def test_only_the_first_differences_are_shown(self):
    state_file.write_state(self.path, state=[1] * 9)
    with self.assertRaisesRegex(state_file.StateMismatchError, 'and 5 more'):
      state_file.read_state(self.path, structure=[1.0] * 9)

  @parameterized.named_parameters(
      ('object', {'x': object()}, "'x' is a object"),
      ('object_array', {'x': np.array([b'a'], object)}, 'ndarray of object'),
      ('same_path', {'a/b': 1, 'a': {'b': 2}}, "path 'a/b'"),
  )
  def test_what_cannot_be_stored_is_refused(self, state, message):
    with self.assertRaisesRegex(ValueError, message):
      state_file.write_state(self.path, state=state)
    self.assertFalse(os.path.exists(self.path))

  def test_leaves_are_read_by_prefix_without_a_structure(self):
    state_file.write_state(
        self.path, state={'model': {'w': np.ones(2), 'b': 1}, 'model2': 3}
    )
    self.assertCountEqual(
        state_file.read_leaves(self.path, prefix='model'),
        ['model/w', 'model/b'],
    )
    self.assertEqual(
        state_file.read_leaves(self.path, prefix='model/b'), {'model/b': 1}
    )
    self.assertLen(state_file.read_leaves(self.path), 3)
    with self.assertRaisesRegex(ValueError, 'no leaf under .mod.; it has mod'):
      state_file.read_leaves(self.path, prefix='mod')

  def test_full_disk_is_said_before_writing(self):
    folder = os.path.dirname(self.path)
    free = os.statvfs(folder).f_bavail * os.statvfs(folder).f_frsize
    # Takes no memory: one number seen as an array larger than the disk.
    state = np.broadcast_to(np.float32(0), [free // 4 + 1])
    with self.assertRaisesRegex(OSError, 'make room'):
      state_file.write_state(self.path, state={'x': state})
    self.assertEmpty(os.listdir(folder))


class StateManagerTest(cases.TestCase):

  def _manager(self, **kwargs):
    return checkpoints.StateManager(self.root, **kwargs)

  def test_save_and_load(self):
    manager = self._manager()
    self.assertIsNone(asyncio.run(manager.get_versions()))
    self.assertEqual(asyncio.run(manager.load_latest(_state())), (None, 0))
    for version in (0, 1):
      asyncio.run(manager.save(_state(1.0 + version), version))
    self.assertEqual(asyncio.run(manager.get_versions()), [0, 1])
    _assert_same(self, asyncio.run(manager.load(0, _state())), _state())
    loaded, version = asyncio.run(manager.load_latest(_state()))
    self.assertEqual(version, 1)
    _assert_same(self, loaded, _state(2.0))
    asyncio.run(manager.remove_all())
    self.assertIsNone(asyncio.run(manager.get_versions()))

  def test_value_references_are_materialized_also_inside_attrs(self):
    value = np.array([1, 2], np.float32)
    state = _Process(weights={'w': _Reference(value)})
    asyncio.run(self._manager().save(state, 3))
    structure = _Process(weights={'w': value})
    loaded = asyncio.run(self._manager().load(3, structure))
    np.testing.assert_array_equal(loaded.weights['w'], value)

  def test_existing_and_missing_versions_raise(self):
    manager = self._manager()
    asyncio.run(manager.save({'x': 1}, 4))
    with self.assertRaises(tff.program.ProgramStateExistsError):
      asyncio.run(manager.save({'x': 1}, 4))
    with self.assertRaises(tff.program.ProgramStateNotFoundError):
      asyncio.run(manager.load(5, {'x': 1}))

  @parameterized.parameters(
      (1, 0, [9]), (3, 0, [7, 8, 9]), (2, 4, [0, 4, 8, 9]), (99, 1, range(10))
  )
  def test_keeps_last_and_every_nth(self, keep_last, keep_every, expected):
    manager = self._manager(keep_last=keep_last, keep_every=keep_every)
    for version in range(10):
      asyncio.run(manager.save({'x': version}, version))
    self.assertEqual(asyncio.run(manager.get_versions()), list(expected))

  def test_damaged_version_is_passed_over_and_said(self):
    manager = self._manager()
    for version in (1, 2):
      asyncio.run(manager.save({'x': np.full(4, version)}, version))
    fakes.damage(manager.path(2), offset=64)
    with self.assertLogs(level='ERROR') as logs:
      loaded, version = asyncio.run(
          manager.load_latest({'x': np.zeros(4, int)})
      )
    self.assertEqual(version, 1)
    np.testing.assert_array_equal(loaded['x'], np.ones(4))
    self.assertRegex(logs.output[0], "leaf 'x' does not have its checksum")
    # The number is free again.
    asyncio.run(manager.save({'x': np.full(4, 2)}, 2))
    self.assertEqual(asyncio.run(manager.get_versions()), [1, 2])

  def test_all_damaged_does_not_start_anew(self):
    manager = self._manager()
    asyncio.run(manager.save({'x': 1}, 1))
    os.truncate(manager.path(1), 20)
    with self.assertRaisesRegex(state_file.DamagedStateError, 'All 1 saved'):
      asyncio.run(manager.load_latest({'x': 1}))

  def test_other_configuration_is_refused_not_passed_over(self):
    manager = self._manager()
    asyncio.run(manager.save({'x': 1}, 1))
    with self.assertRaises(state_file.StateMismatchError):
      asyncio.run(manager.load_latest({'x': 1.0}))
    self.assertEqual(asyncio.run(manager.get_versions()), [1])

  @parameterized.named_parameters(
      # run_state_test has the other steps.
      ('inside_a_leaf', 'zlib.crc32', 4),
      ('before_the_rename', 'os.replace', 1),
  )
  def test_kill_while_writing_leaves_a_whole_state(self, where, call):
    manager = self._manager()
    asyncio.run(manager.save({'x': np.full(1 << 23, 1)}, 1))
    child = os.fork()
    if not child:  # the process to be killed, inside its `call`-th call
      calls = []

      def kill(*unused_args):
        calls.append(1)
        if len(calls) == call:
          os.kill(os.getpid(), signal.SIGKILL)
        return 0

      try:
        with mock.patch(where, kill):
          asyncio.run(manager.save({'x': np.full(1 << 23, 2)}, 2))
      finally:
        os._exit(1)  # not reached  # pylint: disable=protected-access
    _, status = os.waitpid(child, 0)
    self.assertEqual(os.WTERMSIG(status), signal.SIGKILL)
    loaded, version = asyncio.run(self._manager().load_latest(
        {'x': np.zeros(1 << 23, int)}
    ))
    self.assertEqual(version, 1)
    self.assertTrue((loaded['x'] == version).all())
    asyncio.run(self._manager().save({'x': 1}, 3))
    self.assertFalse(
        [name for name in os.listdir(self.root) if 'partial' in name]
    )


class _Manager:
  """Keeps what is saved; writing waits until it may, and may fail."""

  def __init__(self):
    self.saved = {}
    self.may_write = threading.Event()
    self.may_write.set()
    self.error = None

  async def save(self, state, version):
    await asyncio.to_thread(self.may_write.wait)
    if self.error is not None:
      raise self.error
    self.saved[version] = state


class SaverTest(parameterized.TestCase):

  def setUp(self):
    super().setUp()
    self.manager = _Manager()

  def saver(self) -> checkpoints.Saver:
    return checkpoints.Saver(self.manager.save, last=0)

  def test_writing_overlaps_what_follows_and_ends_with_the_context(self):

    async def run():
      self.manager.may_write.clear()
      async with self.saver() as saver:
        await saver.save('a', 1)
        self.assertEmpty(self.manager.saved)
        self.manager.may_write.set()
        await saver.save('b', 2)  # Waits for the first.
        self.assertIn(1, self.manager.saved)

    asyncio.run(run())
    self.assertEqual(self.manager.saved, {1: 'a', 2: 'b'})

  def test_a_version_is_saved_once(self):

    async def run():
      async with self.saver() as saver:
        await saver.save('again', 0)
        await saver.save('a', 1)
        await saver.save('again', 1)

    asyncio.run(run())
    self.assertEqual(self.manager.saved, {1: 'a'})

  @parameterized.parameters(asyncio.CancelledError, ValueError)
  def test_a_run_that_is_interrupted_or_fails_saves_what_it_has(self, kind):

    async def run():
      async with self.saver() as saver:
        await saver.save('a', 1)
        saver.offer('b', 2)
        raise kind('diverged')

    with self.assertRaisesRegex(kind, 'diverged'):
      asyncio.run(run())
    self.assertEqual(self.manager.saved, {1: 'a', 2: 'b'})

  def test_a_run_that_failed_says_so_also_on_a_full_disk(self):

    async def run():
      async with self.saver() as saver:
        saver.offer('b', 2)
        self.manager.error = OSError('disk full')
        raise ValueError('diverged')

    with self.assertLogs('absl', 'WARNING') as logs:
      with self.assertRaisesRegex(ValueError, 'diverged'):
        asyncio.run(run())
    self.assertIn('could not be saved: disk full', logs.output[0])

  @parameterized.parameters(True, False)
  def test_a_full_disk_ends_the_run_at_the_next_look_or_its_end(self, looks):

    async def run():
      async with self.saver() as saver:
        self.manager.error = OSError('disk full')
        await saver.save('a', 1)
        while looks:
          await asyncio.sleep(0.01)
          saver.check()

    with self.assertRaisesRegex(OSError, 'disk full'):
      asyncio.run(run())

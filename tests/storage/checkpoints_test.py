"""Tests of tff_asr.storage.checkpoints."""

import asyncio
import os
import signal
import threading
from unittest import mock

from absl.testing import parameterized
import attrs
import numpy as np
import tensorflow_federated as tff

from tests import cases
from tests import fakes
from tff_asr.storage import checkpoints
from tff_asr.storage import state_file
from tff_asr.storage import tensor_file


@attrs.define
class _Process:
  weights: object


def _state(scale: float = 1.0) -> dict:
  return {'w': np.arange(6, dtype=np.float32) * scale, 'round_num': 7}


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
    loaded = asyncio.run(manager.load(0, _state()))
    np.testing.assert_array_equal(loaded['w'], _state()['w'])
    loaded, version = asyncio.run(manager.load_latest(_state()))
    self.assertEqual(version, 1)
    np.testing.assert_array_equal(loaded['w'], _state(2.0)['w'])
    asyncio.run(manager.remove_all())
    self.assertIsNone(asyncio.run(manager.get_versions()))

  def test_value_references_are_materialized_also_inside_attrs(self):
    value = np.array([1, 2], np.float32)
    state = _Process({'w': _Reference(value)})
    asyncio.run(self._manager().save(state, 3))
    structure = _Process({'w': value})
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

  def test_a_damaged_version_is_refused_and_the_one_before_stays(self):
    manager = self._manager()
    for version in (1, 2):
      asyncio.run(manager.save({'x': np.full(4, version)}, version))
    size = os.path.getsize(manager.path(2))
    fakes.damage(manager.path(2), offset=size - 1)
    with self.assertRaisesRegex(
        tensor_file.DamagedFileError,
        '00000002.* does not match its checksum. Restore it, or remove it to',
    ):
      asyncio.run(manager.load_latest({'x': np.zeros(4, int)}))
    os.remove(manager.path(2))
    loaded, version = asyncio.run(
        manager.load_latest({'x': np.zeros(4, int)})
    )
    self.assertEqual(version, 1)
    np.testing.assert_array_equal(loaded['x'], np.ones(4))

  def test_an_interrupt_leaves_a_state_and_its_secrets_whole(self):
    secrets = os.path.join(self.root, 'secrets')
    manager = checkpoints.StateManager(
        os.path.join(self.root, 'states'), secrets_path=secrets
    )
    begun, may_go_on = threading.Event(), threading.Event()
    real = state_file.write

    def write(path, state):
      begun.set()
      may_go_on.wait(20.0)
      real(path, state)

    async def run():
      task = asyncio.ensure_future(
          manager.save({'a': np.ones(3)}, 1, secrets=(b'key',))
      )
      await asyncio.to_thread(begun.wait, 20.0)
      task.cancel()
      may_go_on.set()
      await task

    with mock.patch.object(state_file, 'write', write):
      with self.assertRaises(asyncio.CancelledError):
        asyncio.run(run())
    loaded = asyncio.run(manager.load(1, {'a': np.zeros(3)}))
    np.testing.assert_array_equal(loaded['a'], np.ones(3))
    self.assertEqual(manager.read_secrets((b'',)), (b'key',))

  def test_a_state_of_another_configuration_is_an_error(self):
    manager = self._manager()
    asyncio.run(manager.save({'x': 1}, 1))
    with self.assertRaises(state_file.StateMismatchError):
      asyncio.run(manager.load_latest({'x': 1.0}))
    self.assertEqual(asyncio.run(manager.get_versions()), [1])

  @parameterized.named_parameters(
      # run_state_test has the other steps.
      ('before_the_sync', 'os.fsync'),
      ('before_the_rename', 'os.replace'),
  )
  def test_kill_while_writing_leaves_a_whole_state(self, where):
    manager = self._manager()
    asyncio.run(manager.save({'x': np.full(1 << 23, 1)}, 1))
    child = os.fork()
    if not child:  # the process to be killed
      kill = lambda *unused_args: os.kill(os.getpid(), signal.SIGKILL)
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
    asyncio.run(self._manager().save({'x': 1}, 2))
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

  def test_states_are_written_in_the_background_until_the_context_ends(self):

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
  def test_an_interrupted_or_failed_run_saves_its_newest_state(self, kind):

    async def run():
      async with self.saver() as saver:
        await saver.save('a', 1)
        saver.offer('b', 2)
        raise kind('diverged')

    with self.assertRaisesRegex(kind, 'diverged'):
      asyncio.run(run())
    self.assertEqual(self.manager.saved, {1: 'a', 2: 'b'})

  @parameterized.parameters('save', 'wait', 'end')
  def test_an_interrupt_while_a_state_is_written_loses_no_state(self, where):

    async def run():
      self.manager.may_write.clear()
      task, loop = asyncio.current_task(), asyncio.get_running_loop()
      async with self.saver() as saver:
        await saver.save('a', 1)
        saver.offer('b', 2)
        loop.call_later(0.05, task.cancel)
        # Later than the interrupt.
        loop.call_later(0.2, self.manager.may_write.set)
        if where == 'save':
          await saver.save('b', 2)
        if where == 'wait':
          await saver.wait()

    with self.assertRaises(asyncio.CancelledError):
      asyncio.run(run())
    self.assertEqual(self.manager.saved, {1: 'a', 2: 'b'})

  def test_a_failed_run_raises_its_own_error_on_a_full_disk(self):

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
  def test_a_full_disk_ends_the_run_at_the_next_check_or_its_end(self, looks):

    async def run():
      async with self.saver() as saver:
        self.manager.error = OSError('disk full')
        await saver.save('a', 1)
        while looks:
          await asyncio.sleep(0.01)
          saver.check()

    with self.assertRaisesRegex(OSError, 'disk full'):
      asyncio.run(run())

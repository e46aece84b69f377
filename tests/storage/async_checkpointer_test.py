"""Tests of tff_asr.storage.async_checkpointer."""

import asyncio
import threading

from absl.testing import absltest

from tff_asr.storage import async_checkpointer


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


class SaverTest(absltest.TestCase):

  def setUp(self):
    super().setUp()
    self.manager = _Manager()

  def saver(self) -> async_checkpointer.Saver:
    return async_checkpointer.Saver(self.manager, saved=0)

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

  def test_an_interrupted_run_saves_what_it_has(self):

    async def run():
      async with self.saver() as saver:
        await saver.save('a', 1)
        saver.offer('b', 2)
        asyncio.current_task().cancel()
        await asyncio.sleep(60)

    with self.assertRaises(asyncio.CancelledError):
      asyncio.run(run())
    self.assertEqual(self.manager.saved, {1: 'a', 2: 'b'})

  def test_a_failed_run_saves_what_it_has(self):

    async def run():
      async with self.saver() as saver:
        await saver.save('a', 1)
        saver.offer('b', 2)
        raise ValueError('diverged')

    with self.assertRaisesRegex(ValueError, 'diverged'):
      asyncio.run(run())
    self.assertEqual(self.manager.saved, {1: 'a', 2: 'b'})

  def test_what_is_withdrawn_is_not_saved(self):

    async def run():
      async with self.saver() as saver:
        saver.offer('b', 2)
        saver.withdraw()
        raise ValueError('diverged')

    with self.assertRaisesRegex(ValueError, 'diverged'):
      asyncio.run(run())
    self.assertEmpty(self.manager.saved)

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

  def test_a_full_disk_ends_the_run_at_the_next_look(self):

    async def run():
      async with self.saver() as saver:
        self.manager.error = OSError('disk full')
        await saver.save('a', 1)
        while True:
          await asyncio.sleep(0.01)
          saver.check()

    with self.assertRaisesRegex(OSError, 'disk full'):
      asyncio.run(run())

  def test_a_full_disk_at_the_end_is_no_good_end(self):

    async def run():
      async with self.saver() as saver:
        self.manager.error = OSError('disk full')
        await saver.save('a', 1)

    with self.assertRaisesRegex(OSError, 'disk full'):
      asyncio.run(run())


if __name__ == '__main__':
  absltest.main()

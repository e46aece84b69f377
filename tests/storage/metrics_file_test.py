"""Tests of tff_asr.storage.metrics_file."""

import asyncio
import os
import pathlib

from absl.testing import parameterized

from tests import cases
from tff_asr.storage import metrics_file


class MetricsFileTest(cases.TestCase):

  def setUp(self):
    super().setUp()
    self.path = os.path.join(self.root, 'metrics.csv')

  def release(self, rows, *, last: int = 0) -> None:
    manager = metrics_file.MetricsFile(self.path, last=last)

    async def run():
      for key, row in rows.items():
        await manager.release(row, key)

    asyncio.run(run())

  def text(self) -> str:
    return pathlib.Path(self.path).read_text()

  def test_rows_follow_each_other_and_new_columns_come_last(self):
    self.release({1: {'a': 0.5}, 2: {'a': 2.0, 'b': 1e-7}, 3: {'a': 3.0}})
    self.assertEqual(self.text(), 'round,a,b\n1,0.5,\n2,2.0,1e-07\n3,3.0,\n')
    self.assertEqual(metrics_file.read(self.path)['b'], {2: 1e-7})

  def test_a_resumed_run_has_each_round_once(self):
    rows = {number: {'a': float(number)} for number in range(1, 13)}
    rows[10]['b'] = 1.0
    self.release(rows)
    whole = self.text()
    # Saved at 8, killed after any later round, resumed: the same file.
    for killed in range(8, 13):
      os.remove(self.path)
      self.release({key: rows[key] for key in range(1, killed + 1)})
      self.release({key: rows[key] for key in range(9, 13)}, last=8)
      self.assertEqual(self.text(), whole, killed)

  def test_events_go_through_no_link_that_leads_nowhere_yet(self):
    folder = os.path.join(self.root, 'tensorboard')
    os.mkdir(folder)
    other = os.path.join(self.root, 'other')
    os.symlink(other, os.path.join(folder, 'events.out.tfevents.0'))
    manager = metrics_file.TensorBoardFile(folder, with_times=False)
    asyncio.run(manager.release({'a': 1.0}, 1))
    self.assertFalse(os.path.exists(other))
    self.assertGreater(
        os.path.getsize(os.path.join(folder, 'events.out.tfevents.1')), 0
    )

  def test_a_row_is_on_disk_when_release_returns(self):
    manager = metrics_file.MetricsFile(self.path, last=0)

    async def run():
      await manager.release({'a': 1.0}, 1)
      self.assertEqual(self.text(), 'round,a\n1,1.0\n')
      await manager.release({'a': 2.0}, 2)
      self.assertEqual(self.text(), 'round,a\n1,1.0\n2,2.0\n')

    asyncio.run(run())

  @parameterized.parameters(
      'key,a\n1,2\n', 'round,a\nx,2\n', 'round,a\n1,2,3\n',
      'round,a\n1,"2\n', 'round\n\0\n',
  )
  def test_other_files_are_refused(self, text):
    pathlib.Path(self.path).write_text(text)
    with self.assertRaisesRegex(ValueError, 'does not contain the metrics'):
      metrics_file.MetricsFile(self.path, last=0)
    self.assertEqual(self.text(), text)

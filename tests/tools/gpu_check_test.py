"""The check of GPU machines runs on CPUs and continues after a failure."""

import os
import re
import tempfile
from unittest import mock

from absl import flags
from absl.testing import absltest
from absl.testing import flagsaver
import pytest
import tensorflow as tf

from tff_asr.models import ctc
from tools import gpu_check


class GpuCheckTest(absltest.TestCase):

  def setUp(self):
    super().setUp()
    flags.FLAGS.mark_as_parsed()

  @pytest.mark.slow
  def test_each_row_passes_on_a_cpu(self):
    results = {
        name: gpu_check.run_row(run)
        for name, run in gpu_check.Check('CPU', is_small=True).rows()
    }
    one = len(tf.config.list_logical_devices('CPU')) == 1
    for name, (result, found) in results.items():
      with self.subTest(name):
        if one and 'on all devices' in name:
          self.assertEqual((result, found), ('not run', 'one CPU'))
        else:
          self.assertEqual(result, 'passed', found)

  def test_a_failure_is_named_and_stops_no_other_row(self):
    folder = self.enterContext(tempfile.TemporaryDirectory())
    path = os.path.join(folder, 'table.md')
    loss = ctc.loss
    wrong = lambda *args, kernel: (
        loss(*args, kernel=kernel) * (1.0 if kernel == 'op' else 1.1)
    )
    self.enterContext(mock.patch.object(ctc, 'loss', wrong))
    few = [
        (name, run)
        for name, run in gpu_check.Check('CPU', is_small=True).rows()
        if not re.search('XLA|step|round|clients', name)
    ]
    self.enterContext(mock.patch.object(gpu_check.Check, 'rows', lambda _: few))
    self.enterContext(
        flagsaver.flagsaver(device='cpu', small=True, output=path)
    )
    with self.assertRaisesRegex(ValueError, "^failed: CTC 'scan' equals 'op';"):
      gpu_check.main([])
    with open(path, encoding='utf-8') as file:
      heading, _, *rows = file.read().splitlines()
    self.assertEqual(heading, '| check | result | found | took, s |')
    results = {
        name: [result, found]
        for name, result, found in (
            re.split(r' *\| *', row)[1:4] for row in rows
        )
    }
    result, found = results.pop("CTC 'scan' equals 'op'")
    self.assertEqual(result, 'FAILED')
    self.assertRegex(found, r'differ by 0\.')
    self.assertContainsSubset(['machine', 'gradients as on the CPU'], results)
    self.assertEqual({result for result, _ in results.values()}, {'passed'})

  def test_no_row_begins_late(self):
    self.enterContext(
        flagsaver.flagsaver(device='cpu', small=True, limit_sec=0.0)
    )
    rows = [('one', mock.Mock(side_effect=AssertionError))]
    self.enterContext(
        mock.patch.object(gpu_check.Check, 'rows', lambda _: rows)
    )
    gpu_check.main([])
    self.assertFalse(rows[0][1].called)

  def test_an_interrupt_keeps_the_rows_before_it(self):
    path = os.path.join(
        self.enterContext(tempfile.TemporaryDirectory()), 'table.md'
    )
    rows = [
        ('one', lambda: 'this'),
        ('two', mock.Mock(side_effect=KeyboardInterrupt)),
    ]
    self.enterContext(
        flagsaver.flagsaver(device='cpu', small=True, output=path)
    )
    self.enterContext(
        mock.patch.object(gpu_check.Check, 'rows', lambda _: rows)
    )
    with self.assertRaises(KeyboardInterrupt):
      gpu_check.main([])
    with open(path, encoding='utf-8') as file:
      self.assertRegex(file.read(), r'\| one \| passed \| this \| [\d.]+ \|$')

  def test_ctc_kernels_agree(self):
    check = gpu_check.Check('CPU', is_small=True)
    self.assertRegex(check._ctc(), '^within [^;]+; op [^,]+, scan')

  def test_no_gpu_is_one_clear_line(self):
    if tf.config.list_physical_devices('GPU'):
      self.skipTest('There is a GPU.')
    with flagsaver.flagsaver(device='gpu'):
      with self.assertRaisesRegex(ValueError, 'No GPU was found.*nvidia-smi'):
        gpu_check.main([])

  def test_bits_and_distances_are_told_apart(self):
    self.assertEqual(gpu_check._compare_bits([[1.0, 2.0]], [[1.0, 2.0]]),
                     '2 values')
    with self.assertRaisesRegex(gpu_check.Failed, '1 values differ'):
      gpu_check._compare_bits([[1.0, 2.0]], [[1.0, 2.5]])
    # sqrt(9 + 16) of 10.
    self.assertAlmostEqual(
        gpu_check._distance([[3.0, 14.0]], [[0.0, 10.0]]), 0.5
    )

"""Tests of tff_asr.programs.progress."""

import io
import os
from unittest import mock

from absl.testing import absltest

from tff_asr.programs import progress as progress_lib


class _Terminal(io.StringIO):

  def isatty(self) -> bool:
    return True


class _Narrow(_Terminal):

  def fileno(self) -> int:
    return 1


class ProgressTest(absltest.TestCase):

  def setUp(self):
    super().setUp()
    self.now = 100.0
    self.enterContext(
        mock.patch.object(
            progress_lib.time, 'monotonic', side_effect=lambda: self.now
        )
    )

  def test_a_pipe_gets_a_line_every_ten_seconds(self):
    stream = io.StringIO()
    with progress_lib.Progress(
        description='federated', total=10, stream=stream
    ) as progress:
      for round_num in range(1, 11):
        self.now += 4.0
        progress.update(loss=f'{10 - round_num}.0')
    self.assertEqual(
        stream.getvalue().splitlines(),
        [
            # The first at once; then after 10 seconds or more; the last.
            'federated: round 1 of 10, loss 9.0',
            'federated: round 4 of 10, loss 6.0, 24 s left',
            'federated: round 7 of 10, loss 3.0, 12 s left',
            'federated: round 10 of 10, loss 0.0',
        ],
    )

  def test_time_left_counts_neither_the_first_round_nor_those_before(self):
    stream = io.StringIO()
    with progress_lib.Progress(
        description='central', total=12, initial=8, unit='step', stream=stream
    ) as progress:
      self.now += 900.0  # Functions are traced.
      progress.update()
      self.now += 15.0
      progress.update()
    self.assertEqual(
        stream.getvalue().splitlines(),
        ['central: step 9 of 12', 'central: step 10 of 12, 30 s left'],
    )

  def test_time_left_is_in_seconds_minutes_or_hours(self):
    for total, shown in ((3, '100 s'), (4, '3 min'), (81, '2 h 12 min')):
      stream = io.StringIO()
      progress = progress_lib.Progress(
          description='x', total=total, stream=stream
      )
      progress.update()
      self.now += 100
      progress.update()
      # Of 100 s a round: 1, 2 (200 s) and 79 (7900 s, 132 minutes) are left.
      self.assertEndsWith(stream.getvalue(), f', {shown} left\n')

  def test_metrics_stay_until_they_are_replaced(self):
    stream = io.StringIO()
    progress = progress_lib.Progress(
        description='x', total=40, unit='utterance', stream=stream
    )
    progress.update(5, **{'dev WER': '50%'}, loss='2')
    self.now += 20
    progress.update(5, loss='1')
    self.assertIn('utterance 10 of 40, dev WER 50%, loss 1,', stream.getvalue())

  def test_a_terminal_gets_one_line_that_is_redrawn(self):
    stream = _Terminal()
    with progress_lib.Progress(
        description='federated', total=2, stream=stream
    ) as progress:
      progress.update(loss='2.0')
      progress.update(loss='1.5')
      shown = stream.getvalue()
    self.assertEqual(
        shown,
        '\r\x1b[Kfederated: round 1 of 2, loss 2.0'
        # What follows, before the end of the block too, begins a line.
        '\r\x1b[Kfederated: round 2 of 2, loss 1.5\n',
    )
    self.assertEqual(stream.getvalue(), shown)

  def test_fast_updates_redraw_a_terminal_ten_times_a_second(self):
    stream = _Terminal()
    with progress_lib.Progress(
        description='private', total=24_000, unit='utterance', stream=stream
    ) as progress:
      for _ in range(24_000):
        progress.update()
        self.now += 0.001
    shown = stream.getvalue().split('\r\x1b[K')[1:]
    # In 24 seconds, and where a sum of .001 falls short of .1 a little later.
    self.assertBetween(len(shown), 230, 241)
    self.assertEqual(shown[0], 'private: utterance 1 of 24,000')
    self.assertEqual(shown[-1], 'private: utterance 24,000 of 24,000\n')

  def test_a_loop_that_ends_early_ends_its_line(self):
    stream = _Terminal()
    with progress_lib.Progress(
        description='federated', total=2, stream=stream
    ) as progress:
      progress.update()
    self.assertEndsWith(stream.getvalue(), 'round 1 of 2\n')

  @mock.patch.object(
      os, 'get_terminal_size', return_value=os.terminal_size((40, 24))
  )
  def test_a_line_that_would_wrap_leaves_its_last_metrics_out(self, size):
    stream = _Narrow()
    with progress_lib.Progress(
        description='x', total=10, stream=stream
    ) as progress:
      progress.update(**{'loss': '2.5', 'dev WER': '50.0%', 'y': '1'})
      self.now += 10
      progress.update(loss='3')
      self.now += 10
      # 39 columns, then 40: after the 40th, some terminals wrap.
      progress.update(loss='1.255')
      self.now += 10
      progress.update(loss='1.2555')
    size.assert_called_with(1)
    self.assertEqual(
        stream.getvalue().split('\r\x1b[K')[1:],
        [
            'x: round 1 of 10, loss 2.5',
            'x: round 2 of 10, loss 3, 80 s left',
            'x: round 3 of 10, loss 1.255, 70 s left',
            'x: round 4 of 10, 60 s left\n',
        ],
    )
